//! Packed pages against an ordered map, their frames by themselves, and how often a page is packed anew.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::frame::WIDTH_MAX;
use super::*;
use crate::format::{DEVICE_BYTES_MAX, LOC_FLAGS_MAX, Loc, SPAN_BYTES_MAX};

/// The offset of the last place, in units.
const UNIT_MAX: u64 = (1 << 44) - 1;

/// Where places of a page come from.
#[derive(Clone, Copy, Debug)]
enum Places {
    /// One after the other from an offset in bytes on, values of one size.
    InOrder(u64),
    /// The same, towards the start of the device.
    Downwards(u64),
    /// Anywhere below an offset in bytes; spans of up to so many bytes, and flags.
    Anywhere(u64, u64, u8),
    /// The first and last places there are.
    Ends,
}

impl Places {
    const ALL: [Self; 10] = [
        Self::InOrder(0),
        Self::InOrder(DEVICE_BYTES_MAX - (1 << 30)),
        Self::Downwards(1 << 40),
        Self::Anywhere(8 << 20, 8, 0),
        Self::Anywhere(1 << 34, 8, 0),
        Self::Anywhere(1 << 41, 64, 0),
        Self::Anywhere(1 << 34, 1024, 0),
        Self::Anywhere(1 << 40, 64 << 10, 2),
        Self::Anywhere(DEVICE_BYTES_MAX, SPAN_BYTES_MAX, LOC_FLAGS_MAX),
        Self::Ends,
    ];

    fn next(self, rng: &mut fastrand::Rng, step: u64) -> u64 {
        let (offset, span, flags) = match self {
            Self::InOrder(from) => (from + step * 80, 80, 0),
            Self::Downwards(from) => (from - step * 80, 80, 0),
            Self::Anywhere(below, span, flags) => (rng.u64(..below), rng.u64(..span) + 1, rng.u8(..=flags)),
            Self::Ends => {
                let ends = [0, DEVICE_BYTES_MAX - 8];
                (ends[rng.usize(..2)], [1, SPAN_BYTES_MAX][rng.usize(..2)], [0, LOC_FLAGS_MAX][rng.usize(..2)])
            }
        };
        Loc::new(offset / 8 * 8, span, flags).raw()
    }
}

type Model = BTreeMap<usize, u64>;

fn check(page: &Packed, model: &Model) {
    let raws = page.raws();
    for (place, raw) in raws.iter().enumerate() {
        assert_eq!(*raw, model.get(&place).copied().unwrap_or(0), "place {place}");
        assert_eq!(page.get(place), *raw, "place {place}");
    }
}

#[test]
fn a_page_answers_like_a_map_at_every_width() {
    let mut widths = BTreeSet::new();
    for (which, places) in Places::ALL.into_iter().enumerate() {
        for seed in 0..6 {
            println!("{places:?}, seed {seed}");
            let mut rng = fastrand::Rng::with_seed(seed);
            let (mut page, mut model) = (Packed::of(&[0; PAGE_SLOTS]), Model::new());
            let mut kept = (page.clone(), model.clone());
            for step in 0..6_000 {
                let place = if step % 1_000 < 512 { step as usize % PAGE_SLOTS } else { rng.usize(..PAGE_SLOTS) };
                // Seeds from 3 on have places of two kinds on one page.
                let others = Places::ALL[(which + seed as usize) % Places::ALL.len()];
                let from = if seed >= 3 && rng.u8(..8) == 0 { others } else { places };
                let raw = from.next(&mut rng, step);
                let old = model.get(&place).copied().unwrap_or(0);
                match rng.u8(..100) {
                    0..60 => {
                        assert_eq!(page.set(place, raw), old);
                        model.insert(place, raw);
                    }
                    60 => {
                        assert_eq!(page.set_first(place, raw), old);
                        model.insert(place, raw);
                    }
                    61..80 => {
                        assert_eq!(page.take(place), old);
                        model.remove(&place);
                    }
                    80 => {
                        // What was cloned before has not changed since.
                        check(&kept.0, &kept.1);
                        kept = (page.clone(), model.clone());
                    }
                    81 => {
                        page = Packed::of(&page.raws());
                        check(&page, &model);
                    }
                    82..90 => {
                        let expected = model.range(place..).next().map(|(place, raw)| (*place, *raw));
                        assert_eq!(page.first_from(place), expected);
                        let expected = model.range(..=place).next_back().map(|(place, raw)| (*place, *raw));
                        assert_eq!(page.last_to(place), expected);
                    }
                    _ => assert_eq!(page.get(place), old),
                }
                widths.insert(page.width());
                assert_eq!(page.heap_bytes(), page.width() * 512 + 8);
                if step % 200 == 0 {
                    check(&page, &model);
                }
            }
            check(&page, &model);
            check(&kept.0, &kept.1);
        }
    }
    assert!(widths.iter().copied().eq(WIDTH_MIN..=WIDTH_MAX), "{widths:?}");
}

