//! Slots against an ordered map, and their own invariants.

use super::page::SPARSE_MAX;
use super::*;

type Model = BTreeMap<u64, Loc>;

impl Slots {
    fn check(&self) {
        assert!(self.low.last().is_none_or(|page| page.count > 0));
        assert!(self.high.iter().all(|(number, page)| *number >= self.low.len() as u64 && page.count > 0));
        assert!(self.low_first <= self.low.len() && self.low[..self.low_first].iter().all(|page| page.count == 0));
        let low = self.low.iter().filter(|page| page.count > 0).count() as u64;
        assert_eq!(self.pages, low + self.high.len() as u64);
        let mut len = 0;
        for page in self.low.iter().chain(self.high.values()) {
            let count = match &page.body {
                Body::Dense(packed) => packed.raws().iter().filter(|raw| **raw != 0).count(),
                Body::Cold(_) => usize::from(page.count),
                Body::Sparse(list) => {
                    let list = list.entries(usize::from(page.count));
                    assert!(list.is_sorted_by(|a, b| a.0 < b.0) && list.len() <= SPARSE_MAX);
                    list.len()
                }
            };
            assert_eq!(count, usize::from(page.count));
            len += count as u64;
        }
        assert_eq!(len, self.len);
        let pages = || self.low.iter().chain(self.high.values());
        assert_eq!(pages().map(Page::heap_bytes).sum::<usize>(), self.page_bytes);
        assert_eq!(pages().map(|page| page.shape().stored_bytes).sum::<usize>(), self.stored_bytes);
        let sparse = pages().filter(|page| page.count > 0 && matches!(page.body, Body::Sparse(_))).count();
        assert_eq!(sparse as u64, self.sparse_pages());
        let mut widths = [0; SLOT_WIDTH_MAX + 1];
        pages().filter(|page| matches!(page.body, Body::Dense(_))).for_each(|page| widths[page.shape().width] += 1);
        assert_eq!(widths, self.widths());
        assert_eq!(pages().filter(|page| page.cold().is_some()).count() as u64, self.cold);
    }
}

/// Pages as they were saved last.
type Saved = BTreeMap<u64, Vec<(u64, Loc)>>;

fn bring(slots: &mut Slots, saved: &Saved, missing: &[Missing]) {
    for missing in missing {
        assert_eq!(missing.loc, place_of(missing.page));
        assert!(slots.restore(missing.page, missing.loc, SlotPage::of(&saved[&missing.page])), "page {}", missing.page);
    }
}

fn look<R>(slots: &mut Slots, saved: &Saved, f: impl Fn(&Slots) -> Result<R, Missing>) -> R {
    loop {
        match f(slots) {
            Ok(found) => return found,
            Err(missing) => bring(slots, saved, &[missing]),
        }
    }
}

fn place_of(number: u64) -> Loc {
    Loc::new(number % (1 << 30) * 4096, 64, 0)
}

fn a_loc(n: u64) -> Loc {
    Loc::new(n * 8, 64, 0)
}

/// Values of one size in order, or of any size anywhere in the log.
fn some_loc(rng: &mut fastrand::Rng, seed: u64, step: u64) -> Loc {
    match seed % 4 {
        0 => a_loc(step),
        1 => Loc::new(step * 80 % (1 << 16) + ((step / 3_000) << 33), 80, 0),
        2 => Loc::new(rng.u64(..1 << 32) * 8, 80 + rng.u64(..1_000), 0),
        _ => {
            let below = 1 << rng.u32(10..44);
            Loc::new(rng.u64(..below) * 8, 80 << rng.u32(..20), rng.u8(..2))
        }
    }
}

fn index(rng: &mut fastrand::Rng, shape: u32) -> u64 {
    match shape {
        0 => rng.u64(..3_000),
        1 => rng.u64(..100) * 512 + rng.u64(..3),
        2 => u64::MAX - rng.u64(..3_000),
        3 => rng.u64(..) >> rng.u32(..64),
        4 => rng.u64(..40_000),
        _ => [rng.u64(..800), (1 << 40) + rng.u64(..800), u64::MAX - rng.u64(..10)][rng.usize(..3)],
    }
}

