//! What a manager has seen of a chain, and what it makes of it.
//!
//! leases, at each look → renewals, by own clock → heard of each member → next table, and what it counts upon
//!
//! No clock, no socket: times come in, those of the manager's own steady clock.
//!
//! Invariants:
//! 1. A member is silent only once it has given its lease up, or no renewal came for a whole period in which the
//!    manager looked all the time.
//! 2. A server is there only once a renewal of its last start was seen to come.
//! 3. A new start takes the place of the one before it at once where it has the same store, which lets only one process
//!    in; and with another store only once that one's lease has run out: it cannot renew, but may still be there.
//! 4. The last that served comes back only with the store that it had.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use esker_chain::{Heard, Incarnation, Member, Place, Renewals, ServerId, Table, Wishes};
use tracing::warn;

use crate::coordinator::{Standing, in_line};
use crate::records::{LeaseRecord, ServerRecord};

/// What a chain's nodes say, read at one time.
#[derive(Clone, Debug)]
pub struct View {
    /// The table.
    pub table: Table,
    /// The last renewal of each server that has ever renewed.
    pub leases: BTreeMap<ServerId, LeaseRecord>,
    /// Who was last told to be in step, in which version of the table.
    pub in_step: Option<(ServerId, u64)>,
    /// Each server as its last start has registered it.
    pub servers: BTreeMap<ServerId, ServerRecord>,
    /// Which store each server had when it was last made part of the line.
    pub stores: BTreeMap<ServerId, String>,
    /// What operators have asked for.
    pub wishes: Wishes,
}

/// The table that is to come next, and what goes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The table.
    pub table: Table,
    /// The renewals that have to be the last of their servers where it is set.
    pub standing: Vec<Standing>,
    /// The stores of those that it makes part of the line, to be noted with it.
    pub stores: Vec<(ServerId, String)>,
}

/// What was seen of one chain.
#[derive(Debug, Default)]
pub struct Sight {
    renewals: Renewals,
    /// The leases as they were when it began: they may be of servers that are long gone.
    first: BTreeMap<ServerId, (Incarnation, u64)>,
    /// Servers that have renewed since.
    moved: BTreeSet<ServerId>,
    /// Since when a start after the member's own has been renewing, by that start of the member.
    succeeded: BTreeMap<(ServerId, Incarnation), Duration>,
    began: Duration,
    looked: Option<Duration>,
    warned: BTreeSet<(ServerId, String)>,
}

impl Sight {
    /// Takes note of the leases, which were read by `now`. After half a period without a look all begins anew: servers
    /// may have been cut off from the coordinator just as this manager was.
    pub fn see(&mut self, leases: &BTreeMap<ServerId, LeaseRecord>, now: Duration, period: Duration) {
        if self.looked.is_none_or(|looked| now.saturating_sub(looked) >= period / 2) {
            let first = leases.iter().map(|(server, lease)| (*server, (lease.incarnation, lease.renewal))).collect();
            let warned = std::mem::take(&mut self.warned);
            *self = Self { first, began: now, warned, ..Self::default() };
        }
        self.looked = Some(now);
        for (server, lease) in leases {
            self.renewals.see(*server, lease.incarnation, lease.renewal, now);
            if self.first.get(server) != Some(&(lease.incarnation, lease.renewal)) {
                self.moved.insert(*server);
            }
        }
    }

    /// What comes after the table that was viewed; the leases in view have to be those seen last.
    pub fn next(&mut self, view: &View, now: Duration, period: Duration) -> Option<Proposal> {
        let heard: BTreeMap<_, _> =
            view.table.members.iter().map(|member| (member.server, self.heard(member, view, now, period))).collect();
        let syncing = view.table.members.iter().find(|member| member.place == Place::Syncing);
        let in_step = syncing.is_some_and(|member| view.in_step == Some((member.server, view.table.version)));
        let of = |member: &Member| heard.get(&member.server).copied().unwrap_or(Heard::Unsure);
        let table = view.wishes.next_table(&view.table, of, in_step)?;
        let now_in_line = |member: &&Member| in_line(member.place);
        let stands = |table: &Table, server| table.member(server).is_some_and(|member| in_line(member.place));
        let leaves = view.table.members.iter().filter(now_in_line).filter(|member| !stands(&table, member.server));
        let standing =
            leaves.map(|member| (member.server, self.renewals.last(member.server).map(|(_, number)| number))).collect();
        let comes = table.members.iter().filter(now_in_line).filter(|member| !stands(&view.table, member.server));
        let store = |member: &Member| Some((member.server, view.servers.get(&member.server)?.served.store.clone()));
        let stores = comes.filter_map(store).collect();
        Some(Proposal { table, standing, stores })
    }

