//! Holds the rules of the tree: headers, import order, docs that tie to code.
//!
//! The rules themselves are the tests of this crate, one file each; here is only how they find the tree and read it.
//!
//! Invariant: a rule reads what is in the tree, never what a person remembers of it, so it cannot drift.

#![forbid(unsafe_code)]

pub mod modules;
pub mod tokens;

use std::fs;
use std::path::{Path, PathBuf};

/// Folders that hold no source of ours.
const SKIPPED: &[&str] = &["target", ".git", "node_modules", "esker-data", "generated"];

/// The root of the checkout.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).map_or_else(|| here.to_path_buf(), Path::to_path_buf)
}

/// Every `.rs` file of the checkout, in name order.
pub fn rust_files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in ["crates", "clients", "tests", "fuzz", "benches"] {
        walk(&root().join(folder), &mut |path| {
            if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path.to_path_buf());
            }
        });
    }
    files.sort();
    files
}

/// Calls `visit` with every file under `folder`, build output excepted. A missing folder has none.
pub fn walk(folder: &Path, visit: &mut dyn FnMut(&Path)) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            let name = entry.file_name();
            if !SKIPPED.iter().any(|skipped| *skipped == name) {
                walk(&path, visit);
            }
        } else {
            visit(&path);
        }
    }
}

/// The text of a file of the checkout; empty if there is no such file, so that a rule can say so itself.
pub fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_default()
}

/// `path` as seen from the root, for messages.
pub fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// The folders named in the workspace's `members`, in order.
pub fn members() -> Vec<String> {
    let manifest = text("Cargo.toml");
    let Some((_, rest)) = manifest.split_once("members = [") else { return Vec::new() };
    let Some((list, _)) = rest.split_once(']') else { return Vec::new() };
    list.split(',')
        .map(|member| member.trim().trim_matches('"').to_string())
        .filter(|member| !member.is_empty())
        .collect()
}
