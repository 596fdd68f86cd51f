//! The servers of the cluster as nodes of Redis Cluster, for clients that ask which serves which key.
//!
//! the chain's view, from its member    ┐
//! other chains, as they were seen      ├→ nodes and slots → [`ClusterView`] → each command with keys
//! slots that came to this chain, or went, as it has noted ┘
//!
//! A server is a node of its own in each of its chains, since it has addresses of its own for each.
//!
//! Invariants:
//! 1. Of the own chain what its member says counts, which is newer; and nothing is said to be served here until it is
//!    known which slots that chain keeps.
//! 2. Chains that share no slots are each a cluster of its own.
//! 3. Of a slot what has the higher epoch counts.

use std::sync::Arc;

use arc_swap::ArcSwap;
use esker_chain::{Place, ServerId};
use esker_cluster::{SLOTS, Seen, Slots};
use esker_member::{Host, Peer, View};
use esker_server::resp::{Cluster, ClusterNode, ClusterView, SlotRange, SlotRecords, SlotState};
use esker_server::thrift::{Keeper, Keepers, Sight};
use parking_lot::Mutex;

/// Before an address that speaks TLS only.
pub const TLS: &str = "tls://";

/// A chain among those that may share the slots of keys with it.
pub struct Ring {
    /// Its name.
    pub chain: String,
    /// Who sees the others.
    pub host: Arc<Host>,
}

/// What a view is made of.
#[derive(Default)]
struct Known {
    view: View,
    seen: Option<Arc<Seen>>,
    /// What the own chain has noted of slots.
    records: Arc<SlotRecords>,
    /// The server that tells it.
    number: u64,
}

/// What clients are told of the cluster.
pub struct Nodes {
    me: ServerId,
    /// Where clients reach this server for this chain.
    own: String,
    /// `None`: there is one chain.
    ring: Option<Ring>,
    /// What the view was made of last.
    known: Mutex<Known>,
    view: ArcSwap<ClusterView>,
    sight: ArcSwap<Sight>,
}

/// A number that no other server of any chain has: 128 bits of the chain's name, 32 of the server's number.
fn id(chain: &str, server: ServerId) -> String {
    // FNV-1a (http://www.isthe.com/chongo/tech/comp/fnv/).
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0100_0000_0000_0000_0000_013b;
    let digest = chain.bytes().fold(OFFSET, |digest, byte| (digest ^ u128::from(byte)).wrapping_mul(PRIME));
    format!("{digest:032x}{:08x}", server.0)
}

fn node(id: String, address: &str, is_up: bool) -> Option<ClusterNode> {
    let (address, is_tls) = match address.strip_prefix(TLS) {
        Some(address) => (address, true),
        None => (address, false),
    };
    let (host, port) = address.rsplit_once(':')?;
    let (host, port) = (host.trim_matches(['[', ']']).to_owned(), port.parse().ok()?);
    let (port, tls_port) = if is_tls { (0, Some(port)) } else { (port, None) };
    Some(ClusterNode { id, host, port, tls_port, is_up })
}

/// The nodes that a view is made of, as they are found.
#[derive(Default)]
struct Found(Vec<ClusterNode>);

impl Found {
    /// Adds the servers of a chain; the places of its head and its replicas. `own` is this server among them, the
    /// address by which clients reach it, and whether it may be said to head the chain.
    fn add(
        &mut self,
        chain: &str,
        peers: &[Peer],
        head: Option<ServerId>,
        own: Option<(ServerId, &str, bool)>,
    ) -> (Option<usize>, Vec<usize>) {
        let is_up = |peer: &Peer| matches!(peer.place, Some(Place::Serving | Place::Syncing | Place::Waiting));
        let (mut heads, mut replicas) = (None, Vec::new());
        for peer in peers {
            let me = own.filter(|(me, ..)| *me == peer.server);
            let address = match me {
                Some((_, address, _)) => Some(address),
                None => peer.record.as_ref().and_then(|record| record.served.resp.as_deref()),
            };
            let Some(node) = address.and_then(|address| node(id(chain, peer.server), address, is_up(peer))) else {
                continue;
            };
            if head == Some(peer.server) {
                // One that is not in office yet, or any more, is no head of its own.
                heads = Some(self.0.len()).filter(|_| me.is_none_or(|(.., may_head)| may_head));
            } else if peer.place.is_some() {
                replicas.push(self.0.len());
            }
            self.0.push(node);
        }
        (heads, replicas)
    }
}

