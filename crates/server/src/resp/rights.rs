//! What a user may do by the Redis protocol: which commands, on which keys.
//!
//! rules of the user, in order → [`Rights`]: a yes or no for each command and subcommand → [`Rights::check`]
//! call
//!
//! Invariants:
//! 1. A later rule goes before an earlier one.
//! 2. A subcommand that is not known here is allowed as the rest of its command is.

use std::sync::{Arc, OnceLock};

use crate::front::pattern::matches;
use crate::front::users::User;
use crate::resp::flags::{ADMIN, FAST, READ, WRITE};
use crate::resp::parse::Args;

/// Categories, in the order in which Redis tells them.
pub(crate) const CATEGORIES: &[&str] = &[
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
];

/// Commands that are dangerous, though not for operators alone.
const DANGEROUS: &[&str] = &["keys", "flushdb", "flushall", "info", "role", "lastsave"];

/// Commands of operators whose flags do not say so.
const OPERATORS: &[&str] = &["lastsave", "role"];

/// Subcommands that differ from the rest of their command: whether operators' alone.
const SUBCOMMANDS: &[(&str, &str, bool)] = &[
    ("client", "getname", false),
    ("client", "getredir", false),
    ("client", "help", false),
    ("client", "id", false),
    ("client", "info", false),
    ("client", "kill", true),
    ("client", "list", true),
    ("client", "no-evict", true),
    ("client", "no-touch", false),
    ("client", "setinfo", false),
    ("client", "setname", false),
    ("cluster", "countkeysinslot", false),
    ("cluster", "help", false),
    ("cluster", "info", false),
    ("cluster", "keyslot", false),
    ("cluster", "myid", false),
    ("cluster", "nodes", false),
    ("cluster", "shards", false),
    ("cluster", "slots", false),
    ("config", "get", true),
    ("config", "help", false),
    ("config", "resetstat", true),
    ("config", "rewrite", true),
    ("config", "set", true),
    ("acl", "cat", false),
    ("acl", "deluser", true),
    ("acl", "dryrun", true),
    ("acl", "genpass", false),
    ("acl", "getuser", true),
    ("acl", "help", false),
    ("acl", "list", true),
    ("acl", "load", true),
    ("acl", "log", true),
    ("acl", "save", true),
    ("acl", "setuser", true),
    ("acl", "users", true),
    ("acl", "whoami", false),
];

/// What rules have to know of a command.
#[derive(Clone, Copy)]
pub(crate) struct Facts {
    pub(crate) name: &'static str,
    pub(crate) group: &'static str,
    pub(crate) flags: u16,
}

/// A command, or one of its subcommands.
#[derive(Clone, Copy)]
struct Unit {
    command: usize,
    facts: Facts,
    subcommand: Option<&'static str>,
    operators: bool,
}

static UNITS: OnceLock<Vec<Unit>> = OnceLock::new();

/// Learns what commands there are, in the order of their table.
pub(crate) fn learn(commands: impl Iterator<Item = Facts>) {
    UNITS.get_or_init(|| {
        let mut units = Vec::new();
        for (command, facts) in commands.enumerate() {
            let subcommands = SUBCOMMANDS.iter().filter(|(container, ..)| *container == facts.name);
            // What is a container says of itself only what its subcommands are.
            let container = subcommands.clone().next().is_some();
            let operators = !container && (facts.flags & ADMIN != 0 || OPERATORS.contains(&facts.name));
            units.push(Unit { command, facts, subcommand: None, operators });
            units.extend(subcommands.map(|(_, name, operators)| Unit {
                command,
                facts,
                subcommand: Some(name),
                operators: *operators,
            }));
        }
        units
    });
}

/// All commands and subcommands; those of one command one behind the other, itself first.
fn units() -> &'static [Unit] {
    UNITS.get().map_or(&[], Vec::as_slice)
}

