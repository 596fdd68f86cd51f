//! Rooms of a crate: no circle of imports among its files, and no two types of one name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use esker_tidy::modules::{Imports, Tree, circles, reached};
use esker_tidy::{members, root, shown, walk};

/// Imports that close a circle and are still to be mended: the first file takes names from the second. The list only
/// gets shorter.
const CIRCLES: &[(&str, &str)] = &[
    // The kinds of runs return the outcome that crashes define.
];

/// Types that a crate has twice and that are still to be renamed: the crate and the name. The list only gets shorter.
const TWICE: &[(&str, &str)] = &[
    // Programs name them by their server: `grpc::Config`, `nbd::Config`, `resp::Config`.
    ("crates/server", "Address"),
    ("crates/server", "Config"),
    ("crates/server", "Error"),
    ("crates/server", "Handle"),
    ("crates/server", "Server"),
];

/// The trees of a crate: its library and its programs.
fn trees(member: &str) -> Vec<Tree> {
    let source = root().join(member).join("src");
    let mut roots = vec![source.join("lib.rs"), source.join("main.rs")];
    walk(&source.join("bin"), &mut |path| roots.push(path.to_path_buf()));
    roots.iter().filter(|root| root.exists()).map(|root| Tree::read(root)).collect()
}

/// Takes `listed` out of `imports`. Returns which of them were there.
fn take_out<'a>(imports: &mut Imports, listed: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut there = Vec::new();
    for (from, to) in listed {
        let targets = imports.get_mut(&root().join(from));
        if targets.is_some_and(|targets| targets.remove(&root().join(to)).is_some()) {
            there.push((*from, *to));
        }
    }
    there
}

/// The imports within `circle`, one a line.
fn told(imports: &Imports, circle: &[PathBuf]) -> String {
    let mut lines = String::new();
    for from in circle {
        for (to, names) in imports.get(from).into_iter().flatten().filter(|(to, _)| circle.contains(to)) {
            lines += &format!("\n  {} takes {names:?} from {}", shown(from), shown(to));
        }
    }
    lines
}

#[test]
fn no_files_of_a_crate_import_one_another() {
    let (mut wrong, mut closing) = (Vec::new(), Vec::new());
    for member in members() {
        for tree in trees(&member) {
            let mut imports = tree.imports();
            let listed = take_out(&mut imports, CIRCLES);
            let closes = |(from, to): &(&str, &str)| reached(&imports, &root().join(to)).contains(&root().join(from));
            closing.extend(listed.into_iter().filter(closes));
            wrong.extend(circles(&imports).iter().map(|circle| told(&imports, circle)));
        }
    }
    assert!(wrong.is_empty(), "these files import one another:{}", wrong.join("\n"));
    let mended: Vec<_> = CIRCLES.iter().filter(|listed| !closing.contains(listed)).collect();
    assert!(mended.is_empty(), "these imports close no circle any more, take them off the list: {mended:#?}");
}

#[test]
fn no_two_types_of_a_crate_have_one_name() {
    let (mut wrong, mut twice) = (Vec::new(), Vec::new());
    for member in members() {
        for tree in trees(&member) {
            let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for declared in tree.types() {
                files.entry(declared.name).or_default().push(shown(&declared.file));
            }
            files.retain(|_, files| files.len() > 1);
            for (name, files) in files {
                match TWICE.iter().find(|listed| **listed == (member.as_str(), name.as_str())) {
                    Some(listed) => twice.push(listed),
                    None => wrong.push(format!("{name}: {}", files.join(", "))),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "types of one name in one crate: {wrong:#?}");
    let renamed: Vec<_> = TWICE.iter().filter(|listed| !twice.contains(listed)).collect();
    assert!(renamed.is_empty(), "these names are there once now, take them off the list: {renamed:#?}");
}

#[test]
fn the_trees_reach_every_file() {
    // `tests.rs` is a module of tests, which the trees leave out.
    let mut missed = Vec::new();
    for member in members() {
        let reached: Vec<PathBuf> = trees(&member).iter().flat_map(Tree::files).collect();
        walk(&root().join(&member).join("src"), &mut |path: &Path| {
            let source = path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs");
            if source && !reached.contains(&path.to_path_buf()) {
                missed.push(shown(path));
            }
        });
    }
    assert!(missed.is_empty(), "no module declares these, or a test does: {missed:#?}");
}
