//! Where a store is: a path or a URL, with options behind a question mark.
//!
//! `esker:data?size=1g&policy=group:2ms` → [`Location`] { place, options as pairs }
//!
//! Invariant: a text that is not understood is an error that shows what was found and what is expected; nothing is
//! guessed.

use std::path::PathBuf;

use crate::backend::{SCHEMES_SHOWN, Scheme};
use crate::{Error, Result};

/// What kind of store, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In memory, gone with the process.
    Memory,
    /// The engine on a file, a block device, or the file of a folder.
    Path(PathBuf),
    /// Another backend, in a folder.
    Backend(&'static Scheme, PathBuf),
}

/// A parsed location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub place: Place,
    pub options: Vec<(String, String)>,
}

impl Location {
    pub fn parse(text: &str) -> Result<Self> {
        let (place, query) = text.split_once('?').map_or((text, ""), |(place, query)| (place, query));
        let place = match scheme(place) {
            None => Place::Path(PathBuf::from(place)),
            Some(("esker", rest)) => Place::Path(PathBuf::from(rest.strip_prefix("//").unwrap_or(rest))),
            Some(("memory", "" | "//")) => Place::Memory,
            Some(("memory", _)) => {
                return Err(Error::Location { found: text.to_string(), expected: "memory: without a path" });
            }
            Some((name, rest)) => match Scheme::find(name) {
                Some(scheme) => Place::Backend(scheme, PathBuf::from(rest.strip_prefix("//").unwrap_or(rest))),
                None => return Err(Error::Location { found: text.to_string(), expected: SCHEMES_SHOWN }),
            },
        };
        if matches!(&place, Place::Path(path) | Place::Backend(_, path) if path.as_os_str().is_empty()) {
            return Err(Error::Location { found: text.to_string(), expected: SCHEMES_SHOWN });
        }
        let mut options = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(Error::Location { found: pair.to_string(), expected: "options as key=value, joined by &" });
            };
            options.push((key.to_string(), value.to_string()));
        }
        Ok(Self { place, options })
    }
}

/// Splits `scheme:rest`. A single letter or a slash before the colon is part of a path.
fn scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let named = scheme.len() > 1
        && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-".contains(c));
    named.then_some((scheme, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Place {
        Place::Path(PathBuf::from(text))
    }

    #[test]
    fn locations_are_read_as_documented() {
        let check = |text: &str, place: Place, options: &[(&str, &str)]| {
            let options = options.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
            assert_eq!(Location::parse(text).unwrap(), Location { place, options }, "{text}");
        };
        check("data", path("data"), &[]);
        check("./a/b.esker", path("./a/b.esker"), &[]);
        check("/dev/vdb", path("/dev/vdb"), &[]);
        check("esker:data", path("data"), &[]);
        check("esker:///var/lib/esker", path("/var/lib/esker"), &[]);
        check("a/b:c", path("a/b:c"), &[]);
        let backend = |name: &str, path: &str| Place::Backend(Scheme::find(name).unwrap(), PathBuf::from(path));
        check("file:data", backend("file", "data"), &[]);
        check("rocksdb:///var/data?strip=16k", backend("rocksdb", "/var/data"), &[("strip", "16k")]);
        check("memory:", Place::Memory, &[]);
        check("d?size=1g&policy=group:2ms", path("d"), &[("size", "1g"), ("policy", "group:2ms")]);
    }

    #[test]
    fn a_foreign_scheme_is_an_error_that_names_what_is_known() {
        for text in ["cassandra:/x", "redis://localhost", "file:", "", "esker:", "memory:/x", "data?size"] {
            let error = Location::parse(text).unwrap_err().to_string();
            assert!(error.contains("expected"), "{error}");
        }
        assert!(Location::parse("redis:/x").unwrap_err().to_string().contains("memory:"));
    }
}
