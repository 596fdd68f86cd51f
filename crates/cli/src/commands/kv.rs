//! `esker kv`: reads and writes keys of a store that no server has open.
//!
//! Invariants:
//! 1. `get` and `scan` never make a store or a namespace; a missing one is exit code 3.
//! 2. `load` writes whole batches: an interrupted load leaves a prefix of its input, batch by batch.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use esker::Bytes;
use esker::kv::{Entry, Key, Kind, Namespace, OwnedKey, Scan};

use super::{StoreArgument, builder, print, quiet_pipe};
use crate::config::Settings;
use crate::exit::{Code, Failure};
use crate::progress;

/// Lines that `load` puts into one transaction.
const LOAD_ENTRIES: usize = 1_000;
/// Bytes after which `load` starts the next transaction.
const LOAD_BYTES: usize = 4 << 20;
/// What an entry takes of a transaction beside its key and value, at most.
const ENTRY_BYTES: usize = 256;

/// The arguments of `esker kv`.
#[derive(Args)]
pub struct KvArguments {
    #[command(flatten)]
    store: StoreArgument,

    /// The namespace; the server keeps database N in dbN, its integer keys in dbN.int
    #[arg(long, short, default_value = "db0", global = true)]
    namespace: String,

    /// The namespace has u64 keys; only needed where it is made
    #[arg(long, global = true)]
    int: bool,

    /// What put and load write to the namespace is compressed from now on: none, lz4 or zstd; it remembers
    #[arg(long, global = true, value_name = "CODEC")]
    compress: Option<esker::Compression>,

    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Write a key's value to stdout, byte for byte
    Get {
        /// The key
        key: OsString,
        /// Print {"key":…,"value":…,"expires_ms":…} instead
        #[arg(long)]
        json: bool,
    },
    /// Set a key
    Put {
        /// The key
        key: OsString,
        /// The value; - reads it from stdin
        value: OsString,
        /// Seconds until the key expires
        #[arg(long, value_name = "SECONDS")]
        expire: Option<u64>,
    },
    /// Remove keys and print how many there were; exit code 3 if none
    Del {
        /// The keys
        #[arg(required = true)]
        keys: Vec<OsString>,
    },
    /// List keys and values in key order, separated by a tab
    Scan {
        /// Only keys that start with this
        #[arg(long)]
        prefix: Option<OsString>,
        /// Only keys at or above this
        #[arg(long)]
        start: Option<OsString>,
        /// Only keys below this
        #[arg(long)]
        end: Option<OsString>,
        /// At most so many
        #[arg(long)]
        limit: Option<usize>,
        /// From high keys to low ones
        #[arg(long)]
        reverse: bool,
        /// Keys only
        #[arg(long)]
        keys: bool,
        /// One JSON object per line; what is no UTF-8 is given in hexadecimal as key_hex or value_hex
        #[arg(long)]
        json: bool,
    },
    /// Set many keys from lines `KEY<tab>VALUE`, or from what `scan --json` printed
    Load {
        /// The file; stdin without one
        file: Option<PathBuf>,
        /// Lines are JSON objects with key (or key_hex) and value (or value_hex)
        #[arg(long)]
        json: bool,
    },
}

impl KvArguments {
    /// Runs the command.
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        let makes = matches!(self.action, Action::Put { .. } | Action::Load { .. });
        let store = builder(settings).create(makes).open(&self.store.location(settings))?;
        let result = self.act(&store, makes);
        store.close()?;
        result
    }

    fn act(&self, store: &esker::Store, makes: bool) -> Result<(), Failure> {
        let kv = store.kv()?;
        let existing = kv.namespaces()?.into_iter().find(|(name, _)| *name == self.namespace);
        let kind = match existing {
            Some((_, kind)) => kind,
            None if !makes => {
                return Err(Failure::new(Code::NotFound, format!("there is no namespace {:?}", self.namespace)));
            }
            None if self.int => Kind::Int,
            None => Kind::Bytes,
        };
        let namespace = kv.namespace_with(&self.namespace, kind, self.compress.unwrap_or_default())?;
        if let Some(compression) = self.compress {
            if !makes {
                return Err(Failure::usage("--compress is of use with put and load only"));
            }
            kv.set_compression(&self.namespace, compression)?;
        }
        match &self.action {
            Action::Get { key, json } => get(&namespace, key, *json),
            Action::Put { key, value, expire } => put(&kv, &namespace, key, value, *expire),
            Action::Del { keys } => remove(&namespace, keys),
            Action::Load { file, json } => load(&kv, &namespace, file.as_ref(), *json),
            Action::Scan { prefix, start, end, limit, reverse, keys, json } => {
                let scan = Scan {
                    start: start.as_ref().map(|key| owned(kind, key.as_bytes())).transpose()?,
                    end: end.as_ref().map(|key| owned(kind, key.as_bytes())).transpose()?,
                    prefix: prefix.as_ref().map(|prefix| Bytes::copy_from_slice(prefix.as_bytes())),
                    reverse: *reverse,
                    keys_only: *keys,
                    ..Scan::default()
                };
                list(&namespace, scan, limit.unwrap_or(usize::MAX), *keys, *json)
            }
        }
    }
}

