//! A disk that stands on the device only, read and written with many requests under way: every answer is right and
//! comes once, while the store's segments are cleaned and used again.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use esker::volume::Layout;
use esker_server::nbd::wire::command;
use esker_server::nbd::{Address, Client, Config, Handle, Locking, Place, Server, VolumeExports};

const CELL: u64 = 4096;
const CELLS: u64 = 6 << 10;
const ROUNDS: u64 = 3_000;
/// A client that waits so long for its socket is told, and the test fails.
const WITHIN: Option<Duration> = Some(Duration::from_secs(30));

/// What a cell holds after so many writes.
fn filled(cell: u64, version: u8) -> Vec<u8> {
    let mut bytes = vec![version; CELL as usize];
    bytes[..8].copy_from_slice(&cell.to_le_bytes());
    bytes
}

fn open(folder: &Path) -> esker::Store {
    // Little memory, so that most reads are of the device, and little room, so that segments are used again.
    let builder = esker::Store::builder().segment_bytes(1 << 20).recent_bytes(0).cache_bytes(64 << 10);
    builder.open(&format!("{}?size=64m", folder.join("data").display())).unwrap()
}

struct Cells {
    rng: fastrand::Rng,
    /// How often each was written, and how many requests on it are under way.
    version: Vec<u8>,
    busy: Vec<(bool, u32)>,
    under_way: HashMap<u64, (u16, u64, u64)>,
}

impl Cells {
    /// Sends a request on cells that none under way writes, or a write on cells that none is under way on.
    fn send(&mut self, client: &mut Client, depth: usize) {
        let writes = self.rng.u64(..4) == 0;
        let first = self.rng.u64(..CELLS);
        // With many under way the client sends no more than the sockets hold: it does not receive meanwhile.
        let most = match (depth > 3, writes) {
            (true, true) => 1,
            (false, _) if self.rng.u64(..20) == 0 => 300,
            _ => 8,
        };
        let end = (first + 1 + self.rng.u64(..most)).min(CELLS);
        let cells = first as usize..end as usize;
        if self.busy[cells.clone()].iter().any(|(written, count)| *written || writes && *count > 0) {
            return;
        }
        let kind = if writes { command::WRITE } else { command::READ };
        let mut payload = Vec::new();
        for cell in cells {
            self.busy[cell] = (writes, self.busy[cell].1 + 1);
            if writes {
                self.version[cell] = self.version[cell].wrapping_add(1);
                payload.extend(filled(cell as u64, self.version[cell]));
            }
        }
        let cookie = client.send(kind, 0, first * CELL, ((end - first) * CELL) as u32, &payload).unwrap();
        assert!(self.under_way.insert(cookie, (kind, first, end)).is_none());
    }

    fn receive(&mut self, client: &mut Client) {
        let reply = client.receive().unwrap();
        assert_eq!(reply.error, 0);
        let (kind, first, end) = self.under_way.remove(&reply.cookie).unwrap();
        for (cell, found) in (first..end).zip(reply.data.chunks(CELL as usize)) {
            assert!(*found == filled(cell, self.version[cell as usize]), "{kind} {cell}: {:?}", &found[..16]);
        }
        for cell in first as usize..end as usize {
            self.busy[cell] = (false, self.busy[cell].1 - 1);
        }
    }
}

/// A disk that is on the device only, and its server.
struct Served {
    store: esker::Store,
    place: Place,
    handle: Handle,
    thread: JoinHandle<()>,
}

fn served(folder: &Path) -> Served {
    let store = open(folder);
    let disk = store.volumes().unwrap().create("disk", CELLS * CELL, Layout::default(), 0).unwrap();
    for first in (0..CELLS).step_by(256) {
        let data: Vec<u8> = (first..first + 256).flat_map(|cell| filled(cell, 0)).collect();
        disk.write(first * CELL, data.into(), esker::volume::Durability::Applied).unwrap().wait().unwrap();
    }
    drop(disk);
    drop(store);
    let store = open(folder);
    let socket = folder.join("nbd.sock");
    let locking = Locking { owner: "nbd/test".into(), alone: true };
    let exports = Arc::new(VolumeExports::new(store.volumes().unwrap(), locking));
    let config = Config { unix_socket: Some(socket.clone()), ..Config::default() };
    let server = Server::bind(config, exports).unwrap();
    let handle = server.handle();
    let thread = std::thread::spawn(move || server.run().unwrap());
    Served { store, place: Place::new(Address::Unix(socket), "disk"), handle, thread }
}

#[test]
fn every_answer_of_a_cold_disk_is_right_while_segments_are_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let Served { store, place, handle, thread } = served(folder.path());
    let mut cells = Cells {
        rng: fastrand::Rng::with_seed(25),
        version: vec![0; CELLS as usize],
        busy: vec![(false, 0); CELLS as usize],
        under_way: HashMap::new(),
    };
    for depth in [1, 2, 3, 32, 1, 100] {
        let mut client = Client::connect(&place, WITHIN).unwrap();
        for _ in 0..ROUNDS {
            while client.under_way() < depth {
                cells.send(&mut client, depth);
            }
            cells.receive(&mut client);
        }
        while client.under_way() > 0 {
            cells.receive(&mut client);
        }
        client.flush().unwrap();
        // A client that goes with reads under way.
        for number in 0..50 {
            client.send(command::READ, 0, number * CELL, CELL as u32, &[]).unwrap();
        }
        client.push().unwrap();
    }
    handle.shutdown();
    thread.join().unwrap();
    let engine = store.engine().unwrap();
    assert!(engine.stats().device_reads > 10_000, "{} reads of the device", engine.stats().device_reads);
    assert!(engine.stats().cleaned_segments > 0);
}

