//! The store of a server: each call of [`ObjectStore`] as one call over the network.
//!
//! call → limits checked here → request → answer, which may be shown · reads: begun and not waited for, and again after
//! a loss
//!
//! Invariants:
//! 1. A transaction is sent once, but for one that asks for more ([`Transaction::once`], see `once.rs`); after a lost
//!    answer its outcome is [`StoreError::Unknown`], for its guards to find out.
//! 2. Each answer tells the life of the store that gave it ([`ObjectStore::incarnation`]).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use esker_store::{
    Capability, Collection, CommitCursor, CommitEntry, CommitSeq, Completion, DataRun, Error as StoreError,
    Incarnation, ObjectId, ObjectStore, OmapScan, SlotScan, Stat, Transaction, limits,
};
use parking_lot::Mutex;
use prost::Message as _;
use tonic::{Code, Request, Response, Status};

use crate::address::{Error, Options, Place, Result, Tokened, channel};
use crate::call::Manner;
use crate::once::Operations;
use crate::proto::store as proto;
use crate::proto::store::objects_client::ObjectsClient;
use crate::{decode, encode};

/// Longest message either way, in bytes.
const MESSAGE_BYTES_MAX: usize = 96 << 20;

/// Name of the metadata with the life of the store, a decimal number.
const INCARNATION: &str = "esker-incarnation";
/// Most lives of which late answers are told from those of a new one.
const LIVES_MAX: usize = 64;

/// An open store of a server. Cloning gives the same one.
#[derive(Clone)]
pub struct RemoteStore {
    client: ObjectsClient<Tokened>,
    capability: Capability,
    place: Arc<Place>,
    timeout: Duration,
    lives: Arc<Lives>,
    operations: Arc<Operations>,
}

/// The lives of the server's store, in the order in which they first answered.
#[derive(Default)]
struct Lives {
    /// The present one is the last; of those before only some are kept.
    met: Mutex<VecDeque<u64>>,
    present: AtomicU64,
}

impl Lives {
    /// An answer came from `life`. One of an earlier life that was long on its way changes nothing.
    fn answered(&self, life: u64) {
        if self.present.load(Ordering::Acquire) == life {
            return;
        }
        let mut met = self.met.lock();
        if met.contains(&life) {
            return;
        }
        if met.len() == LIVES_MAX {
            met.pop_front();
        }
        met.push_back(life);
        self.present.store(life, Ordering::Release);
    }

    /// An answer, whose life is noted.
    fn of<A>(&self, answer: Response<A>) -> A {
        let life = answer.metadata().get(INCARNATION).and_then(|life| life.to_str().ok()?.parse().ok());
        // Servers of before this was told are taken for one life.
        self.answered(life.unwrap_or(1));
        answer.into_inner()
    }
}

impl std::fmt::Debug for RemoteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteStore").field("place", &self.place).finish_non_exhaustive()
    }
}

impl RemoteStore {
    /// Opens the store of the server at `place`.
    ///
    /// # Errors
    /// [`Error::Option`]; [`Error::Unreachable`] if the server does not answer or does not serve its objects.
    pub fn connect(place: Place, options: &Options) -> Result<Self> {
        let client = ObjectsClient::new(channel(&place, options)?)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let capability = Capability {
            backend: "grpc",
            atomic_across_objects: false,
            atomic_across_collections: false,
            native_slots: false,
            commit_order: false,
            clone: false,
            cheap_clone: false,
            persistent: false,
            compresses: false,
            transaction_bytes_max: 0,
            object_bytes_max: 0,
            exact_extents: false,
            reverse_scans: false,
            watches: false,
        };
        let (place, lives, operations) = (Arc::new(place), Arc::default(), Arc::default());
        let mut store = Self { client, capability, place, timeout: options.timeout, lives, operations };
        let asked = store.call(true, proto::CapabilityRequest {}, |mut client, request| async move {
            client.capability(request).await
        });
        let able = asked.map_err(|status| {
            let why = match status.code() {
                Code::Unimplemented => "the server does not serve its objects: start it with --grpc-objects".into(),
                _ => decode::text(&status),
            };
            Error::Unreachable { place: store.place().clone(), why }
        })?;
        store.capability = Capability {
            backend: "grpc",
            atomic_across_objects: able.atomic_across_objects,
            atomic_across_collections: able.atomic_across_collections,
            native_slots: able.native_slots,
            commit_order: able.commit_order,
            clone: able.clone,
            cheap_clone: able.cheap_clone,
            persistent: able.persistent,
            compresses: able.compresses,
            transaction_bytes_max: able.transaction_bytes_max.min(limits::TRANSACTION_BYTES_MAX as u64),
            object_bytes_max: able.object_bytes_max.unwrap_or(u64::MAX).min(limits::OBJECT_BYTES_MAX),
            exact_extents: able.exact_extents.unwrap_or(true),
            reverse_scans: able.reverse_scans.unwrap_or(true),
            watches: false,
        };
        Ok(store)
    }