#[test]
fn a_page_takes_as_few_bytes_as_its_places_need() {
    let gib = 1 << 30;
    let cases = [
        (Places::InOrder(5 << 40), 2),
        (Places::Downwards(5 << 40), 2),
        // 2 GiB are 28 bits of units, 24 GiB 32, 2 TiB 38, and 128 TiB all 44.
        (Places::Anywhere(2 * gib, 8, 0), 4),
        (Places::Anywhere(24 * gib, 8, 0), 4),
        (Places::Anywhere(2048 * gib, 8, 0), 5),
        (Places::Anywhere(DEVICE_BYTES_MAX, 8, 0), 6),
        // Spans of up to 1 KiB are 7 bits, up to 32 KiB 12; flags 4 more as soon as there are two of them.
        (Places::Anywhere(8 * gib, 1024, 0), 5),
        (Places::Anywhere(8 * gib, 32 << 10, 0), 6),
        (Places::Anywhere(8 * gib, 1024, 1), 6),
        (Places::Anywhere(2048 * gib, 32 << 10, 0), 7),
        (Places::Anywhere(DEVICE_BYTES_MAX, SPAN_BYTES_MAX, LOC_FLAGS_MAX), 8),
    ];
    for (places, width) in cases {
        let mut rng = fastrand::Rng::with_seed(7);
        let raws: Raws = std::array::from_fn(|step| places.next(&mut rng, step as u64));
        let page = Packed::of(&raws);
        assert_eq!(page.raws(), raws, "{places:?}");
        assert_eq!(page.width(), width, "{places:?}");
        // Filled one by one it gets no wider.
        let mut page = Packed::of(&std::array::from_fn(|place| if place < 64 { raws[place] } else { 0 }));
        raws.iter().enumerate().for_each(|(place, raw)| {
            page.set(place, *raw);
        });
        assert_eq!(page.raws(), raws, "{places:?}");
        assert!(page.width() <= width.max(3), "{places:?}: {} bytes", page.width());
    }
}

/// Sets what `change` says `sets` times, and counts how often the page is packed anew.
fn packed_anew(sets: u64, mut change: impl FnMut(u64) -> (usize, Loc)) -> u64 {
    let mut page = Packed::of(&std::array::from_fn(|place| Loc::new((1 << 40) + place as u64 * 80, 80, 0).raw()));
    let mut anew = 0;
    for step in 0..sets {
        let (place, loc) = change(step);
        let before = (page.width(), page.frame());
        page.set(place, loc.raw());
        assert_eq!(page.get(place), loc.raw());
        assert!(page.frame().bits + page.frame().shift <= 20, "{:?} has tails that no place has", page.frame());
        anew += u64::from(before != (page.width(), page.frame()));
    }
    anew
}

