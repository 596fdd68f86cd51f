//! A disk that is as slow as a test says.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use esker_server::nbd::{Done, Export, Exports, Extent, Fault, MemoryDisk, OpenError, Outcome, Piece};
use esker_store::{Barrier, DurableMark, Promise, promised};
use parking_lot::Mutex;

/// What was read, counted as long as it is in memory.
struct Counted(Vec<u8>, Arc<AtomicU64>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(self.0.len() as u64, Ordering::SeqCst);
    }
}

/// Who writes there panics.
pub const PANICS_AT: u64 = 4_242;

/// A disk whose writes become durable when the test says so, and which counts the memory of reads that are under way.
pub struct Slow {
    disk: MemoryDisk,
    pub mark: Arc<DurableMark>,
    pub written: AtomicU64,
    pub stall: AtomicBool,
    /// Whether what is read is told only once all that was written is durable.
    pub hold: AtomicBool,
    pub reading: AtomicU64,
    pub reading_max: AtomicU64,
    pub read_bytes: Arc<AtomicU64>,
    pub read_bytes_max: AtomicU64,
    /// Where writes are only begun: those that are.
    pub begun: Mutex<Option<Vec<Promise<()>>>>,
}

impl Slow {
    pub fn new() -> Arc<Self> {
        let mark = DurableMark::new(0, Box::new(|| {}));
        let zero = || AtomicU64::new(0);
        let disk = MemoryDisk::new(1 << 30);
        Arc::new(Self {
            disk,
            mark,
            written: zero(),
            stall: false.into(),
            hold: false.into(),
            reading: zero(),
            reading_max: zero(),
            read_bytes: Arc::default(),
            read_bytes_max: zero(),
            begun: Mutex::new(None),
        })
    }

    fn barrier(&self) -> Barrier {
        Barrier::new(&self.mark, self.written.load(Ordering::SeqCst))
    }

    fn applied(&self, fua: bool) -> Outcome {
        self.written.fetch_add(1, Ordering::SeqCst);
        if let Some(begun) = &mut *self.begun.lock() {
            let (promise, completion) = promised("a slow disk");
            begun.push(promise);
            return Ok(Done { later: Some(completion), ..Done::now(()) });
        }
        Ok(Done::behind((), fua.then(|| self.barrier())))
    }
}

impl Export for Slow {
    fn size(&self) -> u64 {
        self.disk.size()
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read(&self, offset: u64, len: u32) -> Outcome<Vec<Piece>> {
        let now = self.reading.fetch_add(1, Ordering::SeqCst) + 1;
        self.reading_max.fetch_max(now, Ordering::SeqCst);
        while self.stall.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let held = self.read_bytes.fetch_add(len.into(), Ordering::SeqCst) + u64::from(len);
        self.read_bytes_max.fetch_max(held, Ordering::SeqCst);
        let data = Bytes::from_owner(Counted(vec![9; len as usize], Arc::clone(&self.read_bytes)));
        let _ = offset;
        self.reading.fetch_sub(1, Ordering::SeqCst);
        let barrier = self.hold.load(Ordering::SeqCst).then(|| self.barrier());
        Ok(Done::behind(vec![Piece::Data(data)], barrier))
    }

    fn write(&self, offset: u64, data: Bytes, fua: bool) -> Outcome {
        assert_ne!(offset, PANICS_AT, "the test asked for it");
        self.disk.write(offset, data, false)?;
        self.applied(fua)
    }

    fn zero(&self, offset: u64, len: u64, no_hole: bool, fast: bool, fua: bool) -> Outcome {
        self.disk.zero(offset, len, no_hole, fast, false)?;
        self.applied(fua)
    }

    fn discard(&self, offset: u64, len: u64, fua: bool) -> Outcome {
        self.disk.discard(offset, len, false)?;
        self.applied(fua)
    }

    fn flush(&self) -> Outcome {
        Ok(Done::behind((), Some(self.barrier())))
    }

    fn extents(&self, offset: u64, len: u64, limit: usize) -> Outcome<Vec<Extent>> {
        self.disk.extents(offset, len, limit)
    }
}

/// An export that is a slow disk.
pub struct One(pub Arc<Slow>);

impl Exports for One {
    fn list(&self) -> Result<Vec<(String, String)>, Fault> {
        Ok(vec![("slow".into(), String::new())])
    }

    fn open(&self, _: &str) -> Result<Arc<dyn Export>, OpenError> {
        Ok(Arc::clone(&self.0) as Arc<dyn Export>)
    }
}
