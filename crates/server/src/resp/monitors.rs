//! MONITOR: the clients that are told every command that is run.
//!
//! executor → [`Monitors::tell`] → queue of each monitor → its event loop is woken → [`Monitor::take_into`] → output
//!
//! Invariants:
//! 1. No command waits for a monitor: a queue that holds `bytes_max` takes no more, and the monitor is disconnected.
//! 2. Without monitors a command costs one load.
//! 3. An event loop is woken for each queue of it that has become other than empty.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::resp::parse::Args;
use crate::resp::secrets::shown_args;

/// Memory kept by a queue that was emptied.
const KEEP_BYTES: usize = 64 << 10;
const HEX: &[u8; 16] = b"0123456789abcdef";

#[derive(Default)]
struct Lines {
    bytes: Vec<u8>,
    /// Lines did not fit.
    lost: bool,
}

/// What one monitor has not taken yet.
struct Mailbox {
    event_loop: usize,
    lines: Mutex<Lines>,
}

/// The monitors of a server.
pub(crate) struct Monitors {
    /// As many as `mailboxes`; looked at without the lock.
    count: AtomicUsize,
    mailboxes: Mutex<Vec<Arc<Mailbox>>>,
    bytes_max: usize,
}

/// A client's being a monitor, until it is dropped.
pub(crate) struct Monitor {
    monitors: Arc<Monitors>,
    mailbox: Arc<Mailbox>,
}

impl Monitors {
    /// No monitors yet. Up to `bytes_max` bytes wait for each.
    pub(crate) fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { count: AtomicUsize::new(0), mailboxes: Mutex::default(), bytes_max })
    }

    /// Whether there is any.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Makes a client of this event loop a monitor.
    pub(crate) fn enter(self: &Arc<Self>, event_loop: usize) -> Monitor {
        let mailbox = Arc::new(Mailbox { event_loop, lines: Mutex::default() });
        let mut mailboxes = self.mailboxes.lock();
        mailboxes.push(Arc::clone(&mailbox));
        self.count.store(mailboxes.len(), Ordering::Relaxed);
        Monitor { monitors: Arc::clone(self), mailbox }
    }

    /// Tells all monitors this line; `wake` wakes an event loop.
    pub(crate) fn tell(&self, line: &[u8], wake: impl Fn(usize)) {
        for mailbox in self.mailboxes.lock().iter() {
            let mut lines = mailbox.lines.lock();
            if lines.lost {
                continue;
            }
            let was_empty = lines.bytes.is_empty();
            if lines.bytes.len() + line.len() > self.bytes_max {
                *lines = Lines { bytes: Vec::new(), lost: true };
            } else {
                lines.bytes.extend_from_slice(line);
            }
            let wakes = was_empty || lines.lost;
            drop(lines);
            if wakes {
                wake(mailbox.event_loop);
            }
        }
    }
}

impl Monitor {
    /// Appends what there is to tell; false if lines were lost, so that the monitor has to go.
    pub(crate) fn take_into(&self, out: &mut Vec<u8>) -> bool {
        let mut lines = self.mailbox.lines.lock();
        out.extend_from_slice(&lines.bytes);
        lines.bytes.clear();
        lines.bytes.shrink_to(KEEP_BYTES);
        !lines.lost
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let mut mailboxes = self.monitors.mailboxes.lock();
        mailboxes.retain(|other| !Arc::ptr_eq(other, &self.mailbox));
        self.monitors.count.store(mailboxes.len(), Ordering::Relaxed);
    }
}

/// The line of the command `name` that the client at `address` has run on a database.
pub(crate) fn line(now_ms: u64, database: u8, address: &str, name: &str, args: Args<'_>) -> Vec<u8> {
    // The addresses of unix sockets are paths with port 0, which no TCP client has.
    let address = match address.strip_suffix(":0") {
        Some(path) => format!("unix:{path}"),
        None => address.to_owned(),
    };
    let (seconds, micros) = (now_ms / 1_000, now_ms % 1_000 * 1_000);
    let mut line = format!("+{seconds}.{micros:06} [{database} {address}]").into_bytes();
    for arg in shown_args(name, args) {
        line.extend_from_slice(b" \"");
        for byte in arg {
            match byte {
                b'\\' | b'"' => line.extend_from_slice(&[b'\\', *byte]),
                b'\n' => line.extend_from_slice(b"\\n"),
                b'\r' => line.extend_from_slice(b"\\r"),
                b'\t' => line.extend_from_slice(b"\\t"),
                7 => line.extend_from_slice(b"\\a"),
                8 => line.extend_from_slice(b"\\b"),
                b' '..=b'~' => line.push(*byte),
                _ => {
                    let [high, low] = [byte >> 4, byte & 15].map(|digit| HEX[usize::from(digit)]);
                    line.extend_from_slice(&[b'\\', b'x', high, low]);
                }
            }
        }
        line.push(b'"');
    }
    line.extend_from_slice(b"\r\n");
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::parse::{Limits, Parser};

    #[test]
    fn a_line_tells_the_time_the_database_and_a_unix_socket_by_its_path() {
        let limits = Limits { arg_bytes_max: 100, command_bytes_max: 1_000, unauthenticated: false };
        let mut parser = Parser::new();
        parser.next(b"Get k\r\n", &limits).unwrap();
        let told =
            |address| String::from_utf8(line(1_700_000_000_042, 3, address, "get", parser.args(b"Get k\r\n"))).unwrap();
        assert_eq!(told("/run/e.sock:0"), "+1700000000.042000 [3 unix:/run/e.sock] \"Get\" \"k\"\r\n");
        assert_eq!(told("[::1]:10"), "+1700000000.042000 [3 [::1]:10] \"Get\" \"k\"\r\n");
    }

    #[test]
    fn a_monitor_gets_what_is_told_while_it_is_one_and_goes_when_it_does_not_take_it() {
        let monitors = Monitors::new(10);
        let woken = Mutex::new(Vec::new());
        let tell = |line: &[u8]| monitors.tell(line, |event_loop| woken.lock().push(event_loop));
        tell(b"before");
        let (quick, slow) = (monitors.enter(1), monitors.enter(2));
        let mut out = Vec::new();
        tell(b"one\r\n");
        tell(b"two\r\n");
        assert!(quick.take_into(&mut out));
        tell(b"three\r\n");
        assert!(quick.take_into(&mut out));
        assert_eq!(out, b"one\r\ntwo\r\nthree\r\n");
        // Woken when its queue was empty, and when it had to go.
        assert_eq!(*woken.lock(), [1, 2, 1, 2]);
        let mut lost = Vec::new();
        assert!(!slow.take_into(&mut lost) && lost.is_empty());
        drop((quick, slow));
        assert!(!monitors.any() && monitors.mailboxes.lock().is_empty());
    }
}
