//! Replies on their way to the client: one thread at a time sends, and takes along what the others have ready.
//!
//! ```text
//! replies → no thread sends → it does, until none is left
//!         → one does        → it takes these along; the caller goes on
//! the thread that leads → sends what the socket takes at once; the rest without the lead ([`Sending::finish`])
//! ```
//!
//! Invariants:
//! 1. Replies that are ready are sent by the thread that is sending, or by one that has been told to finish.
//! 2. With the lead little is sent ([`LEADING_BYTES_MAX`]), and the socket is not waited for but where replies are
//!    encrypted: a client may send much before it reads.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::nbd::reply::Replies;
use crate::nbd::stream::Output;

/// Replies that wait for a thread that is sending: above this others wait for it, in bytes.
const READY_BYTES_MAX: usize = 1 << 20;
/// Replies of so few bytes wait for none: requests under way bound them, and a thread that waited could not receive.
const SMALL_BYTES: usize = 4 << 10;
/// More than this is sent without the lead.
const LEADING_BYTES_MAX: usize = 256 << 10;

/// Replies that the thread which is sending takes along.
#[derive(Default)]
struct Ready {
    replies: Vec<Replies>,
    bytes: usize,
    /// Whether a thread is sending, or is to finish.
    sending: bool,
    /// What is to be finished: replies, and how many bytes of them have gone.
    begun: Option<(Vec<Replies>, usize)>,
}

/// Told of each batch: bytes that its requests had reserved, and how sending went.
pub(super) type Done<'d> = dyn Fn(usize, io::Result<()>) + 'd;

/// See the module.
pub(super) struct Sending<'t> {
    output: &'t Output,
    ready: Mutex<Ready>,
    /// Less is ready.
    sent: Condvar,
}

impl<'t> Sending<'t> {
    pub(super) fn new(output: &'t Output) -> Self {
        Self { output, ready: Mutex::default(), sent: Condvar::new() }
    }

    /// Sends replies, or leaves them to the thread that is sending.
    pub(super) fn send(&self, replies: &mut Replies, closing: &AtomicBool, done: &Done<'_>) {
        let mut ready = self.ready.lock();
        while ready.sending && !has_room(&ready, replies) && !closing.load(Ordering::SeqCst) {
            self.sent.wait(&mut ready);
        }
        put(&mut ready, replies);
        if !std::mem::replace(&mut ready.sending, true) {
            self.send_all(ready, replies, done);
        }
    }

    /// The same with the lead, as far as nothing has to be waited for. Whether that is done; if not, the caller gives
    /// the lead away, sends what is left in `replies`, and finishes.
    pub(super) fn send_now(&self, replies: &mut Replies, done: &Done<'_>) -> bool {
        let mut ready = self.ready.lock();
        if ready.sending {
            let has_room = has_room(&ready, replies);
            if has_room && !replies.is_empty() {
                put(&mut ready, replies);
            }
            return has_room;
        }
        if !replies.is_empty() {
            put(&mut ready, replies);
        }
        while !ready.replies.is_empty() {
            if ready.bytes > LEADING_BYTES_MAX {
                return false;
            }
            let batch = self.take(&mut ready);
            ready.sending = true;
            drop(ready);
            let sent = self.output.send_now(batch.iter().flat_map(Replies::parts));
            if let Ok(Some(bytes)) = sent {
                self.ready.lock().begun = Some((batch, bytes));
                return false;
            }
            end(batch, sent.map(|_| ()), replies, done);
            ready = self.ready.lock();
            ready.sending = false;
        }
        true
    }

    /// Sends what [`Sending::send_now`] has left.
    pub(super) fn finish(&self, spare: &mut Replies, done: &Done<'_>) {
        let mut ready = self.ready.lock();
        if let Some((batch, mut gone)) = ready.begun.take() {
            drop(ready);
            let parts = batch.iter().flat_map(Replies::parts).map(|part| {
                let (_, rest) = part.split_at(gone.min(part.len()));
                gone -= part.len() - rest.len();
                rest
            });
            let outcome = self.output.send(parts);
            end(batch, outcome, spare, done);
            return self.send_all(self.ready.lock(), spare, done);
        }
        if !ready.replies.is_empty() && !std::mem::replace(&mut ready.sending, true) {
            self.send_all(ready, spare, done);
        }
    }

    /// The connection is lost: who waits looks again.
    pub(super) fn wake(&self) {
        // A thread that looked before waits by now.
        drop(self.ready.lock());
        self.sent.notify_all();
    }

