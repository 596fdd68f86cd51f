//! The table of commands, and the look-up by name.
//!
//! Invariant: names are lower case and distinct; look-up ignores case and allocates nothing.

use std::sync::LazyLock;

use crate::resp::commands::Run::{Data, Exclusive, Fast, Plain};
use crate::resp::commands::{
    ADMIN, ASKS, BRIEF, Command, FAST, GIVES, JOINS, MAKES_HASH, NO_AUTH, NO_MULTI, NOT_QUEUED, READ, Run, SWEEPS,
    WRITE, acl, clients, cluster, configuration, connection, expiry, hash_numbers, hashes, info, keys, latency,
    monitor, numbers, scans, server, set, slowlog, strings, transactions,
};
use crate::resp::rights::{Facts, learn};

/// Longest name of a command.
const NAME_BYTES_MAX: usize = 16;
/// Places of the look-up: a power of two, several times the number of commands.
const PLACES: usize = 1_024;

/// Look-up of commands by name.
pub(crate) struct Table {
    places: [u16; PLACES],
}

static TABLE: LazyLock<Table> = LazyLock::new(Table::new);

impl Table {
    fn new() -> Self {
        learn(COMMANDS.iter().map(|command| Facts { name: command.name, group: command.group, flags: command.flags }));
        let mut places = [0; PLACES];
        for (index, command) in COMMANDS.iter().enumerate() {
            let mut place = place_of(command.name.as_bytes());
            while places[place] != 0 {
                place = (place + 1) % PLACES;
            }
            places[place] = index as u16 + 1;
        }
        Self { places }
    }

    /// The table, made at first use.
    pub(crate) fn get() -> &'static Self {
        &TABLE
    }

    /// All commands.
    pub(crate) fn commands() -> &'static [Command] {
        COMMANDS
    }

    /// As [`Table::find`]: at once where it is the command at `place`.
    #[inline]
    pub(crate) fn find_near(&self, name: &[u8], place: usize) -> Option<(usize, &'static Command)> {
        match COMMANDS.get(place) {
            Some(command) if name.eq_ignore_ascii_case(command.name.as_bytes()) => Some((place, command)),
            _ => self.find(name),
        }
    }

    /// The command of this name, in any case, and its index.
    pub(crate) fn find(&self, name: &[u8]) -> Option<(usize, &'static Command)> {
        if name.len() > NAME_BYTES_MAX {
            return None;
        }
        let mut lower = [0; NAME_BYTES_MAX];
        let lower = &mut lower[..name.len()];
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        let mut place = place_of(lower);
        loop {
            let index = usize::from(*self.places.get(place)?).checked_sub(1)?;
            let command = COMMANDS.get(index)?;
            if command.name.as_bytes() == lower {
                return Some((index, command));
            }
            place = (place + 1) % PLACES;
        }
    }
}

/// FNV-1a, folded to the size of the table.
fn place_of(lower: &[u8]) -> usize {
    let hash = lower.iter().fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    (hash ^ hash >> 16) as usize % PLACES
}

const fn command(
    name: &'static str,
    arity: i16,
    flags: u16,
    keys: (i16, i16, i16),
    group: &'static str,
    run: Run,
) -> Command {
    Command { name, arity, flags, keys, group, run }
}

