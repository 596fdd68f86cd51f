//! Esker: an `int` namespace of the kv face, on the engine on a file, or on the memory backend.

use std::sync::Arc;

use anyhow::{Context, Result};
use esker_device::{FileDevice, OpenMode};
use esker_engine::{Engine, FormatOptions, Options};
use esker_kv::{Durability, Kind, Kv, Namespace, SystemClock};
use esker_memory::MemoryStore;
use esker_store::ObjectStore;

use crate::peer::{Peer, Session, Settings, Sync};

pub const SETUP: &str = "kv, int namespace, on the engine on a file; memory for recent segments and read cache together = \
    --cache; page cache: Durability::Applied; synced: Durability::Durable, policy adaptive; get: its Bytes are looked at in place";
pub const SETUP_MEMORY: &str = "kv, int namespace, on the memory backend; keeps nothing, for scale only";

/// The id of every store made here.
pub const UUID: [u8; 16] = *b"esker-compare-00";

struct Esker {
    namespace: Namespace,
    /// Kept to be closed; none on the memory backend.
    engine: Option<Arc<Engine>>,
}

pub fn open(settings: &Settings<'_>) -> Result<Box<dyn Peer>> {
    // Sparse: room for every record's framing and for the cleaner.
    let len = 2 * settings.data_bytes() + 256 * u64::from(settings.keys) + (4 << 30);
    let layout = FormatOptions::new(UUID);
    Ok(open_sized(settings, len.next_multiple_of(64 << 20), &layout)?.0)
}

/// A store on a file of `len` bytes, and its engine for those who want to see its figures.
pub fn open_sized(settings: &Settings<'_>, len: u64, layout: &FormatOptions) -> Result<(Box<dyn Peer>, Arc<Engine>)> {
    let path = settings.dir.join("store.esker");
    let device = FileDevice::open(&path, OpenMode::Create { len })?;
    Engine::format(&device, layout)?;
    let defaults = Options::default();
    let options = Options {
        cache_bytes: settings.cache_bytes.saturating_sub(defaults.recent_bytes),
        pending_bytes_max: settings.esker_pending_bytes.unwrap_or(defaults.pending_bytes_max),
        ..defaults
    };
    let engine = Arc::new(Engine::open(Arc::new(device), options)?);
    let shown = Arc::clone(&engine);
    Ok((peer(Arc::clone(&engine) as Arc<dyn ObjectStore>, Some(engine), settings)?, shown))
}

pub fn open_memory(settings: &Settings<'_>) -> Result<Box<dyn Peer>> {
    peer(Arc::new(MemoryStore::new()), None, settings)
}

fn peer(store: Arc<dyn ObjectStore>, engine: Option<Arc<Engine>>, settings: &Settings<'_>) -> Result<Box<dyn Peer>> {
    let kv = Kv::open(store, Arc::new(SystemClock))?;
    kv.set_default_durability(match settings.sync {
        Sync::None => Durability::Applied,
        Sync::Each => Durability::Durable,
    });
    let namespace = kv.namespace("compare", Kind::Int)?;
    Ok(Box::new(Esker { namespace, engine }))
}

impl Peer for Esker {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Handle(&self.namespace)))
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        let Self { namespace, engine } = *self;
        drop(namespace);
        engine.map_or(Ok(()), |engine| engine.close().context("close"))
    }
}

struct Handle<'a>(&'a Namespace);

impl Session for Handle<'_> {
    fn put(&mut self, key: u32, value: &[u8]) -> Result<()> {
        Ok(self.0.put(u64::from(key), value).wait()?)
    }

    fn get(&mut self, key: u32, _: &mut [u8], look: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let Some(value) = self.0.get(u64::from(key)).wait()? else {
            return Ok(false);
        };
        look(&value);
        Ok(true)
    }
}
