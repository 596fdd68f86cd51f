//! Gathering: whether a sync is worth putting off until the writers that the last one woke have come back.
//!
//! Writers that come back faster than a sync takes would otherwise split into two crowds that take turns: while one
//! is synced the other queues, and each waits for two syncs. Merged, they share every sync.
//!
//! Let `F(w)` be the part of those answered by a sync that is back after the time `w`, and `S(w)` what the next sync
//! takes if it is put off by `w`. Then syncs follow each other every `w + S(w)`; a writer that is back in time waits
//! for one such round, the others for two. So a put takes `(w + S(w)) (2 - F(w))` from one answer to the next, and the
//! `w` for which that is least is waited. `F` and `S` are learned for a few `w`, each from the waits that it was tried
//! in. What has not been tried is taken to be good, shorter waits first, and is tried again after a while.
//!
//! `S(w)` is `S(0)` on most devices. On one that grants so many operations a second, as rented ones do, a sync takes as
//! much less as it is put off: there waiting is free.
//!
//! All that takes the processors to be free. Where a sync takes no longer than the writers need to wake and to prepare
//! their next put, those who are back first would better have done that while the others were synced, and waiting
//! loses. So what waiting really gains is measured: every so often it is left out for a few syncs, or tried again, and
//! what is kept is that by which a put waits the shorter time in the mean. That time is the integral of the number of
//! those who wait, by the number answered; how many they are is known when a sync ends, when a group is cut and when
//! the next sync ends.
//!
//! Invariants:
//! 1. One writer alone is never waited for; a wait never exceeds what a sync takes that is not put off.
//! 2. Those who do not come back in time are waited for less and less.
//!
//! Tried and rejected: waiting until all are back, for as long as that took before: a crowd has its stragglers, and of
//! writers who work in bursts a part never comes back soon.

use std::time::{Duration, Instant};

/// Weight of a new sample, as a divisor; the first few weigh more.
const SMOOTHING: f64 = 8.0;
/// The waits that are weighed, in parts of a sync.
const WAITS: [f64; 10] = [0.015_625, 0.031_25, 0.062_5, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875];
/// A wait has to promise at least this: what it is expected to come to, as a part of what not waiting comes to.
const WORTH: f64 = 0.97;
/// With each sync, what is thought of a wait gets better by so much of what it lacks, times the part of a round that it
/// could save: so that waiting is tried again now and then, and least where there is little to gain.
const FORGETTING: f64 = 1.0 / 128.0;
/// A queue of so many times those who were answered is not made to wait for them for the sake of later syncs.
const QUEUE_MAX: u64 = 4;
/// A sync that begins within this part of a sync after the last one was not put off.
const AT_ONCE: f64 = 1.0 / 16.0;
/// Where waits seem to make syncs shorter than this part, ...
const SHORTER: f64 = 0.9;
/// ... every so many syncs one is not put off, to see what that takes now.
const PROBE: u32 = 64;

/// Syncs until a trial, when nothing is known, ...
const TRIAL_EVERY_MIN: u32 = 64;
/// ... and when many trials have said the same.
const TRIAL_EVERY_MAX: u32 = 1_024;
/// Syncs of a trial that do not count: the crowds have to split first, or to merge, ...
const TRIAL_SETTLES: u32 = 3;
/// ... and those that count, ...
const TRIAL_SYNCS: u32 = 12;
/// ... unless so many of them have shown ...
const TRIAL_SYNCS_MIN: u32 = 4;
/// ... that what is tried is at most so many times as fast as the other.
const TRIAL_LOST: f64 = 0.85;
/// What is tried has to be so many times as fast to be kept.
const TRIAL_WON: f64 = 1.03;
/// Weight of a sync in what is known of what is done between trials, as a divisor.
const USUAL_SYNCS: f64 = 32.0;
/// Trials come often again when the writers are so many times as many, or as few, as at the last.
const CROWD_CHANGED: f64 = 1.5;
/// A sync that took more than so many times the usual counts as this: one that hung says nothing of waiting.
const HUNG: f64 = 3.0;
/// No group is put off for longer, whatever syncs are thought to take.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// What came of some syncs.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    puts: f64,
    /// Seconds that all puts waited together.
    waited: f64,
}

impl Tally {
    fn add(&mut self, one: Tally, keep: f64) {
        self.puts = self.puts * keep + one.puts;
        self.waited = self.waited * keep + one.waited;
    }

    /// Puts in each second that one waited.
    fn speed(&self) -> f64 {
        self.puts / self.waited.max(f64::MIN_POSITIVE)
    }
}

