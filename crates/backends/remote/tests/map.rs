//! The map of a server beside one in this process: the same calls, the same answers; and what is said when the server
//! is gone.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use esker_map::{
    Alter, Bound, Change, Compare, Condition, DataType, Durability, Error, Filter, Get, Key, MapStorage, Mutation,
    Order, Over, Page, Record, Scan, Schema, TableName, Value, Waist,
};
use esker_memory::MemoryStore;
use esker_remote::{Options, Place, RemoteMap};
use esker_server::grpc::{self, Address, Config, Faces, Handle, Server};

struct Running {
    address: SocketAddr,
    handle: Handle,
    thread: Option<JoinHandle<grpc::Result<()>>>,
}

fn waist() -> Waist {
    Waist::open(Arc::new(MemoryStore::new()), Arc::new(|| 1_000), [9; 32]).unwrap()
}

impl Running {
    fn start() -> Self {
        let config = Config { listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))], ..Config::default() };
        let faces = Faces { map: Some(Arc::new(waist())), ..Faces::default() };
        let server = Server::bind(config, faces).unwrap();
        let Address::Tcp(address) = server.addresses()[0] else { panic!("{:?}", server.addresses()) };
        let handle = server.handle();
        Self { address, handle, thread: Some(std::thread::spawn(move || server.run())) }
    }

    fn map(&self) -> RemoteMap {
        RemoteMap::connect(Place::Tcp(self.address.to_string()), &Options::default()).unwrap()
    }

    fn stop(&mut self) {
        self.handle.shutdown();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap().unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
    }
}

fn table() -> TableName {
    TableName::new("ns", "t")
}

/// All rows of a scan, page after page.
fn all(map: &dyn MapStorage, scan: &Scan) -> Result<Vec<Record>, Error> {
    let (mut scan, mut records) = (scan.clone(), Vec::new());
    loop {
        let Page { records: more, next } = map.scan(&scan)?;
        records.extend(more);
        scan.page = next;
        if scan.page.is_none() {
            return Ok(records);
        }
    }
}

/// Which error, and what it is about; texts may differ.
fn kind(error: &Error) -> String {
    match error {
        Error::Missing { what, name } => format!("missing {what} {name}"),
        Error::Exists { what, name } => format!("exists {what} {name}"),
        Error::Invalid { .. } => "invalid".into(),
        Error::ConditionFailed { mutation, current } => format!("condition {mutation} {current:?}"),
        other => format!("{other:?}"),
    }
}

fn told<T: std::fmt::Debug>(outcome: Result<T, Error>) -> Result<T, String> {
    outcome.map_err(|error| kind(&error))
}

struct Random(fastrand::Rng);

impl Random {
    fn value(&mut self, column: &str) -> Value {
        match column {
            "p" => Value::Text(["a", "b", ""][self.0.usize(..3)].into()),
            "c" => Value::Int(self.0.i32(-3..3)),
            "x" => Value::BigInt(self.0.i64(0..4)),
            "y" => Value::Text(["", "tea", "té%", "a_b"][self.0.usize(..4)].into()),
            "z" => Value::Double([0.0, -0.0, f64::NAN, 1.5][self.0.usize(..4)]),
            _ => Value::Blob(vec![self.0.u8(..); self.0.usize(..3)].into()),
        }
    }

