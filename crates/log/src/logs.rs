//! The logs of a store: making, opening, listing, renaming, deleting.
//!
//! name → directory → id → head → [`Log`]
//!
//! Invariants:
//! 1. A head and its first stripe stand before a name leads to them; what a crash leaves half made is noted, and
//!    removed by [`Logs::work`].
//! 2. Deleting takes the name at once, then the head, so that no writer adds to the log, then its data; it may stop and
//!    go on.
//! 3. Handles of one log here are the same handle.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use esker_store::registry::{Renamed, open_collection, remove_objects};
use esker_store::{Change, Durability, ObjectStore, Transaction, limits, submit_guarded};
use parking_lot::Mutex;

use crate::format::{self, COLLECTION, NAME_BYTES_MAX, number, number_from};
use crate::log::{Log, make_stripe};
use crate::seal::mix;
use crate::session::{Inner, Opened, Session, Shared};
use crate::view::View;
use crate::{Error, Options, Result, head};

/// The limit of names of logs.
const NAME: (&str, usize) = ("NAME_BYTES_MAX", NAME_BYTES_MAX);
/// What is noted as unfinished for so long is taken for left behind, in milliseconds.
const LEFT_BEHIND_MS: u64 = 60 * 60 * 1_000;

/// The logs of a store. Cloning costs a reference count.
#[derive(Clone)]
pub struct Logs {
    inner: Arc<State>,
}

struct State {
    store: Arc<dyn ObjectStore>,
    session: Session,
    /// Open handles, by id.
    open: Mutex<HashMap<u64, Weak<Inner>>>,
    handles: AtomicU64,
}

impl Logs {
    /// Opens the face, making collection `log` if it is missing. Any backend does: each transaction is of one object,
    /// save for batches.
    ///
    /// # Errors
    /// The store's.
    pub fn open(store: Arc<dyn ObjectStore>, session: Session) -> Result<Self> {
        open_collection(&*store, &COLLECTION.into(), Transaction::new())?;
        let inner = State { store, session, open: Mutex::default(), handles: AtomicU64::new(0) };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The store below.
    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.inner.store
    }

    fn now_ms(&self) -> u64 {
        (self.inner.session.clock)()
    }

    /// Makes a log.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::Invalid`] for a bad name or options out of range; the store's.
    pub fn create(&self, name: &str, options: Options) -> Result<Log> {
        format::check_name("log name", name, NAME)?;
        options.check()?;
        let (store, registry) = (&*self.inner.store, format::registry());
        let options = options.within(&store.capability())?;
        if registry.id(store, name)?.is_some() {
            return Err(Error::Exists { name: name.to_owned() });
        }
        let now = self.now_ms();
        let id = registry.new_id(store, &Transaction::new(), |txn, id| registry.note(txn, id, &[], number(now)))?;
        let view = View::new(options, now);
        for stripe in view.stripes() {
            make_stripe(store, id, &view, &stripe)?;
        }
        head::create(store, id, &view)?;
        // After an error the name may lead to it: the answer was lost.
        if !registry.link(store, name, id, number(now))? {
            self.remove(id)?;
            return Err(Error::Exists { name: name.to_owned() });
        }
        self.handle(id, name, view)
    }

    /// Opens a log. Nothing is changed, and no other writer disturbed, until something is appended.
    ///
    /// # Errors
    /// [`Error::NoLog`]; [`Error::Damaged`]; the store's.
    pub fn log(&self, name: &str) -> Result<Log> {
        let missing = || Error::NoLog { name: name.to_owned() };
        let id = format::registry().id(&*self.inner.store, name)?.ok_or_else(missing)?;
        let view = head::load(&*self.inner.store, id, name)?;
        self.handle(id, name, view)
    }

    /// Opens a log, or makes it.
    ///
    /// # Errors
    /// As [`Logs::create`] and [`Logs::log`].
    pub fn log_or_create(&self, name: &str, options: Options) -> Result<Log> {
        match self.log(name) {
            Err(Error::NoLog { .. }) => match self.create(name, options) {
                Err(Error::Exists { .. }) => self.log(name),
                other => other,
            },
            other => other,
        }
    }