    /// Where the server is.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// One call; again after a loss, if `again` says that this does no harm.
    fn call<M, A, F>(
        &self,
        again: bool,
        message: M,
        call: impl Fn(ObjectsClient<Tokened>, Request<M>) -> F + Send + 'static,
    ) -> std::result::Result<A, Status>
    where
        M: Clone + Send + 'static,
        A: Send + 'static,
        F: Future<Output = std::result::Result<Response<A>, Status>> + Send + 'static,
    {
        let answer = crate::call::call(&self.client, self.manner(again), message, call)?;
        Ok(self.lives.of(answer))
    }

    fn manner(&self, again: bool) -> Manner {
        Manner { timeout: self.timeout, again, told: decode::is_told }
    }

    /// Sends a transaction, once.
    pub(crate) fn send(&self, txn: Transaction) -> std::result::Result<CommitSeq, StoreError> {
        let message = encode::transaction(txn);
        let len = message.encoded_len();
        if len > MESSAGE_BYTES_MAX {
            let (what, limit, max) =
                ("transaction with what its guards compare", "MESSAGE_BYTES_MAX", MESSAGE_BYTES_MAX);
            return Err(StoreError::TooLarge { what, len: len as u64, limit, max: max as u64 });
        }
        let answered = self.call(false, message, |mut client, request| async move { client.submit(request).await });
        match answered {
            Ok(answer) => Ok(CommitSeq(answer.seq)),
            Err(status) => Err(decode::submit_error(&status)),
        }
    }

    /// A read, and what is made of its answer. It is begun, and not waited for.
    fn read_call<M, A, T, F>(
        &self,
        what: &'static str,
        message: M,
        call: impl Fn(ObjectsClient<Tokened>, Request<M>) -> F + Send + 'static,
        understand: impl FnOnce(A) -> Option<T> + Send + 'static,
    ) -> Completion<T>
    where
        M: Clone + Send + 'static,
        A: Send + 'static,
        T: Send + 'static,
        F: Future<Output = std::result::Result<Response<A>, Status>> + Send + 'static,
    {
        let lives = Arc::clone(&self.lives);
        crate::call::begin(&self.client, self.manner(true), message, call, move |answered| {
            let answer = answered.map_err(|status| decode::error(what, &status))?;
            understand(lives.of(answer)).ok_or_else(|| nonsense(what))
        })
    }
}

fn nonsense(what: &str) -> StoreError {
    StoreError::io(format!("{what} at the server"), std::io::Error::other("the answer does not fit the question"))
}

fn pairs(answer: proto::PairsResponse) -> Vec<(Bytes, Bytes)> {
    answer.pairs.into_iter().map(|pair| (pair.key, pair.value)).collect()
}

fn values(answer: proto::ValuesResponse, expected: usize) -> Option<Vec<Option<Bytes>>> {
    (answer.values.len() == expected).then(|| answer.values.into_iter().map(|value| value.value).collect())
}

fn value(answer: proto::ValuesResponse) -> Option<Option<Bytes>> {
    values(answer, 1)?.pop()
}

impl ObjectStore for RemoteStore {
    fn capability(&self) -> Capability {
        self.capability
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        if let Err(error) = txn.check() {
            return Completion::ready(Err(error));
        }
        let once = txn.once && self.capability.atomic_across_objects && self.capability.atomic_across_collections;
        Completion::ready(if once { self.operations.submit(self, txn) } else { self.send(txn) })
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation(self.lives.present.load(Ordering::Acquire))
    }

