//! How fast the disk below a backend is when it is written in order, past the page cache, as the engine does it.
//!
//! file of its own → reserved space, written the first time: pieces with a sync after each · space that was written
//! before: large pieces with few syncs, pieces with a sync after each
//!
//! A file system notes of each piece of reserved space that it holds something now, which costs its sync. The engine's
//! segments are written so the first time.
//!
//! Invariant: nothing of the store takes part; the file is removed when its rates are known.

use std::path::PathBuf;
use std::time::Instant;

use esker::device::{Device, FileDevice, OpenMode};

use crate::bench::objects::target::Target;
use crate::exit::Failure;

/// Bytes of a large piece.
pub const CHUNK_BYTES: u64 = 1 << 20;
/// Large pieces between syncs.
const SYNC_CHUNKS: u64 = 64;
const BLOCK: u64 = 4_096;

/// Bytes per second.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// In pieces of [`CHUNK_BYTES`], with a sync every [`SYNC_CHUNKS`] of them and at the end.
    pub stream: f64,
    /// In pieces of the given size, each synced.
    pub groups: f64,
    /// The same, on reserved space that was not written before.
    pub fresh: f64,
}

/// Rates by folder and size of a piece.
#[derive(Default)]
pub struct Rates(Vec<(PathBuf, u64, Rate)>);

impl Rates {
    /// Measures the disk of a target, for pieces of `group_bytes`, on a file of `space` bytes, for about `seconds`
    /// altogether. Does nothing if that is known, or if the target has no disk.
    pub fn measure(&mut self, target: &Target, group_bytes: u64, space: u64, seconds: f64) -> Result<(), Failure> {
        if !target.on_disk() || self.of(target, group_bytes).is_some() {
            return Ok(());
        }
        std::fs::create_dir_all(target.path())?;
        let path = target.path().join(format!("bench-log-{}-raw", std::process::id()));
        let rate = measure(&path, group_bytes, space, seconds / 3.0);
        let removed = std::fs::remove_file(&path);
        self.0.push((target.path().to_owned(), group_bytes, rate?));
        Ok(removed?)
    }

    /// What was measured.
    pub fn of(&self, target: &Target, group_bytes: u64) -> Option<Rate> {
        let same = |(path, bytes, _): &&(PathBuf, u64, Rate)| path == target.path() && *bytes == group_bytes;
        self.0.iter().find(same).filter(|_| target.on_disk()).map(|(_, _, rate)| *rate)
    }
}

fn measure(path: &std::path::Path, group_bytes: u64, space: u64, seconds: f64) -> Result<Rate, Failure> {
    let space = space / CHUNK_BYTES * CHUNK_BYTES;
    let group = group_bytes.next_multiple_of(BLOCK).clamp(BLOCK, space);
    let device = FileDevice::open(path, OpenMode::Create { len: space })?;
    // Aligned, so that it goes past the page cache; random, so that nothing below finds a pattern in it.
    let mut buffer = vec![0; (group.max(CHUNK_BYTES) + BLOCK) as usize];
    fastrand::Rng::with_seed(group).fill(&mut buffer);
    let start = buffer.as_ptr().align_offset(BLOCK as usize);
    let data = &buffer[start..];
    device.reserve(0, space)?;
    device.sync()?;
    // The blocks that a piece is rounded up to are not payload.
    let payload = group_bytes.min(group) as f64 / group as f64;
    let (began, mut fresh) = (Instant::now(), 0);
    while fresh + group <= space && (fresh == 0 || began.elapsed().as_secs_f64() < seconds) {
        device.write(fresh, &data[..group as usize])?;
        device.sync()?;
        fresh += group;
    }
    let fresh = fresh as f64 / began.elapsed().as_secs_f64() * payload;
    for at in (0..space).step_by(CHUNK_BYTES as usize) {
        device.write(at, &data[..CHUNK_BYTES as usize])?;
    }
    device.sync()?;
    let rate = |piece: u64, pieces_per_sync: u64| -> Result<f64, Failure> {
        let (began, mut at, mut written, mut pieces) = (Instant::now(), 0, 0u64, 0u64);
        while began.elapsed().as_secs_f64() < seconds {
            if at + piece > space {
                at = 0;
            }
            device.write(at, &data[..piece as usize])?;
            at += piece;
            written += piece;
            pieces += 1;
            if pieces.is_multiple_of(pieces_per_sync) {
                device.sync()?;
            }
        }
        device.sync()?;
        Ok(written as f64 / began.elapsed().as_secs_f64())
    };
    let stream = rate(CHUNK_BYTES, SYNC_CHUNKS)?;
    let groups = rate(group, 1)? * payload;
    Ok(Rate { stream, groups, fresh })
}
