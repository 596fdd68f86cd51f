//! The stores that are measured: opened in a fresh folder for each scene, closed and removed after it.
//!
//! [`Target`] (a location of the command line) → [`Target::fresh`] → [`Opened`] → [`Opened::remove`]
//!
//! Invariant: what is removed is the folder that was made here, never what stood at the location before.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker::ObjectStore;
use esker::keyvalue::{KeyValueStore, Kind, Options, StripLen};

use super::super::builder;
use crate::config::Settings;
use crate::exit::{Code, Failure};

/// A backend to measure.
#[derive(Clone, Debug)]
pub struct Target {
    /// What stands before the colon.
    scheme: String,
    path: String,
    /// What stands behind the question mark.
    options: String,
    /// Its name in tables.
    pub label: String,
}

/// A store that is open.
pub struct Opened {
    /// The store.
    pub store: Arc<dyn ObjectStore>,
    /// Syncs since it was opened, where it counts them.
    pub syncs: Box<dyn Fn() -> u64 + Send + Sync>,
    close: Box<dyn FnOnce() -> Result<(), Failure> + Send + Sync>,
    folder: Option<PathBuf>,
}

impl Target {
    /// Reads locations, `SCHEME:PATH?OPTIONS`. Backends are named by scheme and options; where that is not enough, by all.
    pub fn parse_all(locations: &[String]) -> Result<Vec<Self>, Failure> {
        let mut targets = Vec::new();
        for location in locations {
            let (scheme, rest) = location.split_once(':').ok_or_else(|| {
                Failure::usage(format!("backend {location:?}: expected SCHEME:PATH, such as esker:data or memory:"))
            })?;
            let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
            let label = if options.is_empty() { scheme.to_string() } else { format!("{scheme}?{options}") };
            let parts = [scheme, path, options].map(str::to_string);
            let [scheme, path, options] = parts;
            targets.push(Self { scheme, path, options, label });
        }
        let labels: Vec<String> = targets.iter().map(|target: &Self| target.label.clone()).collect();
        for (target, location) in targets.iter_mut().zip(locations) {
            if labels.iter().filter(|label| **label == target.label).count() > 1 {
                target.label.clone_from(location);
            }
        }
        Ok(targets)
    }

    /// Where its stores are made.
    pub fn path(&self) -> &Path {
        Path::new(&self.path)
    }

    /// Opens an empty store in the folder `name` below the location's path.
    pub fn fresh(&self, name: &str, settings: &Settings) -> Result<Opened, Failure> {
        let folder = (self.scheme != "memory").then(|| Path::new(&self.path).join(name));
        if let Some(folder) = &folder {
            if folder.exists() {
                return Err(Failure::usage(format!("{} exists already", folder.display())));
            }
            std::fs::create_dir_all(folder)?;
        }
        let question = if self.options.is_empty() { "" } else { "?" };
        let at = folder.as_ref().map_or(String::new(), |folder| folder.display().to_string());
        match open(&self.scheme, &at, &self.options, question, settings) {
            Ok((store, syncs, close)) => Ok(Opened { store, syncs, close, folder }),
            Err(error) => {
                if let Some(folder) = folder {
                    std::fs::remove_dir_all(folder)?;
                }
                Err(error)
            }
        }
    }
}

impl Opened {
    /// Closes the store and removes it.
    pub fn remove(self) -> Result<(), Failure> {
        let Self { store, close, folder, syncs } = self;
        drop((store, syncs));
        close()?;
        if let Some(folder) = folder {
            std::fs::remove_dir_all(folder)?;
        }
        Ok(())
    }
}

type Parts =
    (Arc<dyn ObjectStore>, Box<dyn Fn() -> u64 + Send + Sync>, Box<dyn FnOnce() -> Result<(), Failure> + Send + Sync>);

/// Opens a store. The one place here that knows which backends there are.
fn open(scheme: &str, path: &str, options: &str, question: &str, settings: &Settings) -> Result<Parts, Failure> {
    let kind = [Kind::RocksDb, Kind::LevelDb, Kind::NewStore].into_iter().find(|kind| kind.name() == scheme);
    if let Some(kind) = kind {
        let opened = KeyValueStore::open(kind, Path::new(path), &key_value_options(options)?);
        let store = Arc::new(opened.map_err(|error| Failure::of(Code::Failure, &error))?);
        let (counted, closed) = (Arc::clone(&store), Arc::clone(&store));
        return Ok((
            store,
            Box::new(move || counted.figures().syncs),
            Box::new(move || closed.close().map_err(Failure::from)),
        ));
    }
    if !["esker", "memory"].contains(&scheme) {
        return Err(Failure::usage(format!("backend {scheme}: expected esker, memory, rocksdb, leveldb or newstore")));
    }
    let store = builder(settings).open(&format!("{scheme}:{path}{question}{options}"))?;
    let engine = store.engine().cloned();
    Ok((
        store.objects(),
        Box::new(move || engine.as_ref().map_or(0, |engine| engine.stats().syncs + engine.stats().cold_syncs)),
        Box::new(move || store.close().map_err(Failure::from)),
    ))
}

/// `strip=none|BYTES`, `cache=BYTES`, `large=BYTES`, joined by `&`.
fn key_value_options(text: &str) -> Result<Options, Failure> {
    let mut options = Options::default();
    for option in text.split('&').filter(|option| !option.is_empty()) {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let bad = || Failure::usage(format!("option {key}={value}: expected a size such as 4k, or strip=none"));
        let bytes = || value.parse::<esker::ByteSize>().map(|size| size.0).map_err(|_| bad());
        match key {
            "strip" if value == "none" => options.strip = Some(StripLen::None),
            "strip" => options.strip = Some(StripLen::Bytes(bytes()?)),
            "cache" => options.cache_bytes = bytes()? as usize,
            "large" => options.large_bytes = bytes()? as usize,
            _ => return Err(Failure::usage(format!("unknown option {key:?}: expected one of strip, cache, large"))),
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_are_named_by_scheme_and_options_or_by_all() {
        let labels = |locations: &[&str]| {
            let locations: Vec<String> = locations.iter().map(|text| text.to_string()).collect();
            Target::parse_all(&locations).unwrap().into_iter().map(|target| target.label).collect::<Vec<_>>()
        };
        assert_eq!(labels(&["esker:/a", "leveldb:/b?strip=none"]), ["esker", "leveldb?strip=none"]);
        assert_eq!(labels(&["esker:/a", "esker:/b"]), ["esker:/a", "esker:/b"]);
        assert!(Target::parse_all(&["data".to_string()]).is_err());
        assert!(key_value_options("strip=none&cache=1m").is_ok());
        assert!(key_value_options("strip=x").is_err());
        assert!(key_value_options("policy=batch").is_err());
    }
}
