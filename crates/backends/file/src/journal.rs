//! The journal: one checksummed record per group of transactions, written and synced before anything is applied.
//!
//! group → [`Journal::append`] (one write, one sync) → applied → … → checkpoint → [`Journal::reset`]
//!
//! Records stand one after the other from the start of the file, each at a multiple of [`BLOCK_BYTES`], so that writing
//! one never touches a block of another. A reset only raises the generation; old records are then overwritten.
//!
//! Invariants:
//! 1. A record is written only after the sync of the one before it, so a record that does not hold is the torn end if
//!    no valid record of its generation follows, and damage otherwise.
//! 2. Records of another generation, or out of sequence, are not there.
//! 3. A record is never longer than the file, so reading one allocates no more than what is on the disk.
//!
//! Format: docs/format.md#the-file-backend

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use esker_store::{Error, Result};

use crate::files::FileIo;

/// Records start at multiples of this, in bytes.
pub const BLOCK_BYTES: u64 = 4_096;
const MAGIC: u32 = u32::from_le_bytes(*b"EFJ1");
/// magic 4, payload length 4, generation 8, first sequence number 8, transactions 4, CRC32C of payload 4, CRC32C of
/// these 4
const HEADER_BYTES: usize = 36;

/// A group of transactions, as found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Sequence number of its first transaction.
    pub first_seq: u64,
    /// Transactions in it.
    pub count: u32,
    /// The transactions, one after the other.
    pub payload: Bytes,
}

/// The journal's file, and where the next record goes.
#[derive(Debug)]
pub struct Journal {
    file: Arc<dyn FileIo>,
    generation: u64,
    end: u64,
}

fn round_up(len: u64) -> u64 {
    len.next_multiple_of(BLOCK_BYTES)
}

impl Journal {
    /// The journal in `file`, at `generation`, with nothing in it.
    pub fn new(file: Arc<dyn FileIo>, generation: u64) -> Self {
        Self { file, generation, end: 0 }
    }

    /// Bytes of the records since the last reset.
    pub fn len(&self) -> u64 {
        self.end
    }

    /// The generation that records carry.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// A record's first bytes, to which its payload is appended before [`Journal::append`].
    pub fn begin() -> Vec<u8> {
        vec![0; HEADER_BYTES]
    }

    /// Writes a record and syncs it. `record` comes from [`Journal::begin`] and goes on with the payload.
    ///
    /// # Errors
    /// The operating system's. Whether the record is there is then unknown.
    pub fn append(&mut self, mut record: Vec<u8>, first_seq: u64, count: u32) -> std::io::Result<()> {
        let payload_len = record.len() - HEADER_BYTES;
        let payload_crc = crc32c::crc32c(&record[HEADER_BYTES..]);
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.put_u32_le(MAGIC);
        header.put_u32_le(payload_len as u32);
        header.put_u64_le(self.generation);
        header.put_u64_le(first_seq);
        header.put_u32_le(count);
        header.put_u32_le(payload_crc);
        header.put_u32_le(crc32c::crc32c(&header));
        record[..HEADER_BYTES].copy_from_slice(&header);
        record.resize(round_up(record.len() as u64) as usize, 0);
        self.file.write_at(self.end, &record)?;
        self.file.sync()?;
        self.end += record.len() as u64;
        Ok(())
    }

    /// Forgets all records. What they held must be durable elsewhere, together with the new generation.
    pub fn reset(&mut self, generation: u64) {
        self.generation = generation;
        self.end = 0;
    }

    /// Makes durable what is found in the journal: a record may have been written and not synced when the process died.
    ///
    /// # Errors
    /// The operating system's.
    pub fn settle(&self) -> std::io::Result<()> {
        self.file.forget()?;
        self.file.sync()
    }

    /// Reads the next record, whose first transaction must be `seq`; `None` at the end.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where a record does not hold and valid ones follow; [`Error::Io`].
    pub fn next(&mut self, seq: u64) -> Result<Option<Record>> {
        let read = |error| Error::io("reading the journal", error);
        let len = self.file.len().map_err(read)?;
        if let Some(record) = self.record_at(self.end, len).map_err(read)?
            && record.first_seq == seq
        {
            self.end += round_up((HEADER_BYTES + record.payload.len()) as u64);
            return Ok(Some(record));
        }
        let mut offset = self.end + BLOCK_BYTES;
        while offset < len {
            if let Some(record) = self.record_at(offset, len).map_err(read)?
                && record.first_seq > seq
            {
                let what =
                    format!("journal record of transaction {seq}; the one of {} after it holds", record.first_seq);
                return Err(Error::Corrupt { offset: self.end, what });
            }
            offset += BLOCK_BYTES;
        }
        Ok(None)
    }

