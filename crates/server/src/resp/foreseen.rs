//! Keys of commands that are likely to join, read in one look.
//!
//! ```text
//! first command that joins, and the input behind it → commands of its name → stripes of their keys, as far as they
//!         are free → one look for all keys → of hashes that were found: one look for the first field of each
//! ```
//!
//! A look at sixteen keys takes its locks and its memory once, and sixteen looks take them each.
//!
//! Invariants:
//! 1. Nothing is waited for and no reply changes: what is not read here is read by its command.
//! 2. A key is read once its stripe is held, and after it was said that it may become a hash, as by its command.
//! 3. What is found is not kept where it is too much to go together. Then fewer commands are looked at the next time,
//!    and none for a while where it is not in memory: nothing is read again and again for one command each.

use esker_kv::{Key, ReadAhead, Txn};
use smallvec::SmallVec;

use crate::resp::ahead::overwrites;
use crate::resp::commands::{Command, MAKES_HASH};
use crate::resp::keyspace::{Database, HASH, Head, Keyspace};
use crate::resp::parse::{Limits, Parser, Step};

/// Fewer commands are looked at by a factor, and more by another.
const FEWER: usize = 4;
const MORE: usize = 2;

/// Commands that are run without a look after one found what is not in memory: twice as many each time, up to the
/// second: their values are on their way by their own reads.
const PAUSE_MIN: usize = 64;
const PAUSE_MAX: usize = 4_096;
/// So many found since a look that failed say that what is asked for is small, or in memory, again.
const MANY: usize = 16;
/// Commands that are looked at together: at least, and at most.
const COMMANDS_MIN: usize = 2;
const COMMANDS_MAX: usize = 64;

/// A command of one key.
#[derive(Clone, Copy)]
struct Foreseen<'b> {
    key: &'b [u8],
    /// The field that it names first, if it is one of hashes.
    field: &'b [u8],
    /// Where it ends in the input.
    end: usize,
}

/// What one connection looks ahead.
pub(crate) struct Foresight {
    parser: Parser,
    /// Commands that are looked at together, with the first.
    commands: usize,
    /// Commands that are still to be run without a look.
    passes: usize,
    /// How many after the next look that is in vain.
    pause: usize,
    /// Commands that were looked at since the last look that failed.
    found: usize,
}

/// What commands are looked at for.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'e> {
    pub(crate) keyspace: &'e Keyspace,
    pub(crate) database: &'e Database,
    pub(crate) command: &'static Command,
    /// Most commands that may go together, bytes of one, and bytes that they may find.
    pub(crate) commands_max: usize,
    pub(crate) command_bytes_max: usize,
    pub(crate) found_bytes_max: usize,
}

impl Default for Foresight {
    fn default() -> Self {
        Self { parser: Parser::new(), commands: COMMANDS_MIN, passes: 0, pause: PAUSE_MIN, found: MANY }
    }
}

impl Foresight {
    /// Reads into a transaction, which holds the stripes of the command at the start of `input`, what that one and
    /// those behind it will ask for. How many they are; 0: nothing was read.
    pub(crate) fn read(&mut self, txn: &mut Txn<'_>, wanted: Wanted<'_>, input: &[u8], limits: &Limits) -> usize {
        if wanted.command.keys != (1, 1, 1) || overwrites(wanted.command) {
            return 0;
        }
        let makes_hash = wanted.command.flags & MAKES_HASH != 0;
        let may_read = |key: &[u8]| {
            (!makes_hash || wanted.keyspace.expect_hash_now(key)) && txn.try_hold(&[wanted.database.locate(key)])
        };
        let foreseen = self.commands_in(wanted, (input, limits), may_read);
        if foreseen.len() < COMMANDS_MIN {
            return 0;
        }
        match look(txn, wanted, &foreseen) {
            ReadAhead::Known => self.found(foreseen.len()),
            ReadAhead::NotHere => self.was_in_vain(),
            ReadAhead::Nothing if foreseen.len() == COMMANDS_MIN => self.was_in_vain(),
            ReadAhead::Nothing => self.was_too_much(foreseen.len()),
        }
    }

