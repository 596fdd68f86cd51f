//! What every policy keeps to, whatever it keeps; and each beside what its source says.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

use super::replacement::{Evicted, Replacement};
use super::*;

/// A value that says whose it is.
#[derive(Clone, Debug, PartialEq)]
struct Stamped {
    key: u64,
    version: u64,
    weight: u64,
}

impl Weigh for Stamped {
    fn weight(&self) -> u64 {
        self.weight
    }
}

fn stamped(key: u64, version: u64, weight: u64) -> Stamped {
    Stamped { key, version, weight }
}

fn each_policy(check: impl Fn(CachePolicy)) {
    for policy in CachePolicy::ALL {
        println!("{policy}");
        check(policy);
    }
}

#[test]
fn policies_survive_the_round_trip_through_text() {
    for policy in CachePolicy::ALL {
        assert_eq!(policy.to_string().parse::<CachePolicy>(), Ok(policy));
    }
    for text in ["", "LRU", "lru ", "tinylfu"] {
        let error = text.parse::<CachePolicy>().unwrap_err().to_string();
        let expected = format!("cache policy {text:?}: expected clock, lru, arc, s3-fifo or w-tinylfu");
        assert_eq!(error, expected);
    }
}

#[test]
fn parts_are_large_enough_for_values() {
    for (bytes, processors, parts) in [
        (0, 64, 1),
        (1, 1, 1),
        (256 << 10, 8, 1),
        (1 << 20, 8, 4),
        (256 << 20, 2, 8),
        (256 << 20, 3, 16),
        (u64::MAX, 64, 256),
    ] {
        assert_eq!(parts_of(bytes, processors), parts, "{bytes} bytes, {processors} processors");
    }
}

/// Random calls beside a map of what was inserted last: what is found is that, and the bytes are never above.
#[test]
fn bytes_are_never_above_and_what_is_found_is_what_was_last_inserted() {
    each_policy(|policy| {
        for seed in 0..40 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (bytes_max, parts) = (rng.u64(..20_000), 1 << rng.u32(..4));
            let cache = Cache::in_parts(policy, bytes_max, parts);
            let mut last = HashMap::new();
            let (mut hits, keys) = (0, rng.u64(1..300));
            for version in 0..5_000 {
                // Few of the keys are used often.
                let key = if rng.bool() { rng.u64(..keys) } else { rng.u64(..keys.div_ceil(10)) };
                match rng.u32(..20) {
                    0 => {
                        let removed = cache.remove(&key);
                        assert!(removed.is_none() || removed.as_ref() == last.get(&key), "{seed} {version}");
                        last.remove(&key);
                        assert!(!cache.contains(&key));
                    }
                    1..8 => {
                        let weight = if rng.u32(..50) == 0 { rng.u64(1..2 * bytes_max + 2) } else { rng.u64(1..400) };
                        cache.insert(key, stamped(key, version, weight));
                        last.insert(key, stamped(key, version, weight));
                    }
                    _ => {
                        let (there, found) = (cache.contains(&key), cache.get(&key));
                        assert_eq!(there, found.is_some(), "{seed} {version}");
                        assert!(found.is_none() || found.as_ref() == last.get(&key), "{seed} {version}: {found:?}");
                        hits += u64::from(found.is_some());
                    }
                }
                assert!(cache.bytes() <= bytes_max, "{seed} {version}: {} of {bytes_max}", cache.bytes());
            }
            assert!(hits > 0 || bytes_max < 5_000, "{seed}: nothing is ever found in {bytes_max} bytes");
            for key in 0..keys {
                cache.remove(&key);
            }
            assert_eq!(cache.bytes(), 0, "{seed}: what was taken out weighs nothing");
        }
    });
}