/// Failure: a store that was closed while a client had reads under way was never closed. Cause: what the thread read
/// beside them waited for the device's lock behind the one that closes, which waited for that thread.
#[test]
fn a_store_closes_while_a_client_has_reads_under_way() {
    let folder = tempfile::tempdir().unwrap();
    let Served { store, place, handle, thread } = served(folder.path());
    let (began, begins) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut client = Client::connect(&place, WITHIN).unwrap();
        let mut rng = fastrand::Rng::with_seed(3);
        for number in 0_u64.. {
            while client.under_way() < 8 {
                let first = rng.u64(..CELLS - 16);
                client.send(command::READ, 0, first * CELL, CELL as u32 * rng.u32(1..16), &[]).unwrap();
            }
            match client.receive() {
                Ok(reply) if reply.error == 0 => {}
                // The disk is gone.
                _ => return,
            }
            if number == 2_000 {
                began.send(()).unwrap();
            }
        }
    });
    begins.recv_timeout(Duration::from_secs(60)).unwrap();
    let (closed, closes) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = store.close();
        closed.send(()).unwrap();
    });
    closes.recv_timeout(Duration::from_secs(60)).expect("closing waits for ever");
    reader.join().unwrap();
    handle.shutdown();
    thread.join().unwrap();
}

/// Failure: server and client waited for each other for ever. Cause: of a client that waits for each read a large one
/// was answered by the thread that receives, while the client sent a large write and did not read yet.
#[test]
fn a_client_that_waited_for_each_read_sends_much_before_it_reads_much() {
    let folder = tempfile::tempdir().unwrap();
    let Served { store, place, handle, thread } = served(folder.path());
    let mut client = Client::connect(&place, WITHIN).unwrap();
    let mut rng = fastrand::Rng::with_seed(7);
    for version in 1..10 {
        // Enough for the server to know it, cold as they are.
        for _ in 0..300 {
            let cell = 512 + rng.u64(..CELLS - 512);
            client.send(command::READ, 0, cell * CELL, CELL as u32, &[]).unwrap();
            assert_eq!(client.receive().unwrap().data, filled(cell, 0));
        }
        let (first, len) = (512 + rng.u64(..CELLS - 1024), 256 * CELL);
        let read = client.send(command::READ, 0, first * CELL, len as u32, &[]).unwrap();
        client.push().unwrap();
        // Until it is taken, so that the write comes while it is answered.
        std::thread::sleep(Duration::from_millis(20));
        let cells: Vec<u8> = (0..256).flat_map(|cell| filled(cell, version)).collect();
        client.send(command::WRITE, 0, 0, len as u32, &cells).unwrap();
        for _ in 0..2 {
            let reply = client.receive().unwrap();
            assert_eq!(reply.error, 0);
            let expected = (first..first + 256).flat_map(|cell| filled(cell, 0));
            assert!(reply.cookie != read || reply.data.iter().copied().eq(expected));
        }
        client.send(command::READ, 0, 0, len as u32, &[]).unwrap();
        assert_eq!(client.receive().unwrap().data, cells);
    }
    drop(client);
    handle.shutdown();
    thread.join().unwrap();
    store.close().unwrap();
}

/// The same of many small reads: their answers are more than a socket takes, and are answered from memory by the thread
/// that receives.
#[test]
fn a_client_that_reads_nothing_for_a_while_may_go_on_to_send() {
    let folder = tempfile::tempdir().unwrap();
    let Served { store, place, handle, thread } = served(folder.path());
    let mut client = Client::connect(&place, WITHIN).unwrap();
    let cells: Vec<u8> = (0..256).flat_map(|cell| filled(cell, 1)).collect();
    for round in 0..20 {
        // What was just written is in memory.
        client.send(command::WRITE, 0, 0, cells.len() as u32, &cells).unwrap();
        assert_eq!(client.receive().unwrap().error, 0);
        let mut send = |number: u64| client.send(command::READ, 0, number * CELL, CELL as u32, &[]).unwrap();
        let cookies: HashMap<u64, u64> = (0..100).map(|number| (send(number), number)).collect();
        client.push().unwrap();
        std::thread::sleep(Duration::from_millis(round));
        client.send(command::WRITE, 0, 512 * CELL, cells.len() as u32, &cells).unwrap();
        for _ in 0..101 {
            let reply = client.receive().unwrap();
            assert_eq!(reply.error, 0);
            assert!(cookies.get(&reply.cookie).is_none_or(|cell| reply.data == filled(*cell, 1)));
        }
    }
    drop(client);
    handle.shutdown();
    thread.join().unwrap();
    store.close().unwrap();
}

/// Failure: a store could not be closed, nor opened again, while a client did not read what it had asked for. Cause:
/// the thread that sent the answers held the device's lock.
#[test]
fn a_store_closes_while_a_client_does_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let Served { store, place, handle, thread } = served(folder.path());
    let mut client = Client::connect(&place, WITHIN).unwrap();
    let mut rng = fastrand::Rng::with_seed(11);
    for _ in 0..400 {
        let first = rng.u64(..CELLS - 16);
        client.send(command::READ, 0, first * CELL, CELL as u32 * 15, &[]).unwrap();
    }
    client.push().unwrap();
    // Until no more of them is read, since nothing more can be sent.
    let engine = store.engine().unwrap();
    let mut reads = 0;
    while reads == 0 || reads < engine.stats().device_reads {
        reads = engine.stats().device_reads;
        std::thread::sleep(Duration::from_millis(300));
    }
    let (closed, closes) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = store.close();
        closed.send(()).unwrap();
    });
    closes.recv_timeout(Duration::from_secs(30)).expect("closing waits for the client");
    open(folder.path()).close().unwrap();
    drop(client);
    handle.shutdown();
    thread.join().unwrap();
}