#[test]
fn no_order_of_changes_packs_a_page_again_and_again() {
    const SETS: u64 = 100_000;
    let middle = 1 << 40;
    for distance in (3..40).map(|bits| 1_u64 << bits) {
        // One slot that goes to and fro, or away and back, however far.
        let to_and_fro = packed_anew(SETS, |step| (9, Loc::new(middle + step % 2 * 2 * distance - distance, 80, 0)));
        assert!(to_and_fro <= 8, "to and fro by {distance}: {to_and_fro}");
        let away = packed_anew(SETS, |step| (9, Loc::new(middle + step % 2 * distance, 80, 0)));
        assert!(away <= 8, "away by {distance}: {away}");
        // All slots go to and fro, one after the other.
        let all = packed_anew(SETS, |step| {
            (step as usize % PAGE_SLOTS, Loc::new(middle + step / 512 % 2 * distance + step % 512 * 80, 80, 0))
        });
        assert!(all <= 8 + SETS / 512, "all by {distance}: {all}");
    }
    // Spans that get longer, shorter, or change between two.
    let longer = packed_anew(SETS, |step| (step as usize % PAGE_SLOTS, Loc::new(middle, 80 + step * 8, 0)));
    assert!(longer <= 30, "longer: {longer}");
    let shorter = packed_anew(SETS, |step| {
        let span = 0xffff - step.min(0xfffe);
        (step as usize % PAGE_SLOTS, Loc::from_raw(((middle / 8) << 20) | (span << 4)).unwrap())
    });
    assert!(shorter <= 30, "shorter: {shorter}");
    for span in (3..30).map(|bits| 1_u64 << bits) {
        let between = packed_anew(SETS, |step| (9, Loc::new(middle, 80 + step % 2 * span, step as u8 % 3)));
        assert!(between <= 8, "between 80 and {span} more: {between}");
    }
    // A ring that the log goes round: up, and down.
    for size in [80, 1_024, 1 << 20] {
        let up = packed_anew(SETS, |step| (step as usize % PAGE_SLOTS, Loc::new(middle + step * size, 80, 0)));
        assert!(up <= 10 + SETS / 24, "up by {size}: {up}");
        let down = packed_anew(SETS, |step| (step as usize % PAGE_SLOTS, Loc::new(middle - step * size, 80, 0)));
        assert!(down <= 10 + SETS / 24, "down by {size}: {down}");
    }
    // What random overwrites and the cleaner do.
    let mut rng = fastrand::Rng::with_seed(3);
    let random = packed_anew(SETS, |step| (rng.usize(..PAGE_SLOTS), Loc::new(step * 80 * 512 % (1 << 35), 80, 0)));
    assert!(random <= 8, "random: {random}");
    let mut rng = fastrand::Rng::with_seed(4);
    let any = packed_anew(SETS, |_| {
        let (span, offset) = (SPAN_BYTES_MAX >> rng.u32(..24), DEVICE_BYTES_MAX >> rng.u32(..30));
        (rng.usize(..PAGE_SLOTS), Loc::new(rng.u64(..offset) / 8 * 8, rng.u64(..span), rng.u8(..16)))
    });
    assert!(any <= 30, "any: {any}");
}

#[test]
fn a_page_gets_narrow_again_with_the_first_change_after_a_checkpoint() {
    let near = |place: u64| Loc::new((1 << 40) + place * 80, 80, 0).raw();
    let mut page = Packed::of(&std::array::from_fn(|place| near(place as u64)));
    assert_eq!(page.width(), 2);
    page.set(100, Loc::new(8 << 40, 1 << 20, 7).raw());
    assert_eq!(page.width(), 8);
    let shared = page.clone();
    page.set(100, near(100));
    assert_eq!(page.width(), 8, "only the first change looks");
    page.set_first(100, near(100));
    assert_eq!((page.width(), page.get(100)), (2, near(100)));
    assert_eq!((shared.width(), shared.get(100)), (8, Loc::new(8 << 40, 1 << 20, 7).raw()));
    // What is narrow already stays as it is.
    let (width, frame) = (page.width(), page.frame());
    page.set_first(7, near(8));
    assert_eq!((page.width(), page.frame(), page.get(7)), (width, frame, near(8)));
    // Not where 2 bytes would be full at once.
    for (apart, width) in [(12, 3), (8, 2)] {
        let near = |place: usize| near(place as u64 * apart);
        let mut page = Packed::of(&std::array::from_fn(near));
        assert_eq!(page.width(), 2);
        page.set(9, near(1 << 16));
        assert_eq!(page.width(), 3);
        page.set_first(9, near(9));
        assert_eq!(page.width(), width, "2 bytes are nearly all used when slots are {apart} records apart");
    }
}