fn owned(kind: Kind, key: &[u8]) -> Result<OwnedKey, Failure> {
    match kind {
        Kind::Bytes => Ok(OwnedKey::Bytes(Bytes::copy_from_slice(key))),
        Kind::Int => {
            std::str::from_utf8(key).ok().and_then(|text| text.parse().ok()).map(OwnedKey::Int).ok_or_else(|| {
                Failure::usage(format!("key {:?}: this namespace has u64 keys", String::from_utf8_lossy(key)))
            })
        }
    }
}

fn borrowed(key: &OwnedKey) -> Key<'_> {
    match key {
        OwnedKey::Int(key) => Key::Int(*key),
        OwnedKey::Bytes(key) => Key::Bytes(key),
    }
}

fn get(namespace: &Namespace, key: &OsStr, json: bool) -> Result<(), Failure> {
    let owned = owned(namespace.kind(), key.as_bytes())?;
    let Some(entry) = namespace.entry(borrowed(&owned)).wait()? else {
        return Err(Failure::new(Code::NotFound, format!("there is no key {key:?}")));
    };
    if json {
        return print(&format!("{}\n", entry_json(&owned, &entry, false)));
    }
    let mut out = std::io::stdout().lock();
    quiet_pipe(out.write_all(&entry.value).and_then(|()| out.flush()))
}

fn put(kv: &esker::Kv, namespace: &Namespace, key: &OsStr, value: &OsStr, expire: Option<u64>) -> Result<(), Failure> {
    let owned = owned(namespace.kind(), key.as_bytes())?;
    let value = if value == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes)?;
        Bytes::from(bytes)
    } else {
        Bytes::copy_from_slice(value.as_bytes())
    };
    let expires_ms = expire.map(|seconds| kv.clock().now_ms().saturating_add(seconds.saturating_mul(1_000)));
    let entry = Entry { value, expires_ms, tag: 0 };
    Ok(namespace.put_with(borrowed(&owned), entry, esker::Durability::Durable).wait()?)
}

fn remove(namespace: &Namespace, keys: &[OsString]) -> Result<(), Failure> {
    let owned: Vec<_> = keys.iter().map(|key| owned(namespace.kind(), key.as_bytes())).collect::<Result<_, _>>()?;
    let keys: Vec<_> = owned.iter().map(borrowed).collect();
    let removed = namespace.remove_many(&keys).wait()?;
    print(&format!("{removed}\n"))?;
    if removed == 0 {
        return Err(Failure::new(Code::NotFound, "none of the keys exists"));
    }
    Ok(())
}

fn list(namespace: &Namespace, scan: Scan, limit: usize, keys_only: bool, json: bool) -> Result<(), Failure> {
    let mut out = BufWriter::with_capacity(1 << 16, std::io::stdout().lock());
    for item in namespace.iter(scan).take(limit) {
        let (key, entry) = item?;
        let written = if json {
            writeln!(out, "{}", entry_json(&key, &entry, keys_only))
        } else {
            write_line(&mut out, &key, (!keys_only).then_some(&entry.value))
        };
        quiet_pipe(written)?;
    }
    quiet_pipe(out.flush())
}

fn write_line(out: &mut impl Write, key: &OwnedKey, value: Option<&Bytes>) -> std::io::Result<()> {
    match key {
        OwnedKey::Int(key) => write!(out, "{key}")?,
        OwnedKey::Bytes(key) => out.write_all(key)?,
    }
    if let Some(value) = value {
        out.write_all(b"\t")?;
        out.write_all(value)?;
    }
    out.write_all(b"\n")
}

fn entry_json(key: &OwnedKey, entry: &Entry, keys_only: bool) -> serde_json::Value {
    let mut object = serde_json::Map::new();
    match key {
        OwnedKey::Int(key) => {
            object.insert("key".into(), (*key).into());
        }
        OwnedKey::Bytes(key) => text_or_hex(&mut object, "key", key),
    }
    if !keys_only {
        text_or_hex(&mut object, "value", &entry.value);
    }
    if let Some(expires_ms) = entry.expires_ms {
        object.insert("expires_ms".into(), expires_ms.into());
    }
    object.into()
}

fn text_or_hex(object: &mut serde_json::Map<String, serde_json::Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(name.into(), text.into()),
        Err(_) => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            object.insert(format!("{name}_hex"), hex.into())
        }
    };
}

/// Bytes of a text in hexadecimal.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

