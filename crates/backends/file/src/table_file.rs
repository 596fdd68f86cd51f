//! The table's file below redb, by way of [`Files`](crate::files::Files), so that tests can lose and fail its writes
//! too.
//!
//! Invariant: once frozen, nothing is written any more, not even when the table is closed: what it has not made durable
//! by then must not become so, since the files of objects may be behind.

use std::io::{Error, ErrorKind, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::StorageBackend;

use crate::files::FileIo;

/// The file, for redb.
#[derive(Debug)]
pub struct TableFile {
    file: Arc<dyn FileIo>,
    frozen: Arc<AtomicBool>,
}

impl TableFile {
    /// The table in `file`, until `frozen` is set.
    pub fn new(file: Arc<dyn FileIo>, frozen: Arc<AtomicBool>) -> Self {
        Self { file, frozen }
    }

    fn thawed(&self) -> Result<()> {
        if self.frozen.load(Ordering::SeqCst) {
            return Err(Error::other("the store stopped writing"));
        }
        Ok(())
    }
}

impl TableFile {
    /// A panic inside the table would leave its locks poisoned, and every later look at it would panic as well: the
    /// table gets an error instead.
    fn guarded<T>(&self, writes: bool, call: impl FnOnce() -> Result<T>) -> Result<T> {
        if writes {
            self.thawed()?;
        }
        catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
            Err(Error::other(esker_store::Error::panicked("a call of the table's file", &*panic)))
        })
    }
}

impl StorageBackend for TableFile {
    fn len(&self) -> Result<u64> {
        self.guarded(false, || self.file.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let wanted = out.len();
        if self.guarded(false, || self.file.read_at(offset, out))? < wanted {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.guarded(true, || self.file.set_len(len))
    }

    fn sync_data(&self) -> Result<()> {
        self.guarded(true, || self.file.sync())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.guarded(true, || self.file.write_at(offset, data))
    }
}
