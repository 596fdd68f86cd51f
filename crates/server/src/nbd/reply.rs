//! Replies on their way: headers encoded one after the other, payloads beside them as they are.
//!
//! outcome of a request → [`Replies`] → parts in order → [`Output::send`](crate::nbd::stream::Output::send)
//!
//! Invariant: payload is never copied into a reply; zeros that must be sent come from one static block.

use bytes::Bytes;

use crate::nbd::export::{Extent, Fault, Piece};
use crate::nbd::wire::{self, Request, flag, state};

/// Zeros to send where a client cannot be told of a hole.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Extents that one BLOCK_STATUS tells, at most.
pub(crate) const EXTENTS_MAX: usize = 4_096;

enum Part {
    /// The bytes of `heads` up to here.
    Heads(usize),
    Data(Bytes),
    Zeros(usize),
}

/// Replies that are sent together.
#[derive(Default)]
pub(crate) struct Replies {
    heads: Vec<u8>,
    parts: Vec<Part>,
    data_bytes: usize,
    /// Bytes of memory that their requests reserved: free when the replies are sent.
    pub(crate) held: usize,
}

impl Replies {
    pub(crate) fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Bytes of heads and payload.
    pub(crate) fn len(&self) -> usize {
        self.heads.len() + self.data_bytes
    }

    pub(crate) fn clear(&mut self) {
        self.heads.clear();
        self.parts.clear();
        self.data_bytes = 0;
        self.held = 0;
    }

    /// The parts to send, in order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let mut from = 0;
        let last = std::iter::once(&Part::Heads(usize::MAX));
        self.parts.iter().chain(last).flat_map(move |part| {
            let (one, zeros) = match part {
                Part::Heads(until) => {
                    let until = (*until).min(self.heads.len());
                    let head = &self.heads[from..until];
                    from = until;
                    (head, 0)
                }
                Part::Data(data) => (&data[..], 0),
                Part::Zeros(len) => (&ZEROS[..len % ZEROS.len()], len / ZEROS.len()),
            };
            std::iter::once(one).chain(std::iter::repeat_n(&ZEROS[..], zeros))
        })
    }

    fn data(&mut self, part: Part) {
        self.data_bytes += match &part {
            Part::Data(data) => data.len(),
            Part::Zeros(len) => *len,
            Part::Heads(_) => 0,
        };
        self.parts.push(Part::Heads(self.heads.len()));
        self.parts.push(part);
    }

    fn piece(&mut self, piece: Piece) {
        self.data(match piece {
            Piece::Data(data) => Part::Data(data),
            Piece::Hole(len) => Part::Zeros(len as usize),
        });
    }

    /// A request without payload in its reply succeeded.
    pub(crate) fn done(&mut self, cookie: u64) {
        wire::simple_reply(&mut self.heads, cookie, 0);
    }

    /// A request failed.
    pub(crate) fn failed(&mut self, cookie: u64, structured: bool, fault: &Fault) {
        if structured {
            wire::error_chunk(&mut self.heads, cookie, fault.code(), &fault.to_string());
        } else {
            wire::simple_reply(&mut self.heads, cookie, fault.code());
        }
    }

    /// What was read: `pieces` that are together `request.len` long.
    pub(crate) fn read(&mut self, request: &Request, structured: bool, pieces: Vec<Piece>) {
        let cookie = request.cookie;
        if !structured {
            wire::simple_reply(&mut self.heads, cookie, 0);
            pieces.into_iter().for_each(|piece| self.piece(piece));
            return;
        }
        if request.len == 0 {
            return wire::none_chunk(&mut self.heads, cookie);
        }
        let all_hole = matches!(pieces[..], [Piece::Hole(_)]);
        if request.flags & flag::DF != 0 && !all_hole {
            wire::data_chunk(&mut self.heads, cookie, true, request.offset, request.len);
            pieces.into_iter().for_each(|piece| self.piece(piece));
            return;
        }
        let mut at = request.offset;
        let mut pieces = pieces.into_iter().peekable();
        while let Some(piece) = pieces.next() {
            match piece {
                Piece::Hole(mut len) => {
                    while let Some(Piece::Hole(more)) = pieces.next_if(|next| matches!(next, Piece::Hole(_))) {
                        len += more;
                    }
                    wire::hole_chunk(&mut self.heads, cookie, pieces.peek().is_none(), at, len as u32);
                    at += len;
                }
                Piece::Data(data) => {
                    let mut run = vec![data];
                    while let Some(Piece::Data(more)) = pieces.next_if(|next| matches!(next, Piece::Data(_))) {
                        run.push(more);
                    }
                    let len: usize = run.iter().map(Bytes::len).sum();
                    wire::data_chunk(&mut self.heads, cookie, pieces.peek().is_none(), at, len as u32);
                    run.into_iter().for_each(|data| self.data(Part::Data(data)));
                    at += len as u64;
                }
            }
        }
    }

    /// What a range is made of.
    pub(crate) fn extents(&mut self, request: &Request, extents: &[Extent]) {
        let told: Vec<(u32, u32)> = extents
            .iter()
            .take(EXTENTS_MAX)
            .map(|extent| {
                let hole = if extent.hole { state::HOLE } else { 0 };
                let zero = if extent.zero { state::ZERO } else { 0 };
                (u32::try_from(extent.len).unwrap_or(u32::MAX), hole | zero)
            })
            .collect();
        wire::status_chunk(&mut self.heads, request.cookie, &told);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(replies: &Replies) -> Vec<u8> {
        replies.parts().flatten().copied().collect()
    }

    fn request(flags: u16, len: u32) -> Request {
        Request { flags, command: 0, cookie: 7, offset: 1_000, len }
    }

    fn pieces() -> Vec<Piece> {
        let data = |text: &'static str| Piece::Data(Bytes::from_static(text.as_bytes()));
        vec![Piece::Hole(65_536 * 2 + 3), data("ab"), data("cd"), Piece::Hole(4), Piece::Hole(5)]
    }

    #[test]
    fn holes_are_told_where_the_client_understands_them_and_sent_as_zeros_where_not() {
        let len = 65_536 * 2 + 3 + 4 + 9;
        let flat = [vec![0; 65_536 * 2 + 3], b"abcd".to_vec(), vec![0; 9]].concat();

        let mut simple = Replies::default();
        simple.done(3);
        simple.read(&request(0, len), false, pieces());
        simple.done(4);
        let all = bytes(&simple);
        assert_eq!(all.len(), simple.len());
        assert_eq!(all[32..32 + flat.len()], flat);
        assert_eq!(all.len(), 3 * 16 + flat.len());

        let mut chunks = Replies::default();
        chunks.read(&request(0, len), true, pieces());
        let all = bytes(&chunks);
        assert_eq!(all.len(), 32 + (28 + 4) + 32);
        let kinds: Vec<_> = [0, 32, 64].map(|at| (all[at + 5], all[at + 7])).into();
        assert_eq!(kinds, [(0, 2), (0, 1), (1, 2)], "hole, data, hole, and only the last is done");

        let mut whole = Replies::default();
        whole.read(&request(flag::DF, len), true, pieces());
        assert_eq!(bytes(&whole)[28..], flat);
        let mut none = Replies::default();
        none.read(&request(0, 0), true, Vec::new());
        assert_eq!(bytes(&none).len(), 20);
    }
}
