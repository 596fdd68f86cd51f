//! ZLog's `ClsZlogTest`, where it says more than `BackendTest`: what its class in the OSD refuses, our guards refuse,
//! in the transaction that writes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::channel;

use esker_log::Error;

use super::{Process, Setting, Stands, is_refused_under_stale_epochs, sealed, stands, unsealed};
use crate::racing::{a_seal, a_view, watched};

fn taken(process: &Process, epoch: u64, position: u64) {
    let refused = process.fill(epoch, position);
    assert!(matches!(refused, Err(Error::Taken { position: at }) if at == position), "{refused:?}");
}

fn trimmed(process: &Process, epoch: u64, position: u64) {
    let refused = process.fill(epoch, position);
    assert!(matches!(refused, Err(Error::Trimmed { position: at }) if at == position), "{refused:?}");
}

/// A seal finds `max` as the highest position; its epoch.
fn seal_finds(setting: &Setting, max: Option<u64>) -> u64 {
    let leader = setting.lead();
    assert_eq!(leader.tail().position.checked_sub(1), max);
    leader.epoch()
}

#[test]
fn invalidate_entry_force() {
    sealed(|setting, epoch| {
        let process = setting.process();
        assert!(process.write(epoch, 16));
        taken(&process, epoch, 16);
        taken(&process, epoch, 16);
        process.trim(epoch, 16).unwrap();
        process.trim(epoch, 16).unwrap();
        trimmed(&process, epoch, 16);
        assert!(!process.write_other(epoch, 16));
        assert_eq!(setting.stands(16), Stands::Trimmed);
    });
}

#[test]
fn invalidate_entry_idempotent() {
    sealed(|setting, epoch| {
        let process = setting.process();
        process.fill(epoch, 16).unwrap();
        process.fill(epoch, 16).unwrap();
        assert_eq!(setting.stands(16), Stands::Filled);
        process.trim(epoch, 16).unwrap();
        process.trim(epoch, 17).unwrap();
        trimmed(&process, epoch, 17);
        process.trim(epoch, 17).unwrap();
        assert_eq!([16, 17].map(|position| setting.stands(position)), [Stands::Trimmed; 2]);
    });
}

#[test]
fn invalidate_entry_no_force_exists() {
    sealed(|setting, epoch| {
        let process = setting.process();
        for position in [16, 17] {
            assert!(process.write(epoch, position));
            taken(&process, epoch, position);
            assert_eq!((setting.stands(position), setting.keeps(position)), (Stands::Entry, true));
        }
    });
}

#[test]
fn invalidate_entry_no_force_success_unsealed() {
    sealed(|setting, epoch| {
        setting.process().fill(epoch, 1).unwrap();
        assert_eq!((setting.stands(1), setting.epochs()), (Stands::Filled, vec![epoch; 3]));
    });
}

#[test]
fn invalidate_entry_no_force_success_sealed() {
    sealed(|setting, first| {
        let process = setting.process();
        let second = setting.seal();
        let refused = process.fill(first, 1);
        assert!(matches!(refused, Err(Error::PastTail { position: 1, tail: 0 })), "{refused:?}");
        assert_eq!(setting.stands(1), Stands::Nothing);
        process.fill(second, 1).unwrap();
        assert_eq!(setting.stands(1), Stands::Filled);
    });
}

#[test]
fn invalidate_entry_range() {
    sealed(|setting, epoch| {
        let [process, late] = [setting.process(), setting.process()];
        assert!([1, 4, 8, 9].into_iter().all(|position| process.write(epoch, position)));
        process.fill(epoch, 2).unwrap();
        process.trim(epoch, 3).unwrap();
        process.trim_limit(epoch, 8).unwrap();
        for position in 0..=8 {
            assert_eq!((stands(&late.log, position), setting.keeps(position)), (Stands::Trimmed, false), "{position}");
            assert!(!late.write_other(epoch, position), "{position}");
            trimmed(&late, epoch, position);
            late.trim(epoch, position).unwrap();
        }
        assert_eq!([9, 10].map(|position| setting.stands(position)), [Stands::Entry, Stands::Nothing]);
        assert!(late.write(epoch, 10));
    });
}

#[test]
fn invalidate_entry_stale_epoch() {
    sealed(|setting, epoch| {
        // A position at which something stands is not given up by an epoch that is over, either.
        is_refused_under_stale_epochs(setting, epoch, Process::fill, Stands::Filled);
        taken(&setting.process(), epoch, 0);
        assert_eq!(setting.stands(0), Stands::Entry);
    });
}

