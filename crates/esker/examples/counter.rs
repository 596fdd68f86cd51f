//! Counts how often it was run: a durable read-modify-write.
//!
//! `cargo run --example counter -- ./counter-data`

use esker::Store;
use esker::kv::Kind;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let store = Store::open(&path)?;
    let counters = store.kv()?.namespace("counters", Kind::Bytes)?;

    // Compare-and-set in a loop: if others count at the same moment, no run is lost and none is counted twice.
    let count = loop {
        let old = counters.get("runs").wait()?;
        let count = match &old {
            Some(text) => std::str::from_utf8(text)?.parse::<u64>()? + 1,
            None => 1,
        };
        if counters.compare_and_set("runs", old.as_deref(), count.to_string().into()).wait()? {
            break count;
        }
    };
    println!("run number {count}");

    store.close()?;
    Ok(())
}
