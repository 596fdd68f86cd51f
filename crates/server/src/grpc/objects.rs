//! The service `esker.store.v1.Objects`: the store below the faces, for other processes that work on it together.
//!
//! request → checked, decoded → call of the store → barrier awaited on this side → answer
//!
//! Invariants:
//! 1. A client is shown nothing that a power cut could take back, unless its writer asked only for *applied*.
//! 2. What a message names by its place in a list is checked before anything is done.

use std::sync::Arc;

use bytes::Bytes;
use esker_store::{
    Change, Collection, CommitCursor, CommitEntry, CommitSeq, Compare, Completion, Compression, Condition, Durability,
    Error, Guard, ObjectId, ObjectStore, OmapScan, Op, SlotScan, Transaction, limits,
};
use prost::Message;
use tonic::metadata::{BinaryMetadataValue, MetadataMap};
use tonic::{Code, Request, Response, Status};

use super::proto::store as proto;
use super::proto::store::objects_server::Objects;
use super::waiting::applies_at_once;

/// Name of the metadata with an encoded [`proto::StoreError`].
const ERROR: &str = "esker-error-bin";
/// Name of the metadata with the life of the store, a decimal number.
const INCARNATION: &str = "esker-incarnation";

/// The service.
pub(crate) struct ObjectService {
    store: Arc<dyn ObjectStore>,
    at_once: bool,
    /// Of this process's opening of the store.
    life: u64,
}

type Answer<T> = Result<Response<T>, Status>;

impl ObjectService {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, life: u64) -> Self {
        let at_once = applies_at_once(&*store);
        Self { store, at_once, life }
    }

    /// An answer, with the life of the store that it comes from.
    fn answer<M>(&self, message: M) -> Response<M> {
        let mut response = Response::new(message);
        // One that is itself beyond a network may have been restarted while this server was not.
        let life = self.life ^ self.store.incarnation().0;
        response.metadata_mut().insert(INCARNATION, life.into());
        response
    }

    /// A call on a thread that may wait, its barrier awaited.
    async fn call<T: Send + 'static, M>(
        &self,
        work: impl FnOnce(&dyn ObjectStore) -> Completion<T> + Send + 'static,
        told: impl FnOnce(T) -> M,
    ) -> Answer<M> {
        let store = Arc::clone(&self.store);
        let completion = match tokio::task::spawn_blocking(move || work(&*store)).await {
            Ok(completion) => completion,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => return Err(Status::unavailable("the server is stopping")),
        };
        settled(completion).await.map(|value| self.answer(told(value)))
    }
}

async fn settled<T>(completion: Completion<T>) -> Result<T, Status> {
    let (value, barrier) = completion.arrived().await;
    if let Some(barrier) = barrier {
        if barrier.state().is_none() {
            barrier.want_for(1);
        }
        barrier.await.map_err(|error| status(&error))?;
    }
    value.map_err(|error| status(&error))
}

/// An error with all that tells it apart.
fn status(error: &Error) -> Status {
    use proto::store_error::{Contended, Corrupt, Error as Told, Full, Text, TooLarge};
    let nothing = proto::Nothing {};
    let (code, told) = match error {
        Error::GuardFailed { index } => (Code::Aborted, Told::GuardFailed(*index as u64)),
        Error::NoObject { object } => (Code::NotFound, Told::NoObject(object.clone())),
        Error::NoCollection { collection } => (Code::NotFound, Told::NoCollection(collection.clone())),
        Error::NotEmpty { collection } => (Code::FailedPrecondition, Told::NotEmpty(collection.clone())),
        Error::TooLarge { what, len, limit, max } => (
            Code::InvalidArgument,
            Told::TooLarge(TooLarge { what: (*what).into(), len: *len, limit: (*limit).into(), max: *max }),
        ),
        Error::Invalid { what, why } => {
            (Code::InvalidArgument, Told::Invalid(Text { what: (*what).into(), why: why.clone() }))
        }
        Error::Unsupported { what, .. } => (Code::Unimplemented, Told::Unsupported((*what).into())),
        Error::Full { needed, free } => (Code::ResourceExhausted, Told::Full(Full { needed: *needed, free: *free })),
        Error::ReadOnly => (Code::FailedPrecondition, Told::ReadOnly(nothing)),
        Error::Corrupt { offset, what } => {
            (Code::DataLoss, Told::Corrupt(Corrupt { offset: *offset, what: what.clone() }))
        }
        Error::Io { what, source } => {
            (Code::Unavailable, Told::Io(Text { what: what.clone(), why: source.to_string() }))
        }
        Error::Stopped { cause } => (Code::Unavailable, Told::Stopped(cause.to_string())),
        Error::Closed => (Code::Unavailable, Told::Closed(nothing)),
        Error::Unknown { cause } => (Code::Unknown, Told::Unknown(cause.clone())),
        Error::Restarted => (Code::Aborted, Told::Restarted(nothing)),
        Error::Contended { what, attempts } => {
            (Code::Aborted, Told::Contended(Contended { what: what.clone(), attempts: *attempts }))
        }
        other => (Code::Internal, Told::Io(Text { what: "the store".into(), why: other.to_string() })),
    };
    let mut metadata = MetadataMap::new();
    let encoded = proto::StoreError { error: Some(told) }.encode_to_vec();
    metadata.insert_bin(ERROR, BinaryMetadataValue::from_bytes(&encoded));
    Status::with_metadata(code, error.to_string(), metadata)
}

