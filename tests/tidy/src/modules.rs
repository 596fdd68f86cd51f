//! Reads a crate as rustc sees it: its tree of modules, and which file imports what from which other file.
//!
//! A file imports the file that defines the name it takes, however many re-exports lie between. `mod child;` and
//! `pub use child::Name;` import nothing, unless the file that re-exports a name has a use of its own for it.
//!
//! Invariant: comments, strings and what stands under `#[cfg(test)]` import nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::tokens::{Token, closed, code_tokens};

/// Re-exports of re-exports, at most; more than this is a circle of `use`, which rustc refuses.
const HOPS_MAX: usize = 16;

/// For each file, the files it imports, and for each of those the names it takes.
pub type Imports = BTreeMap<PathBuf, BTreeMap<PathBuf, BTreeSet<String>>>;

/// One tree of modules: a library or a program.
pub struct Tree {
    modules: Vec<Module>,
}

/// A type that a file declares outside functions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Declared {
    /// Its name.
    pub name: String,
    /// The file that declares it.
    pub file: PathBuf,
}

struct Module {
    file: PathBuf,
    /// Where the files of its children lie.
    folder: PathBuf,
    parent: usize,
    children: BTreeMap<String, usize>,
    /// What it defines: types, functions, constants, macros.
    names: BTreeSet<String>,
    /// Those of the types that every file of the crate may name.
    types: BTreeSet<String>,
    uses: Vec<Use>,
    /// The paths of its code, `use` aside.
    paths: BTreeSet<Vec<String>>,
    /// The words of its code, `use` aside.
    words: BTreeSet<String>,
}

/// One leaf of a `use`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Use {
    path: Vec<String>,
    /// The name it gives in its module; `*` for all of them.
    name: String,
    /// Whether other modules may take the name from here.
    public: bool,
}

/// What a path leads to.
enum Target {
    /// Something that this module defines, under this name.
    Name(usize, String),
    /// A module itself.
    Module(usize),
}

impl Tree {
    /// Reads the tree that begins with the file `root`.
    pub fn read(root: &Path) -> Tree {
        let mut tree = Tree { modules: Vec::new() };
        let folder = root.parent().unwrap_or(root).to_path_buf();
        tree.add_file(root.to_path_buf(), folder, 0);
        tree
    }

    /// The files of the tree.
    pub fn files(&self) -> BTreeSet<PathBuf> {
        self.modules.iter().map(|module| module.file.clone()).collect()
    }

    /// The types that every file of the tree may name, in the order of their names.
    pub fn types(&self) -> Vec<Declared> {
        let mut all: Vec<Declared> = self
            .modules
            .iter()
            .flat_map(|module| {
                module.types.iter().map(|name| Declared { name: name.clone(), file: module.file.clone() })
            })
            .collect();
        all.sort();
        all
    }

    /// Which file imports which.
    pub fn imports(&self) -> Imports {
        let mut imports = Imports::new();
        for (at, module) in self.modules.iter().enumerate() {
            let mut targets = Vec::new();
            for used in &module.uses {
                if used.name == "*" {
                    targets.extend(self.through_star(at, used));
                } else if !used.public || module.words.contains(&used.name) {
                    targets.extend(self.resolve(at, &used.path, 0));
                }
            }
            targets.extend(module.paths.iter().filter_map(|path| self.resolve(at, path, 0)));
            for target in targets {
                let Target::Name(owner, name) = target else { continue };
                let file = &self.modules[owner].file;
                if *file != module.file {
                    let from = imports.entry(module.file.clone()).or_default();
                    from.entry(file.clone()).or_default().insert(name);
                }
            }
        }
        imports
    }

    /// What module `at` takes through `used`, which ends with a star: the words of its code that stand behind it.
    fn through_star(&self, at: usize, used: &Use) -> Vec<Target> {
        match self.resolve(at, &used.path, 0) {
            Some(Target::Module(behind)) if behind != at => {
                let words = self.modules[at].words.iter();
                words.filter_map(|word| self.inside(behind, std::slice::from_ref(word), 0, true)).collect()
            }
            Some(Target::Name(owner, name)) => vec![Target::Name(owner, name)],
            _ => Vec::new(),
        }
    }

