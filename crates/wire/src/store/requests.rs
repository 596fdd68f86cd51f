//! Reads of one store as requests and back.
//!
//! Invariant: limits are counted in `u64`; one above what this machine can count is as good as none.

use std::ops::Range;

use bytes::Bytes;
use esker_store::{Collection, CommitCursor, ObjectId, OmapScan, SlotScan};

use super::object::{decode_object, encode_object};
use crate::Result;
use crate::proto::store as proto;

fn number(limit: u64) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Asks about an object: stat, all xattrs.
pub fn encode_object_request(object: &ObjectId) -> proto::ObjectRequest {
    proto::ObjectRequest { object: Some(encode_object(object)) }
}

/// # Errors
/// [`Error::Malformed`](crate::Error::Malformed) if it names no object, as all requests of this file.
pub fn decode_object_request(message: proto::ObjectRequest) -> Result<ObjectId> {
    decode_object("ObjectRequest.object", message.object)
}

/// Asks about a range of an object's bytes: read, extents.
pub fn encode_range_request(object: &ObjectId, range: Range<u64>) -> proto::RangeRequest {
    proto::RangeRequest { object: Some(encode_object(object)), start: range.start, end: range.end }
}

/// The object and the range of its bytes.
///
/// # Errors
/// As [`decode_object_request`].
pub fn decode_range_request(message: proto::RangeRequest) -> Result<(ObjectId, Range<u64>)> {
    Ok((decode_object("RangeRequest.object", message.object)?, message.start..message.end))
}

/// Asks for an xattr.
pub fn encode_xattr_request(object: &ObjectId, name: Bytes) -> proto::XattrRequest {
    proto::XattrRequest { object: Some(encode_object(object)), name }
}

/// The object and the name of its xattr.
///
/// # Errors
/// As [`decode_object_request`].
pub fn decode_xattr_request(message: proto::XattrRequest) -> Result<(ObjectId, Bytes)> {
    Ok((decode_object("XattrRequest.object", message.object)?, message.name))
}

/// Asks for omap values.
pub fn encode_omap_get(object: &ObjectId, keys: Vec<Bytes>) -> proto::OmapGetRequest {
    proto::OmapGetRequest { object: Some(encode_object(object)), keys }
}

/// The object and the keys of its omap.
///
/// # Errors
/// As [`decode_object_request`].
pub fn decode_omap_get(message: proto::OmapGetRequest) -> Result<(ObjectId, Vec<Bytes>)> {
    Ok((decode_object("OmapGetRequest.object", message.object)?, message.keys))
}

/// Asks for a range of an omap.
pub fn encode_omap_scan(object: &ObjectId, scan: &OmapScan) -> proto::OmapScanRequest {
    proto::OmapScanRequest {
        object: Some(encode_object(object)),
        start: scan.start.clone(),
        end: scan.end.clone(),
        reverse: scan.reverse,
        limit: scan.limit as u64,
        keys_only: scan.keys_only,
    }
}

/// The object and the range of its omap.
///
/// # Errors
/// As [`decode_object_request`].
pub fn decode_omap_scan(message: proto::OmapScanRequest) -> Result<(ObjectId, OmapScan)> {
    let object = decode_object("OmapScanRequest.object", message.object)?;
    let (start, end, limit) = (message.start, message.end, number(message.limit));
    Ok((object, OmapScan { start, end, reverse: message.reverse, limit, keys_only: message.keys_only }))
}

/// Asks for slots.
pub fn encode_slot_get(object: &ObjectId, indexes: Vec<u64>) -> proto::SlotGetRequest {
    proto::SlotGetRequest { object: Some(encode_object(object)), indexes }
}

/// The object and its slots.
///
/// # Errors
/// As [`decode_object_request`].
pub fn decode_slot_get(message: proto::SlotGetRequest) -> Result<(ObjectId, Vec<u64>)> {
    Ok((decode_object("SlotGetRequest.object", message.object)?, message.indexes))
}

/// Asks for a range of slots.
pub fn encode_slot_scan(object: &ObjectId, scan: &SlotScan) -> proto::SlotScanRequest {
    proto::SlotScanRequest {
        object: Some(encode_object(object)),
        start: scan.range.start,
        end: scan.range.end,
        reverse: scan.reverse,
        limit: scan.limit as u64,
        keys_only: scan.keys_only,
    }
}

/// The object and the range of its slots.
///
/// # Errors
/// As [`decode_object_request`].
pub fn decode_slot_scan(message: proto::SlotScanRequest) -> Result<(ObjectId, SlotScan)> {
    let object = decode_object("SlotScanRequest.object", message.object)?;
    let (range, limit) = (message.start..message.end, number(message.limit));
    Ok((object, SlotScan { range, reverse: message.reverse, limit, keys_only: message.keys_only }))
}

/// A part of a collection's entries in commit order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitScan {
    /// The collection.
    pub collection: Collection,
    /// Only objects whose names begin so.
    pub name_prefix: Bytes,
    /// Where the part before ended.
    pub after: CommitCursor,
    /// Entries, at most.
    pub limit: usize,
}

/// Asks for a part of a collection's entries in commit order.
pub fn encode_commit_scan(scan: CommitScan) -> proto::CommitScanRequest {
    let CommitCursor(after_high, after_low) = scan.after;
    proto::CommitScanRequest {
        collection: scan.collection.name().clone(),
        name_prefix: scan.name_prefix,
        after_high,
        after_low,
        limit: scan.limit as u64,
    }
}

/// What [`encode_commit_scan`] asks for.
pub fn decode_commit_scan(message: proto::CommitScanRequest) -> CommitScan {
    CommitScan {
        collection: Collection::new(message.collection),
        name_prefix: message.name_prefix,
        after: CommitCursor(message.after_high, message.after_low),
        limit: number(message.limit),
    }
}

/// Asks for up to `limit` names of objects, those after `after`.
pub fn encode_list(collection: &Collection, after: Option<Bytes>, limit: usize) -> proto::ListRequest {
    proto::ListRequest { collection: collection.name().clone(), after, limit: limit as u64 }
}

/// The collection, the name after which its objects are listed, and how many at most.
pub fn decode_list(message: proto::ListRequest) -> (Collection, Option<Bytes>, usize) {
    (Collection::new(message.collection), message.after, number(message.limit))
}
