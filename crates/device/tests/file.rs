//! FileDevice on what it is made for: a regular file, a raw block device, a full file system.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::path::{Path, PathBuf};
use std::process::Command;

use esker_device::{Device, Error, FileDevice, OpenMode};

const LEN: u64 = 1 << 20;

fn create(folder: &Path) -> (PathBuf, FileDevice) {
    let path = folder.join("device");
    let device = FileDevice::open(&path, OpenMode::Create { len: LEN }).unwrap();
    (path, device)
}

/// Runs a command that needs root; `None`, with the reason printed, where it does not work here.
fn root(program: &str, arguments: &[&str]) -> Option<String> {
    let output = match Command::new(program).args(arguments).output() {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: {program}: {error}");
            return None;
        }
    };
    if !output.status.success() {
        println!("skipped: {program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        return None;
    }
    Some(String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

fn exercise(device: &dyn Device) {
    let mut aligned = vec![0u8; 3 * 4096];
    let shift = aligned.as_ptr().align_offset(4096);
    // Once from an aligned buffer, past the page cache, and once from one that is not.
    for (round, start) in [(1u8, shift), (2, shift + 8)] {
        aligned[start..start + 4096].fill(round);
        device.write(u64::from(round) * 4096, &aligned[start..start + 4096]).unwrap();
    }
    device.sync().unwrap();
    let mut found = vec![9; 3 * 4096 + 1];
    device.read(4095, &mut found).unwrap();
    assert_eq!(found[0], 0);
    assert!(found[1..4097].iter().all(|byte| *byte == 1));
    assert!(found[4097..8193].iter().all(|byte| *byte == 2));
    device.discard(4096, 4096).unwrap();
    device.read(4096, &mut found[..4096]).unwrap();
    assert!(found[..4096].iter().all(|byte| *byte == 0));
    device.reserve(0, LEN / 2).unwrap();
    device.prefill(LEN / 2, LEN / 2).unwrap();
    // What was written before gains nothing from it.
    device.prefill(8192, 4096).unwrap();
    device.read(8192, &mut found[..4096]).unwrap();
    assert!(found[..4096].iter().all(|byte| *byte == 2), "filled although it was written before");
    assert!(matches!(device.write(1, &[0; 4096]), Err(Error::Unaligned { .. })));
    assert!(matches!(device.write(device.geometry().len, &[0; 4096]), Err(Error::OutOfRange { .. })));
    assert!(matches!(device.read(u64::MAX, &mut [0; 2]), Err(Error::OutOfRange { .. })));
    for refused in [device.discard(512, 4096), device.reserve(0, 100), device.prefill(1, 4096)] {
        assert!(matches!(refused, Err(Error::Unaligned { .. })), "{refused:?}");
    }
    for refused in [device.discard(LEN, 4096), device.reserve(4096, u64::MAX - 4095), device.prefill(4096, LEN)] {
        assert!(matches!(refused, Err(Error::OutOfRange { .. })), "{refused:?}");
    }
}

#[test]
fn a_regular_file_keeps_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let (path, device) = create(folder.path());
    exercise(&device);
    drop(device);
    // A process that another test is just starting holds the lock until it has become another program.
    let again = || FileDevice::open(&path, OpenMode::ReadWrite);
    let mut device = again();
    for _ in 0..100 {
        if !matches!(device, Err(Error::InUse { .. })) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        device = again();
    }
    let device = device.unwrap();
    let mut byte = [0];
    device.read(8192, &mut byte).unwrap();
    assert_eq!((byte[0], device.geometry().len), (2, LEN));
}

#[test]
fn a_raw_block_device_works_like_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("backing");
    std::fs::File::create(&path).unwrap().set_len(LEN).unwrap();
    let Some(loop_device) = root("losetup", &["--find", "--show", path.to_str().unwrap()]) else { return };
    let outcome = std::panic::catch_unwind(|| {
        let device = FileDevice::open(&loop_device, OpenMode::ReadWrite).unwrap();
        assert_eq!(device.geometry().len, LEN);
        exercise(&device);
    });
    root("losetup", &["--detach", &loop_device]);
    outcome.unwrap();
}