    fn heard(&mut self, member: &Member, view: &View, now: Duration, period: Duration) -> Heard {
        let server = member.server;
        let Some(lease) = view.leases.get(&server) else {
            let waited = now.saturating_sub(self.began) >= period;
            return if waited { Heard::Silent } else { Heard::Unsure };
        };
        if self.renewals.has_run_out(server, now, period) {
            return Heard::Silent;
        }
        // Of a start that has registered after the one that renewed nothing is known but that it is another.
        let record = view.servers.get(&server).filter(|record| record.incarnation == lease.incarnation);
        let store = record.map(|record| &record.served.store);
        let had = store.is_some() && view.stores.get(&server) == store;
        if in_line(member.place) && lease.incarnation > member.incarnation && !had {
            let since = *self.succeeded.entry((server, member.incarnation)).or_insert(now);
            if now.saturating_sub(since) < period {
                return Heard::Unsure;
            }
        }
        // A start before the member's own says nothing of the member.
        if lease.incarnation < member.incarnation {
            return Heard::Unsure;
        }
        if lease.gave_up {
            return Heard::Silent;
        }
        let Some(store) = store.filter(|_| self.moved.contains(&server)) else {
            return Heard::Unsure;
        };
        // Of a chain that has never served nothing is noted: whatever its first server holds is what the chain holds.
        let is_first = !view.stores.contains_key(&server);
        if member.place == Place::LastServing && !had && !is_first {
            if self.warned.insert((server, store.clone())) {
                warn!(
                    "server {server} was the last that served, and has another store ({store}) than it had then: it \
                     does not serve before it has that one back"
                );
            }
            return Heard::Silent;
        }
        Heard::Here(lease.incarnation)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;
    use crate::records::{Progress, Served};

    const PERIOD: Duration = Duration::from_millis(800);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Servers 1, 2 and 3 in their first start, with stores `s1`, `s2` and `s3`; each has renewed once.
    fn view() -> View {
        let servers = [1, 2, 3].map(ServerId);
        let mut view = View {
            table: Table::first(servers.map(|server| (server, Incarnation(1)))),
            leases: BTreeMap::new(),
            in_step: None,
            servers: BTreeMap::new(),
            stores: servers.map(|server| (server, format!("s{server}"))).into(),
            wishes: Wishes::default(),
        };
        for server in servers {
            start(&mut view, server.0, 1, &format!("s{server}"));
        }
        view
    }

    fn start(view: &mut View, server: u32, incarnation: u64, store: &str) {
        let peer = format!("127.0.0.1:{server}");
        let served = Served { store: store.into(), peer, resp: None, grpc: None, nbd: None, http: None, thrift: None };
        let incarnation = Incarnation(incarnation);
        view.servers.insert(ServerId(server), ServerRecord { incarnation, served });
        renew(view, &[server]);
    }

    /// These servers renew, each in the start that has registered last.
    fn renew(view: &mut View, servers: &[u32]) {
        for server in servers.iter().copied().map(ServerId) {
            let incarnation = view.servers[&server].incarnation;
            let renewal = view.leases.get(&server).map_or(0, |lease| lease.renewal + 1);
            let table_version = view.table.version;
            let (at_ms, progress) = (0, Progress::default());
            let lease = LeaseRecord { incarnation, gave_up: false, table_version, renewal, at_ms, progress };
            view.leases.insert(server, lease);
        }
    }

    /// Looks every 100 ms until `to`, while these servers renew, and takes what is proposed. Times of changes.
    fn go_on(sight: &mut Sight, view: &mut View, from: u64, to: u64, servers: &[u32]) -> Vec<(u64, Proposal)> {
        let mut changes = Vec::new();
        for now in (from..to).step_by(100) {
            renew(view, servers);
            sight.see(&view.leases, ms(now), PERIOD);
            while let Some(next) = sight.next(view, ms(now), PERIOD) {
                view.table = next.table.clone();
                view.stores.extend(next.stores.iter().cloned());
                changes.push((now, next));
            }
        }
        changes
    }

    fn place(view: &View, server: u32) -> (Place, u64) {
        let member = view.table.member(ServerId(server)).unwrap();
        (member.place, member.incarnation.0)
    }

    #[test]
    fn who_does_not_renew_for_a_period_is_taken_out_and_its_renewal_has_to_stand() {
        let (mut sight, mut view) = (Sight::default(), view());
        assert_eq!(go_on(&mut sight, &mut view, 0, 2_000, &[1, 2, 3]), []);
        let number = view.leases[&ServerId(3)].renewal;
        let changes = go_on(&mut sight, &mut view, 2_000, 4_000, &[1, 2]);
        assert_eq!(changes.len(), 1, "{changes:?}");
        // The last renewal was seen at 1.9 s.
        assert_eq!((changes[0].0, &changes[0].1.standing), (2_700, &vec![(ServerId(3), Some(number))]));
        assert_eq!((place(&view, 3), changes[0].1.stores.len()), ((Place::Offline, 1), 0));
    }

    #[test]
    fn a_manager_that_has_just_begun_takes_no_old_lease_for_a_server_that_is_there() {
        let (mut sight, mut view) = (Sight::default(), view());
        go_on(&mut sight, &mut view, 0, 3_000, &[]);
        assert_eq!(place(&view, 3), (Place::LastServing, 1));
        let mut other = Sight::default();
        assert_eq!(go_on(&mut other, &mut view, 3_000, 6_000, &[]), [], "it waits for renewals to come");
        let changes = go_on(&mut other, &mut view, 6_000, 6_100, &[3]);
        assert_eq!((changes.len(), place(&view, 3)), (1, (Place::Serving, 1)));
        assert_eq!(changes[0].1.stores, [(ServerId(3), "s3".to_string())]);
    }

    #[test]
    fn who_was_not_looking_for_half_a_period_waits_a_whole_one() {
        let (mut sight, mut view) = (Sight::default(), view());
        go_on(&mut sight, &mut view, 0, 1_000, &[1, 2, 3]);
        // All were cut off meanwhile; servers renew as soon as they can.
        let changes = go_on(&mut sight, &mut view, 5_000, 5_700, &[]);
        assert_eq!(changes, []);
        let changes = go_on(&mut sight, &mut view, 5_700, 6_500, &[1, 2]);
        assert_eq!((changes[0].0, place(&view, 3).0, changes.len()), (5_800, Place::Offline, 1));
    }

    #[test]
    fn a_lease_that_is_given_up_or_never_was_is_none() {
        let (mut sight, mut view) = (Sight::default(), view());
        view.leases.get_mut(&ServerId(2)).unwrap().gave_up = true;
        view.leases.remove(&ServerId(3));
        let changes = go_on(&mut sight, &mut view, 0, 100, &[1]);
        assert_eq!((changes.len(), place(&view, 2).0, place(&view, 3).0), (1, Place::Offline, Place::Serving));
        let changes = go_on(&mut sight, &mut view, 100, 1_000, &[1]);
        assert_eq!((changes[0].0, &changes[0].1.standing), (800, &vec![(ServerId(3), None)]));
    }

    #[test]
    fn a_new_start_takes_the_old_ones_place_once_it_renews_itself() {
        let (mut sight, mut view) = (Sight::default(), view());
        go_on(&mut sight, &mut view, 0, 1_000, &[1, 2, 3]);
        let old = view.leases[&ServerId(2)];
        start(&mut view, 2, 2, "s2");
        let new = view.leases.insert(ServerId(2), old).unwrap();
        assert_eq!(go_on(&mut sight, &mut view, 1_000, 1_100, &[1, 3]), [], "it has registered, no more");
        view.leases.insert(ServerId(2), new);
        let changes = go_on(&mut sight, &mut view, 1_100, 1_200, &[1, 3]);
        assert_eq!(changes.len(), 3, "offline, waiting, syncing: {changes:?}");
        assert_eq!(place(&view, 2), (Place::Syncing, 2));
        // What the tail has told of an older table, or of another server, does not count.
        for told in [(ServerId(2), view.table.version - 1), (ServerId(9), view.table.version)] {
            view.in_step = Some(told);
            assert_eq!(go_on(&mut sight, &mut view, 1_200, 1_300, &[1, 2, 3]), []);
        }
        view.in_step = Some((ServerId(2), view.table.version));
        go_on(&mut sight, &mut view, 1_300, 1_400, &[1, 2, 3]);
        assert_eq!(place(&view, 2), (Place::Serving, 2));
        // A renewal of the start before it says nothing of it, and it is not taken out before its time.
        view.leases.get_mut(&ServerId(2)).unwrap().incarnation = Incarnation(1);
        view.servers.get_mut(&ServerId(2)).unwrap().incarnation = Incarnation(1);
        assert_eq!(go_on(&mut sight, &mut view, 1_400, 2_100, &[1, 3]), []);
    }

    #[test]
    fn a_new_start_with_another_store_waits_until_the_lease_of_the_one_before_has_run_out() {
        let (mut sight, mut view) = (Sight::default(), view());
        go_on(&mut sight, &mut view, 0, 1_000, &[1, 2, 3]);
        start(&mut view, 2, 2, "new");
        assert_eq!(go_on(&mut sight, &mut view, 1_000, 1_800, &[1, 2, 3]), []);
        let changes = go_on(&mut sight, &mut view, 1_800, 1_900, &[1, 2, 3]);
        assert_eq!(changes.len(), 3, "offline, waiting, syncing: {changes:?}");
        assert_eq!((place(&view, 2), &view.stores[&ServerId(2)]), ((Place::Syncing, 2), &"new".to_string()));
    }

    #[test]
    fn what_another_store_gives_up_is_not_the_lease_of_the_one_before() {
        let (mut sight, mut view) = (Sight::default(), view());
        go_on(&mut sight, &mut view, 0, 1_000, &[1, 2, 3]);
        start(&mut view, 2, 2, "new");
        view.leases.get_mut(&ServerId(2)).unwrap().gave_up = true;
        assert_eq!(go_on(&mut sight, &mut view, 1_000, 1_800, &[1, 3]), []);
        let changes = go_on(&mut sight, &mut view, 1_800, 1_900, &[1, 3]);
        assert_eq!((changes.len(), place(&view, 2)), (1, (Place::Offline, 1)));
        // Of its own store it is at once.
        start(&mut view, 3, 2, "s3");
        view.leases.get_mut(&ServerId(3)).unwrap().gave_up = true;
        let changes = go_on(&mut sight, &mut view, 1_900, 2_000, &[1]);
        assert_eq!((changes.len(), place(&view, 3)), (1, (Place::Offline, 1)));
    }

    #[test]
    fn the_last_that_served_comes_back_with_its_own_store_only() {
        let (mut sight, mut view) = (Sight::default(), view());
        go_on(&mut sight, &mut view, 0, 3_000, &[]);
        start(&mut view, 3, 2, "empty");
        assert_eq!(go_on(&mut sight, &mut view, 3_000, 6_000, &[3]), []);
        assert_eq!(sight.warned.len(), 1, "it is told once");
        start(&mut view, 3, 3, "s3");
        go_on(&mut sight, &mut view, 6_000, 6_200, &[3]);
        assert_eq!(place(&view, 3), (Place::Serving, 3));
    }

    #[test]
    fn a_server_that_is_to_go_is_taken_out_by_its_own_leaving_only() {
        let (mut sight, mut view) = (Sight::default(), view());
        view.wishes.remove.insert(ServerId(2));
        assert_eq!(go_on(&mut sight, &mut view, 0, 1_000, &[1, 2, 3]), [], "it serves");
        let number = view.leases[&ServerId(2)].renewal;
        view.leases.get_mut(&ServerId(2)).unwrap().gave_up = true;
        let changes = go_on(&mut sight, &mut view, 1_000, 1_100, &[1, 3]);
        assert_eq!((changes.len(), view.table.member(ServerId(2))), (2, None));
        assert_eq!(changes[0].1.standing, [(ServerId(2), Some(number))]);
        assert_eq!(go_on(&mut sight, &mut view, 1_100, 2_000, &[1, 2, 3]), [], "it goes on to renew");
    }
}
