//! The view: which object and which place in it each position has, under which epoch.
//!
//! position → run (many stripes of one shape) → stripe → column (object) and local position
//!
//! A stripe is `width` objects of `slots` positions each; positions go round the objects. Equal stripes are one run, so
//! that a view stays a few hundred bytes. A run may end in mid-stripe, where the shape was changed at the tail; the
//! next begins with a new stripe.
//!
//! Invariants:
//! 1. Runs are in order, without gaps, from the first stripe that is not trimmed whole to [`View::end`]; what a
//!    position maps to never changes.
//! 2. Stripe ids grow, are taken by a change of the head before anything is made under them, and are used once.
//! 3. Decoding checks all of this, so that arithmetic on a view does not overflow.
//! Source: Balakrishnan et al., CORFU (2012), projections; ZLog's views.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use esker_store::{Compression, Fence, ObjectId};

use crate::format::{self, LABEL_BYTES_MAX};
use crate::options::{Layout, Options};
use crate::{Error, Result};

/// Version of the view that this code writes, and the highest that it reads.
pub(crate) const VIEW_VERSION: u8 = 1;
/// Most runs in a view: each change of shape adds one, trimming removes them.
pub(crate) const RUNS_MAX: usize = 4_096;
/// Positions of a log end below this.
pub(crate) const POSITIONS_MAX: u64 = 1 << 60;

/// Stripes of one shape, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First position; the first of its stripe.
    pub start: u64,
    /// Number of positions.
    pub positions: u64,
    /// Id of the first stripe.
    pub stripe: u64,
    /// Objects per stripe.
    pub width: u32,
    /// Positions per object.
    pub slots: u32,
}

impl Run {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.positions
    }

    pub(crate) fn per_stripe(&self) -> u64 {
        u64::from(self.width) * u64::from(self.slots)
    }

    pub(crate) fn stripes(&self) -> u64 {
        self.positions.div_ceil(self.per_stripe())
    }
}

/// One stripe of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stripe {
    pub id: u64,
    pub start: u64,
    /// Cut where the run ends.
    pub end: u64,
    pub width: u32,
}

impl Stripe {
    /// The local position in its object, and the object's column.
    pub(crate) fn locate(&self, position: u64) -> (u32, u64) {
        let within = position - self.start;
        ((within % u64::from(self.width)) as u32, within / u64::from(self.width))
    }

    pub(crate) fn position(&self, column: u32, local: u64) -> Option<u64> {
        let within = local.checked_mul(u64::from(self.width))?.checked_add(u64::from(column))?;
        self.start.checked_add(within).filter(|position| *position < self.end)
    }

    /// How many local positions of a column lie below `position`.
    pub(crate) fn locals_below(&self, column: u32, position: u64) -> u64 {
        let below = position.min(self.end).saturating_sub(self.start);
        below.saturating_sub(u64::from(column)).div_ceil(u64::from(self.width))
    }
}

/// The state of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Grows with each change.
    pub version: u64,
    /// Writes of an older epoch are refused by what was sealed.
    pub epoch: u64,
    /// How entries are kept.
    pub options: Options,
    /// When the log was made, in unix milliseconds.
    pub created_ms: u64,
    /// Positions below are trimmed.
    pub trimmed: u64,
    /// The tail at which the log was sealed for good.
    pub sealed: Option<u64>,
    /// The only writer, by name; empty if any client may write.
    pub owner: String,
    /// Where positions are handed out, as an address; empty: wherever the epoch was last raised.
    pub sequencer: String,
    /// The next stripe's id.
    pub next_stripe: u64,
    /// Where positions are.
    pub runs: Vec<Run>,
}

