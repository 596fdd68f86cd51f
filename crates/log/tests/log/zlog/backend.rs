//! ZLog's `BackendTest`: what it asks of each of its backends, asked of a log on each of our stores.

use std::collections::BTreeSet;

use esker_log::{Error, Log, Options};

use super::{
    Act, HERE, Process, Setting, Stands, data, is_refused_under_stale_epochs, moves_max_pos, sealed, stands, unsealed,
};
use crate::racing::{a_name, a_view, watched};
use crate::support::{append, options};

/// Makes the logs of ZLog's tests of lists, and returns them in the order of their ids.
fn three_logs(setting: &Setting) -> Vec<Log> {
    let logs = setting.logs();
    logs.delete("test").unwrap();
    ["log1", "another_log", "lastOne"].map(|name| logs.create(name, options(setting.layout)).unwrap()).into()
}

/// The object names of a log's head and data, as they stand in the store.
fn objects_of(setting: &Setting, log: &Log) -> BTreeSet<String> {
    let of_log = format!("{:016x}", log.id());
    let objects = [setting.objects("h/"), setting.objects("d/")].concat();
    let names = objects.iter().map(|object| String::from_utf8(object.name().to_vec()).unwrap());
    names.filter(|name| name.contains(&of_log)).collect()
}

fn no_log<T: std::fmt::Debug>(result: esker_log::Result<T>) {
    assert!(matches!(result, Err(Error::NoLog { .. })), "{result:?}");
}

fn taken(result: esker_log::Result<()>, at: u64) {
    assert!(matches!(result, Err(Error::Taken { position }) if position == at), "{result:?}");
}

fn trimmed(result: esker_log::Result<()>, at: u64) {
    assert!(matches!(result, Err(Error::Trimmed { position }) if position == at), "{result:?}");
}

#[test]
fn create_log_args() {
    unsealed(|setting| {
        let (logs, before) = (setting.logs(), setting.objects(""));
        for name in ["", "a/b", "a\nb", &"n".repeat(129)] {
            let refused = logs.create(name, options(setting.layout));
            assert!(matches!(refused, Err(Error::Invalid { .. })), "{name:?}: {refused:?}");
        }
        let shapeless = logs.create("a", Options { slots: 0, ..options(setting.layout) });
        assert!(matches!(shapeless, Err(Error::Invalid { .. })), "{shapeless:?}");
        assert_eq!(setting.objects(""), before);
        for name in ["a", "ä and ö", &"n".repeat(128)] {
            logs.create(name, options(setting.layout)).unwrap();
        }
        assert_eq!(logs.list(None, 10).unwrap(), ["a", &"n".repeat(128), "test", "ä and ö"]);
    });
}

#[test]
fn create_log_exclusive() {
    unsealed(|setting| {
        append(&setting.reader(), data(0));
        let before = setting.objects("");
        assert!(matches!(setting.logs().create("test", options(setting.layout)), Err(Error::Exists { .. })));
        assert_eq!((setting.objects(""), setting.stands(0)), (before, Stands::Entry));
        // The faster of two that make it at the same time makes it; the other one leaves nothing.
        let (turn, slow) = watched(&setting.store, setting.nonce());
        let (fast, shape) = (setting.logs(), options(setting.layout));
        turn.before(a_name, move || assert_eq!(append(&fast.create("race", shape).unwrap(), data(0)), 0));
        let lost = slow.create("race", options(setting.layout));
        assert!(matches!(lost, Err(Error::Exists { .. })), "{lost:?}");
        assert_eq!(stands(&setting.logs().log("race").unwrap(), 0), Stands::Entry);
        assert_eq!((setting.objects("h/").len(), setting.objects("d/").len()), (2, 6));
    });
}

#[test]
fn create_log_hoid_prefix() {
    unsealed(|setting| {
        let logs = three_logs(setting);
        let objects: Vec<_> = logs.iter().map(|log| objects_of(setting, log)).collect();
        for (log, own) in logs.iter().zip(&objects) {
            assert_eq!(own.len(), 1 + 3, "a head and a stripe: {own:?}");
            assert!(own.iter().all(|name| !name.contains(log.name())), "{own:?}");
            assert_eq!(objects.iter().filter(|other| !other.is_disjoint(own)).count(), 1, "{objects:?}");
        }
    });
}