#[rustfmt::skip]
static COMMANDS: &[Command] = &[
    command("get", 2, READ | FAST | BRIEF, (1, 1, 1), "string", Fast(strings::get_fast, strings::get)),
    command("set", -3, WRITE | JOINS, (1, 1, 1), "string", Fast(set::set_fast, set::set)),
    command("setnx", 3, WRITE | JOINS | FAST, (1, 1, 1), "string", Data(set::setnx)),
    command("setex", 4, WRITE | JOINS, (1, 1, 1), "string", Data(set::setex)),
    command("psetex", 4, WRITE | JOINS, (1, 1, 1), "string", Data(set::psetex)),
    command("getset", 3, WRITE | JOINS | FAST, (1, 1, 1), "string", Data(set::getset)),
    command("getdel", 2, WRITE | GIVES | FAST, (1, 1, 1), "string", Data(strings::getdel)),
    command("getex", -2, WRITE | GIVES | FAST, (1, 1, 1), "string", Data(strings::getex)),
    command("append", 3, WRITE | JOINS | FAST, (1, 1, 1), "string", Data(strings::append)),
    command("strlen", 2, READ | FAST, (1, 1, 1), "string", Data(strings::strlen)),
    command("getrange", 4, READ, (1, 1, 1), "string", Data(strings::getrange)),
    command("substr", 4, READ, (1, 1, 1), "string", Data(strings::getrange)),
    command("setrange", 4, WRITE | JOINS, (1, 1, 1), "string", Data(strings::setrange)),
    command("mget", -2, READ | FAST, (1, -1, 1), "string", Fast(strings::mget_fast, strings::mget)),
    command("mset", -3, WRITE | JOINS, (1, -1, 2), "string", Data(strings::mset)),
    command("msetnx", -3, WRITE | JOINS, (1, -1, 2), "string", Data(strings::msetnx)),
    command("incr", 2, WRITE | JOINS | FAST, (1, 1, 1), "string", Data(numbers::incr)),
    command("decr", 2, WRITE | JOINS | FAST, (1, 1, 1), "string", Data(numbers::decr)),
    command("incrby", 3, WRITE | JOINS | FAST, (1, 1, 1), "string", Data(numbers::incrby)),
    command("decrby", 3, WRITE | JOINS | FAST, (1, 1, 1), "string", Data(numbers::decrby)),
    command("incrbyfloat", 3, WRITE | JOINS | FAST, (1, 1, 1), "string", Data(numbers::incrbyfloat)),
    command("del", -2, WRITE | GIVES, (1, -1, 1), "generic", Data(keys::del)),
    command("unlink", -2, WRITE | GIVES | FAST, (1, -1, 1), "generic", Data(keys::del)),
    command("exists", -2, READ | FAST, (1, -1, 1), "generic", Data(keys::exists)),
    command("touch", -2, READ | FAST, (1, -1, 1), "generic", Data(keys::exists)),
    command("type", 2, READ | FAST, (1, 1, 1), "generic", Data(keys::type_of)),
    command("object", -2, READ, (2, 2, 1), "generic", Data(strings::object)),
    command("expire", -3, WRITE | GIVES | FAST, (1, 1, 1), "generic", Data(expiry::expire)),
    command("pexpire", -3, WRITE | GIVES | FAST, (1, 1, 1), "generic", Data(expiry::pexpire)),
    command("expireat", -3, WRITE | GIVES | FAST, (1, 1, 1), "generic", Data(expiry::expireat)),
    command("pexpireat", -3, WRITE | GIVES | FAST, (1, 1, 1), "generic", Data(expiry::pexpireat)),
    command("ttl", 2, READ | FAST, (1, 1, 1), "generic", Data(expiry::ttl)),
    command("pttl", 2, READ | FAST, (1, 1, 1), "generic", Data(expiry::pttl)),
    command("expiretime", 2, READ | FAST, (1, 1, 1), "generic", Data(expiry::expiretime)),
    command("pexpiretime", 2, READ | FAST, (1, 1, 1), "generic", Data(expiry::pexpiretime)),
    command("persist", 2, WRITE | GIVES | FAST, (1, 1, 1), "generic", Data(expiry::persist)),
    command("rename", 3, WRITE | MAKES_HASH, (1, 2, 1), "generic", Data(keys::rename)),
    command("renamenx", 3, WRITE | FAST | MAKES_HASH, (1, 2, 1), "generic", Data(keys::renamenx)),
    command("copy", -3, WRITE | MAKES_HASH, (1, 2, 1), "generic", Exclusive(keys::copy)),
    command("move", 3, WRITE | FAST | MAKES_HASH, (1, 1, 1), "generic", Exclusive(keys::move_key)),
    command("randomkey", 1, READ, (0, 0, 0), "generic", Data(keys::randomkey)),
    command("keys", 2, READ, (0, 0, 0), "generic", Data(scans::keys)),
    command("scan", -2, READ, (0, 0, 0), "generic", Data(scans::scan)),
    command("wait", 3, ASKS, (0, 0, 0), "generic", Plain(server::wait)),
    command("waitaof", 4, ASKS, (0, 0, 0), "generic", Plain(server::waitaof)),
    command("hset", -4, WRITE | JOINS | FAST | MAKES_HASH, (1, 1, 1), "hash", Data(hashes::hset)),
    command("hmset", -4, WRITE | JOINS | FAST | MAKES_HASH, (1, 1, 1), "hash", Data(hashes::hmset)),
    command("hsetnx", 4, WRITE | JOINS | FAST | MAKES_HASH, (1, 1, 1), "hash", Data(hashes::hsetnx)),
    command("hget", 3, READ | FAST, (1, 1, 1), "hash", Data(hashes::hget)),
    command("hmget", -3, READ | FAST, (1, 1, 1), "hash", Data(hashes::hmget)),
    command("hgetall", 2, READ, (1, 1, 1), "hash", Data(hashes::hgetall)),
    command("hdel", -3, WRITE | GIVES | FAST, (1, 1, 1), "hash", Data(hashes::hdel)),
    command("hlen", 2, READ | FAST, (1, 1, 1), "hash", Data(hashes::hlen)),
    command("hstrlen", 3, READ | FAST, (1, 1, 1), "hash", Data(hashes::hstrlen)),
    command("hexists", 3, READ | FAST, (1, 1, 1), "hash", Data(hashes::hexists)),
    command("hkeys", 2, READ, (1, 1, 1), "hash", Data(hashes::hkeys)),
    command("hvals", 2, READ, (1, 1, 1), "hash", Data(hashes::hvals)),
    command("hrandfield", -2, READ, (1, 1, 1), "hash", Data(hashes::hrandfield)),
    command("hincrby", 4, WRITE | JOINS | FAST | MAKES_HASH, (1, 1, 1), "hash", Data(hash_numbers::hincrby)),
    command("hincrbyfloat", 4, WRITE | JOINS | FAST | MAKES_HASH, (1, 1, 1), "hash", Data(hash_numbers::hincrbyfloat)),
    command("hscan", -3, READ, (1, 1, 1), "hash", Data(scans::hscan)),
    command("ping", -1, FAST | BRIEF, (0, 0, 0), "connection", Plain(connection::ping)),
    command("echo", 2, FAST, (0, 0, 0), "connection", Plain(connection::echo)),
    command("quit", -1, FAST | NO_AUTH | NOT_QUEUED, (0, 0, 0), "connection", Plain(connection::quit)),
    command("reset", 1, FAST | NO_AUTH | NOT_QUEUED, (0, 0, 0), "connection", Plain(connection::reset)),
    command("select", 2, FAST | ASKS, (0, 0, 0), "connection", Plain(connection::select)),
    command("auth", -2, FAST | NO_AUTH | NO_MULTI, (0, 0, 0), "connection", Plain(connection::auth)),
    command("hello", -1, FAST | NO_AUTH | NO_MULTI, (0, 0, 0), "connection", Plain(connection::hello)),
    command("client", -2, ADMIN, (0, 0, 0), "connection", Plain(clients::client)),
    command("multi", 1, FAST | NOT_QUEUED, (0, 0, 0), "transactions", Plain(transactions::multi)),
    command("exec", 1, NOT_QUEUED | ASKS, (0, 0, 0), "transactions", Plain(transactions::exec)),
    command("discard", 1, FAST | NOT_QUEUED, (0, 0, 0), "transactions", Plain(transactions::discard)),
    command("watch", -2, FAST | NOT_QUEUED | ASKS, (1, -1, 1), "transactions", Plain(transactions::watch)),
    command("unwatch", 1, FAST, (0, 0, 0), "transactions", Plain(transactions::unwatch)),
    command("cluster", -2, 0, (0, 0, 0), "cluster", Plain(cluster::cluster)),
    command("readonly", 1, FAST, (0, 0, 0), "cluster", Plain(cluster::readonly)),
    command("readwrite", 1, FAST, (0, 0, 0), "cluster", Plain(cluster::readwrite)),
    command("asking", 1, FAST, (0, 0, 0), "cluster", Plain(cluster::asking)),
    command("dbsize", 1, READ | FAST, (0, 0, 0), "server", Data(keys::dbsize)),
    command("flushdb", -1, WRITE | GIVES | SWEEPS, (0, 0, 0), "server", Exclusive(keys::flushdb)),
    command("flushall", -1, WRITE | GIVES | SWEEPS, (0, 0, 0), "server", Exclusive(keys::flushall)),
    command("info", -1, 0, (0, 0, 0), "server", Plain(info::info)),
    command("config", -2, ADMIN, (0, 0, 0), "server", Plain(configuration::config)),
    command("acl", -2, ADMIN | NO_MULTI, (0, 0, 0), "server", Plain(acl::acl)),
    command("latency", -2, ADMIN, (0, 0, 0), "server", Plain(latency::latency)),
    command("slowlog", -2, ADMIN, (0, 0, 0), "server", Plain(slowlog::slowlog)),
    command("monitor", 1, ADMIN, (0, 0, 0), "server", Plain(monitor::monitor)),
    command("command", -1, 0, (0, 0, 0), "server", Plain(server::command)),
    command("time", 1, FAST, (0, 0, 0), "server", Plain(server::time)),
    command("role", 1, FAST, (0, 0, 0), "server", Plain(server::role)),
    command("save", 1, ADMIN | NO_MULTI | ASKS, (0, 0, 0), "server", Plain(server::save)),
    command("bgsave", -1, ADMIN | ASKS, (0, 0, 0), "server", Plain(server::bgsave)),
    command("bgrewriteaof", 1, ADMIN | ASKS, (0, 0, 0), "server", Plain(server::bgrewriteaof)),
    command("esker.backup", 1, ADMIN | NO_MULTI, (0, 0, 0), "server", Plain(server::backup)),
    command("esker.check", -1, ADMIN | NO_MULTI, (0, 0, 0), "server", Plain(server::check)),
    command("esker.reload", 1, ADMIN | NO_MULTI, (0, 0, 0), "server", Plain(acl::reload)),
    command("esker.scrub", -1, ADMIN | NO_MULTI, (0, 0, 0), "server", Plain(server::scrub)),
    command("esker.compact", -1, ADMIN | NO_MULTI, (0, 0, 0), "server", Plain(server::compact)),
    command("esker.grow", 1, ADMIN | NO_MULTI, (0, 0, 0), "server", Plain(server::grow)),
    command("lastsave", 1, FAST, (0, 0, 0), "server", Plain(server::lastsave)),
    command("shutdown", -1, ADMIN | NO_MULTI | ASKS, (0, 0, 0), "server", Plain(server::shutdown)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_in_any_case() {
        let table = Table::get();
        for (index, command) in COMMANDS.iter().enumerate() {
            assert!(command.name.len() <= NAME_BYTES_MAX && command.name == command.name.to_lowercase());
            let found = table.find(command.name.to_uppercase().as_bytes()).map(|(index, _)| index);
            assert_eq!(found, Some(index), "{}", command.name);
        }
        // A guess changes nothing but how long it takes.
        for (index, command) in COMMANDS.iter().enumerate() {
            for guess in [0, index, COMMANDS.len() - 1, COMMANDS.len()] {
                let found = table.find_near(command.name.to_uppercase().as_bytes(), guess).map(|(index, _)| index);
                assert_eq!(found, Some(index), "{} near {guess}", command.name);
            }
            assert!(table.find_near(b"", index).is_none() && table.find_near(b"gett", index).is_none());
        }
        for other in ["", "gett", "a very long name that is none"] {
            assert!(table.find(other.as_bytes()).is_none());
        }
    }

    #[test]
    fn the_book_has_every_command_in_its_group() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/redis.md");
        let page = std::fs::read_to_string(page).unwrap();
        let mut groups: Vec<&str> = COMMANDS.iter().map(|command| command.group).collect();
        groups.dedup();
        for group in groups {
            let names = COMMANDS.iter().filter(|command| command.group == group);
            let names: Vec<String> = names.map(|command| format!("`{}`", command.name.to_uppercase())).collect();
            let row = format!("| {group} | {} |\n", names.join(" "));
            assert!(page.contains(&row), "the page does not have this row: {row}");
        }
    }
}