/// Whether waiting pays, by trial.
#[derive(Debug)]
struct Trial {
    /// What is done between trials.
    waits: bool,
    usual: Tally,
    other: Tally,
    /// Syncs of the trial that goes on.
    tried: Option<u32>,
    /// Syncs since the last trial, and how many there are between two.
    since: u32,
    every: u32,
    /// Writers, smoothed; and at the last trial.
    crowd: f64,
    crowd_tried: f64,
}

impl Default for Trial {
    fn default() -> Self {
        let none = Tally::default();
        let every = TRIAL_EVERY_MIN;
        Self { waits: true, usual: none, other: none, tried: None, since: 0, every, crowd: 0.0, crowd_tried: 0.0 }
    }
}

impl Trial {
    /// Whether waits are made now.
    fn waits(&self) -> bool {
        self.waits != self.tried.is_some()
    }

    /// Takes in a sync, with so many writers.
    fn count(&mut self, sync: Tally, crowd: f64) {
        self.crowd = if self.crowd == 0.0 { crowd } else { self.crowd + (crowd - self.crowd) / SMOOTHING };
        let Some(tried) = &mut self.tried else {
            self.usual.add(sync, 1.0 - 1.0 / USUAL_SYNCS);
            self.since += 1;
            let change = self.crowd / self.crowd_tried.max(f64::MIN_POSITIVE);
            if !(1.0 / CROWD_CHANGED..CROWD_CHANGED).contains(&change) {
                self.every = TRIAL_EVERY_MIN;
            }
            if self.since >= self.every {
                (self.since, self.crowd_tried, self.other, self.tried) = (0, self.crowd, Tally::default(), Some(0));
            }
            return;
        };
        *tried += 1;
        let counted = tried.saturating_sub(TRIAL_SETTLES);
        if counted == 0 {
            return;
        }
        self.other.add(sync, 1.0);
        let gain = self.other.speed() / self.usual.speed();
        if counted < TRIAL_SYNCS && (counted < TRIAL_SYNCS_MIN || gain >= TRIAL_LOST) {
            return;
        }
        self.tried = None;
        if gain >= TRIAL_WON {
            (self.waits, self.usual, self.every) = (!self.waits, self.other, TRIAL_EVERY_MIN);
        } else {
            // The more clearly it lost, the longer it is not tried again.
            let longer = if gain < TRIAL_LOST { 8 } else { 3 };
            self.every = (self.every * longer).min(TRIAL_EVERY_MAX);
        }
    }
}

/// A wait and what came of it.
#[derive(Clone, Copy, Debug)]
struct Tried {
    /// Part of the answered that was back in time.
    back: f64,
    /// How long it took, in syncs: less when all were back sooner, more when the thread woke late.
    took: f64,
    /// How long the sync took that followed, in syncs that are not put off.
    sync: f64,
    /// How often it was tried.
    times: f64,
}

impl Tried {
    /// What a put takes from one answer to the next, in syncs; without waiting it is 2.
    fn rounds(&self) -> f64 {
        (self.took + self.sync) * (2.0 - self.back)
    }
}

/// A wait that is going on, or whose outcome is not known yet.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// Index into [`WAITS`].
    choice: usize,
    /// When it began.
    since: Instant,
    /// Arrivals when it began.
    arrivals: u64,
    /// Those who were answered.
    answered: u64,
    /// Whether enough were back before it was over; `None` while it goes on.
    in_time: Option<bool>,
}

/// What is known of syncs and of the writers' return.
#[derive(Debug)]
pub struct Gather {
    /// Seconds that a sync takes that is not put off.
    sync: f64,
    tried: [Tried; WAITS.len()],
    arrivals_before: u64,
    ended: Option<Instant>,
    waiting: Option<Waiting>,
    unprobed: u32,
    trial: Trial,
    /// Those who queued when the last sync ended.
    queued: u64,
}

impl Default for Gather {
    fn default() -> Self {
        let tried = WAITS.map(|took| Tried { back: 1.0, took, sync: 1.0 - took, times: 0.0 });
        Self {
            sync: 0.0,
            tried,
            arrivals_before: 0,
            ended: None,
            waiting: None,
            unprobed: 0,
            trial: Trial::default(),
            queued: 0,
        }
    }
}

