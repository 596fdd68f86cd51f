//! Addresses for servers that tests start.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::sync::Mutex;

/// An address that is free, and that was not given to another.
pub fn free() -> SocketAddr {
    static GIVEN: Mutex<BTreeSet<SocketAddr>> = Mutex::new(BTreeSet::new());
    loop {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        if GIVEN.lock().unwrap().insert(address) {
            return address;
        }
    }
}
