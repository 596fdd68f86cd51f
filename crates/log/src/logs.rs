//! The logs of a store: making, opening, listing, renaming, deleting.
//!
//! name → directory → id → head → [`Log`]
//!
//! Invariants:
//! 1. A head and its first stripe stand before a name leads to them; what a crash leaves half made is noted, and removed by [`Logs::work`].
//! 2. Deleting takes the name at once, then the head, so that nobody adds to the log, then its data; it may stop and go on.
//! 3. Handles of one log here are the same handle.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use esker_store::{Change, Collection, ObjectStore, OmapScan, Transaction, limits};
use parking_lot::Mutex;

use crate::format::{self, COLLECTION, NAME_BYTES_MAX};
use crate::log::{Log, make_stripe};
use crate::seal::mix;
use crate::session::{Inner, Opened, Session, Shared};
use crate::trim::remove_named;
use crate::view::View;
use crate::{Error, Options, Result, head};

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
    /// Opens the face, making collection `log` if it is missing. Any backend does: each transaction is of one object, save for batches.
    ///
    /// # Errors
    /// The store's.
    pub fn open(store: Arc<dyn ObjectStore>, session: Session) -> Result<Self> {
        let collection = Collection::from(COLLECTION);
        if !store.collections().wait()?.contains(&collection) {
            store.submit(Transaction::new().giving_back().create_collection(&collection)).wait()?;
        }
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
        format::check_name("log name", name, NAME_BYTES_MAX)?;
        options.check()?;
        let store = &*self.inner.store;
        if head::find(store, name)?.is_some() {
            return Err(Error::Exists { name: name.to_owned() });
        }
        let now = self.now_ms();
        let id = head::new_id(store, now)?;
        let view = View::new(options, now);
        for stripe in view.stripes() {
            make_stripe(store, id, &view, &stripe)?;
        }
        head::create(store, id, &view)?;
        if let Err(error) = head::link(store, id, name) {
            // After any other error the name may lead to it: the answer was lost.
            if let Error::Exists { .. } = error {
                self.remove(id)?;
            }
            return Err(error);
        }
        self.handle(id, name, view)
    }

    /// Opens a log. Nothing is changed, and nobody disturbed, until something is appended.
    ///
    /// # Errors
    /// [`Error::NoLog`]; [`Error::Damaged`]; the store's.
    pub fn log(&self, name: &str) -> Result<Log> {
        let missing = || Error::NoLog { name: name.to_owned() };
        let id = head::find(&*self.inner.store, name)?.ok_or_else(missing)?;
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
        let start = match after {
            Some(name) => [&format::name_key(name), &[0][..]].concat().into(),
            None => Bytes::from_static(b"n"),
        };
        let scan = OmapScan {
            start: Some(start),
            end: Some(Bytes::from_static(b"o")),
            limit: limit.min(limits::SCAN_ENTRIES_MAX),
            keys_only: true,
            ..OmapScan::default()
        };
        let found = self.inner.store.omap_scan(&format::directory(), &scan).wait()?;
        Ok(found.iter().map(|(key, _)| String::from_utf8_lossy(&key[1..]).into_owned()).collect())
    }

    /// Gives a log another name. Whoever has it open goes on.
    ///
    /// # Errors
    /// [`Error::NoLog`]; [`Error::Exists`]; [`Error::Invalid`]; the store's.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        format::check_name("log name", to, NAME_BYTES_MAX)?;
        head::rename(&*self.inner.store, from, to)
    }

    /// Deletes a log with everything in it. Its name is free at once.
    ///
    /// # Errors
    /// [`Error::NoLog`]; the store's. After one the rest is removed by [`Logs::work`].
    pub fn delete(&self, name: &str) -> Result<()> {
        let store = &*self.inner.store;
        let id = head::find(store, name)?.ok_or_else(|| Error::NoLog { name: name.to_owned() })?;
        head::unlink(store, id, name, 0)?;
        self.remove(id)
    }

    /// Removes all objects of a log that no name leads to.
    fn remove(&self, id: u64) -> Result<()> {
        let store = &*self.inner.store;
        store.submit(Transaction::new().change(&format::head(id), Change::Remove)).wait()?;
        for prefix in [format::data_prefix(id), format::checkpoint_prefix(id)] {
            remove_named(store, &prefix, |_| true)?;
        }
        let directory = format::directory();
        let key = format::unfinished_key(id);
        store.submit(Transaction::new().change(&directory, Change::OmapRemove { key })).wait()?;
        Ok(())
    }

    /// Goes on with what was left unfinished: logs half deleted, and logs half made an hour ago. Returns their number.
    ///
    /// # Errors
    /// The store's.
    pub fn work(&self) -> Result<u64> {
        let scan = OmapScan { keys_only: false, ..crate::cells::range_of(b'u') };
        let found = self.inner.store.omap_scan(&format::directory(), &scan).wait()?;
        let now = self.now_ms();
        let mut done = 0;
        for (key, began) in found {
            let (Some(id), Some(began)) = (format::key_number(&key), format::number_from(&began)) else { continue };
            if now.saturating_sub(began) >= LEFT_BEHIND_MS {
                self.remove(id)?;
                done += 1;
            }
        }
        Ok(done)
    }
}
