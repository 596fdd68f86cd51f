//! Which writers are filling a range of the log's buffers.
//!
//! a place of its own for the thread → under the log's lock: the range → filled → free
//! the commit thread waits for those below what it has cut, a reader for the one that its value is in
//!
//! Each thread has a cache line of its own for that, as long as there are enough. A count that all writers share moved
//! from processor to processor twice for each record, once of these under the log's lock.
//!
//! Invariants:
//! 1. A range is noted while the lock is held under which it was given: a thread that takes that lock later sees it.
//! 2. A thread that finds that a range is not being filled any more sees what its writer has filled it with.
//! 3. A range whose writer did not say that it is whole stays noted: nothing that it holds counts as whole, and no
//!    thread waits for it.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// A log position.
type Position = u64;

/// So many writers fill ranges at the same time; more wait for one of them.
const PLACES: usize = 64;
/// No writer has the place.
const FREE: Position = Position::MAX;
/// A writer has it that has no range yet, so that its range will lie behind all that was given so far.
const TAKEN: Position = Position::MAX - 1;
/// A thread that still waits after `SPINS` looks lets others run, and after `YIELDS` sleeps for `NAP` between looks:
/// the one that it waits for may need its processor, and be of a lower priority.
const SPINS: u32 = 64;
const YIELDS: u32 = 64;
const NAP: Duration = Duration::from_micros(50);

/// Two cache lines: some processors fetch them in pairs.
#[repr(align(128))]
struct Place {
    /// Where the range starts; [`FREE`] or [`TAKEN`].
    start: AtomicU64,
    /// Where it ends, or a later one.
    end: AtomicU64,
    /// Its writer ended before the range was whole.
    broken: AtomicBool,
}

/// The ranges that are being filled.
pub struct Filling {
    places: [Place; PLACES],
    /// Places that were ever taken are among so many first ones.
    used: AtomicUsize,
    /// Everything below is whole.
    whole: AtomicU64,
}

impl Default for Filling {
    fn default() -> Self {
        let place = |_| Place { start: AtomicU64::new(FREE), end: AtomicU64::new(0), broken: AtomicBool::new(false) };
        Self { places: std::array::from_fn(place), used: AtomicUsize::new(0), whole: AtomicU64::new(0) }
    }
}

/// A writer's place. Dropped, it is free again, unless the writer has a range and has not said that this is whole: then
/// it never is, and the log is to stop.
pub struct Filler<'a> {
    place: &'a Place,
    begun: Cell<bool>,
    whole: Cell<bool>,
}

impl Filler<'_> {
    /// It fills `start..end` from now on. The caller holds the lock under which it got the range.
    #[inline]
    pub fn begin(&self, start: Position, end: Position) {
        self.begun.set(true);
        self.place.end.store(end, Ordering::Relaxed);
        self.place.start.store(start, Ordering::Release);
    }

    /// The range is filled.
    #[inline]
    pub fn set_whole(&self) {
        self.whole.set(true);
    }

    /// Whether that was said.
    #[inline]
    pub fn is_whole(&self) -> bool {
        self.whole.get()
    }
}

impl Drop for Filler<'_> {
    fn drop(&mut self) {
        match self.whole.get() || !self.begun.get() {
            true => self.place.start.store(FREE, Ordering::Release),
            false => self.place.broken.store(true, Ordering::Release),
        }
    }
}

impl Place {
    /// Waits while the range that is noted here, if any, is being filled and is one of these; whether it is not broken.
    #[inline]
    fn wait_while(&self, is_one: impl Fn(&Self) -> bool) -> bool {
        let mut looks = 0u32;
        while is_one(self) {
            if self.broken.load(Ordering::Acquire) {
                return false;
            }
            wait(&mut looks);
        }
        true
    }
}

/// Between two looks of a thread that waits.
fn wait(looks: &mut u32) {
    if *looks < SPINS {
        std::hint::spin_loop();
    } else if *looks < SPINS + YIELDS {
        std::thread::yield_now();
    } else {
        std::thread::sleep(NAP);
    }
    *looks = looks.saturating_add(1);
}

fn number_of_thread() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

