//! `esker map` and `esker bench map` as a person uses them, on a store and on a running server.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};

fn esker(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_esker"));
    command.current_dir(folder).env_remove("ESKER_CONFIG").env("RUST_LOG", "warn");
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// Runs `esker map` on the store `store`; its exit code and what it printed to stdout, or (if it failed) to both.
fn map(folder: &Path, store: &str, arguments: &[&str]) -> (i32, String) {
    let output = esker(folder, &[&["map", "--store", store], arguments].concat());
    let printed = if output.status.success() { String::from_utf8(output.stdout).unwrap() } else { text(&output) };
    (output.status.code().unwrap(), printed)
}

const STORE: &str = "data?size=256m";

#[track_caller]
fn done(folder: &Path, store: &str, arguments: &[&str]) -> String {
    let (code, printed) = map(folder, store, arguments);
    assert_eq!(code, 0, "{arguments:?}: {printed}");
    printed
}

#[track_caller]
fn fails(folder: &Path, store: &str, arguments: &[&str], code: i32, says: &str) {
    let (found, printed) = map(folder, store, arguments);
    assert!(found == code && printed.contains(says), "{arguments:?}: exit code {found}: {printed}");
}

const CREATE: [&str; 10] = [
    "create",
    "shop.orders",
    "customer:int",
    "at:bigint",
    "item:text",
    "price:double",
    "--partition=customer",
    "--clustering=at:desc",
    "--index",
    "item",
];

/// Everything that one does with a table, on whatever `store` names.
fn a_table_is_used(folder: &Path, store: &str) {
    let run = |arguments: &[&str]| done(folder, store, arguments);
    run(&CREATE);
    fails(folder, store, &CREATE, 1, "table shop.orders exists already");
    assert_eq!(run(&["ls"]), "shop.orders\n");
    let described = run(&["describe", "shop.orders"]);
    assert!(described.contains("at\tbigint\tclustering key 1 desc\nitem\ttext\tindexed\n"), "{described}");
    let put = |at: &str, more: &[&str]| run(&[&["put", "shop.orders", "customer=1", at], more].concat());
    put("at=10", &["item=tea", "price=2.5"]);
    put("at=20", &["item=cake", "--null", "price", "--if-not-exists"]);
    put("at=30", &["item=tea"]);
    run(&["put", "shop.orders", "customer=2", "at=1"]);
    assert_eq!(run(&["get", "shop.orders", "customer=1", "at=20"]), "customer=1\tat=20\titem=cake\tprice=\\N\n");
    let scan = |more: &[&str]| -> Vec<i64> {
        let printed = run(&[&["scan", "shop.orders", "--json"], more].concat());
        let rows = printed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        rows.map(|row| row["at"].as_i64().unwrap()).collect()
    };
    assert_eq!(scan(&["customer=1"]), [30, 20, 10]);
    assert_eq!(scan(&["customer=1", "--reverse", "--limit", "2"]), [10, 20]);
    assert_eq!(scan(&["customer=1", "--from", "at=20"]), [30, 20]);
    assert_eq!(scan(&["customer=1", "--after", "at=10", "--before", "at=30"]), [20]);
    assert_eq!(scan(&["--index", "item=tea"]), [30, 10]);
    assert_eq!(scan(&["customer=1", "--where", "item like t%", "--where", "price is null"]), [30]);
    assert_eq!(scan(&["--order-by", "at"]), [1, 10, 20, 30]);
    let row = run(&["scan", "shop.orders", "customer=1", "--to", "at=10", "--json"]);
    let expected = json!({"customer": 1, "at": 10, "item": "tea", "price": 2.5});
    assert_eq!(serde_json::from_str::<Value>(&row).unwrap(), expected);

    let update = ["put", "shop.orders", "customer=1", "at=10", "price=3"];
    fails(folder, store, &[&update[..], &["--if", "price > 2.5"]].concat(), 1, "item=tea");
    run(&[&update[..], &["--if", "price >= 2.5"]].concat());
    let failed = map(folder, store, &[&update[..], &["--if", "price = 2.5", "--json"]].concat());
    assert!(
        failed.0 == 1 && failed.1.contains(r#""applied":false"#) && failed.1.contains(r#""price":3.0"#),
        "{failed:?}"
    );
    fails(folder, store, &["delete", "shop.orders", "customer=9", "at=9", "--if-exists"], 1, "does not hold");
    run(&["delete", "shop.orders", "customer=1", "at=10"]);
    fails(folder, store, &["get", "shop.orders", "customer=1", "at=10"], 3, "no such row");

    run(&["column", "add", "shop.orders", "day:date"]);
    run(&["column", "rename", "shop.orders", "item", "what"]);
    run(&["put", "shop.orders", "customer=1", "at=30", "day=2024-02-29"]);
    assert!(run(&["get", "shop.orders", "customer=1", "at=30"]).contains("what=tea\tday=2024-02-29"));
    run(&["index", "drop", "shop.orders", "what"]);
    run(&["index", "add", "shop.orders", "day"]);
    assert_eq!(scan(&["--index", "day=2024-02-29"]), [30]);
    run(&["column", "drop", "shop.orders", "price"]);
    run(&["rename", "shop.orders", "bought"]);
    fails(folder, store, &["describe", "shop.orders"], 3, "table shop.orders does not exist");
    fails(folder, store, &["drop", "--namespace", "shop"], 2, "bought");
    run(&["truncate", "shop.bought"]);
    assert_eq!(run(&["scan", "shop.bought"]), "");
    run(&["drop", "shop.bought"]);
    run(&["drop", "--namespace", "shop"]);
    assert_eq!(run(&["ls"]), "");
}

#[test]
fn a_table_is_made_used_changed_and_dropped() {
    let folder = tempfile::tempdir().unwrap();
    fails(folder.path(), STORE, &["ls"], 3, "");
    a_table_is_used(folder.path(), STORE);
}

/// `esker serve` with gRPC, ended when dropped: its process, the address of gRPC, that of Redis.
struct Server(Child, String, String);

impl Server {
    fn start(folder: &Path, arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_esker"))
            .args(["serve", "--listen", "127.0.0.1:0", "--store", "served?size=256m", "--grpc", "127.0.0.1:0"])
            .args(arguments)
            .current_dir(folder)
            .env_remove("ESKER_CONFIG")
            .env("RUST_LOG", "warn")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let printed = BufReader::new(child.stdout.take().unwrap());
        let mut lines = printed.lines().map_while(Result::ok);
        let redis = lines.find_map(|line| line.strip_prefix("listening  ").map(str::to_owned));
        let address = lines.find_map(|line| line.strip_prefix("grpc       ").map(str::to_owned));
        // The rest is read so that the server is not stopped by a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let said = "the server says where it serves";
        Self(child, address.expect(said), redis.expect(said))
    }

    /// Rows that were swept since it was started.
    fn swept(&self, folder: &Path) -> u64 {
        let output = esker(folder, &["stat", &self.2, "--json"]);
        assert!(output.status.success(), "{}", text(&output));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["map_swept_rows"].as_u64().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_same_works_on_a_running_server_that_serves_no_objects() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    a_table_is_used(folder.path(), &server.1);
    fails(folder.path(), "grpc://127.0.0.1:1?timeout=1s", &["ls"], 3, "127.0.0.1:1");
}

#[test]
fn rows_are_exported_and_imported_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let columns = ["k:int", "b:boolean", "f:float", "t:text", "x:blob", "d:date", "s:timestamptz"];
    for table in ["n.a", "n.b", "n.c"] {
        done(at, STORE, &[&["create", table], &columns[..], &["--partition", "k"]].concat());
    }
    let mut lines = String::new();
    for k in 0..2_500 {
        let row = match k % 5 {
            0 => {
                json!({"k": k, "b": true, "f": 0.1, "t": "", "x": "00ff", "d": "2024-02-29", "s": "2024-02-29T13:37:00.5Z"})
            }
            1 => json!({"k": k, "t": "a,\"b\"\n\tc"}),
            2 => json!({"k": k, "t": null, "x": ""}),
            3 => json!({"k": k, "t": "\\N", "f": "NaN"}),
            _ => json!({"k": k}),
        };
        lines += &format!("{row}\n");
    }
    std::fs::write(at.join("rows.jsonl"), &lines).unwrap();
    assert_eq!(done(at, STORE, &["import", "n.a", "rows.jsonl"]), "2500 rows\n");
    done(at, STORE, &["export", "n.a", "rows.csv"]);
    let imported = done(at, STORE, &["import", "n.b", "rows.csv", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&imported).unwrap(), json!({"rows": 2_500}));
    done(at, STORE, &["export", "n.b", "again.jsonl"]);
    done(at, STORE, &["import", "n.c", "again.jsonl"]);
    let exported = |table: &str| done(at, STORE, &["export", table, "--format", "json"]);
    assert!(exported("n.a") == exported("n.b") && exported("n.b") == exported("n.c"));
    let rows: Vec<Value> = exported("n.c").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let given: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows, given);

    let bad = |file: &str, content: &str, says: &str| {
        std::fs::write(at.join(file), content).unwrap();
        fails(at, STORE, &["import", "n.c", file], 2, says);
    };
    bad("bad.csv", "k,f\n1,2\n3,three\n", "row 2: column f: \"three\"");
    bad("bad.csv", "k,k\n1,2\n", "column k stands twice");
    bad("bad.csv", "k,f\n1\n", "CSV");
    bad("bad.json", "{\"k\": 1}\n{\"k\": \"one\"}\n", "row 2: column k");
    bad("bad.json", "[1]\n", "row 1: expected an object");
    bad("bad.json", "{\"k\": null}\n", "row 1: column k is part of the key and null");
    bad("bad.json", "{\"t\": \"a\"}\n", "rows 1 to 1: invalid partition key: column k is missing");
    std::fs::write(at.join("bad.csv"), "k,nothing\n1,2\n").unwrap();
    fails(at, STORE, &["import", "n.c", "bad.csv"], 3, "column nothing does not exist");
}

#[test]
fn bad_input_is_refused_with_what_was_expected() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    done(at, STORE, &CREATE);
    for (arguments, code, says) in [
        (&["create", "orders", "a:int", "--partition", "a"][..], 2, "expected NAMESPACE.TABLE"),
        (&["create", "n.t", "a:number", "--partition", "a"], 2, "expected one of boolean, int"),
        (&["create", "n.t", "a:int", "--partition", "b"], 3, "column b does not exist"),
        (&["create", "n.t", "a:int", "--partition", "a", "--clustering", "a:up"], 2, "expected asc or desc"),
        (&["put", "shop.orders", "customer=1"], 2, "column at is missing"),
        (&["put", "shop.orders", "customer=one", "at=1"], 2, "column customer: \"one\""),
        (&["put", "shop.orders", "customer=1", "at=1", "colour=red"], 3, "column colour does not exist"),
        (&["put", "shop.orders", "customer"], 2, "expected COLUMN=VALUE"),
        (&["put", "shop.orders", "customer=1", "at=1", "--if", "price ~ 5"], 2, "expected COLUMN and ="),
        (&["scan", "shop.orders", "--from", "at=1"], 2, "bounds are of one partition"),
        (&["scan", "shop.orders", "customer=1", "--from", "item=a"], 2, "clustering key"),
        (&["scan", "shop.orders", "--index", "price=1"], 3, "index price does not exist"),
        (&["scan", "shop.nothing"], 3, "table shop.nothing does not exist"),
        (&["ls", "nowhere"], 3, "namespace nowhere does not exist"),
        (&["import", "shop.orders", "nothing.csv"], 2, "nothing.csv"),
        (&["drop"], 2, "required"),
    ] {
        fails(at, STORE, arguments, code, says);
    }
    // A namespace that was made for a table that could not be is not left.
    assert_eq!(done(at, STORE, &["ls", "--json"]).matches("namespace").count(), 1);
}

