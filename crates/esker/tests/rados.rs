//! A store on Ceph by its URL, with a log on it.
//!
//! CEPH_CONF names the configuration of a cluster with a pool `bench`.

#![cfg(feature = "rados")]
#![allow(clippy::unwrap_used, reason = "a test that fails")]

use esker::log::{Found, Layout, Options};
use esker::{Error, Store};

fn place(name: &str) -> String {
    let conf = std::env::var("CEPH_CONF").expect("CEPH_CONF names no cluster");
    format!("rados:bench/{name}-{}?conf={conf}&timeout=30s", std::process::id())
}

#[test]
fn a_log_on_ceph_is_there_when_it_is_opened_again() {
    for layout in [Layout::Omap, Layout::Stream, Layout::Slots] {
        let place = place(&format!("log-{layout:?}"));
        let store = Store::open(&place).unwrap();
        let log = store.logs().unwrap().create("orders", Options { layout, ..Options::default() }).unwrap();
        for number in 0..20u64 {
            assert_eq!(log.append(format!("order {number}")).unwrap().wait().unwrap(), number);
        }
        log.trim_to(5).unwrap();
        drop((log, store));
        let store = Store::open(&place).unwrap();
        let log = store.logs().unwrap().log("orders").unwrap();
        assert_eq!(log.tail().unwrap().position, 20, "{layout:?}");
        assert_eq!(log.append("more").unwrap().wait().unwrap(), 20);
        for number in 5..20u64 {
            let Found::Entry(entry) = log.read(number).unwrap().wait().unwrap() else { panic!("{layout:?} {number}") };
            assert_eq!(entry.data, format!("order {number}"));
        }
        assert!(!matches!(log.read(4).unwrap().wait().unwrap(), Found::Entry(_)), "{layout:?}");
    }
}

#[test]
fn what_is_no_place_on_ceph_is_named() {
    // With all its causes, as programs show it.
    let told = |place: &str| {
        let (mut told, failed) = (String::new(), Store::open(place).err());
        let mut cause = failed.as_ref().map(|error| error as &dyn std::error::Error);
        while let Some(error) = cause {
            told += &format!("{error}: ");
            cause = error.source();
        }
        told
    };
    assert!(matches!(Store::open("rados:bench"), Err(Error::Location { .. })));
    assert!(told("rados:bench/x?size=1g").contains("size"));
    assert!(told("rados:bench/x?conf=/nowhere/ceph.conf").contains("/nowhere/ceph.conf"));
}
