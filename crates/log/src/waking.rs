//! What followers wait for: what was written here, and what other processes have notified of.
//!
//! append, fill, trim, seal → [`Waking::wake`] here, a notify of the head for other processes
//! follower that comes to the tail → [`Waking::watch`] of the head → told → waiters wake, and look
//!
//! Invariants:
//! 1. The head is watched only while there are followers here, once for all of them.
//! 2. A follower that waits long has looked after the head was watched: waiters are woken when a watching becomes live,
//!    and a follower asks for its listener before it looks.
//! 3. A watching is a hint: without one, and while it is not live, followers look as often as they are told to.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use esker_store::{ObjectId, ObjectStore, Watching};
use event_listener::{Event, EventListener};
use parking_lot::Mutex;

/// After a failure to watch followers poll for so long before it is tried again.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Watch {
    /// Followers there are, of the log and of its streams.
    followers: usize,
    /// A follower asks the store for the watching now.
    is_asked: bool,
    failed: Option<Instant>,
    watching: Option<Box<dyn Watching>>,
}

/// What wakes the followers of a log in this process.
#[derive(Default)]
pub(crate) struct Waking {
    event: Event,
    watch: Mutex<Watch>,
}

impl Waking {
    /// Wakes all who wait.
    pub(crate) fn wake(&self) {
        self.event.notify(usize::MAX);
    }

    pub(crate) fn listen(&self) -> EventListener {
        self.event.listen()
    }

    /// Whether other processes' notifies wake who waits here.
    pub(crate) fn is_live(&self) -> bool {
        self.watch.lock().watching.as_ref().is_some_and(|watching| watching.is_live())
    }

    /// One more follows, as long as what is returned lives.
    pub(crate) fn follow(self: &Arc<Self>) -> Following {
        self.watch.lock().followers += 1;
        Following(Arc::clone(self))
    }

    /// Has the store tell of the head, if there are followers and it does not yet. Waits for the store. A failure is no
    /// error: followers look.
    pub(crate) fn watch(self: &Arc<Self>, store: &dyn ObjectStore, head: &ObjectId) {
        {
            let mut watch = self.watch.lock();
            let is_soon = watch.failed.is_some_and(|failed| failed.elapsed() < RETRY);
            if watch.followers == 0 || watch.is_asked || watch.watching.is_some() || is_soon {
                return;
            }
            watch.is_asked = true;
        }
        let waking = Arc::downgrade(self);
        let changed = move || {
            if let Some(waking) = Weak::upgrade(&waking) {
                waking.wake();
            }
        };
        let mut asked = store.watch(head, Arc::new(changed)).ok();
        let mut watch = self.watch.lock();
        watch.is_asked = false;
        watch.failed = if asked.is_none() { Some(Instant::now()) } else { None };
        if watch.followers > 0 {
            watch.watching = asked.take();
        }
        let is_watched = watch.watching.is_some();
        drop(watch);
        // Outside the lock: it is dropped where all followers have gone meanwhile.
        drop(asked);
        if is_watched {
            // Others wait without it, and may have looked before it was there.
            self.wake();
        }
    }
}

/// A follower.
pub(crate) struct Following(Arc<Waking>);

impl Drop for Following {
    fn drop(&mut self) {
        let mut watch = self.0.watch.lock();
        watch.followers -= 1;
        let over = if watch.followers == 0 { watch.watching.take() } else { None };
        drop(watch);
        drop(over);
    }
}

#[cfg(test)]
mod tests {
    use esker_memory::MemoryStore;
    use esker_store::{Change, Transaction};
    use event_listener::Listener;

    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn who_waits_already_is_woken_when_the_watching_becomes_live() {
        let store = MemoryStore::new();
        let head = ObjectId::new("c".into(), "head");
        let write = Change::Write { offset: 0, data: "x".into() };
        store.submit(Transaction::new().create_collection(&"c".into()).change(&head, write)).wait().unwrap();
        let waking = Arc::new(Waking::default());
        waking.watch(&store, &head);
        assert!(!waking.is_live(), "there is no follower");
        let following = waking.follow();
        let waiting = waking.listen();
        waking.watch(&store, &head);
        assert!(waking.is_live());
        waiting.wait_timeout(LONG).expect("looks again");
        let waiting = waking.listen();
        store.notify(&head);
        waiting.wait_timeout(LONG).expect("is told");
        drop(following);
        assert!(!waking.is_live());
    }
}