fn invalid(what: &'static str, why: impl Into<String>) -> Status {
    status(&Error::Invalid { what, why: why.into() })
}

fn object(message: Option<proto::ObjectId>) -> Result<ObjectId, Status> {
    let message = message.ok_or_else(|| invalid("request", "it names no object"))?;
    Ok(ObjectId::new(Collection::new(message.collection), message.name))
}

/// The objects of a transaction, looked up by their place.
struct Listed(Vec<ObjectId>);

impl Listed {
    fn at(&self, place: u32) -> Result<ObjectId, Status> {
        let found = self.0.get(place as usize);
        let why = || format!("object {place} of {}", self.0.len());
        found.cloned().ok_or_else(|| invalid("transaction", why()))
    }
}

fn transaction(message: proto::SubmitRequest) -> Result<Transaction, Status> {
    if message.ops.len().max(message.guards.len()) > limits::TRANSACTION_OPS_MAX {
        let len = message.ops.len().max(message.guards.len()) as u64;
        let (limit, max) = ("TRANSACTION_OPS_MAX", limits::TRANSACTION_OPS_MAX as u64);
        return Err(status(&Error::TooLarge { what: "number of operations", len, limit, max }));
    }
    let compression = match message.compression() {
        proto::Compression::None => Compression::None,
        proto::Compression::Lz4 => Compression::Lz4,
        proto::Compression::Zstd => Compression::Zstd,
    };
    let durability = match (message.applied_only, message.always) {
        (true, true) => return Err(invalid("transaction", "applied_only and always exclude each other")),
        (true, false) => Durability::Applied,
        (false, true) => Durability::Always,
        (false, false) => Durability::Durable,
    };
    let mut txn = Transaction { gives_back: message.gives_back, ..Transaction::with(durability).compress(compression) };
    let listed: Result<_, Status> = message.objects.into_iter().map(|one| object(Some(one))).collect();
    let listed = Listed(listed?);
    for guard in message.guards {
        let condition = guard.condition.ok_or_else(|| invalid("guard", "it has no condition"))?;
        txn.guards.push(Guard { object: listed.at(guard.object)?, condition: self::condition(condition)? });
    }
    for op in message.ops {
        let step = op.op.ok_or_else(|| invalid("operation", "it is empty"))?;
        txn.ops.push(match step {
            proto::op::Op::CreateCollection(name) => Op::CreateCollection(Collection::new(name)),
            proto::op::Op::RemoveCollection(name) => Op::RemoveCollection(Collection::new(name)),
            step => Op::Object(listed.at(op.object)?, change(step, &listed)?),
        });
    }
    Ok(txn)
}

fn condition(message: proto::guard::Condition) -> Result<Condition, Status> {
    use proto::guard::Condition as Is;
    Ok(match message {
        Is::Exists(_) => Condition::Exists,
        Is::Absent(_) => Condition::Absent,
        Is::XattrEquals(pair) => Condition::XattrEquals { name: pair.key, value: pair.value },
        Is::XattrAbsent(name) => Condition::XattrAbsent { name },
        Is::XattrCompare(message) => {
            let compare = match proto::Compare::try_from(message.compare) {
                Ok(proto::Compare::Equal) => Compare::Equal,
                Ok(proto::Compare::Less) => Compare::Less,
                Ok(proto::Compare::LessOrEqual) => Compare::LessOrEqual,
                Ok(proto::Compare::GreaterOrEqual) => Compare::GreaterOrEqual,
                Ok(proto::Compare::Greater) => Compare::Greater,
                Err(_) => return Err(invalid("guard", format!("comparison {} is not known", message.compare))),
            };
            let (name, value, absent_holds) = (message.name, message.value, message.absent_holds);
            Condition::XattrCompare { name, compare, value, absent_holds }
        }
        Is::OmapAbsent(key) => Condition::OmapAbsent { key },
        Is::OmapPresent(key) => Condition::OmapPresent { key },
        Is::OmapEquals(pair) => Condition::OmapEquals { key: pair.key, value: pair.value },
        Is::SlotAbsent(index) => Condition::SlotAbsent { index },
        Is::SlotPresent(index) => Condition::SlotPresent { index },
        Is::SlotEquals(slot) => Condition::SlotEquals { index: slot.index, value: slot.value },
        Is::SizeEquals(size) => Condition::SizeEquals { size },
    })
}

