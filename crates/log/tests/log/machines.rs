//! Replicated states: every replica comes to the same state, from the log or from a checkpoint.

use std::collections::BTreeMap;

use bytes::Bytes;
use esker_log::{Error, Machine, Replica};

use crate::support::{Time, append, everywhere, log, session, sound};

#[derive(Default, Debug, PartialEq, Eq)]
struct Counter(u64);

impl Machine for Counter {
    type Output = u64;

    fn apply(&mut self, _: u64, command: &[u8]) -> u64 {
        self.0 = self.0.wrapping_mul(31).wrapping_add(u64::from(command[0]));
        self.0
    }

    fn save(&self) -> Bytes {
        Bytes::copy_from_slice(&self.0.to_le_bytes())
    }

    fn load(&mut self, saved: &[u8]) -> Result<(), String> {
        self.0 = saved.try_into().map(u64::from_le_bytes).map_err(|_| "not 8 bytes".to_owned())?;
        Ok(())
    }
}

#[derive(Default)]
struct Map(BTreeMap<u8, Vec<u8>>);

impl Machine for Map {
    type Output = Option<Vec<u8>>;

    fn apply(&mut self, _: u64, command: &[u8]) -> Self::Output {
        self.0.insert(command[0], command[1..].to_vec())
    }

    fn save(&self) -> Bytes {
        self.0.iter().flat_map(|(key, value)| [vec![*key, value.len() as u8], value.clone()].concat()).collect()
    }

    fn load(&mut self, mut saved: &[u8]) -> Result<(), String> {
        while let [key, len, rest @ ..] = saved {
            let (value, rest) = rest.split_at_checked(usize::from(*len)).ok_or("short")?;
            self.0.insert(*key, value.to_vec());
            saved = rest;
        }
        Ok(())
    }
}

#[test]
fn replicas_agree_whoever_proposes() {
    everywhere(|store, layout| {
        let (_logs, one) = log(&store, layout);
        let two = session(&store, 2, &Time::default()).log("test").unwrap();
        let mut a = Replica::open(&one, "count", None, Counter::default()).unwrap();
        let mut b = Replica::open(&two, "count", None, Counter::default()).unwrap();
        let mut expected = 0u64;
        for number in 1..30u8 {
            expected = expected.wrapping_mul(31).wrapping_add(u64::from(number));
            let proposer = if number % 2 == 0 { &mut a } else { &mut b };
            proposer.propose(vec![number]).unwrap();
        }
        assert_eq!(a.read().unwrap(), b.read().unwrap());
        assert_eq!(a.machine().0, expected);
        sound(&one);
    });
}

#[test]
fn a_checkpoint_stands_in_for_what_is_trimmed() {
    everywhere(|store, layout| {
        let (_logs, log) = log(&store, layout);
        let mut counter = Replica::open(&log, "count", Some("count"), Counter::default()).unwrap();
        let mut map = Replica::open(&log, "map", Some("map"), Map::default()).unwrap();
        for number in 0..40u8 {
            counter.propose(vec![number]).unwrap();
            map.propose(vec![number % 7, number]).unwrap();
        }
        append(&log, "nobody's");
        counter.read().unwrap();
        map.read().unwrap();
        counter.checkpoint().unwrap();
        assert_eq!(counter.trim().unwrap(), counter.applied(), "as far as it is the only one with a checkpoint");
        assert!(Replica::open(&log, "map", Some("map"), Map::default()).is_err(), "what it needs is gone");
        map.checkpoint().unwrap();
        for number in 40..50u8 {
            counter.propose(vec![number]).unwrap();
        }
        counter.checkpoint().unwrap();
        assert_eq!(counter.trim().unwrap(), map.applied(), "the oldest of their newest");
        let mut again = Replica::open(&log, "count", Some("count"), Counter::default()).unwrap();
        assert_eq!(again.read().unwrap(), counter.read().unwrap());
        let mut again = Replica::open(&log, "map", Some("map"), Map::default()).unwrap();
        assert_eq!(again.read().unwrap().0, map.read().unwrap().0);
    });
}

#[test]
fn a_broken_checkpoint_is_an_error_and_the_one_before_stays() {
    use esker_store::{Change, ObjectId, Transaction};
    everywhere(|store, layout| {
        let (_logs, log) = log(&store, layout);
        let mut counter = Replica::open(&log, "count", None, Counter::default()).unwrap();
        counter.propose(vec![1]).unwrap();
        counter.checkpoint().unwrap();
        counter.propose(vec![2]).unwrap();
        counter.checkpoint().unwrap();
        let names = store.list(&"log".into(), None, 100).wait().unwrap();
        let sides: Vec<_> = names.iter().filter(|name| name.starts_with(b"m/")).collect();
        assert_eq!(sides.len(), 2);
        let newest = ObjectId::new("log".into(), sides[1].clone());
        store.submit(Transaction::new().change(&newest, Change::Write { offset: 0, data: "x".into() })).wait().unwrap();
        let Err(error) = Replica::open(&log, "count", None, Counter::default()) else { panic!("it loads") };
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
        // Half made: what says that it is whole is missing.
        let half = Change::XattrRemove { name: "whole".into() };
        store.submit(Transaction::new().change(&newest, half)).wait().unwrap();
        let mut again = Replica::open(&log, "count", None, Counter::default()).unwrap();
        assert_eq!(again.applied(), 1);
        assert_eq!(again.read().unwrap(), counter.read().unwrap());
    });
}
