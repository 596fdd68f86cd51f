//! A checker of histories in which transactions append numbers to lists and read them, after Elle (Kingsbury, Alvaro,
//! VLDB 2020).
//!
//! A list that was read tells in what order its numbers were appended, and so what each transaction overwrote and which
//! versions it saw: ww: wrote the version after another's · wr: read another's version · rw: read a version that
//! another wrote over · rt: began after another had ended. Each number is appended once. A history that has an anomaly
//! need not show it; one that is shown is there.
//!
//! Invariant: an anomaly that is returned names the transactions of its cycle.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a transaction did to a list.
#[derive(Clone, Debug)]
pub enum Op {
    Append(u64, u64),
    Read(u64, Vec<u64>),
}

/// Whether a transaction was committed, as its client was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Committed,
    Refused,
    Unknown,
}

/// A transaction of a history; times are of one clock.
#[derive(Clone, Debug)]
pub struct Done {
    pub ops: Vec<Op>,
    pub outcome: Outcome,
    pub began: u64,
    pub ended: u64,
}

/// How two transactions are tied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Edge {
    Ww,
    Wr,
    Rw,
    Rt,
}

/// What is wrong with a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Anomaly {
    /// A number of a refused transaction was read.
    AbortedRead(u64),
    /// A number was read that no transaction appended, or twice in one list.
    Garbage(u64),
    /// Two lists were read of which neither is the beginning of the other; or a transaction does not see its own
    /// appends last.
    Incompatible(u64),
    /// A transaction shows a part of what it appended to one list.
    Intermediate(u64),
    /// Two reads of a list in one transaction differ by more than its own appends.
    Unrepeatable(usize),
    /// A number that was appended is not in a list that was read after that.
    Lost(u64),
    /// A cycle of ww.
    G0(Vec<usize>),
    /// A cycle of ww and wr.
    G1c(Vec<usize>),
    /// A cycle with one rw.
    GSingle(Vec<usize>),
    /// A cycle with several rw: write skew among them.
    G2(Vec<usize>),
    /// A cycle only with the order of time.
    Realtime(Vec<usize>),
}

type Graph = BTreeMap<usize, BTreeMap<usize, BTreeSet<Edge>>>;

fn tie(graph: &mut Graph, from: usize, to: usize, edge: Edge) {
    if from != to {
        graph.entry(from).or_default().entry(to).or_default().insert(edge);
    }
}

/// The shortest way by edges of these kinds.
fn way(graph: &Graph, from: usize, to: usize, kinds: &[Edge]) -> Option<Vec<usize>> {
    let mut before: BTreeMap<usize, usize> = BTreeMap::new();
    let mut queue = VecDeque::from([from]);
    while let Some(at) = queue.pop_front() {
        for (next, edges) in graph.get(&at).into_iter().flatten() {
            if !kinds.iter().any(|kind| edges.contains(kind)) || before.contains_key(next) {
                continue;
            }
            before.insert(*next, at);
            if *next == to {
                let mut path = vec![to];
                while let Some(last) = path.last()
                    && (*last != from || path.len() == 1)
                {
                    path.push(before[last]);
                }
                path.reverse();
                return Some(path);
            }
            queue.push_back(*next);
        }
    }
    None
}

/// A cycle with an edge of `one` in it, the rest of it of `kinds`.
fn cycle(graph: &Graph, one: Edge, kinds: &[Edge]) -> Option<Vec<usize>> {
    for (from, ties) in graph {
        for (to, edges) in ties {
            if edges.contains(&one)
                && let Some(path) = way(graph, *to, *from, kinds)
            {
                return Some([vec![*from], path].concat());
            }
        }
    }
    None
}