#[test]
fn open_log_args() {
    unsealed(|setting| {
        let before = setting.objects("");
        for name in ["", "a/b", "tes", "tests", &"n".repeat(129)] {
            no_log(setting.logs().log(name));
        }
        assert_eq!(setting.objects(""), before);
        assert_eq!(setting.logs().log("test").unwrap().name(), "test");
    });
}

#[test]
fn open_log_dne() {
    unsealed(|setting| {
        no_log(setting.logs().log("a"));
        setting.logs().create("a", options(setting.layout)).unwrap();
        assert!(setting.logs().log("a").is_ok());
        setting.logs().delete("a").unwrap();
        no_log(setting.logs().log("a"));
    });
}

#[test]
fn open_log_hoid_prefix() {
    unsealed(|setting| {
        for made in three_logs(setting) {
            let opened = setting.logs().log(made.name()).unwrap();
            assert_eq!((opened.id(), opened.view()), (made.id(), made.view()));
            setting.logs().rename(made.name(), "other").unwrap();
            assert_eq!(setting.logs().log("other").unwrap().id(), made.id());
            setting.logs().rename("other", made.name()).unwrap();
        }
    });
}

#[test]
fn unique_id() {
    unsealed(|setting| {
        let ids = std::thread::scope(|scope| {
            let make = |name: &'static str| {
                let (logs, options) = (setting.logs(), options(setting.layout));
                scope.spawn(move || {
                    let make = |number: u32| {
                        let log = logs.create(&format!("{name}{number}"), options.clone()).unwrap();
                        // An id that was used is not used again.
                        logs.delete(&format!("{name}{number}")).unwrap();
                        log.id()
                    };
                    (0..8).map(make).collect::<Vec<_>>()
                })
            };
            let makers: Vec<_> = ["a", "b", "c"].map(make).into_iter().collect();
            makers.into_iter().flat_map(|maker| maker.join().unwrap()).collect::<Vec<_>>()
        });
        let distinct: BTreeSet<_> = ids.iter().copied().chain([setting.reader().id()]).collect();
        assert_eq!(distinct.len(), 3 * 8 + 1, "{ids:?}");
    });
}

#[test]
fn list_heads() {
    unsealed(|setting| {
        let logs = three_logs(setting);
        let heads: Vec<_> = setting.objects("h/").iter().map(|head| head.name().to_vec()).collect();
        let expected: Vec<_> = logs.iter().map(|log| format!("h/{:016x}", log.id()).into_bytes()).collect();
        assert_eq!(heads, expected);
    });
}

#[test]
fn list_heads_empty() {
    unsealed(|setting| {
        assert_eq!(setting.objects("h/").len(), 1);
        setting.logs().delete("test").unwrap();
        assert_eq!((setting.objects("h/"), setting.objects("d/")), (vec![], vec![]));
    });
}

#[test]
fn list_links() {
    unsealed(|setting| {
        three_logs(setting);
        let logs = setting.logs();
        assert_eq!(logs.list(None, 10).unwrap(), ["another_log", "lastOne", "log1"]);
        assert_eq!(logs.list(None, 2).unwrap(), ["another_log", "lastOne"]);
        assert_eq!(logs.list(Some("lastOne"), 2).unwrap(), ["log1"]);
    });
}

#[test]
fn list_links_empty() {
    unsealed(|setting| {
        assert_eq!(setting.logs().list(None, 10).unwrap(), ["test"]);
        setting.logs().delete("test").unwrap();
        assert_eq!(setting.logs().list(None, 10).unwrap(), Vec::<String>::new());
    });
}

#[test]
fn propose_view_no_init() {
    unsealed(|setting| {
        let log = setting.reader();
        setting.logs().delete("test").unwrap();
        no_log(log.lead(HERE));
        no_log(log.reshape(1, 1));
        no_log(log.own("me"));
        no_log(log.seal());
        no_log(log.trim_to(0));
        no_log(log.set_options(&Options { retain_ms: 1, ..log.options() }));
        assert_eq!(setting.objects("").len(), 1, "the directory: {:?}", setting.objects(""));
    });
}

