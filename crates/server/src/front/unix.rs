//! Unix sockets that are listened on: in place of a dead one, with the mode and the group that were asked for.

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Groups of this machine, by name.
const GROUPS: &str = "/etc/group";

/// What may connect to a unix socket beside its owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnixAccess {
    /// Permissions of the socket's file, such as 0o660; `None`: what the process's umask leaves.
    pub mode: Option<u32>,
    /// Name or number of the group that the file is given to; `None`: the process's own.
    pub group: Option<String>,
}

/// Binds a unix socket, in place of one that no server listens on any more. It does not block.
pub(crate) fn bind(path: &Path, access: &UnixAccess) -> io::Result<UnixListener> {
    let group = access.group.as_deref().map(group_number).transpose()?;
    // Until it has its mode only the owner may connect.
    let umask = access.mode.map(|_| rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177)));
    let bound = replace(path);
    if let Some(umask) = umask {
        rustix::process::umask(umask);
    }
    let listener = bound?;
    let allow = || -> io::Result<()> {
        if let Some(group) = group {
            chown(path, None, Some(group))?;
        }
        if let Some(mode) = access.mode {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        }
        listener.set_nonblocking(true)
    };
    if let Err(error) = allow() {
        // It is not used; that it cannot be removed either changes nothing about the error.
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    Ok(listener)
}

/// Binds, in place of a socket that no server listens on any more.
fn replace(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let is_socket = std::fs::symlink_metadata(path)?.file_type().is_socket();
            if !is_socket || UnixStream::connect(path).is_ok() {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        other => other,
    }
}

/// The number of a group that is given by name or number.
fn group_number(group: &str) -> io::Result<u32> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let groups = std::fs::read_to_string(GROUPS)?;
    let number = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(group) {
            return None;
        }
        fields.nth(1)?.parse().ok()
    });
    number.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("there is no group {group:?} in {GROUPS}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_has_the_mode_and_group_that_were_asked_for_and_a_wrong_group_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let access = UnixAccess { mode: Some(0o640), group: Some("root".into()) };
        // The group can be given by its members only; the name is found in any case.
        if group_number("root").unwrap() == rustix::process::getegid().as_raw() {
            let listener = bind(&path, &access).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
            // A live one is not replaced; a dead one is.
            assert_eq!(bind(&path, &access).unwrap_err().kind(), io::ErrorKind::AddrInUse);
            drop(listener);
            drop(bind(&path, &UnixAccess { mode: Some(0o600), group: None }).unwrap());
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            std::fs::remove_file(&path).unwrap();
        }
        let error = bind(&path, &UnixAccess { mode: None, group: Some("no such group".into()) }).unwrap_err();
        assert!(error.to_string().contains("no such group"), "{error}");
        assert!(!path.exists());
    }
}