fn run(seed: u64, shape: u32) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut slots, mut model, mut saved) = (Slots::new(), Model::new(), Saved::new());
    let mut dropped = 0;
    let mut kept = (Slots::new(), Model::new());
    for step in 0..8_000_u64 {
        let growing = step / 2_000 % 2 == 0;
        let (at, loc) = (index(&mut rng, shape), some_loc(&mut rng, seed, step));
        let inside =
            |range: &Range<u64>, index: u64| index >= range.start && (index < range.end || range.end == u64::MAX);
        let choice = rng.u32(..100);
        if choice < 85 {
            let missing = slots.missing_at(at);
            bring(&mut slots, &saved, missing.as_slice());
        }
        match choice {
            0..70 if growing => assert_eq!(slots.set(at, loc), model.insert(at, loc)),
            0..70 => assert_eq!(slots.remove(at), model.remove(&at)),
            70..80 => assert_eq!(slots.set(at, loc), model.insert(at, loc)),
            80..85 => assert_eq!(slots.remove(at), model.remove(&at)),
            85..95 => assert_eq!(look(&mut slots, &saved, |slots| slots.get(at)), model.get(&at).copied()),
            95 if step % 4 == 0 => {
                let end = if step % 24 == 0 { u64::MAX } else { index(&mut rng, shape) };
                let range = at..end;
                let expected: Vec<_> =
                    model.iter().filter(|(index, _)| inside(&range, **index)).map(|(i, loc)| (*i, *loc)).collect();
                let (mut gone, mut missing) = (vec![], vec![]);
                slots.missing_in(range.start, range.end, &mut missing);
                bring(&mut slots, &saved, &missing);
                let count = slots.remove_range(range.start, range.end, |index, loc| gone.push((index, loc)));
                assert_eq!((count, &gone), (expected.len() as u64, &expected));
                expected.iter().for_each(|(index, _)| assert!(model.remove(index).is_some()));
            }
            96 if step % 50 == 0 => {
                slots.clear();
                model.clear();
            }
            97 => {
                for number in slots.dirty_pages() {
                    saved.insert(number, slots.page_slots(number).collect::<Vec<_>>());
                }
                slots.clear_dirty();
                assert_eq!(slots.dirty_pages().next(), None);
                let all: Model = saved.values().flatten().copied().collect();
                assert!(all == model, "changed pages alone have all slots");
                // What was cloned before has not changed since.
                let (clone, then) = &kept;
                clone.check();
                let whole = |slots: &mut Slots, saved: &Saved| {
                    let mut missing = vec![];
                    slots.missing_in(0, u64::MAX, &mut missing);
                    bring(slots, saved, &missing);
                };
                assert!(clone.scan(0..u64::MAX, false).eq(then.iter().map(|(index, loc)| Ok((*index, *loc)))));
                whole(&mut slots, &saved);
                kept = (slots.clone(), model.clone());
                for number in saved.keys().filter(|_| step % 3 == 0) {
                    // The first look only finds that it was used.
                    slots.drop_page(*number, place_of(*number));
                    dropped += u64::from(slots.drop_page(*number, place_of(*number)) != Dropped::Stays);
                }
            }
            _ => {
                let range = at..if step % 5 == 0 { u64::MAX } else { index(&mut rng, shape) };
                let mut expected: Vec<_> =
                    model.iter().filter(|(index, _)| inside(&range, **index)).map(|(i, loc)| (*i, *loc)).collect();
                let scan = |slots: &Slots, reverse: bool| -> Result<Vec<_>, Missing> {
                    slots.scan(range.clone(), reverse).collect()
                };
                assert!(look(&mut slots, &saved, |slots| scan(slots, false)) == expected, "{range:?}");
                expected.reverse();
                assert!(look(&mut slots, &saved, |slots| scan(slots, true)) == expected, "{range:?} reverse");
            }
        }
        assert_eq!(slots.len(), model.len() as u64);
        if step % 100 == 0 {
            slots.check();
        }
    }
    slots.check();
    assert!(dropped > 0, "seed {seed} shape {shape}: no page left memory");
    let mut missing = vec![];
    slots.missing_in(0, u64::MAX, &mut missing);
    bring(&mut slots, &saved, &missing);
    slots.remove_range(0, u64::MAX, |_, _| ());
    slots.clear_dirty();
    slots.check();
    assert!(slots.is_empty() && slots.memory_bytes() == size_of::<Slots>(), "{}", slots.memory_bytes());
}