impl Nodes {
    /// Of this server, which clients reach at `own`; nothing is known yet. `None`: it does not serve the Redis
    /// protocol.
    ///
    /// # Errors
    /// Why the address cannot be told.
    pub fn new(me: ServerId, own: Option<String>, ring: Option<Ring>) -> Result<Option<Arc<Self>>, String> {
        let Some(own) = own else { return Ok(None) };
        let known = Known::default();
        let chain = ring.as_ref().map(|ring| ring.chain.as_str());
        let view = made((me, &own), chain, &known)?;
        let (view, sight) = (ArcSwap::from_pointee(view), ArcSwap::from_pointee(sight(chain, &known)));
        Ok(Some(Arc::new(Self { me, own, ring, known: Mutex::new(known), view, sight })))
    }

    /// This is how the own chain stands.
    pub fn update(&self, view: &View) {
        let mut known = self.known.lock();
        (known.view, known.seen) = (view.clone(), self.seen());
        self.make(&known);
    }

    /// Looks whether other chains stand otherwise than when this was last told.
    pub fn look(&self) {
        let mut known = self.known.lock();
        let seen = self.seen();
        if known.seen.as_ref().map(Arc::as_ptr) != seen.as_ref().map(Arc::as_ptr) {
            known.seen = seen;
            self.make(&known);
        }
    }

    fn seen(&self) -> Option<Arc<Seen>> {
        self.ring.as_ref().and_then(|ring| ring.host.seen())
    }

    /// Whether the own chain is the only one that there is.
    pub fn is_only(&self) -> bool {
        let known = self.known.lock();
        known.seen.as_ref().is_some_and(|seen| seen.slots.is_none() && seen.chains.len() == 1)
    }

    /// Which chain keeps which slots.
    pub fn sight(&self) -> Sight {
        (**self.sight.load()).clone()
    }

    /// Other chains that have a head and no slots now, and share them with this one, or are to have some.
    pub fn beside(&self) -> Vec<Arc<str>> {
        let known = self.known.lock();
        let (Some(ring), Some(seen)) = (&self.ring, known.seen.as_deref()) else { return Vec::new() };
        beside(&ring.chain, seen)
    }

    fn make(&self, known: &Known) {
        let chain = self.ring.as_ref().map(|ring| ring.chain.as_str());
        self.sight.store(Arc::new(sight(chain, known)));
        match made((self.me, &self.own), chain, known) {
            Ok(view) => self.view.store(Arc::new(view)),
            Err(why) => tracing::warn!(why, "clients are not told of a change of the cluster"),
        }
    }
}

/// The slots in parts, each with the chain that keeps it and its epoch: as the coordinator has it, but for what this
/// chain, of this name, knows better.
fn kept<'k>(slots: &'k Slots, records: &'k SlotRecords, name: &'k str) -> Vec<(u16, u16, &'k str, u64)> {
    let each = slots.parts().iter().flat_map(|part| (part.first..=part.last).map(move |slot| (slot, part)));
    let mut parts: Vec<(u16, u16, &str, u64)> = Vec::new();
    for (slot, part) in each {
        let record = records.get(&slot).filter(|record| record.epoch > part.epoch);
        let (chain, epoch) = match record.map(|record| (record.state, record.chain.as_str(), record.epoch)) {
            None => (part.chain.as_str(), part.epoch),
            Some((SlotState::Leaving, _, epoch)) => (name, epoch.saturating_sub(1)),
            Some((SlotState::Coming, other, epoch)) => (other, epoch.saturating_sub(1)),
            Some((SlotState::Here, _, epoch)) => (name, epoch),
            Some((SlotState::Gone, other, epoch)) => (other, epoch),
        };
        match parts.last_mut() {
            Some((_, last, of, since)) if (*of, *since) == (chain, epoch) => *last = slot,
            _ => parts.push((slot, slot, chain, epoch)),
        }
    }
    parts
}

