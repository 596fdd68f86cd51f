//! Which chain keeps which slots of keys, where several chains share them, and which is to.
//!
//! chains, in order → even parts of the slots → JSON → node → JSON → checked → parts
//! → a plan: which chain is to keep which → slots go over one after the other, each with one epoch more → no plan
//!
//! Invariants:
//! 1. Each slot is in one part, and parts stand in the order of their slots.
//! 2. The epoch of a slot only grows: of two views of it the one of the higher epoch is the newer.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::records::{decoded, encoded};

/// How many slots there are: those of Redis Cluster, by CRC16 of the key or of its tag.
pub const SLOTS: u16 = 16_384;

/// Longest record, in bytes: the coordinator takes none above a mebibyte.
const RECORD_BYTES_MAX: usize = 1_000_000;

/// A part of the slots, and the chain that keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainSlots {
    /// The first slot.
    pub first: u16,
    /// The last slot.
    pub last: u16,
    /// The name of the chain.
    pub chain: String,
    /// How often each of them has gone to another chain.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub epoch: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the serializer passes references")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A slot that is to go to another chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due<'s> {
    /// The slot.
    pub slot: u16,
    /// Its epoch, before it goes.
    pub epoch: u64,
    /// The chain that is to keep it.
    pub to: &'s str,
}

/// All slots, in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots {
    parts: Vec<ChainSlots>,
    /// Which chain is to keep which; empty: there is no plan.
    plan: Vec<ChainSlots>,
    /// Chains that share the slots and have none any more.
    beside: BTreeSet<String>,
    /// Chains that are to have some by the plan, and have had none.
    joining: BTreeSet<String>,
}

#[derive(Serialize, Deserialize)]
struct SlotsJson {
    ranges: Vec<ChainSlots>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    plan: Vec<ChainSlots>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    beside: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    joining: BTreeSet<String>,
}

/// Adjacent slots of one chain and epoch as one part.
fn joined(slots: impl Iterator<Item = (String, u64)>) -> Vec<ChainSlots> {
    let mut parts: Vec<ChainSlots> = Vec::new();
    for (slot, (chain, epoch)) in (0..SLOTS).zip(slots) {
        match parts.last_mut() {
            Some(part) if part.chain == chain && part.epoch == epoch => part.last = slot,
            _ => parts.push(ChainSlots { first: slot, last: slot, chain, epoch }),
        }
    }
    parts
}

fn part_of(parts: &[ChainSlots], slot: u16) -> Option<&ChainSlots> {
    parts.get(parts.partition_point(|part| part.last < slot))
}

impl Slots {
    /// An even part of the slots for each of these chains, in their order; `None`: for so many there are not enough, or
    /// there is no chain.
    pub fn even(chains: &[&str]) -> Option<Self> {
        let count = u16::try_from(chains.len()).ok().filter(|count| (1..=SLOTS).contains(count))?;
        // Sixteen bits are too few for the product.
        let begins = |at: usize| (at as u64 * u64::from(SLOTS) / u64::from(count)) as u16;
        let part = |(at, chain): (usize, &&str)| ChainSlots {
            first: begins(at),
            last: begins(at + 1) - 1,
            chain: (*chain).to_owned(),
            epoch: 0,
        };
        let parts = chains.iter().enumerate().map(part).collect();
        Some(Self { parts, plan: Vec::new(), beside: BTreeSet::new(), joining: BTreeSet::new() })
    }

    /// The parts, in the order of their slots.
    pub fn parts(&self) -> &[ChainSlots] {
        &self.parts
    }

    /// Whether this chain keeps some.
    pub fn are_kept_by(&self, chain: &str) -> bool {
        self.parts.iter().any(|part| part.chain == chain)
    }

    /// Whether this chain is one of those that share them, also where it keeps none now.
    pub fn are_shared_by(&self, chain: &str) -> bool {
        self.are_kept_by(chain) || self.beside.contains(chain) || self.joining.contains(chain)
    }

    /// The part that a slot is in.
    pub fn part_of(&self, slot: u16) -> Option<&ChainSlots> {
        part_of(&self.parts, slot)
    }

    /// The chains that share them, and how many slots each of them keeps, by name.
    pub fn shares(&self) -> Vec<(&str, u16)> {
        shares(&self.parts, self.beside.iter().chain(&self.joining).map(String::as_str))
    }

