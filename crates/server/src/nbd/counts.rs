//! What the NBD server has counted: requests, failures, bytes and times by command, and who is attached to what.
//!
//! request → carried out → answered → [`RequestCounts::note`] → [`RequestCounts::figures`]
//!
//! A request's time begins when its turn comes and ends when it can be answered: what waits to be durable is part of
//! it, what it waited in line, or the client takes to read, is not.
//!
//! Invariant: at most [`EXPORTS_SHOWN_MAX`] exports are told of by name.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::wire::{Request, command};
use crate::http::{Figure, Times, Value};

/// Most exports whose names are labels of figures.
const EXPORTS_SHOWN_MAX: usize = 256;
/// The name that stands for all others.
const OTHERS: &str = "(others)";
/// The commands that are counted, and their names.
const COMMANDS: [(u16, &str); 7] = [
    (command::READ, "read"),
    (command::WRITE, "write"),
    (command::FLUSH, "flush"),
    (command::TRIM, "trim"),
    (command::CACHE, "cache"),
    (command::WRITE_ZEROES, "write_zeroes"),
    (command::BLOCK_STATUS, "block_status"),
];

#[derive(Default)]
struct Command {
    times: Times,
    failed: AtomicU64,
    bytes: AtomicU64,
}

/// What was counted.
#[derive(Default)]
pub(crate) struct RequestCounts {
    commands: [Command; COMMANDS.len()],
    attached: Mutex<BTreeMap<String, u64>>,
}

/// A client that is attached; dropping it says that the client is gone.
pub(crate) struct Attachment<'c> {
    counts: &'c RequestCounts,
    export: String,
}

impl RequestCounts {
    fn command(&self, request: &Request) -> Option<&Command> {
        let found = COMMANDS.iter().position(|(number, _)| *number == request.command);
        found.and_then(|at| self.commands.get(at))
    }

    /// A request is refused without being looked at: it took no time.
    pub(crate) fn refused(&self, request: &Request) {
        if let Some(counted) = self.command(request) {
            counted.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A request is answered.
    pub(crate) fn note(&self, request: &Request, took: Duration, failed: bool) {
        // One that does not exist was refused before.
        let Some(counted) = self.command(request) else { return };
        counted.times.note(took);
        if failed {
            counted.failed.fetch_add(1, Ordering::Relaxed);
        } else if matches!(request.command, command::READ | command::WRITE) {
            counted.bytes.fetch_add(request.len.into(), Ordering::Relaxed);
        }
    }

    /// A client is attached to an export.
    pub(crate) fn attach(&self, export: &str) -> Attachment<'_> {
        *self.attached.lock().entry(export.to_owned()).or_default() += 1;
        Attachment { counts: self, export: export.to_owned() }
    }

    /// The figures, those of one name one behind the other.
    pub(crate) fn figures(&self) -> Vec<Figure> {
        let all = || self.commands.iter().zip(COMMANDS);
        let mut figures: Vec<Figure> = Vec::new();
        figures.extend(all().map(|(counted, (_, name))| {
            let help = "How long NBD requests took until they could be answered";
            Figure::new("esker_nbd_request_seconds", help, counted.times.value()).labelled("command", name)
        }));
        figures.extend(all().map(|(counted, (_, name))| {
            let failed = Value::Counter(counted.failed.load(Ordering::Relaxed) as f64);
            Figure::new("esker_nbd_request_failures", "NBD requests that failed", failed).labelled("command", name)
        }));
        // The first two are reads and writes.
        figures.extend(all().take(2).map(|(counted, (_, name))| {
            let bytes = Value::Counter(counted.bytes.load(Ordering::Relaxed) as f64);
            Figure::new("esker_nbd_bytes", "Bytes of disks that were read or written", bytes).labelled("command", name)
        }));
        let attached = self.attached.lock();
        let exports = Value::Gauge(attached.len() as f64);
        figures.push(Figure::new("esker_nbd_exports", "Disks that have clients", exports));
        let help = "Connections of clients that have chosen a disk";
        let gauge = |export: &str, clients: u64| {
            let clients = Value::Gauge(clients as f64);
            Figure::new("esker_nbd_attached", help, clients).labelled("export", export)
        };
        let shown = if attached.len() > EXPORTS_SHOWN_MAX { EXPORTS_SHOWN_MAX - 1 } else { attached.len() };
        figures.extend(attached.iter().take(shown).map(|(export, clients)| gauge(export, *clients)));
        if shown < attached.len() {
            figures.push(gauge(OTHERS, attached.values().skip(shown).sum()));
        }
        figures
    }
}

impl Drop for Attachment<'_> {
    fn drop(&mut self) {
        let mut attached = self.counts.attached.lock();
        if let Some(clients) = attached.get_mut(&self.export) {
            *clients -= 1;
            if *clients == 0 {
                attached.remove(&self.export);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_disks_are_bounded_and_go_with_their_clients() {
        let counts = RequestCounts::default();
        let there: Vec<Attachment<'_>> = (0..1_000).map(|n| counts.attach(&format!("disk{n:04}"))).collect();
        let again = counts.attach("disk0000");
        let of = |export: &str| {
            let figures = counts.figures();
            let found = figures.iter().find(|figure| figure.labels == [("export", export.to_owned())]);
            found.map(|figure| figure.value.clone())
        };
        assert_eq!((of("disk0000"), of("disk0999")), (Some(Value::Gauge(2.0)), None));
        assert_eq!(of(OTHERS), Some(Value::Gauge((1_000 - EXPORTS_SHOWN_MAX + 1) as f64)));
        drop(there);
        assert_eq!((of("disk0000"), of(OTHERS)), (Some(Value::Gauge(1.0)), None));
        drop(again);
        assert_eq!(of("disk0000"), None);
    }
}
