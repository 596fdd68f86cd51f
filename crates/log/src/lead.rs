//! Where positions come from: a leader here, a sequencer elsewhere, or this handle, which takes over where none leads.
//!
//! token → leader here → sequencer that the head names → [`Log::lead_after`], under a new epoch

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arc_swap::Guard;
use event_listener::Listener;

use crate::cells::Found;
use crate::log::Log;
use crate::seal::{Reach, TakenOver};
use crate::sequencer::{Connect, Leader, Sequencer, Tail, Token};
use crate::view::{Stripe, View};
use crate::{Error, Result, cells};

/// How long a refused conditional append waits for positions that were handed out before it and are still open, until
/// it fills them; how long in
/// all, before it tells a tail that is written and below others that were handed out; and how often it looks meanwhile.
const PATIENCE: Duration = Duration::from_millis(200);
const NOT_TAIL: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(2);
/// Leases that a log whose sequencer is silent waits for another one: who stands by takes over after one.
const LEASES_WAITED: u64 = 4;

impl Log {
    /// The leader here, if it is the log's at this view.
    pub(crate) fn leader(&self, view: &View) -> Option<Arc<Leader>> {
        self.inner.leader.load_full().filter(|leader| leader.epoch() == view.epoch)
    }

    /// Whether positions are handed out by this handle, as far as it knows: then an append waits for no other process.
    pub fn leads(&self) -> bool {
        self.leader(&self.view()).is_some()
    }

    /// The leader here, if it is the log's and this handle may write.
    fn ready_leader(&self) -> Option<Guard<Option<Arc<Leader>>>> {
        let view = self.peek();
        let leader = self.inner.leader.load();
        let leads = leader.as_ref().is_some_and(|leader| leader.epoch() == view.epoch);
        (leads && self.check_writer(&view).is_ok()).then_some(leader)
    }

    /// Positions for `count` entries, taking over where no other handle hands them out.
    pub(crate) fn token(&self, count: u32, expected: Option<u64>) -> Result<Token> {
        let mut began = None;
        loop {
            if let Some(leader) = self.ready_leader().as_deref().and_then(Option::as_ref) {
                return leader.next(count, expected);
            }
            let view = self.view();
            self.check_writer(&view).or_else(|error| {
                // What was seen may be old: an owner may have let go.
                let view = self.refresh()?;
                self.check_writer(&view).map_err(|_| error)
            })?;
            let view = self.view();
            if let Some(leader) = self.leader(&view) {
                return leader.next(count, expected);
            }
            match (&self.inner.session.connect, view.sequencer.is_empty()) {
                (Some(connect), false) => {
                    let asked = self
                        .remote(&**connect, &view.sequencer)
                        .and_then(|sequencer| sequencer.next(self.inner.id, view.epoch, count, expected));
                    match asked {
                        Ok(token) => {
                            if token.epoch > view.epoch {
                                self.refresh()?;
                            }
                            return Ok(token);
                        }
                        Err(Error::NoSequencer { .. } | Error::Deposed { .. }) => {
                            self.inner.remote.lock().take();
                            self.await_sequencer(&mut began, &view)?;
                        }
                        Err(error) => return Err(error),
                    }
                }
                _ => {
                    if self.inner.leader.load().is_some() {
                        // Deposed: the new leader gets on with what it wants before it is deposed in turn.
                        std::thread::sleep(Duration::from_millis(self.inner.session.lease_ms / 50));
                    }
                    self.lead_after(&view)?;
                }
            }
        }
    }

    fn remote(&self, connect: &dyn Connect, address: &str) -> Result<Arc<dyn Sequencer>> {
        let mut remote = self.inner.remote.lock();
        match &*remote {
            Some((at, sequencer)) if at == address => Ok(Arc::clone(sequencer)),
            _ => {
                let sequencer = connect.connect(address)?;
                *remote = Some((address.to_owned(), Arc::clone(&sequencer)));
                Ok(sequencer)
            }
        }
    }

