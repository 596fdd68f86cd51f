//! The names of ZLog's own tests, each a test of ours: what it shows there of a backend, of the class in the OSD or of
//! the library is shown here of a log, on every store and in every layout.
//!
//! epoch and position that the test chooses → [`Told`], a sequencer → the log of one process → the store
//!
//! There a call names an object, an epoch and a position. Here a process asks its sequencer, so the sequencer says what
//! the test told it. Names without a test, and what differs: docs/zlog-tests.md.
//!
//! Source: ZLog (2019), its tests of backends, of the class and of the library.

mod backend;
mod class;
mod library;

use std::cell::Cell;
use std::sync::Arc;

use esker_log::{Connect, Error, Found, Layout, Leader, Log, Logs, Sequencer, Session, Tail, Token};
use esker_store::{Change, ObjectId, ObjectStore, OmapScan, SlotScan, Transaction};
use parking_lot::Mutex;

use crate::support::{Time, everywhere, options, session, sound};

/// The address of the sequencer that views name.
const HERE: &str = "here";

/// A sequencer that says what the test told it: a token once, a tail as long as the caller knows of no newer epoch, and
/// the first time whatever is known. Otherwise it refuses.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Answers>>);

#[derive(Default)]
struct Answers {
    token: Option<Token>,
    tail: Option<Tail>,
    tail_was_told: bool,
}

fn not_told() -> Error {
    Error::Invalid { what: "sequencer", why: "the test told it nothing more".into() }
}

impl Sequencer for Told {
    fn next(&self, _log: u64, _epoch: u64, _count: u32, _expected: Option<u64>) -> esker_log::Result<Token> {
        self.0.lock().token.take().ok_or_else(not_told)
    }

    fn tail(&self, _log: u64, epoch: u64) -> esker_log::Result<Tail> {
        let mut answers = self.0.lock();
        let is_first = !std::mem::replace(&mut answers.tail_was_told, true);
        answers.tail.filter(|tail| is_first || tail.epoch >= epoch).ok_or_else(not_told)
    }
}

impl Connect for Told {
    fn connect(&self, _address: &str) -> esker_log::Result<Arc<dyn Sequencer>> {
        Ok(Arc::new(self.clone()))
    }
}

/// What stands at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    /// The entry that [`data`] gives the position.
    Entry,
    Filled,
    Trimmed,
    Nothing,
}

/// The data of a position's entry; every other one stands apart from its entry in layout `stream`.
fn data(position: u64) -> Vec<u8> {
    format!("at {position}.").repeat(if position.is_multiple_of(2) { 1 } else { 10 }).into_bytes()
}

/// What a log says of a position.
fn stands(log: &Log, position: u64) -> Stands {
    match log.read(position).unwrap().wait().unwrap() {
        Found::Entry(entry) => {
            assert_eq!((entry.position, &entry.data[..]), (position, &data(position)[..]));
            Stands::Entry
        }
        Found::Filled => Stands::Filled,
        Found::Trimmed => Stands::Trimmed,
        Found::Hole | Found::BeyondTail => Stands::Nothing,
        Found::Lost(why) => panic!("position {position}: {why}"),
    }
}

/// One log on one store.
struct Setting {
    store: Arc<dyn ObjectStore>,
    layout: Layout,
    nonces: Cell<u64>,
}

/// Calls `test` with a log that only its maker has sealed, everywhere.
fn unsealed(test: impl Fn(&Setting)) {
    everywhere(|store, layout| {
        let setting = Setting { store, layout, nonces: Cell::new(1) };
        setting.logs().create("test", options(layout)).unwrap();
        test(&setting);
    });
}

/// Calls `test` with a log and the epoch at which it was sealed, everywhere; afterwards it holds together.
fn sealed(test: impl Fn(&Setting, u64)) {
    unsealed(|setting| {
        let epoch = setting.seal();
        test(setting, epoch);
        sound(&setting.reader());
    });
}

impl Setting {
    fn nonce(&self) -> u64 {
        self.nonces.set(self.nonces.get() + 1);
        self.nonces.get()
    }

    /// The same log, for what happens in the middle of a call.
    fn beside(&self) -> Self {
        Self { store: Arc::clone(&self.store), layout: self.layout, nonces: Cell::new(1_000 * self.nonce()) }
    }

    /// The logs as a process of its own has them.
    fn logs(&self) -> Logs {
        session(&self.store, self.nonce(), &Time::default())
    }

    /// The log in a process of its own, which knows of no sequencer.
    fn reader(&self) -> Log {
        self.logs().log("test").unwrap()
    }

    /// A process of its own takes the log over.
    fn lead(&self) -> Arc<Leader> {
        self.reader().lead(HERE).unwrap()
    }

    /// The epoch at which a process of its own has sealed the log.
    fn seal(&self) -> u64 {
        self.lead().epoch()
    }

    /// The highest position at which something stands, as a process finds it that looks.
    fn max_pos(&self) -> Option<u64> {
        self.reader().tail().unwrap().position.checked_sub(1)
    }

    /// The highest position at which something stands, as a seal finds it.
    fn sealed_max_pos(&self) -> Option<u64> {
        self.lead().tail().position.checked_sub(1)
    }

    /// What a process of its own finds at a position.
    fn stands(&self, position: u64) -> Stands {
        stands(&self.reader(), position)
    }

    /// A process of its own that writes where it is told to, with the view as it is now.
    fn process(&self) -> Process {
        let told = Told::default();
        let connect: Arc<dyn Connect> = Arc::new(told.clone());
        let session = Session { connect: Some(connect), ..Session::new(Time::default().clock(), self.nonce()) };
        let log = Logs::open(Arc::clone(&self.store), session).unwrap().log("test").unwrap();
        Process { log, told }
    }