    /// What `path` leads to when module `at` says it; nothing if that lies outside the crate.
    fn resolve(&self, at: usize, path: &[String], hops: usize) -> Option<Target> {
        if hops > HOPS_MAX {
            return None;
        }
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => self.inside(0, rest, hops, false),
            "self" => self.inside(at, rest, hops, false),
            "super" => self.inside(self.modules[at].parent, rest, hops, false),
            _ => self.inside(at, path, hops, true),
        }
    }

    /// What `path` leads to from inside module `at`. If the module has no such name, a macro made it there: the name
    /// is the module's, unless it has to be `known`.
    fn inside(&self, at: usize, path: &[String], hops: usize, known: bool) -> Option<Target> {
        let module = &self.modules[at];
        let Some((first, rest)) = path.split_first() else { return Some(Target::Module(at)) };
        if first == "super" {
            return self.inside(module.parent, rest, hops, known);
        }
        if first == "self" {
            return self.inside(at, rest, hops, known);
        }
        // Functions and modules may share a name; what has more of a path behind it is the module.
        if let Some(child) = module.children.get(first)
            && !(rest.is_empty() && module.names.contains(first))
        {
            return self.inside(*child, rest, hops, false);
        }
        if module.names.contains(first) {
            return Some(Target::Name(at, first.clone()));
        }
        if hops > HOPS_MAX {
            return None;
        }
        if let Some(used) = module.uses.iter().find(|used| used.name == *first && used.path != path) {
            let longer: Vec<String> = used.path.iter().chain(rest).cloned().collect();
            return self.resolve(at, &longer, hops + 1);
        }
        for used in module.uses.iter().filter(|used| used.name == "*") {
            if let Some(Target::Module(behind)) = self.resolve(at, &used.path, hops + 1)
                && behind != at
                && let Some(target) = self.inside(behind, path, hops + 1, true)
            {
                return Some(target);
            }
        }
        (!known).then(|| Target::Name(at, first.clone()))
    }

    /// Adds the module that `file` is; one that is not there adds nothing.
    fn add_file(&mut self, file: PathBuf, folder: PathBuf, parent: usize) -> Option<usize> {
        let tokens = code_tokens(&fs::read_to_string(&file).ok()?);
        Some(self.add(file, folder, parent, &tokens))
    }

    fn add(&mut self, file: PathBuf, folder: PathBuf, parent: usize, tokens: &[Token]) -> usize {
        let own = self.modules.len();
        self.modules.push(Module {
            file,
            folder,
            parent,
            children: BTreeMap::new(),
            names: BTreeSet::new(),
            types: BTreeSet::new(),
            uses: Vec::new(),
            paths: BTreeSet::new(),
            words: BTreeSet::new(),
        });
        let (mut at, mut depth) = (0usize, 0usize);
        while at < tokens.len() {
            match &tokens[at] {
                Token::Mark('{') => depth += 1,
                Token::Mark('}') => depth = depth.saturating_sub(1),
                Token::Ident(word) => {
                    at = self.word(own, tokens, at, word, depth);
                    continue;
                }
                _ => {}
            }
            at += 1;
        }
        own
    }

    /// Takes the word at `at` of module `own`, and all that belongs to it. Returns the place after it.
    fn word(&mut self, own: usize, tokens: &[Token], at: usize, word: &str, depth: usize) -> usize {
        let next = tokens.get(at + 1);
        match (word, next) {
            // `pub(in crate::…)` names a module and takes nothing from it.
            ("pub", Some(Token::Mark('('))) if tokens.get(at + 2).and_then(Token::ident) == Some("in") => {
                return closed(tokens, at + 1);
            }
            ("use", Some(_)) => {
                let end =
                    tokens[at..].iter().position(|token| token.is(';')).map_or(tokens.len(), |length| at + length);
                read_use(&tokens[at + 1..end], is_public(tokens, at), &mut self.modules[own].uses);
                return end;
            }
            ("mod", Some(Token::Ident(name))) => return self.child(own, tokens, at, name),
            ("macro_rules", Some(Token::Mark('!'))) => {
                self.modules[own].names.extend(tokens.get(at + 2).and_then(Token::ident).map(str::to_string));
            }
            ("struct" | "enum" | "union" | "trait", Some(Token::Ident(name))) if depth == 0 => {
                self.modules[own].names.insert(name.clone());
                if is_crates(tokens, at) {
                    self.modules[own].types.insert(name.clone());
                }
            }
            ("fn" | "const" | "static" | "type", Some(Token::Ident(name))) if depth == 0 => {
                self.modules[own].names.insert(name.clone());
            }
            _ => return self.path(own, tokens, at),
        }
        at + 2
    }

    /// Takes `mod name;` or `mod name {…}`. Returns the place after it.
    fn child(&mut self, own: usize, tokens: &[Token], at: usize, name: &str) -> usize {
        let folder = self.modules[own].folder.join(name);
        if tokens.get(at + 2).is_some_and(|token| token.is('{')) {
            let end = closed(tokens, at + 2);
            let file = self.modules[own].file.clone();
            let child = self.add(file, folder, own, &tokens[at + 3..end - 1]);
            self.modules[own].children.insert(name.to_string(), child);
            return end;
        }
        let beside = self.modules[own].folder.join(format!("{name}.rs"));
        let file = if beside.exists() { beside } else { folder.join("mod.rs") };
        if let Some(child) = self.add_file(file, folder, own) {
            self.modules[own].children.insert(name.to_string(), child);
        }
        at + 2
    }

    /// Takes the path at `at`. Returns the place after it.
    fn path(&mut self, own: usize, tokens: &[Token], at: usize) -> usize {
        let (mut path, mut end) = (Vec::new(), at);
        while let Some(name) = tokens.get(end).and_then(Token::ident) {
            path.push(name.to_string());
            end += 1;
            if tokens.get(end) != Some(&Token::Path) {
                break;
            }
            end += 1;
        }
        let before = at.checked_sub(1).map(|before| &tokens[before]);
        // What follows `$`, `.` or `…>::` is no name that a module has.
        if !before.is_some_and(|token| token.is('$') || token.is('.') || *token == Token::Path) {
            let module = &mut self.modules[own];
            module.words.extend(path.first().cloned());
            if path.len() > 1 {
                module.paths.insert(path);
            }
        }
        end
    }
}

