//! A server of disks inside this process, for clients that this process starts or is.
//!
//! Invariants:
//! 1. It listens on a unix socket in a folder that only its user may enter.
//! 2. It ends, and gives the locks of images back, before the store closes, whatever went wrong.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use esker_server::nbd::{self, Address, Config, Exports, Handle, Place, Server, VolumeExports};
use tempfile::TempDir;

use crate::commands::serve::disks::{failure, locking};
use crate::commands::volume::context::Context;
use crate::exit::Failure;

/// A folder that only this user may enter, gone when dropped.
fn private_folder() -> Result<TempDir, Failure> {
    let permissions = Permissions::from_mode(0o700);
    Ok(tempfile::Builder::new().prefix("esker-").permissions(permissions).tempdir()?)
}

/// The running server.
pub(super) struct Inside {
    folder: TempDir,
    address: Address,
    handle: Handle,
    thread: Option<JoinHandle<nbd::Result<()>>>,
}

impl Inside {
    /// Serves the volumes as `config` says, but for where it listens.
    pub(super) fn start(context: &Context, config: Config) -> Result<Self, Failure> {
        let exports = VolumeExports::new(context.volumes.clone(), locking(!context.store.is_shared()));
        Self::serve(Arc::new(exports), config)
    }

    /// Serves these disks as `config` says, but for where it listens.
    pub(super) fn serve(exports: Arc<dyn Exports>, config: Config) -> Result<Self, Failure> {
        let folder = private_folder()?;
        let socket = folder.path().join("nbd.sock");
        let config = Config { unix_socket: Some(socket.clone()), ..config };
        let server = Server::bind(config, exports).map_err(failure)?;
        let handle = server.handle();
        let thread = std::thread::Builder::new().name("esker-nbd-accept".into()).spawn(move || server.run())?;
        Ok(Self { folder, address: Address::Unix(socket), handle, thread: Some(thread) })
    }

    /// Where an export is reached.
    pub(super) fn place(&self, export: &str) -> Place {
        Place::new(self.address.clone(), export)
    }

    /// A folder for files beside the socket.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Stops it once what is under way is answered.
    pub(super) fn stop(mut self) -> Result<(), Failure> {
        self.join().map_err(failure)
    }

    fn join(&mut self) -> nbd::Result<()> {
        self.handle.shutdown();
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(()),
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if self.thread.is_some() && !std::thread::panicking() {
            // The error that led here is the one to tell.
            let _ = self.join();
        }
    }
}