/// The worst that is wrong with a history, by kind; each kind once.
pub fn check(history: &[Done]) -> Vec<Anomaly> {
    let mut found = Vec::new();
    // Who appended what, and the lists as they grew.
    let mut writer: BTreeMap<(u64, u64), usize> = BTreeMap::new();
    let mut longest: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for (number, done) in history.iter().enumerate() {
        for op in &done.ops {
            if let Op::Append(list, value) = op {
                writer.insert((*list, *value), number);
            }
        }
    }
    // Reads without the transaction's own appends behind them.
    let mut reads: Vec<(usize, u64, Vec<u64>)> = Vec::new();
    for (number, done) in history.iter().enumerate() {
        if done.outcome != Outcome::Committed {
            continue;
        }
        let mut own: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let mut seen: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for op in &done.ops {
            match op {
                Op::Append(list, value) => own.entry(*list).or_default().push(*value),
                Op::Read(list, values) => {
                    let own = own.entry(*list).or_default();
                    let Some(others) = values.strip_suffix(&own[..]) else {
                        found.push(Anomaly::Incompatible(*list));
                        continue;
                    };
                    let others = others.to_vec();
                    if seen.insert(*list, others.clone()).is_some_and(|earlier| earlier != others) {
                        found.push(Anomaly::Unrepeatable(number));
                    }
                    reads.push((number, *list, others));
                }
            }
        }
    }
    for (number, list, values) in &reads {
        let mut once = BTreeSet::new();
        for value in values {
            match writer.get(&(*list, *value)) {
                Some(by) if by != number && once.insert(*value) => {
                    if history[*by].outcome == Outcome::Refused {
                        found.push(Anomaly::AbortedRead(*value));
                    }
                }
                _ => found.push(Anomaly::Garbage(*value)),
            }
        }
        let known = longest.entry(*list).or_default();
        if known.starts_with(values) {
        } else if values.starts_with(known) {
            known.clone_from(values);
        } else {
            found.push(Anomaly::Incompatible(*list));
        }
    }
    for done in history.iter().filter(|done| done.outcome == Outcome::Committed) {
        for op in &done.ops {
            let Op::Append(list, value) = op else { continue };
            let read_later = reads.iter().any(|(number, read, _)| read == list && history[*number].began > done.ended);
            if read_later && !longest.get(list).is_some_and(|values| values.contains(value)) {
                found.push(Anomaly::Lost(*value));
            }
        }
    }
    if !found.is_empty() {
        return found;
    }
    let mut graph = Graph::new();
    for (list, values) in &longest {
        for pair in values.windows(2) {
            tie(&mut graph, writer[&(*list, pair[0])], writer[&(*list, pair[1])], Edge::Ww);
        }
    }
    for (number, list, values) in &reads {
        let order = &longest[list];
        if let Some(last) = values.last() {
            let by = writer[&(*list, *last)];
            let next = order.get(values.len());
            if next.is_some_and(|next| writer[&(*list, *next)] == by) {
                found.push(Anomaly::Intermediate(*last));
            }
            tie(&mut graph, by, *number, Edge::Wr);
        }
        if let Some(next) = order.get(values.len()) {
            tie(&mut graph, *number, writer[&(*list, *next)], Edge::Rw);
        }
    }
    use Edge::{Rt, Rw, Wr, Ww};
    if let Some(cycle) = cycle(&graph, Ww, &[Ww]) {
        found.push(Anomaly::G0(cycle));
    }
    if let Some(cycle) = cycle(&graph, Wr, &[Ww, Wr]) {
        found.push(Anomaly::G1c(cycle));
    }
    if let Some(cycle) = cycle(&graph, Rw, &[Ww, Wr]) {
        found.push(Anomaly::GSingle(cycle));
    } else if let Some(cycle) = cycle(&graph, Rw, &[Ww, Wr, Rw]) {
        found.push(Anomaly::G2(cycle));
    }
    if found.is_empty() {
        // Of transactions that are known to be committed; one whose end its client did not see ended some time after it
        // began.
        let tied: BTreeSet<usize> = (0..history.len())
            .filter(|number| {
                history[*number].outcome == Outcome::Committed
                    || graph.contains_key(number)
                    || graph.values().any(|ties| ties.contains_key(number))
            })
            .collect();
        for a in tied.iter().filter(|number| history[**number].outcome == Outcome::Committed) {
            for b in &tied {
                if history[*a].ended < history[*b].began {
                    tie(&mut graph, *a, *b, Rt);
                }
            }
        }
        if let Some(cycle) = cycle(&graph, Rt, &[Ww, Wr, Rw, Rt]) {
            found.push(Anomaly::Realtime(cycle));
        }
    }
    found
}

mod tests {
    use super::*;

    fn at(began: u64, ops: &[Op]) -> Done {
        Done { ops: ops.to_vec(), outcome: Outcome::Committed, began, ended: 100 }
    }

    fn append(list: u64, value: u64) -> Op {
        Op::Append(list, value)
    }

    fn read(list: u64, values: &[u64]) -> Op {
        Op::Read(list, values.to_vec())
    }

