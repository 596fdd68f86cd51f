//! A shared log over any [`ObjectStore`](esker_store::ObjectStore): write-once positions in total order (the face of
//! ZLog, by the CORFU protocol).
//!
//! caller → [`Log`] → position (sequencer) → place (view) → one transaction of one object, guarded by epoch and emptiness → `Completion`
//!
//! Any number of writers, readers and followers, in any number of processes, work on one log through its objects alone.
//! The sequencer only spares writers from racing for positions; without it nothing is lost. An entry is applied when
//! the call returns, and durable when its completion says so.
//!
//! Invariants:
//! 1. A position holds one entry at most, for ever: written, filled or trimmed, it is never used again.
//! 2. Nothing written under an epoch that was sealed comes to stand at or above the tail that the seal found.
//! 3. Each operation needs transactions of one object only (batches: of the objects that their positions are in).
//!
//! Format: docs/format.md#what-the-log-face-keeps-in-the-store   Source: CORFU (2012), Tango (2013), ZLog;
//! docs/decisions/0010-shared-log.md
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//! use std::time::Duration;
//! use esker_log::{Delivery, Follow, Logs, Options, Session, Start};
//!
//! let session = Session::new(Arc::new(|| 1_700_000_000_000), 42);
//! let logs = Logs::open(Arc::new(esker_memory::MemoryStore::new()), session)?;
//! let log = logs.create("orders", Options::default())?;
//! let position = log.append("first")?.wait()?;
//! let mut follower = log.follow(Start::First, Follow::default())?;
//! let Some(Delivery::Entry(entry)) = follower.next(Duration::from_secs(1))? else { panic!("nothing came") };
//! assert_eq!((entry.position, &entry.data[..]), (position, &b"first"[..]));
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod append;
mod batch;
mod cells;
mod check;
mod consumers;
mod error;
mod follow;
pub mod format;
mod head;
mod lead;
mod log;
mod logs;
mod machine;
mod nonce;
mod options;
mod read;
mod recent;
mod seal;
mod sequencer;
mod session;
mod streams;
mod trim;
mod view;
mod waking;
mod writer;

pub use append::{BATCH_BYTES_MAX, BATCH_MAX};
pub use cells::{Entry, Found};
pub use check::{Checked, NONCES_MAX};
pub use error::{Error, Result};
pub use esker_store::{Barrier, Completion, Compression, Durability};
pub use follow::{Delivery, Follow, Follower, GapKind, Next, Start};
pub use format::lost_mark;
pub use format::{LABEL_BYTES_MAX, NAME_BYTES_MAX, STREAM_BYTES_MAX, STREAMS_MAX, Streams};
pub use log::{Log, Record};
pub use logs::Logs;
pub use machine::{MACHINE_NAME_BYTES_MAX, Machine, Replica, SAVED_BYTES_MAX};
pub use nonce::Nonce;
pub use options::{ENTRY_BYTES_MAX, INLINE_BYTES_MAX, Layout, Options, SLOTS_MAX, WIDTH_MAX};
pub use read::RANGE_MAX;
pub use sequencer::{Connect, Leader, Sequencer, Tail, Token};
pub use session::{Clock, Session};
pub use streams::StreamFollower;
pub use trim::RETAIN_POSITIONS;
pub use view::{Run, View};
pub use writer::Writer;

/// The layouts of this face, by name, for the tables in docs/format.md.
pub fn layouts() -> Vec<(&'static str, format::Described)> {
    vec![
        ("log view", view::VIEW_LAYOUT),
        ("log entry", format::ENTRY_LAYOUT),
        ("log placed data", format::PLACED_LAYOUT),
    ]
}

/// Decodes any bytes as an entry and as a view, for fuzzing: never panics.
pub fn decode_any(position: u64, bytes: &[u8]) -> bool {
    let bytes = bytes::Bytes::copy_from_slice(bytes);
    let entry = format::Stored::decode(position, &bytes);
    let placed = entry.as_ref().map(|entry| format::Placed::decode(&entry.body));
    let view = View::decode("fuzz", &bytes);
    matches!(placed, Ok(Some(_))) || entry.is_ok() || view.is_ok()
}