/// Who keeps which slots, as it is known. `chain`: that of this server, which may share them with others. Where it does
/// not, and something is recorded of slots, that is not known: what the coordinator was asked for last is of a time
/// before some came here, or went; or they were to come, do not any more, and have left keys here.
fn sight(chain: Option<&str>, known: &Known) -> Sight {
    let Some(name) = chain else { return Sight::Alone };
    let Some(seen) = known.seen.as_deref().filter(|seen| seen.chains.contains_key(name)) else { return Sight::Unknown };
    let Some(slots) = seen.slots.as_ref().filter(|slots| slots.are_shared_by(name)) else {
        return if known.records.is_empty() { Sight::Alone } else { Sight::Unknown };
    };
    let mut keepers: Vec<Keeper> = Vec::new();
    for (first, last, keeper, _) in kept(slots, &known.records, name) {
        let chain = (keeper != name).then_some(keeper);
        match keepers.last_mut() {
            // It may have come in another epoch.
            Some(before) if before.chain.as_deref() == chain => before.last = last,
            _ => keepers.push(Keeper { first, last, chain: chain.map(Arc::from) }),
        }
    }
    Keepers::new(keepers).map_or(Sight::Unknown, |keepers| Sight::Shared(Arc::new(keepers)))
}

/// Chains that share the slots with this one and keep none, of those that have a head.
fn beside(name: &str, seen: &Seen) -> Vec<Arc<str>> {
    let Some(slots) = seen.slots.as_ref().filter(|slots| slots.are_shared_by(name)) else { return Vec::new() };
    let has_head = |chain: &str| {
        let known = seen.chains.get(chain);
        known.is_some_and(|chain| chain.table.head().is_some_and(|head| chain.servers.contains_key(&head.server)))
    };
    let none = slots.shares().into_iter().filter(|(chain, count)| *count == 0 && *chain != name);
    none.map(|(chain, _)| chain).filter(|chain| has_head(chain)).map(Arc::from).collect()
}

/// What clients are told by this server, of `own` address. `chain`: it may share the slots with other chains, which is
/// known once they were seen.
fn made((me, own): (ServerId, &str), chain: Option<&str>, known: &Known) -> Result<ClusterView, String> {
    let (name, view, seen) = (chain.unwrap_or(""), &known.view, known.seen.as_deref());
    let mut nodes = Found::default();
    let (head, replicas) = nodes.add(name, &view.peers, view.head, Some((me, own, view.heads)));
    let shared = seen.and_then(|seen| seen.slots.as_ref()).filter(|slots| slots.are_shared_by(name));
    let mut epoch = view.version;
    let mut ranges = Vec::new();
    if let (Some(seen), Some(slots)) = (seen, shared) {
        let mut others = std::collections::BTreeMap::new();
        for (first, last, keeper, since) in kept(slots, &known.records, name) {
            epoch = epoch.saturating_add(since.saturating_mul(u64::from(last - first) + 1));
            let (head, replicas) = if keeper == name {
                (head, replicas.clone())
            } else {
                let other = others.entry(keeper).or_insert_with(|| {
                    let Some(chain) = seen.chains.get(keeper) else { return (None, Vec::new()) };
                    epoch += chain.table.version;
                    let head = chain.table.head().map(|head| head.server);
                    nodes.add(keeper, &View::peers(&chain.table, &chain.servers), head, None)
                });
                other.clone()
            };
            ranges.push(SlotRange { first, last, head, replicas, epoch: since });
        }
    } else if chain.is_none() || known.records.is_empty() && seen.is_some_and(|seen| seen.chains.contains_key(name)) {
        // Slots are read after the tables, and made with them: what was seen with this chain knows of its share. What
        // is recorded nevertheless makes it unknown, as in [`sight`].
        ranges.push(SlotRange { first: 0, last: SLOTS - 1, head, replicas, epoch: 0 });
    }
    let own_id = id(name, me);
    if !nodes.0.iter().any(|node| node.id == own_id) {
        nodes.0.extend(node(own_id.clone(), own, true));
    }
    let view = ClusterView::new(epoch, &own_id, nodes.0, ranges)?;
    let others = seen.is_some_and(|seen| seen.chains.len() > 1);
    Ok(match shared {
        Some(_) => view.sharing(),
        None if others => view.among_others(),
        None => view,
    })
}

