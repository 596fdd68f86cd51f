//! ZLog's `LibZLogTest` and what its library's parts are tested for, its views and the mapping of positions to objects:
//! asked of a log as its users hold it.

use std::sync::Arc;

use esker_log::{Error, Found, Log, Options};

use super::{HERE, Setting, Stands, data, sealed, stands, unsealed};
use crate::support::{self, options, sound};

/// As [`unsealed`], with stripes of another shape.
fn shaped(width: u32, slots: u32, test: impl Fn(&Setting)) {
    unsealed(|setting| {
        let logs = setting.logs();
        logs.delete("test").unwrap();
        logs.create("test", Options { width, slots, ..options(setting.layout) }).unwrap();
        test(setting);
    });
}

/// Appends the entry of the next position, which is `position`.
fn append_at(log: &Log, position: u64) {
    assert_eq!(support::append(log, data(position)), position);
}

fn found(log: &Log, position: u64) -> Found {
    log.read(position).unwrap().wait().unwrap()
}

fn past_tail<T: std::fmt::Debug>(result: esker_log::Result<T>) {
    assert!(matches!(result, Err(Error::PastTail { .. })), "{result:?}");
}

#[test]
fn create() {
    unsealed(|setting| {
        let (logs, options) = (setting.logs(), options(setting.layout));
        assert!(matches!(logs.create("", options.clone()), Err(Error::Invalid { .. })));
        append_at(&logs.create("mylog2", options.clone()).unwrap(), 0);
        assert!(matches!(logs.create("mylog2", options.clone()), Err(Error::Exists { .. })));
        let again = setting.logs().log_or_create("mylog2", options.clone()).unwrap();
        assert_eq!((stands(&again, 0), again.tail().unwrap().position), (Stands::Entry, 1));
        assert_eq!(logs.log_or_create("mylog3", options).unwrap().tail().unwrap().position, 0);
    });
}

#[test]
fn open() {
    unsealed(|setting| {
        let logs = setting.logs();
        assert!(matches!(logs.log(""), Err(Error::NoLog { .. })));
        assert!(matches!(logs.log("dne"), Err(Error::NoLog { .. })));
        assert_eq!(logs.list(None, 10).unwrap(), ["test"]);
        let [one, two] = [logs.log("test").unwrap(), logs.log("test").unwrap()];
        append_at(&one, 0);
        // Handles of one process hand out positions together: neither deposes the other.
        let epoch = one.view().epoch;
        append_at(&two, 1);
        append_at(&one, 2);
        assert_eq!((two.view().epoch, stands(&two, 2)), (epoch, Stands::Entry));
    });
}

#[test]
fn open_close() {
    unsealed(|setting| {
        for position in 0..30 {
            // Each handle is closed before the next one is opened.
            let log = setting.reader();
            assert_eq!(log.tail().unwrap().position, position);
            append_at(&log, position);
            assert!(log.leads());
        }
        let log = setting.reader();
        assert!(!log.leads());
        assert_eq!([stands(&log, 29), stands(&log, 29), stands(&log, 0)], [Stands::Entry; 3]);
        assert_eq!(sound(&log).entries, 30);
    });
}

#[test]
fn check_tail() {
    unsealed(|setting| {
        let (log, reader) = (setting.reader(), setting.reader());
        assert_eq!((log.tail().unwrap().position, log.tail().unwrap().position), (0, 0));
        assert_eq!(log.view().version, 1, "who asks changes nothing");
        for position in 0..20 {
            append_at(&log, position);
            assert_eq!([&log, &reader].map(|log| log.tail().unwrap().position), [position + 1; 2]);
        }
    });
}

#[test]
fn append() {
    unsealed(|setting| {
        let log = setting.reader();
        for position in 0..100 {
            assert_eq!(log.tail().unwrap().position, position);
            assert_eq!(log.append("").unwrap().wait().unwrap(), position);
        }
        // A position that was handed out and trimmed is not used.
        let handed = log.lead("").unwrap().next(1, None).unwrap().position;
        log.trim(handed).unwrap();
        append_at(&log, handed + 1);
        append_at(&setting.reader(), handed + 2);
        assert_eq!((handed, found(&log, handed)), (100, Found::Trimmed));
    });
}

