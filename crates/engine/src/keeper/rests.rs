//! Rests: a compaction beside clients takes a part of a processor, and only as long as clients leave it more.
//!
//! a record is cleaned → so long since the last rest? → other threads of the process worked meanwhile? → a rest
//!
//! Invariant: none waits for one that rests: a rest ends as soon as it is awaited, and is short.

use std::cell::Cell;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// So long it works between two rests: less than what a client notices.
const WORK: Duration = Duration::from_millis(1);
/// A rest is so many times as long as the work before it, ...
const REST_PARTS: u32 = 5;
/// ... of which no more counts: it may have waited for the device.
const WORK_MAX: Duration = Duration::from_millis(10);
/// Whether it is awaited is looked at so often.
const LOOK: Duration = Duration::from_millis(2);
/// Other threads are at work if they take more than one part in so many of a processor.
const OTHERS_PARTS: u32 = 3;

/// What a compaction, and other threads, have worked since it has rested last.
pub(super) struct Rests {
    /// While it works: since when, and what others had worked by then.
    since: Cell<Instant>,
    others: Cell<Duration>,
    /// What both had worked before that.
    before: Cell<(Duration, Duration)>,
}

impl Default for Rests {
    fn default() -> Self {
        let nothing = Cell::new((Duration::ZERO, Duration::ZERO));
        Self { since: Cell::new(Instant::now()), others: Cell::new(Duration::ZERO), before: nothing }
    }
}

impl Rests {
    /// Work begins, or goes on. The thread that moves what is copied, and is none of the others, has `moved` for so
    /// long.
    pub fn begin(&self, moved: Duration) {
        self.since.set(Instant::now());
        self.others.set(others_worked(moved));
    }

    /// It ends for now: until [`Rests::begin`] nothing counts.
    pub fn end(&self, moved: Duration) {
        self.before.set(self.worked(moved));
    }

    /// What was worked since the last rest, by the compaction and by others.
    fn worked(&self, moved: Duration) -> (Duration, Duration) {
        let (worked, others) = self.before.get();
        (worked + self.since.get().elapsed(), others + others_worked(moved).saturating_sub(self.others.get()))
    }

    /// Between two pieces of work: rests, if that is due, and until it `is_awaited`. Returns for how long it slept.
    /// `moved` as in [`Rests::begin`], now.
    pub fn after_work(&self, moved: impl Fn() -> Duration, is_awaited: impl Fn() -> bool) -> Duration {
        if self.before.get().0 + self.since.get().elapsed() < WORK {
            return Duration::ZERO;
        }
        let (worked, others) = self.worked(moved());
        let rest = rest_after(worked, others);
        let (began, mut slept) = (Instant::now(), Duration::ZERO);
        while slept < rest && !is_awaited() {
            std::thread::sleep((rest - slept).min(LOOK));
            slept = began.elapsed();
        }
        self.before.set((Duration::ZERO, Duration::ZERO));
        self.begin(moved());
        slept
    }
}

/// How long a rest is due after so much work, and so much of others meanwhile.
fn rest_after(worked: Duration, others: Duration) -> Duration {
    if worked < WORK || others * OTHERS_PARTS <= worked { Duration::ZERO } else { worked.min(WORK_MAX) * REST_PARTS }
}

/// Processor time of the process without that of this thread, and of the one that moves.
fn others_worked(moved: Duration) -> Duration {
    processor_time(ClockId::ProcessCPUTime).saturating_sub(own_time() + moved)
}

/// Processor time of this thread.
pub(super) fn own_time() -> Duration {
    processor_time(ClockId::ThreadCPUTime)
}

fn processor_time(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn work_for(time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn a_rest_is_five_times_as_long_as_the_work_beside_others_and_never_long() {
        let ms = Duration::from_millis;
        for (worked, others, rest) in [
            (0, 0, 0),
            (1, 0, 0),
            (3, 1, 0),
            (3, 2, 15),
            (1, 1, 5),
            (10, 20, 50),
            (11, 20, 50),
            (60_000, 60_000, 50),
            (60_000, 20_000, 0),
        ] {
            assert_eq!(rest_after(ms(worked), ms(others)), ms(rest), "{worked} ms, others {others}");
        }
        assert_eq!(rest_after(WORK - Duration::from_nanos(1), ms(1)), Duration::ZERO);
    }

    #[test]
    fn small_pieces_of_work_add_up_and_what_is_between_them_does_not_count() {
        let (rests, mut pieces) = (Rests::default(), Duration::ZERO);
        for _ in 0..4 {
            let began = Instant::now();
            rests.begin(Duration::ZERO);
            work_for(WORK / 2);
            rests.end(Duration::ZERO);
            pieces += began.elapsed();
            work_for(WORK * 5);
        }
        let (worked, others) = rests.before.get();
        assert!(worked >= WORK * 2 && worked <= pieces, "{worked:?} of {pieces:?}");
        // Of others nothing counts but what they did meanwhile.
        rests.begin(Duration::ZERO);
        rests.end(Duration::ZERO);
        assert!(rests.before.get().0 >= worked && rests.before.get().1 >= others);
        rests.after_work(|| Duration::ZERO, || true);
        assert_eq!(rests.before.get(), (Duration::ZERO, Duration::ZERO));
    }

    #[test]
    fn a_rest_lasts_as_long_as_it_should_and_ends_as_soon_as_it_is_awaited() {
        let over = Arc::new(AtomicBool::new(false));
        let other = {
            let over = Arc::clone(&over);
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    work_for(Duration::from_millis(1));
                }
            })
        };
        let rests = Rests::default();
        // As often as it takes until the other thread has had a processor.
        let rest = |is_awaited: &dyn Fn() -> bool| loop {
            rests.begin(Duration::ZERO);
            work_for(Duration::from_millis(40));
            let (looks, began) = (Cell::new(0), Instant::now());
            let rested = rests.after_work(
                || Duration::ZERO,
                || {
                    looks.set(looks.get() + 1);
                    is_awaited()
                },
            );
            if looks.get() > 0 {
                assert!(rested <= began.elapsed());
                break (looks.get(), rested);
            }
        };
        let (looks, rested) = rest(&|| false);
        assert!(looks > 1 && rested >= WORK_MAX * REST_PARTS, "{looks} looks, {rested:?}");
        assert_eq!(rest(&|| true), (1, Duration::ZERO), "it does not sleep while it is awaited");
        // What moved is no other: here it is said to have done all that was done.
        rests.begin(Duration::ZERO);
        work_for(Duration::from_millis(40));
        let rested = rests.after_work(|| Duration::MAX / 2, || unreachable!("nothing else has worked"));
        assert_eq!(rested, Duration::ZERO);
        over.store(true, Ordering::Relaxed);
        other.join().unwrap();
    }
}
