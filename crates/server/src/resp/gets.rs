//! GETs that follow one another are answered by one look.
//!
//! first GET, and the input behind it → GETs behind it → one look for all their values → a reply each
//!
//! All of them had arrived when the look began, and no command stands between them: each shows a moment between its
//! arrival and its reply, and none an earlier one than those before it.
//!
//! Invariants:
//! 1. Where a value is not in memory, or the look fails, nothing was done: each is run alone. So is each where the look
//!    was slow, so that the slow log names the one that is.
//! 2. No reply is written once output has to wait for its client: what was looked at for later ones is looked at again.
//! 3. What is counted is what was replied.

use esker_kv::Barrier;
use smallvec::{SmallVec, smallvec};

use crate::resp::awaited::reply_one;
use crate::resp::commands::Executor;
use crate::resp::foreseen::{Foresight, Wanted};
use crate::resp::observer::Runs;
use crate::resp::parse::Limits;
use crate::resp::refusal::Refusal;
use crate::resp::reply::ReplyWriter;
use crate::resp::session::Session;
use crate::resp::slowlog::KeptArgs;

/// Replies that were written: how many bytes of input they answer, how many they are, and what they wait for.
pub(crate) struct Replied {
    pub(crate) used: usize,
    pub(crate) replies: u64,
    pub(crate) barrier: Option<Barrier>,
}

/// Answers the GET of `first` at the start of `input`, which is the command at `index`, and those behind it, until
/// `out` has more than `out_max` bytes. `None`: they are to be run alone.
pub(crate) fn answer(
    executor: &mut Executor<'_>,
    session: &mut Session,
    (index, wanted, first): (usize, Wanted<'_>, &[u8]),
    (foresight, input, limits): (&mut Foresight, &[u8], &Limits),
    (out, out_max): (&mut Vec<u8>, usize),
) -> Option<Replied> {
    let gets = foresight.gets(wanted, first, (input, limits));
    if gets.len() < 2 {
        return None;
    }
    let began = executor.observer.begin(session, None);
    let keys: SmallVec<[_; 16]> = gets.iter().map(|(key, _)| *key).collect();
    let found = wanted.database.bytes().entries(&keys);
    if !found.is_here() {
        foresight.was_in_vain();
        executor.observer.has_not_begun(began);
        return None;
    }
    let (found, barrier) = found.into_parts();
    let found = match found {
        Ok(_) if executor.observer.is_slow(began.elapsed()) => Err(foresight.was_in_vain()),
        Ok(found) => Ok(found),
        Err(_) => Err(foresight.was_too_much(gets.len())),
    };
    let Ok(found) = found else {
        executor.observer.has_not_begun(began);
        return None;
    };
    let bytes: usize = found.iter().flatten().map(|entry| entry.value.len()).sum();
    if bytes > wanted.found_bytes_max {
        foresight.was_too_much(gets.len());
    } else {
        foresight.found(gets.len());
    }
    let (mut used, mut replies, mut failed) = (0, 0, 0);
    for (entry, (_, end)) in found.into_iter().zip(gets) {
        let (start, tally) = (out.len(), executor.tally);
        let mut reply = ReplyWriter::new(out, session.resp3);
        match reply_one(entry, &mut reply, &mut executor.tally, executor.shared.config.output_bytes_max) {
            Ok(()) => {}
            Err(Refusal::Text(line)) => {
                executor.tally.errors += 1;
                failed += 1;
                reply.rewind(start);
                reply.error(line.as_bytes());
            }
            Err(Refusal::Store(_) | Refusal::OnItsWay) => {
                // Too much output, which it is told alone.
                out.truncate(start);
                executor.tally = tally;
                break;
            }
        }
        (used, replies) = (end, replies + 1);
        if out.len() > out_max {
            break;
        }
    }
    if replies == 0 {
        executor.observer.has_not_begun(began);
        return None;
    }
    executor.tally.commands += replies;
    session.client.last_command.store(index, std::sync::atomic::Ordering::Relaxed);
    let runs: SmallVec<[Runs; 1]> = smallvec![Runs { command: index, calls: replies, failed }];
    executor.observer.ran_jointly(session, began, &runs, KeptArgs::of_name);
    Some(Replied { used, replies, barrier })
}
