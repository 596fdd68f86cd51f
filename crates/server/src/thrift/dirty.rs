//! What is acknowledged and not durable: bounded in bytes, and in time.
//!
//! an asynchronous write → [`Dirty::reserve`]: room for it, once there is → applied → [`Reserved::applied`] →
//! [`Dirty::in_time`] → answered · half of the room is taken, half of the time is over, or a write waits →
//! [`Dirty::keep`]: one sync of all that is applied → their room is given back
//!
//! Invariants:
//! 1. What has room and is not durable is never more than `bytes_max` together; a write that is not applied gives its
//!    room back, however it ends.
//! 2. No write is answered while one that was applied `age_max` ago is not durable.
//! 3. What a failed sync was to cover stays counted; those who wait are told of the failure, and the next sync covers
//!    it. Where the store was restarted nothing can cover it any more: its room is given back, and those who wait for
//!    it to be durable, and the first who does later, are told that it may be lost.
//! 4. Memory is that of a few numbers, however many writes there are.

use std::iter::Sum;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use esker_store::{Error as StoreError, ObjectStore, Unsynced, Written};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, TryAcquireError, watch};

/// What a key counts beside its own bytes and those of its value: so the bytes bound the keys too.
pub const DIRTY_KEY_BYTES: u64 = 64;
/// Within this the bytes may be set, and the time.
pub(super) const DIRTY_BYTES_MIN: u64 = 1 << 10;
pub(super) const DIRTY_BYTES_MAX: u64 = 1 << 30;
pub(super) const DIRTY_AGE_MIN: Duration = Duration::from_millis(10);
pub(super) const DIRTY_AGE_MAX: Duration = Duration::from_secs(3_600);
/// A sync that has failed is tried again after half of the time, but within these.
const AGAIN_MIN: Duration = Duration::from_millis(5);
const AGAIN_MAX: Duration = Duration::from_secs(1);

/// Keys that are written, each as often as it is, and their bytes as they count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Weight {
    pub(super) keys: u64,
    pub(super) bytes: u64,
}

impl Weight {
    /// One key of so many bytes, and its value.
    pub(super) fn of(key_bytes: usize, value_bytes: usize) -> Self {
        Self { keys: 1, bytes: DIRTY_KEY_BYTES + key_bytes as u64 + value_bytes as u64 }
    }
}

impl Sum for Weight {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self { keys: sum.keys + one.keys, bytes: sum.bytes + one.bytes })
    }
}

/// Writes that one sync covers.
#[derive(Default)]
struct Covered {
    room: Option<OwnedSemaphorePermit>,
    keys: u64,
    /// When the first of them was applied.
    since: Option<Instant>,
}

impl Covered {
    fn bytes(&self) -> u64 {
        self.room.as_ref().map_or(0, |room| room.num_permits() as u64)
    }

    /// Takes these as well, which were applied later.
    fn add(&mut self, later: Self) {
        match (&mut self.room, later.room) {
            (Some(room), Some(more)) => room.merge(more),
            (room, more) => *room = room.take().or(more),
        }
        self.keys += later.keys;
        self.since = self.since.or(later.since);
    }
}

/// What is applied and not durable.
#[derive(Default)]
struct Noted {
    /// By a sync that has not begun.
    applied: Covered,
    /// By one that is under way.
    syncing: Covered,
}

impl Noted {
    fn oldest(&self) -> Option<Instant> {
        self.syncing.since.or(self.applied.since)
    }
}

/// What asynchronous writes have had applied that is not durable, and those that wait for that.
pub(super) struct Dirty {
    bytes_max: u64,
    /// How long it may be applied and not durable while others are answered.
    age_max: Duration,
    /// A permit for each byte.
    room: Arc<Semaphore>,
    noted: Mutex<Noted>,
    unsynced: Unsynced,
    waiting: AtomicUsize,
    /// For the one that syncs.
    work: Notify,
    /// How often the store was restarted over what is counted here, and as far as that was told to one who asked
    /// whether all is durable.
    losses: AtomicU64,
    losses_told: AtomicU64,
    /// How the last sync ended.
    ended: watch::Sender<Option<StoreError>>,
}