    fn handle(&self, id: u64, name: &str, view: View) -> Result<Log> {
        let mut open = self.inner.open.lock();
        if let Some(inner) = open.get(&id).and_then(Weak::upgrade) {
            let log = Log { inner };
            log.met(view);
            return Ok(log);
        }
        open.retain(|_, inner| inner.strong_count() > 0);
        let number = self.inner.handles.fetch_add(1, Ordering::Relaxed);
        let writer = mix(self.inner.session.nonce ^ mix(number));
        let shared = Arc::new(Shared::new(self.inner.session.cache_bytes));
        let (store, session) = (&self.inner.store, &self.inner.session);
        let log = Log::new(Opened { store, id, name, session, writer, shared }, view, None);
        open.insert(id, Arc::downgrade(&log.inner));
        Ok(log)
    }

    /// Names of logs in order, up to `limit` of those above `after`.
    ///
    /// # Errors
    /// The store's.
    pub fn list(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>> {
        let limit = limit.min(limits::SCAN_ENTRIES_MAX);
        let names = format::registry().names(&*self.inner.store, "", after, limit);
        Ok(names.collect::<esker_store::Result<_>>()?)
    }

    /// Gives a log another name. Handles that have it open go on.
    ///
    /// # Errors
    /// [`Error::NoLog`]; [`Error::Exists`]; [`Error::Invalid`]; the store's.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        format::check_name("log name", to, NAME)?;
        match format::registry().rename(&*self.inner.store, from, to)? {
            Renamed::Done => Ok(()),
            Renamed::Missing => Err(Error::NoLog { name: from.to_owned() }),
            Renamed::Taken => Err(Error::Exists { name: to.to_owned() }),
        }
    }

    /// Deletes a log with everything in it. Its name is free at once.
    ///
    /// # Errors
    /// [`Error::NoLog`]; the store's. After one the rest is removed by [`Logs::work`], and so is what a restart of the
    /// store meanwhile has brought back.
    pub fn delete(&self, name: &str) -> Result<()> {
        let (store, registry, missing) = (self.store(), format::registry(), || Error::NoLog { name: name.to_owned() });
        let id = registry.id(&**store, name)?.ok_or_else(missing)?;
        let mut txn = Transaction::new();
        registry.unlink(&mut txn, name, id, number(0));
        match submit_guarded(&**store, txn)? {
            None => self.remove(id),
            Some(_) => Err(missing()),
        }
    }

    /// Removes all objects of a log that no name leads to.
    fn remove(&self, id: u64) -> Result<()> {
        let store = &*self.inner.store;
        store.submit(Transaction::with(Durability::Always).change(&format::head(id), Change::Remove)).wait()?;
        let below = [format::data_prefix(id), format::checkpoint_prefix(id)];
        let all = below.iter().flat_map(|prefix| format::objects(store, prefix));
        if !remove_objects(store, all, &mut |_| true)? {
            return Ok(());
        }
        let mut txn = Transaction::new();
        format::registry().forget(&mut txn, id, &[]);
        store.submit(txn).wait()?;
        Ok(())
    }

    /// Goes on with what was left unfinished: logs half deleted, and logs half made an hour ago. Returns their number.
    ///
    /// # Errors
    /// The store's.
    pub fn work(&self) -> Result<u64> {
        let (store, registry) = (&*self.inner.store, format::registry());
        let (now, mut done) = (self.now_ms(), 0);
        for left in registry.leftovers(store) {
            let left = left?;
            let Some(began) = number_from(&left.value) else { continue };
            if now.saturating_sub(began) < LEFT_BEHIND_MS {
                continue;
            }
            // The client that makes it may have been held up, and finish it now: one of both comes too late.
            if began == 0 || registry.condemn(store, &left, number(0))? {
                self.remove(left.id)?;
                done += 1;
            }
        }
        Ok(done)
    }
}
