//! A machine that gives the binary no more threads: it says which could not be started, and ends.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// A user without rights: the limit on threads does not count for root.
const NOBODY: u32 = 65534;
/// With so many threads everything that a put needs can be started.
const ENOUGH: u64 = 12;

#[test]
fn a_thread_that_cannot_be_started_is_named_and_ends_what_was_started() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: only root can become another user, whose threads are counted");
        return;
    }
    // Where that user can reach it.
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let binary = folder.path().join("esker");
    std::fs::copy(env!("CARGO_BIN_EXE_esker"), &binary).unwrap();
    std::fs::set_permissions(&binary, PermissionsExt::from_mode(0o755)).unwrap();
    let put = |threads: u64| {
        let ids = format!("--reuid={NOBODY}");
        let groups = format!("--regid={NOBODY}");
        let limit = format!("--nproc={threads}");
        let limited = ["60", "setpriv", &ids, &groups, "--clear-groups", "prlimit", &limit];
        let output = Command::new("timeout")
            .args(limited)
            .arg(&binary)
            .args(["kv", "--store", "data?size=64m&segment=1m", "put", "a", &threads.to_string()])
            .current_dir(folder.path())
            .env_remove("ESKER_CONFIG")
            .output()
            .unwrap();
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let mut named = Vec::new();
    for threads in 1..ENOUGH {
        let (code, said) = put(threads);
        assert_ne!(code, 124, "with {threads} threads it hangs: {said}");
        if code != 0 {
            let thread =
                said.split("starting the thread ").nth(1).unwrap_or_else(|| panic!("{threads} threads: {said}"));
            named.push(thread.split(' ').next().unwrap().to_owned());
        }
    }
    let needed = ["esker-commit", "esker-prepare", "esker-clean", "esker-move"];
    assert!(needed.iter().all(|needed| named.iter().any(|name| name == needed)), "{named:?}");
    assert_eq!(put(ENOUGH).0, 0);
}