/// Whether `pub` or `pub(…)` stands before the item at `at`.
fn is_public(tokens: &[Token], mut at: usize) -> bool {
    while at > 0 && tokens[at - 1].ident().is_some_and(|word| word == "unsafe" || word == "auto") {
        at -= 1;
    }
    at > 0 && (tokens[at - 1].is(')') || tokens[at - 1].ident() == Some("pub"))
}

/// Whether `pub` or `pub(crate)` stands before the item at `at`: its name is one of the whole crate, not of a room.
fn is_crates(tokens: &[Token], at: usize) -> bool {
    let before: Vec<&str> = tokens[at.saturating_sub(4)..at].iter().filter_map(Token::ident).collect();
    is_public(tokens, at) && (before.ends_with(&["pub"]) || before.ends_with(&["pub", "crate"]))
}

/// Adds the leaves of the `use` whose tree is `tokens`.
fn read_use(tokens: &[Token], public: bool, uses: &mut Vec<Use>) {
    let mut leaves = Vec::new();
    read_leaves(tokens, &[], &mut leaves);
    uses.extend(leaves.into_iter().map(|(path, name)| Use { path, name, public }));
}

fn read_leaves(tokens: &[Token], before: &[String], leaves: &mut Vec<(Vec<String>, String)>) {
    let mut path = before.to_vec();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            Token::Mark('{') => {
                let end = closed(tokens, at) - 1;
                let mut start = at + 1;
                for place in at + 1..=end {
                    let open = tokens[start..place].iter().filter(|token| token.is('{')).count();
                    let shut = tokens[start..place].iter().filter(|token| token.is('}')).count();
                    if open == shut && (tokens[place].is(',') || place == end) {
                        read_leaves(&tokens[start..place], &path, leaves);
                        start = place + 1;
                    }
                }
                return;
            }
            Token::Mark('*') => {
                leaves.push((path, "*".to_string()));
                return;
            }
            Token::Ident(word) if word == "as" => {
                let name = tokens.get(at + 1).and_then(Token::ident).unwrap_or("_").to_string();
                leaves.push((path, name));
                return;
            }
            Token::Ident(word) if word == "self" && !path.is_empty() => {}
            Token::Ident(word) => path.push(word.clone()),
            _ => {}
        }
        at += 1;
    }
    if path.len() > before.len() || tokens.len() == 1 {
        let name = path.last().cloned().unwrap_or_default();
        leaves.push((path, name));
    }
}

