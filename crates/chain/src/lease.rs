//! Leases: until when a server may answer, and from when on a manager counts on it that the server does not.
//!
//! server: renewal sent → the coordinator has it → answers for half a period from when it was sent, by its clock
//! manager: a renewal is seen → no other for a whole period, by its own clock → the lease has run out
//!
//! A renewal is a write that the coordinator takes only while the table has the version that the server goes by, and a
//! table without a server is taken only while the renewal is the last that the manager has seen. So the two clocks need
//! not agree, and only their rates count: the one may run up to 0.8 and the other up to 1.25 times as fast as it should
//! (half a period at 0.8 lasts 0.625 of one, a whole one at 1.25 lasts 0.8).
//!
//! Invariant: a lease that a manager holds for run out has run out.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::table::{Incarnation, ServerId};

/// What a server may do, until when. Times are those of its own steady clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lease {
    version: u64,
    until: Duration,
    /// When it was given up: what was sent before counts no more.
    given_up: Option<Duration>,
}

impl Lease {
    /// A renewal under this version of the table, sent at `sent`, was taken; leases last `period`. One that was sent
    /// before the lease was given up changes nothing.
    pub fn renewed(&mut self, version: u64, sent: Duration, period: Duration) {
        if self.given_up.is_none_or(|given_up| sent > given_up) {
            *self = Self { version, until: sent + period / 2, given_up: None };
        }
    }

    /// It is given up at `now`: nothing is answered under it from now on.
    pub fn give_up(&mut self, now: Duration) {
        (self.until, self.given_up) = (Duration::ZERO, Some(now));
    }

    /// Whether a server that goes by this version of the table may answer.
    pub fn holds(&self, version: u64, now: Duration) -> bool {
        !self.left(version, now).is_zero()
    }

    /// For how long it may still.
    pub fn left(&self, version: u64, now: Duration) -> Duration {
        if version == self.version { self.until.saturating_sub(now) } else { Duration::ZERO }
    }
}

/// A manager's record of renewals. Times are those of its own steady clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Renewals(BTreeMap<ServerId, Seen>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    incarnation: Incarnation,
    renewal: u64,
    at: Duration,
}

impl Renewals {
    /// Renewal number `renewal` of this start of a server stands with the coordinator; seen at `now`.
    pub fn see(&mut self, server: ServerId, incarnation: Incarnation, renewal: u64, now: Duration) {
        let seen = Seen { incarnation, renewal, at: now };
        let last = self.0.entry(server).or_insert(seen);
        if (last.incarnation, last.renewal) != (incarnation, renewal) {
            *last = seen;
        }
    }

    /// The renewal that was seen last: a table is taken only while it stands.
    pub fn last(&self, server: ServerId) -> Option<(Incarnation, u64)> {
        self.0.get(&server).map(|seen| (seen.incarnation, seen.renewal))
    }

    /// Whether a server's lease has run out: it was seen a whole period ago, and nothing since.
    pub fn has_run_out(&self, server: ServerId, now: Duration, period: Duration) -> bool {
        self.0.get(&server).is_some_and(|seen| now.saturating_sub(seen.at) >= period)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(2);

    #[test]
    fn a_lease_is_of_one_version_and_ends() {
        let mut lease = Lease::default();
        let s = Duration::from_secs;
        assert!(!lease.holds(0, s(0)), "none to begin with");
        lease.renewed(3, s(10), PERIOD);
        assert!(lease.holds(3, s(10)) && !lease.holds(3, s(11)) && !lease.holds(4, s(10)) && !lease.holds(2, s(10)));
        lease.give_up(s(11));
        assert!(!lease.holds(3, s(10)));
        // An answer that comes late gives nothing back.
        lease.renewed(3, s(11), PERIOD);
        assert!(!lease.holds(3, s(11)));
        lease.renewed(3, s(12), PERIOD);
        assert!(lease.holds(3, s(12)));
    }

    #[test]
    fn a_lease_has_run_out_before_its_manager_takes_it_for_run_out() {
        let server = ServerId(1);
        // True time is in milliseconds; each clock runs at its own rate, and began at its own time.
        for (slow, fast) in [(0.8, 1.25), (1.0, 1.25), (0.8, 1.0), (1.25, 1.25), (0.8, 0.8)] {
            let own = |ms: u64| Duration::from_secs_f64(7.0 + ms as f64 / 1_000.0 * slow);
            let manager = |ms: u64| Duration::from_secs_f64(99.0 + ms as f64 / 1_000.0 * fast);
            for delay in [0, 1, 500, 5_000] {
                let (mut lease, mut renewals) = (Lease::default(), Renewals::default());
                lease.renewed(1, own(100), PERIOD);
                renewals.see(server, Incarnation(1), 1, manager(100 + delay));
                for now in (100 + delay..20_000).step_by(7) {
                    renewals.see(server, Incarnation(1), 1, manager(now));
                    let out = renewals.has_run_out(server, manager(now), PERIOD);
                    assert!(!(out && lease.holds(1, own(now))), "rates {slow} and {fast}, {now} ms");
                }
                assert!(renewals.has_run_out(server, manager(20_000), PERIOD));
            }
        }
    }

    #[test]
    fn a_renewal_and_a_new_start_begin_the_time_anew() {
        let (server, s) = (ServerId(1), Duration::from_secs);
        let mut renewals = Renewals::default();
        assert!(!renewals.has_run_out(server, s(100), PERIOD), "who was never seen may have a lease");
        renewals.see(server, Incarnation(1), 1, s(0));
        renewals.see(server, Incarnation(1), 2, s(1));
        assert!(!renewals.has_run_out(server, s(2), PERIOD) && renewals.has_run_out(server, s(3), PERIOD));
        renewals.see(server, Incarnation(2), 2, s(3));
        assert!(!renewals.has_run_out(server, s(4), PERIOD));
        assert_eq!(renewals.last(server), Some((Incarnation(2), 2)));
    }
}