impl View {
    /// Who may write.
    pub(crate) fn fence(&self) -> Fence<'_> {
        Fence { epoch: self.epoch, owner: &self.owner }
    }

    /// The view of a new log, with its first stripe.
    pub(crate) fn new(options: Options, created_ms: u64) -> Self {
        let mut view = Self {
            version: 1,
            epoch: 1,
            options,
            created_ms,
            trimmed: 0,
            sealed: None,
            owner: String::new(),
            sequencer: String::new(),
            next_stripe: 0,
            runs: Vec::new(),
        };
        let id = view.take_stripe();
        view.add_stripe(id);
        view
    }

    /// First position that has no place yet.
    pub fn end(&self) -> u64 {
        self.runs.last().map_or(self.trimmed, Run::end)
    }

    /// First position that has a place.
    pub(crate) fn start(&self) -> u64 {
        self.runs.first().map_or(self.trimmed, |run| run.start)
    }

    /// The stripe of a position, if it has a place.
    pub(crate) fn stripe(&self, position: u64) -> Option<Stripe> {
        let after = self.runs.partition_point(|run| run.start <= position);
        let run = self.runs.get(after.checked_sub(1)?)?;
        let number = (position - run.start) / run.per_stripe();
        (position < run.end()).then(|| stripe_of(run, number))
    }

    /// All stripes from the last to the first.
    pub(crate) fn stripes_from_last(&self) -> impl Iterator<Item = Stripe> + '_ {
        self.runs.iter().rev().flat_map(|run| (0..run.stripes()).rev().map(|number| stripe_of(run, number)))
    }

    /// All stripes in order.
    pub(crate) fn stripes(&self) -> impl Iterator<Item = Stripe> + '_ {
        self.runs.iter().flat_map(|run| (0..run.stripes()).map(|number| stripe_of(run, number)))
    }

    /// The lowest stripe id in use.
    pub(crate) fn first_stripe(&self) -> u64 {
        self.runs.first().map_or(self.next_stripe, |run| run.stripe)
    }

    /// Takes the next stripe's id. Once the view is published no other client makes objects under it.
    pub(crate) fn take_stripe(&mut self) -> u64 {
        self.next_stripe += 1;
        self.next_stripe - 1
    }

    /// Adds a stripe of the shape that the options ask for at the end, under an id that was taken, and returns it;
    /// `None` if the id is below one that is in use.
    pub(crate) fn add_stripe(&mut self, id: u64) -> Option<Stripe> {
        let (width, slots) = (self.options.width, self.options.slots);
        let per_stripe = u64::from(width) * u64::from(slots);
        let start = self.end();
        if self.runs.last().is_some_and(|last| id < last.stripe + last.stripes()) {
            return None;
        }
        match self.runs.last_mut() {
            Some(last)
                if last.width == width
                    && last.slots == slots
                    && last.positions.is_multiple_of(per_stripe)
                    && last.stripe + last.stripes() == id =>
            {
                last.positions += per_stripe;
            }
            _ => self.runs.push(Run { start, positions: per_stripe, stripe: id, width, slots }),
        }
        Some(Stripe { id, start, end: start + per_stripe, width })
    }

    /// Takes the places of all positions from `tail` on away, so that the next stripe begins there.
    pub(crate) fn cut(&mut self, tail: u64) {
        self.runs.retain(|run| run.start < tail);
        if let Some(last) = self.runs.last_mut() {
            last.positions = last.positions.min(tail - last.start);
        }
        if self.runs.is_empty() {
            self.trimmed = self.trimmed.max(tail);
        }
    }

    /// Drops the stripes that lie whole below the trimmed positions. One always stays, so that the end is known.
    pub(crate) fn drop_trimmed(&mut self) {
        let trimmed = self.trimmed;
        while self.runs.len() > 1 && self.runs[0].end() <= trimmed {
            self.runs.remove(0);
        }
        if let Some(first) = self.runs.first_mut() {
            let whole = (trimmed.saturating_sub(first.start) / first.per_stripe()).min(first.stripes() - 1);
            first.start += whole * first.per_stripe();
            first.positions -= whole * first.per_stripe();
            first.stripe += whole;
        }
    }

    pub(crate) fn object(&self, log: u64, stripe: &Stripe, column: u32) -> ObjectId {
        format::data(log, stripe.id, column)
    }

    pub(crate) fn encode(&self) -> Bytes {
        let options = &self.options;
        let mut bytes = BytesMut::with_capacity(160 + 32 * self.runs.len());
        bytes.put_u8(VIEW_VERSION);
        bytes.put_u8(options.layout as u8);
        bytes.put_u8(u8::from(self.sealed.is_some()));
        bytes.put_u8(options.compression as u8);
        bytes.put_u32_le(options.width);
        bytes.put_u32_le(options.slots);
        bytes.put_u32_le(options.entry_bytes_max);
        bytes.put_u32_le(options.inline_bytes_max);
        bytes.put_u32_le(0);
        for word in [
            options.object_bytes_max,
            options.retain_positions,
            options.retain_bytes,
            options.retain_ms,
            self.version,
            self.epoch,
            self.created_ms,
            self.trimmed,
            self.sealed.unwrap_or(0),
            self.next_stripe,
        ] {
            bytes.put_u64_le(word);
        }
        bytes.put_u32_le(self.runs.len() as u32);
        bytes.put_u8(self.owner.len() as u8);
        bytes.put_u8(self.sequencer.len() as u8);
        bytes.put_u16_le(0);
        for run in &self.runs {
            bytes.put_u64_le(run.start);
            bytes.put_u64_le(run.positions);
            bytes.put_u64_le(run.stripe);
            bytes.put_u32_le(run.width);
            bytes.put_u32_le(run.slots);
        }
        bytes.put_slice(self.owner.as_bytes());
        bytes.put_slice(self.sequencer.as_bytes());
        let crc = crc32c::crc32c(&bytes);
        bytes.put_u32_le(crc);
        bytes.freeze()
    }

    pub(crate) fn decode(name: &str, bytes: &[u8]) -> Result<Self> {
        let damaged = |why: String| Error::damaged(format!("view of log {name}"), why);
        let short = || damaged(format!("{} bytes, too few", bytes.len()));
        let version = *bytes.first().ok_or_else(short)?;
        if version > VIEW_VERSION {
            return Err(damaged(format!("version {version}, this program reads up to {VIEW_VERSION}")));
        }
        if bytes.len() < VIEW_FIXED_BYTES + 4 {
            return Err(short());
        }
        let (fields, found) = bytes.split_at(bytes.len() - 4);
        let found = found.try_into().map_or(0, u32::from_le_bytes);
        if crc32c::crc32c(fields) != found {
            return Err(damaged("checksum mismatch".into()));
        }
        let mut at = &fields[1..];
        let (layout, sealed, compression) = (at.get_u8(), at.get_u8() != 0, at.get_u8());
        let mut options = Options {
            layout: Layout::from_number(layout).ok_or_else(|| damaged(format!("layout {layout}")))?,
            compression: compression_from(compression).ok_or_else(|| damaged(format!("compression {compression}")))?,
            width: at.get_u32_le(),
            slots: at.get_u32_le(),
            entry_bytes_max: at.get_u32_le(),
            inline_bytes_max: at.get_u32_le(),
            ..Options::default()
        };
        let _reserved = at.get_u32_le();
        let mut word = || at.get_u64_le();
        options.object_bytes_max = word();
        options.retain_positions = word();
        options.retain_bytes = word();
        options.retain_ms = word();
        let mut view = Self {
            options,
            version: word(),
            epoch: word(),
            created_ms: word(),
            trimmed: word(),
            sealed: sealed.then_some(word()),
            next_stripe: 0,
            owner: String::new(),
            sequencer: String::new(),
            runs: Vec::new(),
        };
        view.next_stripe = word();
        let runs = at.get_u32_le() as usize;
        let (owner, sequencer) = (usize::from(at.get_u8()), usize::from(at.get_u8()));
        let _reserved = at.get_u16_le();
        if runs > RUNS_MAX || at.len() != runs * RUN_BYTES + owner + sequencer {
            return Err(damaged(format!("{} bytes for {runs} runs", bytes.len())));
        }
        for _ in 0..runs {
            let (start, positions, stripe) = (at.get_u64_le(), at.get_u64_le(), at.get_u64_le());
            view.runs.push(Run { start, positions, stripe, width: at.get_u32_le(), slots: at.get_u32_le() });
        }
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| damaged("a name is not UTF-8".into()));
        view.owner = text(&at[..owner])?;
        view.sequencer = text(&at[owner..])?;
        view.options.check().map_err(|error| damaged(error.to_string()))?;
        view.check().map_err(damaged)?;
        Ok(view)
    }

    /// What is wrong with the runs, if anything.
    fn check(&self) -> std::result::Result<(), String> {
        let mut end = None;
        let mut stripe = 0;
        for run in &self.runs {
            let fits = Options::shape(run.width, run.slots).is_ok()
                && run.positions > 0
                && run.start <= POSITIONS_MAX
                && run.positions <= POSITIONS_MAX - run.start.min(POSITIONS_MAX)
                && run.stripe >= stripe
                && end.is_none_or(|end| end == run.start);
            if !fits {
                return Err(format!("run {run:?} after position {end:?}, stripe {stripe}"));
            }
            end = Some(run.end());
            stripe = run.stripe.saturating_add(run.stripes());
        }
        if self.runs.is_empty() || stripe > self.next_stripe || self.trimmed > POSITIONS_MAX {
            return Err(format!(
                "{} runs, next stripe {}, trimmed {}",
                self.runs.len(),
                self.next_stripe,
                self.trimmed
            ));
        }
        if self.next_stripe > u64::MAX / 2 || self.epoch > u64::MAX / 2 || self.version > u64::MAX / 2 {
            return Err("numbers out of range".into());
        }
        Ok(())
    }

    /// Refuses what does not fit a view.
    pub(crate) fn check_labels(&self) -> Result<()> {
        for (what, label) in [("owner", &self.owner), ("address of a sequencer", &self.sequencer)] {
            if label.len() > LABEL_BYTES_MAX {
                let why = format!("{} bytes exceed LABEL_BYTES_MAX = {LABEL_BYTES_MAX}", label.len());
                return Err(Error::Invalid { what, why });
            }
        }
        if self.runs.len() > RUNS_MAX || self.end() > POSITIONS_MAX {
            let why =
                format!("{} runs to position {}: at most {RUNS_MAX} and {POSITIONS_MAX}", self.runs.len(), self.end());
            return Err(Error::invalid("view", why));
        }
        Ok(())
    }
}