    /// Waits a little for another sequencer to take over. If none did within [`LEASES_WAITED`] leases, none stands by:
    /// this handle takes over, and from then on the handles that write hand out positions, until a sequencer is there
    /// again.
    fn await_sequencer(&self, began: &mut Option<u64>, before: &View) -> Result<()> {
        let now = self.now_ms();
        let since = *began.get_or_insert(now);
        let lease = self.inner.session.lease_ms;
        let view = self.refresh()?;
        if view.version != before.version {
            return Ok(());
        }
        if now.saturating_sub(since) > lease.saturating_mul(LEASES_WAITED) {
            *began = None;
            return self.lead_after(before);
        }
        std::thread::sleep(Duration::from_millis((lease / 20).max(1)));
        Ok(())
    }

    /// Becomes the leader, which hands out positions, under a new epoch; `address` is where others find this (empty:
    /// nowhere). The leader before is deposed. If this handle leads already, at the same address, it goes on.
    ///
    /// # Errors
    /// [`Error::Sealed`], [`Error::Fenced`]; the store's.
    pub fn lead(&self, address: &str) -> Result<Arc<Leader>> {
        self.lead_from(address, None)
    }

    /// Becomes the leader, which hands out positions, without naming an address, if the log still names the sequencer
    /// that it named in `before`. Otherwise another sequencer was named since: this handle asks it instead of deposing
    /// it, because many writers would depose it time and again.
    fn lead_after(&self, before: &View) -> Result<()> {
        match self.lead_from("", Some(&before.sequencer)) {
            Err(Error::Deposed { .. }) => self.refresh().map(drop),
            led => led.map(drop),
        }
    }

    fn lead_from(&self, address: &str, from: Option<&str>) -> Result<Arc<Leader>> {
        let _one = self.inner.leading.lock();
        let view = self.view();
        if let Some(leader) = self.leader(&view)
            && view.sequencer == address
        {
            return Ok(leader);
        }
        if self.inner.held != 0 {
            return Err(self.fenced(&view));
        }
        let held = view.epoch;
        let TakenOver { view, tail, .. } = self.take_over(Reach::Tail, None, |view| {
            self.check_writer(view)?;
            if from.is_some_and(|from| view.sequencer != from && view.sequencer != address) {
                return Err(Error::Deposed { held, found: view.epoch });
            }
            view.sequencer = address.to_owned();
            Ok(())
        })?;
        let leader = Leader::new(view.epoch, tail);
        self.met(view);
        self.lead_with(&leader);
        Ok(leader)
    }

    pub(crate) fn lead_with(&self, leader: &Arc<Leader>) {
        self.inner.leader.store(Some(Arc::clone(leader)));
        self.inner.shared.waking.wake();
    }

    /// The tail: one above the last position at which something stands. Everything whose append returned before the
    /// call stands below; positions that were handed out and at which nothing stands yet do not count.
    ///
    /// A tail that was told is a promise: what stands right below it is durable, so that no crash and no other leader
    /// takes it back (but for what was only to be applied, [`Log::append_with`]). Where that is not durable yet the
    /// call waits for it.
    ///
    /// # Errors
    /// [`Error::NoLog`] if the log was deleted; the store's.
    pub fn tail(&self) -> Result<Tail> {
        let handed = self.handed_tail()?;
        self.written_below(&self.view(), handed)
    }

    /// The position that is handed out next. Asks the leader or sequencer that hands them out; where there is none,
    /// looks for the last entry. What is below may never be written, and another leader may hand it out again: what
    /// relies on it guards its epoch.
    pub(crate) fn handed_tail(&self) -> Result<Tail> {
        // A leader that was deposed does not know it: the head does.
        let view = self.current_view()?;
        if let Some(leader) = self.leader(&view) {
            return Ok(leader.tail());
        }
        if let Some(position) = view.sealed {
            return Ok(Tail { epoch: view.epoch, position });
        }
        if let (Some(connect), false) = (&self.inner.session.connect, view.sequencer.is_empty())
            && let Ok(sequencer) = self.remote(&**connect, &view.sequencer)
        {
            match sequencer.tail(self.inner.id, view.epoch) {
                Ok(tail) => return Ok(tail),
                Err(_) => drop(self.inner.remote.lock().take()),
            }
        }
        self.written_tail(&view)
    }

