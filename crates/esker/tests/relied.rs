//! What others rely on when they change something is durable, also where a store acknowledges what is applied: kill -9
//! takes back no name, schema, lock, snapshot or view that a client was told or has read.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::sync::Arc;

use esker::kv::{Kind, Kv, SystemClock};
use esker::log::{Logs, Options as LogOptions, Session};
use esker::map::{Alter, DataType, Error as MapError, MapStorage, Schema, TableName, Waist};
use esker::volume::{Error as VolumeError, Layout, Volumes};
use esker_device::{Device, MemoryDevice};
use esker_engine::{CommitPolicy, Engine, FormatOptions, Options};
use esker_store::{
    Change, CommitSeq, Completion, Durability, Forward, Incarnation, ObjectId, ObjectStore, Op, Transaction,
};
use parking_lot::Mutex;

const SEGMENT_BYTES: u64 = 1 << 20;

struct Faces {
    kv: Kv,
    map: Waist,
    logs: Logs,
    volumes: Volumes,
}

impl Faces {
    fn of(store: &Arc<impl ObjectStore + 'static>) -> Self {
        let store = || Arc::clone(store) as Arc<dyn ObjectStore>;
        Self {
            kv: Kv::open(store(), Arc::new(SystemClock)).unwrap(),
            map: Waist::open(store(), Arc::new(|| 1_000), [3; 32]).unwrap(),
            logs: Logs::open(store(), Session::new(Arc::new(|| 1_000), 1)).unwrap(),
            volumes: Volumes::open(store()).unwrap(),
        }
    }
}

fn open(device: &Arc<MemoryDevice>) -> Arc<Engine> {
    let policy: CommitPolicy = "periodic:3600s".parse().unwrap();
    Arc::new(Engine::open(Arc::clone(device) as Arc<dyn Device>, Options { policy, ..Options::default() }).unwrap())
}

fn table() -> TableName {
    TableName::new("n", "t")
}

/// What is done, and whether it is there.
type Step = (&'static str, fn(&Faces), fn(&Faces) -> bool);

fn steps() -> Vec<Step> {
    let mut steps: Vec<Step> = vec![
        (
            "a namespace of keys",
            |faces| drop(faces.kv.namespace("names", Kind::Bytes).unwrap()),
            |faces| faces.kv.namespaces().unwrap() == [("names".to_owned(), Kind::Bytes)],
        ),
        (
            "a namespace of keys is removed",
            |faces| faces.kv.remove_namespace("names").unwrap(),
            |faces| faces.kv.namespaces().unwrap().is_empty(),
        ),
    ];
    steps.extend(maps());
    steps.extend(logs());
    steps.extend(volumes());
    steps
}

fn maps() -> Vec<Step> {
    vec![
        (
            "a namespace of tables",
            |faces| faces.map.create_namespace("n").unwrap(),
            |faces| faces.map.namespaces().unwrap() == ["n"],
        ),
        (
            "a table",
            |faces| {
                let schema = Schema::new().column("k", DataType::Int).column("x", DataType::Text).partition("k");
                faces.map.create_table(&table(), &schema).unwrap();
            },
            |faces| faces.map.tables("n").unwrap() == ["t"],
        ),
        (
            "a column",
            |faces| faces.map.alter_table(&table(), &Alter::AddColumn("y".into(), DataType::Int)).unwrap(),
            |faces| faces.map.table(&table()).unwrap().column("y").is_ok(),
        ),
        (
            "an index",
            |faces| faces.map.create_index(&table(), "x").unwrap(),
            |faces| faces.map.table(&table()).unwrap().indexes.iter().any(|index| !index.building),
        ),
        (
            "rows that get another number",
            |faces| faces.map.truncate_table(&table()).unwrap(),
            |faces| faces.map.table(&table()).unwrap().id == 2,
        ),
        (
            "another name",
            |faces| faces.map.rename_table(&table(), "u").unwrap(),
            |faces| faces.map.tables("n").unwrap() == ["u"],
        ),
        (
            "a table is dropped",
            |faces| faces.map.drop_table(&TableName::new("n", "u")).unwrap(),
            |faces| matches!(faces.map.table(&TableName::new("n", "u")), Err(MapError::Missing { .. })),
        ),
    ]
}

fn logs() -> Vec<Step> {
    vec![
        (
            "a log",
            |faces| drop(faces.logs.create("log", LogOptions::default()).unwrap()),
            |faces| faces.logs.list(None, 9).unwrap() == ["log"],
        ),
        (
            "an only writer",
            |faces| drop(faces.logs.log("log").unwrap().own("ada").unwrap()),
            |faces| faces.logs.log("log").unwrap().view().owner == "ada",
        ),
        (
            "a sealed log",
            |faces| {
                let log = faces.logs.log("log").unwrap().own("eva").unwrap();
                log.release().unwrap();
                faces.logs.log("log").unwrap().seal().unwrap();
            },
            |faces| faces.logs.log("log").unwrap().view().sealed.is_some(),
        ),
        (
            "a log is deleted",
            |faces| faces.logs.delete("log").unwrap(),
            |faces| faces.logs.list(None, 9).unwrap().is_empty(),
        ),
    ]
}

fn volumes() -> Vec<Step> {
    vec![
        (
            "an image",
            |faces| drop(faces.volumes.create("disk", 1 << 20, Layout::default(), 0).unwrap()),
            |faces| faces.volumes.image("disk").unwrap().size() == 1 << 20,
        ),
        (
            "a lock",
            |faces| assert_eq!(faces.volumes.image("disk").unwrap().lock("ada").unwrap(), 1),
            |faces| faces.volumes.image("disk").unwrap().lock_info().is_some_and(|lock| lock.owner == "ada"),
        ),
        (
            "a lock is broken",
            |faces| faces.volumes.image("disk").unwrap().break_lock(1).unwrap(),
            |faces| faces.volumes.image("disk").unwrap().lock_info().is_none(),
        ),
        (
            "a snapshot",
            |faces| drop(faces.volumes.image("disk").unwrap().snapshot_create("s", 0).unwrap()),
            |faces| faces.volumes.image("disk").unwrap().snapshots().unwrap().len() == 1,
        ),
        (
            "a protected snapshot",
            |faces| faces.volumes.image("disk").unwrap().snapshot_protect("s").unwrap(),
            |faces| faces.volumes.image("disk").unwrap().snapshots().unwrap()[0].protected,
        ),
        (
            "another size",
            |faces| faces.volumes.image("disk").unwrap().resize(2 << 20, false).unwrap(),
            |faces| faces.volumes.image("disk").unwrap().size() == 2 << 20,
        ),
        (
            "a snapshot is removed",
            |faces| {
                let image = faces.volumes.image("disk").unwrap();
                image.snapshot_unprotect("s").unwrap();
                image.snapshot_remove("s").unwrap();
            },
            |faces| faces.volumes.image("disk").unwrap().snapshots().unwrap().is_empty(),
        ),
        (
            "an image is removed",
            |faces| faces.volumes.remove("disk").unwrap(),
            |faces| matches!(faces.volumes.image("disk"), Err(VolumeError::NoImage { .. })),
        ),
    ]
}

#[test]
fn what_others_rely_on_survives_a_kill_under_every_policy() {
    let device = Arc::new(MemoryDevice::new(64 * SEGMENT_BYTES));
    Engine::format(&*device, &FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: [7; 16] }).unwrap();
    let engine = open(&device);
    let faces = Faces::of(&engine);
    for (what, act, is_there) in steps() {
        act(&faces);
        assert!(is_there(&faces), "{what}: it is not there at once");
        // As after kill -9 of the process that has the store, and of the machine.
        let left = Arc::new(MemoryDevice::from_image(&device.image()));
        let after = open(&left);
        assert!(is_there(&Faces::of(&after)), "{what}: a kill has taken it back");
    }
    engine.close().unwrap();
}