fn any_raw() -> impl Strategy<Value = u64> {
    let offset = (0..44_u32, any::<u64>()).prop_map(|(bits, offset)| offset >> 20 >> bits);
    // The first and last units of a device are as near to each other as any where offsets wrap round.
    let offset = prop_oneof![4 => offset, 1 => 0..4_u64, 1 => UNIT_MAX - 3..=UNIT_MAX];
    let span = (1..=16_u32, any::<u16>()).prop_map(|(bits, span)| u64::from((span >> (16 - bits)).max(1)));
    let tail = (span, 0..=u64::from(LOC_FLAGS_MAX)).prop_map(|(span, flags)| span << 4 | flags);
    // Often of one tail, which takes no bits.
    (offset, prop_oneof![1 => tail, 3 => Just(1 << 4)]).prop_map(|(offset, tail)| offset << 20 | tail)
}

/// A page of a checkpoint may have any places. Those at both ends of the largest device made a frame whose base was the
/// last of them, for which there was no item then.
#[test]
fn the_last_place_of_all_is_on_a_page_with_any_other() {
    let raw = |unit: u64| unit << 20 | 1 << 4;
    for low in [0, 1, 2, 7, 1 << 20, UNIT_MAX / 2, UNIT_MAX - 1, UNIT_MAX] {
        let raws: Raws = std::array::from_fn(|place| raw([low, UNIT_MAX][usize::from(place == 99)]));
        let page = Packed::of(&raws);
        assert_eq!(page.raws(), raws, "{low}");
        assert_eq!(page.width() == WIDTH_MAX, low == 0, "{low}: {} bytes", page.width());
        // Also where it comes last, or first.
        for (first, last) in [(raw(low), raw(UNIT_MAX)), (raw(UNIT_MAX), raw(low))] {
            let mut page = Packed::of(&[first; PAGE_SLOTS]);
            page.set(7, last);
            assert_eq!((page.get(7), page.get(8)), (last, first), "{low}");
            page.set_first(8, last);
            assert_eq!((page.get(7), page.get(8), page.get(9)), (last, last, first), "{low}");
        }
    }
}

fn has(frame: Frame, width: usize, raw: u64) -> bool {
    assert!(frame.bits + frame.shift <= 20, "{frame:?} has tails that no place has");
    let Some(item) = frame.item(raw, width) else { return false };
    assert!(item != 0 && (width == 8 || item >> (8 * width) == 0), "{frame:?} of {width}: {item:#x} for {raw:#x}");
    assert_eq!(frame.raw(item), raw, "{frame:?} of {width}: {item:#x}");
    true
}

proptest! {
    #[test]
    fn a_frame_has_what_it_was_made_for(
        raws in prop::collection::vec(any_raw(), 1..20), more in any_raw(), any in any_raw(), free in 0..2_u64
    ) {
        let (width, frame) = Frame::narrowest(&Reach::of(raws.iter().copied()).unwrap(), free);
        prop_assert!(raws.iter().all(|raw| has(frame, width, *raw)), "{frame:?} of {width}: {raws:x?}");
        if !has(frame, width, more) {
            let reach = Reach::of(raws.iter().chain([&more]).copied()).unwrap();
            let (after, wider) = frame.wider(width, more, &reach);
            prop_assert!(raws.iter().chain([&more]).all(|raw| has(wider, after, *raw)), "{wider:?} of {after}");
            prop_assert!(after >= width && (after > width || wider.bits > frame.bits || wider.base != frame.base));
            // Tails that were allowed still are.
            let as_near = |raw: u64| raw & !0xf_ffff | any & 0xf_ffff;
            if raws.iter().all(|raw| has(frame, width, as_near(*raw))) {
                prop_assert!(raws.iter().all(|raw| has(wider, after, as_near(*raw))), "{wider:?} after {frame:?}");
            }
        }
        // What it was not made for it has, or says that it has not.
        has(frame, width, any);
        prop_assert!(has(Frame::WHOLE, WIDTH_MAX, any));
    }
}
