//! Rules that every source file keeps: it says what it is for, it is finished, it is about one thing.

use std::fs;

use esker_tidy::{rust_files, shown};

/// Past this, a file is about more than one thing.
const LINES_MAX: usize = 900;

/// Marks of unfinished work, written in halves so that this file does not contain them. The names of marks count only
/// in comments, since data may look like them.
const FORBIDDEN: &[&str] = &[concat!("todo", "!"), concat!("unimple", "mented!")];
const FORBIDDEN_IN_COMMENTS: &[&str] = &[concat!("FIX", "ME"), concat!("XX", "X"), concat!("TO", "DO")];

#[test]
fn every_file_opens_with_its_purpose() {
    let bare: Vec<_> = rust_files()
        .into_iter()
        .filter(|path| !fs::read_to_string(path).unwrap().trim_start().starts_with("//! "))
        .map(|path| shown(&path))
        .collect();
    assert!(bare.is_empty(), "these files do not open with `//! purpose`: {bare:#?}");
}

#[test]
fn nothing_is_left_unfinished() {
    let mut found = Vec::new();
    for path in rust_files() {
        for (number, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
            let comment = line.split_once("//").map_or("", |(_, comment)| comment);
            let in_line = FORBIDDEN.iter().filter(|word| line.contains(**word));
            let in_comment = FORBIDDEN_IN_COMMENTS.iter().filter(|word| comment.contains(**word));
            for word in in_line.chain(in_comment) {
                found.push(format!("{}:{}: {word}", shown(&path), number + 1));
            }
        }
    }
    assert!(found.is_empty(), "unfinished work: {found:#?}");
}

#[test]
fn no_file_is_longer_than_it_can_explain() {
    let long: Vec<_> = rust_files()
        .into_iter()
        .map(|path| (fs::read_to_string(&path).unwrap().lines().count(), shown(&path)))
        .filter(|(lines, _)| *lines > LINES_MAX)
        .collect();
    assert!(long.is_empty(), "files above {LINES_MAX} lines, look for the second noun: {long:#?}");
}

#[test]
fn the_walk_finds_the_tree() {
    let files: Vec<_> = rust_files().iter().map(|path| shown(path)).collect();
    for expected in ["crates/store/src/lib.rs", "crates/engine/src/lib.rs", "tests/tidy/src/lib.rs"] {
        assert!(files.iter().any(|file| file == expected), "{expected} is not among {} files", files.len());
    }
}
