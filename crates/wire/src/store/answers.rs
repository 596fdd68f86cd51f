//! What a store answers, as messages and back.
//!
//! Invariant: an answer that does not fit its question (more values than were asked for, more bytes than the range has)
//! is malformed.

use std::ops::Range;

use bytes::Bytes;
use esker_store::{Collection, CommitCursor, CommitEntry, CommitSeq, DataRun, ObjectId, Stat};

use crate::proto::store as proto;
use crate::{Error, Result};

/// A place in commit order.
pub fn encode_seq(seq: CommitSeq) -> proto::SubmitResponse {
    proto::SubmitResponse { seq: seq.0 }
}

/// A place in commit order.
pub fn decode_seq(answer: &proto::SubmitResponse) -> CommitSeq {
    CommitSeq(answer.seq)
}

/// What an object has, if there is one.
pub fn encode_stat(stat: Option<Stat>) -> proto::StatResponse {
    let exists = stat.is_some();
    let Stat { size, omap_keys, slots, xattrs } = stat.unwrap_or_default();
    proto::StatResponse { exists, size, omap_keys, slots, xattrs }
}

/// What an object has, if there is one.
pub fn decode_stat(answer: &proto::StatResponse) -> Option<Stat> {
    let (size, omap_keys, slots, xattrs) = (answer.size, answer.omap_keys, answer.slots, answer.xattrs);
    answer.exists.then_some(Stat { size, omap_keys, slots, xattrs })
}

/// Bytes of an object.
pub fn encode_data(data: Bytes) -> proto::ReadResponse {
    proto::ReadResponse { data }
}

/// Bytes of the range that was asked for.
///
/// # Errors
/// [`Error::Malformed`] if they are more than the range has.
pub fn decode_data(range: &Range<u64>, answer: proto::ReadResponse) -> Result<Bytes> {
    let longest = range.end.saturating_sub(range.start);
    if answer.data.len() as u64 > longest {
        let why = format!("{} bytes, of {longest} that were asked for", answer.data.len());
        return Err(Error::malformed("ReadResponse.data", why));
    }
    Ok(answer.data)
}

/// Where an object has data.
pub fn encode_runs(runs: Vec<DataRun>) -> proto::ExtentsResponse {
    let span = |run: DataRun| proto::Span { offset: run.offset, len: run.len };
    proto::ExtentsResponse { runs: runs.into_iter().map(span).collect() }
}

/// Where an object has data.
pub fn decode_runs(answer: proto::ExtentsResponse) -> Vec<DataRun> {
    answer.runs.into_iter().map(|run| DataRun { offset: run.offset, len: run.len }).collect()
}

/// Values, absent ones among them.
pub fn encode_values(values: impl IntoIterator<Item = Option<Bytes>>) -> proto::ValuesResponse {
    proto::ValuesResponse { values: values.into_iter().map(|value| proto::Value { value }).collect() }
}

/// The values of `count` keys or slots.
///
/// # Errors
/// [`Error::Malformed`] if there are more or fewer.
pub fn decode_values(count: usize, answer: proto::ValuesResponse) -> Result<Vec<Option<Bytes>>> {
    if answer.values.len() != count {
        let why = format!("{} values, of {count} that were asked for", answer.values.len());
        return Err(Error::malformed("ValuesResponse.values", why));
    }
    Ok(answer.values.into_iter().map(|value| value.value).collect())
}

/// The value of one key or slot.
///
/// # Errors
/// As [`decode_values`].
pub fn decode_value(answer: proto::ValuesResponse) -> Result<Option<Bytes>> {
    Ok(decode_values(1, answer)?.pop().flatten())
}

/// Keys or names with their values.
pub fn encode_pairs(pairs: Vec<(Bytes, Bytes)>) -> proto::PairsResponse {
    proto::PairsResponse { pairs: pairs.into_iter().map(|(key, value)| proto::Pair { key, value }).collect() }
}

/// Keys or names with their values.
pub fn decode_pairs(answer: proto::PairsResponse) -> Vec<(Bytes, Bytes)> {
    answer.pairs.into_iter().map(|pair| (pair.key, pair.value)).collect()
}

/// Slots with their values.
pub fn encode_slots(slots: Vec<(u64, Bytes)>) -> proto::SlotsResponse {
    proto::SlotsResponse { slots: slots.into_iter().map(|(index, value)| proto::Slot { index, value }).collect() }
}

/// Slots with their values.
pub fn decode_slots(answer: proto::SlotsResponse) -> Vec<(u64, Bytes)> {
    answer.slots.into_iter().map(|slot| (slot.index, slot.value)).collect()
}

/// A part of a collection's entries in commit order, and where the next part begins.
pub fn encode_commit_part((entries, next): (Vec<CommitEntry>, Option<CommitCursor>)) -> proto::CommitScanResponse {
    use proto::commit_entry::Entry;
    let entry = |entry| {
        let (object, entry) = match entry {
            CommitEntry::Slot(object, index, value) => (object, Entry::Slot(proto::Slot { index, value })),
            CommitEntry::Omap(object, key, value) => (object, Entry::Omap(proto::Pair { key, value })),
        };
        proto::CommitEntry { name: object.name().clone(), entry: Some(entry) }
    };
    let more = next.is_some();
    let CommitCursor(next_high, next_low) = next.unwrap_or_default();
    proto::CommitScanResponse { entries: entries.into_iter().map(entry).collect(), more, next_high, next_low }
}

/// A part of the entries of `collection` in commit order, and where the next part begins.
///
/// # Errors
/// [`Error::Malformed`] if an entry is neither a slot nor an omap entry.
pub fn decode_commit_part(
    collection: &Collection,
    answer: proto::CommitScanResponse,
) -> Result<(Vec<CommitEntry>, Option<CommitCursor>)> {
    use proto::commit_entry::Entry;
    let entry = |entry: proto::CommitEntry| {
        let object = ObjectId::new(collection.clone(), entry.name);
        match entry.entry {
            Some(Entry::Slot(slot)) => Ok(CommitEntry::Slot(object, slot.index, slot.value)),
            Some(Entry::Omap(pair)) => Ok(CommitEntry::Omap(object, pair.key, pair.value)),
            None => Err(Error::malformed("CommitEntry.entry", "it is neither a slot nor an omap entry")),
        }
    };
    let entries = answer.entries.into_iter().map(entry).collect::<Result<_>>()?;
    Ok((entries, answer.more.then_some(CommitCursor(answer.next_high, answer.next_low))))
}

/// Names of objects.
pub fn encode_names(names: Vec<Bytes>) -> proto::NamesResponse {
    proto::NamesResponse { names }
}

/// Names of objects.
pub fn decode_names(answer: proto::NamesResponse) -> Vec<Bytes> {
    answer.names
}

/// Collections by their names.
pub fn encode_collections(collections: Vec<Collection>) -> proto::NamesResponse {
    encode_names(collections.into_iter().map(|collection| collection.name().clone()).collect())
}

/// Collections by their names.
pub fn decode_collections(answer: proto::NamesResponse) -> Vec<Collection> {
    decode_names(answer).into_iter().map(Collection::new).collect()
}
