//! A reply whose values are on their way: the connection waits for it, and its loop goes on with the others.
//!
//! handler → values that are not in memory → [`Awaited`] in the session → no more commands of it → the loop is woken →
//! reply
//!
//! Invariant: commands of one connection are answered in order, so that one that waits keeps those behind it.

use std::any::Any;
use std::sync::Arc;
use std::task::{Context, Poll};

use esker_kv::{Barrier, Entry};
use esker_store::Completion;

use crate::resp::keyspace::HASH;
use crate::resp::queued::Queued;
use crate::resp::refusal::{Refusal, WRONG_TYPE};
use crate::resp::reply::ReplyWriter;
use crate::resp::shared::Tally;

/// A session that runs a command elsewhere.
pub(crate) trait Elsewhere: Send {
    /// Ready once it is back; the task of `cx` is woken then.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Memory that it holds, in bytes.
    fn bytes(&self) -> usize;

    /// What is back, for who has sent it; `None`: it is lost. Once it is ready.
    fn back(self: Box<Self>) -> Option<Box<dyn Any>>;
}

/// What is waited for, and what is made of it.
pub(crate) enum Awaited {
    /// GET. Who closes a slot waits for it.
    One(Completion<Option<Entry>>, Arc<()>),
    /// MGET.
    Several(Completion<Vec<Option<Entry>>>, Arc<()>),
    /// What a command reads: then it is run again, and finds it in memory.
    Value(Completion<()>, Arc<Queued>),
    /// Whether a password is right: then the command that gave it is run again, since it is known by now.
    Login(Completion<bool>, Arc<Queued>),
    /// Work that says how it went.
    Work(Completion<Result<(), String>>),
    /// The session itself, which runs a command elsewhere.
    Away(Box<dyn Elsewhere>),
}

/// What is to be done with what was waited for.
pub(crate) enum Answered {
    /// It is written, and waits for this.
    Reply(Option<Barrier>),
    /// This command is to be run.
    Again(Arc<Queued>),
    /// It is written: the password was wrong.
    WrongPassword,
    /// The session is back; nothing where it is lost.
    Back(Option<Box<dyn Any>>),
}

/// What a client is told whose password is wrong.
pub(crate) const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

fn count(tally: &mut Tally, hit: bool) {
    if hit { tally.hits += 1 } else { tally.misses += 1 }
}

/// Refuses replies that no client could be sent.
pub(crate) fn check_output(reply: &ReplyWriter<'_>, output_bytes_max: usize) -> Result<(), Refusal> {
    let (len, max) = (reply.position() as u64, output_bytes_max as u64);
    if len > max {
        // An error of the store, so that EXEC ends with it and nothing is committed.
        return Err(esker_store::Error::TooLarge { what: "output", len, limit: "output_bytes_max", max }.into());
    }
    Ok(())
}

/// The reply of GET, unless it has more than `output_bytes_max`.
pub(crate) fn reply_one(
    entry: Option<Entry>,
    reply: &mut ReplyWriter<'_>,
    tally: &mut Tally,
    output_bytes_max: usize,
) -> Result<(), Refusal> {
    match entry {
        Some(entry) if entry.tag == HASH => return Err(WRONG_TYPE.into()),
        Some(entry) => {
            count(tally, true);
            reply.bulk(&entry.value);
            check_output(reply, output_bytes_max)?;
        }
        None => {
            count(tally, false);
            reply.null();
        }
    }
    Ok(())
}

/// The reply of MGET, unless it has more than `output_bytes_max`.
pub(crate) fn reply_several(
    entries: Vec<Option<Entry>>,
    reply: &mut ReplyWriter<'_>,
    tally: &mut Tally,
    output_bytes_max: usize,
) -> Result<(), Refusal> {
    reply.array(entries.len());
    for entry in entries {
        let entry = entry.filter(|entry| entry.tag != HASH);
        count(tally, entry.is_some());
        reply.maybe(entry.as_ref().map(|entry| &entry.value[..]));
        check_output(reply, output_bytes_max)?;
    }
    Ok(())
}

impl Awaited {
    /// Whether the store may be told of the commands behind this one: not while a password is checked, or what the user
    /// may do is away with the session.
    pub(crate) fn lets_look_ahead(&self) -> bool {
        !matches!(self, Self::Login(..) | Self::Away(..))
    }

    /// Memory of the command that is to be run again, in bytes.
    pub(crate) fn queued_bytes(&self) -> usize {
        match self {
            Self::Value(_, queued) | Self::Login(_, queued) => queued.bytes(),
            Self::Away(sent) => sent.bytes(),
            Self::One(..) | Self::Several(..) | Self::Work(_) => 0,
        }
    }

    /// Ready once the values are here; the task of `cx` is woken then.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::One(entry, _) => entry.poll_arrived(cx),
            Self::Several(entries, _) => entries.poll_arrived(cx),
            Self::Value(value, _) => value.poll_arrived(cx),
            Self::Login(right, _) => right.poll_arrived(cx),
            Self::Work(done) => done.poll_arrived(cx),
            Self::Away(sent) => sent.poll(cx),
        }
    }

    /// Writes the reply, once the values are here, unless a command is to be run again.
    pub(crate) fn reply(self, reply: &mut ReplyWriter<'_>, tally: &mut Tally, output_bytes_max: usize) -> Answered {
        let start = reply.position();
        let (replied, barrier) = match self {
            Self::One(entry, _reading) => {
                let (entry, barrier) = entry.into_parts();
                (
                    entry.map_err(Refusal::from).and_then(|entry| reply_one(entry, reply, tally, output_bytes_max)),
                    barrier,
                )
            }
            Self::Several(entries, _reading) => {
                let (entries, barrier) = entries.into_parts();
                let write = |entries| reply_several(entries, reply, tally, output_bytes_max);
                (entries.map_err(Refusal::from).and_then(write), barrier)
            }
            // What is wrong with it the command finds out itself.
            Self::Value(value, queued) => {
                drop(value);
                return Answered::Again(queued);
            }
            Self::Login(right, queued) => match right.into_parts().0 {
                Ok(true) => return Answered::Again(queued),
                Ok(false) => {
                    tally.errors += 1;
                    reply.error(WRONG_PASSWORD.as_bytes());
                    return Answered::WrongPassword;
                }
                Err(error) => (Err(error.into()), None),
            },
            Self::Away(sent) => return Answered::Back(sent.back()),
            Self::Work(done) => match done.into_parts().0 {
                Ok(Ok(())) => {
                    reply.ok();
                    (Ok(()), None)
                }
                Ok(Err(why)) => (Err(why.into()), None),
                Err(error) => (Err(error.into()), None),
            },
        };
        if let Err(refusal) = replied {
            tally.errors += 1;
            reply.rewind(start);
            reply.error(refusal.line().as_bytes());
        }
        Answered::Reply(barrier)
    }
}
