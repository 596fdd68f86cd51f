//! The seeded model test on the memory backend. One seed alone: `ESKER_MODEL_SEED=17 cargo test -p esker-memory --test
//! model`.

use esker_memory::MemoryStore;
use esker_store::ObjectStore;
use esker_store::contract::{Harness, Opened};
use esker_store::model::{self, Generator, GeneratorOptions, Model};

struct Memory;

struct OpenMemory(MemoryStore);

impl Harness for Memory {
    fn fresh(&self) -> Box<dyn Opened> {
        Box::new(OpenMemory(MemoryStore::new()))
    }
}

impl Opened for OpenMemory {
    fn store(&self) -> &dyn ObjectStore {
        &self.0
    }
}

#[test]
fn the_store_does_what_the_model_does() {
    if let Some(seed) = std::env::var("ESKER_MODEL_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return model::run(seed, 60, &Memory);
    }
    for seed in 0..300 {
        model::run(seed, 60, &Memory);
    }
}

#[test]
fn long_runs_do_what_the_model_does() {
    for seed in 1000..1004 {
        model::run(seed, 1500, &Memory);
    }
}

#[test]
fn the_same_seed_gives_the_same_transactions() {
    let mut one = Generator::new(7, GeneratorOptions::default());
    let mut two = Generator::new(7, GeneratorOptions::default());
    assert!((0..300).all(|_| one.next() == two.next()));
    let mut other = Generator::new(8, GeneratorOptions::default());
    assert!((0..300).any(|_| one.next() != other.next()));
}

#[test]
fn generated_transactions_reach_every_space_and_every_refusal() {
    let options = GeneratorOptions { live_bytes_max: 200 << 10, ..GeneratorOptions::default() };
    let (mut accepted, mut refused) = (0, std::collections::BTreeMap::new());
    let (mut most, mut filled) = (0, [false; 4]);
    for seed in 0..20 {
        let mut generator = Generator::new(seed, options.clone());
        let mut model = Model::new();
        let store = MemoryStore::new();
        for _ in 0..200 {
            let txn = generator.next();
            match model.apply(&txn) {
                Ok(()) => accepted += 1,
                Err(error) => {
                    let name = format!("{error:?}").split([' ', '{']).next().unwrap().to_owned();
                    *refused.entry(name).or_insert(0) += 1;
                }
            }
            let _ = store.submit(txn).wait();
            most = most.max(model.live_bytes());
        }
        for id in model.objects() {
            let stat = store.stat(id).wait().unwrap().unwrap();
            let counts = [stat.size, stat.xattrs, stat.omap_keys, stat.slots];
            filled.iter_mut().zip(counts).for_each(|(filled, count)| *filled |= count > 0);
        }
    }
    println!("{accepted} accepted, refused {refused:?}, at most {most} bytes alive");
    assert_eq!(filled, [true; 4]);
    assert!(accepted > 3000, "{accepted} of 4000 accepted");
    for kind in ["GuardFailed", "NoCollection", "NotEmpty", "NoObject", "TooLarge", "Invalid"] {
        assert!(refused.contains_key(kind), "no transaction was refused with {kind}: {refused:?}");
    }
    assert!(most < 1 << 20, "{most} bytes alive with a cap of {}", options.live_bytes_max);
}

#[test]
fn a_difference_is_found_and_named() {
    let store = MemoryStore::new();
    let mut generator = Generator::new(3, GeneratorOptions::default());
    let mut model = Model::new();
    for _ in 0..60 {
        let txn = generator.next();
        let _ = model.apply(&txn);
        let _ = store.submit(txn).wait();
    }
    assert_eq!(model.diff(&store), None);
    let id = model.objects().next().unwrap().clone();
    let size = store.stat(&id).wait().unwrap().unwrap().size;
    for change in [
        esker_store::Change::SlotSet { index: 3, value: "changed".into() },
        esker_store::Change::OmapSet { key: "changed".into(), value: "changed".into() },
        esker_store::Change::XattrSet { name: "changed".into(), value: "changed".into() },
        esker_store::Change::Write { offset: size, data: "changed".into() },
        esker_store::Change::Remove,
    ] {
        let mut model = model.clone();
        model.apply(&esker_store::Transaction::new().change(&id, change.clone())).unwrap();
        let difference = model.diff(&store).unwrap_or_else(|| panic!("{change:?} was not noticed"));
        assert!(difference.contains("object"), "{difference}");
    }
}