#[test]
fn propose_view_epoch() {
    unsealed(|setting| {
        let (turn, logs) = watched(&setting.store, setting.nonce());
        let (slow, fast) = (logs.log("test").unwrap(), setting.reader());
        // Another view is there before what is made of the one before is proposed.
        let (other, seen) = (fast.clone(), slow.view());
        turn.before(a_view, move || other.reshape(5, 2).unwrap());
        let leader = slow.lead(HERE).unwrap();
        assert_eq!(seen.epoch, 1);
        assert!(leader.epoch() > fast.view().epoch, "{} and {}", leader.epoch(), fast.view().epoch);
        let view = setting.reader().view();
        assert_eq!((view.epoch, &view.sequencer[..]), (leader.epoch(), HERE));
        assert_eq!((view.options.width, view.options.slots), (5, 2), "what the faster one proposed is lost");
    });
}

#[test]
fn read_views() {
    unsealed(|setting| {
        let (writer, reader, late) = (setting.reader(), setting.reader(), setting.reader());
        for number in 0..9 {
            writer.reshape(1 + number % 3, 2).unwrap();
            assert_eq!(append(&writer, data(u64::from(number))), u64::from(number));
            assert_eq!(reader.refresh().unwrap(), writer.view(), "view {number}");
        }
        assert_eq!(late.view().version, 1);
        assert_eq!(late.refresh().unwrap(), writer.view());
        for position in 0..9 {
            assert_eq!(stands(&late, position), Stands::Entry, "position {position}");
        }
    });
}

#[test]
fn read_views_no_init() {
    unsealed(|setting| {
        let log = setting.reader();
        setting.logs().delete("test").unwrap();
        no_log(log.refresh());
        no_log(log.tail());
        // Another log of that name is not it.
        setting.logs().create("test", options(setting.layout)).unwrap();
        no_log(log.refresh());
    });
}

#[test]
fn write_no_init() {
    unsealed(|setting| {
        let (epoch, process) = (setting.seal(), setting.process());
        setting.lose_objects();
        let error = process.write_data(epoch, 0, data(0)).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
        assert_eq!(setting.objects("d/"), [], "a write makes no object");
    });
}

#[test]
fn write_stale_epoch() {
    sealed(|setting, first| {
        // All but the first see nothing of the seals until the store refuses them.
        let late = [setting.process(), setting.process(), setting.process(), setting.process()];
        assert!(late[0].write(first, 0));
        let second = setting.seal();
        assert!(!late[1].write(first, 1) && !late[1].write(first, 1));
        let third = setting.seal();
        assert!(!late[2].write(first, 1) && !late[3].write(second, 1));
        assert!(!setting.process().write(second, 1));
        assert_eq!(
            (setting.stands(0), setting.stands(1), setting.max_pos()),
            (Stands::Entry, Stands::Nothing, Some(0))
        );
        assert!(late[1].write(third, 1) && late[2].write(third + 1, 2) && late[3].write(third + 100, 3));
        assert!((0..4).all(|position| setting.stands(position) == Stands::Entry));
        assert!(!late[0].write(first, 4) && !late[0].write(second, 4));
        assert_eq!(setting.stands(4), Stands::Nothing);
    });
}

#[test]
fn write_pos_exists() {
    sealed(|setting, epoch| {
        let [process, other] = [setting.process(), setting.process()];
        assert!([0, 1, 2, 3].into_iter().all(|position| process.write(epoch, position)));
        for (epoch, position) in [(epoch, 0), (epoch, 0), (epoch, 1), (epoch, 3), (epoch + 9, 1), (epoch + 9, 2)] {
            assert!(!process.write_other(epoch, position) && !other.write_other(epoch, position), "{position}");
        }
        assert!(other.write(epoch + 9, 4));
        let next = setting.seal();
        assert!(!process.write_other(next, 4) && !process.write_other(epoch, 5));
        assert!((0..5).all(|position| setting.stands(position) == Stands::Entry));
        assert_eq!(setting.stands(5), Stands::Nothing);
    });
}

#[test]
fn write_trim_fill() {
    sealed(|setting, epoch| {
        let process = setting.process();
        assert!(process.write(epoch, 0));
        taken(process.fill(epoch, 0), 0);
        process.fill(epoch, 1).unwrap();
        assert!(!process.write(epoch, 1));
        assert!(process.write(epoch, 2));
        process.trim(epoch, 2).unwrap();
        process.trim(epoch, 3).unwrap();
        assert!(!process.write(epoch, 2) && !process.write(epoch, 3));
        let found = [0, 1, 2, 3].map(|position| setting.stands(position));
        assert_eq!(found, [Stands::Entry, Stands::Filled, Stands::Trimmed, Stands::Trimmed]);
    });
}

