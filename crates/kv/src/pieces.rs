//! Keys and encoded entries that a transaction has of a namespace, which are small and many, in memory that they share.
//!
//! the first few, and what is long → memory of its own · else → the end of a chunk
//!
//! A piece that is kept keeps its chunk: stores that keep what they are given copy it.

use bytes::{Bytes, BytesMut};

/// So many pieces come before others share memory: most transactions have no more of a namespace.
const ALONE: u32 = 4;
/// Longest piece that shares memory, in bytes.
const PIECE_BYTES_MAX: usize = 128;
const CHUNK_BYTES: usize = 1 << 10;

/// What pieces are made of.
#[derive(Default)]
pub(crate) struct Pieces {
    made: u32,
    chunk: BytesMut,
}

impl Pieces {
    /// These bytes, one after the other.
    pub(crate) fn of(&mut self, head: &[u8], rest: &[u8]) -> Bytes {
        let len = head.len() + rest.len();
        if self.made < ALONE || len > PIECE_BYTES_MAX {
            self.made += u32::from(self.made < ALONE);
            return alone(head, rest);
        }
        // Room for more is not asked for: a chunk that has pieces would be copied.
        if self.chunk.capacity() < len {
            self.chunk = BytesMut::with_capacity(CHUNK_BYTES);
        }
        self.chunk.extend_from_slice(head);
        self.chunk.extend_from_slice(rest);
        self.chunk.split().freeze()
    }
}

/// These bytes, one after the other, in memory of their own.
pub(crate) fn alone(head: &[u8], rest: &[u8]) -> Bytes {
    let mut bytes = Vec::with_capacity(head.len() + rest.len());
    bytes.extend_from_slice(head);
    bytes.extend_from_slice(rest);
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_what_they_were_made_of_and_share_memory_only_where_they_are_many_and_short() {
        let mut pieces = Pieces::default();
        let text = |number: usize, len: usize| vec![number as u8; len];
        let lens = [0, 1, 7, PIECE_BYTES_MAX / 2, PIECE_BYTES_MAX, PIECE_BYTES_MAX + 1, 3 * CHUNK_BYTES];
        let all: Vec<(usize, Bytes)> = (0..200)
            .map(|number| (number, pieces.of(&text(number, number % 9), &text(number, lens[number % 7]))))
            .collect();
        for (number, piece) in &all {
            let len = number % 9 + lens[number % 7];
            assert_eq!(piece[..], text(*number, len)[..], "{number}");
            assert!(*number >= ALONE as usize && len <= PIECE_BYTES_MAX || piece.is_unique() || len == 0, "{number}");
        }
        // Each chunk is used up to its end.
        let shares = |piece: &&Bytes| (1..=PIECE_BYTES_MAX).contains(&piece.len());
        let sharing: Vec<&Bytes> = all[ALONE as usize..].iter().map(|(_, piece)| piece).filter(shares).collect();
        let follows = |pair: &&[&Bytes]| pair[0].as_ptr_range().end == pair[1].as_ptr();
        let chunks = 1 + sharing.windows(2).filter(|pair| !follows(pair)).count();
        let bytes: usize = sharing.iter().map(|piece| piece.len()).sum();
        assert!(chunks <= bytes / (CHUNK_BYTES - PIECE_BYTES_MAX) + 1, "{chunks} chunks of {bytes} bytes");
    }
}