impl Gather {
    /// After a sync that took `sync_time`: the number of arrivals to wait for, 0 for none. `at_cut` and `now` are the
    /// arrivals when its group was cut and now, `at` the time.
    pub fn after_sync(&mut self, at_cut: u64, now: u64, sync_time: Duration, at: Instant) -> u64 {
        let began = at.checked_sub(sync_time).unwrap_or(at);
        let put_off = self.ended.map_or(Duration::ZERO, |ended| began.saturating_duration_since(ended));
        self.ended = Some(at);
        self.time(sync_time.as_secs_f64(), put_off.as_secs_f64());
        // A wait that was broken off, as by a change of policy, tells nothing.
        let waiting = self.waiting.take().filter(|waiting| waiting.in_time.is_some());
        if let Some(waiting) = &waiting {
            self.learn(waiting, at_cut, put_off.as_secs_f64(), sync_time.as_secs_f64());
        }
        let (answered, queueing) = (at_cut.saturating_sub(self.arrivals_before), now.saturating_sub(at_cut));
        self.arrivals_before = at_cut;
        self.forget();
        let queued = std::mem::replace(&mut self.queued, queueing);
        if answered == 0 || answered + queueing < 2 {
            return 0;
        }
        // No writer waits while the log is idle; the first that comes ends that.
        let idle = waiting.is_none() && queued == 0;
        let gap = if idle { 0.0 } else { put_off.as_secs_f64().min(self.sync * HUNG) };
        let took = sync_time.as_secs_f64().min(self.sync * HUNG);
        let (puts, queued, queueing_after) = (answered as f64, queued as f64, queueing as f64);
        let waited = gap * (queued + puts) / 2.0 + took * (puts + queueing_after / 2.0);
        self.trial.count(Tally { puts, waited }, puts + queueing_after);
        if !self.trial.waits() {
            return 0;
        }
        let Some(choice) = self.choose() else { return 0 };
        let Tried { back, took, sync, .. } = self.tried[choice];
        if sync < SHORTER {
            self.unprobed += 1;
            if self.unprobed.is_multiple_of(PROBE) {
                return 0;
            }
        }
        // Those who queue already pay for the wait at once, and share the gain from the next sync on.
        let gain = answered as f64 * back * (1.0 - took);
        if gain <= queueing as f64 * (took + sync - 1.0) && queueing > QUEUE_MAX * answered {
            return 0;
        }
        self.waiting = Some(Waiting { choice, since: at, arrivals: now, answered, in_time: None });
        // More than this by chance is rare: the rest will not be back in time either.
        let expected = answered as f64 * back + 2.0 * (answered as f64 * back * (1.0 - back)).sqrt();
        now + (expected.ceil() as u64).clamp(1, answered)
    }

    /// Takes in the time of a sync that began so long after the last.
    fn time(&mut self, sync: f64, put_off: f64) {
        if self.sync == 0.0 {
            self.sync = sync.min(WAIT_MAX.as_secs_f64());
            return;
        }
        let sync = sync.min(self.sync * HUNG);
        let as_long_as_ever = match self.waiting {
            // The wait may have made it shorter, but not longer.
            Some(waiting) => sync > self.sync || self.tried[waiting.choice].sync >= SHORTER,
            // So may an idle time.
            None => sync > self.sync || put_off <= self.sync * AT_ONCE,
        };
        if as_long_as_ever {
            self.sync += (sync - self.sync) / SMOOTHING;
        }
    }

    /// Takes in what came of a wait: `arrivals` when the next group was cut, after `took`, and the time of its sync.
    fn learn(&mut self, waiting: &Waiting, arrivals: u64, took: f64, sync: f64) {
        let back = (arrivals.saturating_sub(waiting.arrivals) as f64 / waiting.answered as f64).min(1.0);
        let took = (took / self.sync).min(2.0);
        let in_time = waiting.in_time == Some(true);
        let toward = |from: f64, to: f64, times: f64| from + (to - from) / (times + 2.0).min(SMOOTHING);
        for (index, tried) in self.tried.iter_mut().enumerate() {
            // Later than that more were back, and sooner fewer; at that time so many.
            let more = tried.back < back && (took <= WAITS[index] || index >= waiting.choice);
            let fewer = tried.back > back && (index < waiting.choice || (index == waiting.choice && !in_time));
            if more || fewer {
                tried.back = toward(tried.back, back, tried.times);
            }
        }
        let tried = &mut self.tried[waiting.choice];
        tried.took = toward(tried.took, took, tried.times);
        // A wait shortens the sync by itself at most.
        let shortest = (1.0 - took).clamp(0.0, 1.0).max(1.0 / 64.0);
        tried.sync = toward(tried.sync, (sync / self.sync).clamp(shortest, 1.0), tried.times);
        tried.times += 1.0;
    }

    fn forget(&mut self) {
        let best = self.choose().map_or(2.0, |choice| self.tried[choice].rounds());
        for tried in &mut self.tried {
            let saves = (1.0 - (tried.took + tried.sync) / best).max(0.0);
            tried.back += (1.0 - tried.back) * FORGETTING * saves;
        }
    }