fn is(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

/// An argument as text for messages: at most 128 bytes of it.
fn shown(arg: &[u8]) -> String {
    String::from_utf8_lossy(&arg[..arg.len().min(128)]).into_owned()
}

impl Unit {
    fn name(&self) -> String {
        let command = self.facts.name;
        self.subcommand.map_or_else(|| command.to_owned(), |subcommand| format!("{command}|{subcommand}"))
    }

    fn is_in(&self, category: &str) -> bool {
        let command = self.facts;
        let container = SUBCOMMANDS.iter().any(|(container, ..)| *container == command.name);
        let connection = command.group == "connection"
            || matches!(command.name, "command" | "wait" | "asking" | "readonly" | "readwrite");
        match category {
            "all" => true,
            "keyspace" => {
                command.group == "generic" && !connection && command.name != "waitaof" || is_of_all(command.name)
            }
            "read" => command.flags & READ != 0,
            "write" => command.flags & WRITE != 0,
            "fast" => command.flags & FAST != 0,
            "slow" => command.flags & FAST == 0,
            "admin" => self.operators,
            "dangerous" => self.operators || DANGEROUS.contains(&command.name),
            "connection" => connection && !(container && self.subcommand.is_none()),
            "transaction" => command.group == "transactions",
            "hash" | "string" => command.group == category,
            _ => false,
        }
    }
}

/// Commands on all keys that the list of groups has with the server's.
fn is_of_all(name: &str) -> bool {
    matches!(name, "dbsize" | "flushdb" | "flushall")
}

/// The names of the commands and subcommands in a category.
pub(crate) fn commands_in(category: &str) -> Vec<String> {
    units().iter().filter(|unit| unit.is_in(category)).map(Unit::name).collect()
}

/// Whether a command has a subcommand of this name; all that have none known here take any word.
pub(crate) fn has_subcommand(command: usize, name: &[u8]) -> bool {
    let mut known = units().iter().filter(|unit| unit.command == command).filter_map(|unit| unit.subcommand).peekable();
    known.peek().is_none() || known.any(|subcommand| is(name, subcommand))
}

/// The categories of a command, each with `@`.
pub(crate) fn categories_of(command: usize) -> Vec<String> {
    let unit = units().iter().find(|unit| unit.command == command && unit.subcommand.is_none());
    let held = unit.into_iter().flat_map(|unit| CATEGORIES.iter().filter(|category| unit.is_in(category)));
    held.map(|category| format!("@{category}")).collect()
}

/// Applies a rule such as `+get`, `-@write` or `+client|id`; false if it means nothing.
fn apply(allowed: &mut [bool], rule: &str) -> bool {
    let (allow, what) = match rule.split_at_checked(1) {
        Some(("+", what)) => (true, what),
        Some(("-", what)) => (false, what),
        _ => return false,
    };
    let all = units();
    if let Some(category) = what.strip_prefix('@') {
        if category != "all" && !CATEGORIES.contains(&category) {
            return false;
        }
        all.iter().zip(allowed).filter(|(unit, _)| unit.is_in(category)).for_each(|(_, held)| *held = allow);
        return true;
    }
    let (command, subcommand) = match what.split_once('|') {
        Some((command, subcommand)) => (command, Some(subcommand)),
        None => (what, None),
    };
    let mut found = false;
    for (unit, held) in all.iter().zip(allowed) {
        let means = unit.facts.name == command
            && subcommand.is_none_or(|wanted| unit.subcommand.is_some_and(|name| name == wanted));
        if means {
            (*held, found) = (allow, true);
        }
    }
    found
}

/// Whether a rule about commands means something.
pub(crate) fn is_rule(rule: &str) -> bool {
    apply(&mut vec![false; units().len()], &rule.to_ascii_lowercase())
}

fn allowed_by(rules: &[String]) -> Vec<bool> {
    let mut allowed = vec![false; units().len()];
    for rule in rules {
        apply(&mut allowed, &rule.to_ascii_lowercase());
    }
    allowed
}

/// Adds a rule behind others, and leaves out those that say nothing any more.
pub(crate) fn add_rule(rules: &mut Vec<String>, rule: &str) {
    let rule = rule.to_ascii_lowercase();
    match rule.as_str() {
        "+@all" => *rules = vec![rule],
        "-@all" => *rules = vec![rule],
        _ => {
            let what = rule.get(1..).unwrap_or_default();
            // A rule about a command goes before those about its subcommands.
            let is_replaced =
                |earlier: &str| earlier.strip_prefix(what).is_some_and(|rest| rest.is_empty() || rest.starts_with('|'));
            rules.retain(|earlier| !earlier.get(1..).is_some_and(is_replaced));
            let without = allowed_by(rules);
            rules.push(rule);
            if allowed_by(rules) == without {
                rules.pop();
            }
        }
    }
}

/// What a call does that only operators may, in words without secrets; `None`: nothing that changes something.
pub(crate) fn act(name: &str, args: Args<'_>) -> Option<String> {
    let word = |at: usize| if at < args.len() { shown(args.get(at)).to_ascii_lowercase() } else { String::new() };
    let sub = word(1);
    match (name, sub.as_str()) {
        ("acl", "setuser") => Some(format!("acl setuser {}", word(2))),
        ("acl", "deluser" | "load") | ("client", "kill") | ("config", "resetstat") => {
            Some(format!("{name} {sub} {}", word(2)).trim_end().to_owned())
        }
        ("config", "set") => {
            let pairs = (2..args.len()).step_by(2).map(|at| match word(at) {
                name if name == "requirepass" => format!(" {name} (redacted)"),
                name => format!(" {name} {}", word(at + 1)),
            });
            Some(format!("config set{}", pairs.collect::<String>()))
        }
        ("acl" | "client" | "config" | "save" | "bgsave" | "bgrewriteaof", _) => None,
        (name, _) => Some(format!("{name} {sub}").trim_end().to_owned()),
    }
}

/// What a user may do.
pub(crate) struct Rights {
    pub(crate) user: Arc<User>,
    /// Everything: nothing is looked at.
    all: bool,
    allowed: Vec<bool>,
}

/// Why a call is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// The command, by its name.
    Command(String),
    /// A key of it.
    Key(Vec<u8>),
}

