//! How a store on Ceph is reached, where its data is, and why it cannot be opened.

use std::path::PathBuf;
use std::time::Duration;

use esker_store::{Collection, Error};

use crate::link::SURE;
use crate::native::ConnectError;

/// Longest name of a store, which is a namespace of its pool, in bytes.
pub const NAME_BYTES_MAX: usize = 200;

/// How a cluster is reached.
#[derive(Clone, Debug)]
pub struct Options {
    /// Ceph's configuration. Default: where Ceph looks for it.
    pub conf: Option<PathBuf>,
    /// The user, without `client.`. Default: admin.
    pub user: Option<String>,
    /// Makes the store if there is none. Default: true.
    pub create: bool,
    /// Monitors and OSDs have to answer within this: then a read fails, and of a write it is not known whether it was
    /// done. Default: 30 s; at least a second.
    pub timeout: Duration,
    /// A write that Ceph answers later than this as one that was not done may have been done all the same, by an
    /// earlier attempt whose answer was lost, and is told as unknown. Longer suits a slow cluster on which little is
    /// written: an OSD knows an operation again until 3,000 others of its placement group have come. Default: 1 s.
    pub sure_within: Duration,
    /// The data pool of a store that is made. One that is there keeps the one that it was made with, or none. Default:
    /// none.
    pub data: Option<DataPool>,
}

/// A pool for objects that have bytes and xattrs with short names only: it may be erasure-coded, if it takes
/// overwrites.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataPool {
    /// Its name.
    pub pool: String,
    /// What it holds: the objects of a collection whose names begin so.
    pub holds: Vec<(Collection, Vec<u8>)>,
}

impl DataPool {
    /// A line with the pool, and one for each that it holds.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut text = self.pool.clone();
        for (collection, prefix) in &self.holds {
            text += &format!("\n{}\t{}", collection.name().escape_ascii(), prefix.escape_ascii());
        }
        text.into_bytes()
    }

    pub(crate) fn decode(stored: &[u8]) -> Result<Self, Error> {
        let damaged =
            || Error::Corrupt { offset: 0, what: format!("data pool of a store on Ceph: {}", stored.escape_ascii()) };
        let mut lines = std::str::from_utf8(stored).map_err(|_| damaged())?.split('\n');
        let pool = lines.next().unwrap_or_default().to_owned();
        let holds = lines.map(|line| {
            let (collection, prefix) = line.split_once('\t')?;
            Some((Collection::new(unescape(collection)?), unescape(prefix)?))
        });
        let holds = holds.collect::<Option<Vec<_>>>().ok_or_else(damaged)?;
        Ok(Self { pool, holds })
    }
}

/// What `escape_ascii` has escaped.
fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next()? {
                b't' => b'\t',
                b'r' => b'\r',
                b'n' => b'\n',
                b'x' => {
                    let digits = [rest.next()?, rest.next()?];
                    u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
                }
                plain => plain,
            },
            plain => plain,
        });
    }
    Some(bytes)
}

impl Default for Options {
    fn default() -> Self {
        Self { conf: None, user: None, create: true, timeout: Duration::from_secs(30), sure_within: SURE, data: None }
    }
}

/// Why a store on Ceph cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The place is none.
    #[error("{found:?} is no place on Ceph: expected POOL/NAME, the name with 1 to {NAME_BYTES_MAX} bytes")]
    Place {
        /// What was given.
        found: String,
    },
    /// There is no such store, and [`Options::create`] says not to make it.
    #[error("there is no store {place} on Ceph")]
    Missing {
        /// What was given.
        place: String,
    },
    /// The cluster cannot be reached, or has no such pool.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The store cannot be read, or is none of this version.
    #[error(transparent)]
    Store(#[from] esker_store::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_pool_is_stored_and_read_again() {
        let all: Vec<u8> = (0..=255).collect();
        let holds = vec![
            (Collection::new(all.clone()), b"d/".to_vec()),
            (Collection::from("c"), Vec::new()),
            (Collection::from("t\tn"), all),
        ];
        let pool = DataPool { pool: "ec".into(), holds };
        assert_eq!(DataPool::decode(&pool.encode()).unwrap(), pool);
        for wrong in [&b"ec\nc"[..], b"ec\nc\td\\", b"ec\nc\t\\x0", b"ec\nc\t\\xzz", b"\xff"] {
            assert!(matches!(DataPool::decode(wrong), Err(Error::Corrupt { .. })), "{wrong:?}");
        }
    }
}
