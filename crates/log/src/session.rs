//! What a log takes from outside, and what its handles share: the session, the leader, recent entries.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Instant;

use arc_swap::{ArcSwap, ArcSwapOption};
use esker_store::{Capability, ObjectId, ObjectStore};
use parking_lot::{Mutex, RwLock};

use crate::recent::Recents;
use crate::sequencer::{Connect, Leader, Sequencer};
use crate::view::View;
use crate::waking::Waking;

/// The time in unix milliseconds.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// What logs take from outside.
#[derive(Clone)]
pub struct Session {
    /// The time; entries carry it, and holes are filled by it.
    pub clock: Clock,
    /// A number that no other session has: random. Entries carry it, so that a retried append knows its own.
    pub nonce: u64,
    /// Finds sequencers of other processes; without it every session hands out positions itself, taking over from the
    /// session that did.
    pub connect: Option<Arc<dyn Connect>>,
    /// How long a sequencer may be silent before it is given up, in milliseconds. Sessions that hand out positions
    /// themselves and depose each other let each other go on for a fiftieth of it. A log whose sequencer is silent for
    /// four of it, and that no sequencer took over, is taken over by a session that writes. Default: 500.
    pub lease_ms: u64,
    /// Bytes of recent entries kept for followers, per log. Default: 16 MiB.
    pub cache_bytes: u64,
}

impl Session {
    /// A session without sequencers of other processes.
    pub fn new(clock: Clock, nonce: u64) -> Self {
        Self { clock, nonce, connect: None, lease_ms: 500, cache_bytes: 16 << 20 }
    }
}

/// What all handles of one log in a process share.
pub(crate) struct Shared {
    /// Told of every position that is decided here, of new views, and of what others notify of.
    pub waking: Arc<Waking>,
    /// One above the highest position written or met here.
    pub seen: AtomicU64,
    /// One above the highest position that is known to be written, and durable.
    pub written: AtomicU64,
    /// Followers there are: recent entries are kept only for them.
    pub followers: AtomicUsize,
    /// When the head was looked at last.
    pub looked: Mutex<Instant>,
    pub recent: Recents,
}

impl Shared {
    pub(crate) fn new(cache_bytes: u64) -> Self {
        Self {
            waking: Arc::default(),
            seen: AtomicU64::new(0),
            written: AtomicU64::new(0),
            followers: AtomicUsize::new(0),
            looked: Mutex::new(Instant::now()),
            recent: Recents::new(cache_bytes),
        }
    }
}

/// What the openings of a named writer by one handle share.
#[derive(Default)]
pub(crate) struct Opening {
    /// The head's version with the last of them; held while one of the writer's entries is under way.
    pub version: RwLock<u64>,
    /// The number of an entry of which is not known whether it was written, and where it would stand: to be decided
    /// before that number
    /// is used again, by a later opening too.
    pub doubt: Mutex<Option<(u64, u64)>>,
}

/// Where the bytes of an object end, once known; held while something is appended to them.
pub(crate) type End = Arc<Mutex<Option<u64>>>;

pub(crate) struct Inner {
    pub store: Arc<dyn ObjectStore>,
    pub capability: Capability,
    pub id: u64,
    /// The object that is notified of, and watched.
    pub head: ObjectId,
    pub name: String,
    pub session: Session,
    pub shared: Arc<Shared>,
    pub view: ArcSwap<View>,
    pub names: ArcSwap<Names>,
    pub leader: ArcSwapOption<Leader>,
    pub leading: Mutex<()>,
    pub remote: Mutex<Option<(String, Arc<dyn Sequencer>)>>,
    pub writer: u64,
    pub number: AtomicU64,
    /// The epoch at which this handle became the only writer; 0 if it did not.
    pub held: u64,
    /// The last openings of named writers by this handle, by their number.
    pub openings: Mutex<HashMap<u64, Arc<Opening>>>,
    /// Where the bytes of data objects end (layout stream).
    pub ends: Mutex<HashMap<(u64, u32), End>>,
    pub growing: Mutex<()>,
}

/// Names of a stripe's objects, by column: making one takes as long as finding it in the store.
#[derive(Default)]
pub(crate) struct Names {
    pub stripe: u64,
    pub objects: Box<[ObjectId]>,
}

/// What a handle is made of.
pub(crate) struct Opened<'a> {
    pub store: &'a Arc<dyn ObjectStore>,
    pub id: u64,
    pub name: &'a str,
    pub session: &'a Session,
    /// Its number in the entries that it writes.
    pub writer: u64,
    pub shared: Arc<Shared>,
}