    #[test]
    fn a_serial_history_has_nothing_wrong() {
        let history = [
            at(0, &[append(1, 10), append(2, 20)]),
            at(0, &[read(1, &[10]), append(1, 11), read(1, &[10, 11])]),
            at(0, &[read(2, &[20]), read(1, &[10, 11])]),
            at(0, &[read(1, &[]), read(2, &[])]),
        ];
        assert_eq!(check(&history), []);
    }

    #[test]
    fn a_cycle_of_writes_is_found() {
        let history = [
            at(0, &[append(1, 10), append(2, 20)]),
            at(0, &[append(1, 11), append(2, 21)]),
            at(0, &[read(1, &[10, 11])]),
            at(0, &[read(2, &[21, 20])]),
        ];
        assert!(matches!(check(&history)[..], [Anomaly::G0(_), ..]), "{:?}", check(&history));
    }

    #[test]
    fn a_cycle_of_reads_of_each_other_is_found() {
        let history = [at(0, &[append(1, 10), read(2, &[20])]), at(0, &[append(2, 20), read(1, &[10])])];
        assert!(matches!(check(&history)[..], [Anomaly::G1c(_)]), "{:?}", check(&history));
    }

    #[test]
    fn read_skew_and_lost_updates_are_found() {
        let skew = [
            at(0, &[append(1, 10), append(2, 20)]),
            at(0, &[read(1, &[]), read(2, &[20])]),
            at(0, &[read(1, &[10]), read(2, &[20])]),
        ];
        assert!(matches!(check(&skew)[..], [Anomaly::GSingle(_)]), "{:?}", check(&skew));
        let lost = [
            at(0, &[read(1, &[]), append(1, 10)]),
            at(0, &[read(1, &[]), append(1, 11)]),
            at(0, &[read(1, &[10, 11])]),
        ];
        assert!(matches!(check(&lost)[..], [Anomaly::GSingle(_)]), "{:?}", check(&lost));
    }

    #[test]
    fn write_skew_is_found_and_told_from_read_skew() {
        let history = [
            at(0, &[read(1, &[]), append(2, 20)]),
            at(0, &[read(2, &[]), append(1, 10)]),
            at(0, &[read(1, &[10]), read(2, &[20])]),
        ];
        assert!(matches!(check(&history)[..], [Anomaly::G2(_)]), "{:?}", check(&history));
    }

    #[test]
    fn stale_reads_are_found_by_time() {
        let mut history = [at(0, &[append(1, 10)]), at(6, &[read(1, &[])]), at(7, &[read(1, &[10])])];
        history[0].ended = 5;
        assert!(matches!(check(&history)[..], [Anomaly::Realtime(_)]), "{:?}", check(&history));
        history[1].began = 5;
        assert_eq!(check(&history), []);
    }

    #[test]
    fn reads_of_refused_partial_and_made_up_values_are_found() {
        let mut refused = [at(0, &[append(1, 10)]), at(0, &[read(1, &[10])])];
        refused[0].outcome = Outcome::Refused;
        assert_eq!(check(&refused), [Anomaly::AbortedRead(10)]);
        refused[0].outcome = Outcome::Unknown;
        assert_eq!(check(&refused), []);
        let partial = [at(0, &[append(1, 10), append(1, 11)]), at(0, &[read(1, &[10])]), at(0, &[read(1, &[10, 11])])];
        assert!(check(&partial).contains(&Anomaly::Intermediate(10)));
        assert_eq!(check(&[at(0, &[read(1, &[7])])]), [Anomaly::Garbage(7)]);
        let twice = [at(0, &[append(1, 10)]), at(0, &[read(1, &[10, 10])])];
        assert_eq!(check(&twice), [Anomaly::Garbage(10)]);
        let apart =
            [at(0, &[append(1, 10)]), at(0, &[append(1, 11)]), at(0, &[read(1, &[10])]), at(0, &[read(1, &[11])])];
        assert_eq!(check(&apart), [Anomaly::Incompatible(1)]);
        let mut lost = [at(0, &[append(1, 10)]), at(6, &[read(1, &[])])];
        lost[0].ended = 5;
        assert_eq!(check(&lost), [Anomaly::Lost(10)]);
        let changing = [at(0, &[append(1, 10)]), at(0, &[read(1, &[]), read(1, &[10])])];
        assert!(check(&changing).contains(&Anomaly::Unrepeatable(1)));
    }
}
