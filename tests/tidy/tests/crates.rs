//! Which crates there are, what each may depend on, and that ARCHITECTURE.md names them all.

use std::collections::BTreeSet;

use esker_tidy::{members, text};

/// What each crate may depend on, its tests excepted. A developer who changes this changes the design.
const ALLOWED: &[(&str, &[&str])] = &[
    ("esker-device", &[]),
    ("esker-store", &[]),
    ("esker-compress", &[]),
    ("esker-engine", &["esker-device", "esker-store", "esker-compress"]),
    ("esker-memory", &["esker-store"]),
    ("esker-keyvalue", &["esker-store"]),
    ("esker-file", &["esker-store"]),
    ("esker-kv", &["esker-store"]),
    ("esker-log", &["esker-store"]),
    ("esker-map", &["esker-store"]),
    ("esker-transaction", &["esker-map"]),
    // What it turns into messages and back.
    ("esker-wire", &["esker-store", "esker-log", "esker-map"]),
    // The map's trait is what it implements.
    ("esker-cassandra", &["esker-map"]),
    ("esker-rados", &["esker-store"]),
    ("esker-chain", &["esker-store"]),
    ("esker-cluster", &["esker-chain"]),
    ("esker-peers", &["esker-chain", "esker-store", "esker-wire"]),
    ("esker-member", &["esker-chain", "esker-cluster", "esker-peers", "esker-store", "esker-wire"]),
    // The log beside the store: it finds the sequencers that logs name. And the map, which a server has for all.
    ("esker-remote", &["esker-store", "esker-log", "esker-map", "esker-wire"]),
    ("esker-volume", &["esker-store"]),
    ("esker-server", &["esker-store", "esker-kv", "esker-log", "esker-map", "esker-volume", "esker-wire"]),
    (
        "esker",
        &[
            "esker-device",
            "esker-store",
            "esker-engine",
            "esker-memory",
            "esker-file",
            "esker-keyvalue",
            "esker-kv",
            "esker-log",
            "esker-map",
            "esker-transaction",
            "esker-cassandra",
            "esker-rados",
            "esker-remote",
            "esker-volume",
        ],
    ),
    ("esker-cli", &["esker", "esker-server", "esker-chain", "esker-cluster", "esker-member", "esker-peers"]),
    (
        "esker-sim",
        &[
            "esker-device",
            "esker-store",
            "esker-engine",
            "esker-memory",
            "esker-kv",
            "esker-log",
            "esker-map",
            "esker-volume",
            "esker-server",
            "esker",
        ],
    ),
    // A protocol's rules are written down again: a model that used the code would have its mistakes.
    ("esker-models", &["esker-chain"]),
    // The code of replicas and managers itself; what stands around it is simulated.
    ("esker-chain-sim", &["esker-chain", "esker-cluster"]),
    // What it shares with servers: where a key belongs, and how the registry is read.
    ("esker-ring", &["esker-cluster", "esker-kv"]),
    // A user of the library as any other, and of what a server publishes: the client of NBD, the `.proto` files.
    ("esker-histories", &["esker", "esker-server", "esker-wire"]),
    ("esker-tidy", &[]),
];

/// The engine's foreign dependencies stay below this.
const ENGINE_DEPENDENCIES_MAX: usize = 10;

struct Member {
    folder: String,
    name: String,
    dependencies: Vec<String>,
}

fn workspace() -> Vec<Member> {
    members()
        .into_iter()
        .map(|folder| {
            let manifest: toml::Table = text(format!("{folder}/Cargo.toml")).parse().expect("a manifest is TOML");
            let name = manifest["package"]["name"].as_str().expect("a package has a name").to_string();
            let dependencies = manifest
                .get("dependencies")
                .and_then(|table| table.as_table())
                .map_or(Vec::new(), |table| table.keys().cloned().collect());
            Member { folder, name, dependencies }
        })
        .collect()
}

fn ours(name: &str) -> bool {
    name == "esker" || name.starts_with("esker-")
}

#[test]
fn crates_depend_only_on_what_the_design_allows() {
    for member in workspace() {
        let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| *name == member.name) else {
            panic!("{} in {} has no line in the table of allowed dependencies", member.name, member.folder);
        };
        for dependency in member.dependencies.iter().filter(|name| ours(name)) {
            assert!(
                allowed.contains(&dependency.as_str()),
                "{} must not depend on {dependency}; allowed: {allowed:?}",
                member.name
            );
        }
    }
}

#[test]
fn the_engine_stays_under_ten_foreign_dependencies() {
    let workspace = workspace();
    let engine = workspace.iter().find(|member| member.name == "esker-engine").unwrap();
    let foreign: Vec<_> = engine.dependencies.iter().filter(|name| !ours(name)).collect();
    assert!(foreign.len() < ENGINE_DEPENDENCIES_MAX, "{} foreign dependencies: {foreign:?}", foreign.len());
}

#[test]
fn architecture_names_every_crate_and_no_other() {
    let architecture = text("ARCHITECTURE.md");
    let section = architecture.split("## Crates").nth(1).expect("ARCHITECTURE.md has a section `## Crates`");
    let section = section.split("\n## ").next().unwrap();
    let named: BTreeSet<String> = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|line| line.split('`').next())
        .map(str::to_string)
        .collect();
    let existing: BTreeSet<String> = workspace().into_iter().map(|member| member.name).collect();
    assert_eq!(named, existing, "left: ARCHITECTURE.md, right: the workspace");
}

#[test]
fn crates_come_in_dependency_order() {
    let workspace = workspace();
    let mut before: BTreeSet<&str> = BTreeSet::new();
    for member in &workspace {
        for dependency in member.dependencies.iter().filter(|name| ours(name)) {
            assert!(
                before.contains(dependency.as_str()),
                "{} stands before its dependency {dependency} in Cargo.toml",
                member.name
            );
        }
        before.insert(&member.name);
    }
}

#[test]
fn no_crate_uses_unsafe_but_device_and_engine() {
    for member in workspace() {
        if ["esker-device", "esker-engine"].contains(&member.name.as_str()) {
            continue;
        }
        let root = ["lib.rs", "main.rs"].map(|file| text(format!("{}/src/{file}", member.folder))).concat();
        let features = match member.name.as_str() {
            "esker-keyvalue" => "any(feature = \"rocksdb\", feature = \"leveldb\")",
            "esker-rados" => "feature = \"librados\"",
            _ => "",
        };
        if !features.is_empty() {
            // Bindings to C libraries, in one module, and only with the features that ask for them.
            let without = format!("#![cfg_attr(not({features}), forbid(unsafe_code))]");
            let rules = ["#![deny(unsafe_code)]", &without];
            assert!(rules.iter().all(|rule| root.contains(*rule)) && root.matches("allow(unsafe_code").count() == 1);
            continue;
        }
        assert!(root.contains("#![forbid(unsafe_code)]"), "{} does not forbid unsafe code", member.name);
    }
}