    /// The wait that promises most, if any is worth it.
    fn choose(&self) -> Option<usize> {
        let best = self.tried.iter().enumerate().min_by(|a, b| a.1.rounds().total_cmp(&b.1.rounds()));
        best.filter(|(_, tried)| tried.rounds() < 2.0 * WORTH).map(|(choice, _)| choice)
    }

    /// Another thread has synced for all who had come when it cut: the next sync does not answer them, and a wait for
    /// them to come back is broken off. Otherwise as [`Gather::after_sync`].
    pub fn passed(&mut self, at_cut: u64, now: u64, at: Instant) {
        (self.arrivals_before, self.ended, self.waiting) = (at_cut, Some(at), None);
        self.queued = now.saturating_sub(at_cut);
    }

    /// How much longer to wait at the time `at`; zero when all are back or the time is over.
    pub fn left(&mut self, all_back: bool, at: Instant) -> Duration {
        let Some(waiting) = &mut self.waiting else { return Duration::ZERO };
        if waiting.in_time.is_some() {
            return Duration::ZERO;
        }
        let wait = (WAITS[waiting.choice] * self.sync).min(WAIT_MAX.as_secs_f64());
        let waited = at.saturating_duration_since(waiting.since).as_secs_f64();
        if !all_back && waited < wait {
            return Duration::from_secs_f64(wait - waited);
        }
        waiting.in_time = Some(all_back);
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYNC: Duration = Duration::from_millis(5);
    const MS: Duration = Duration::from_millis(1);

    /// The commit thread, and writers, each of which is back so long after its answer.
    struct Log {
        gather: Gather,
        at: Instant,
        /// How long each takes to come back, and when it is back.
        writers: Vec<(Duration, Instant)>,
        served: u64,
        /// Syncs begin no sooner than [`SYNC`] after each other, and take 1 ms.
        limited: bool,
        began: Instant,
        waited: Duration,
        waits: u32,
        in_vain: u32,
    }

    impl Log {
        fn new(returns: impl IntoIterator<Item = Duration>) -> Self {
            let at = Instant::now();
            let mut log = Self {
                gather: Gather::default(),
                at,
                writers: Vec::new(),
                served: 0,
                limited: false,
                began: at,
                waited: Duration::ZERO,
                waits: 0,
                in_vain: 0,
            };
            log.set(returns);
            log
        }

        fn set(&mut self, returns: impl IntoIterator<Item = Duration>) {
            self.writers = returns.into_iter().map(|back| (back, self.at)).collect();
        }

        fn arrivals(&self) -> u64 {
            self.served + self.writers.iter().filter(|(_, due)| *due <= self.at).count() as u64
        }

        /// The mean wait of so many syncs.
        fn run(&mut self, syncs: u32) -> Duration {
            (self.waited, self.waits, self.in_vain) = (Duration::ZERO, 0, 0);
            for _ in 0..syncs {
                self.sync();
            }
            self.waited / syncs
        }

        fn sync(&mut self) {
            let first = self.writers.iter().map(|(_, due)| *due).min().expect("there are writers");
            self.at = self.at.max(first);
            let (cut, at_cut) = (self.at, self.arrivals());
            self.began = if self.limited { cut.max(self.began + SYNC) } else { cut };
            self.at = self.began + if self.limited { MS } else { SYNC };
            let (now, end) = (self.arrivals(), self.at);
            self.served = at_cut;
            for (back, due) in self.writers.iter_mut().filter(|(_, due)| *due <= cut) {
                *due = end + *back;
            }
            let to = self.gather.after_sync(at_cut, now, end - cut, end);
            if to == 0 {
                return;
            }
            loop {
                let left = self.gather.left(self.arrivals() >= to, self.at);
                if left.is_zero() {
                    break;
                }
                assert!(left <= SYNC, "{left:?} is longer than a sync");
                self.at += left.min(SYNC / 500);
            }
            self.waits += 1;
            self.in_vain += u32::from(self.arrivals() == now);
            self.waited += self.at - end;
        }
    }

    #[test]
    fn a_crowd_that_comes_back_is_waited_for_and_one_that_does_not_is_not() {
        let mut log = Log::new((0..16).map(|writer| MS + MS * writer / 100));
        log.run(100);
        let wait = log.run(100);
        assert!((MS..MS * 13 / 10).contains(&wait), "they come back after 1 ms and a little: {wait:?}");
        // From now on no writer comes back in time.
        log.set((0..16).map(|writer| SYNC * 20 + MS * writer));
        log.run(100);
        assert!(log.in_vain < 50, "{} waits in vain of 100", log.in_vain);
        let wait = log.run(200);
        assert!(wait < SYNC / 10, "{wait:?}");
    }

    #[test]
    fn stragglers_are_not_waited_for() {
        // Writers in bursts: three of four are back at once, the others think.
        let mut log = Log::new((0..64).map(|writer| if writer % 4 > 0 { MS / 50 } else { SYNC * 30 + MS * writer }));
        log.run(200);
        let wait = log.run(200);
        assert!(log.waits > 100 && wait < SYNC / 20, "{} waits, {wait:?}", log.waits);
    }

    #[test]
    fn a_device_of_so_many_operations_a_second_is_waited_for_since_that_is_free() {
        // They come back at any time, which on another device is not worth a wait.
        let returns = || (0..64).map(|writer| MS * 7 / 10 * writer);
        let mut log = Log { limited: true, ..Log::new(returns()) };
        log.run(200);
        let wait = log.run(200);
        assert!(wait > SYNC / 2, "{wait:?}");
        let mut log = Log::new(returns());
        log.run(200);
        let wait = log.run(200);
        assert!(wait < SYNC / 10, "{wait:?}");
    }

    #[test]
    fn where_waiting_gains_nothing_it_is_given_up_and_where_it_does_it_is_taken_up_again() {
        // So many writers, each of which waits for so long, whether they are waited for or not.
        fn run(trial: &mut Trial, syncs: u32, with: f64, without: f64) -> u32 {
            let mut waits = 0;
            for _ in 0..syncs {
                let each = if trial.waits() { with } else { without };
                waits += u32::from(trial.waits());
                trial.count(Tally { puts: 16.0, waited: 16.0 * each }, 16.0);
            }
            waits
        }
        let mut trial = Trial::default();
        let waits = run(&mut trial, 1_000, 1.0, 1.5);
        assert!(waits > 970, "{waits} waits of 1000 where they gain a third");
        run(&mut trial, TRIAL_EVERY_MAX, 1.0, 0.9);
        let waits = run(&mut trial, 1_000, 1.0, 0.9);
        assert!(waits < 100, "{waits} waits of 1000 where they lose a tenth");
        run(&mut trial, TRIAL_EVERY_MAX, 1.0, 1.5);
        let waits = run(&mut trial, 1_000, 1.0, 1.5);
        assert!(waits > 970, "{waits} waits of 1000 where they gain a third again");
    }

    #[test]
    fn one_writer_is_not_waited_for() {
        let mut gather = Gather::default();
        assert_eq!(gather.after_sync(1, 1, SYNC, Instant::now()), 0);
        assert_eq!(gather.after_sync(2, 2, SYNC, Instant::now()), 0);
    }

    #[test]
    fn two_writers_who_take_turns_are_brought_together() {
        let mut gather = Gather::default();
        assert_eq!(gather.after_sync(1, 2, SYNC, Instant::now()), 3, "the one who queues waits for the other");
    }

    #[test]
    fn a_long_queue_is_not_made_to_wait_for_a_wait_that_is_not_free() {
        let mut gather = Gather::default();
        for tried in &mut gather.tried {
            tried.sync = 1.0;
        }
        assert_eq!(gather.after_sync(2, 200, SYNC, Instant::now()), 0);
    }

    #[test]
    fn those_whom_others_answered_are_not_waited_for() {
        let (mut gather, mut at) = (Gather::default(), Instant::now());
        let mut arrivals = 0;
        for _ in 0..1_000 {
            (arrivals, at) = (arrivals + 1, at + MS);
            gather.passed(arrivals, arrivals, at);
        }
        assert_eq!(gather.after_sync(arrivals + 1, arrivals + 1, MS, at + MS), 0, "one writer came");
    }

    #[test]
    fn a_sync_that_hung_does_not_have_later_ones_put_off_for_long() {
        let (mut gather, mut at) = (Gather::default(), Instant::now());
        let mut arrivals = 0;
        for sync in [MS; 20].into_iter().chain([8_000 * MS]) {
            (arrivals, at) = (arrivals + 8, at + sync);
            gather.after_sync(arrivals, arrivals + 8, sync, at);
            // All but one are back at once.
            gather.left(false, at + sync);
        }
        let to = gather.after_sync(arrivals + 8, arrivals + 8, MS, at + MS);
        assert!(to == 0 || gather.left(false, at + MS) <= 5 * MS, "{:?}", gather.left(false, at + MS));
        let mut first = Gather::default();
        let to = first.after_sync(8, 8, 8_000 * MS, at);
        assert!(to == 0 || first.left(false, at) <= WAIT_MAX, "{:?}", first.left(false, at));
    }
}