/// Sets of files that import one another, however far around; each set in name order.
pub fn circles(imports: &Imports) -> Vec<Vec<PathBuf>> {
    let mut found: Vec<Vec<PathBuf>> = Vec::new();
    for file in imports.keys() {
        if found.iter().any(|circle| circle.contains(file)) {
            continue;
        }
        let there = reached(imports, file);
        let circle: Vec<PathBuf> = there.into_iter().filter(|other| reached(imports, other).contains(file)).collect();
        if !circle.is_empty() {
            found.push(circle);
        }
    }
    found
}

/// The files that `file` imports, and those that these import, and so on.
pub fn reached(imports: &Imports, file: &Path) -> BTreeSet<PathBuf> {
    let mut seen = BTreeSet::new();
    let mut open = vec![file.to_path_buf()];
    while let Some(next) = open.pop() {
        for target in imports.get(&next).into_iter().flat_map(BTreeMap::keys) {
            if seen.insert(target.clone()) {
                open.push(target.clone());
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a crate of these files, each a name and its text, the root first.
    fn read(folder: &str, files: &[(&str, &str)]) -> Tree {
        let folder = std::env::temp_dir().join(format!("esker-tidy-{}-{folder}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for (name, text) in files {
            fs::write(folder.join(name), text).unwrap();
        }
        let tree = Tree::read(&folder.join(files[0].0));
        fs::remove_dir_all(&folder).unwrap();
        tree
    }

    fn names(circle: &[PathBuf]) -> Vec<&str> {
        circle.iter().filter_map(|file| file.file_name()?.to_str()).collect()
    }

    #[test]
    fn a_circle_is_found_through_a_re_export() {
        let tree = read(
            "re-export",
            &[
                ("lib.rs", "mod a;\nmod b;\npub use a::A;"),
                ("a.rs", "use crate::b;\npub struct A;\nfn f() { b::g() }"),
                ("b.rs", "use crate::A;\npub fn g() -> A { A }"),
            ],
        );
        let found = circles(&tree.imports());
        assert_eq!(found.len(), 1);
        assert_eq!(names(&found[0]), ["a.rs", "b.rs"]);
    }

    #[test]
    fn declarations_re_exports_comments_and_tests_close_no_circle() {
        let tree = read(
            "none",
            &[
                ("lib.rs", "mod a;\nmod b;\npub use b::B;\npub struct Root;"),
                ("a.rs", "// use crate::b::B;\npub struct A;\n#[cfg(test)]\nmod tests { use crate::b::B; }"),
                ("b.rs", "use crate::{a::A, Root};\npub(crate) struct B(A, Root);"),
            ],
        );
        assert!(circles(&tree.imports()).is_empty());
        let types: Vec<_> = tree.types().into_iter().map(|declared| declared.name).collect();
        assert_eq!(types, ["A", "B", "Root"]);
    }

    #[test]
    fn a_parent_that_calls_its_child_closes_a_circle_with_it() {
        let tree = read("child", &[("lib.rs", "mod a;\npub fn f() { a::g() }"), ("a.rs", "pub fn g() { super::f() }")]);
        assert_eq!(circles(&tree.imports()).len(), 1);
    }
}
