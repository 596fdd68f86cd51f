//! When the log is synced: the commit policies and their text form.
//!
//! Source: Apollo Storage, Group Commit Log (2017); Cassandra's `commitlog_sync` settings of the same names.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// When the commit thread syncs. May be changed while the engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CommitPolicy {
    /// As [`CommitPolicy::Batch`], but a sync is put off for the writers that the last one woke, where their measured
    /// return time says that a larger group is worth it; never for longer than a sync takes. The default.
    #[default]
    Adaptive,
    /// Sync as soon as the last sync is done, if a caller waits.
    Batch,
    /// Sync at this interval, and acknowledge when applied: a power cut takes back up to the interval, but for what
    /// is to be durable [always](esker_store::Durability::Always).
    Periodic {
        /// Time between syncs, 1 ms to 1 h.
        interval: Duration,
    },
    /// After the first waiter, wait so long for others before the sync.
    Group {
        /// The wait, 1 µs to 1 s.
        window: Duration,
    },
}

/// A policy's text is not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    found: String,
    why: &'static str,
}

impl std::fmt::Display for PolicyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { found, why } = self;
        write!(
            f,
            "commit policy {found:?}: expected adaptive, batch, periodic:INTERVAL or group:WINDOW, with a time such as 500us, 10ms or 1s ({why})"
        )
    }
}

impl std::error::Error for PolicyError {}

impl CommitPolicy {
    /// Whether a transaction that is to be durable, and not always so, is acknowledged before it is.
    pub fn acknowledges_applied(&self) -> bool {
        matches!(self, Self::Periodic { .. })
    }

    /// Whether a caller that waits alone has the sync sent at once.
    pub fn syncs_at_once(&self) -> bool {
        matches!(self, Self::Adaptive | Self::Batch)
    }
}

impl fmt::Display for CommitPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Adaptive => f.write_str("adaptive"),
            Self::Batch => f.write_str("batch"),
            Self::Periodic { interval } => write!(f, "periodic:{}", Time(*interval)),
            Self::Group { window } => write!(f, "group:{}", Time(*window)),
        }
    }
}

struct Time(Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        if micros.is_multiple_of(1_000_000) {
            write!(f, "{}s", micros / 1_000_000)
        } else if micros.is_multiple_of(1_000) {
            write!(f, "{}ms", micros / 1_000)
        } else {
            write!(f, "{micros}us")
        }
    }
}

fn time(text: &str) -> Option<Duration> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let number: u64 = text[..digits].parse().ok()?;
    match &text[digits..] {
        "us" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => number.checked_mul(1).filter(|n| *n <= 86_400).map(Duration::from_secs),
        _ => None,
    }
}

impl FromStr for CommitPolicy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let error = |why| PolicyError { found: text.into(), why };
        let (name, value) = text.split_once(':').unwrap_or((text, ""));
        let ranged = |min: Duration, max: Duration, why| {
            time(value).filter(|time| (min..=max).contains(time)).ok_or_else(|| error(why))
        };
        match name {
            "adaptive" if value.is_empty() => Ok(Self::Adaptive),
            "batch" if value.is_empty() => Ok(Self::Batch),
            "periodic" => Ok(Self::Periodic {
                interval: ranged(Duration::from_millis(1), Duration::from_secs(3600), "the interval is 1ms to 3600s")?,
            }),
            "group" => Ok(Self::Group {
                window: ranged(Duration::from_micros(1), Duration::from_secs(1), "the window is 1us to 1s")?,
            }),
            _ => Err(error("no such policy")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_survive_the_round_trip_through_text() {
        for text in ["adaptive", "batch", "periodic:10s", "periodic:250ms", "group:2ms", "group:150us"] {
            assert_eq!(text.parse::<CommitPolicy>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "adaptive:1s",
            "batch:1s",
            "group",
            "group:0us",
            "group:2s",
            "periodic:1",
            "periodic:99999999999999999999s",
        ] {
            assert!(text.parse::<CommitPolicy>().is_err(), "{text}");
        }
    }
}