#[test]
fn max_pos_entry_empty() {
    sealed(|setting, epoch| {
        assert_eq!(seal_finds(setting, None), epoch + 1);
        // What was refused does not count.
        assert!(!setting.process().write(epoch, 3));
        assert_eq!(seal_finds(setting, None), epoch + 2);
    });
}

#[test]
fn max_pos_entry_write() {
    sealed(|setting, first| {
        let process = setting.process();
        assert!(process.write(first, 0));
        let second = seal_finds(setting, Some(0));
        assert!(process.write(second, 16));
        seal_finds(setting, Some(16));
        seal_finds(setting, Some(16));
    });
}

#[test]
fn max_pos_entry_write2() {
    sealed(|setting, epoch| {
        assert!(setting.process().write(epoch, 11));
        seal_finds(setting, Some(11));
    });
}

#[test]
fn max_pos_entry_invalidate() {
    sealed(|setting, epoch| {
        let process = setting.process();
        assert!(process.write(epoch, 0));
        process.fill(epoch, 16).unwrap();
        let epoch = seal_finds(setting, Some(16));
        process.trim(epoch, 17).unwrap();
        let epoch = seal_finds(setting, Some(17));
        process.trim(epoch, 17).unwrap();
        process.trim(epoch, 0).unwrap();
        seal_finds(setting, Some(17));
    });
}

#[test]
fn max_pos_entry_invalidate_limit() {
    sealed(|setting, epoch| {
        let process = setting.process();
        process.trim_limit(epoch, 9).unwrap();
        let epoch = seal_finds(setting, Some(9));
        process.trim_limit(epoch, 4).unwrap();
        let epoch = seal_finds(setting, Some(9));
        // Objects in which nothing ever stood, and that go.
        process.trim_limit(epoch, 25).unwrap();
        let epoch = seal_finds(setting, Some(25));
        assert!(process.write(epoch, 30));
        let epoch = seal_finds(setting, Some(30));
        process.trim_limit(epoch, 30).unwrap();
        seal_finds(setting, Some(30));
    });
}

#[test]
fn read_entry_entry_dne() {
    sealed(|setting, _| {
        let reader = setting.reader();
        assert_eq!(stands(&reader, 0), Stands::Nothing);
        setting.seal();
        assert_eq!([stands(&reader, 0), setting.stands(0)], [Stands::Nothing; 2]);
    });
}

#[test]
fn read_entry_invalid_entry_forced() {
    sealed(|setting, epoch| {
        let process = setting.process();
        for position in [16, 17] {
            assert_eq!(setting.stands(position), Stands::Nothing);
            assert!(process.write(epoch, position));
            taken(&process, epoch, position);
            assert_eq!(setting.stands(position), Stands::Entry);
            process.trim(epoch, position).unwrap();
            assert_eq!(setting.stands(position), Stands::Trimmed);
        }
    });
}

#[test]
fn read_entry_success_sealed() {
    sealed(|setting, first| {
        let (process, before) = (setting.process(), setting.reader());
        let second = setting.seal();
        assert!(!process.write_other(first, 16) && process.write(second, 16));
        setting.seal();
        assert_eq!([stands(&before, 16), setting.stands(16)], [Stands::Entry; 2]);
    });
}

#[test]
fn read_entry_success_unsealed() {
    sealed(|setting, epoch| {
        assert!(setting.process().write(epoch, 1));
        assert_eq!((setting.stands(1), setting.epochs()), (Stands::Entry, vec![epoch; 3]));
    });
}

#[test]
fn read_entry_trim_limit() {
    sealed(|setting, epoch| {
        let (process, reader) = (setting.process(), setting.reader());
        assert!((0..6).all(|position| process.write(epoch, position)));
        for limit in 0..5 {
            process.trim_limit(epoch, limit).unwrap();
            for position in 0..6 {
                let expected = if position <= limit { Stands::Trimmed } else { Stands::Entry };
                assert_eq!([stands(&reader, position), setting.stands(position)], [expected; 2], "{position}, {limit}");
            }
        }
    });
}

#[test]
fn seal_entry_basic() {
    unsealed(|setting| {
        assert_eq!(setting.epochs(), [1; 3]);
        for epoch in 2..12 {
            assert_eq!((setting.seal(), setting.epochs()), (epoch, vec![epoch; 3]));
        }
        // An entry changes no epoch, whatever its own is.
        assert!(setting.process().write(30, 0));
        assert_eq!((setting.epochs(), setting.seal()), (vec![11; 3], 12));
    });
}