#[test]
fn fill() {
    unsealed(|setting| {
        let log = setting.reader();
        past_tail(log.fill(0));
        past_tail(log.fill(232));
        let holes = log.lead("").unwrap().next(20, None).unwrap().position;
        for position in [holes, 19, 19] {
            log.fill(position).unwrap();
            assert_eq!(found(&log, position), Found::Filled);
        }
        append_at(&log, 20);
        assert!(matches!(log.fill(20), Err(Error::Taken { position: 20 })));
        log.trim(20).unwrap();
        assert!(matches!(log.fill(20), Err(Error::Trimmed { position: 20 })));
        let checked = sound(&log);
        assert_eq!((checked.filled, checked.trimmed, checked.holes), (2, 1, 18));
    });
}

#[test]
fn read() {
    unsealed(|setting| {
        let log = setting.reader();
        assert_eq!([found(&log, 0), found(&log, 232)], [Found::BeyondTail, Found::BeyondTail]);
        log.lead("").unwrap().next(20, None).unwrap();
        assert_eq!([found(&log, 0), found(&log, 11)], [Found::Hole, Found::Hole]);
        assert_eq!(found(&log, 20), Found::BeyondTail);
        log.fill(0).unwrap();
        assert_eq!([found(&log, 0), found(&log, 1)], [Found::Filled, Found::Hole]);
        append_at(&log, 20);
        append_at(&log, 21);
        assert_eq!(found(&log, 19), Found::Hole);
        assert_eq!([20, 21].map(|position| stands(&log, position)), [Stands::Entry; 2]);
        // One that was written, and one that was not.
        for position in [20, 21, 7] {
            log.trim(position).unwrap();
            assert_eq!(found(&log, position), Found::Trimmed);
        }
    });
}

#[test]
fn trim() {
    unsealed(|setting| {
        let log = setting.reader();
        past_tail(log.trim(0));
        log.lead("").unwrap().next(10, None).unwrap();
        log.fill(6).unwrap();
        append_at(&log, 10);
        append_at(&log, 11);
        // Empty, filled, written, trimmed.
        for position in [5, 6, 10, 11, 11, 5] {
            log.trim(position).unwrap();
            assert_eq!([stands(&log, position), setting.stands(position)], [Stands::Trimmed; 2], "{position}");
        }
        past_tail(log.trim(12));
        append_at(&log, 12);
        assert_eq!((sound(&log).trimmed, sound(&log).entries), (4, 1));
    });
}

#[test]
fn trim_to() {
    unsealed(|setting| {
        let log = setting.reader();
        past_tail(log.trim_to(1));
        (0..30).for_each(|position| append_at(&log, position));
        past_tail(log.trim_to(31));
        assert_eq!(stands(&log, 0), Stands::Entry, "what is refused changes nothing");
        for (position, objects) in [(0, 0), (11, 0), (12, 3), (29, 3), (13, 0), (30, 0)] {
            assert_eq!(log.trim_to(position).unwrap(), objects, "to {position}");
            let trimmed = log.view().trimmed;
            assert_eq!(trimmed, setting.reader().view().trimmed);
            for at in 0..30 {
                let expected = if at < trimmed { Stands::Trimmed } else { Stands::Entry };
                assert_eq!([stands(&log, at), setting.stands(at)], [expected; 2], "{at}, trimmed to {position}");
            }
        }
        append_at(&log, 30);
        assert_eq!((setting.stands(30), log.tail().unwrap().position), (Stands::Entry, 31));
    });
}

/// Views: what a log says of itself.
mod views {
    use super::*;