/// Bytes of a view without runs, names and checksum.
const VIEW_FIXED_BYTES: usize = 24 + 10 * 8 + 8;
const RUN_BYTES: usize = 32;

/// The fields of a view before its runs.
pub(crate) const VIEW_LAYOUT: format::Described = &[
    ("encoding", 0, 1),
    ("layout", 1, 1),
    ("sealed", 2, 1),
    ("compression", 3, 1),
    ("width", 4, 4),
    ("slots", 8, 4),
    ("entry_bytes_max", 12, 4),
    ("inline_bytes_max", 16, 4),
    ("reserved", 20, 4),
    ("object_bytes_max", 24, 8),
    ("retain_positions", 32, 8),
    ("retain_bytes", 40, 8),
    ("retain_ms", 48, 8),
    ("version", 56, 8),
    ("epoch", 64, 8),
    ("created_ms", 72, 8),
    ("trimmed", 80, 8),
    ("sealed_at", 88, 8),
    ("next_stripe", 96, 8),
    ("runs", 104, 4),
    ("owner_len", 108, 1),
    ("sequencer_len", 109, 1),
    ("reserved2", 110, 2),
];

fn compression_from(number: u8) -> Option<Compression> {
    Compression::ALL.iter().map(|(one, _)| *one).find(|one| *one as u8 == number)
}