/// A process raises the epoch and is held up before it seals object `held_up`; two others seal meanwhile. Its own seal
/// comes too late.
fn a_late_seal_lowers_no_epoch(held_up: u32) {
    sealed(|setting, epoch| {
        let (turn, logs) = watched(&setting.store, setting.nonce());
        let (tell, told) = channel();
        let (beside, next) = (setting.beside(), Arc::clone(&turn));
        let others_seal = move || {
            let others = [beside.seal(), beside.seal()];
            // It finds out, and begins again with its view.
            next.before(a_view, move || tell.send((others, beside.epochs())).unwrap());
        };
        let next = Arc::clone(&turn);
        turn.before(a_seal, move || if held_up == 0 { others_seal() } else { next.before(a_seal, others_seal) });
        let late = logs.log("test").unwrap().lead("late").unwrap();
        let (others, epochs) = told.recv().unwrap();
        assert_eq!(others, [epoch + 2, epoch + 3]);
        assert_eq!(epochs, [epoch + 3; 3], "the late seal was of epoch {}", epoch + 1);
        assert_eq!((late.epoch(), setting.epochs()), (epoch + 4, vec![epoch + 4; 3]));
    });
}

#[test]
fn seal_entry_stale_epoch1() {
    a_late_seal_lowers_no_epoch(0);
}

#[test]
fn seal_entry_stale_epoch2() {
    a_late_seal_lowers_no_epoch(1);
}

#[test]
fn write_entry_exists() {
    sealed(|setting, epoch| {
        let [process, other] = [setting.process(), setting.process()];
        for position in [16, 17] {
            assert!(process.write(epoch, position));
            assert!(!process.write_other(epoch, position) && !other.write_other(epoch + 1, position));
            // The same entry again is another one, too.
            assert!(!other.write(epoch, position));
            assert_eq!(setting.stands(position), Stands::Entry);
        }
    });
}

#[test]
fn write_entry_success_sealed() {
    sealed(|setting, first| {
        let process = setting.process();
        let epochs: Vec<_> = (0..3).map(|_| setting.seal()).collect();
        assert!(!process.write(first, 1) && !process.write(epochs[1], 1));
        assert_eq!(setting.stands(1), Stands::Nothing);
        assert!(process.write(epochs[2], 1));
        assert_eq!(setting.stands(1), Stands::Entry);
    });
}

#[test]
fn write_entry_success_unsealed() {
    sealed(|setting, epoch| {
        let process = setting.process();
        assert!((0..20).all(|position| process.write(epoch, position)));
        assert!((0..20).all(|position| setting.stands(position) == Stands::Entry));
        assert_eq!(setting.max_pos(), Some(19));
    });
}

#[test]
fn write_entry_trim_limit() {
    sealed(|setting, epoch| {
        // They know the view as it was before: only the objects can refuse them.
        let late: Vec<_> = (0..6).map(|_| setting.process()).collect();
        setting.process().trim_limit(epoch, 4).unwrap();
        for (position, process) in (0..).zip(&late) {
            assert_eq!(process.write(epoch, position), position == 5, "position {position}");
        }
        assert_eq!([4, 5].map(|position| setting.stands(position)), [Stands::Trimmed, Stands::Entry]);
    });
}

#[test]
fn create_view_strict_ordering() {
    const VIEWS: u64 = 5;
    unsealed(|setting| {
        // Two views come before what a slow process makes of the view that it has read, one at each of its attempts.
        let (turn, logs) = watched(&setting.store, setting.nonce());
        let (beside, again, last) = (setting.beside(), setting.beside(), Arc::clone(&turn));
        turn.before(a_view, move || {
            assert_eq!(beside.seal(), 2);
            last.before(a_view, move || assert_eq!(again.seal(), 3));
        });
        let slow = logs.log("test").unwrap().lead("slow").unwrap();
        assert_eq!((slow.epoch(), setting.reader().view().version), (4, 4));
        // Three processes at once.
        let epochs = std::thread::scope(|scope| {
            let lead = |name: &'static str| {
                let log = setting.reader();
                let lead = move |number| log.lead(&format!("{name} {number}")).unwrap().epoch();
                scope.spawn(move || (0..VIEWS).map(lead).collect::<Vec<_>>())
            };
            let leaders: Vec<_> = ["a", "b", "c"].map(lead).into_iter().collect();
            leaders.into_iter().map(|leader| leader.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(epochs.iter().all(|own| own.is_sorted()), "{epochs:?}");
        let distinct: BTreeSet<_> = epochs.iter().flatten().collect();
        assert_eq!(distinct.len() as u64, 3 * VIEWS, "{epochs:?}");
        // Each view is made from the one before: both numbers began at 1, and every view raised both.
        let view = setting.reader().view();
        assert_eq!((view.version, distinct.last()), (view.epoch, Some(&&view.epoch)));
    });
}