    fn column(&mut self) -> &'static str {
        // One of them is not there: both must say so.
        ["x", "y", "z", "w", "x", "y", "z", "w", "x", "nothing"][self.0.usize(..10)]
    }

    fn key(&mut self) -> Key {
        let (p, c) = (self.value("p"), self.value("c"));
        let key = Key::of("p", p);
        if self.0.u8(..) == 0 { key } else { key.and("c", c) }
    }

    fn filter(&mut self, depth: u32) -> Filter {
        let each = |random: &mut Self| (0..random.0.usize(..3)).map(|_| random.filter(depth + 1)).collect();
        let column = self.column();
        match self.0.u32(..if depth < 3 { 7 } else { 5 }) {
            0 => Filter::IsNull(column.into()),
            1 => Filter::IsNotNull(column.into()),
            2 => Filter::Like {
                column: "y".into(),
                pattern: ["t%", "%_b", "a\\_b", "t\\"][self.0.usize(..4)].into(),
                escape: Some('\\'),
                negated: self.0.bool(),
            },
            3 | 4 => {
                use Compare as C;
                let all = [C::Equal, C::NotEqual, C::Less, C::LessOrEqual, C::Greater, C::GreaterOrEqual];
                let value = self.value(column);
                Filter::Compare(column.into(), all[self.0.usize(..6)], value)
            }
            5 => Filter::All(each(self)),
            _ => Filter::Any(each(self)),
        }
    }

    fn mutation(&mut self) -> Mutation {
        let change = if self.0.u32(..4) == 0 {
            Change::Delete
        } else {
            let columns = (0..self.0.usize(..3)).map(|_| {
                let column = self.column();
                let value = self.value(column);
                (column.into(), (self.0.u32(..4) > 0).then_some(value))
            });
            let columns = columns.collect();
            // Now is 1,000.
            Change::Put { columns, expires_ms: [None, None, None, Some(999), Some(5_000)][self.0.usize(..5)] }
        };
        let condition = match self.0.u32(..6) {
            0 => Condition::Exists,
            1 => Condition::NotExists,
            2 => Condition::If(self.filter(0)),
            _ => Condition::Always,
        };
        Mutation { table: table(), key: self.key(), change, condition }
    }

    fn scan(&mut self) -> Scan {
        let bound = |random: &mut Self| {
            let values = vec![("c".into(), random.value("c"))];
            (random.0.bool()).then_some(Bound { values, inclusive: random.0.bool() })
        };
        let over = match self.0.u32(..4) {
            0 => Over::All,
            1 => Over::Index("x".into(), self.value("x")),
            _ => Over::Partition { key: vec![("p".into(), self.value("p"))], low: bound(self), high: bound(self) },
        };
        let order_by = match self.0.u32(..5) {
            0 => vec![("x".into(), Order::Desc), ("y".into(), Order::Asc)],
            _ => Vec::new(),
        };
        let columns = if self.0.bool() { vec!["y".into()] } else { Vec::new() };
        let filter = if self.0.bool() { self.filter(0) } else { Filter::always() };
        let limit = if self.0.bool() { 0 } else { self.0.usize(1..5) };
        Scan { reverse: self.0.bool(), order_by, columns, filter, limit, ..Scan::new(&table(), over) }
    }
}