impl Rights {
    /// Those of a user.
    pub(crate) fn of(user: Arc<User>) -> Arc<Self> {
        let allowed = allowed_by(&user.commands);
        let every_key = user.keys.iter().any(|keys| keys.read && keys.write && keys.pattern == b"*");
        let all = every_key && allowed.iter().all(|held| *held);
        Arc::new(Self { user, all, allowed })
    }

    /// Whether the user may call every command on every key.
    pub(crate) fn has_all(&self) -> bool {
        self.all
    }

    /// Whether the user may be told what others do.
    pub(crate) fn may_monitor(&self) -> bool {
        let held = |(unit, held): (&Unit, &bool)| unit.facts.name == "monitor" && *held;
        self.all || units().iter().zip(&self.allowed).any(held)
    }

    /// Whether the user may call this command with these arguments.
    pub(crate) fn check<'k>(
        &self,
        index: usize,
        args: Args<'k>,
        mut keys: impl Iterator<Item = &'k [u8]>,
    ) -> Result<(), Denied> {
        if self.all {
            return Ok(());
        }
        let mut own = units().iter().zip(&self.allowed).filter(|(unit, _)| unit.command == index);
        let Some(first) = own.next() else { return Ok(()) };
        let sub = (args.len() > 1).then(|| args.get(1));
        let named = own.find(|(unit, _)| unit.subcommand.is_some_and(|name| sub.is_some_and(|sub| is(sub, name))));
        let (unit, held) = named.unwrap_or(first);
        if !held {
            return Err(Denied::Command(unit.name()));
        }
        let facts = unit.facts;
        let (reads, writes) = (facts.flags & WRITE == 0 || reads_too(facts.name, args), facts.flags & WRITE != 0);
        let denied = keys.find(|key| !self.has_key(key, reads, writes));
        denied.map_or(Ok(()), |key| Err(Denied::Key(key.to_vec())))
    }

    fn has_key(&self, key: &[u8], reads: bool, writes: bool) -> bool {
        let covers = |wanted: fn(&crate::front::users::Keys) -> bool| {
            self.user.keys.iter().any(|keys| wanted(keys) && matches(&keys.pattern, key, false))
        };
        (!reads || covers(|keys| keys.read)) && (!writes || covers(|keys| keys.write))
    }
}

/// Commands that write and show what was there.
fn reads_too(name: &str, args: Args<'_>) -> bool {
    if name == "set" {
        return args.from(3.min(args.len())).any(|arg| is(arg, "get"));
    }
    !matches!(name, "mset" | "msetnx" | "setex" | "psetex" | "setnx" | "del" | "unlink" | "hset" | "hmset" | "hdel")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rights(rules: &[&str]) -> Rights {
        crate::resp::commands::Table::get();
        let mut user = User::new("ann");
        user.commands = rules.iter().map(|rule| (*rule).to_owned()).collect();
        Arc::into_inner(Rights::of(Arc::new(user))).unwrap()
    }

    fn allows(rights: &Rights, name: &str) -> bool {
        let at = units().iter().position(|unit| unit.name() == name).unwrap();
        rights.allowed[at]
    }

    #[test]
    fn later_rules_go_before_earlier_ones() {
        let reader = rights(&["-@all", "+@read", "-keys", "+client|id"]);
        for (name, held) in [
            ("get", true),
            ("keys", false),
            ("set", false),
            ("client|id", true),
            ("client|kill", false),
            ("scan", true),
        ] {
            assert_eq!(allows(&reader, name), held, "{name}");
        }
        let writer = rights(&["+@all", "-@admin", "-@dangerous", "+info"]);
        for name in ["flushall", "shutdown", "config|set", "esker.backup", "client|kill", "acl|setuser", "keys"] {
            assert!(!allows(&writer, name), "{name}");
        }
        for name in ["set", "get", "info", "client|setname", "acl|whoami", "hello", "exec", "scan"] {
            assert!(allows(&writer, name), "{name}");
        }
        assert!(!is_rule("+nothing") && !is_rule("+@nothing") && !is_rule("get") && is_rule("-ACL|List"));
        assert!(!is_rule("+client|nothing"));
    }

    #[test]
    fn rules_that_change_nothing_are_left_out() {
        crate::resp::commands::Table::get();
        let mut rules = vec!["-@all".to_owned()];
        for rule in ["+@read", "+get", "+set", "-get", "+get", "-set", "+SET"] {
            add_rule(&mut rules, rule);
        }
        assert_eq!(rules, ["-@all", "+@read", "+set"]);
        add_rule(&mut rules, "+@all");
        assert_eq!(rules, ["+@all"]);
    }
}