/// Room of one write.
#[must_use = "a write that was applied has to be noted"]
pub(super) struct Reserved<'d> {
    dirty: &'d Dirty,
    room: OwnedSemaphorePermit,
    written: Written<'d>,
}

/// One that waits, for as long as it does.
struct InLine<'d>(&'d AtomicUsize);

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// When there are no syncs any more no write waits for one.
struct LastSync<'d>(&'d Dirty);

impl Drop for LastSync<'_> {
    fn drop(&mut self) {
        self.0.room.close();
        self.0.ended.send_replace(Some(StoreError::Closed));
    }
}

impl Dirty {
    /// So many bytes, from [`DIRTY_BYTES_MIN`] to [`DIRTY_BYTES_MAX`], for so long at most.
    pub(super) fn new(bytes_max: u64, age_max: Duration) -> Self {
        let bytes_max = bytes_max.min(DIRTY_BYTES_MAX);
        Self {
            bytes_max,
            age_max,
            room: Arc::new(Semaphore::new(bytes_max as usize)),
            noted: Mutex::default(),
            unsynced: Unsynced::default(),
            waiting: AtomicUsize::new(0),
            losses: AtomicU64::new(0),
            losses_told: AtomicU64::new(0),
            work: Notify::new(),
            ended: watch::Sender::new(None),
        }
    }

    /// Most bytes that are applied, or about to be, and not durable.
    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// What is applied and not known to be durable.
    pub(super) fn weight(&self) -> Weight {
        let noted = self.noted.lock();
        let (applied, syncing) = (&noted.applied, &noted.syncing);
        Weight { keys: applied.keys + syncing.keys, bytes: applied.bytes() + syncing.bytes() }
    }

    /// Writes that wait, for room or for an older one to be durable.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// What syncs go by.
    pub(super) fn unsynced(&self) -> &Unsynced {
        &self.unsynced
    }

