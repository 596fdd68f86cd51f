//! What an operator asks of single exports: that they refuse writes, or answer only durable ones.

use std::sync::Arc;

use bytes::Bytes;
use esker_volume::Ranges;

use crate::nbd::config::Config;
use crate::nbd::export::{BlockSizes, Export, Extent, Fault, Outcome, Piece};

/// An export with the options that its name has in the configuration.
pub(crate) struct Optioned {
    export: Arc<dyn Export>,
    durable: bool,
    read_only: bool,
}

impl Optioned {
    /// `export` itself if the configuration asks nothing of it, and the client `writes`, as far as it may.
    pub(crate) fn over(export: Arc<dyn Export>, config: &Config, name: &str, writes: bool) -> Arc<dyn Export> {
        let durable = Config::names(&config.durable, name);
        let read_only = !writes || Config::names(&config.read_only, name);
        if durable || read_only { Arc::new(Self { export, durable, read_only }) } else { export }
    }

    fn writable(&self) -> Result<(), Fault> {
        if self.read_only { Err(Fault::NotPermitted("this export is served read-only".into())) } else { Ok(()) }
    }
}

impl Export for Optioned {
    fn size(&self) -> u64 {
        self.export.size()
    }

    fn block_sizes(&self) -> BlockSizes {
        self.export.block_sizes()
    }

    fn read_only(&self) -> bool {
        self.read_only || self.export.read_only()
    }

    fn description(&self) -> String {
        self.export.description()
    }

    fn read(&self, offset: u64, len: u32) -> Outcome<Vec<Piece>> {
        self.export.read(offset, len)
    }

    fn bring(&self, ranges: &mut dyn Ranges) -> bool {
        self.export.bring(ranges)
    }

    fn write(&self, offset: u64, data: Bytes, fua: bool) -> Outcome {
        self.writable()?;
        self.export.write(offset, data, fua || self.durable)
    }

    fn zero(&self, offset: u64, len: u64, no_hole: bool, fast: bool, fua: bool) -> Outcome {
        self.writable()?;
        self.export.zero(offset, len, no_hole, fast, fua || self.durable)
    }

    fn discard(&self, offset: u64, len: u64, fua: bool) -> Outcome {
        self.writable()?;
        self.export.discard(offset, len, fua || self.durable)
    }

    fn flush(&self) -> Outcome {
        self.export.flush()
    }

    fn extents(&self, offset: u64, len: u64, limit: usize) -> Outcome<Vec<Extent>> {
        self.export.extents(offset, len, limit)
    }
}