/// Notes each transaction on what others rely on that is not durable always. It may be restarted under its users, as
/// the store of a server.
struct Watched {
    engine: Arc<Engine>,
    met: Mutex<Vec<String>>,
    relied: Mutex<u64>,
}

/// Whether others act by what this changes, or are let in by it.
fn is_relied_on(object: &ObjectId, change: &Change) -> bool {
    let (collection, name) = (object.collection().name(), object.name());
    match change {
        Change::OmapSet { .. } | Change::OmapRemove { .. } => {
            let directories: [&[u8]; 3] = [b"directory", b"catalogue", b"namespaces"];
            directories.contains(&&name[..])
        }
        // Of heads, headers and directories; of data of logs, which they seal and trim. What `last` and `r/` count in
        // the catalogue of keys is the keys' own.
        Change::XattrSet { name: xattr, .. } => {
            let names = ["generation", "state", "version", "view", "last", "next", "secret", "epoch", "trim"];
            &collection[..] != b"kv" && names.iter().any(|name| name.as_bytes() == &xattr[..])
        }
        _ => false,
    }
}

impl Forward for Watched {
    fn behind(&self) -> &dyn ObjectStore {
        &*self.engine
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation(1)
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        for op in &txn.ops {
            if let Op::Object(object, change) = op
                && is_relied_on(object, change)
            {
                *self.relied.lock() += 1;
                if txn.durability != Durability::Always {
                    self.met.lock().push(format!("{:?} of {object:?}: {change:?}", txn.durability));
                }
            }
        }
        ObjectStore::submit(&*self.engine, txn)
    }
}

/// Each of them, not only the last of each change, which would cover those before it.
#[test]
fn whatever_others_rely_on_is_submitted_as_always_durable() {
    let device = Arc::new(MemoryDevice::new(64 * SEGMENT_BYTES));
    Engine::format(&*device, &FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: [7; 16] }).unwrap();
    let engine = open(&device);
    let store = Arc::new(Watched { engine: Arc::clone(&engine), met: Mutex::default(), relied: Mutex::new(0) });
    let faces = Faces::of(&store);
    for (what, act, is_there) in steps() {
        let before = *store.relied.lock();
        act(&faces);
        assert!(is_there(&faces), "{what}");
        assert_eq!(*store.met.lock(), Vec::<String>::new(), "{what}");
        assert!(*store.relied.lock() > before, "{what}: it was changed without a trace");
    }
    // Objects of a log are sealed and trimmed, and an int namespace is removed by its count of ranges.
    let log = faces.logs.create("log", LogOptions { slots: 4, ..LogOptions::default() }).unwrap();
    (0..40).for_each(|_| assert!(log.append(vec![7]).unwrap().wait().is_ok()));
    log.reshape(3, 4).unwrap();
    (0..40).for_each(|_| assert!(log.append(vec![7]).unwrap().wait().is_ok()));
    log.trim_to(70).unwrap();
    let numbers = faces.kv.namespace("numbers", Kind::Int).unwrap();
    numbers.put(5, "five").wait().unwrap();
    faces.kv.remove_namespace("numbers").unwrap();
    assert_eq!(*store.met.lock(), Vec::<String>::new());
    engine.close().unwrap();
}