#[test]
fn write_trim_limit_fill() {
    sealed(|setting, epoch| {
        // The second one does not know what the first trims.
        let [process, late] = [setting.process(), setting.process()];
        assert!(process.write(epoch, 1) && process.write(epoch, 7));
        process.trim_limit(epoch, 5).unwrap();
        assert!((0..=5).all(|position| !late.write_other(epoch, position)));
        trimmed(process.fill(epoch, 3), 3);
        assert!((0..=5).all(|position| setting.stands(position) == Stands::Trimmed));
        process.fill(epoch, 6).unwrap();
        assert!(!late.write_other(epoch, 6) && late.write(epoch, 8));
        assert_eq!([6, 7, 8].map(|position| setting.stands(position)), [Stands::Filled, Stands::Entry, Stands::Entry]);
    });
}

fn write(process: &Process, epoch: u64, position: u64) -> esker_log::Result<()> {
    assert!(process.write(epoch, position), "position {position} under {epoch}");
    Ok(())
}

#[test]
fn write_max_pos() {
    sealed(|setting, epoch| moves_max_pos(setting, epoch, write));
}

#[test]
fn read() {
    sealed(|setting, epoch| {
        let process = setting.process();
        let long = b"abc".repeat(1_000);
        for (position, data) in [(0, Vec::new()), (1, b"abc".to_vec()), (2, long)] {
            assert!(process.write_data(epoch, position, data.clone()).unwrap());
            for log in [&process.log, &setting.reader()] {
                let found = log.read(position).unwrap().wait().unwrap();
                assert!(matches!(&found, esker_log::Found::Entry(entry) if entry.data == data), "{found:?}");
            }
        }
    });
}

#[test]
fn read_fill_trim() {
    sealed(|setting, epoch| {
        let process = setting.process();
        assert!(process.write(epoch, 0));
        process.fill(epoch, 1).unwrap();
        process.fill(epoch, 19).unwrap();
        let found = [0, 1, 19].map(|position| setting.stands(position));
        assert_eq!(found, [Stands::Entry, Stands::Filled, Stands::Filled]);
        for position in [0, 19, 10] {
            process.trim(epoch, position).unwrap();
            assert_eq!([setting.stands(position), stands(&process.log, position)], [Stands::Trimmed; 2], "{position}");
        }
        assert_eq!((setting.stands(1), setting.stands(11)), (Stands::Filled, Stands::Nothing));
    });
}

#[test]
fn read_fill_trim_limit() {
    sealed(|setting, epoch| {
        let (process, late) = (setting.process(), setting.reader());
        assert!(process.write(epoch, 0) && process.write(epoch, 3) && process.write(epoch, 15));
        process.fill(epoch, 1).unwrap();
        process.fill(epoch, 16).unwrap();
        for (limit, entry, filled) in [(1, Stands::Entry, Stands::Filled), (15, Stands::Trimmed, Stands::Filled)] {
            process.trim_limit(epoch, limit).unwrap();
            for log in [&process.log, &late, &setting.reader()] {
                assert!((0..=limit).all(|position| stands(log, position) == Stands::Trimmed), "up to {limit}");
                assert_eq!((stands(log, 3), stands(log, 16)), (entry, filled));
            }
        }
    });
}

#[test]
fn read_no_init() {
    unsealed(|setting| {
        let reader = setting.reader();
        // Where no stripe was made yet, where one was, and where its objects are gone.
        assert_eq!([0, 1, 100, u64::MAX].map(|position| stands(&reader, position)), [Stands::Nothing; 4]);
        let (epoch, process) = (setting.seal(), setting.process());
        assert!(process.write(epoch, 0) && process.write(epoch, 13));
        assert_eq!([0, 1, 13].map(|at| stands(&reader, at)), [Stands::Entry, Stands::Nothing, Stands::Entry]);
        setting.lose_objects();
        assert_eq!([0, 1, 13].map(|at| stands(&reader, at)), [Stands::Nothing; 3]);
        let problems = reader.check(true, |_, _| true).unwrap().problems;
        assert!(problems.iter().any(|problem| problem.contains("missing")), "{problems:?}");
    });
}

