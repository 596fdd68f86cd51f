//! The cluster that a server is a node of, as nodes of Redis Cluster tell it to clients: which node heads which slots.
//!
//! what knows the cluster → a [`ClusterView`] for each change → [`Cluster::view`], for each command with keys
//! → the command is run here, or its client is told which node to ask
//!
//! A slot's head serves all of it. A replica of it answers reads of clients that have sent READONLY where its store
//! shows what is acknowledged ([`Config::reading`](crate::resp::Config::reading)); else it redirects them too.
//! Redis refuses a command whose keys are of several slots. Here it is run if all
//! of them have the same head, because slots share the store of their head: it is refused as CROSSSLOT only where the
//! heads differ.
//!
//! Invariants:
//! 1. A view never changes. What a client is told of it is of one moment, and by the next may be out of date: that a
//!    node which is no head any more acknowledges no write is for the store behind it to ensure.
//! 2. The ranges of a view do not overlap, and name nodes that it has; its hosts fit into a line of the protocol.

use std::fmt;
use std::sync::Arc;

use esker_kv::{SLOTS, slot_of};

use crate::resp::moving::SlotRecords;

/// Hexadecimal digits of a node's id.
const ID_DIGITS: usize = 40;
/// Longest host, in bytes: the longest name of DNS is shorter.
const HOST_BYTES_MAX: usize = 255;

/// Knows the cluster that a server is a node of.
pub trait Cluster: Send + Sync {
    /// The cluster as it is known now. Each command with keys asks, on every event loop: it has to be cheap, and must
    /// not wait for anything.
    ///
    /// A command is run by the head of its keys' slots. Several slots of one head may be in one command; keys of
    /// different heads are refused as `CROSSSLOT`, a slot without a head as `CLUSTERDOWN`.
    fn view(&self) -> Arc<ClusterView>;

    /// A server of the chain begins: the number by which it tells records from now on, and those before tell none.
    fn begin(&self) -> u64 {
        0
    }

    /// This is what the own chain records of slots that have gone to other chains, or come from them: of what is known
    /// of a slot the higher epoch counts. [`Cluster::view`] goes by it when this returns, unless another server has
    /// begun since [`Cluster::begin`] gave this number.
    fn tell(&self, _: u64, _: &Arc<SlotRecords>) {}
}

impl fmt::Debug for dyn Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().fmt(f)
    }
}

impl PartialEq for dyn Cluster {
    /// Whether it is the same one.
    fn eq(&self, other: &Self) -> bool {
        std::ptr::addr_eq(self, other)
    }
}

impl Eq for dyn Cluster {}

/// A server of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterNode {
    /// 40 hexadecimal digits, lower case, that no other node has.
    pub id: String,
    /// The name or address by which clients reach it: 1 to 255 printable characters of ASCII, none of them a blank, a
    /// comma or `@`.
    pub host: String,
    /// The port without TLS; 0 if there is none.
    pub port: u16,
    /// The port with TLS, if there is one.
    pub tls_port: Option<u16>,
    /// Whether it can be reached, as far as is known. Clients are told of a head that cannot, too.
    pub is_up: bool,
}

impl ClusterNode {
    /// The port for a client that speaks TLS, or does not; the other one if there is none.
    pub(crate) fn port_for(&self, tls: bool) -> u16 {
        match self.tls_port {
            Some(port) if tls || self.port == 0 => port,
            _ => self.port,
        }
    }
}

/// Slots that the same nodes keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotRange {
    /// The first slot, below 16,384.
    pub first: u16,
    /// The last slot, below 16,384, not below the first.
    pub last: u16,
    /// The node that serves them, as a place in the view's nodes; `None` while there is none.
    pub head: Option<usize>,
    /// The nodes that may take over from it, as places in the view's nodes.
    pub replicas: Vec<usize>,
    /// How often they have gone from one chain to another.
    pub epoch: u64,
}

/// What is known of a cluster at one moment.
#[derive(Debug, PartialEq, Eq)]
pub struct ClusterView {
    epoch: u64,
    me: usize,
    nodes: Vec<ClusterNode>,
    /// By slot.
    ranges: Vec<SlotRange>,
    heads_any: bool,
    heads_all: bool,
    /// Several chains share the slots, or may.
    is_shared: bool,
    /// There are other chains.
    has_others: bool,
}

