//! What images are to be: plain bytes; and what they are, read from the store.
//!
//! Invariant: bytes are shared between states until one of them changes, so that a history of states stays small.

use std::collections::BTreeMap;
use std::sync::Arc;

use esker_volume::{Layout, Result, Volumes};

/// All images by name.
pub(crate) type World = BTreeMap<String, Arc<Disk>>;

/// Image and snapshot.
pub(crate) type Link = (String, String);

/// An image.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    /// Its content; its length is the size.
    pub data: Arc<Vec<u8>>,
    pub layout: Layout,
    /// By name: names grow, so this is the order of making.
    pub snaps: BTreeMap<String, Arc<Snap>>,
    /// The snapshot that it is being rolled back to: no handle reads it then.
    pub rolling: Option<String>,
    pub locked: bool,
    /// What it stands on.
    pub parent: Option<Link>,
}

/// A snapshot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snap {
    pub data: Arc<Vec<u8>>,
    pub protected: bool,
    /// What the image stood on.
    pub parent: Option<Link>,
}

impl Disk {
    /// Fills bytes.
    pub(crate) fn fill(&mut self, offset: u64, bytes: &[u8]) {
        let offset = offset as usize;
        Arc::make_mut(&mut self.data)[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// The rollback is finished.
    pub(crate) fn roll_back(&mut self) {
        let Some(snap) = self.rolling.take().and_then(|name| self.snaps.get(&name).cloned()) else { return };
        self.data = Arc::clone(&snap.data);
        self.parent.clone_from(&snap.parent);
    }
}

/// Images that stand on a snapshot, themselves or with one of their own snapshots.
pub(crate) fn children<'w>(world: &'w World, image: &str, snap: &str) -> Vec<&'w str> {
    let is = |link: &Option<Link>| link.as_ref().is_some_and(|(i, s)| i == image && s == snap);
    let stands = |disk: &Disk| is(&disk.parent) || disk.snaps.values().any(|snap| is(&snap.parent));
    world.iter().filter(|(_, disk)| stands(disk)).map(|(name, _)| name.as_str()).collect()
}

/// What the store has. The parents of snapshots are not told, but those that they stand on tell how many.
pub(crate) struct Found {
    disks: BTreeMap<String, Disk>,
    children: BTreeMap<Link, Vec<String>>,
}

/// Reads everything.
pub(crate) fn found(volumes: &Volumes) -> Result<Found> {
    let mut found = Found { disks: BTreeMap::new(), children: BTreeMap::new() };
    for name in volumes.list()? {
        let image = volumes.image(&name)?;
        let info = image.info()?;
        let data = if info.rollback.is_some() { Vec::new() } else { image.read_bytes(0, info.size)?.to_vec() };
        let mut disk = Disk {
            data: Arc::new(data),
            layout: info.layout,
            rolling: info.rollback,
            locked: info.lock.is_some(),
            parent: info.parent.map(|(image, snap, _)| (image, snap)),
            snaps: BTreeMap::new(),
        };
        for told in image.snapshots()? {
            let open = image.snapshot(&told.name)?;
            let data = Arc::new(open.read_bytes(0, open.size())?.to_vec());
            let mut children = volumes.children(&name, &told.name)?;
            children.sort();
            if told.children != children.len() as u64 || told.size != data.len() as u64 {
                // Shown as a difference: no model has such a child.
                children.push(format!("(it says {} children and {} bytes)", told.children, told.size));
            }
            found.children.insert((name.clone(), told.name.clone()), children);
            disk.snaps.insert(told.name, Arc::new(Snap { data, protected: told.protected, parent: None }));
        }
        found.disks.insert(name, disk);
    }
    Ok(found)
}

fn bytes_differ(what: &str, expected: &[u8], found: &[u8]) -> Option<String> {
    if expected == found {
        return None;
    }
    if expected.len() != found.len() {
        return Some(format!("{what} has {} bytes, expected {}", found.len(), expected.len()));
    }
    let at = expected.iter().zip(found).position(|(a, b)| a != b)?;
    let near = |bytes: &[u8]| bytes[at..bytes.len().min(at + 3)].to_vec();
    Some(format!("{what}: from byte {at} it has {:?}, expected {:?}", near(found), near(expected)))
}

/// How the store differs from a state, if it does.
pub(crate) fn difference(expected: &World, found: &Found) -> Option<String> {
    let names = |keys: Vec<&String>| keys.into_iter().cloned().collect::<Vec<_>>().join(", ");
    if !expected.keys().eq(found.disks.keys()) {
        let (found, expected) = (names(found.disks.keys().collect()), names(expected.keys().collect()));
        return Some(format!("the images are [{found}], expected [{expected}]"));
    }
    for (name, disk) in expected {
        let other = &found.disks[name];
        if (&disk.rolling, disk.locked, &disk.parent, disk.layout)
            != (&other.rolling, other.locked, &other.parent, other.layout)
        {
            let show =
                |disk: &Disk| format!("rollback {:?}, locked {}, parent {:?}", disk.rolling, disk.locked, disk.parent);
            return Some(format!("{name}: {}, expected {}", show(other), show(disk)));
        }
        if disk.rolling.is_none()
            && let Some(why) = bytes_differ(name, &disk.data, &other.data)
        {
            return Some(why);
        }
        if !disk.snaps.keys().eq(other.snaps.keys()) {
            let (found, expected) = (names(other.snaps.keys().collect()), names(disk.snaps.keys().collect()));
            return Some(format!("the snapshots of {name} are [{found}], expected [{expected}]"));
        }
        for (snap_name, snap) in &disk.snaps {
            let other = &other.snaps[snap_name];
            if snap.protected != other.protected {
                return Some(format!("{name}@{snap_name} is protected: {}", other.protected));
            }
            if let Some(why) = bytes_differ(&format!("{name}@{snap_name}"), &snap.data, &other.data) {
                return Some(why);
            }
            let (told, known) =
                (&found.children[&(name.clone(), snap_name.clone())], children(expected, name, snap_name));
            if *told != known {
                return Some(format!("{name}@{snap_name} has children {told:?}, expected {known:?}"));
            }
        }
    }
    None
}