#[test]
fn a_second_opener_is_refused_while_the_first_lives() {
    let folder = tempfile::tempdir().unwrap();
    let (path, device) = create(folder.path());
    for mode in [OpenMode::ReadWrite, OpenMode::ReadOnly] {
        assert!(matches!(FileDevice::open(&path, mode), Err(Error::InUse { .. })));
    }
    drop(device);
    let reader = FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
    assert!(matches!(FileDevice::open(&path, OpenMode::ReadWrite), Err(Error::InUse { .. })));
    assert!(matches!(reader.write(0, &[0; 4096]), Err(Error::ReadOnly { .. })));
}

#[test]
fn what_exists_is_not_overwritten_and_what_is_missing_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (path, device) = create(folder.path());
    drop(device);
    assert!(matches!(FileDevice::open(&path, OpenMode::Create { len: LEN }), Err(Error::Exists { .. })));
    let missing = FileDevice::open(folder.path().join("missing"), OpenMode::ReadWrite).unwrap_err();
    assert!(missing.to_string().contains("missing"), "{missing}");
    assert!(FileDevice::open(folder.path(), OpenMode::ReadOnly).is_err());
}

#[test]
fn a_pipe_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    for mode in [OpenMode::ReadOnly, OpenMode::ReadWrite] {
        assert!(matches!(FileDevice::open(&pipe, mode), Err(Error::Io { what: "open", .. })));
    }
}

#[test]
fn a_creation_that_fails_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device");
    // Longer than any file can be.
    assert!(FileDevice::open(&path, OpenMode::Create { len: u64::MAX - 4095 }).is_err());
    assert!(!path.exists());
    FileDevice::open(&path, OpenMode::Create { len: LEN }).unwrap();
}

#[test]
fn nothing_is_changed_through_a_read_only_device() {
    let folder = tempfile::tempdir().unwrap();
    let (path, device) = create(folder.path());
    device.write(0, &[1; 4096]).unwrap();
    drop(device);
    let device = FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
    for refused in
        [device.write(0, &[2; 4096]), device.discard(0, 4096), device.reserve(0, LEN), device.prefill(0, LEN)]
    {
        assert!(matches!(refused, Err(Error::ReadOnly { .. })), "{refused:?}");
    }
    device.sync().unwrap();
    let mut byte = [0];
    device.read(0, &mut byte).unwrap();
    assert_eq!(byte[0], 1);
}

#[test]
fn a_file_that_was_cut_short_is_an_error_not_zeros() {
    let folder = tempfile::tempdir().unwrap();
    let (path, device) = create(folder.path());
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(LEN / 2).unwrap();
    match device.read(LEN / 2 - 10, &mut [0; 20]) {
        Err(Error::Io { offset, source, .. }) => {
            assert_eq!((offset, source.kind()), (LEN / 2 - 10, std::io::ErrorKind::UnexpectedEof));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_full_file_system_is_told_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let mount = folder.path().to_str().unwrap();
    if root("mount", &["-t", "tmpfs", "-o", "size=512k", "tmpfs", mount]).is_none() {
        return;
    }
    let outcome = std::panic::catch_unwind(|| {
        let (_, device) = create(folder.path());
        device.reserve(0, LEN / 4).unwrap();
        assert!(matches!(device.reserve(0, LEN), Err(Error::NoSpace { .. })));
        assert!(matches!(device.write(0, &vec![1; LEN as usize]), Err(Error::NoSpace { .. })));
        assert!(matches!(device.prefill(0, LEN), Err(Error::NoSpace { .. })));
        device.write(0, &[1; 4096]).unwrap();
    });
    root("umount", &[mount]);
    outcome.unwrap();
}