#[test]
fn slots_answer_like_an_ordered_map() {
    for shape in 0..6 {
        for seed in 0..4 {
            println!("seed {seed} shape {shape}");
            run(seed, shape);
        }
    }
}

#[test]
fn a_slot_of_a_filled_range_takes_two_to_eight_bytes_by_the_order_and_the_sizes_of_values() {
    let len = 1_000_000_u64;
    // How far apart the keys are that follow each other, sizes of records, and the most bytes that a slot may take.
    let cases = [(1, 80..=80, 2.2), (1, 176..=176, 2.2), (1, 1_104..=1_104, 3.2), (1, 80..=1_104, 4.2)];
    let random =
        [(80..=80, 3.2), (80..=1_104, 5.2), (8..=1 << 20, 8.2)].map(|(sizes, most)| (387_420_489, sizes, most));
    for (step, sizes, most) in cases.into_iter().chain([(len - 1, 80..=80, 2.2)]).chain(random) {
        let (mut slots, mut rng, mut end) = (Slots::new(), fastrand::Rng::with_seed(5), 4096);
        for nth in 0..len {
            let size = rng.u64(sizes.clone());
            assert_eq!(slots.set(nth * step % len, Loc::new(end, size, 0)), None);
            end += size.next_multiple_of(8);
        }
        slots.check();
        assert_eq!((slots.len(), slots.high.len()), (len, 0), "step {step}");
        let bytes = slots.memory_bytes() as f64 / len as f64;
        assert!(bytes <= most && bytes >= most - 1.2, "step {step}, sizes {sizes:?}: {bytes} bytes a slot");
    }
}

#[test]
fn scattered_slots_do_not_take_a_dense_page_each() {
    let mut slots = Slots::new();
    for nth in 0..10_000_u64 {
        slots.set(nth << 30, a_loc(nth));
    }
    let bytes = slots.memory_bytes() / 10_000;
    assert!(bytes <= 100, "{bytes} bytes a slot");
}

#[test]
fn pages_get_narrow_again_with_the_first_change_after_a_checkpoint() {
    let (mut slots, len) = (Slots::new(), 512 * 100);
    let round = |slots: &mut Slots, round: u64| {
        (0..len).for_each(|index| {
            slots.set(index, Loc::new((round << 36) + index * 80, 80, 0));
        });
        slots.check();
    };
    round(&mut slots, 0);
    assert_eq!(slots.widths()[2], 100);
    round(&mut slots, 1);
    assert_eq!(slots.widths()[5], 100, "what is left of the first round is far away from the second");
    slots.clear_dirty();
    let original = slots.clone();
    for index in (0..len).step_by(512) {
        let old = Loc::new((1 << 36) + index * 80, 80, 0);
        assert_eq!(slots.set(index, Loc::new(old.offset() + 8, 80, 0)), Some(old));
    }
    assert_eq!((slots.widths()[2], original.widths()[5]), (100, 100));
    slots.check();
    original.check();
    // Removals do not look, and emptied pages are counted no more.
    slots.remove_range(0, len, |_, _| ());
    assert_eq!((slots.widths().iter().sum::<u64>(), slots.page_bytes()), (0, 0));
}