    /// Sends what is ready, with what comes meanwhile.
    fn send_all<'r>(&'r self, mut ready: MutexGuard<'r, Ready>, spare: &mut Replies, done: &Done<'_>) {
        while !ready.replies.is_empty() {
            let batch = self.take(&mut ready);
            drop(ready);
            let outcome = self.output.send(batch.iter().flat_map(Replies::parts));
            end(batch, outcome, spare, done);
            ready = self.ready.lock();
        }
        ready.sending = false;
    }

    fn take(&self, ready: &mut Ready) -> Vec<Replies> {
        ready.bytes = 0;
        self.sent.notify_all();
        std::mem::take(&mut ready.replies)
    }
}

fn has_room(ready: &Ready, replies: &Replies) -> bool {
    ready.bytes < READY_BYTES_MAX || replies.len() <= SMALL_BYTES
}

fn put(ready: &mut Ready, replies: &mut Replies) {
    ready.bytes += replies.len();
    ready.replies.push(std::mem::take(replies));
}

/// A batch has gone; the memory of a single one is used again.
fn end(mut batch: Vec<Replies>, outcome: io::Result<()>, spare: &mut Replies, done: &Done<'_>) {
    done(batch.iter().map(|replies| replies.held).sum(), outcome);
    if let [only] = &mut batch[..]
        && spare.is_empty()
    {
        only.clear();
        *spare = std::mem::take(only);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::nbd::stream::Socket;

    /// Magic, error, cookie.
    const REPLY_BYTES: usize = 16;

    /// So many replies, which had reserved a byte each.
    fn replies(count: usize) -> Replies {
        let mut replies = Replies::default();
        (0..count).for_each(|cookie| replies.done(cookie as u64));
        replies.held = count;
        replies
    }

    /// What the socket does not take is sent without the lead, with what has come meanwhile, once and in order.
    #[test]
    fn what_is_left_is_finished() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let output = Output::new(Arc::new(Socket::Unix(ours)));
        let (sending, released, closing) = (Sending::new(&output), AtomicUsize::new(0), AtomicBool::new(false));
        let done = |held: usize, outcome: io::Result<()>| {
            outcome.unwrap();
            released.fetch_add(held, Ordering::SeqCst);
        };
        assert!(sending.send_now(&mut Replies::default(), &done));
        assert!(sending.send_now(&mut replies(7), &done));
        assert_eq!(released.load(Ordering::SeqCst), 7);
        // Until the socket takes no more.
        const MANY: usize = 10_000;
        let times = (1..100).find(|_| !sending.send_now(&mut replies(MANY), &done)).unwrap();
        let gone = 7 + (times - 1) * MANY;
        // Of another thread, and once more with the lead: left to the one that is to finish.
        let mut more = replies(3);
        sending.send(&mut more, &closing, &done);
        assert!(more.is_empty() && sending.send_now(&mut replies(5), &done));
        assert_eq!(released.load(Ordering::SeqCst), gone);
        let all = gone + MANY + 3 + 5;
        let reader = std::thread::spawn(move || {
            let mut found = vec![0; all * REPLY_BYTES];
            theirs.read_exact(&mut found).unwrap();
            (found, theirs)
        });
        sending.finish(&mut Replies::default(), &done);
        let (found, mut theirs) = reader.join().unwrap();
        let cookies = found.chunks(REPLY_BYTES).map(|reply| u64::from_be_bytes(*reply.last_chunk().unwrap()));
        let batches = (0..times).flat_map(|_| 0..MANY as u64);
        assert!(cookies.eq((0..7).chain(batches).chain(0..3).chain(0..5)));
        assert_eq!(released.load(Ordering::SeqCst), all);
        // And none is sending: the next are sent at once.
        assert!(sending.send_now(&mut replies(2), &done));
        sending.finish(&mut Replies::default(), &done);
        assert_eq!(released.load(Ordering::SeqCst), all + 2);
        // Much is not sent with the lead at all.
        assert!(!sending.send_now(&mut replies(3 * MANY), &done));
        assert_eq!(released.load(Ordering::SeqCst), all + 2);
        let reader = std::thread::spawn(move || {
            let mut found = vec![0; (2 + 3 * MANY) * REPLY_BYTES];
            theirs.read_exact(&mut found).unwrap();
        });
        sending.finish(&mut Replies::default(), &done);
        reader.join().unwrap();
        assert_eq!(released.load(Ordering::SeqCst), all + 2 + 3 * MANY);
    }

    #[test]
    fn a_lost_connection_is_told_and_lets_all_go_on() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let output = Output::new(Arc::new(Socket::Unix(ours)));
        let (sending, failed) = (Sending::new(&output), AtomicUsize::new(0));
        let done = |_: usize, outcome: io::Result<()>| {
            failed.fetch_add(usize::from(outcome.is_err()), Ordering::SeqCst);
        };
        assert!(sending.send_now(&mut replies(2), &done));
        sending.send(&mut replies(2), &AtomicBool::new(false), &done);
        assert_eq!(failed.load(Ordering::SeqCst), 2);
    }
}
