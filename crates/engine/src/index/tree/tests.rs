//! The tree against an ordered map, and its own invariants.

use std::collections::BTreeMap;

use std::ops::Bound;

use super::*;
use crate::format::Space;

type Model = BTreeMap<Vec<u8>, u64>;

impl Kept for u64 {
    const SPACE: Space = Space::Omap;
}

/// Pages as they were saved last.
type Saved = BTreeMap<PageId, Vec<(Vec<u8>, u64)>>;

fn leaf_of(entries: &[(Vec<u8>, u64)]) -> SavedLeaf<u64> {
    let mut leaf = SavedLeaf::new();
    assert!(entries.iter().all(|(key, value)| leaf.push(key, *value)));
    leaf
}

fn place_of(id: PageId) -> Loc {
    Loc::new(u64::from(id) * 4096, 64, 0)
}

fn bring(tree: &mut Tree<u64>, saved: &Saved, missing: &[Missing]) {
    for missing in missing {
        let id = missing.page as PageId;
        assert_eq!(missing.loc, place_of(id));
        assert!(tree.restore(id, missing.loc, leaf_of(&saved[&id])), "page {id} fits where it was");
    }
}

/// Looks until nothing is missing.
fn look<R>(tree: &mut Tree<u64>, saved: &Saved, f: impl Fn(&Tree<u64>) -> Result<R, Missing>) -> R {
    loop {
        match f(tree) {
            Ok(found) => return found,
            Err(missing) => bring(tree, saved, &[missing]),
        }
    }
}

fn bring_at(tree: &mut Tree<u64>, saved: &Saved, key: &[u8]) {
    let missing = tree.missing_at(key);
    bring(tree, saved, missing.as_slice());
}

fn bring_between(tree: &mut Tree<u64>, saved: &Saved, start: Option<&[u8]>, end: Option<&[u8]>) {
    let mut missing = Vec::new();
    tree.missing_between(start, end, &mut missing);
    bring(tree, saved, &missing);
}

impl Tree<u64> {
    fn heap_of(&self, id: PageId) -> usize {
        match &self.leaves[id as usize].body {
            Body::Hot(page) => page.heap_bytes(),
            Body::Cold(_) => 0,
        }
    }

    fn check(&self) {
        let mut leaves = vec![];
        if self.root != NONE {
            self.check_below(self.root, 0, &[], None, &mut leaves);
        }
        assert_eq!(leaves.len(), self.page_count());
        assert_eq!(leaves.first().copied().unwrap_or(NONE), self.first_leaf);
        assert_eq!(leaves.last().copied().unwrap_or(NONE), self.last_leaf);
        for pair in leaves.windows(2) {
            assert_eq!(self.leaves[pair[0] as usize].next, pair[1]);
            assert_eq!(self.leaves[pair[1] as usize].previous, pair[0]);
        }
        let cold = leaves.iter().filter(|id| self.cold_page(**id).is_some()).count() as u64;
        assert_eq!(cold, self.cold);
        if cold == 0 {
            let keys: usize = leaves.iter().map(|id| self.hot(*id).unwrap().len()).sum();
            assert_eq!(keys as u64, self.len);
        }
        assert_eq!((0..self.page_numbers()).map(|id| self.heap_of(id)).sum::<usize>(), self.page_bytes);
        assert_eq!(self.inners.iter().map(|inner| inner.page.heap_bytes()).sum::<usize>(), self.inner_bytes);
    }

    fn check_below(&self, id: u32, depth: u32, low: &[u8], high: Option<&[u8]>, leaves: &mut Vec<u32>) {
        if depth == self.height {
            if self.cold_page(id).is_some() {
                leaves.push(id);
                return;
            }
            let page = self.hot(id).unwrap();
            page.check();
            assert!(page.len() > 0 && page.key(0) >= low);
            assert!(high.is_none_or(|high| page.key(page.len() - 1) < high));
            leaves.push(id);
            return;
        }
        let inner = &self.inners[id as usize];
        inner.page.check();
        assert!(depth > 0 || inner.page.len() > 0);
        for nth in 0..=inner.page.len() {
            let low = if nth == 0 { low } else { inner.page.key(nth - 1) };
            let high = if nth == inner.page.len() { high } else { Some(inner.page.key(nth)) };
            self.check_below(inner.child(nth), depth + 1, low, high, leaves);
        }
    }
}

/// Keys of one shape, so that runs differ in length, shared prefixes and order.
fn key(rng: &mut fastrand::Rng, shape: u32, space: u64) -> Vec<u8> {
    let nth = rng.u64(..space);
    match shape {
        0 => nth.to_be_bytes().to_vec(),
        1 => format!("user:{nth}").into_bytes(),
        2 => nth.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes().repeat(2),
        3 => vec![b'a' + (nth % 3) as u8; (nth % 60) as usize],
        4 => [vec![7; (nth * 37 % 4080) as usize], nth.to_be_bytes().to_vec()].concat(),
        5 => [vec![0; 4088], nth.to_be_bytes().to_vec()].concat(),
        _ => nth.to_be_bytes()[(nth % 9) as usize..].to_vec(),
    }
}