#[test]
fn what_has_expired_is_not_shown_and_swept() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    done(at, STORE, &CREATE);
    done(at, STORE, &["put", "shop.orders", "customer=1", "at=1", "--expire", "1ms"]);
    done(at, STORE, &["put", "shop.orders", "customer=1", "at=2", "--expire", "1h"]);
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(done(at, STORE, &["scan", "shop.orders"]), "customer=1\tat=2\n");
    assert_eq!(done(at, STORE, &["sweep", "shop.orders"]), "1 rows removed\n");
    assert_eq!(done(at, STORE, &["sweep", "shop.orders"]), "0 rows removed\n");
}

#[test]
fn a_server_removes_what_has_expired_by_itself_unless_told_not_to() {
    for rate in ["10000", "0"] {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        let server = Server::start(at, &["--map-sweep", rate]);
        let store = server.1.as_str();
        done(at, store, &CREATE);
        for row in ["at=1", "at=2", "at=3"] {
            done(at, store, &["put", "shop.orders", "customer=1", row, "item=tea", "--expire", "1ms"]);
        }
        done(at, store, &["put", "shop.orders", "customer=1", "at=4", "--expire", "1h"]);
        fails(at, store, &["sweep", "shop.orders"], 2, "by itself");
        if rate == "0" {
            std::thread::sleep(std::time::Duration::from_millis(1_500));
            assert_eq!(server.swept(at), 0);
        } else {
            let began = std::time::Instant::now();
            while server.swept(at) < 3 {
                assert!(began.elapsed().as_secs() < 20, "{} rows were swept", server.swept(at));
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
        }
        assert_eq!(done(at, store, &["scan", "shop.orders"]), "customer=1\tat=4\n");
    }
}

#[test]
fn when_rows_expire_is_exported_and_imported() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    for table in ["n.a", "n.b", "n.c", "n.d"] {
        done(at, STORE, &["create", table, "k:int", "t:text", "--partition", "k"]);
    }
    done(at, STORE, &["put", "n.a", "k=1", "t=stays"]);
    std::fs::write(at.join("rows.jsonl"), "{\"k\":2,\"@expires\":\"2100-01-01T00:00:00.5Z\"}\n{\"k\":3,\"t\":null,\"@expires\":4102444800000}\n{\"k\":4,\"@expires\":1}\n").unwrap();
    done(at, STORE, &["import", "n.a", "rows.jsonl"]);
    let csv = "k,t,@expires\n1,stays,\n2,,2100-01-01T00:00:00.5Z\n3,\\N,2100-01-01T00:00:00Z\n";
    assert_eq!(done(at, STORE, &["export", "n.a"]), csv, "what has expired is not shown");
    assert_eq!(done(at, STORE, &["export", "n.a", "--no-expiry"]), "k,t\n1,stays\n2,\n3,\\N\n");
    let json = "{\"k\":1,\"t\":\"stays\"}\n{\"@expires\":\"2100-01-01T00:00:00.5Z\",\"k\":2}\n{\"@expires\":\"2100-01-01T00:00:00Z\",\"k\":3,\"t\":null}\n";
    let lines = |text: &str| text.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>();
    assert_eq!(lines(&done(at, STORE, &["export", "n.a", "--format", "json"])), lines(json));
    for (table, file) in [("n.b", "all.csv"), ("n.c", "all.jsonl")] {
        done(at, STORE, &["export", "n.a", file]);
        done(at, STORE, &["import", table, file]);
        assert_eq!(done(at, STORE, &["export", table]), csv, "{file}");
    }
    // Without the column, or with nothing in it, what rows have stays; null takes it away.
    std::fs::write(at.join("more.csv"), "k,t\n2,more\n").unwrap();
    done(at, STORE, &["import", "n.b", "more.csv"]);
    std::fs::write(at.join("more.csv"), "k,@expires\n2,\n3,\\N\n").unwrap();
    done(at, STORE, &["import", "n.b", "more.csv"]);
    let found = "k,t,@expires\n1,stays,\n2,more,2100-01-01T00:00:00.5Z\n3,\\N,\n";
    assert_eq!(done(at, STORE, &["export", "n.b"]), found);
    std::fs::write(at.join("bad.csv"), "k,@expires\n1,1970-01-01T00:00:00Z\n2,-5\n").unwrap();
    fails(at, STORE, &["import", "n.c", "bad.csv"], 2, "row 2: @expires");
    std::fs::write(at.join("bad.csv"), "k,@expires\n1,soon\n").unwrap();
    fails(at, STORE, &["import", "n.c", "bad.csv"], 2, "row 1: column @expires: \"soon\"");
    // A table may have a column of that name, which then is one of its own.
    done(at, STORE, &["column", "add", "n.d", "@expires:text"]);
    std::fs::write(at.join("own.csv"), "k,@expires\n1,soon\n").unwrap();
    done(at, STORE, &["import", "n.d", "own.csv"]);
    assert_eq!(done(at, STORE, &["export", "n.d", "--no-expiry"]), "k,t,@expires\n1,,soon\n");
    fails(at, STORE, &["export", "n.d"], 2, "--no-expiry");
}

