//! Inside the engine a file imports only files of layers before its own, so that the put path reads top to bottom.
//!
//! format → compress → policy → pool → gather → stages → watch → superblocks → readers → sharing → buffer → segments →
//! index → cache → reader → objects → commit → cold → checkpoint → clean → keeper → load
//! → recover → replay → lib
//!
//! The top layer, lib, is several files: the public type and its open, submit, read, walk, check, backup and stats.

use std::fs;
use std::path::Path;

use esker_tidy::{root, shown, walk};

/// The layers, first to last.
const ORDER: &[&str] = &[
    "format",
    "compress",
    "policy",
    "prefetch",
    "pool",
    "gather",
    "stages",
    "watch",
    "superblocks",
    "readers",
    "sharing",
    "buffer",
    "segments",
    "index",
    "cache",
    "reader",
    "spaces",
    "objects",
    "pages",
    "commit",
    "cold",
    "checkpoint",
    "clean",
    "evict",
    "keeper",
    "rooms",
    "readings",
    "load",
    "recover",
    "replay",
    "lib",
];

/// Files of the top layer, beside lib.rs.
const TOP: &[&str] = &[
    "engine",
    "open",
    "submit",
    "read",
    "object_store",
    "walk",
    "view",
    "check",
    "scrub",
    "stats",
    "backup",
    "repair",
];

fn rank(module: &str) -> Option<usize> {
    if TOP.contains(&module) {
        return Some(ORDER.len() - 1);
    }
    ORDER.iter().position(|layer| *layer == module)
}

/// The layer that a file of the engine belongs to: its first folder or its own name.
fn layer_of(path: &Path) -> String {
    let relative = path.strip_prefix(root().join("crates/engine/src")).expect("a file of the engine");
    let first = relative.components().next().expect("a file name").as_os_str().to_string_lossy();
    first.trim_end_matches(".rs").to_string()
}

/// What stands after each `crate::` of the code proper (comments and the tests at the end left out).
fn crate_paths(source: &str) -> Vec<String> {
    let code = source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let code: String =
        code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        if code[..at].ends_with('$') {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(group) => paths.extend(group_heads(group)),
            None => paths.push(ident(rest)),
        }
    }
    paths
}

fn ident(text: &str) -> String {
    text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// The first identifier of each item of a `{…}` group whose brace is already taken off.
fn group_heads(group: &str) -> Vec<String> {
    let (mut depth, mut start, mut heads) = (0usize, 0usize, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                heads.push(ident(&group[start..at]));
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    heads.retain(|head| !head.is_empty());
    heads
}

#[test]
fn engine_files_import_only_layers_before_their_own() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    walk(&root().join("crates/engine/src"), &mut |path| {
        let own = layer_of(path);
        let Some(own_rank) = rank(&own) else {
            wrong.push(format!("{}: `{own}` is not a layer; the layers are {ORDER:?}", shown(path)));
            return;
        };
        seen += 1;
        for target in crate_paths(&fs::read_to_string(path).unwrap()) {
            // A name that is no module is something that lib.rs re-exports.
            let target_rank = rank(&target).unwrap_or(ORDER.len() - 1);
            if target_rank > own_rank {
                wrong.push(format!("{}: layer {own} uses crate::{target}", shown(path)));
            }
        }
    });
    wrong.sort();
    assert!(wrong.is_empty(), "imports against the order: {wrong:#?}");
    assert!(seen > 5, "only {seen} files found in the engine");
}

#[test]
fn imports_are_read_as_rust_reads_them() {
    let source = "use crate::format::{A, B};\nuse crate::{\n index::{X, Y}, commit, Error};\n// use crate::check\nlet a = crate::segments::f();\n#[cfg(test)]\nmod tests { use crate::lib; }";
    assert_eq!(crate_paths(source), ["format", "index", "commit", "Error", "segments"]);
}
