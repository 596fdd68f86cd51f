//! One file per command, and what they share: where the store is, and how lines get out.
//!
//! Invariant: a closed pipe (`esker kv scan | head`) ends the program quietly.

pub mod backup;
pub mod check;
pub mod cluster;
pub mod compact;
pub mod completions;
pub mod copy;
pub mod dump;
pub mod format;
pub mod grow;
pub mod kv;
pub mod log;
pub mod log_sequencer;
pub mod man;
pub mod map;
pub mod reload;
pub mod repair;
pub mod scrub;
pub mod secrets;
pub mod serve;
pub mod server;
pub mod standby;
pub mod stat;
pub mod tasks;
pub mod volume;

use std::io::{ErrorKind, Write};

use clap::Args;

use crate::config::Settings;
use crate::exit::Failure;

/// Which store, for commands that open one.
#[derive(Args, Clone, Debug)]
pub struct StoreArgument {
    /// The store: a folder, a file, a block device, or a URL such as `esker:data?policy=group:2ms`
    #[arg(long, short, value_name = "PATH", global = true)]
    store: Option<String>,
}

impl StoreArgument {
    /// The flag, or the configuration's location.
    pub fn location(&self, settings: &Settings) -> String {
        self.store.clone().unwrap_or_else(|| settings.store.location.clone())
    }

    /// The location the flag names, if it was given.
    pub fn given(&self) -> Option<&str> {
        self.store.as_deref()
    }
}

/// How a store is opened according to the configuration.
pub fn builder(settings: &Settings) -> esker::Builder {
    let store = &settings.store;
    let mut builder = esker::Store::builder()
        .one_of(settings.other_stores + 1)
        .policy(store.policy.0)
        .cache_policy(store.cache_policy.0)
        .async_flush(store.async_flush.0.0)
        .recovery_time(store.recovery.0.0)
        .scrub_bytes_per_s(store.scrub.0.0);
    // What is 0 is left to the memory there is.
    let given = |size: &crate::config::Text<esker::ByteSize>| Some(size.0.0).filter(|bytes| *bytes > 0);
    if let Some(bytes) = settings.memory_bytes() {
        builder = builder.memory_bytes(bytes);
    }
    if let Some(bytes) = given(&store.segment) {
        builder = builder.segment_bytes(bytes);
    }
    if let Some(bytes) = given(&store.recent) {
        builder = builder.recent_bytes(bytes);
    }
    if let Some(bytes) = given(&store.cache) {
        builder = builder.cache_bytes(bytes);
    }
    if let Some(bytes) = given(&store.index) {
        builder = builder.index_bytes(bytes);
    }
    if let Some(bytes) = given(&store.pending) {
        builder = builder.pending_bytes(bytes);
    }
    if let Some(bytes) = given(&store.pinned) {
        builder = builder.pinned_bytes(bytes);
    }
    if store.size.0.0 > 0 {
        builder = builder.size(store.size.0.0);
    }
    builder
}

/// Writes text to stdout.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    quiet_pipe(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Prints `value` as JSON, or else `text`.
pub fn tell(json: bool, value: &serde_json::Value, text: &str) -> Result<(), Failure> {
    if json { print(&format!("{value:#}\n")) } else { print(text) }
}

/// Turns a closed pipe into the quiet end of the program.
pub fn quiet_pipe(result: std::io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        other => other.map_err(Failure::from),
    }
}

/// Named figures as one JSON object. Numbers stay numbers.
pub fn json_object<'a>(entries: impl IntoIterator<Item = (&'a str, String)>) -> serde_json::Value {
    let value = |text: String| match text.as_str() {
        "true" => serde_json::Value::Bool(true),
        "false" => serde_json::Value::Bool(false),
        _ => match (text.parse::<u64>(), text.parse::<f64>()) {
            // Only what is a number as a whole: an id in hexadecimal that happens to be digits keeps its zeros.
            (Ok(number), _) if number.to_string() == text => number.into(),
            (_, Ok(number)) if text.contains('.') && number.is_finite() => number.into(),
            _ => text.into(),
        },
    };
    serde_json::Value::Object(entries.into_iter().map(|(name, text)| (name.to_string(), value(text))).collect())
}
