//! A crash-safe queue: each job is taken exactly once, whatever happens between two lines.
//!
//! `cargo run --example queue -- ./queue-data`
//!
//! push: read tail → write job at tail, tail + 1        one transaction
//! pop:  read head → remove job at head, head + 1       one transaction
//! Both begin again where another process was faster, so that several may work on one queue.
//!
//! Invariant: jobs stand at head..tail of an `int` namespace, and head and tail are in the same transaction as the job,
//! so no crash leaves a job half in.

use esker::kv::{Entry, Key, Kind, Namespace, Txn};
use esker::{Bytes, Durability, Kv, Store};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Keys of the two ends, far above any job's number.
const HEAD: u64 = u64::MAX - 1;
const TAIL: u64 = u64::MAX - 2;

struct Queue {
    kv: Kv,
    jobs: Namespace,
}

impl Queue {
    fn open(store: &Store, name: &str) -> Result<Self> {
        let kv = store.kv()?;
        let jobs = kv.namespace(name, Kind::Int)?;
        Ok(Self { kv, jobs })
    }

    /// Adds a job. When this returns, no power cut can take it back.
    fn push(&self, job: &str) -> Result<u64> {
        self.kv.transact(&[(&self.jobs, Key::Int(TAIL))], Durability::Durable, |txn| {
            let tail = self.end(txn, TAIL)?;
            txn.put(&self.jobs, Key::Int(tail), entry(Bytes::copy_from_slice(job.as_bytes())));
            self.set_end(txn, TAIL, tail + 1);
            Ok(tail)
        })
    }

    /// Takes the oldest job. When this returns, no other will get it.
    fn pop(&self) -> Result<Option<Bytes>> {
        let ends = [(&self.jobs, Key::Int(HEAD)), (&self.jobs, Key::Int(TAIL))];
        self.kv.transact(&ends, Durability::Durable, |txn| {
            let head = self.end(txn, HEAD)?;
            if head == self.end(txn, TAIL)? {
                return Ok(None);
            }
            let job = txn.get(&self.jobs, Key::Int(head))?.ok_or("the queue has a hole")?;
            txn.remove(&self.jobs, Key::Int(head));
            self.set_end(txn, HEAD, head + 1);
            Ok(Some(job.value))
        })
    }

    fn end(&self, txn: &mut Txn<'_>, which: u64) -> Result<u64> {
        match txn.get(&self.jobs, Key::Int(which))? {
            Some(entry) => Ok(u64::from_le_bytes(entry.value.as_ref().try_into()?)),
            None => Ok(0),
        }
    }

    fn set_end(&self, txn: &mut Txn<'_>, which: u64, number: u64) {
        txn.put(&self.jobs, Key::Int(which), entry(Bytes::copy_from_slice(&number.to_le_bytes())));
    }
}

fn entry(value: Bytes) -> Entry {
    Entry { value, expires_ms: None, tag: 0 }
}

fn main() -> Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let store = Store::open(&path)?;
    let queue = Queue::open(&store, "mail")?;

    for number in 1..=3 {
        let place = queue.push(&format!("letter {number}"))?;
        println!("pushed letter {number} at place {place}");
    }
    // Two are taken now; the third waits for the next run.
    for _ in 0..2 {
        match queue.pop()? {
            Some(job) => println!("took {}", String::from_utf8_lossy(&job)),
            None => println!("nothing to do"),
        }
    }

    store.close()?;
    Ok(())
}