    fn sync(&self) -> Completion<CommitSeq> {
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.sync(request).await };
        self.read_call("sync", proto::SyncRequest {}, call, |answer| Some(CommitSeq(answer.seq)))
    }

    fn stat(&self, object: &ObjectId) -> Completion<Option<Stat>> {
        let message = proto::ObjectRequest { object: Some(encode::object(object)) };
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.stat(request).await };
        self.read_call("stat", message, call, |answer| {
            let (size, omap_keys, slots, xattrs) = (answer.size, answer.omap_keys, answer.slots, answer.xattrs);
            Some(answer.exists.then_some(Stat { size, omap_keys, slots, xattrs }))
        })
    }

    fn read(&self, object: &ObjectId, range: Range<u64>) -> Completion<Bytes> {
        let message = proto::RangeRequest { object: Some(encode::object(object)), start: range.start, end: range.end };
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.read(request).await };
        let longest = range.end.saturating_sub(range.start);
        self.read_call("read", message, call, move |answer| {
            (answer.data.len() as u64 <= longest).then_some(answer.data)
        })
    }

    fn extents(&self, object: &ObjectId, range: Range<u64>) -> Completion<Vec<DataRun>> {
        let message = proto::RangeRequest { object: Some(encode::object(object)), start: range.start, end: range.end };
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.extents(request).await };
        self.read_call("extents", message, call, |answer| {
            Some(answer.runs.into_iter().map(|run| DataRun { offset: run.offset, len: run.len }).collect())
        })
    }

    fn xattr(&self, object: &ObjectId, name: &[u8]) -> Completion<Option<Bytes>> {
        let message = proto::XattrRequest { object: Some(encode::object(object)), name: Bytes::copy_from_slice(name) };
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.xattr(request).await };
        self.read_call("xattr", message, call, value)
    }

    fn xattrs(&self, object: &ObjectId) -> Completion<Vec<(Bytes, Bytes)>> {
        let message = proto::ObjectRequest { object: Some(encode::object(object)) };
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.xattrs(request).await };
        self.read_call("xattrs", message, call, |answer| Some(pairs(answer)))
    }

    fn omap_get(&self, object: &ObjectId, key: &[u8]) -> Completion<Option<Bytes>> {
        let message =
            proto::OmapGetRequest { object: Some(encode::object(object)), keys: vec![Bytes::copy_from_slice(key)] };
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.omap_get(request).await };
        self.read_call("omap get", message, call, value)
    }

    fn omap_get_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<Option<Bytes>>> {
        let message = proto::OmapGetRequest { object: Some(encode::object(object)), keys: keys.to_vec() };
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.omap_get(request).await };
        let count = keys.len();
        self.read_call("omap get", message, call, move |answer| values(answer, count))
    }

    fn omap_scan(&self, object: &ObjectId, scan: &OmapScan) -> Completion<Vec<(Bytes, Bytes)>> {
        let message = proto::OmapScanRequest {
            object: Some(encode::object(object)),
            start: scan.start.clone(),
            end: scan.end.clone(),
            reverse: scan.reverse,
            limit: scan.limit as u64,
            keys_only: scan.keys_only,
        };
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.omap_scan(request).await };
        self.read_call("omap scan", message, call, |answer| Some(pairs(answer)))
    }

    fn slot_get(&self, object: &ObjectId, index: u64) -> Completion<Option<Bytes>> {
        let message = proto::SlotGetRequest { object: Some(encode::object(object)), indexes: vec![index] };
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.slot_get(request).await };
        self.read_call("slot get", message, call, value)
    }

    fn slot_get_many(&self, object: &ObjectId, indexes: &[u64]) -> Completion<Vec<Option<Bytes>>> {
        let message = proto::SlotGetRequest { object: Some(encode::object(object)), indexes: indexes.to_vec() };
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.slot_get(request).await };
        let count = indexes.len();
        self.read_call("slot get", message, call, move |answer| values(answer, count))
    }

    fn slot_scan(&self, object: &ObjectId, scan: &SlotScan) -> Completion<Vec<(u64, Bytes)>> {
        let message = proto::SlotScanRequest {
            object: Some(encode::object(object)),
            start: scan.range.start,
            end: scan.range.end,
            reverse: scan.reverse,
            limit: scan.limit as u64,
            keys_only: scan.keys_only,
        };
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.slot_scan(request).await };
        self.read_call("slot scan", message, call, |answer| {
            Some(answer.slots.into_iter().map(|slot| (slot.index, slot.value)).collect())
        })
    }

    fn commit_scan(
        &self,
        collection: &Collection,
        name_prefix: &[u8],
        after: CommitCursor,
        limit: usize,
    ) -> Completion<(Vec<CommitEntry>, Option<CommitCursor>)> {
        let message = proto::CommitScanRequest {
            collection: collection.name().clone(),
            name_prefix: Bytes::copy_from_slice(name_prefix),
            after_high: after.0,
            after_low: after.1,
            limit: limit as u64,
        };
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.commit_scan(request).await };
        let collection = collection.clone();
        self.read_call("commit scan", message, call, move |answer| {
            use proto::commit_entry::Entry;
            let entry = |entry: proto::CommitEntry| {
                let object = ObjectId::new(collection.clone(), entry.name);
                Some(match entry.entry? {
                    Entry::Slot(slot) => CommitEntry::Slot(object, slot.index, slot.value),
                    Entry::Omap(pair) => CommitEntry::Omap(object, pair.key, pair.value),
                })
            };
            let entries: Option<_> = answer.entries.into_iter().map(entry).collect();
            Some((entries?, answer.more.then_some(CommitCursor(answer.next_high, answer.next_low))))
        })
    }

    fn collections(&self) -> Completion<Vec<Collection>> {
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.collections(request).await };
        self.read_call("collections", proto::CollectionsRequest {}, call, |answer| {
            Some(answer.names.into_iter().map(Collection::new).collect())
        })
    }

    fn list(&self, collection: &Collection, after: Option<&[u8]>, limit: usize) -> Completion<Vec<Bytes>> {
        let message = proto::ListRequest {
            collection: collection.name().clone(),
            after: after.map(Bytes::copy_from_slice),
            limit: limit as u64,
        };
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.list(request).await };
        self.read_call("list", message, call, |answer| Some(answer.names))
    }
}
