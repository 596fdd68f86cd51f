//! A store that takes its time to open: the server is there meanwhile, says so, and obeys a signal.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

#[path = "support/resp.rs"]
mod resp;
mod support;

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use esker::objects::{Change, Collection, ObjectId, Transaction};
use esker::{Durability, Store};
use support::{esker, send};

const KEYS: u64 = 2_500_000;

/// What a crash leaves in `folder`/data after many small changes and no checkpoint.
fn crashed(folder: &Path) {
    let store = Store::open(&format!("{}?size=2g&segment=4m&recovery=1h", folder.join("alive").display())).unwrap();
    let objects = store.objects();
    let object = ObjectId::new(Collection::from("c"), "o");
    objects.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    for batch in 0..KEYS / 1_000 {
        let mut txn = Transaction::with(Durability::Applied);
        for key in 0..1_000 {
            let key = (batch * 1_000 + key) * 7_919 % KEYS;
            txn.push(&object, Change::OmapSet { key: format!("key{key:08}").into(), value: "value".into() });
        }
        objects.submit(txn).wait().unwrap();
    }
    objects.sync().wait().unwrap();
    std::fs::create_dir(folder.join("data")).unwrap();
    support::run(
        "cp",
        &[
            "--sparse=always",
            folder.join("alive/store.esker").to_str().unwrap(),
            folder.join("data/store.esker").to_str().unwrap(),
        ],
    );
}

fn start(folder: &Path) -> (Child, SocketAddr) {
    // A port that no process has.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let child = esker(folder)
        .args(["serve", "--store", "data", "--listen", &address.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    (child, address)
}

/// The answers to a PING and to a GET in one go, as soon as the server listens.
fn ask(address: SocketAddr) -> Option<[String; 2]> {
    let stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    (&stream).write_all(b"PING\r\n*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n").ok()?;
    let mut lines = BufReader::new(stream).lines();
    Some([lines.next()?.ok()?, lines.next()?.ok()?])
}

#[test]
fn clients_are_told_that_a_store_is_being_opened_and_a_signal_is_obeyed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    crashed(folder);

    // Stopped while it opens, at once and without harm.
    let (mut child, address) = start(folder);
    let until = Instant::now() + Duration::from_secs(20);
    let told = loop {
        assert!(Instant::now() < until, "no client was told that the store is being opened");
        if let Some(answers) = ask(address) {
            break answers;
        }
    };
    for answer in told {
        assert!(answer.starts_with("-LOADING Esker is opening its store: "), "{answer}");
    }
    let began = Instant::now();
    send(&child, "-TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(5), "the signal was obeyed after {:?}", began.elapsed());

    // Left alone it opens, and says meanwhile how far it is; clients that ask again are answered.
    let (mut child, address) = start(folder);
    let until = Instant::now() + Duration::from_secs(60);
    let mut loading = 0;
    loop {
        assert!(Instant::now() < until, "the store was not opened");
        match ask(address) {
            Some([ping, _]) if ping == "+PONG" => break,
            Some([ping, get]) => {
                assert!(ping.starts_with("-LOADING ") && get.starts_with("-LOADING "), "{ping} {get}");
                loading += 1;
            }
            None => {}
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(loading > 3, "{loading} answers while the store was opened");
    send(&child, "-TERM");
    let mut printed = String::new();
    std::io::Read::read_to_string(&mut child.stdout.take().unwrap(), &mut printed).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let ms = printed.split(" transactions in ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    // A line a second: a machine that is done sooner has none to print.
    if ms.parse::<u64>().unwrap() > 1_500 {
        assert!(printed.contains("opening    replaying the log, "), "{printed}");
    }
    let store = Store::open(folder.join("data").to_str().unwrap()).unwrap();
    assert!(store.engine().unwrap().recovery().clean);
    let object = ObjectId::new(Collection::from("c"), "o");
    assert_eq!(store.objects().stat(&object).wait().unwrap().unwrap().omap_keys, KEYS);
}

#[test]
fn a_signal_is_obeyed_whenever_it_comes() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    Store::open(&format!("{}?size=64m", folder.join("data").display())).unwrap().close().unwrap();
    for step in 0..60 {
        let mut child = esker(folder)
            .args(["serve", "--store", "data", "--listen", "127.0.0.1:0", "--grpc", "127.0.0.1:0"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(step));
        send(&child, "-TERM");
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            if child.try_wait().unwrap().is_some() {
                break;
            }
            if Instant::now() > until {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("a signal after {step} ms was not obeyed");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    Store::open(folder.join("data").to_str().unwrap()).unwrap().close().unwrap();
}
