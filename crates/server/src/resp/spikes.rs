//! Commands that took `latency-monitor-threshold` or longer, by second, as LATENCY LATEST and HISTORY show them.
//!
//! executor → [`Spikes::add`] → the samples of an [`EVENTS`] name → LATENCY
//!
//! Invariant: of each event at most [`SAMPLES_MAX`] samples are kept, one for each second: the worst.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// Kinds of events, by the names of Redis: commands, and those that take about constant time.
pub(crate) const EVENTS: [&str; 2] = ["command", "fast-command"];
/// Samples of an event that are kept, as in Redis.
const SAMPLES_MAX: usize = 160;

/// The samples of an event.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpikeHistory {
    /// Unix second and milliseconds, oldest first.
    pub(crate) samples: VecDeque<(u64, u64)>,
    /// The worst since the last reset.
    pub(crate) max_ms: u64,
}

/// What took too long.
#[derive(Default)]
pub(crate) struct Spikes {
    /// Milliseconds from which on a command is a spike; 0 if none is.
    threshold_ms: AtomicU64,
    events: Mutex<[SpikeHistory; EVENTS.len()]>,
}

impl Spikes {
    /// `latency-monitor-threshold`, in milliseconds; 0 is off.
    pub(crate) fn threshold_ms(&self) -> u64 {
        self.threshold_ms.load(Ordering::Relaxed)
    }

    pub(crate) fn set_threshold_ms(&self, threshold_ms: u64) {
        self.threshold_ms.store(threshold_ms, Ordering::Relaxed);
    }

    /// What takes fewer nanoseconds is not too long; `u64::MAX`: nothing is.
    pub(crate) fn long_from_ns(&self) -> u64 {
        match self.threshold_ms() {
            0 => u64::MAX,
            ms => ms.saturating_mul(1_000_000),
        }
    }

    /// Notes a command that took so long at this second, if that is too long.
    pub(crate) fn add(&self, fast: bool, took: Duration, now_s: impl FnOnce() -> u64) {
        let threshold_ms = self.threshold_ms();
        if threshold_ms == 0 || took.as_millis() < u128::from(threshold_ms) {
            return;
        }
        let (now_s, ms) = (now_s(), took.as_millis() as u64);
        let history = &mut self.events.lock()[usize::from(fast)];
        history.max_ms = history.max_ms.max(ms);
        match history.samples.back_mut() {
            Some((second, worst)) if *second == now_s => *worst = ms.max(*worst),
            _ => {
                history.samples.push_back((now_s, ms));
                if history.samples.len() > SAMPLES_MAX {
                    history.samples.pop_front();
                }
            }
        }
    }

    /// The events that have samples, with their names.
    pub(crate) fn all(&self) -> Vec<(&'static str, SpikeHistory)> {
        let events = self.events.lock().clone();
        EVENTS.into_iter().zip(events).filter(|(_, history)| !history.samples.is_empty()).collect()
    }

    /// Forgets the events that `wanted` names; how many there were.
    pub(crate) fn reset(&self, wanted: impl Fn(&str) -> bool) -> usize {
        let mut events = self.events.lock();
        let named = EVENTS.into_iter().zip(events.iter_mut());
        let mut reset = 0;
        for (_, history) in named.filter(|(name, history)| wanted(name) && !history.samples.is_empty()) {
            *history = SpikeHistory::default();
            reset += 1;
        }
        reset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_of_each_second_is_kept_and_no_more_than_so_many() {
        let spikes = Spikes::default();
        let ms = Duration::from_millis;
        spikes.add(false, ms(50), || panic!("it is off"));
        spikes.set_threshold_ms(10);
        spikes.add(false, Duration::from_micros(9_999), || panic!("it is no spike"));
        spikes.add(true, ms(10), || 7);
        spikes.add(true, ms(30), || 7);
        spikes.add(true, ms(20), || 7);
        spikes.add(true, ms(11), || 8);
        let (name, history) = spikes.all().remove(0);
        assert_eq!((name, history.samples, history.max_ms), ("fast-command", [(7, 30), (8, 11)].into(), 30));
        for second in 0..1_000 {
            spikes.add(false, ms(12), || second);
        }
        assert_eq!(spikes.all()[0].1.samples.len(), SAMPLES_MAX);
        assert_eq!(spikes.reset(|name| name == "command"), 1);
        assert_eq!((spikes.all().len(), spikes.reset(|_| true), spikes.reset(|_| true)), (1, 1, 0));
    }
}