/// Where a command with keys is run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Route<'v> {
    /// By this node.
    Here,
    /// By this node, which heads this slot.
    To(u16, &'v ClusterNode),
    /// Nowhere: its keys have different heads.
    Apart,
    /// Nowhere: a key has no head.
    Nowhere,
}

impl ClusterView {
    /// A view of this epoch, by the node whose id is `me`. Slots that no range holds have no head. Epochs of later
    /// views should be larger: some clients go by them.
    ///
    /// # Errors
    /// A sentence that names the node or range that does not fit.
    pub fn new(epoch: u64, me: &str, nodes: Vec<ClusterNode>, mut ranges: Vec<SlotRange>) -> Result<Self, String> {
        for (index, node) in nodes.iter().enumerate() {
            let ClusterNode { id, host, port, tls_port, .. } = node;
            if id.len() != ID_DIGITS || !id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
                return Err(format!("the id {id:?} of a node is not of {ID_DIGITS} hexadecimal digits in lower case"));
            }
            if nodes[..index].iter().any(|earlier| earlier.id == *id) {
                return Err(format!("two nodes have the id {id}"));
            }
            let fits = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b',' | b'@');
            if !(1..=HOST_BYTES_MAX).contains(&host.len()) || !host.bytes().all(fits) {
                return Err(format!("the host {host:?} of node {id} is not 1 to {HOST_BYTES_MAX} plain characters"));
            }
            if *port == 0 && tls_port.unwrap_or(0) == 0 || *tls_port == Some(0) {
                return Err(format!("node {id} has a port 0"));
            }
        }
        let me = nodes.iter().position(|node| node.id == me).ok_or_else(|| format!("no node has the own id {me:?}"))?;
        ranges.sort_by_key(|range| range.first);
        for (index, range) in ranges.iter().enumerate() {
            let SlotRange { first, last, head, replicas, .. } = range;
            if first > last || u64::from(*last) >= SLOTS {
                return Err(format!("the slots {first} to {last} are not a range below {SLOTS}"));
            }
            if index > 0 && ranges[index - 1].last >= *first {
                return Err(format!("slot {first} is in two ranges"));
            }
            let named: Vec<usize> = head.iter().chain(replicas).copied().collect();
            let doubled = |at: usize| named[..at].contains(&named[at]);
            if named.iter().any(|node| *node >= nodes.len()) || (0..named.len()).any(doubled) {
                return Err(format!("the slots {first} to {last} name a node that there is not, or one twice"));
            }
        }
        let led: u64 = ranges.iter().filter(|range| range.head == Some(me)).map(SlotRange::slots).sum();
        Ok(Self {
            epoch,
            me,
            nodes,
            ranges,
            heads_any: led > 0,
            heads_all: led == SLOTS,
            is_shared: false,
            has_others: false,
        })
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The own node.
    pub(crate) fn me(&self) -> &ClusterNode {
        &self.nodes[self.me]
    }

    pub(crate) fn nodes(&self) -> &[ClusterNode] {
        &self.nodes
    }

    /// By slot.
    pub(crate) fn ranges(&self) -> &[SlotRange] {
        &self.ranges
    }

    /// Whether the own node heads a slot.
    pub(crate) fn heads_any(&self) -> bool {
        self.heads_any
    }

    /// The range of a slot, if there is one.
    fn range_of(&self, slot: u16) -> Option<&SlotRange> {
        let at = self.ranges.partition_point(|range| range.last < slot);
        self.ranges.get(at).filter(|range| range.first <= slot)
    }

    /// The same, of a chain that shares the slots with others, or may: slots come and go.
    #[must_use]
    pub fn sharing(self) -> Self {
        Self { is_shared: true, has_others: true, ..self }
    }

    /// The same, of a chain that shares no slots, beside others: some may be about to come, or to have come.
    #[must_use]
    pub fn among_others(self) -> Self {
        Self { has_others: true, ..self }
    }

    /// Whether slots are shared with other chains, or may be.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Whether slots may have come that the view does not know of, or may have left something.
    pub(crate) fn has_others(&self) -> bool {
        self.has_others
    }

    /// In which epoch a slot is where it is.
    pub(crate) fn epoch_of(&self, slot: u16) -> u64 {
        self.range_of(slot).map_or(0, |range| range.epoch)
    }

    /// In which epoch the own node heads a slot, if it does.
    pub(crate) fn heads_slot(&self, slot: u16) -> Option<u64> {
        self.range_of(slot).filter(|range| range.head == Some(self.me)).map(|range| range.epoch)
    }

    /// The range that the own node follows the head of: the first whose replica it is; where it is none's, that of all
    /// slots, if there is one.
    fn followed(&self) -> Option<&SlotRange> {
        // One that shares slots and has none follows no chain: what others keep is not its own.
        let of_all = || self.ranges.first().filter(|range| range.slots() == SLOTS && !self.is_shared);
        self.ranges.iter().find(|range| range.replicas.contains(&self.me)).or_else(of_all)
    }

    /// The node that a follower names as its head.
    pub(crate) fn head(&self) -> Option<&ClusterNode> {
        self.followed()?.head.map(|head| &self.nodes[head])
    }

    /// Where a command is run that looks at all keys of a node.
    pub(crate) fn route_all(&self) -> Route<'_> {
        if self.heads_any {
            return Route::Here;
        }
        let to = |range: &SlotRange| Some(Route::To(range.first, &self.nodes[range.head?]));
        self.followed().and_then(to).unwrap_or(Route::Nowhere)
    }

    /// Whether the own node keeps a replica of the slots of all these keys, or heads them.
    pub(crate) fn keeps<'k>(&self, mut keys: impl Iterator<Item = &'k [u8]>) -> bool {
        let kept = |range: &SlotRange| range.head == Some(self.me) || range.replicas.contains(&self.me);
        keys.all(|key| self.range_of(slot_of(key)).is_some_and(kept))
    }

    /// Where a command with these keys is run; here, if there are none.
    pub(crate) fn route<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> Route<'_> {
        if self.heads_all {
            return Route::Here;
        }
        let mut found = None;
        for slot in keys.map(slot_of) {
            let Some(head) = self.range_of(slot).and_then(|range| range.head) else { return Route::Nowhere };
            match found {
                None => found = Some((slot, head)),
                Some((_, other)) if other != head => return Route::Apart,
                Some(_) => {}
            }
        }
        match found {
            Some((slot, head)) if head != self.me => Route::To(slot, &self.nodes[head]),
            _ => Route::Here,
        }
    }
}