    /// The valid record of this generation at `offset`, if there is one.
    fn record_at(&self, offset: u64, len: u64) -> std::io::Result<Option<Record>> {
        let mut header = [0; HEADER_BYTES];
        if self.file.read_at(offset, &mut header)? < HEADER_BYTES {
            return Ok(None);
        }
        let crc = crc32c::crc32c(&header[..HEADER_BYTES - 4]);
        let mut fields = &header[..];
        let (magic, payload_len, generation) = (fields.get_u32_le(), fields.get_u32_le(), fields.get_u64_le());
        let (first_seq, count, payload_crc) = (fields.get_u64_le(), fields.get_u32_le(), fields.get_u32_le());
        let inside = offset + HEADER_BYTES as u64 + u64::from(payload_len) <= len;
        if magic != MAGIC || fields.get_u32_le() != crc || generation != self.generation || !inside {
            return Ok(None);
        }
        let mut payload = vec![0; payload_len as usize];
        let read = self.file.read_at(offset + HEADER_BYTES as u64, &mut payload)?;
        let holds = read == payload.len() && crc32c::crc32c(&payload) == payload_crc;
        Ok(holds.then(|| Record { first_seq, count, payload: payload.into() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{Files, FolderFiles};

    fn append(journal: &mut Journal, seq: u64, payload: &[u8]) {
        let mut record = Journal::begin();
        record.extend_from_slice(payload);
        journal.append(record, seq, 1).unwrap();
    }

    fn file() -> (tempfile::TempDir, Arc<dyn FileIo>) {
        let folder = tempfile::tempdir().unwrap();
        let file = FolderFiles::new(folder.path(), Arc::default()).open("journal", true).unwrap().unwrap();
        (folder, file)
    }

    #[test]
    fn records_come_back_in_order_and_end_at_the_generation_before() {
        let (_folder, file) = file();
        let mut journal = Journal::new(Arc::clone(&file), 1);
        for seq in 1..=5 {
            append(&mut journal, seq, &vec![seq as u8; seq as usize * 3000]);
        }
        let mut found = Journal::new(Arc::clone(&file), 1);
        for seq in 1..=5u64 {
            assert_eq!(found.next(seq).unwrap().unwrap().payload, vec![seq as u8; seq as usize * 3000]);
        }
        assert_eq!(found.next(6).unwrap(), None);
        assert_eq!(found.len(), journal.len());
        journal.reset(2);
        append(&mut journal, 6, b"new");
        let mut found = Journal::new(file, 2);
        assert_eq!(found.next(6).unwrap().unwrap().payload, "new");
        assert_eq!(found.next(7).unwrap(), None);
    }

    #[test]
    fn a_torn_end_is_the_end_and_damage_in_the_middle_is_an_error() {
        let (_folder, file) = file();
        let mut journal = Journal::new(Arc::clone(&file), 7);
        for seq in 1..=3 {
            append(&mut journal, seq, &[9; 5000]);
        }
        let flip = |offset| {
            let mut byte = [0];
            file.read_at(offset, &mut byte).unwrap();
            file.write_at(offset, &[byte[0] ^ 4]).unwrap();
        };
        for (record, is_damage) in [(0, true), (1, true), (2, false)] {
            for at in [0, 5, 9, 30, 40, 5000] {
                flip(record * 8192 + at);
                let mut found = Journal::new(Arc::clone(&file), 7);
                let mut seq = 1;
                let end = loop {
                    match found.next(seq) {
                        Ok(Some(_)) => seq += 1,
                        other => break other,
                    }
                };
                assert_eq!(seq, record + 1, "byte {at} of record {record}");
                match end {
                    Err(Error::Corrupt { offset, .. }) if is_damage => assert_eq!(offset, record * 8192),
                    Ok(None) if !is_damage => {}
                    other => panic!("byte {at} of record {record}: {other:?}"),
                }
                flip(record * 8192 + at);
            }
        }
    }
}