#[test]
fn every_part_of_the_bench_is_measured_and_nothing_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let stores = "memory:,esker:stores?size=512m&segment=8m";
    let shape = ["--rows", "3k", "--large", "1k", "--partition-rows", "7", "--clients", "1,4"];
    let arguments = [&["bench", "map", "--backends", stores][..], &shape, &["--seconds", "0.2", "--json", "run.json"]];
    let arguments = arguments.concat();
    let output = esker(folder.path(), &arguments);
    assert!(output.status.success(), "{}", text(&output));
    let run: Value = serde_json::from_slice(&std::fs::read(folder.path().join("run.json")).unwrap()).unwrap();
    let tables = run["tables"].as_array().unwrap();
    let rows: Vec<usize> = tables.iter().map(|table| table["rows"].as_array().unwrap().len()).collect();
    assert_eq!(rows, [4, 4, 2], "{tables:#?}");
    assert_eq!(run["cells"].as_array().unwrap().len(), 2 * 2 * 2, "backends, parts, clients");
    let on_disk = |table: usize, row: usize| tables[table]["rows"][row].as_array().unwrap().clone();
    // One client's conditional update: one record of the log and one sync.
    let alone = on_disk(1, 2);
    assert_eq!((alone[0].as_str().unwrap().starts_with("esker"), &alone[1]), (true, &json!(1)));
    assert!((0.99..1.05).contains(&alone[6].as_f64().unwrap()), "log records each: {alone:?}");
    assert!((0.99..1.2).contains(&alone[7].as_f64().unwrap()), "syncs each: {alone:?}");
    let restart = on_disk(2, 1);
    assert!(restart[6].as_f64().unwrap() > 0.0 && restart[9].as_f64().unwrap() > 0.0, "{restart:?}");
    assert_eq!(std::fs::read_dir(folder.path().join("stores")).unwrap().count(), 0, "something is left");
    let output = esker(folder.path(), &["report", "run.json", "-o", "run.html"]);
    assert!(output.status.success(), "{}", text(&output));
    let refused = esker(folder.path(), &["bench", "map", "--rows", "5", "--large", "6"]);
    assert!(refused.status.code() == Some(2) && text(&refused).contains("--large"), "{}", text(&refused));
}