    /// The objects whose names begin with `prefix`: `h/` for heads, `d/` for data.
    fn objects(&self, prefix: &str) -> Vec<ObjectId> {
        let names = self.store.list(&"log".into(), None, 1_000).wait().unwrap();
        let names = names.into_iter().filter(|name| name.starts_with(prefix.as_bytes()));
        names.map(|name| ObjectId::new("log".into(), name)).collect()
    }

    /// A number that stands in an xattr of an object.
    fn xattr(&self, object: &ObjectId, name: &str) -> Option<u64> {
        let value = self.store.xattr(object, name.as_bytes()).wait().unwrap()?;
        Some(u64::from_le_bytes(value[..].try_into().unwrap()))
    }

    /// The epochs at which the data objects were sealed, in the order of their names.
    fn epochs(&self) -> Vec<u64> {
        self.objects("d/").iter().map(|object| self.xattr(object, "epoch").unwrap()).collect()
    }

    /// Whether the data of a position stands anywhere in the data objects.
    fn keeps(&self, position: u64) -> bool {
        self.objects("d/").iter().any(|object| self.holds(object, position))
    }

    /// Whether the data of a position stands in an object.
    fn holds(&self, object: &ObjectId, position: u64) -> bool {
        let sought = data(position);
        let has = |bytes: &[u8]| bytes.windows(sought.len()).any(|window| window == sought);
        let size = self.store.size(object).wait().unwrap().unwrap();
        let keys = self.store.omap_scan(object, &OmapScan { limit: 1_000, ..OmapScan::default() }).wait().unwrap();
        let all = SlotScan { range: 0..u64::MAX, reverse: false, limit: 1_000, keys_only: false };
        has(&self.store.read(object, 0..size).wait().unwrap())
            || keys.iter().any(|(_, value)| has(value))
            || self.store.slot_scan(object, &all).wait().unwrap().iter().any(|(_, value)| has(value))
    }

    /// Takes the data objects away, as no client may.
    fn lose_objects(&self) {
        for object in self.objects("d/") {
            self.store.submit(Transaction::new().change(&object, Change::Remove)).wait().unwrap();
        }
    }
}

/// A process that does what the test says, under the epoch that the test says.
struct Process {
    log: Log,
    told: Told,
}

impl Process {
    /// Writes the data of `position` there, once; whether it was written.
    fn write(&self, epoch: u64, position: u64) -> bool {
        self.write_data(epoch, position, data(position)).unwrap()
    }

    /// As [`Process::write`], with other data than what [`stands`] takes for the position's.
    fn write_other(&self, epoch: u64, position: u64) -> bool {
        self.write_data(epoch, position, b"of somebody else".repeat(2)).unwrap()
    }

    fn write_data(&self, epoch: u64, position: u64, data: Vec<u8>) -> esker_log::Result<bool> {
        self.told.0.lock().token = Some(Token { epoch, position });
        match self.log.append(data) {
            Ok(written) => Ok(written.wait()? == position),
            // It wanted another position.
            Err(Error::Invalid { what: "sequencer", .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Calls `act` while the sequencer tells that all below `position` was handed out under `epoch`.
    fn below<T>(&self, epoch: u64, position: u64, act: impl FnOnce(&Log) -> T) -> T {
        *self.told.0.lock() = Answers { tail: Some(Tail { epoch, position }), ..Answers::default() };
        let done = act(&self.log);
        *self.told.0.lock() = Answers::default();
        done
    }

    fn fill(&self, epoch: u64, position: u64) -> esker_log::Result<()> {
        self.below(epoch, position + 1, |log| log.fill(position))
    }

    fn trim(&self, epoch: u64, position: u64) -> esker_log::Result<()> {
        self.below(epoch, position + 1, |log| log.trim(position))
    }

    /// Trims all positions up to `position`.
    fn trim_limit(&self, epoch: u64, position: u64) -> esker_log::Result<()> {
        self.below(epoch, position + 1, |log| log.trim_to(position + 1)).map(drop)
    }
}

/// An act under an epoch at a position.
type Act = fn(&Process, u64, u64) -> esker_log::Result<()>;

/// Acts of epochs that are over change nothing, one of the log's epoch does. Position 0 is written.
fn is_refused_under_stale_epochs(setting: &Setting, first: u64, act: Act, then: Stands) {
    let late = setting.process();
    assert!(late.write(first, 0));
    let epochs: Vec<u64> = std::iter::once(first).chain((0..3).map(|_| setting.seal())).collect();
    let (now, stale) = epochs.split_last().unwrap();
    for epoch in stale {
        // At a process that has the view as it was before, and at one that knows better.
        for process in [&late, &setting.process()] {
            let refused = act(process, *epoch, 5);
            assert!(matches!(refused, Err(Error::PastTail { position: 5 | 6, tail: 1 })), "{epoch}: {refused:?}");
            assert_eq!(setting.stands(5), Stands::Nothing, "under epoch {epoch}");
        }
    }
    act(&setting.process(), *now, 5).unwrap();
    assert_eq!(setting.stands(5), then);
}

/// After an act at 1, 5, 22 and 20 in turn, the highest position is 1, 5, 22 and 22.
fn moves_max_pos(setting: &Setting, epoch: u64, act: Act) {
    let process = setting.process();
    assert_eq!(setting.max_pos(), None);
    for (position, max) in [(1, 1), (5, 5), (22, 22), (20, 22)] {
        act(&process, epoch, position).unwrap();
        assert_eq!(setting.max_pos(), Some(max), "after an act at {position}");
    }
    assert_eq!(setting.sealed_max_pos(), Some(22));
}