    #[test]
    fn advance_min_valid_position() {
        sealed(|setting, epoch| {
            let process = setting.process();
            let mut view = process.log.view();
            for (position, advances) in [(0, false), (10, true), (7, false), (10, false), (11, true)] {
                process.below(epoch, 20, |log| log.trim_to(position)).unwrap();
                let now = setting.reader().view();
                let mut expected = (*view).clone();
                if advances {
                    (expected.trimmed, expected.version) = (position, view.version + 1);
                }
                assert_eq!(*now, expected, "to {position}");
                view = now;
            }
        });
    }

    #[test]
    fn expand_mapping() {
        shaped(11, 20, |setting| {
            let epoch = setting.seal();
            let process = setting.process();
            let before = setting.reader().view();
            assert_eq!((before.runs.len(), before.end(), before.next_stripe), (1, 220, 1));
            assert!(process.write(epoch, 0));
            assert_eq!(setting.reader().view(), before);
            assert!(process.write(epoch, 230));
            let after = setting.reader().view();
            assert_eq!((after.runs.len(), after.end(), after.next_stripe), (1, 440, 2));
            assert_eq!((after.runs[0].width, after.runs[0].positions), (11, 440));
            assert_eq!((after.epoch, &after.sequencer[..]), (epoch, HERE));
            assert_eq!(setting.objects("d/").len(), 22);
            // These have a place.
            for position in [219, 220, 250] {
                assert!(process.write(epoch, position));
                assert_eq!(setting.reader().view(), after, "position {position}");
            }
        });
    }

    #[test]
    fn get_latest_view() {
        unsealed(|setting| {
            assert!(matches!(setting.logs().log("log"), Err(Error::NoLog { .. })));
            let log = setting.reader();
            assert_eq!((log.view().epoch, log.view().version), (1, 1));
            let epoch = setting.seal();
            let latest = setting.reader().view();
            assert_eq!((latest.epoch, latest.version, &latest.sequencer[..]), (epoch, 2, HERE));
            log.reshape(2, 2).unwrap();
            assert_eq!(setting.reader().view(), log.view());
            assert!(setting.reader().view().version > latest.version);
        });
    }

    #[test]
    fn refresh_view() {
        unsealed(|setting| {
            let log = setting.reader();
            let first = log.view();
            assert!(Arc::ptr_eq(&first, &log.view()) && log.refresh().unwrap() == first);
            let epoch = setting.seal();
            assert_eq!(log.view(), first, "the reader has not looked");
            assert_eq!(log.refresh().unwrap().epoch, epoch);
            assert_eq!(log.view().epoch, epoch);
            setting.logs().delete("test").unwrap();
            assert!(matches!(log.refresh(), Err(Error::NoLog { .. })));
            assert_eq!(log.view().epoch, epoch);
        });
    }
}

/// Which objects have which positions.
mod mapping {
    use esker_log::View;

    use super::*;

    /// Stripe, column and local position of a position, by the arithmetic of docs/format.md.
    fn place(view: &View, position: u64) -> (u64, u64, u64) {
        let run = view.runs.iter().find(|run| (run.start..run.start + run.positions).contains(&position)).unwrap();
        let (width, slots) = (u64::from(run.width), u64::from(run.slots));
        let (stripe, within) = ((position - run.start) / (width * slots), (position - run.start) % (width * slots));
        (run.stripe + stripe, within % width, within / width)
    }

    fn object(log: &Log, stripe: u64, column: u64) -> String {
        format!("d/{:016x}/{stripe:016x}/{column:08x}", log.id())
    }

    /// A log of stripes of three shapes, with an entry at each of its 29 positions.
    fn of_three_shapes(test: impl Fn(&Setting, &Log)) {
        unsealed(|setting| {
            let log = setting.reader();
            (0..12).for_each(|position| append_at(&log, position));
            log.reshape(2, 3).unwrap();
            (12..24).for_each(|position| append_at(&log, position));
            log.reshape(1, 2).unwrap();
            (24..29).for_each(|position| append_at(&log, position));
            assert_eq!(log.view().runs.len(), 3);
            test(setting, &log);
        });
    }

