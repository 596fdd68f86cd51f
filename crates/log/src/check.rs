//! Checking a log: the protocol's invariants, read from its objects.
//!
//! view → stripes → objects: epochs, entries in their places, nothing trimmed left, keys of streams and writers →
//! findings
//!
//! Memory is bounded: one page of one object at a time, and the numbers of the last [`NONCES_MAX`] entries.
//!
//! Invariant: a log that is in use is not accused. A handle that takes over, reshapes or trims changes the head first
//! and the objects after it, so what an object says is held against a head that was read later; what two reads of an
//! object disagree about is read once more.

use std::collections::{HashSet, VecDeque};

use bytes::Bytes;
use esker_store::{ObjectId, OmapScan, prefix};

use crate::Result;
use crate::cells::{self, Found};
use crate::format::{self, Kind, Placed, Stored, TRIM};
use crate::log::Log;
use crate::nonce::Nonce;
use crate::view::{Stripe, View};

/// So many entries are remembered to find one that stands in the log twice.
pub const NONCES_MAX: usize = 1 << 20;
/// Entries read at once.
const PAGE: usize = 1_024;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Entries.
    pub entries: u64,
    /// Bytes of their data.
    pub bytes: u64,
    /// Positions that were filled.
    pub filled: u64,
    /// Positions that were trimmed one by one.
    pub trimmed: u64,
    /// Positions below the last entry at which nothing stands.
    pub holes: u64,
    /// Objects that no view leads to: left by a crash, or by a change of shape. They do no harm.
    pub left_over: u64,
    /// What is wrong: place and reason.
    pub problems: Vec<String>,
}

/// Most problems that are listed.
const PROBLEMS_MAX: usize = 1_000;

struct Walk<'a> {
    log: &'a Log,
    view: &'a View,
    deep: bool,
    found: Checked,
    nonces: HashSet<Nonce>,
    order: VecDeque<Nonce>,
}

impl Log {
    /// Proves the log's invariants. `deep` reads the data that stands apart from its entry too. `progress` is told
    /// positions looked at, and of how many; false stops. While the log is in use, holes are entries on their way, and
    /// what is added meanwhile is not looked at.
    ///
    /// # Errors
    /// [`Error::Damaged`](crate::Error::Damaged) if there is no view to go by; the store's. What is wrong otherwise is
    /// in [`Checked::problems`].
    pub fn check(&self, deep: bool, mut progress: impl FnMut(u64, u64) -> bool) -> Result<Checked> {
        let view = self.refresh()?;
        let tail = self.written_tail(&view)?.position;
        let (nonces, order) = Default::default();
        let mut walk = Walk { log: self, view: &view, deep, found: Checked::default(), nonces, order };
        let start = view.start();
        for stripe in view.stripes() {
            for column in 0..stripe.width {
                walk.object(&stripe, column, tail)?;
            }
            if !progress(stripe.end.min(tail).saturating_sub(start), tail.saturating_sub(start)) {
                break;
            }
        }
        walk.left_over()?;
        Ok(walk.found)
    }
}