impl Cluster for Nodes {
    fn view(&self) -> Arc<ClusterView> {
        self.view.load_full()
    }

    fn begin(&self) -> u64 {
        let mut known = self.known.lock();
        known.number += 1;
        known.number
    }

    fn tell(&self, number: u64, records: &Arc<SlotRecords>) {
        let mut known = self.known.lock();
        if number != known.number {
            return;
        }
        known.records = Arc::clone(records);
        self.make(&known);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use esker_chain::{Incarnation, Table};
    use esker_cluster::{SeenChain, Served, ServerRecord};
    use esker_server::resp::SlotRecord;

    use super::*;

    const ME: ServerId = ServerId(1);

    fn servers(base: u16) -> BTreeMap<ServerId, ServerRecord> {
        let record = |server: u32| {
            let resp = Some(format!("h:{}", base + server as u16));
            let served = Served {
                store: String::new(),
                peer: String::new(),
                resp,
                grpc: None,
                nbd: None,
                http: None,
                thrift: None,
            };
            (ServerId(server), ServerRecord { incarnation: Incarnation(1), served })
        };
        (1..=2).map(record).collect()
    }

    fn table(servers: [u32; 2]) -> Table {
        Table::first(servers.map(|server| (ServerId(server), Incarnation(1))))
    }

    fn view(servers_in_order: [u32; 2], heads: bool) -> View {
        let table = table(servers_in_order);
        let (peers, head) = (View::peers(&table, &servers(100)), table.head().map(|head| head.server));
        View { version: 1, peers, head, heads, ..View::default() }
    }

    fn told(chain: Option<&str>, view: &View, seen: Option<&Seen>) -> String {
        format!("{:?}", view_of(chain, view, seen, SlotRecords::new()))
    }

    fn view_of(chain: Option<&str>, view: &View, seen: Option<&Seen>, records: SlotRecords) -> ClusterView {
        let known = Known {
            view: view.clone(),
            seen: seen.map(|seen| Arc::new(seen.clone())),
            records: Arc::new(records),
            number: 0,
        };
        made((ME, "h:101"), chain, &known).unwrap()
    }

    /// `own`: the chain whose nodes are told, if that was seen.
    fn seen(own: Option<&str>, slots: Option<Slots>) -> Seen {
        let chain = |table, base| SeenChain { table, servers: servers(base) };
        let own = own.map(|own| (own.to_owned(), chain(table([1, 2]), 100)));
        Seen { slots, chains: own.into_iter().chain([("b".to_owned(), chain(table([2, 1]), 200))]).collect() }
    }

    #[test]
    fn the_slots_are_those_of_the_chains_that_share_them() {
        let slots = Slots::even(&["a", "b"]).unwrap();
        let text = told(Some("a"), &view([1, 2], true), Some(&seen(Some("a"), Some(slots))));
        let place = |port: u16| {
            let found = text
                .match_indices("host: \"h\", port: ")
                .position(|(at, found)| text[at + found.len()..].starts_with(&port.to_string()));
            found.unwrap()
        };
        // Each server is a node in each of its chains.
        let ranges = [
            SlotRange { first: 0, last: 8_191, head: Some(place(101)), replicas: vec![place(102)], epoch: 0 },
            SlotRange { first: 8_192, last: 16_383, head: Some(place(202)), replicas: vec![place(201)], epoch: 0 },
        ];
        for range in ranges {
            assert!(text.contains(&format!("{range:?}")), "{range:?}: {text}");
        }
        assert!(text.starts_with("ClusterView { epoch: 2,"), "{text}");
    }

    #[test]
    fn of_a_slot_what_has_the_higher_epoch_counts() {
        let slots = Slots::even(&["a", "b"]).unwrap().with_moved(&[(9_000, 3)], "a");
        let record = |state, epoch: u64, chain: &str| SlotRecord { state, epoch, chain: chain.into() };
        let records: SlotRecords = [
            (0, record(SlotState::Gone, 1, "b")),
            (1, record(SlotState::Leaving, 1, "b")),
            (8_192, record(SlotState::Coming, 1, "b")),
            (8_193, record(SlotState::Here, 1, "b")),
            (9_000, record(SlotState::Gone, 3, "b")),
        ]
        .into();
        let parts = kept(&slots, &records, "a");
        let of = |slot: u16| parts.iter().find(|part| part.1 >= slot).map(|part| (part.2, part.3)).unwrap();
        assert_eq!([of(0), of(1), of(2)], [("b", 1), ("a", 0), ("a", 0)]);
        assert_eq!([of(8_192), of(8_193), of(8_194)], [("b", 0), ("a", 1), ("b", 0)]);
        assert_eq!((of(9_000), of(9_001)), (("a", 3), ("b", 0)), "the coordinator has it back already");
        let seen = seen(Some("a"), Some(slots));
        let epoch = |records| format!("{:?}", view_of(Some("a"), &view([1, 2], true), Some(&seen), records));
        assert!(epoch(SlotRecords::new()).starts_with("ClusterView { epoch: 5,"));
        assert!(epoch(records).starts_with("ClusterView { epoch: 7,"));
    }

    #[test]
    fn calls_by_thrift_are_told_who_keeps_which_slots() {
        let slots = Slots::even(&["a", "b"]).unwrap();
        let record = |state| SlotRecord { state, epoch: 1, chain: "b".into() };
        let records: SlotRecords = [(3, record(SlotState::Gone)), (8_192, record(SlotState::Here))].into();
        let known = |seen: Option<Seen>| Known {
            seen: seen.map(Arc::new),
            records: Arc::new(records.clone()),
            ..Known::default()
        };
        let keeper = |first, last, chain: Option<&str>| Keeper { first, last, chain: chain.map(Arc::from) };
        let shared =
            vec![keeper(0, 2, None), keeper(3, 3, Some("b")), keeper(4, 8_192, None), keeper(8_193, 16_383, Some("b"))];
        let shared = Sight::Shared(Arc::new(Keepers::new(shared).unwrap()));
        assert_eq!(sight(Some("a"), &known(Some(seen(Some("a"), Some(slots))))), shared);
        // Slots have come and gone: there are others, of which the coordinator has not told yet.
        assert_eq!(sight(Some("a"), &known(Some(seen(Some("a"), None)))), Sight::Unknown);
        let alone = Known { records: Arc::default(), ..known(Some(seen(Some("a"), None))) };
        assert_eq!(sight(Some("a"), &alone), Sight::Alone);
        // They were to come, and do not any more: what they have left is not removed yet.
        let coming = SlotRecords::from([(8_192, record(SlotState::Coming))]);
        let given_up = Known { records: Arc::new(coming), ..known(Some(seen(Some("a"), None))) };
        assert_eq!(sight(Some("a"), &given_up), Sight::Unknown);
        assert_eq!(sight(Some("a"), &known(Some(seen(None, None)))), Sight::Unknown);
        assert_eq!((sight(Some("a"), &known(None)), sight(None, &known(None))), (Sight::Unknown, Sight::Alone));
    }

    #[test]
    fn chains_that_keep_no_slots_and_share_them_are_told_apart() {
        let even = |chains: &[&str]| Slots::even(chains).unwrap();
        let all_of = |name: &str, slots: Slots| beside(name, &seen(Some("a"), Some(slots)));
        let joins = even(&["a"]).with_plan(0..9, "b").unwrap();
        let b = [Arc::<str>::from("b")];
        assert_eq!(all_of("a", joins.clone()), b);
        assert!(all_of("b", joins.clone()).is_empty());
        let left = even(&["a", "b"]).with_moved(&(8_192..16_384).map(|slot| (slot, 1)).collect::<Vec<_>>(), "a");
        assert_eq!(all_of("a", left), b);
        for none in [even(&["a", "b"]), even(&["b"]).with_plan(0..9, "c").unwrap()] {
            assert!(all_of("a", none).is_empty());
        }
        // Where it has no head none can be asked.
        let mut gone = seen(Some("a"), Some(joins));
        gone.chains.get_mut("b").unwrap().servers.clear();
        assert!(beside("a", &gone).is_empty());
    }

    #[test]
    fn nothing_is_served_before_it_is_known_which_slots_the_chain_keeps() {
        // Of a time before the chain was made nothing is known of its share.
        for before in [None, Some(Seen::default()), Some(seen(None, None))] {
            let text = told(Some("a"), &view([1, 2], true), before.as_ref());
            assert!(text.contains("ranges: []"), "{text}");
        }
        // Nor as long as anything is recorded of slots that it is not seen to share.
        for state in [SlotState::Coming, SlotState::Here, SlotState::Gone] {
            let record = SlotRecord { state, epoch: 1, chain: "b".into() };
            for slots in [None, Slots::even(&["b"])] {
                let records = [(7, record.clone())].into();
                let view = view_of(Some("a"), &view([1, 2], true), Some(&seen(Some("a"), slots)), records);
                assert!(format!("{view:?}").contains("ranges: []"), "{state:?}: {view:?}");
            }
        }
        let apart = seen(Some("c"), Slots::even(&["b"]));
        for (chain, seen) in [(None, None), (Some("a"), Some(seen(Some("a"), None))), (Some("c"), Some(apart))] {
            let text = told(chain, &view([1, 2], true), seen.as_ref());
            let whole = SlotRange { first: 0, last: 16_383, head: Some(0), replicas: vec![1], epoch: 0 };
            assert!(text.contains(&format!("ranges: [{whole:?}]")), "{chain:?}: {text}");
        }
    }

    #[test]
    fn one_that_does_not_head_its_chain_yet_is_no_head() {
        let text = told(None, &view([1, 2], false), None);
        let whole = SlotRange { first: 0, last: 16_383, head: None, replicas: vec![1], epoch: 0 };
        assert!(text.contains(&format!("{whole:?}")), "{text}");
        let text = told(None, &view([2, 1], false), None);
        assert!(text.contains("head: Some(0), replicas: [1]"), "{text}");
    }

    #[test]
    fn ids_tell_chains_and_servers_apart() {
        assert_eq!(id("a", ME).len(), 40);
        assert_eq!(id("", ServerId(0x17)), "6c62272e07bb014262b821756295c58d00000017");
        assert!(id("a", ME) != id("b", ME) && id("a", ME) != id("a", ServerId(2)));
        assert_eq!(u64::from(SLOTS), esker::kv::SLOTS);
    }

    #[test]
    fn a_server_before_tells_nothing_any_more() {
        let nodes = Nodes::new(ME, Some("h:101".into()), None).unwrap().unwrap();
        let of = |slot: u16| {
            let record = SlotRecord { state: SlotState::Here, epoch: 1, chain: "b".into() };
            Arc::new(SlotRecords::from([(slot, record)]))
        };
        let (before, now) = (nodes.begin(), nodes.begin());
        nodes.tell(now, &of(1));
        nodes.tell(before, &of(2));
        assert_eq!(nodes.known.lock().records, of(1));
    }
}
