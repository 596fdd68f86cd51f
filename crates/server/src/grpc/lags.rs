//! How far followers are behind their logs, and where the logs end, as far as this server has seen.
//!
//! follower → [`Lags::enter`] → [`Followed::at`] as it goes on · dropped: it is gone → [`figures`]
//!
//! Invariants:
//! 1. Nothing here reads: a log's end is one above the highest position that was written or delivered by this server.
//! 2. At most [`LOGS_SHOWN_MAX`] logs are told of by name; followers of others, and they, are told of together.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_log::Log;
use parking_lot::Mutex;

use crate::http::{Figure, Value};

/// Most logs whose names are labels of figures.
const LOGS_SHOWN_MAX: usize = 256;
/// The name that stands for all others.
const OTHERS: &str = "(others)";

/// The followers of all logs.
#[derive(Default)]
pub(crate) struct Lags {
    next: AtomicU64,
    followers: Arc<Mutex<HashMap<u64, Follower>>>,
}

struct Follower {
    /// The name that it asked for.
    name: String,
    log: Log,
    at: Arc<At>,
}

/// How far a follower is.
#[derive(Default)]
struct At {
    position: AtomicU64,
    /// One above the last position that was delivered to it.
    met: AtomicU64,
}

/// A follower's place; dropping it says that the follower is gone.
pub(crate) struct Followed {
    number: u64,
    at: Arc<At>,
    followers: Arc<Mutex<HashMap<u64, Follower>>>,
}

impl Lags {
    /// A follower of `log`, which the client called by this name, begins at `position`.
    pub(crate) fn enter(&self, name: &str, log: &Log, position: u64) -> Followed {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let at = Arc::new(At { position: AtomicU64::new(position), met: AtomicU64::new(0) });
        let follower = Follower { name: name.to_owned(), log: log.clone(), at: Arc::clone(&at) };
        self.followers.lock().insert(number, follower);
        Followed { number, at, followers: Arc::clone(&self.followers) }
    }
}

impl Followed {
    /// All below `position` is on its way to the client: that much there is.
    pub(crate) fn delivered(&self, position: u64) {
        self.at.position.store(position, Ordering::Relaxed);
        self.at.met.store(position, Ordering::Relaxed);
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        // What it holds is dropped outside the lock.
        let gone = self.followers.lock().remove(&self.number);
        drop(gone);
    }
}

/// What is told of a log.
#[derive(Clone, Debug, Default, PartialEq)]
struct Told {
    name: String,
    tail: u64,
    followers: u64,
    lag: u64,
}

/// The figures of the logs that are kept open, by the names that they are called by, and of those that are followed.
pub(crate) fn figures(open: &[(String, Log)], lags: &Lags) -> Vec<Figure> {
    // By name: two logs may have had one, one after the other.
    let mut told: HashMap<String, Told> = HashMap::new();
    for (name, log) in open {
        let one = told.entry(name.clone()).or_default();
        one.tail = one.tail.max(log.seen_tail());
    }
    let followers: Vec<(String, Log, u64, u64)> = {
        let of = |one: &Follower| {
            let (position, met) = (one.at.position.load(Ordering::Relaxed), one.at.met.load(Ordering::Relaxed));
            (one.name.clone(), one.log.clone(), position, met)
        };
        lags.followers.lock().values().map(of).collect()
    };
    for (name, log, position, met) in followers {
        let one = told.entry(name).or_default();
        let tail = log.seen_tail().max(met);
        one.tail = one.tail.max(tail);
        one.followers += 1;
        one.lag = one.lag.max(tail.saturating_sub(position));
    }
    for (name, one) in &mut told {
        one.name.clone_from(name);
    }
    let told = bounded(told.into_values().collect());
    let figures = |name: &str, help: &str, value: fn(&Told) -> u64| -> Vec<Figure> {
        let figure = |one: &Told| {
            let value = Value::Gauge(value(one) as f64);
            Figure::new(name.to_owned(), help.to_owned(), value).labelled("log", one.name.clone())
        };
        told.iter().map(figure).collect()
    };
    let mut all = figures("esker_log_tail", "Where the log ends, as far as this server has seen", |one| one.tail);
    all.extend(figures("esker_log_followers", "Followers that this server serves", |one| one.followers));
    let lag = "Positions that the slowest follower which this server serves is behind";
    all.extend(figures("esker_log_follower_lag", lag, |one| one.lag));
    all
}

/// Those that may have names, sorted by them; of the others, those that are followed or longest first, one for all.
fn bounded(mut told: Vec<Told>) -> Vec<Told> {
    if told.len() > LOGS_SHOWN_MAX {
        told.sort_unstable_by(|a, b| (b.followers, b.tail, &b.name).cmp(&(a.followers, a.tail, &a.name)));
        let others = told.split_off(LOGS_SHOWN_MAX - 1).into_iter().fold(Told::default(), |all, one| Told {
            name: OTHERS.into(),
            tail: all.tail.max(one.tail),
            followers: all.followers + one.followers,
            lag: all.lag.max(one.lag),
        });
        told.push(others);
    }
    told.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_and_what_is_followed_keeps_its_own() {
        let one = |n: u64| Told { name: format!("{n:05}"), tail: n, followers: u64::from(n == 3), lag: n };
        let few: Vec<Told> = (0..LOGS_SHOWN_MAX as u64).map(one).collect();
        assert_eq!(bounded(few.iter().rev().cloned().collect()), few);
        let shown = bounded((0..10 * LOGS_SHOWN_MAX as u64).map(one).collect());
        assert_eq!(shown.len(), LOGS_SHOWN_MAX);
        assert!(shown.contains(&one(3)));
        let others = shown.iter().find(|told| told.name == OTHERS).unwrap();
        // Beside the one that is followed there is room for all but two of the longest.
        assert_eq!((others.followers, others.tail), (0, 9 * LOGS_SHOWN_MAX as u64 + 1));
    }
}
