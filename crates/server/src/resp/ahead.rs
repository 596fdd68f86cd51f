//! Keys that the commands behind one that waits will read: the store is told of them, so that their values come while
//! it waits.
//!
//! input behind the command → commands in it → their keys, by namespace → [`Kv::will_get`]
//!
//! Invariants:
//! 1. It is a hint: nothing is kept or answered, and each command is run as if the store had not been told.
//! 2. The store is told of no command that the client's user may not run, as far as that is known before those ahead of
//!    it are run.
//! 3. It is told of at most [`COMMANDS_MAX`] commands and [`KEYS_MAX`] keys at once, and of more when half of their
//!    bytes are run.

use esker_kv::Kv;

use crate::resp::commands::{Command, Run, Table};
use crate::resp::keyspace::Database;
use crate::resp::parse::{Limits, Parser, Step};
use crate::resp::session::Session;
use crate::resp::shared::Shared;

/// Commands that the store is told of at once.
const COMMANDS_MAX: usize = 128;
/// Keys of them.
const KEYS_MAX: usize = 128;

/// How far into the input of a connection the store has been told.
#[derive(Default)]
pub(crate) struct Ahead {
    /// Bytes of it, from the first command that is not run.
    told: usize,
    /// Bytes that it was told of at once, the last time.
    last: usize,
}

impl Ahead {
    /// Commands of so many bytes were run.
    pub(crate) fn ran(&mut self, bytes: usize) {
        self.told = self.told.saturating_sub(bytes);
    }

    /// Tells of the commands at the start of `input`, which is what stands behind a command that waits; nothing while
    /// more than half of what was told of last is still to be run.
    pub(crate) fn look(&mut self, input: &[u8], limits: &Limits, session: &Session, shared: &Shared, table: &Table) {
        if self.told > self.last / 2 {
            return;
        }
        let Some(rights) = &session.rights else { return };
        // It runs none of them.
        if shared.is_follower() && shared.config.reading.is_none() {
            return;
        }
        // One that is not open yet would be made.
        let Some(database) = shared.keyspace.database_if_open(session.database) else { return };
        let from = self.told.min(input.len());
        let mut keys = Keys::default();
        let mut parser = Parser::new();
        let mut at = from;
        for _ in 0..COMMANDS_MAX {
            match parser.next(&input[at..], limits) {
                Ok(Step::Command(len)) => {
                    let args = parser.args(&input[at..]);
                    let Some((index, command)) = table.find(args.get(0)) else { break };
                    if leads_elsewhere(command) {
                        break;
                    }
                    if command.accepts(args.len())
                        && reads(command)
                        && rights.check(index, args, command.keys_of(args)).is_ok()
                    {
                        let count = command.keys_of(args).take(KEYS_MAX).count();
                        // What does not fit is told later, with what comes behind it.
                        if !keys.is_empty() && keys.len() + count > KEYS_MAX {
                            break;
                        }
                        command.keys_of(args).take(KEYS_MAX).for_each(|key| keys.add(key));
                    }
                    at += len;
                }
                Ok(Step::Nothing(len)) => at += len,
                Ok(Step::Incomplete) | Err(_) => break,
            }
        }
        (self.told, self.last) = (at, at - from);
        keys.tell(&shared.keyspace.kv, database);
    }
}

/// Whether a command reads what its keys hold.
fn reads(command: &Command) -> bool {
    !overwrites(command) && !matches!(command.run, Run::Plain(_))
}

/// Whether a command overwrites most keys without a look at them.
pub(crate) fn overwrites(command: &Command) -> bool {
    matches!(command.name, "set" | "mset" | "setex" | "psetex")
}

/// Whether what comes behind a command may mean other keys, or nothing.
fn leads_elsewhere(command: &Command) -> bool {
    matches!(command.name, "select" | "auth" | "hello" | "reset" | "quit" | "flushdb" | "flushall" | "shutdown")
}

/// Keys, one behind the other.
#[derive(Default)]
struct Keys {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Keys {
    fn len(&self) -> usize {
        self.ends.len()
    }

    fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    fn add(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len());
    }

    fn tell(&self, kv: &Kv, database: &Database) {
        let mut start = 0;
        let located = self.ends.iter().map(|end| {
            let key = &self.bytes[start..*end];
            start = *end;
            database.locate(key)
        });
        kv.will_get(&located.collect::<Vec<_>>());
    }
}