#[test]
fn read_no_pos() {
    sealed(|setting, epoch| {
        let (process, reader) = (setting.process(), setting.reader());
        assert_eq!([0, 1, 2].map(|position| stands(&reader, position)), [Stands::Nothing; 3]);
        assert!(process.write(epoch, 2));
        assert_eq!([0, 1, 2].map(|at| stands(&reader, at)), [Stands::Nothing, Stands::Nothing, Stands::Entry]);
        assert!(process.write(epoch, 0) && process.write(epoch, 1));
        assert_eq!([0, 1, 2].map(|position| stands(&reader, position)), [Stands::Entry; 3]);
        assert_eq!(stands(&reader, 3), Stands::Nothing);
    });
}

/// A read needs no epoch, so one of old is not refused: it finds what stands now.
#[test]
fn read_stale_epoch() {
    sealed(|setting, epoch| {
        let readers = [setting.reader(), setting.reader()];
        assert!(setting.process().write(epoch, 0));
        assert_eq!(stands(&readers[0], 0), Stands::Entry);
        // From 1 on positions have other places than the readers know.
        setting.reader().reshape(2, 2).unwrap();
        let now = setting.seal();
        assert!([1, 2, 3, 4, 9].into_iter().all(|position| setting.process().write(now, position)));
        for reader in &readers {
            assert!([0, 1, 2, 3, 4, 9].into_iter().all(|position| stands(reader, position) == Stands::Entry));
            assert_eq!(stands(reader, 5), Stands::Nothing);
        }
    });
}

/// Where objects are missing an act is refused; neither it nor a seal makes them.
fn is_refused_without_objects(act: Act) {
    unsealed(|setting| {
        let (epoch, process) = (setting.seal(), setting.process());
        setting.lose_objects();
        setting.seal();
        let refused = act(&process, epoch, 0);
        assert!(matches!(refused, Err(Error::Damaged { .. })), "{refused:?}");
        assert_eq!(setting.objects("d/"), []);
    });
}

#[test]
fn fill_no_init() {
    is_refused_without_objects(Process::fill);
}

#[test]
fn fill_stale_epoch() {
    sealed(|setting, epoch| {
        is_refused_under_stale_epochs(setting, epoch, Process::fill, Stands::Filled);
        // Of an epoch that the objects have not heard of yet.
        setting.process().fill(epoch + 100, 7).unwrap();
        assert_eq!(setting.stands(7), Stands::Filled);
    });
}

#[test]
fn fill_idempotent() {
    sealed(|setting, epoch| {
        let process = setting.process();
        process.fill(epoch, 1).unwrap();
        process.fill(epoch, 1).unwrap();
        setting.process().fill(epoch, 1).unwrap();
        let next = setting.seal();
        process.fill(next, 1).unwrap();
        assert_eq!((setting.stands(1), setting.max_pos()), (Stands::Filled, Some(1)));
    });
}

#[test]
fn fill_no_overwrite() {
    sealed(|setting, epoch| {
        let process = setting.process();
        for position in [0, 1] {
            assert!(process.write(epoch, position));
            taken(process.fill(epoch, position), position);
            taken(setting.process().fill(epoch + 1, position), position);
            assert_eq!(setting.stands(position), Stands::Entry);
        }
    });
}

#[test]
fn fill_no_read() {
    sealed(|setting, epoch| {
        let (process, reader) = (setting.process(), setting.reader());
        assert!(process.write(epoch, 1));
        process.fill(epoch, 2).unwrap();
        for log in [&process.log, &reader] {
            assert_eq!([1, 2, 3].map(|at| stands(log, at)), [Stands::Entry, Stands::Filled, Stands::Nothing]);
        }
        assert!(!setting.keeps(2));
    });
}

#[test]
fn fill_max_pos() {
    sealed(|setting, epoch| moves_max_pos(setting, epoch, Process::fill));
}

#[test]
fn trim_no_init() {
    is_refused_without_objects(Process::trim);
}