#[test]
fn values_heavier_than_a_part_are_not_kept_and_push_nothing_out() {
    each_policy(|policy| {
        for parts in [1, 4] {
            let cache = Cache::in_parts(policy, 40_000, parts);
            let small = |key| stamped(key, 0, 100);
            (0..40).for_each(|key| cache.insert(key, small(key)));
            let heavy = 40_000 / parts as u64 + 1;
            for key in 100..200 {
                cache.insert(key, stamped(key, 0, heavy));
                assert_eq!(cache.get(&key), None);
            }
            // The one before is stale, even if what comes is not kept.
            cache.insert(7, stamped(7, 1, heavy));
            assert_eq!(cache.get(&7), None);
            for key in (0..40).filter(|key| *key != 7) {
                assert_eq!(cache.get(&key), Some(small(key)), "{parts} parts");
            }
        }
    });
}

#[test]
fn a_cache_of_no_bytes_keeps_nothing() {
    each_policy(|policy| {
        let cache = Cache::new(policy, 0);
        cache.insert(1, stamped(1, 0, 1));
        assert_eq!((cache.get(&1), cache.bytes()), (None, 0));
    });
}

/// A hot set that is used all the time beside a scan of many times the cache: the share of uses that find it.
fn hot_share(policy: CachePolicy) -> f64 {
    let cache = Cache::in_parts(policy, 100_000, 1);
    let use_of = |key| {
        let found = cache.get(&key).is_some();
        if !found {
            cache.insert(key, stamped(key, 0, 100));
        }
        found
    };
    let mut rng = fastrand::Rng::with_seed(1);
    // Half of what fits.
    for _ in 0..20_000 {
        use_of(rng.u64(..500));
    }
    // A use of the hot set after each twenty of the scan: each of it comes again after 10,000, ten times what fits.
    let (mut found, uses) = (0, 2_000);
    for scanned in 0..20 * uses {
        use_of(1_000_000 + scanned);
        if scanned % 20 == 0 {
            found += u64::from(use_of(rng.u64(..500)));
        }
    }
    found as f64 / uses as f64
}

#[test]
fn a_scan_does_not_flush_the_hot_set() {
    assert!(hot_share(CachePolicy::Lru) < 0.2, "LRU is what the others are better than");
    for policy in [CachePolicy::Clock, CachePolicy::Arc, CachePolicy::S3Fifo, CachePolicy::TinyLfu] {
        let share = hot_share(policy);
        assert!(share > 0.8, "{policy}: {share}");
    }
}

#[test]
fn threads_never_see_a_value_of_another_key() {
    each_policy(|policy| {
        let cache = Cache::in_parts(policy, 50_000, 2);
        let stop = AtomicBool::new(false);
        let (cache, stop) = (&cache, &stop);
        std::thread::scope(|scope| {
            let watch = scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    assert!(cache.bytes() <= 50_000);
                    std::thread::yield_now();
                }
            });
            let users: Vec<_> = (0..4)
                .map(|seed| {
                    scope.spawn(move || {
                        let mut rng = fastrand::Rng::with_seed(seed);
                        let mut found = 0;
                        for version in 0..40_000 {
                            let key = rng.u64(..600).min(rng.u64(..600));
                            match rng.u32(..16) {
                                0 => {
                                    cache.remove(&key);
                                }
                                1..5 => cache.insert(key, stamped(key, version, rng.u64(1..500))),
                                _ => {
                                    let value = cache.get(&key);
                                    assert!(value.as_ref().is_none_or(|value| value.key == key), "{key}: {value:?}");
                                    found += u64::from(value.is_some());
                                }
                            }
                        }
                        found
                    })
                })
                .collect();
            let found: u64 = users.into_iter().map(|user| user.join().unwrap()).sum();
            stop.store(true, Ordering::Relaxed);
            watch.join().unwrap();
            assert!(found > 1_000, "{policy}: {found}");
        });
    });
}

/// ARC as the paper has it, in pages: lists of keys, the newest first. Its target is in parts of a page, of which each
/// has `page`.
struct PaperArc {
    page: usize,
    c: usize,
    p: usize,
    t: [VecDeque<u64>; 2],
    b: [VecDeque<u64>; 2],
}