fn stripe_of(run: &Run, number: u64) -> Stripe {
    let start = run.start + number * run.per_stripe();
    Stripe { id: run.stripe + number, start, end: (start + run.per_stripe()).min(run.end()), width: run.width }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(width: u32, slots: u32) -> View {
        View::new(Options { width, slots, ..Options::default() }, 5)
    }

    #[test]
    fn every_position_has_one_place_whatever_was_added_cut_and_trimmed() {
        let mut rng = fastrand::Rng::with_seed(3);
        let mut view = view(2, 4);
        let mut places = std::collections::HashMap::new();
        for _ in 0..300 {
            match rng.u32(..4) {
                0 => {
                    view.options.width = rng.u32(1..5);
                    view.options.slots = rng.u32(1..5);
                    view.cut(rng.u64(view.trimmed.max(view.start() + 1)..=view.end()));
                    places.retain(|position, _| *position < view.end());
                    let id = view.take_stripe();
                    assert!(view.add_stripe(id).is_some());
                }
                1 => {
                    view.trimmed = rng.u64(view.trimmed..=view.end().min(view.trimmed + 20));
                    view.drop_trimmed();
                }
                _ => {
                    // Some ids are taken and never used.
                    let early = view.take_stripe();
                    let id = if rng.bool() { view.take_stripe() } else { early };
                    assert!(view.add_stripe(id).is_some());
                    assert_eq!(view.add_stripe(early), None);
                }
            }
            let bytes = view.encode();
            assert_eq!(View::decode("l", &bytes).unwrap(), view);
            let mut taken = std::collections::HashSet::new();
            for position in view.start()..view.end() {
                let stripe = view.stripe(position).unwrap();
                let (column, local) = stripe.locate(position);
                assert_eq!(stripe.position(column, local), Some(position));
                assert!(column < stripe.width && taken.insert((stripe.id, column, local)));
                let place = (stripe.id, column, local);
                assert_eq!(*places.entry(position).or_insert(place), place, "position {position} moved");
                let below = (view.start()..position).filter(|other| {
                    let other_stripe = view.stripe(*other).unwrap();
                    other_stripe.id == stripe.id && other_stripe.locate(*other).0 == column
                });
                assert_eq!(stripe.locals_below(column, position), below.count() as u64);
            }
            assert_eq!(view.stripe(view.end()), None);
            let mut backwards: Vec<_> = view.stripes_from_last().collect();
            backwards.reverse();
            assert_eq!(backwards, view.stripes().collect::<Vec<_>>());
        }
    }

    #[test]
    fn equal_stripes_are_one_run() {
        let mut view = view(4, 16);
        for _ in 0..1_000 {
            let id = view.take_stripe();
            view.add_stripe(id).unwrap();
        }
        assert_eq!((view.runs.len(), view.end()), (1, 1_001 * 64));
        view.trimmed = 700 * 64 + 3;
        view.drop_trimmed();
        assert_eq!((view.start(), view.first_stripe()), (700 * 64, 700));
    }

    #[test]
    fn no_broken_view_is_read() {
        let mut view = view(3, 5);
        view.owner = "me".into();
        view.sealed = Some(4);
        let bytes = view.encode();
        assert_eq!(View::decode("l", &bytes).unwrap(), view);
        for bit in 0..bytes.len() * 8 {
            let mut broken = bytes.to_vec();
            broken[bit / 8] ^= 1 << (bit % 8);
            assert!(View::decode("l", &broken).is_err(), "bit {bit}");
        }
        let mut newer = bytes.to_vec();
        newer[0] = 2;
        assert!(View::decode("l", &newer).unwrap_err().to_string().contains("version 2"));
    }

    #[test]
    fn the_table_of_fields_ends_where_the_runs_begin() {
        let (_, offset, bytes) = VIEW_LAYOUT[VIEW_LAYOUT.len() - 1];
        assert_eq!(offset + bytes, VIEW_FIXED_BYTES);
    }
}