    /// The tail as it is written. It may be above `handed` when others have appended since, and is told so: below it
    /// stand entries that were acknowledged.
    fn written_below(&self, view: &View, handed: Tail) -> Result<Tail> {
        let written = &self.inner.shared.written;
        if view.sealed.is_some() || handed.position <= written.load(Ordering::SeqCst).max(view.trimmed) {
            return Ok(handed);
        }
        // Mostly the last position that was handed out is written.
        let (found, barrier) = self.read_stored(handed.position - 1..handed.position)?;
        let tail = match found.first() {
            Some(Found::Hole | Found::BeyondTail) | None => self.written_tail(view)?.position,
            Some(_) => {
                barrier.map_or(Ok(()), |barrier| barrier.wait())?;
                handed.position
            }
        };
        written.fetch_max(tail, Ordering::SeqCst);
        Ok(Tail { epoch: handed.epoch, position: tail })
    }

    /// What a conditional append is told that found other positions handed out than it expected: an error that names
    /// the tail, once all that
    /// had been handed out by then is written; or nothing, if it is as expected by now. What their writers leave open
    /// for [`PATIENCE`] is filled.
    pub(crate) fn not_tail(&self, expected: u64) -> Result<Option<Error>> {
        let (began, mut until) = (Instant::now(), u64::MAX);
        loop {
            let listener = self.listen();
            let handed = self.led_tail()?;
            if handed.position == expected {
                return Ok(None);
            }
            // Others go on; under a new epoch less may have been handed out.
            until = until.min(handed.position);
            let tail = self.written_below(&self.view(), handed)?.position;
            // Others have written since up to where it is expected.
            if handed.position < expected && tail == expected {
                return Ok(None);
            }
            if tail >= until || self.view().sealed.is_some() || began.elapsed() > NOT_TAIL {
                return Ok(Some(Error::NotTail { expected, tail }));
            }
            if began.elapsed() < PATIENCE {
                listener.wait_timeout(LOOK);
                continue;
            }
            match self.fill_under(handed, until - 1) {
                Ok(()) | Err(Error::Taken { .. } | Error::Trimmed { .. } | Error::Deposed { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The tail as the leader or sequencer that hands out positions knows it; where there is none, this handle becomes
    /// the leader. What is at or above it was not handed out under its epoch, so that nothing can come there but by a
    /// new token.
    pub(crate) fn led_tail(&self) -> Result<Tail> {
        let mut began = None;
        loop {
            let view = self.refresh()?;
            if let Some(leader) = self.leader(&view) {
                return Ok(leader.tail());
            }
            if let Some(position) = view.sealed {
                return Ok(Tail { epoch: view.epoch, position });
            }
            let Some(connect) = self.inner.session.connect.as_ref().filter(|_| !view.sequencer.is_empty()) else {
                self.lead_after(&view)?;
                continue;
            };
            let told = self
                .remote(&**connect, &view.sequencer)
                .and_then(|sequencer| sequencer.tail(self.inner.id, view.epoch));
            match told {
                Err(Error::NoSequencer { .. } | Error::Deposed { .. }) => {
                    self.inner.remote.lock().take();
                    self.await_sequencer(&mut began, &view)?;
                }
                told => {
                    if told.is_err() {
                        self.inner.remote.lock().take();
                    }
                    return told;
                }
            }
        }
    }

    /// One above the last entry, by looking.
    pub(crate) fn written_tail(&self, view: &View) -> Result<Tail> {
        let mut position = view.trimmed;
        for stripe in view.stripes_from_last() {
            if let Some(last) = self.last_in(view, &stripe)? {
                position = position.max(last + 1);
                break;
            }
        }
        // What was trimmed away meanwhile was not met, but the head was told of it before.
        position = position.max(self.current_view()?.trimmed);
        Ok(Tail { epoch: view.epoch, position })
    }

    pub(crate) fn last_in(&self, view: &View, stripe: &Stripe) -> Result<Option<u64>> {
        let mut last = None;
        for column in 0..stripe.width {
            let object = view.object(self.inner.id, stripe, column);
            let local = cells::last(self.store(), view.options.layout, &object)?;
            last = last.max(local.and_then(|local| stripe.position(column, local)));
        }
        Ok(last)
    }
}