fn change(step: proto::op::Op, listed: &Listed) -> Result<Change, Status> {
    use proto::op::Op as Does;
    Ok(match step {
        Does::CreateCollection(_) | Does::RemoveCollection(_) | Does::Touch(_) => Change::Touch,
        Does::Write(write) => Change::Write { offset: write.offset, data: write.data },
        Does::Zero(span) => Change::Zero { offset: span.offset, len: span.len },
        Does::Truncate(size) => Change::Truncate { size },
        Does::Remove(_) => Change::Remove,
        Does::XattrSet(pair) => Change::XattrSet { name: pair.key, value: pair.value },
        Does::XattrRemove(name) => Change::XattrRemove { name },
        Does::OmapSet(pair) => Change::OmapSet { key: pair.key, value: pair.value },
        Does::OmapRemove(key) => Change::OmapRemove { key },
        Does::OmapRemoveRange(range) => Change::OmapRemoveRange { start: range.start, end: range.end },
        Does::OmapClear(_) => Change::OmapClear,
        Does::SlotSet(slot) => Change::SlotSet { index: slot.index, value: slot.value },
        Does::SlotRemove(index) => Change::SlotRemove { index },
        Does::SlotRemoveRange(range) => Change::SlotRemoveRange { start: range.start, end: range.end },
        Does::CloneTo(to) => Change::CloneTo { to: listed.at(to)? },
        Does::CloneRange(range) => Change::CloneRange {
            to: listed.at(range.to)?,
            from_offset: range.from_offset,
            len: range.len,
            to_offset: range.to_offset,
        },
        Does::Rename(to) => Change::Rename { to: listed.at(to)? },
    })
}

fn number(limit: u64) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

fn values(values: impl IntoIterator<Item = Option<Bytes>>) -> proto::ValuesResponse {
    proto::ValuesResponse { values: values.into_iter().map(|value| proto::Value { value }).collect() }
}

fn pairs(pairs: Vec<(Bytes, Bytes)>) -> proto::PairsResponse {
    proto::PairsResponse { pairs: pairs.into_iter().map(|(key, value)| proto::Pair { key, value }).collect() }
}

fn slot((index, value): (u64, Bytes)) -> proto::Slot {
    proto::Slot { index, value }
}

fn submitted(seq: CommitSeq) -> proto::SubmitResponse {
    proto::SubmitResponse { seq: seq.0 }
}

#[tonic::async_trait]
impl Objects for ObjectService {
    async fn capability(&self, _: Request<proto::CapabilityRequest>) -> Answer<proto::CapabilityResponse> {
        let able = self.store.capability();
        Ok(self.answer(proto::CapabilityResponse {
            backend: able.backend.into(),
            atomic_across_objects: able.atomic_across_objects,
            atomic_across_collections: able.atomic_across_collections,
            native_slots: able.native_slots,
            commit_order: able.commit_order,
            clone: able.clone,
            cheap_clone: able.cheap_clone,
            persistent: able.persistent,
            compresses: able.compresses,
            transaction_bytes_max: able.transaction_bytes_max,
            object_bytes_max: Some(able.object_bytes_max),
            exact_extents: Some(able.exact_extents),
            reverse_scans: Some(able.reverse_scans),
        }))
    }

    async fn submit(&self, request: Request<proto::SubmitRequest>) -> Answer<proto::SubmitResponse> {
        let txn = transaction(request.into_inner())?;
        if self.at_once {
            return settled(self.store.submit(txn)).await.map(|seq| self.answer(submitted(seq)));
        }
        self.call(move |store| store.submit(txn), submitted).await
    }

    async fn sync(&self, _: Request<proto::SyncRequest>) -> Answer<proto::SubmitResponse> {
        self.call(|store| store.sync(), submitted).await
    }

    async fn stat(&self, request: Request<proto::ObjectRequest>) -> Answer<proto::StatResponse> {
        let object = object(request.into_inner().object)?;
        let told = |stat: Option<esker_store::Stat>| {
            let exists = stat.is_some();
            let stat = stat.unwrap_or_default();
            let (omap_keys, slots, xattrs) = (stat.omap_keys, stat.slots, stat.xattrs);
            proto::StatResponse { exists, size: stat.size, omap_keys, slots, xattrs }
        };
        self.call(move |store| store.stat(&object), told).await
    }

    async fn read(&self, request: Request<proto::RangeRequest>) -> Answer<proto::ReadResponse> {
        let request = request.into_inner();
        let object = object(request.object)?;
        let range = request.start..request.end;
        self.call(move |store| store.read(&object, range), |data| proto::ReadResponse { data }).await
    }