/// The bytes that a JSON line gives for `name`, as text, number or hexadecimal.
fn json_bytes(object: &serde_json::Value, name: &str) -> Option<Vec<u8>> {
    match &object[name] {
        serde_json::Value::String(text) => Some(text.clone().into_bytes()),
        serde_json::Value::Number(number) => Some(number.to_string().into_bytes()),
        _ => from_hex(object[format!("{name}_hex")].as_str()?),
    }
}

struct Line {
    key: Vec<u8>,
    value: Vec<u8>,
    expires_ms: Option<u64>,
}

fn parse_line(line: &[u8], json: bool) -> Option<Line> {
    if json {
        let object: serde_json::Value = serde_json::from_slice(line).ok()?;
        let expires_ms = object["expires_ms"].as_u64();
        return Some(Line { key: json_bytes(&object, "key")?, value: json_bytes(&object, "value")?, expires_ms });
    }
    let tab = line.iter().position(|byte| *byte == b'\t')?;
    Some(Line { key: line[..tab].to_vec(), value: line[tab + 1..].to_vec(), expires_ms: None })
}

fn load(kv: &esker::Kv, namespace: &Namespace, file: Option<&PathBuf>, json: bool) -> Result<(), Failure> {
    let (mut input, bar): (Box<dyn BufRead>, _) = match file {
        None => (Box::new(std::io::stdin().lock()), progress::spinner("loading")),
        Some(path) => {
            let open = || -> std::io::Result<(File, u64)> {
                let file = File::open(path)?;
                let len = file.metadata()?.len();
                Ok((file, len))
            };
            let (file, len) =
                open().map_err(|error| Failure::new(Code::Failure, format!("{}: {error}", path.display())))?;
            (Box::new(BufReader::with_capacity(1 << 20, file)), progress::bytes("loading", len))
        }
    };
    let mut batch: Vec<(OwnedKey, Entry)> = Vec::new();
    let (mut batch_bytes, mut number, mut line) = (0usize, 0u64, Vec::new());
    // Batches are committed in order without waiting; the barrier of the last one stands for all.
    let mut barrier = None;
    // A segment may be small.
    let bytes_max = LOAD_BYTES.min(kv.store().capability().transaction_bytes_max as usize / 2);
    let mut parsed: Option<(OwnedKey, Entry, usize)> = None;
    loop {
        line.clear();
        let read = input.read_until(b'\n', &mut line)?;
        if let Some((key, entry, bytes)) = parsed.take() {
            batch.push((key, entry));
            batch_bytes += bytes;
        }
        let next = line.len() + ENTRY_BYTES;
        if read == 0 || batch.len() >= LOAD_ENTRIES || !batch.is_empty() && batch_bytes + next > bytes_max {
            let mut txn = kv.begin_exclusive();
            // What was read of the input cannot be read again.
            txn.run_once();
            for (key, entry) in batch.drain(..) {
                txn.put(namespace, borrowed(&key), entry);
            }
            let (result, of_batch) = txn.commit(esker::Durability::Durable).into_parts();
            result?;
            barrier = of_batch.or(barrier);
            batch_bytes = 0;
        }
        if read == 0 {
            break;
        }
        bar.inc(if file.is_some() { read as u64 } else { 1 });
        number += 1;
        let content = line.strip_suffix(b"\n").unwrap_or(&line);
        if content.is_empty() {
            continue;
        }
        let Some(found) = parse_line(content, json) else {
            let expected = if json { "a JSON object with key and value" } else { "KEY<tab>VALUE" };
            return Err(Failure::new(Code::Failure, format!("line {number}: expected {expected}")));
        };
        let bytes = found.key.len() + found.value.len() + ENTRY_BYTES;
        let entry = Entry { value: Bytes::from(found.value), expires_ms: found.expires_ms, tag: 0 };
        parsed = Some((owned(namespace.kind(), &found.key)?, entry, bytes));
    }
    barrier.map_or(Ok(()), |barrier| barrier.wait())?;
    bar.finish_and_clear();
    eprintln!("{number} lines loaded");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_lines_carry_any_bytes_there_and_back() {
        for value in [&b"plain"[..], b"", b"\xff\x00\x80", "grüße".as_bytes()] {
            let key = OwnedKey::Bytes(Bytes::from_static(b"k\xfe"));
            let entry = Entry { value: Bytes::copy_from_slice(value), expires_ms: Some(7), tag: 0 };
            let line = parse_line(entry_json(&key, &entry, false).to_string().as_bytes(), true).unwrap();
            assert_eq!((line.key.as_slice(), line.value.as_slice(), line.expires_ms), (&b"k\xfe"[..], value, Some(7)));
        }
    }

    #[test]
    fn tab_lines_split_at_the_first_tab() {
        let line = parse_line(b"a b\tc\td", false).unwrap();
        assert_eq!((line.key, line.value), (b"a b".to_vec(), b"c\td".to_vec()));
        assert!(parse_line(b"no tab", false).is_none());
    }
}