    /// Slots of this chain that another is to keep, in their order.
    pub fn due_of(&self, chain: &str) -> impl Iterator<Item = Due<'_>> {
        let slots = self.parts.iter().filter(move |part| part.chain == chain && !self.plan.is_empty());
        let of_part = |part: &ChainSlots| (part.first..=part.last).map(|slot| (slot, part.epoch)).collect::<Vec<_>>();
        slots.flat_map(of_part).filter_map(move |(slot, epoch)| {
            let to = part_of(&self.plan, slot)?.chain.as_str();
            (to != chain).then_some(Due { slot, epoch, to })
        })
    }

    /// How many slots are to go to other chains.
    pub fn due(&self) -> usize {
        self.shares().iter().map(|(chain, _)| self.due_of(chain).count()).sum()
    }

    /// The same with these slots, each now of this epoch, at this chain; what is of a higher epoch already stays. A
    /// plan that has come true is over.
    #[must_use]
    pub fn with_moved(&self, moved: &[(u16, u64)], to: &str) -> Self {
        let mut each = self.each();
        for (slot, epoch) in moved {
            if let Some(known) = each.get_mut(usize::from(*slot)).filter(|(_, known)| known < epoch) {
                *known = (to.to_owned(), *epoch);
            }
        }
        let (kept, mut beside) = (joined(each.into_iter()), self.beside.clone());
        // One that has given its last slot away still shares them.
        beside.extend(self.parts.iter().map(|part| part.chain.clone()));
        beside.retain(|chain| !kept.iter().any(|part| part.chain == *chain));
        let joining = self.joining.iter().filter(|chain| !kept.iter().any(|part| part.chain == **chain)).cloned();
        let joining = joining.collect();
        Self { parts: kept, plan: self.plan.clone(), beside, joining }.ended()
    }

    /// The same with a plan that has these slots at a chain, which need not have any yet, and all others where they are
    /// to be already. `None`: one is no slot.
    #[must_use]
    pub fn with_plan(&self, slots: impl IntoIterator<Item = u16>, to: &str) -> Option<Self> {
        let mut each = self.planned();
        for slot in slots {
            to.clone_into(each.get_mut(usize::from(slot))?);
        }
        Some(self.planning(each))
    }

    /// The same with a plan that has even shares at these chains and none at others, and moves as few slots as that
    /// takes. `None`: for so many chains there are not enough slots, or there is no chain.
    #[must_use]
    pub fn with_even_plan(&self, chains: &[&str]) -> Option<Self> {
        let count = u16::try_from(chains.len()).ok().filter(|count| (1..=SLOTS).contains(count))?;
        let (least, mut larger) = (SLOTS / count, SLOTS % count);
        let mut each: Vec<String> = self.each().into_iter().map(|(chain, _)| chain).collect();
        let of = |each: &[String], chain: &str| each.iter().filter(|of| *of == chain).count();
        // Those that have the most keep one more where it does not come out even.
        let mut order: Vec<_> = chains.iter().map(|chain| (of(&each, chain), *chain)).collect();
        order.sort_by(|one, other| other.0.cmp(&one.0).then(one.1.cmp(other.1)));
        let mut wants: Vec<(&str, usize)> = Vec::new();
        let mut spare: Vec<usize> = (0..each.len()).filter(|slot| !chains.contains(&each[*slot].as_str())).collect();
        for (has, chain) in order {
            let share = usize::from(least + u16::from(larger > 0));
            larger = larger.saturating_sub(1);
            if has > share {
                let own: Vec<usize> = (0..each.len()).filter(|slot| each[*slot] == chain).collect();
                spare.extend(&own[share..]);
            } else {
                wants.push((chain, share - has));
            }
        }
        spare.sort_unstable();
        let mut spare = spare.into_iter();
        for (chain, wanted) in wants {
            spare.by_ref().take(wanted).for_each(|slot| chain.clone_into(&mut each[slot]));
        }
        Some(self.planning(each))
    }

    /// The same without a plan: what is under way is ended, the rest stays where it is.
    #[must_use]
    pub fn without_plan(&self) -> Self {
        Self { plan: Vec::new(), ..self.clone() }.ended()
    }

    /// Where nothing is to go any more there is no plan, and none joins by it.
    fn ended(mut self) -> Self {
        if self.due() == 0 {
            self.plan.clear();
            self.joining.clear();
        }
        self
    }

    fn planning(&self, each: Vec<String>) -> Self {
        let is_new = |chain: &&String| !self.are_kept_by(chain) && !self.beside.contains(*chain);
        let joining = each.iter().filter(is_new).cloned().collect();
        let plan = joined(each.into_iter().map(|chain| (chain, 0)));
        Self { parts: self.parts.clone(), plan, beside: self.beside.clone(), joining }.ended()
    }

    /// Chain and epoch of each slot.
    fn each(&self) -> Vec<(String, u64)> {
        let part = |part: &ChainSlots| (part.first..=part.last).map(|_| (part.chain.clone(), part.epoch)).collect();
        self.parts.iter().flat_map(|of| -> Vec<_> { part(of) }).collect()
    }

    /// The chain that is to keep each slot.
    fn planned(&self) -> Vec<String> {
        let parts = if self.plan.is_empty() { &self.parts } else { &self.plan };
        parts.iter().flat_map(|part| (part.first..=part.last).map(|_| part.chain.clone())).collect()
    }

    /// The shares that each chain has once the plan has come true, by name.
    pub fn planned_shares(&self) -> Vec<(&str, u16)> {
        let parts = if self.plan.is_empty() { &self.parts } else { &self.plan };
        let beside = self.beside.iter().chain(&self.joining).chain(self.parts.iter().map(|part| &part.chain));
        shares(parts, beside.map(String::as_str))
    }

    pub(crate) fn encoded(&self, node: &str) -> Result<Vec<u8>> {
        let Self { parts, plan, beside, joining } = self.clone();
        let data = encoded(node, &SlotsJson { ranges: parts, plan, beside, joining })?;
        if data.len() > RECORD_BYTES_MAX {
            let reason = format!("{} bytes of slots, at most {RECORD_BYTES_MAX}: too many parts", data.len());
            return Err(Error::Refused { node: node.to_owned(), reason });
        }
        Ok(data)
    }

    pub(crate) fn decoded(node: &str, data: &[u8]) -> Result<Self> {
        let SlotsJson { ranges, plan, beside, joining } = decoded(node, data)?;
        check(node, &ranges)?;
        if !plan.is_empty() {
            check(node, &plan)?;
        }
        Ok(Self { parts: ranges, plan, beside, joining })
    }
}