#[test]
fn a_servers_map_answers_as_one_in_this_process() {
    let seed = std::env::var("ESKER_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    println!("seed {seed}");
    let server = Running::start();
    let (here, there) = (waist(), server.map());
    let both = |call: &dyn Fn(&dyn MapStorage) -> String| {
        let (one, other) = (call(&here), call(&there));
        assert_eq!(one, other, "seed {seed}");
    };
    both(&|map| format!("{:?}", told(map.create_table(&table(), &Schema::new()))));
    both(&|map| format!("{:?}", told(map.create_namespace("ns"))));
    both(&|map| format!("{:?}", told(map.create_namespace("ns"))));
    let schema = Schema::new()
        .column("y", DataType::Text)
        .column("p", DataType::Text)
        .column("c", DataType::Int)
        .column("x", DataType::BigInt)
        .column("z", DataType::Double)
        .column("w", DataType::Blob)
        .partition("p")
        .clustering("c", Order::Desc)
        .index("x");
    both(&|map| format!("{:?}", told(map.create_table(&table(), &schema))));
    let mut random = Random(fastrand::Rng::with_seed(seed));
    for step in 0..1_500 {
        match random.0.u32(..100) {
            0..40 => {
                let list: Vec<Mutation> = (0..random.0.usize(..4)).map(|_| random.mutation()).collect();
                both(&|map| {
                    let mutated = map.mutate(&list, Durability::Durable).map(|done| done.wait().unwrap());
                    format!("{step} {list:?} {:?}", told(mutated))
                });
            }
            40..60 => {
                let get = Get { filter: random.filter(2), ..Get::new(&table(), random.key()) };
                both(&|map| format!("{step} {get:?} {:?}", told(map.get(&get))));
            }
            60..98 => {
                let scan = random.scan();
                both(&|map| format!("{step} {scan:?} {:?}", told(all(map, &scan))));
            }
            98 => {
                let change = [
                    Alter::AddColumn("v".into(), DataType::Time),
                    Alter::DropColumn("v".into()),
                    Alter::RenameColumn("v".into(), "p".into()),
                    Alter::ChangeType("x".into(), DataType::Text),
                ];
                let change = &change[random.0.usize(..4)];
                both(&|map| format!("{step} {change:?} {:?}", told(map.alter_table(&table(), change))));
            }
            _ => {
                let (make, column) = (random.0.bool(), random.column());
                both(&|map| {
                    let name = table();
                    let done = if make { map.create_index(&name, column) } else { map.drop_index(&name, column) };
                    format!("{step} index {make} {column} {:?}", told(done))
                });
            }
        }
    }
    both(&|map| format!("{:?}", told(map.tables("ns"))));
    both(&|map| format!("{:?}", told(map.tables("nowhere"))));
    both(&|map| {
        let described = map.table(&table()).unwrap();
        let columns: Vec<_> = described.columns.iter().map(|column| (&column.name, column.data_type)).collect();
        format!("{columns:?} {}", described.generation)
    });
    both(&|map| format!("{:?}", told(map.truncate_table(&table()))));
    both(&|map| format!("{:?}", told(all(map, &Scan::new(&table(), Over::All)))));
    both(&|map| format!("{:?}", told(map.rename_table(&table(), "u"))));
    both(&|map| format!("{:?}", told(map.drop_table(&table()))));
    both(&|map| format!("{:?}", told(map.drop_namespace("ns"))));
    both(&|map| format!("{:?}", told(map.drop_table(&TableName::new("ns", "u")))));
    both(&|map| format!("{:?}", told(map.drop_namespace("ns"))));
    both(&|map| format!("{:?}", told(map.namespaces())));
}

#[test]
fn a_large_partition_comes_in_pages_and_whole() {
    let server = Running::start();
    let map = server.map();
    map.create_namespace("ns").unwrap();
    let schema = Schema::new().column("p", DataType::Int).column("c", DataType::Int).column("t", DataType::Text);
    map.create_table(&table(), &schema.partition("p").clustering("c", Order::Asc)).unwrap();
    let text = "t".repeat(1_000);
    for first in (0..12_000).step_by(1_000) {
        let row = |c: i32| {
            let key = Key::of("p", 1).and("c", c);
            Mutation::put(&table(), key, vec![("t".into(), text.as_str().into())])
        };
        let list: Vec<Mutation> = (first..first + 1_000).map(row).collect();
        map.mutate(&list, Durability::Applied).unwrap().wait().unwrap();
    }
    let scan = Scan::partition(&table(), Key::of("p", 1));
    let page = map.scan(&scan).unwrap();
    assert!(page.next.is_some() && page.records.len() < 6_000, "a page of {} rows", page.records.len());
    let numbers = |records: &[Record]| -> Vec<i32> {
        let number = |record: &Record| match record.value("c") {
            Some(Value::Int(c)) => *c,
            other => panic!("{other:?}"),
        };
        records.iter().map(number).collect()
    };
    let rows = all(&map, &scan).unwrap();
    assert_eq!(numbers(&rows), (0..12_000).collect::<Vec<_>>());
    let falling = Scan { order_by: vec![("c".into(), Order::Desc)], ..scan };
    let sorted = map.scan(&falling).unwrap();
    assert!(sorted.next.is_none());
    assert_eq!(numbers(&sorted.records), (0..12_000).rev().collect::<Vec<_>>());
}

#[test]
fn a_mutation_whose_answer_is_lost_is_of_unknown_outcome_and_a_read_is_not() {
    let mut server = Running::start();
    let place = Place::Tcp(server.address.to_string());
    let options = Options { timeout: std::time::Duration::from_secs(2), ..Options::default() };
    let map = RemoteMap::connect(place, &options).unwrap();
    map.create_namespace("ns").unwrap();
    let schema = Schema::new().column("p", DataType::Int).partition("p");
    map.create_table(&table(), &schema).unwrap();
    server.stop();
    let put = Mutation::put(&table(), Key::of("p", 1), Vec::new());
    let lost = map.mutate(&[put], Durability::Durable).map(drop).unwrap_err();
    assert!(matches!(lost, Error::Unknown { .. }), "{lost:?}");
    let lost = map.get(&Get::new(&table(), Key::of("p", 1))).unwrap_err();
    assert!(matches!(lost, Error::Store(_)), "{lost:?}");
}