    #[test]
    fn stripe_by_id() {
        of_three_shapes(|setting, log| {
            let view = log.view();
            let objects = setting.objects("d/");
            for run in &view.runs {
                let per_stripe = u64::from(run.width * run.slots);
                for stripe in run.stripe..run.stripe + run.positions.div_ceil(per_stripe) {
                    let prefix = format!("d/{:016x}/{stripe:016x}/", log.id());
                    let found = objects.iter().filter(|object| object.name().starts_with(prefix.as_bytes())).count();
                    assert_eq!(found as u32, run.width, "objects of stripe {stripe}");
                }
            }
            for position in 0..29 {
                let (stripe, column, _) = place(&view, position);
                let holders: Vec<_> = objects.iter().filter(|object| setting.holds(object, position)).collect();
                assert_eq!(holders.len(), 1, "position {position}");
                assert_eq!(holders[0].name(), object(log, stripe, column).as_bytes(), "position {position}");
            }
        });
    }

    /// A trim to each position in turn takes all objects of the stripes below away, and tells each object of the stripe
    /// that it ends in how many of its own positions lie below.
    #[test]
    fn map_to() {
        of_three_shapes(|setting, log| {
            let view = log.view();
            for end in 0..=29 {
                log.trim_to(end).unwrap();
                for position in 0..29 {
                    let (stripe, column, _) = place(&view, position);
                    let own = |other: &u64| place(&view, *other).0 == stripe;
                    let whole = (0..view.end()).filter(own).all(|other| other < end);
                    let below = (0..end).filter(|other| own(other) && place(&view, *other).1 == column).count();
                    let name = object(log, stripe, column);
                    let left = setting.objects(&name);
                    assert_eq!(left.is_empty(), whole, "{name}, trimmed to {end}");
                    let trim = left.first().and_then(|object| setting.xattr(object, "trim")).unwrap_or(0);
                    assert!(whole || trim == below as u64, "{name}, trimmed to {end}: {trim}, not {below}");
                }
            }
        });
    }

    #[test]
    fn map_to_empty() {
        unsealed(|setting| {
            let log = setting.reader();
            let before = (log.view(), setting.objects(""));
            assert_eq!(log.trim_to(0).unwrap(), 0);
            past_tail(log.trim_to(1));
            assert_eq!((setting.reader().view(), setting.objects("")), before);
            let trims: Vec<_> = before.1.iter().filter_map(|object| setting.xattr(object, "trim")).collect();
            assert_eq!(trims, []);
        });
    }

    #[test]
    fn map_to_small() {
        shaped(1, 1, |setting| {
            let log = setting.reader();
            append_at(&log, 0);
            let first = object(&log, 0, 0);
            assert_eq!(setting.objects(&first).len(), 1);
            // The last stripe stays, so that the end is known.
            assert_eq!((log.trim_to(1).unwrap(), setting.keeps(0)), (0, false));
            assert_eq!(setting.xattr(&setting.objects(&first)[0], "trim"), Some(1));
            append_at(&log, 1);
            assert_eq!([0, 1].map(|position| setting.stands(position)), [Stands::Trimmed, Stands::Entry]);
            assert_eq!((log.trim_to(2).unwrap(), log.trim_to(2).unwrap()), (1, 0));
            assert_eq!(setting.objects(&first), []);
        });
    }

    #[test]
    fn max_pos() {
        sealed(|setting, epoch| {
            let process = setting.process();
            // The next stripe is made when half of the last is used.
            for (position, end) in [(2, 12), (5, 12), (6, 24), (11, 24), (17, 24), (30, 48)] {
                assert!(process.write(epoch, position));
                let view = setting.reader().view();
                assert_eq!(view.end(), end, "after position {position}");
                assert_eq!(view.runs.iter().map(|run| run.positions).sum::<u64>(), end);
                assert_eq!(
                    [end - 1, end].map(|at| stands(&process.log, at) == Stands::Entry),
                    [end - 1 == position, false]
                );
            }
        });
    }
}