fn shares<'s>(parts: &'s [ChainSlots], beside: impl Iterator<Item = &'s str>) -> Vec<(&'s str, u16)> {
    let mut shares: std::collections::BTreeMap<&str, u16> = beside.map(|chain| (chain, 0)).collect();
    for part in parts {
        *shares.entry(part.chain.as_str()).or_default() += part.last - part.first + 1;
    }
    shares.into_iter().collect()
}

/// Refuses parts that do not hold each slot once, in order.
fn check(node: &str, parts: &[ChainSlots]) -> Result<()> {
    let mut next = 0;
    for part in parts {
        if part.first != next || part.last < part.first || part.last >= SLOTS {
            let reason = format!("slots {} to {} do not come after {next}", part.first, part.last);
            return Err(Error::Damaged { node: node.to_owned(), reason });
        }
        next = part.last + 1;
    }
    if next != SLOTS {
        return Err(Error::Damaged { node: node.to_owned(), reason: format!("slot {next} is in no part") });
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    #[test]
    fn parts_are_even_and_come_back_as_they_were() {
        let slots = Slots::even(&["a", "b", "c"]).unwrap();
        let ends: Vec<_> = slots.parts().iter().map(|part| (part.first, part.last, part.chain.as_str())).collect();
        assert_eq!(ends, [(0, 5_460, "a"), (5_461, 10_921, "b"), (10_922, 16_383, "c")]);
        assert_eq!(Slots::decoded("/s", &slots.encoded("/s").unwrap()).unwrap(), slots);
        assert!(slots.are_kept_by("b") && !slots.are_kept_by("d"));
        let most: Vec<_> = (0..SLOTS).map(|chain| chain.to_string()).collect();
        let most: Vec<_> = most.iter().map(String::as_str).collect();
        assert!(Slots::even(&most).unwrap().parts().iter().all(|part| part.first == part.last));
        assert_eq!((Slots::even(&[]), Slots::even(&[most, vec!["x"]].concat())), (None, None));
    }

    #[test]
    fn what_does_not_hold_each_slot_once_is_an_error_that_names_the_slot() {
        for (ranges, why) in [
            ("", "slot 0 is in no part"),
            (r#"{"first":0,"last":9,"chain":"a"}"#, "slot 10 is in no part"),
            (r#"{"first":1,"last":16383,"chain":"a"}"#, "slots 1 to 16383"),
            (r#"{"first":0,"last":16384,"chain":"a"}"#, "slots 0 to 16384"),
            (r#"{"first":0,"last":9,"chain":"a"},{"first":9,"last":16383,"chain":"b"}"#, "slots 9 to 16383"),
            (r#"{"first":0,"last":9,"chain":"a"},{"first":10,"last":5,"chain":"b"}"#, "slots 10 to 5"),
        ] {
            let error = Slots::decoded("/s", format!(r#"{{"ranges":[{ranges}]}}"#).as_bytes()).unwrap_err();
            assert!(error.to_string().contains(why) && error.to_string().contains("/s"), "{error}");
        }
    }

    fn shares_of(slots: &Slots) -> Vec<(String, u16)> {
        slots.shares().into_iter().map(|(chain, count)| (chain.to_owned(), count)).collect()
    }

    #[test]
    fn a_plan_comes_true_slot_by_slot_and_is_over() {
        let slots = Slots::even(&["a", "b"]).unwrap();
        let planned = slots.with_plan(8_190..=8_193, "c").unwrap();
        assert_eq!((planned.due(), planned.parts()), (4, slots.parts()));
        assert!(planned.are_shared_by("c") && !planned.are_kept_by("c") && !slots.are_shared_by("c"));
        let due: Vec<_> = planned.due_of("a").map(|due| (due.slot, due.epoch, due.to)).collect();
        assert_eq!(due, [(8_190, 0, "c"), (8_191, 0, "c")]);
        assert_eq!(Slots::decoded("/s", &planned.encoded("/s").unwrap()).unwrap(), planned);
        let half = planned.with_moved(&[(8_190, 1), (8_191, 1)], "c");
        assert_eq!((half.due(), half.due_of("a").count(), half.parts().len()), (2, 0, 3));
        assert_eq!(half.part_of(8_191).map(|part| (part.chain.as_str(), part.epoch)), Some(("c", 1)));
        // The same again, or what is older, changes nothing.
        assert_eq!(half.with_moved(&[(8_190, 1), (8_191, 0)], "b"), half);
        let whole = half.with_moved(&[(8_192, 1), (8_193, 1)], "c");
        assert_eq!((whole.due(), whole.plan.len(), whole.beside.len()), (0, 0, 0));
        assert_eq!(shares_of(&whole), [("a".into(), 8_190), ("b".into(), 8_190), ("c".into(), 4)]);
        assert_eq!(slots.with_plan([0, SLOTS], "c"), None);
        assert_eq!(slots.with_plan(0..=8_191, "a").unwrap(), slots, "they are there");
        assert_eq!(half.without_plan().due(), 0);
        // A chain that has had none is by itself again where the plan is given up.
        assert!(!planned.without_plan().are_shared_by("c") && half.without_plan().are_shared_by("c"));
        // A second plan goes on from the first.
        assert_eq!(planned.with_plan([0], "b").unwrap().due(), 5);
    }

    #[test]
    fn an_even_plan_moves_no_more_than_it_has_to() {
        let slots = Slots::even(&["a", "b"]).unwrap();
        let three = slots.with_even_plan(&["a", "b", "c"]).unwrap();
        assert_eq!(three.due(), 5_461);
        assert_eq!(three.planned_shares(), [("a", 5_462), ("b", 5_461), ("c", 5_461)]);
        let away = slots.with_even_plan(&["a"]).unwrap();
        assert_eq!((away.due(), away.due_of("a").count()), (8_192, 0));
        assert_eq!(slots.with_even_plan(&["b", "a"]).unwrap(), slots);
        assert_eq!(slots.with_even_plan(&[]), None);
        // What has given all away can be planned for again.
        let moved: Vec<_> = away.due_of("b").map(|due| (due.slot, due.epoch + 1)).collect();
        let gone = away.with_moved(&moved, "a");
        assert_eq!(shares_of(&gone), [("a".into(), SLOTS), ("b".into(), 0)]);
        assert!(gone.are_shared_by("b"));
        let back = gone.with_even_plan(&["a", "b"]).unwrap();
        assert_eq!((back.due(), back.planned_shares()), (8_192, vec![("a", 8_192), ("b", 8_192)]));
    }
}