#[test]
fn trim_stale_epoch() {
    sealed(|setting, epoch| {
        is_refused_under_stale_epochs(setting, epoch, Process::trim, Stands::Trimmed);
        // Of an epoch that the objects have not heard of yet.
        setting.process().trim(epoch + 100, 7).unwrap();
        assert_eq!(setting.stands(7), Stands::Trimmed);
    });
}

#[test]
fn trim_idempotent() {
    sealed(|setting, epoch| {
        let process = setting.process();
        for position in [1, 2] {
            assert!(position == 2 || process.write(epoch, position));
            process.trim(epoch, position).unwrap();
            process.trim(epoch, position).unwrap();
            setting.process().trim(epoch, position).unwrap();
            assert_eq!((setting.stands(position), setting.max_pos()), (Stands::Trimmed, Some(position)));
        }
    });
}

#[test]
fn trim_overwrite() {
    sealed(|setting, epoch| {
        let process = setting.process();
        for position in [0, 1] {
            assert!(process.write(epoch, position) && setting.keeps(position));
            process.trim(epoch, position).unwrap();
            assert_eq!((setting.stands(position), setting.keeps(position)), (Stands::Trimmed, false), "{position}");
        }
    });
}

#[test]
fn trim_no_read() {
    sealed(|setting, epoch| {
        let (process, reader) = (setting.process(), setting.reader());
        assert!(process.write(epoch, 1) && process.write(epoch, 4));
        assert_eq!(stands(&reader, 1), Stands::Entry);
        process.trim(epoch, 2).unwrap();
        process.trim(epoch, 1).unwrap();
        for log in [&process.log, &reader] {
            let found = [1, 2, 3, 4].map(|position| stands(log, position));
            assert_eq!(found, [Stands::Trimmed, Stands::Trimmed, Stands::Nothing, Stands::Entry]);
        }
    });
}

/// Where ZLog fills a trimmed position, and nothing comes of it, we say that it is trimmed.
#[test]
fn trim_fill() {
    sealed(|setting, epoch| {
        let process = setting.process();
        process.fill(epoch, 10).unwrap();
        process.trim(epoch, 10).unwrap();
        process.trim(epoch, 9).unwrap();
        for position in [9, 10] {
            trimmed(process.fill(epoch, position), position);
            assert_eq!(setting.stands(position), Stands::Trimmed);
        }
    });
}

#[test]
fn trim_max_pos() {
    sealed(|setting, epoch| moves_max_pos(setting, epoch, Process::trim));
}

/// Nothing is asked of objects that are gone: what lies below the limit is trimmed, as the head says.
#[test]
fn trim_limit_no_init() {
    unsealed(|setting| {
        let (epoch, process) = (setting.seal(), setting.process());
        assert!(process.write(epoch, 0));
        setting.lose_objects();
        process.trim_limit(epoch, 3).unwrap();
        assert_eq!(setting.objects("d/"), []);
        assert_eq!([0, 3, 4].map(|at| setting.stands(at)), [Stands::Trimmed, Stands::Trimmed, Stands::Nothing]);
    });
}

#[test]
fn trim_limit_stale_epoch() {
    sealed(|setting, epoch| is_refused_under_stale_epochs(setting, epoch, Process::trim_limit, Stands::Trimmed));
}

#[test]
fn trim_limit_idempotent() {
    sealed(|setting, epoch| {
        let process = setting.process();
        assert!(process.write(epoch, 1) && process.write(epoch, 15));
        process.trim_limit(epoch, 13).unwrap();
        let (view, objects) = (process.log.refresh().unwrap(), setting.objects(""));
        for limit in [13, 13, 5, 0] {
            setting.process().trim_limit(epoch, limit).unwrap();
            process.trim_limit(epoch, limit).unwrap();
            assert_eq!((process.log.refresh().unwrap(), setting.objects("")), (view.clone(), objects.clone()));
        }
        assert_eq!([13, 14, 15].map(|at| setting.stands(at)), [Stands::Trimmed, Stands::Nothing, Stands::Entry]);
    });
}

#[test]
fn trim_limit_overwrite() {
    sealed(|setting, epoch| {
        let process = setting.process();
        assert!((0..12).all(|position| process.write(epoch, position) && setting.keeps(position)));
        process.trim_limit(epoch, 6).unwrap();
        assert!((0..12).all(|position| setting.keeps(position) == (position > 6)));
        assert!((0..12).all(|position| (setting.stands(position) == Stands::Trimmed) == (position <= 6)));
    });
}