impl PaperArc {
    fn replace(&mut self, in_b2: bool) {
        let once = self.t[0].len();
        let taken = once * self.page;
        let from = if once >= 1 && ((in_b2 && taken == self.p) || taken > self.p) { 0 } else { 1 };
        let gone = self.t[from].pop_back().unwrap();
        self.b[from].push_front(gone);
    }

    /// A request for `x`: whether it is found.
    fn request(&mut self, x: u64) -> bool {
        let takes = |list: &mut VecDeque<u64>| {
            let at = list.iter().position(|key| *key == x);
            at.and_then(|at| list.remove(at)).is_some()
        };
        let [b1, b2] = [self.b[0].len(), self.b[1].len()];
        if self.t.iter_mut().any(takes) {
            self.t[1].push_front(x);
            return true;
        }
        if self.b[0].contains(&x) {
            self.p = (self.c * self.page).min(self.p + (self.page * b2 / b1).max(self.page));
            self.replace(false);
            takes(&mut self.b[0]);
            self.t[1].push_front(x);
        } else if self.b[1].contains(&x) {
            self.p = self.p.saturating_sub((self.page * b1 / b2).max(self.page));
            self.replace(true);
            takes(&mut self.b[1]);
            self.t[1].push_front(x);
        } else {
            let once = self.t[0].len() + b1;
            let all = once + self.t[1].len() + b2;
            if once == self.c {
                if self.t[0].len() < self.c {
                    self.b[0].pop_back();
                    self.replace(false);
                } else {
                    self.t[0].pop_back();
                }
            } else if all >= self.c {
                if all == 2 * self.c {
                    self.b[1].pop_back();
                }
                self.replace(false);
            }
            self.t[0].push_front(x);
        }
        false
    }
}

/// Uses `key` as the cache does: whether it was there.
fn request<R: Replacement<u64, u64>>(part: &mut R, key: u64, weight: u64) -> bool {
    if let Some(at) = part.queues().find(&key) {
        part.touch_shared(at);
        if !R::SHARED {
            part.touch(at);
        }
        return true;
    }
    part.admit(key, key, weight, &mut Evicted::new());
    false
}

/// Keys of several kinds in turn: some often, loops, and what never comes again.
fn trace(seed: u64, len: usize, keys: u64) -> Vec<u64> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut trace = Vec::new();
    while trace.len() < len {
        let (run, first) = (rng.usize(1..200), rng.u64(..keys));
        match rng.u32(..3) {
            0 => trace.extend((0..run).map(|_| rng.u64(..keys).min(rng.u64(..keys)).min(rng.u64(..keys)))),
            1 => trace.extend((0..run as u64).map(|step| (first + step) % keys)),
            _ => trace.extend((0..run as u64).map(|step| (first + step % 20) % keys)),
        }
    }
    trace
}

#[test]
fn arc_finds_what_the_paper_s_finds() {
    for seed in 0..60 {
        let c = 1 + seed as usize;
        // Values that all weigh the same are pages, whatever they weigh.
        let weight = 1 + seed % 3 * 50;
        let mut paper = PaperArc { page: weight as usize, c, p: 0, t: Default::default(), b: Default::default() };
        let mut part = Adaptive::new(c as u64 * weight);
        let mut found = 0;
        for (step, key) in trace(seed, 20_000, 30 + 4 * seed).into_iter().enumerate() {
            let expected = paper.request(key);
            assert_eq!(request(&mut part, key, weight), expected, "{seed} {step}");
            found += u64::from(expected);
        }
        assert!(found > 0, "{seed}");
    }
}