impl Filling {
    /// A place for a writer that is about to be given a range; waits for one. `None`: there is none, and none is to be
    /// waited for, since the log `has_stopped`.
    #[inline]
    pub fn enter(&self, has_stopped: impl Fn() -> bool) -> Option<Filler<'_>> {
        let first = number_of_thread();
        // A thread that finds no place waits for one that has the processor, or for the log's lock.
        let mut looks = SPINS;
        loop {
            for at in first..first + PLACES {
                let at = at % PLACES;
                let place = &self.places[at];
                // What was filled from here before comes before what will be. Only one that looks free is written to.
                if place.start.load(Ordering::Relaxed) == FREE
                    && place.start.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
                {
                    if self.used.load(Ordering::Relaxed) <= at {
                        self.used.fetch_max(at + 1, Ordering::SeqCst);
                    }
                    return Some(Filler { place, begun: Cell::new(false), whole: Cell::new(false) });
                }
            }
            if looks >= SPINS + YIELDS && has_stopped() {
                return None;
            }
            wait(&mut looks);
        }
    }

    /// Waits until nothing below `end` is being filled, of what was given before the caller held the log's lock last: a
    /// matter of microseconds. Whether all of it is whole.
    #[must_use]
    pub fn wait_below(&self, end: Position) -> bool {
        let is_below = |place: &Place| place.start.load(Ordering::Acquire) < end;
        let mut is_whole = true;
        for place in &self.places {
            is_whole &= place.wait_while(is_below);
        }
        if is_whole {
            self.whole.fetch_max(end, Ordering::Release);
        }
        is_whole
    }

    /// Waits until what stands at `at` is whole; whether it is, since its writer may have panicked. The caller has
    /// found that place where it is told only after its range was noted.
    #[inline]
    #[must_use]
    pub fn wait_at(&self, at: Position) -> bool {
        self.whole.load(Ordering::Acquire) > at || self.wait_at_each(at)
    }

    fn wait_at_each(&self, at: Position) -> bool {
        // One that ends and begins anew meanwhile may be waited for once more: its end is a later one.
        let holds_it =
            |place: &Place| place.start.load(Ordering::Acquire) <= at && at < place.end.load(Ordering::Relaxed);
        let used = self.used.load(Ordering::Relaxed).min(PLACES);
        self.places[..used].iter().all(|place| place.wait_while(holds_it))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const WRITERS: u64 = 8;
    const RANGES: u64 = 4_000;
    const RANGE: u64 = 16;

    /// Words that writers fill, and what stands under the lock: how far ranges were given, and the last one.
    struct Shared {
        filling: Filling,
        words: Vec<AtomicU64>,
        given: Mutex<u64>,
    }

    impl Shared {
        fn new(words: u64) -> Self {
            let words = (0..words).map(|_| AtomicU64::new(0)).collect();
            Self { filling: Filling::default(), words, given: Mutex::new(0) }
        }

        fn fill_one(&self) -> bool {
            let filler = self.filling.enter(|| false).unwrap();
            let start = {
                let mut given = self.given.lock().unwrap();
                if *given == self.words.len() as u64 {
                    return false;
                }
                let start = *given;
                *given += RANGE;
                filler.begin(start, *given);
                start
            };
            for at in start..start + RANGE {
                self.words[at as usize].store(at + 1, Ordering::Relaxed);
                if at % 5 == 0 {
                    std::thread::yield_now();
                }
            }
            filler.set_whole();
            true
        }

        fn is_filled(&self, mut range: std::ops::Range<u64>) -> bool {
            range.all(|at| self.words[at as usize].load(Ordering::Relaxed) == at + 1)
        }
    }

    #[test]
    fn what_is_waited_for_is_whole() {
        let (shared, all) = (Shared::new(WRITERS * RANGES * RANGE), WRITERS * RANGES * RANGE);
        std::thread::scope(|scope| {
            (0..WRITERS).for_each(|_| drop(scope.spawn(|| while shared.fill_one() {})));
            // One reader looks for the last range, which is mostly being filled; another cuts all that was given.
            scope.spawn(|| {
                let mut last = 0;
                while last < all {
                    last = *shared.given.lock().unwrap();
                    if last > 0 {
                        assert!(shared.filling.wait_at(last - 1));
                        assert!(shared.is_filled(last - RANGE..last), "the range that ends at {last}");
                    }
                }
            });
            let mut before = 0;
            while before < all {
                let end = *shared.given.lock().unwrap();
                assert!(shared.filling.wait_below(end));
                assert!(shared.is_filled(before..end), "what is below {end}");
                before = end;
            }
        });
        assert!(shared.is_filled(0..all));
    }

    #[test]
    fn what_is_filled_elsewhere_is_not_waited_for() {
        let filling = Filling::default();
        let enter = || filling.enter(|| false).unwrap();
        let (first, second) = (enter(), enter());
        first.begin(100, 200);
        second.begin(200, 300);
        // Below, and behind; of the end only that it is not within.
        [0, 99, 300, 1_000].into_iter().for_each(|at| assert!(filling.wait_at(at)));
        assert!(filling.wait_below(100));
        first.set_whole();
        drop(first);
        assert!(filling.wait_at(150) && filling.wait_below(200));
        let third = enter();
        // It has no range yet.
        assert!(filling.wait_at(150));
        second.set_whole();
        drop(second);
        assert!(filling.wait_below(1_000));
        third.begin(1_000, 1_100);
        assert!(filling.wait_at(999));
        third.set_whole();
        drop(third);
    }

    #[test]
    fn what_a_writer_gave_up_is_never_whole_and_not_waited_for() {
        let filling = Filling::default();
        let enter = || filling.enter(|| false).unwrap();
        let (first, second) = (enter(), enter());
        first.begin(100, 200);
        second.begin(200, 300);
        drop(first);
        second.set_whole();
        drop(second);
        assert!(filling.wait_at(99) && !filling.wait_at(100) && !filling.wait_at(199) && filling.wait_at(200));
        assert!(filling.wait_below(100) && !filling.wait_below(101) && !filling.wait_below(300));
        // Whatever comes after it does not hide it.
        let third = enter();
        third.begin(300, 400);
        third.set_whole();
        drop(third);
        assert!(!filling.wait_below(400) && !filling.wait_at(150) && filling.wait_at(350));
    }

    #[test]
    fn a_writer_without_a_place_ends_with_the_log() {
        let filling = Filling::default();
        for _ in 0..PLACES {
            filling.enter(|| false).unwrap().begin(0, 1);
        }
        assert!(filling.enter(|| true).is_none());
    }

    #[test]
    fn more_writers_than_places_take_turns() {
        let shared = Shared::new(PLACES as u64 * 2 * RANGE);
        let held: Vec<_> = (0..PLACES).map(|_| shared.filling.enter(|| false).unwrap()).collect();
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..PLACES * 2).map(|_| scope.spawn(|| shared.fill_one())).collect();
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert_eq!(*shared.given.lock().unwrap(), 0, "there is no place for any of them");
            drop(held);
            writers.into_iter().for_each(|writer| assert!(writer.join().unwrap()));
        });
        assert!(shared.is_filled(0..shared.words.len() as u64));
    }
}