impl SlotRange {
    /// How many slots it has.
    pub(crate) fn slots(&self) -> u64 {
        u64::from(self.last) - u64::from(self.first) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(digit: char) -> ClusterNode {
        let id = digit.to_string().repeat(ID_DIGITS);
        ClusterNode { id, host: "::1".into(), port: 7_000, tls_port: None, is_up: true }
    }

    fn range(first: u16, last: u16, head: Option<usize>) -> SlotRange {
        SlotRange { first, last, head, replicas: Vec::new(), epoch: 0 }
    }

    fn view(me: usize, ranges: Vec<SlotRange>) -> Result<ClusterView, String> {
        let nodes = vec![node('a'), node('b'), node('c')];
        ClusterView::new(7, &nodes[me].id.clone(), nodes, ranges)
    }

    fn route<'v>(view: &'v ClusterView, keys: &[&str]) -> Route<'v> {
        view.route(keys.iter().map(|key| key.as_bytes()))
    }

    #[test]
    fn keys_are_routed_to_the_head_of_their_slots() {
        // foo is of slot 12182, bar of 5061, hello of 866.
        let ranges = vec![range(5_000, 12_181, Some(1)), range(12_182, 12_182, Some(2)), range(0, 4_999, Some(1))];
        let seen = view(1, ranges.clone()).unwrap();
        assert_eq!(route(&seen, &["bar", "hello"]), Route::Here);
        assert_eq!(route(&seen, &["foo"]), Route::To(12_182, &node('c')));
        assert_eq!(route(&seen, &["bar", "foo"]), Route::Apart);
        assert_eq!(route(&seen, &[]), Route::Here);
        // 123456789 is of slot 12739, which no range holds.
        assert_eq!(route(&seen, &["123456789"]), Route::Nowhere);
        assert_eq!(route(&seen, &["bar", "123456789"]), Route::Nowhere);
        assert_eq!(seen.route_all(), Route::Here);
        let other = view(0, ranges).unwrap();
        assert_eq!(route(&other, &["bar", "hello"]), Route::To(5_061, &node('b')));
        // Without slots, and without a head that it follows, it knows of none that has the keys which it would have.
        assert_eq!((other.route_all(), other.head()), (Route::Nowhere, None));
        assert!(!other.heads_any() && seen.heads_any());
        let replica = SlotRange { replicas: vec![0], ..range(5_000, 12_181, Some(1)) };
        let keeps = |me, keys: &[&str]| {
            let seen = view(me, vec![replica.clone(), range(12_182, 12_182, Some(2))]).unwrap();
            seen.keeps(keys.iter().map(|key| key.as_bytes()))
        };
        assert!(keeps(0, &["bar"]) && keeps(1, &["bar", "bar"]) && keeps(2, &["foo"]));
        assert!(!keeps(2, &["bar"]) && !keeps(0, &["bar", "foo"]) && !keeps(0, &["hello"]));
    }

    #[test]
    fn the_head_of_all_slots_routes_nothing_and_a_cluster_without_heads_everything_nowhere() {
        let whole = view(2, vec![range(8_192, 16_383, Some(2)), range(0, 8_191, Some(2))]).unwrap();
        assert!(whole.heads_all);
        assert_eq!(route(&whole, &["foo", "bar"]), Route::Here);
        let headless = view(0, vec![range(0, 16_383, None)]).unwrap();
        assert_eq!(route(&headless, &["foo"]), Route::Nowhere);
        assert_eq!((headless.route_all(), headless.head()), (Route::Nowhere, None));
        let all_but_one = view(0, vec![range(1, 16_383, Some(0))]).unwrap();
        assert!(!all_but_one.heads_all);
        assert_eq!(route(&all_but_one, &[""]), Route::Nowhere);
    }

    #[test]
    fn a_follower_sends_to_the_head_of_its_own_slots() {
        let follows = |replicas: [Vec<usize>; 2]| {
            let [first, second] = replicas;
            let first = SlotRange { replicas: first, ..range(0, 8_191, Some(1)) };
            view(0, vec![first, SlotRange { replicas: second, ..range(8_192, 16_383, Some(2)) }]).unwrap()
        };
        let seen = follows([vec![], vec![0]]);
        assert_eq!((seen.route_all(), seen.head()), (Route::To(8_192, &node('c')), Some(&node('c'))));
        assert_eq!(follows([vec![0], vec![]]).route_all(), Route::To(0, &node('b')));
        assert_eq!(follows([vec![], vec![]]).route_all(), Route::Nowhere);
        let alone = view(0, vec![range(0, 16_383, Some(1))]).unwrap();
        assert_eq!(alone.route_all(), Route::To(0, &node('b')));
    }

    #[test]
    fn the_port_is_that_of_the_client_or_the_only_one() {
        let ports = |port, tls_port| {
            let node = ClusterNode { port, tls_port, ..node('a') };
            (node.port_for(false), node.port_for(true))
        };
        assert_eq!(ports(1, None), (1, 1));
        assert_eq!(ports(1, Some(2)), (1, 2));
        assert_eq!(ports(0, Some(2)), (2, 2));
    }

    #[test]
    fn views_that_do_not_fit_are_refused_by_name() {
        let refused = |seen: Result<ClusterView, String>, part: &str| {
            let why = seen.unwrap_err();
            assert!(why.contains(part), "{why}");
        };
        refused(view(0, vec![range(2, 1, None)]), "2 to 1");
        refused(view(0, vec![range(0, 16_384, None)]), "0 to 16384");
        refused(view(0, vec![range(5, 9, None), range(0, 5, None)]), "slot 5 is in two ranges");
        refused(view(0, vec![range(0, 1, Some(3))]), "0 to 1 name a node");
        refused(view(0, vec![SlotRange { replicas: vec![1], ..range(0, 1, Some(1)) }]), "one twice");
        let alone = |node: ClusterNode| ClusterView::new(1, &node.id.clone(), vec![node], Vec::new());
        assert!(alone(node('a')).is_ok());
        refused(alone(ClusterNode { id: "abc".into(), ..node('a') }), "\"abc\"");
        refused(alone(node('A')), "lower case");
        for host in ["", "a b", "a\r\n", "a,b", "a@b", &"a".repeat(256)] {
            refused(alone(ClusterNode { host: host.into(), ..node('a') }), "host");
        }
        refused(alone(ClusterNode { port: 0, ..node('a') }), "port 0");
        refused(alone(ClusterNode { tls_port: Some(0), ..node('a') }), "port 0");
        refused(ClusterView::new(1, &node('b').id, vec![node('a')], Vec::new()), "own id");
        refused(ClusterView::new(1, &node('a').id, vec![node('a'), node('a')], Vec::new()), "two nodes");
    }
}
