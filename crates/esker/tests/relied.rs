//! What others rely on when they change something is durable, also where a store acknowledges what is applied: kill -9
//! takes back no name, schema, lock, snapshot or view that anybody was told or has read.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::sync::Arc;

use esker::kv::{Kind, Kv, SystemClock};
use esker::log::{Logs, Options as LogOptions, Session};
use esker::map::{Alter, DataType, Error as MapError, MapStorage, Schema, TableName, Waist};
use esker::volume::{Error as VolumeError, Layout, Volumes};
use esker_device::{Device, MemoryDevice};
use esker_engine::{CommitPolicy, Engine, FormatOptions, Options};
use esker_store::ObjectStore;

const SEGMENT_BYTES: u64 = 1 << 20;

struct Faces {
    kv: Kv,
    map: Waist,
    logs: Logs,
    volumes: Volumes,
}

impl Faces {
    fn of(engine: &Arc<Engine>) -> Self {
        let store = || Arc::clone(engine) as Arc<dyn ObjectStore>;
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
            |faces| drop(faces.kv.remove_namespace("names").unwrap()),
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
            |faces| drop(faces.volumes.image("disk").unwrap().lock("ada").unwrap()),
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