    /// Room for a write of so many bytes, no more than [`Dirty::bytes_max`], once there is; in the order in which they
    /// ask.
    ///
    /// # Errors
    /// That of a sync that has failed meanwhile; [`StoreError::Closed`] when there are none any more.
    pub(super) async fn reserve(&self, bytes: u64, store: &dyn ObjectStore) -> Result<Reserved<'_>, StoreError> {
        let room = self.take(bytes).await?;
        Ok(Reserved { dirty: self, room, written: self.unsynced.begin(store) })
    }

    /// Once all is durable that had room before this call.
    ///
    /// # Errors
    /// As [`Dirty::reserve`]; [`StoreError::Restarted`] if some of it was lost, now or since this was last said: to
    /// every call that begins before the first that says so has ended, and to no later one.
    pub(super) async fn settled(&self) -> Result<(), StoreError> {
        let told = self.losses_told.load(Ordering::SeqCst);
        drop(self.take(self.bytes_max).await?);
        let losses = self.losses.load(Ordering::SeqCst);
        self.losses_told.fetch_max(losses, Ordering::SeqCst);
        if losses > told { Err(StoreError::Restarted) } else { Ok(()) }
    }

    async fn take(&self, bytes: u64) -> Result<OwnedSemaphorePermit, StoreError> {
        // No more than DIRTY_BYTES_MAX, which fits.
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        match Arc::clone(&self.room).try_acquire_many_owned(permits) {
            Ok(room) => return Ok(room),
            Err(TryAcquireError::Closed) => return Err(StoreError::Closed),
            Err(TryAcquireError::NoPermits) => {}
        }
        let mut ended = self.ended.subscribe();
        let _waits = self.wait();
        tokio::select! {
            biased;
            room = Arc::clone(&self.room).acquire_many_owned(permits) => room.map_err(|_| StoreError::Closed),
            error = failed(&mut ended) => Err(error),
        }
    }

    /// Once a write may be answered that was applied: at once, unless an older one ought to be durable.
    ///
    /// # Errors
    /// As [`Dirty::reserve`]; [`StoreError::Restarted`] if older ones, and this, may have been lost meanwhile.
    pub(super) async fn in_time(&self) -> Result<(), StoreError> {
        let losses = self.losses.load(Ordering::SeqCst);
        if !self.is_late() {
            return Ok(());
        }
        let mut ended = self.ended.subscribe();
        let _waits = self.wait();
        while self.is_late() {
            // What was told before this has subscribed is not told again.
            if self.room.is_closed() {
                return Err(StoreError::Closed);
            }
            next_end(&mut ended).await?;
        }
        if self.losses.load(Ordering::SeqCst) > losses { Err(StoreError::Restarted) } else { Ok(()) }
    }

    fn is_late(&self) -> bool {
        self.noted.lock().oldest().is_some_and(|since| since.elapsed() >= self.age_max)
    }

    fn wait(&self) -> InLine<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.work.notify_one();
        InLine(&self.waiting)
    }

    /// Has all that is applied made durable by `sync`, again and again, before it is too much or too old. Does not
    /// return; when it is dropped all that wait are told that there are no syncs any more.
    pub(super) async fn keep<S: Future<Output = Result<(), StoreError>>>(&self, sync: impl Fn() -> S) {
        let _last = LastSync(self);
        let mut has_failed = false;
        loop {
            self.due().await;
            {
                let mut noted = self.noted.lock();
                noted.syncing = std::mem::take(&mut noted.applied);
            }
            // It covers what was applied before it begins.
            let failure = sync().await.err();
            let is_lost = matches!(failure, Some(StoreError::Restarted));
            let fails = failure.is_some() && !is_lost;
            if let Some(error) = failure.as_ref().filter(|_| is_lost) {
                tracing::warn!(%error, keys = self.noted.lock().syncing.keys, "asynchronous writes may be lost");
                // Before their room is given back, which those wait for who ask.
                self.losses.fetch_add(1, Ordering::SeqCst);
            }
            {
                let mut noted = self.noted.lock();
                let mut synced = std::mem::take(&mut noted.syncing);
                if fails {
                    synced.add(std::mem::take(&mut noted.applied));
                    noted.applied = synced;
                }
            }
            if let Some(error) = failure.as_ref().filter(|_| fails && !has_failed) {
                tracing::error!(%error, "asynchronous writes cannot be made durable");
            }
            has_failed = fails;
            self.ended.send_replace(failure);
            if fails {
                tokio::time::sleep((self.age_max / 2).clamp(AGAIN_MIN, AGAIN_MAX)).await;
            }
        }
    }

    /// Once there is something to sync, and reason to.
    async fn due(&self) {
        loop {
            let work = self.work.notified();
            let (bytes, since) = {
                let noted = self.noted.lock();
                (noted.applied.bytes(), noted.applied.since)
            };
            match since.map(|since| since + self.age_max / 2) {
                None => work.await,
                Some(_) if bytes >= self.bytes_max / 2 || self.waiting() > 0 => return,
                Some(until) => tokio::select! {
                    () = work => {}
                    () = tokio::time::sleep_until(until.into()) => return,
                },
            }
        }
    }
}

impl Reserved<'_> {
    /// The write was applied, and of so much; what was reserved beside that is given back.
    pub(super) fn applied(self, weight: Weight) {
        let Self { dirty, mut room, written } = self;
        let surplus = room.num_permits().saturating_sub(weight.bytes as usize);
        drop(room.split(surplus));
        if weight.keys == 0 {
            return;
        }
        written.applied();
        let is_due = {
            let mut noted = dirty.noted.lock();
            let is_first = noted.applied.since.is_none();
            noted.applied.add(Covered { room: Some(room), keys: weight.keys, since: Some(Instant::now()) });
            is_first || noted.applied.bytes() >= dirty.bytes_max / 2
        };
        if is_due || dirty.waiting() > 0 {
            dirty.work.notify_one();
        }
    }
}

/// The end of the next sync.
async fn next_end(ended: &mut watch::Receiver<Option<StoreError>>) -> Result<(), StoreError> {
    ended.changed().await.map_err(|_| StoreError::Closed)?;
    ended.borrow_and_update().clone().map_or(Ok(()), Err)
}

/// The error of the next sync that fails and gives no room back.
async fn failed(ended: &mut watch::Receiver<Option<StoreError>>) -> StoreError {
    loop {
        match next_end(ended).await {
            Ok(()) | Err(StoreError::Restarted) => {}
            Err(error) => return error,
        }
    }
}