impl Walk<'_> {
    fn problem(&mut self, text: String) {
        if self.found.problems.len() < PROBLEMS_MAX {
            self.found.problems.push(text);
        }
    }

    fn object(&mut self, stripe: &Stripe, column: u32, tail: u64) -> Result<()> {
        let (store, view) = (self.log.store(), self.view);
        let object = view.object(self.log.id(), stripe, column);
        match cells::epoch_of(store, &object)? {
            None => {
                // It goes only after the view has let it go.
                if self.log.refresh()?.stripes().any(|now| now.id == stripe.id) {
                    self.problem(format!("object {object} of the view is missing"));
                }
                return Ok(());
            }
            Some(epoch) if epoch > view.epoch => {
                let now = self.log.refresh()?.epoch;
                if epoch > now {
                    self.problem(format!("object {object} is sealed at epoch {epoch}, the view is at {now}"));
                }
            }
            Some(_) => {}
        }
        let trim = self.trim_of(&object)?;
        let below = stripe.locals_below(column, view.trimmed);
        if trim > below {
            let now = stripe.locals_below(column, self.log.refresh()?.trimmed);
            if trim > now {
                self.problem(format!("object {object} is trimmed to {trim}, the view only to {now}"));
            }
        }
        let written = stripe.locals_below(column, tail);
        let (mut at, mut met) = (0, 0);
        loop {
            let layout = view.options.layout;
            let page = cells::scan(store, layout, &object, at..u64::MAX, PAGE, false)?;
            let Some((last, _)) = page.last() else { break };
            at = last + 1;
            // Data is appended no later than the entry that tells its place.
            let size = store.size(&object).wait()?.unwrap_or(0);
            for (local, bytes) in &page {
                if *local < trim {
                    self.problem(format!("{object}: local position {local} is below the trimmed {trim}"));
                    continue;
                }
                let Some(position) = stripe.position(column, *local) else {
                    self.problem(format!("{object}: local position {local} lies past the end of its stripe"));
                    continue;
                };
                if view.sealed.is_some_and(|sealed| position >= sealed) {
                    self.problem(format!("position {position} is above the seal"));
                }
                met += u64::from(position >= view.trimmed);
                self.entry(&object, position, *local, bytes, size)?;
            }
        }
        self.found.holes += (written - below.min(written)).saturating_sub(met);
        self.keys(&object, stripe, column, trim)
    }

    /// Below which local position an object is trimmed.
    fn trim_of(&self, object: &ObjectId) -> Result<u64> {
        let trim = self.log.store().xattr(object, TRIM).wait()?;
        Ok(trim.as_deref().and_then(format::number_from).unwrap_or(0))
    }

    /// Whether an object has the same at a local position as it had: no client has trimmed it since.
    fn still_stands(&self, object: &ObjectId, local: u64, bytes: &Bytes) -> Result<bool> {
        let (mut stands, _) = cells::get_each(self.log.store(), self.view.options.layout, object, &[local])?;
        Ok(match stands.pop() {
            Some(Ok(Some(now))) => now == *bytes,
            Some(Ok(None)) | None => false,
            // Damage is told where it is met.
            Some(Err(_)) => true,
        })
    }

    fn entry(&mut self, object: &ObjectId, position: u64, local: u64, bytes: &Bytes, size: u64) -> Result<()> {
        let stored = match Stored::decode(position, bytes) {
            Ok(stored) => stored,
            Err(why) => {
                self.problem(format!("position {position}: {why}"));
                return Ok(());
            }
        };
        let mut len = stored.body.len() as u64;
        match stored.kind {
            Kind::Filled => {
                self.found.filled += 1;
                return Ok(());
            }
            Kind::Trimmed => {
                self.found.trimmed += 1;
                return Ok(());
            }
            Kind::Data => {}
            Kind::Placed => {
                let Some(placed) = Placed::decode(&stored.body) else {
                    self.problem(format!("position {position}: its place does not make sense"));
                    return Ok(());
                };
                len = u64::from(placed.len);
                if placed.offset + len > size {
                    if self.still_stands(object, local, bytes)? {
                        self.problem(format!("position {position}: its data ends past the {size} bytes of {object}"));
                    }
                } else if self.deep
                    && let (Found::Lost(why), _) = cells::understand(self.log.store(), object, position, bytes)?
                    && self.still_stands(object, local, bytes)?
                {
                    self.problem(format!("position {position}: {why}"));
                }
            }
        }
        self.found.entries += 1;
        self.found.bytes += len;
        for stream in &stored.streams {
            let key = format::stream_key(stream, local);
            if self.log.store().omap_get(object, &key).wait()?.is_none() && self.still_stands(object, local, bytes)? {
                self.problem(format!("position {position}: stream {} does not have it", stream.escape_ascii()));
            }
        }
        if !self.nonces.insert(stored.nonce) {
            let Nonce { writer, number } = stored.nonce;
            self.problem(format!(
                "position {position}: entry {number} of writer {writer:016x} stands in the log twice"
            ));
        }
        self.order.push_back(stored.nonce);
        if self.order.len() > NONCES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.nonces.remove(&oldest);
        }
        Ok(())
    }

    /// Keys of streams and writers lead to entries that know them.
    fn keys(&mut self, object: &ObjectId, stripe: &Stripe, column: u32, trim: u64) -> Result<()> {
        let layout = self.view.options.layout;
        for prefix in [b's', b'w'] {
            for entry in prefix::omap(self.log.store(), object, OmapScan::of([prefix]).at_once(PAGE)) {
                let (key, value) = entry?;
                let local = match prefix {
                    b's' => format::key_number(&key),
                    _ => format::number_from(&value)
                        .filter(|position| (stripe.start..stripe.end).contains(position))
                        .map(|position| stripe.locate(position))
                        .filter(|(at, _)| *at == column)
                        .map(|(_, local)| local),
                };
                let Some(local) = local else {
                    self.problem(format!("{object}: key {} leads out of it", key.escape_ascii()));
                    continue;
                };
                if local < trim {
                    continue;
                }
                let (mut stands, _) = cells::get_each(self.log.store(), layout, object, &[local])?;
                let position = stripe.position(column, local).unwrap_or(0);
                let stored = match stands.pop() {
                    Some(Ok(Some(bytes))) => Stored::decode(position, &bytes).ok(),
                    _ => None,
                };
                let knows = stored.is_some_and(|stored| match prefix {
                    _ if stored.kind == Kind::Trimmed => true,
                    b's' => stored.streams.iter().any(|stream| format::stream_key(stream, local) == key),
                    _ => format::nonce_key(stored.nonce) == key,
                });
                // Trimmed with others since the keys were read: its key stays. Programs of before removed it with an
                // entry trimmed by itself.
                if !knows && self.trim_of(object)? <= local && self.log.store().omap_get(object, &key).wait()?.is_some()
                {
                    self.problem(format!("{object}: key {} leads to nothing that knows it", key.escape_ascii()));
                }
            }
        }
        Ok(())
    }

    fn left_over(&mut self) -> Result<()> {
        let ids: Vec<(u64, u64)> = self.view.runs.iter().map(|run| (run.stripe, run.stripe + run.stripes())).collect();
        for object in self.log.objects_below(u64::MAX) {
            let Some((stripe, _)) = format::data_place(self.log.id(), object?.name()) else { break };
            if !ids.iter().any(|(start, end)| (*start..*end).contains(&stripe)) {
                self.found.left_over += 1;
            }
        }
        Ok(())
    }
}
