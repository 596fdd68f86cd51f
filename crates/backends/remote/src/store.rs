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
    Incarnation, ObjectId, ObjectStore, OmapScan, SlotScan, Stat, Transaction,
};
use esker_wire::proto::store as proto;
use esker_wire::proto::store::objects_client::ObjectsClient;
use esker_wire::store::{
    CommitScan, INCARNATION, decode_capability, decode_collections, decode_commit_part, decode_data, decode_names,
    decode_pairs, decode_runs, decode_seq, decode_slots, decode_stat, decode_value, decode_values, encode_commit_scan,
    encode_list, encode_object_request, encode_omap_get, encode_omap_scan, encode_range_request, encode_slot_get,
    encode_slot_scan, encode_transaction, encode_xattr_request, is_told,
};
use parking_lot::Mutex;
use prost::Message as _;
use tonic::{Code, Request, Response, Status};

use crate::address::{Error, Options, Place, Result, Tokened, channel};
use crate::call::Manner;
use crate::failure;
use crate::once::Operations;

/// Longest message either way, in bytes.
const MESSAGE_BYTES_MAX: usize = 96 << 20;

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
        // Nothing, until the server has said what it can.
        let capability = decode_capability("grpc", &proto::CapabilityResponse::default());
        let (place, lives, operations) = (Arc::new(place), Arc::default(), Arc::default());
        let mut store = Self { client, capability, place, timeout: options.timeout, lives, operations };
        let asked = store.call(true, proto::CapabilityRequest {}, |mut client, request| async move {
            client.capability(request).await
        });
        let able = asked.map_err(|status| {
            let why = match status.code() {
                Code::Unimplemented => "the server does not serve its objects: start it with --grpc-objects".into(),
                _ => failure::text(&status),
            };
            Error::Unreachable { place: store.place().clone(), why }
        })?;
        store.capability = decode_capability("grpc", &able);
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
        Manner { timeout: self.timeout, again, told: is_told }
    }

    /// Sends a transaction, once.
    pub(crate) fn send(&self, txn: Transaction) -> std::result::Result<CommitSeq, StoreError> {
        let message = encode_transaction(txn);
        let len = message.encoded_len();
        if len > MESSAGE_BYTES_MAX {
            let (what, limit, max) =
                ("transaction with what its guards compare", "MESSAGE_BYTES_MAX", MESSAGE_BYTES_MAX);
            return Err(StoreError::TooLarge { what, len: len as u64, limit, max: max as u64 });
        }
        let answered = self.call(false, message, |mut client, request| async move { client.submit(request).await });
        match answered {
            Ok(answer) => Ok(decode_seq(&answer)),
            Err(status) => Err(failure::submit_error(&status)),
        }
    }

    /// A read, and what is made of its answer. It is begun, and not waited for.
    fn read_call<M, A, T, F>(
        &self,
        what: &'static str,
        message: M,
        call: impl Fn(ObjectsClient<Tokened>, Request<M>) -> F + Send + 'static,
        understand: impl FnOnce(A) -> esker_wire::Result<T> + Send + 'static,
    ) -> Completion<T>
    where
        M: Clone + Send + 'static,
        A: Send + 'static,
        T: Send + 'static,
        F: Future<Output = std::result::Result<Response<A>, Status>> + Send + 'static,
    {
        let lives = Arc::clone(&self.lives);
        crate::call::begin(&self.client, self.manner(true), message, call, move |answered| {
            let answer = answered.map_err(|status| failure::error(what, &status))?;
            understand(lives.of(answer)).map_err(|wrong| failure::nonsense(what, &wrong))
        })
    }
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
        self.read_call("sync", proto::SyncRequest {}, call, |answer| Ok(decode_seq(&answer)))
    }

    fn stat(&self, object: &ObjectId) -> Completion<Option<Stat>> {
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.stat(request).await };
        self.read_call("stat", encode_object_request(object), call, |answer| Ok(decode_stat(&answer)))
    }

    fn read(&self, object: &ObjectId, range: Range<u64>) -> Completion<Bytes> {
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.read(request).await };
        let message = encode_range_request(object, range.clone());
        self.read_call("read", message, call, move |answer| decode_data(&range, answer))
    }

    fn extents(&self, object: &ObjectId, range: Range<u64>) -> Completion<Vec<DataRun>> {
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.extents(request).await };
        self.read_call("extents", encode_range_request(object, range), call, |answer| Ok(decode_runs(answer)))
    }

    fn xattr(&self, object: &ObjectId, name: &[u8]) -> Completion<Option<Bytes>> {
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.xattr(request).await };
        self.read_call("xattr", encode_xattr_request(object, Bytes::copy_from_slice(name)), call, decode_value)
    }

    fn xattrs(&self, object: &ObjectId) -> Completion<Vec<(Bytes, Bytes)>> {
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.xattrs(request).await };
        self.read_call("xattrs", encode_object_request(object), call, |answer| Ok(decode_pairs(answer)))
    }

    fn omap_get(&self, object: &ObjectId, key: &[u8]) -> Completion<Option<Bytes>> {
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.omap_get(request).await };
        let message = encode_omap_get(object, vec![Bytes::copy_from_slice(key)]);
        self.read_call("omap get", message, call, decode_value)
    }

    fn omap_get_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<Option<Bytes>>> {
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.omap_get(request).await };
        let (message, count) = (encode_omap_get(object, keys.to_vec()), keys.len());
        self.read_call("omap get", message, call, move |answer| decode_values(count, answer))
    }

    fn omap_scan(&self, object: &ObjectId, scan: &OmapScan) -> Completion<Vec<(Bytes, Bytes)>> {
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.omap_scan(request).await };
        self.read_call("omap scan", encode_omap_scan(object, scan), call, |answer| Ok(decode_pairs(answer)))
    }

    fn slot_get(&self, object: &ObjectId, index: u64) -> Completion<Option<Bytes>> {
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.slot_get(request).await };
        self.read_call("slot get", encode_slot_get(object, vec![index]), call, decode_value)
    }

    fn slot_get_many(&self, object: &ObjectId, indexes: &[u64]) -> Completion<Vec<Option<Bytes>>> {
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.slot_get(request).await };
        let (message, count) = (encode_slot_get(object, indexes.to_vec()), indexes.len());
        self.read_call("slot get", message, call, move |answer| decode_values(count, answer))
    }

    fn slot_scan(&self, object: &ObjectId, scan: &SlotScan) -> Completion<Vec<(u64, Bytes)>> {
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.slot_scan(request).await };
        self.read_call("slot scan", encode_slot_scan(object, scan), call, |answer| Ok(decode_slots(answer)))
    }

    fn commit_scan(
        &self,
        collection: &Collection,
        name_prefix: &[u8],
        after: CommitCursor,
        limit: usize,
    ) -> Completion<(Vec<CommitEntry>, Option<CommitCursor>)> {
        let (collection, name_prefix) = (collection.clone(), Bytes::copy_from_slice(name_prefix));
        let message = encode_commit_scan(CommitScan { collection: collection.clone(), name_prefix, after, limit });
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.commit_scan(request).await };
        self.read_call("commit scan", message, call, move |answer| decode_commit_part(&collection, answer))
    }

    fn collections(&self) -> Completion<Vec<Collection>> {
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.collections(request).await };
        self.read_call("collections", proto::CollectionsRequest {}, call, |answer| Ok(decode_collections(answer)))
    }

    fn list(&self, collection: &Collection, after: Option<&[u8]>, limit: usize) -> Completion<Vec<Bytes>> {
        let call = |mut client: ObjectsClient<Tokened>, request| async move { client.list(request).await };
        let message = encode_list(collection, after.map(Bytes::copy_from_slice), limit);
        self.read_call("list", message, call, |answer| Ok(decode_names(answer)))
    }
}