#[test]
fn trim_limit_no_read() {
    sealed(|setting, epoch| {
        let (process, reader) = (setting.process(), setting.reader());
        assert!([1, 4, 5].into_iter().all(|position| process.write(epoch, position)));
        assert_eq!(stands(&reader, 1), Stands::Entry);
        process.trim_limit(epoch, 4).unwrap();
        for log in [&process.log, &reader] {
            assert!((0..=4).all(|position| stands(log, position) == Stands::Trimmed));
            assert_eq!(stands(log, 5), Stands::Entry);
        }
    });
}

/// As [`trim_fill`], with a limit.
#[test]
fn trim_limit_fill() {
    sealed(|setting, epoch| {
        let [process, late] = [setting.process(), setting.process()];
        process.fill(epoch, 2).unwrap();
        process.fill(epoch, 10).unwrap();
        process.trim_limit(epoch, 4).unwrap();
        for position in 0..=4 {
            trimmed(late.fill(epoch, position), position);
        }
        late.fill(epoch, 5).unwrap();
        let found = [2, 4, 5, 10].map(|position| setting.stands(position));
        assert_eq!(found, [Stands::Trimmed, Stands::Trimmed, Stands::Filled, Stands::Filled]);
    });
}

#[test]
fn trim_limit_max_pos() {
    sealed(|setting, epoch| moves_max_pos(setting, epoch, Process::trim_limit));
}

/// All positions of objects are trimmed: the objects go, and no writer brings them back.
#[test]
fn trim_full() {
    sealed(|setting, epoch| {
        let [process, late] = [setting.process(), setting.process()];
        assert!((0..26).all(|position| process.write(epoch, position)));
        let objects = setting.objects("d/");
        process.trim_limit(epoch, 23).unwrap();
        assert_eq!(setting.objects("d/"), objects[6..], "two stripes of three objects are gone");
        assert!((0..24).all(|position| !late.write_other(epoch, position) && !setting.keeps(position)));
        assert!((0..24).all(|position| setting.stands(position) == Stands::Trimmed));
        assert_eq!((setting.objects("d/"), setting.sealed_max_pos()), (objects[6..].to_vec(), Some(25)));
    });
}

#[test]
fn seal() {
    sealed(|setting, first| {
        let process = setting.process();
        assert!(process.write(first, 0));
        for epoch in first + 1..first + 6 {
            assert_eq!(setting.seal(), epoch, "one after another");
            assert_eq!(setting.epochs(), [epoch; 3]);
            assert!(!process.write(epoch - 1, 1));
        }
        // Of several that seal at the same time each has an epoch of its own, and the last one's stands.
        let sealers = [setting.reader(), setting.reader(), setting.reader()];
        let epochs: BTreeSet<_> = std::thread::scope(|scope| {
            let seal = |log: Log| scope.spawn(move || log.lead(HERE).unwrap().epoch());
            let threads: Vec<_> = sealers.map(seal).into_iter().collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(epochs.len(), 3);
        assert_eq!(
            (setting.epochs(), setting.reader().view().epoch),
            (vec![epochs.last().copied().unwrap(); 3], epochs.last().copied().unwrap())
        );
    });
}

#[test]
fn max_pos() {
    sealed(|setting, epoch| {
        let process = setting.process();
        assert_eq!((setting.max_pos(), setting.sealed_max_pos()), (None, None));
        assert!(!process.write(epoch, 1), "it was sealed since");
        let epoch = setting.seal();
        for (position, max) in [(1, 1), (20, 20), (30, 30), (22, 30), (2, 30), (31, 31)] {
            assert!(process.write(epoch, position));
            assert_eq!(setting.max_pos(), Some(max), "after {position}");
        }
        assert_eq!((setting.sealed_max_pos(), setting.max_pos()), (Some(31), Some(31)));
    });
}

#[test]
fn max_pos_no_init() {
    unsealed(|setting| {
        assert_eq!(setting.max_pos(), None);
        let reader = setting.reader();
        setting.logs().delete("test").unwrap();
        no_log(reader.tail());
        no_log(reader.lead(HERE));
    });
}