/// LRU in its plainest form: a list.
#[test]
fn lru_finds_what_a_list_finds() {
    for seed in 0..20 {
        let bytes_max = 50 * (1 + seed);
        let mut part = Lru::new(bytes_max);
        let mut list: VecDeque<(u64, u64)> = VecDeque::new();
        for (step, key) in trace(seed, 10_000, 100).into_iter().enumerate() {
            let weight = 1 + key % 50;
            let at = list.iter().position(|(listed, _)| *listed == key);
            assert_eq!(request(&mut part, key, weight), at.is_some(), "{seed} {step}");
            at.map(|at| list.remove(at));
            while list.iter().map(|(_, weight)| weight).sum::<u64>() + weight > bytes_max {
                list.pop_back();
            }
            list.push_front((key, weight));
        }
    }
}

/// S3-FIFO as the paper has it, in objects: lists of keys, the newest first, and counts.
#[test]
fn s3_fifo_finds_what_the_paper_s_finds() {
    for seed in 0..30 {
        let c = 10 + 3 * seed as usize;
        let (small_max, ghosts_max) = (c / 10, c - c / 10);
        let [mut small, mut main, mut ghosts] = [VecDeque::new(), VecDeque::new(), VecDeque::new()];
        let mut uses: BTreeMap<u64, u32> = BTreeMap::new();
        let mut part = S3Fifo::new(c as u64);
        for (step, key) in trace(seed, 20_000, 50 + 5 * seed).into_iter().enumerate() {
            let there = small.contains(&key) || main.contains(&key);
            assert_eq!(request(&mut part, key, 1), there, "{seed} {step}");
            if there {
                let uses = uses.get_mut(&key).unwrap();
                *uses = (*uses + 1).min(3);
                continue;
            }
            let ghost = ghosts.iter().position(|listed| *listed == key).and_then(|at| ghosts.remove(at));
            while small.len() + main.len() >= c {
                if small.len() > small_max || main.is_empty() {
                    let oldest: u64 = small.pop_back().unwrap();
                    if uses[&oldest] > 0 {
                        uses.insert(oldest, 0);
                        main.push_front(oldest);
                    } else {
                        ghosts.push_front(oldest);
                        ghosts.truncate(ghosts_max);
                    }
                } else {
                    let oldest: u64 = main.pop_back().unwrap();
                    if uses[&oldest] > 0 {
                        *uses.get_mut(&oldest).unwrap() -= 1;
                        main.push_front(oldest);
                    }
                }
            }
            uses.insert(key, 0);
            if ghost.is_some() { main.push_front(key) } else { small.push_front(key) }
        }
    }
}

#[test]
fn what_is_asked_for_once_does_not_take_the_place_of_what_is_asked_for_often() {
    let mut part = TinyLfu::new(1_000);
    for key in (0..5).flat_map(|_| 0..99) {
        request(&mut part, key, 10);
    }
    for stranger in 1_000..3_000 {
        request(&mut part, stranger, 10);
        request(&mut part, stranger % 99, 10);
    }
    let kept = (0..99_u64).filter(|key| part.queues().find(key).is_some()).count();
    assert!(kept > 90, "{kept} of 99");
    // What is asked for more often than they were does.
    for key in (0..14).flat_map(|_| 5_000..5_020) {
        request(&mut part, key, 10);
    }
    let kept = (5_000..5_020_u64).filter(|key| part.queues().find(key).is_some()).count();
    assert_eq!(kept, 20);
}

/// Ghosts are what a policy remembers beside its bytes: there are never more of them than the sources allow.
#[test]
fn ghosts_are_bounded() {
    for seed in 0..20 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let bytes_max = rng.u64(100..5_000);
        let (mut arc, mut fifo) = (Adaptive::new(bytes_max), S3Fifo::new(bytes_max));
        for key in trace(seed, 20_000, 1_000) {
            let weight = 1 + (key * 7 + seed) % 100;
            request(&mut arc, key, weight);
            request(&mut fifo, key, weight);
            assert!(arc.remembered().iter().all(|bytes| *bytes <= 2 * bytes_max), "{seed}");
            assert!(arc.remembered()[0] <= bytes_max && fifo.remembered() <= bytes_max, "{seed}");
        }
    }
}
