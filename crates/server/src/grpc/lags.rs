//! How far followers are behind their logs, and where the logs end, as far as this server has seen.
//!
//! follower → [`Lags::enter`] → [`Followed::at`] as it goes on · dropped: it is gone → [`figures`]
//!
//! Invariants:
//! 1. Nothing here reads: a log's end is one above the highest position that was written or met by this server.
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
    log: Log,
    position: Arc<AtomicU64>,
}

/// A follower's place; dropping it says that the follower is gone.
pub(crate) struct Followed {
    number: u64,
    position: Arc<AtomicU64>,
    followers: Arc<Mutex<HashMap<u64, Follower>>>,
}

impl Lags {
    /// A follower of `log` begins at `position`.
    pub(crate) fn enter(&self, log: &Log, position: u64) -> Followed {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let position = Arc::new(AtomicU64::new(position));
        let follower = Follower { log: log.clone(), position: Arc::clone(&position) };
        self.followers.lock().insert(number, follower);
        Followed { number, position, followers: Arc::clone(&self.followers) }
    }
}

impl Followed {
    /// All below `position` is on its way to the client.
    pub(crate) fn at(&self, position: u64) {
        self.position.store(position, Ordering::Relaxed);
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

/// The figures of the logs that are kept open, and of those that are followed.
pub(crate) fn figures(open: &[Log], lags: &Lags) -> Vec<Figure> {
    let mut told: HashMap<u64, Told> = HashMap::new();
    let mut tell = |log: &Log, position: Option<u64>| {
        let tail = log.seen_tail();
        let one = told.entry(log.id()).or_default();
        one.name = log.name().to_owned();
        one.tail = one.tail.max(tail);
        if let Some(position) = position {
            // It may have met what others wrote.
            one.tail = one.tail.max(position);
            one.followers += 1;
            one.lag = one.lag.max(tail.saturating_sub(position));
        }
    };
    open.iter().for_each(|log| tell(log, None));
    let followers: Vec<(Log, u64)> = {
        let followers = lags.followers.lock();
        let of = |one: &Follower| (one.log.clone(), one.position.load(Ordering::Relaxed));
        followers.values().map(of).collect()
    };
    followers.iter().for_each(|(log, position)| tell(log, Some(*position)));
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
        assert_eq!((others.followers, others.tail), (0, 9 * LOGS_SHOWN_MAX as u64));
    }
}
