//! The stores that are measured: opened in a fresh folder for each scene, closed and removed after it.
//!
//! [`Target`] (a location of the command line) → [`Target::fresh`] → [`Opened`] → [`Opened::remove`]
//!
//! On Ceph no folder is made: a store has a name of its own there, and its objects are removed one by one.
//!
//! Invariant: what is removed is what was made here, never what stood at the location before.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker::ObjectStore;
use esker::objects::{Change, ObjectId, Transaction};

use crate::commands::builder;
use crate::config::Settings;
use crate::exit::Failure;

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
    /// Its objects.
    pub objects: Arc<dyn ObjectStore>,
    /// The store.
    pub store: esker::Store,
    folder: Option<PathBuf>,
    on_ceph: bool,
}

impl Target {
    /// Reads locations, `SCHEME:PATH?OPTIONS`. Backends are named by scheme and options; where that is not enough, by
    /// all.
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

    /// Makes the folder `name` below the location's path, where stores are on a disk.
    fn make(&self, name: &str) -> Result<Option<PathBuf>, Failure> {
        let folder = self.on_disk().then(|| Path::new(&self.path).join(name));
        if let Some(folder) = folder.as_ref().filter(|_| !self.on_ceph()) {
            if folder.exists() {
                return Err(Failure::usage(format!("{} exists already", folder.display())));
            }
            std::fs::create_dir_all(folder)?;
        }
        Ok(folder)
    }

    /// A place for an empty store in the folder `name` below the location's path, for another process to open.
    pub fn place(&self, name: &str) -> Result<Place, Failure> {
        let folder = self.make(name)?;
        let location = self.location_of(folder.as_deref());
        Ok(Place { location, _folder: Closed { folder, on_ceph: self.on_ceph() } })
    }

    /// Opens an empty store in the folder `name` below the location's path.
    pub fn fresh(&self, name: &str, settings: &Settings) -> Result<Opened, Failure> {
        let folder = self.make(name)?;
        let opened = self.open(folder.as_deref(), settings);
        if opened.is_err() {
            drop(Closed { folder, on_ceph: self.on_ceph() });
        }
        opened
    }

    /// Opens a store again that was closed.
    pub fn again(&self, mut closed: Closed, settings: &Settings) -> Result<Opened, Failure> {
        let opened = self.open(closed.folder.as_deref(), settings)?;
        closed.folder = None;
        Ok(opened)
    }

    /// Where a closed store is, for another process to open.
    pub fn location(&self, closed: &Closed) -> String {
        self.location_of(closed.folder.as_deref())
    }

    fn location_of(&self, folder: Option<&Path>) -> String {
        let question = if self.options.is_empty() { "" } else { "?" };
        let at = folder.map_or(String::new(), |folder| folder.display().to_string());
        format!("{}:{at}{question}{}", self.scheme, self.options)
    }

    /// Whether its stores are on a disk.
    pub fn on_disk(&self) -> bool {
        self.scheme != "memory"
    }

    fn on_ceph(&self) -> bool {
        self.scheme == "rados"
    }

    fn open(&self, folder: Option<&Path>, settings: &Settings) -> Result<Opened, Failure> {
        let store = builder(settings).open(&self.location_of(folder))?;
        Ok(Opened { objects: store.objects(), store, folder: folder.map(Path::to_path_buf), on_ceph: self.on_ceph() })
    }
}

/// Where another process makes a store; what is there goes with the value, so that process ends before it.
pub struct Place {
    /// The location.
    pub location: String,
    _folder: Closed,
}

/// A store that was closed and is still there; it is removed with the value, or opened again.
pub struct Closed {
    folder: Option<PathBuf>,
    on_ceph: bool,
}

impl Drop for Closed {
    fn drop(&mut self) {
        // Why it was not opened again is what is told.
        let _ = self.folder.as_ref().filter(|_| !self.on_ceph).map(std::fs::remove_dir_all);
    }
}

impl Opened {
    /// The folder that it is in.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Closes the store and leaves it where it is.
    pub fn close(self) -> Result<Closed, Failure> {
        let Self { objects, store, folder, on_ceph } = self;
        let closed = Closed { folder, on_ceph };
        drop(objects);
        store.close()?;
        Ok(closed)
    }

    /// Closes the store and removes it.
    pub fn remove(self) -> Result<(), Failure> {
        let Self { objects, store, folder, on_ceph } = self;
        if on_ceph {
            clear(&*objects)?;
        }
        drop(objects);
        store.close()?;
        drop(store);
        if let Some(folder) = folder.filter(|_| !on_ceph) {
            std::fs::remove_dir_all(folder)?;
        }
        Ok(())
    }
}

/// Removes all that a store holds.
fn clear(store: &dyn ObjectStore) -> Result<(), Failure> {
    for collection in store.collections().wait()? {
        loop {
            let names = store.list(&collection, None, 1_000).wait()?;
            if names.is_empty() {
                break;
            }
            let removed: Vec<_> = names
                .into_iter()
                .map(|name| ObjectId::new(collection.clone(), name))
                .map(|object| store.submit(Transaction::new().change(&object, Change::Remove)))
                .collect();
            removed.into_iter().try_for_each(|removed| removed.wait().map(drop))?;
        }
        store.submit(Transaction::new().remove_collection(&collection)).wait()?;
    }
    Ok(())
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
    }
}