    /// The keys of the GET of `first` at the start of `input` and of those behind it, with where each ends there.
    pub(crate) fn gets<'b>(
        &mut self,
        wanted: Wanted<'_>,
        first: &[u8],
        (input, limits): (&'b [u8], &Limits),
    ) -> SmallVec<[(Key<'b>, usize); 16]> {
        // All of them are to be in one object, which shows one moment.
        let whole = wanted.database.bytes();
        let is_there = |key: &[u8]| std::ptr::eq(wanted.database.locate(key).0, whole);
        if !is_there(first) {
            return SmallVec::new();
        }
        let gets = self.commands_in(wanted, (input, limits), is_there);
        gets.iter().map(|get| (Key::Bytes(get.key), get.end)).collect()
    }

    /// What so many commands read was found. How many they are.
    pub(crate) fn found(&mut self, commands: usize) -> usize {
        self.found += commands;
        if self.found >= MANY {
            self.pause = PAUSE_MIN;
            // Where fewer had arrived, more would not be there either.
            if commands >= self.commands {
                self.commands = (commands * MORE).min(COMMANDS_MAX);
            }
        }
        commands
    }

    /// What so many commands read is too much at once, or the store refuses it at once. 0: nothing is known of it.
    pub(crate) fn was_too_much(&mut self, commands: usize) -> usize {
        self.commands = (commands / FEWER).max(COMMANDS_MIN);
        self.found = 0;
        0
    }

    /// Not all of it was in memory. 0: nothing is known of it.
    pub(crate) fn was_in_vain(&mut self) -> usize {
        self.commands = COMMANDS_MIN;
        self.found = 0;
        self.passes = self.pause;
        self.pause = (self.pause * MORE).min(PAUSE_MAX);
        0
    }

    /// The commands at the start of `input` that have the first one's name, as far as their keys may be read, and as
    /// many as are looked at together now.
    fn commands_in<'b>(
        &mut self,
        wanted: Wanted<'_>,
        (input, limits): (&'b [u8], &Limits),
        mut may_read: impl FnMut(&[u8]) -> bool,
    ) -> SmallVec<[Foreseen<'b>; 16]> {
        let mut all = SmallVec::new();
        if self.passes > 0 {
            self.passes -= 1;
            return all;
        }
        let (command, mut at) = (wanted.command, 0);
        while all.len() < self.commands.min(wanted.commands_max) && at < input.len() {
            let rest = &input[at..];
            let Ok(Step::Command(len)) = self.parser.next(rest, limits) else {
                // It may be in the midst of one.
                self.parser = Parser::new();
                break;
            };
            let args = self.parser.args(rest);
            let is_alike = args.get(0).eq_ignore_ascii_case(command.name.as_bytes()) && command.accepts(args.len());
            let (Some(key), true) = (self.parser.arg_in(rest, 1), is_alike && len <= wanted.command_bytes_max) else {
                // What a large one took is not kept.
                self.parser = Parser::new();
                break;
            };
            if !may_read(key) {
                break;
            }
            at += len;
            all.push(Foreseen { key, field: self.parser.arg_in(rest, 2).unwrap_or_default(), end: at });
        }
        all
    }
}

/// Reads what these commands ask for.
fn look(txn: &mut Txn<'_>, wanted: Wanted<'_>, foreseen: &[Foreseen<'_>]) -> ReadAhead {
    let (database, bytes_max) = (wanted.database, wanted.found_bytes_max);
    let located = || foreseen.iter().map(|one| database.locate(one.key));
    for namespace in database.namespaces() {
        let here = located().filter(|(of, _)| std::ptr::eq(*of, namespace));
        let keys: SmallVec<[Key<'_>; 16]> = here.map(|(_, key)| key).collect();
        if keys.is_empty() {
            continue;
        }
        match txn.read_ahead(namespace, &keys, true, bytes_max) {
            ReadAhead::Known => {}
            other => return other,
        }
    }
    if wanted.command.group != "hash" {
        return ReadAhead::Known;
    }
    let mut fields = SmallVec::<[_; 16]>::new();
    for (one, (namespace, key)) in foreseen.iter().zip(located()) {
        let head = txn.look(namespace, key, |seen| (seen.tag == HASH).then(|| Head::decode(seen.value).ok())?);
        if let Ok(Some(Some(head))) = head {
            fields.push(head.field_key(one.field));
        }
    }
    let fields: SmallVec<[Key<'_>; 16]> = fields.iter().map(|field| Key::Bytes(field)).collect();
    // Others overwrite fields, whatever they hold.
    let values = !matches!(wanted.command.name, "hset" | "hmset" | "hsetnx");
    txn.read_ahead(&database.fields, &fields, values, bytes_max)
}