fn bound(rng: &mut fastrand::Rng, key: &[u8]) -> Bound<Vec<u8>> {
    match rng.u32(..5) {
        0 => Bound::Unbounded,
        1 | 2 => Bound::Included(key.to_vec()),
        _ => Bound::Excluded(key.to_vec()),
    }
}

fn check_scan(tree: &mut Tree<u64>, saved: &Saved, model: &Model, start: &Bound<Vec<u8>>, end: &Bound<Vec<u8>>) {
    let inside = |key: &Vec<u8>| {
        (match start {
            Bound::Unbounded => true,
            Bound::Included(start) => key >= start,
            Bound::Excluded(start) => key > start,
        }) && match end {
            Bound::Unbounded => true,
            Bound::Included(end) => key <= end,
            Bound::Excluded(end) => key < end,
        }
    };
    let mut expected: Vec<_> = model.iter().filter(|(key, _)| inside(key)).map(|(k, v)| (k.clone(), *v)).collect();
    let (start, end) = (start.as_ref().map(|key| &key[..]), end.as_ref().map(|key| &key[..]));
    let scan = |tree: &Tree<u64>, reverse: bool| -> Result<Vec<_>, Missing> {
        tree.scan(start, end, reverse).map(|entry| entry.map(|(key, value)| (key.to_vec(), value))).collect()
    };
    assert!(look(tree, saved, |tree| scan(tree, false)) == expected, "{start:?} {end:?}");
    expected.reverse();
    assert!(look(tree, saved, |tree| scan(tree, true)) == expected, "{start:?} {end:?} reverse");
}

/// How many pages left memory and came back.
fn run(seed: u64, shape: u32) -> (u64, u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut tree, mut model) = (Tree::new(), Model::new());
    let space = [50, 1_000, 20_000][rng.usize(..3)];
    let mut saved = Saved::new();
    let mut kept = (Tree::new(), Model::new());
    let (mut dropped, mut brought) = (0, 0);
    for step in 0..6_000_u64 {
        // Phases of growth and of decay.
        let growing = step / 1_500 % 2 == 0;
        let key = key(&mut rng, shape, space);
        let choice = rng.u32(..100);
        let cold = tree.cold_pages();
        match choice {
            0..80 | 89 => bring_at(&mut tree, &saved, &key),
            88 => bring_between(&mut tree, &saved, Some(&key), Some(&key)),
            _ => {}
        }
        match choice {
            0..70 if growing => assert_eq!(tree.insert(&key, step), model.insert(key, step)),
            0..70 => assert_eq!(tree.remove(&key), model.remove(&key)),
            70..75 => assert_eq!(tree.insert(&key, step), model.insert(key, step)),
            75..80 => assert_eq!(tree.remove(&key), model.remove(&key)),
            80..88 => assert_eq!(look(&mut tree, &saved, |tree| tree.get(&key)), model.get(&key).copied()),
            88 => {
                let floor = model.range(..=key.clone()).next_back();
                assert_eq!(tree.floor(&key), floor.map(|(key, value)| (&key[..], *value)));
                let from = floor.map_or(&[][..], |(key, _)| &key[..]);
                let expected =
                    model.iter().filter(|(key, _)| &key[..] >= from).map(|(key, value)| (key.clone(), *value));
                let scan = |tree: &Tree<u64>| -> Result<Vec<_>, Missing> {
                    tree.scan_from_floor(&key).map(|entry| entry.map(|(key, value)| (key.to_vec(), value))).collect()
                };
                assert!(look(&mut tree, &saved, scan).into_iter().eq(expected));
            }
            89 => {
                if let Some(value) = tree.get_mut(&key) {
                    *value += 1;
                    *model.get_mut(&key).expect("the tree has it") += 1;
                }
            }
            90 if !growing || step % 10 == 0 => {
                let end = self::key(&mut rng, shape, space);
                let end = (step % 7 != 0).then_some(end).filter(|_| growing || step % 3 != 0);
                let doomed: Vec<_> = model
                    .iter()
                    .filter(|(have, _)| **have >= key && end.as_ref().is_none_or(|end| *have < end))
                    .map(|(key, value)| (key.clone(), *value))
                    .collect();
                bring_between(&mut tree, &saved, Some(&key), end.as_deref());
                let mut gone = vec![];
                let count = tree.remove_range(&key, end.as_deref(), |key, value| gone.push((key.to_vec(), value)));
                assert_eq!((count, gone), (doomed.len() as u64, doomed.clone()));
                for (key, _) in &doomed {
                    model.remove(key);
                }
            }
            91 if step % 50 == 0 => {
                tree.clear();
                model.clear();
            }
            92 => {
                let other = self::key(&mut rng, shape, space);
                check_scan(&mut tree, &saved, &model, &bound(&mut rng, &key), &bound(&mut rng, &other));
            }
            93 => {
                // A checkpoint of only the changed pages has all entries.
                for id in tree.dirty_pages() {
                    saved.insert(id, tree.page_entries(id).map(|(key, value)| (key.to_vec(), value)).collect());
                }
                tree.clear_dirty();
                assert_eq!(tree.dirty_pages().next(), None);
                let all: Model = saved.values().flatten().cloned().collect();
                assert!(all == model, "seed {seed} shape {shape} step {step}");
                let pages = saved.iter().filter(|(_, entries)| !entries.is_empty());
                let pages = pages
                    .map(|(id, entries)| {
                        let cold = (rng.u32(..3) == 0).then(|| place_of(*id));
                        (*id, leaf_of(entries).finish(cold).expect("a leaf with entries"))
                    })
                    .collect();
                tree = Tree::from_leaves(pages, tree.page_numbers()).expect("the pages fit together");
                tree.check();
                // What was cloned before has not changed since.
                let (clone, then) = &mut kept;
                clone.check();
                check_scan(clone, &saved, then, &Bound::Unbounded, &Bound::Unbounded);
                bring_between(&mut tree, &saved, None, None);
                kept = (tree.clone(), model.clone());
            }
            94 | 95 => {
                for id in 0..tree.page_numbers() {
                    if rng.bool()
                        && let Dropped::Freed(_) = tree.drop_page(id, place_of(id))
                    {
                        dropped += 1;
                    }
                }
            }
            _ if tree.cold_pages() > 0 => {}
            _ => {
                assert_eq!(tree.last(), model.last_key_value().map(|(key, value)| (&key[..], *value)));
            }
        }
        brought += cold.saturating_sub(tree.cold_pages());
        assert_eq!(tree.len(), model.len() as u64);
        if step % 200 == 0 {
            tree.check();
        }
    }
    tree.check();
    check_scan(&mut tree, &saved, &model, &Bound::Unbounded, &Bound::Unbounded);
    (dropped, brought)
}

