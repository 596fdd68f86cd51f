//! Copies that are to be made for a server that is brought up, and when.
//!
//! wanted → due → made, offered → acknowledged; or wanted again, later each time
//!
//! Invariant: what is wanted comes to be due.

use std::time::Duration;

use crate::table::ServerId;

/// The first that comes to nothing is followed at once, beside the pause of [`Links::again`](crate::Links::again).
const PAUSE: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// A copy that was wanted last.
struct Last {
    to: ServerId,
    /// In this version of the table: what came to nothing in another is no sign.
    version: u64,
    /// It is of the state after this operation, once it is made.
    seq: Option<u64>,
    /// So many before it came to nothing, one after the other.
    failed: u32,
}

/// Copies that are to be made.
#[derive(Default)]
pub(crate) struct Making {
    /// For this server, and not before.
    wanted: Option<(ServerId, Duration)>,
    last: Option<Last>,
}

impl Making {
    /// One is wanted for this server, in this version of the table.
    pub(crate) fn want(&mut self, to: ServerId, version: u64, now: Duration) {
        let before = self.last.as_ref().filter(|last| (last.to, last.version) == (to, version));
        if before.is_some() && self.wanted.is_some() {
            return;
        }
        let failed = before.map_or(0, |last| last.failed + 1);
        self.last = Some(Last { to, version, seq: None, failed });
        let pause = match failed {
            0 | 1 => Duration::ZERO,
            _ => PAUSE_MAX.min(PAUSE * 2_u32.saturating_pow(failed - 2)),
        };
        self.wanted = Some((to, now + pause));
    }

    /// How long until the next is due; `None`: none is wanted.
    pub(crate) fn due(&self, now: Duration) -> Option<Duration> {
        self.wanted.map(|(_, at)| at.saturating_sub(now))
    }

    /// The server that one is to be made for now.
    pub(crate) fn begin(&mut self) -> Option<ServerId> {
        self.wanted.take().map(|(to, _)| to)
    }

    /// One was offered to this server, of the state after operation `seq`.
    pub(crate) fn offered(&mut self, to: ServerId, seq: u64) {
        if let Some(last) = self.last.as_mut().filter(|last| last.to == to) {
            last.seq = Some(seq);
        }
    }

    /// This server has acknowledged operations up to this one.
    pub(crate) fn acknowledged(&mut self, by: ServerId, acked: u64) {
        self.last.take_if(|last| last.to == by && last.seq.is_some_and(|seq| seq <= acked));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_to_nothing_is_tried_again_later_each_time() {
        let (server, now) = (ServerId(1), Duration::from_secs(100));
        let mut making = Making::default();
        assert_eq!((making.due(now), making.begin()), (None, None));
        for seconds in [0, 0, 2, 4, 8, 16, 32, 60, 60] {
            making.want(server, 1, now);
            making.want(server, 1, now);
            assert_eq!(making.due(now), Some(Duration::from_secs(seconds)));
            assert_eq!(making.due(now + PAUSE_MAX), Some(Duration::ZERO));
            assert_eq!((making.begin(), making.due(now)), (Some(server), None));
            making.offered(server, 7);
            making.acknowledged(server, 6);
            making.acknowledged(ServerId(2), 7);
        }
        // Another server is another matter, and so is one that came to its end.
        making.want(ServerId(2), 1, now);
        assert_eq!((making.due(now), making.begin()), (Some(Duration::ZERO), Some(ServerId(2))));
        for _ in 0..3 {
            making.want(server, 1, now);
            making.begin();
        }
        making.offered(server, 7);
        making.acknowledged(server, 7);
        making.want(server, 1, now);
        assert_eq!(making.due(now), Some(Duration::ZERO));
        for (version, seconds) in [(1, 0), (1, 0), (1, 2), (2, 0)] {
            making.want(server, version, now);
            assert_eq!(making.due(now), Some(Duration::from_secs(seconds)), "version {version}");
            making.begin();
        }
    }
}
