//! Verifying: whether the backups of a folder can be restored, told before an operator needs one.
//!
//! manifests → their files, each read once → what does not hold, and the backups that need it
//!
//! Invariant: nothing is written.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use esker_store::Result;

use super::manifest::{Manifest, Piece, backups, damaged};
use super::segments_of;

/// What verifying found.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// Numbers of the backups that hold.
    pub whole: Vec<u64>,
    /// Numbers of those that do not, and why.
    pub damaged: Vec<(u64, String)>,
    /// Files read.
    pub files: u64,
    /// Bytes read.
    pub bytes: u64,
    /// How long it took.
    pub elapsed: Duration,
}

/// Reads all backups of `folder`, each file once. `progress(done, total)` is told bytes.
///
/// # Errors
/// [`Error::Invalid`](esker_store::Error::Invalid) if there is no backup in it; [`Error::Io`](esker_store::Error::Io).
pub fn verify(folder: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<VerifyReport> {
    let began = Instant::now();
    let mut report = VerifyReport::default();
    let all = backups(folder)?;
    if all.is_empty() {
        return Err(damaged(folder, "there is no backup in it"));
    }
    let mut manifests = Vec::new();
    for sequence in all {
        match Manifest::read(folder, sequence) {
            Ok(manifest) => manifests.push(manifest),
            Err(error) => report.damaged.push((sequence, error.to_string())),
        }
    }
    let pieces: BTreeMap<&str, &Piece> =
        manifests.iter().flat_map(|manifest| &manifest.pieces).map(|piece| (&*piece.file, piece)).collect();
    let total = pieces.values().map(|piece| piece.len).sum();
    let segments = segments_of(folder);
    let mut wrong: BTreeMap<&str, String> = BTreeMap::new();
    for (file, piece) in &pieces {
        progress(report.bytes, total);
        if let Some(why) = piece.damage(&segments)? {
            wrong.insert(file, why);
        }
        report.files += 1;
        report.bytes += piece.len;
    }
    progress(total, total);
    for manifest in &manifests {
        // Two manifests may speak of one file, and of different contents.
        let bad = manifest.pieces.iter().find_map(|piece| match wrong.get(&*piece.file) {
            Some(why) => Some(format!("{}: {why}", piece.file)),
            None if pieces.get(&*piece.file) != Some(&piece) => {
                Some(format!("{}: backups disagree about it", piece.file))
            }
            None => None,
        });
        match bad {
            None => report.whole.push(manifest.sequence),
            Some(why) => report.damaged.push((manifest.sequence, why)),
        }
    }
    report.damaged.sort();
    report.elapsed = began.elapsed();
    Ok(report)
}