    async fn extents(&self, request: Request<proto::RangeRequest>) -> Answer<proto::ExtentsResponse> {
        let request = request.into_inner();
        let object = object(request.object)?;
        let range = request.start..request.end;
        let told = |runs: Vec<esker_store::DataRun>| proto::ExtentsResponse {
            runs: runs.into_iter().map(|run| proto::Span { offset: run.offset, len: run.len }).collect(),
        };
        self.call(move |store| store.extents(&object, range), told).await
    }

    async fn xattr(&self, request: Request<proto::XattrRequest>) -> Answer<proto::ValuesResponse> {
        let request = request.into_inner();
        let object = object(request.object)?;
        self.call(move |store| store.xattr(&object, &request.name), |value| values([value])).await
    }

    async fn xattrs(&self, request: Request<proto::ObjectRequest>) -> Answer<proto::PairsResponse> {
        let object = object(request.into_inner().object)?;
        self.call(move |store| store.xattrs(&object), pairs).await
    }

    async fn omap_get(&self, request: Request<proto::OmapGetRequest>) -> Answer<proto::ValuesResponse> {
        let request = request.into_inner();
        let object = object(request.object)?;
        if let [key] = &request.keys[..] {
            let key = key.clone();
            return self.call(move |store| store.omap_get(&object, &key), |value| values([value])).await;
        }
        self.call(move |store| store.omap_get_many(&object, &request.keys), values).await
    }

    async fn omap_scan(&self, request: Request<proto::OmapScanRequest>) -> Answer<proto::PairsResponse> {
        let request = request.into_inner();
        let object = object(request.object)?;
        let scan = OmapScan {
            start: request.start,
            end: request.end,
            reverse: request.reverse,
            limit: number(request.limit),
            keys_only: request.keys_only,
        };
        self.call(move |store| store.omap_scan(&object, &scan), pairs).await
    }

    async fn slot_get(&self, request: Request<proto::SlotGetRequest>) -> Answer<proto::ValuesResponse> {
        let request = request.into_inner();
        let object = object(request.object)?;
        if let [index] = request.indexes[..] {
            return self.call(move |store| store.slot_get(&object, index), |value| values([value])).await;
        }
        self.call(move |store| store.slot_get_many(&object, &request.indexes), values).await
    }

    async fn slot_scan(&self, request: Request<proto::SlotScanRequest>) -> Answer<proto::SlotsResponse> {
        let request = request.into_inner();
        let object = object(request.object)?;
        let scan = SlotScan {
            range: request.start..request.end,
            reverse: request.reverse,
            limit: number(request.limit),
            keys_only: request.keys_only,
        };
        let told = |slots: Vec<(u64, Bytes)>| proto::SlotsResponse { slots: slots.into_iter().map(slot).collect() };
        self.call(move |store| store.slot_scan(&object, &scan), told).await
    }

    async fn commit_scan(&self, request: Request<proto::CommitScanRequest>) -> Answer<proto::CommitScanResponse> {
        let request = request.into_inner();
        let collection = Collection::new(request.collection);
        let after = CommitCursor(request.after_high, request.after_low);
        let limit = number(request.limit);
        let told = |(entries, next): (Vec<CommitEntry>, Option<CommitCursor>)| {
            use proto::commit_entry::Entry;
            let entry = |entry| match entry {
                CommitEntry::Slot(object, index, value) => (object, Entry::Slot(slot((index, value)))),
                CommitEntry::Omap(object, key, value) => (object, Entry::Omap(proto::Pair { key, value })),
            };
            let entries = entries
                .into_iter()
                .map(entry)
                .map(|(object, entry)| proto::CommitEntry { name: object.name().clone(), entry: Some(entry) });
            let more = next.is_some();
            let CommitCursor(next_high, next_low) = next.unwrap_or_default();
            proto::CommitScanResponse { entries: entries.collect(), more, next_high, next_low }
        };
        self.call(move |store| store.commit_scan(&collection, &request.name_prefix, after, limit), told).await
    }

    async fn collections(&self, _: Request<proto::CollectionsRequest>) -> Answer<proto::NamesResponse> {
        let told = |all: Vec<Collection>| proto::NamesResponse {
            names: all.into_iter().map(|collection| collection.name().clone()).collect(),
        };
        self.call(|store| store.collections(), told).await
    }

    async fn list(&self, request: Request<proto::ListRequest>) -> Answer<proto::NamesResponse> {
        let request = request.into_inner();
        let collection = Collection::new(request.collection);
        let limit = number(request.limit);
        let told = |names| proto::NamesResponse { names };
        self.call(move |store| store.list(&collection, request.after.as_deref(), limit), told).await
    }
}
