//! Replies on their way out: bytes, and which of them have to wait for durability.
//!
//! Invariants:
//! 1. Bytes behind a gate whose barrier is not reached are not sent, and nothing overtakes them.
//! 2. If a barrier fails, each reply behind its gate becomes the error; none of them was true.

use std::collections::VecDeque;

use esker_kv::Barrier;

use crate::resp::refusal::store_error_line;
use crate::resp::reply::ReplyWriter;
use crate::trace::{self, Traced};

/// Sent bytes are dropped from the front once there are so many.
const COMPACT_BYTES: usize = 256 << 10;
/// Spans that wait with their replies, at most: those of others end when their replies are there, and say so.
const TRACED_MAX: usize = 256;
/// Memory kept by an empty buffer.
const KEEP_BYTES: usize = 16 << 10;

struct Gate {
    /// The first byte that waits.
    from: usize,
    barrier: Barrier,
    /// Replies behind it, up to the next gate.
    replies: usize,
}

/// What is to be sent to one client.
#[derive(Default)]
pub(super) struct Output {
    pub(crate) bytes: Vec<u8>,
    sent: usize,
    gates: VecDeque<Gate>,
    /// Spans of replies that wait, with what each waits for.
    traced: VecDeque<(Barrier, Traced)>,
}

/// Replies of one batch that wait.
#[derive(Default)]
pub(crate) struct Batch {
    /// Where the first of them begins, how many there are from there, and what for.
    waiting: Option<(usize, Barrier)>,
    replies: usize,
}

impl Batch {
    /// Counts a reply that began at `from` and waits for `barrier`.
    pub(crate) fn add(&mut self, from: usize, barrier: Option<Barrier>) {
        match (&mut self.waiting, barrier) {
            (Some((_, latest)), Some(barrier)) => {
                if barrier.position() > latest.position() {
                    *latest = barrier;
                }
            }
            (None, Some(barrier)) => {
                self.waiting = Some((from, barrier));
                self.replies = 0;
            }
            (_, None) => {}
        }
        self.replies += 1;
    }
}

impl Output {
    /// Bytes not sent yet.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Whether all is sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Closes a batch; its replies are in `bytes`.
    pub(crate) fn end_batch(&mut self, batch: Batch) {
        match batch.waiting {
            Some((from, barrier)) => self.gates.push_back(Gate { from, barrier, replies: batch.replies }),
            None => {
                if let Some(last) = self.gates.back_mut() {
                    last.replies += batch.replies;
                }
            }
        }
    }

    /// The reply that began at `from` ends this span, once it may be sent.
    #[cold]
    pub(crate) fn trace(&mut self, traced: Traced, from: usize, barrier: Option<&Barrier>) {
        if let Some(kind) = self.bytes.get(from..).and_then(trace::error_of) {
            traced.failed(kind);
        }
        match barrier {
            Some(barrier) if self.traced.len() < TRACED_MAX => self.traced.push_back((barrier.clone(), traced)),
            Some(_) => traced.goes_on(),
            None => {}
        }
    }

    /// The barrier that is waited for first.
    pub(crate) fn first_barrier(&self) -> Option<&Barrier> {
        self.gates.front().map(|gate| &gate.barrier)
    }

    /// The barrier that is waited for last.
    pub(crate) fn last_barrier(&self) -> Option<&Barrier> {
        self.gates.back().map(|gate| &gate.barrier)
    }

    /// Opens gates whose barriers are reached.
    pub(crate) fn release(&mut self) {
        if !self.traced.is_empty() {
            self.end_spans();
        }
        while let Some(gate) = self.gates.front() {
            match gate.barrier.state() {
                None => return,
                Some(Ok(())) => {
                    self.gates.pop_front();
                }
                Some(Err(error)) => {
                    tracing::error!(%error, "replies could not be made durable");
                    let (from, line) = (gate.from, store_error_line(&error));
                    let replies = self.gates.iter().map(|gate| gate.replies).sum::<usize>();
                    self.gates.clear();
                    self.bytes.truncate(from);
                    for _ in 0..replies {
                        ReplyWriter::new(&mut self.bytes, false).error(line.as_bytes());
                    }
                }
            }
        }
    }

    /// Ends the spans of replies whose barriers are reached.
    fn end_spans(&mut self) {
        // Barriers are reached in order.
        while let Some(reached) = self.traced.front().and_then(|(barrier, _)| barrier.state()) {
            let Some((_, traced)) = self.traced.pop_front() else { return };
            if let Err(error) = reached {
                let line = format!("-{}", store_error_line(&error));
                traced.failed(trace::error_of(line.as_bytes()).unwrap_or("ERR"));
            }
        }
    }

    /// What may be sent now.
    pub(crate) fn sendable(&self) -> &[u8] {
        let end = self.gates.front().map_or(self.bytes.len(), |gate| gate.from);
        self.bytes.get(self.sent..end).unwrap_or_default()
    }

    /// Counts bytes as sent.
    pub(crate) fn sent(&mut self, len: usize) {
        self.sent += len;
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(KEEP_BYTES);
            self.sent = 0;
        } else if self.sent > COMPACT_BYTES && self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            for gate in &mut self.gates {
                gate.from -= self.sent;
            }
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_store::DurableMark;

    fn push(output: &mut Output, replies: &[(&str, Option<&Barrier>)]) {
        let mut batch = Batch::default();
        for (text, barrier) in replies {
            let from = output.bytes.len();
            output.bytes.extend_from_slice(text.as_bytes());
            batch.add(from, barrier.cloned());
        }
        output.end_batch(batch);
    }

    #[test]
    fn replies_wait_for_their_barrier_in_order() {
        let mark = DurableMark::new(0, Box::new(|| {}));
        let (one, two) = (Barrier::new(&mark, 1), Barrier::new(&mark, 2));
        let mut output = Output::default();
        push(&mut output, &[("a", None), ("b", Some(&one)), ("c", None)]);
        push(&mut output, &[("d", None), ("e", Some(&two))]);
        output.release();
        assert_eq!(output.sendable(), b"a");
        output.sent(1);
        mark.advance(1);
        output.release();
        assert_eq!(output.sendable(), b"bcd");
        output.sent(3);
        assert_eq!(output.sendable(), b"");
        mark.advance(2);
        output.release();
        assert_eq!(output.sendable(), b"e");
        output.sent(1);
        assert!(output.is_empty());
    }

    #[test]
    fn replies_behind_a_failed_barrier_become_errors() {
        let mark = DurableMark::new(0, Box::new(|| {}));
        let one = Barrier::new(&mark, 1);
        let mut output = Output::default();
        push(&mut output, &[("+A\r\n", None), ("+B\r\n", Some(&one)), ("+C\r\n", None)]);
        push(&mut output, &[("+D\r\n", None)]);
        mark.fail(esker_store::Error::Stopped { cause: "disk gone".into() });
        output.release();
        let sent = String::from_utf8(output.sendable().to_vec()).unwrap();
        let lines: Vec<&str> = sent.lines().collect();
        assert_eq!(lines[0], "+A");
        assert_eq!(lines.len(), 4, "{sent}");
        assert!(lines[1..].iter().all(|line| line.starts_with("-MISCONF") && line.contains("disk gone")), "{sent}");
    }
}