#[test]
fn commit_policies_are_compared_on_devices_and_beside_another_storage() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [
        ["bench", "commit", "--dir", "stores", "--policies", "batch,periodic:10ms"],
        ["--devices", "own,500/s", "--clients", "1,3", "--rates", "300"],
        ["--peer", "other=memory:", "--seconds", "0.3", "--peer-warm-up", "0.1"],
        ["--peer-records", "other=cat count || true", "--json", "run.json", "--seed", "5"],
    ];
    let output = esker(folder.path(), &arguments.concat());
    assert!(output.status.success(), "{}", text(&output));
    let run: Value = serde_json::from_slice(&std::fs::read(folder.path().join("run.json")).unwrap()).unwrap();
    assert_eq!(
        run["cells"].as_array().unwrap().len(),
        2 * (2 + 3),
        "clients, both policies twice and the other storage once"
    );
    let tables = run["tables"].as_array().unwrap();
    assert_eq!(tables.len(), 3, "two devices, and the other storage beside the policies");
    let column =
        |name: &str| tables[0]["columns"].as_array().unwrap().iter().position(|column| column == name).unwrap();
    let row = |table: usize, load: &str, policy: &str| {
        let rows = tables[table]["rows"].as_array().unwrap();
        rows.iter()
            .find(|row| row[0] == load && row[1] == policy)
            .unwrap_or_else(|| panic!("{load} {policy}: {rows:?}"))
    };
    let number =
        |table: usize, load: &str, policy: &str, name: &str| row(table, load, policy)[column(name)].as_f64().unwrap();
    for table in [0, 1] {
        for load in ["1 client", "3 clients", "300/s"] {
            assert!(
                (0.99..=1.01).contains(&number(table, load, "batch", "records each")),
                "{}",
                row(table, load, "batch")
            );
            assert_eq!(number(table, load, "batch", "failed"), 0.0);
        }
        let each = number(table, "1 client", "batch", "syncs each");
        assert!((0.95..=1.1).contains(&each), "{each} syncs for each update of a client that is alone");
    }
    assert!(number(1, "3 clients", "batch", "syncs/s") < 510.0, "more syncs than the device does");
    assert!(number(1, "3 clients", "periodic:10ms", "updates/s") > 10.0 * number(1, "3 clients", "batch", "updates/s"));
    let given = number(0, "300/s", "batch", "updates/s");
    assert!((100.0..600.0).contains(&given), "{given} a second of 300 that were asked for");
    assert!(row(0, "1 client", "other")[column("records each")].is_null(), "the command printed no number");
    assert!(tables[2]["rows"].as_array().unwrap().iter().all(|row| row[4].as_f64().unwrap() > 0.0));
    assert_eq!(std::fs::read_dir(folder.path().join("stores")).unwrap().count(), 0, "something is left");

    let output = esker(folder.path(), &["report", "run.json", "-o", "run.html"]);
    assert!(output.status.success(), "{}", text(&output));
    let page = std::fs::read_to_string(folder.path().join("run.html")).unwrap();
    for expected in
        ["mean latency at a given rate, device own", "records per sync, device 500/s", "updates per second in all"]
    {
        assert!(page.contains(expected), "{expected:?} is not on the page");
    }
    for (arguments, says) in [
        (["--devices", "0/s"], "200/s"),
        (["--policies", "never"], "no such policy"),
        (["--peer", "memory:"], "NAME=LOCATION"),
        (["--peer", "a=nothing:x"], "a: "),
        (["--peer-records", "b=true"], "no --peer of this name"),
        (["--seconds", "0"], "--seconds"),
    ] {
        let output = esker(folder.path(), &[&["bench", "commit"][..], &arguments].concat());
        assert!(output.status.code() == Some(2) && text(&output).contains(says), "{arguments:?}: {}", text(&output));
    }
}