#[test]
fn the_tree_answers_like_an_ordered_map() {
    let mut moved = (0, 0);
    for shape in 0..7 {
        for seed in 0..6 {
            println!("seed {seed} shape {shape}");
            let (dropped, brought) = run(seed, shape);
            moved = (moved.0 + dropped, moved.1 + brought);
        }
    }
    assert!(moved.0 > 100 && moved.1 > 100, "{moved:?} pages left and came back");
}

#[test]
fn ascending_keys_leave_full_pages_and_memory_returns_after_deletes() {
    let mut tree = Tree::new();
    for nth in 0..100_000_u64 {
        tree.insert(&nth.to_be_bytes(), nth);
    }
    tree.check();
    let full = tree.memory_bytes();
    assert!(full < 100_000 * 22 * 100 / 90, "{full} bytes for 22 each");
    for nth in (0..100_000_u64).filter(|nth| nth % 20 != 0) {
        assert_eq!(tree.remove(&nth.to_be_bytes()), Some(nth));
    }
    tree.check();
    assert!(tree.memory_bytes() < full / 5, "{} of {full} bytes", tree.memory_bytes());
    assert_eq!(tree.remove_range(&[], None, |_, _| ()), 5_000);
    tree.check();
    assert!(tree.is_empty() && tree.memory_bytes() < 2_000);
    assert_eq!(tree.insert(b"", 1), None);
    assert_eq!((tree.get(b""), tree.len(), tree.page_count()), (Ok(Some(1)), 1, 1));
}

#[test]
#[should_panic(expected = "TREE_KEY_BYTES_MAX")]
fn a_key_above_the_limit_is_refused() {
    Tree::new().insert(&[0; TREE_KEY_BYTES_MAX + 1], 0_u64);
}

/// A leaf that was looked at since it was last asked stays once more; a clone sees nothing of its leaving.
#[test]
fn a_leaf_that_was_used_leaves_the_second_time() {
    let mut tree: Tree<u64> = Tree::new();
    (0..40_000_u64).for_each(|key| assert_eq!(tree.insert(&key.to_be_bytes(), key), None));
    tree.clear_dirty();
    let clone = tree.clone();
    for key in [0_u64, 20_000, 39_999] {
        let bytes = key.to_be_bytes();
        let id = tree.descend(&bytes);
        assert_eq!(tree.get(&bytes).unwrap(), Some(key));
        assert_eq!(tree.drop_page(id, place_of(id)), Dropped::Used);
        assert!(matches!(tree.drop_page(id, place_of(id)), Dropped::Freed(_)));
        assert_eq!((tree.cold_page(id), clone.cold_page(id)), (Some(place_of(id)), None));
        assert!(tree.get(&bytes).is_err() && clone.get(&bytes).unwrap() == Some(key));
        let entries: Vec<_> = clone.page_entries(id).map(|(key, value)| (key.to_vec(), value)).collect();
        assert!(tree.restore(id, place_of(id), leaf_of(&entries)));
        assert_eq!(tree.get(&bytes).unwrap(), Some(key));
    }
    assert_eq!((tree.cold_pages(), clone.cold_pages()), (0, 0));
    tree.check();
}
