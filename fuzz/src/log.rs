//! Target `log`: what the log face keeps in a store, entries and views, given as any bytes.
//!
//! Inputs are entries and heads that a log in memory wrote, damaged; some have their checksum made right again, so that
//! what is behind it is reached.

use std::sync::Arc;

use esker_log::format::ENTRY_HEADER_BYTES;
use esker_log::{Layout, Logs, Options, Record, Session, decode_any};
use esker_memory::MemoryStore;
use esker_store::{Collection, ObjectId, ObjectStore, OmapScan, SlotScan};

use crate::Target;
use crate::mutate::mutate;

pub struct LogBytes {
    seeds: Vec<Vec<u8>>,
}

/// Everything that a few logs wrote.
fn written() -> Vec<Vec<u8>> {
    let store: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new());
    let logs = Logs::open(Arc::clone(&store), Session::new(Arc::new(|| 1_700_000_000_000), 7)).expect("memory opens");
    for (layout, name) in Layout::ALL {
        let options = Options { layout, width: 3, slots: 4, inline_bytes_max: 16, ..Options::default() };
        let log = logs.create(name, options).expect("a log is made");
        for number in 0..40usize {
            let record = Record::from(vec![number as u8; number * 3]).stream("all").stream(format!("s{}", number % 3));
            log.append(record).and_then(|done| Ok(done.wait()?)).expect("memory takes entries");
            if number == 20 {
                log.reshape(2, 100).expect("a log is reshaped");
            }
        }
        log.trim(33).expect("an entry is trimmed");
        log.lead("127.0.0.1:1").expect("a log is led");
    }
    let mut seeds = Vec::new();
    let collection = Collection::from("log");
    for name in store.list(&collection, None, 1_000).wait().expect("memory lists") {
        let object = ObjectId::new(collection.clone(), name);
        seeds.extend(store.xattr(&object, b"view").wait().expect("memory reads").map(|view| view.to_vec()));
        let scan = SlotScan { range: 0..u64::MAX, reverse: false, limit: 1_000, keys_only: false };
        let slots = store.slot_scan(&object, &scan).wait().expect("memory scans");
        seeds.extend(slots.into_iter().map(|(_, value)| value.to_vec()));
        let scan = OmapScan { limit: 1_000, ..OmapScan::default() };
        let keys = store.omap_scan(&object, &scan).wait().expect("memory scans");
        seeds.extend(keys.into_iter().map(|(_, value)| value.to_vec()));
    }
    seeds.retain(|seed| seed.len() >= ENTRY_HEADER_BYTES);
    assert!(seeds.len() > 100, "only {} seeds", seeds.len());
    seeds
}

fn position(input: &[u8]) -> u64 {
    input.get(8..16).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

impl LogBytes {
    pub fn new() -> Self {
        Self { seeds: written() }
    }
}

impl Target for LogBytes {
    fn input(&mut self, random: &mut fastrand::Rng) -> Vec<u8> {
        let mut input = self.seeds[random.usize(0..self.seeds.len())].clone();
        if random.u8(0..8) != 0 {
            mutate(&mut input, random);
        }
        match random.u8(0..3) {
            // An entry's checksum: over everything, its own place taken for zeros.
            0 if input.len() >= 8 => {
                input[4..8].fill(0);
                let crc = crc32c::crc32c(&input);
                input[4..8].copy_from_slice(&crc.to_le_bytes());
            }
            // A view's: over everything before it, at the end.
            1 if input.len() >= 4 => {
                let end = input.len() - 4;
                let crc = crc32c::crc32c(&input[..end]);
                input[end..].copy_from_slice(&crc.to_le_bytes());
            }
            _ => {}
        }
        input
    }

    fn run(&mut self, input: &[u8]) -> bool {
        decode_any(position(input), input)
    }
}
