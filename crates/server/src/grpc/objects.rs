//! The service `esker.store.v1.Objects`: the store below the faces, for other processes that work on it together.
//!
//! request → checked, decoded → call of the store → barrier awaited on this side → answer
//!
//! Invariants:
//! 1. A client is shown nothing that a power cut could take back, unless its writer asked only for *applied*.
//! 2. A request is understood, as a whole, before anything is done.

use std::sync::Arc;

use esker_store::{Completion, Error, ObjectStore};
use esker_wire as wire;
use esker_wire::proto::store as proto;
use esker_wire::proto::store::objects_server::Objects;
use esker_wire::store::{
    CommitScan, INCARNATION, decode_commit_scan, decode_list, decode_object_request, decode_omap_get, decode_omap_scan,
    decode_range_request, decode_slot_get, decode_slot_scan, decode_transaction, decode_xattr_request,
    encode_capability, encode_collections, encode_commit_part, encode_data, encode_names, encode_pairs, encode_runs,
    encode_seq, encode_slots, encode_stat, encode_status, encode_values,
};
use tonic::{Request, Response, Status};

use super::waiting::applies_at_once;

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
        barrier.await.map_err(|error| encode_status(&error))?;
    }
    value.map_err(|error| encode_status(&error))
}

/// A request that makes no sense, as the store's error for that.
fn malformed(error: wire::Error) -> Status {
    encode_status(&match error {
        wire::Error::TooMany { field, len, limit, max } => Error::TooLarge { what: field, len, limit, max },
        wire::Error::Malformed { field, why } => Error::Invalid { what: field, why },
    })
}

#[tonic::async_trait]
impl Objects for ObjectService {
    async fn capability(&self, _: Request<proto::CapabilityRequest>) -> Answer<proto::CapabilityResponse> {
        Ok(self.answer(encode_capability(self.store.capability())))
    }

    async fn submit(&self, request: Request<proto::SubmitRequest>) -> Answer<proto::SubmitResponse> {
        let txn = decode_transaction(request.into_inner()).map_err(malformed)?;
        if self.at_once {
            return settled(self.store.submit(txn)).await.map(|seq| self.answer(encode_seq(seq)));
        }
        self.call(move |store| store.submit(txn), encode_seq).await
    }

    async fn sync(&self, _: Request<proto::SyncRequest>) -> Answer<proto::SubmitResponse> {
        self.call(|store| store.sync(), encode_seq).await
    }

    async fn stat(&self, request: Request<proto::ObjectRequest>) -> Answer<proto::StatResponse> {
        let object = decode_object_request(request.into_inner()).map_err(malformed)?;
        self.call(move |store| store.stat(&object), encode_stat).await
    }

    async fn read(&self, request: Request<proto::RangeRequest>) -> Answer<proto::ReadResponse> {
        let (object, range) = decode_range_request(request.into_inner()).map_err(malformed)?;
        self.call(move |store| store.read(&object, range), encode_data).await
    }

    async fn extents(&self, request: Request<proto::RangeRequest>) -> Answer<proto::ExtentsResponse> {
        let (object, range) = decode_range_request(request.into_inner()).map_err(malformed)?;
        self.call(move |store| store.extents(&object, range), encode_runs).await
    }

    async fn xattr(&self, request: Request<proto::XattrRequest>) -> Answer<proto::ValuesResponse> {
        let (object, name) = decode_xattr_request(request.into_inner()).map_err(malformed)?;
        self.call(move |store| store.xattr(&object, &name), |value| encode_values([value])).await
    }

    async fn xattrs(&self, request: Request<proto::ObjectRequest>) -> Answer<proto::PairsResponse> {
        let object = decode_object_request(request.into_inner()).map_err(malformed)?;
        self.call(move |store| store.xattrs(&object), encode_pairs).await
    }

    async fn omap_get(&self, request: Request<proto::OmapGetRequest>) -> Answer<proto::ValuesResponse> {
        let (object, keys) = decode_omap_get(request.into_inner()).map_err(malformed)?;
        if let [key] = &keys[..] {
            let key = key.clone();
            return self.call(move |store| store.omap_get(&object, &key), |value| encode_values([value])).await;
        }
        self.call(move |store| store.omap_get_many(&object, &keys), encode_values).await
    }

    async fn omap_scan(&self, request: Request<proto::OmapScanRequest>) -> Answer<proto::PairsResponse> {
        let (object, scan) = decode_omap_scan(request.into_inner()).map_err(malformed)?;
        self.call(move |store| store.omap_scan(&object, &scan), encode_pairs).await
    }

    async fn slot_get(&self, request: Request<proto::SlotGetRequest>) -> Answer<proto::ValuesResponse> {
        let (object, indexes) = decode_slot_get(request.into_inner()).map_err(malformed)?;
        if let [index] = indexes[..] {
            return self.call(move |store| store.slot_get(&object, index), |value| encode_values([value])).await;
        }
        self.call(move |store| store.slot_get_many(&object, &indexes), encode_values).await
    }

    async fn slot_scan(&self, request: Request<proto::SlotScanRequest>) -> Answer<proto::SlotsResponse> {
        let (object, scan) = decode_slot_scan(request.into_inner()).map_err(malformed)?;
        self.call(move |store| store.slot_scan(&object, &scan), encode_slots).await
    }

    async fn commit_scan(&self, request: Request<proto::CommitScanRequest>) -> Answer<proto::CommitScanResponse> {
        let CommitScan { collection, name_prefix, after, limit } = decode_commit_scan(request.into_inner());
        self.call(move |store| store.commit_scan(&collection, &name_prefix, after, limit), encode_commit_part).await
    }

    async fn collections(&self, _: Request<proto::CollectionsRequest>) -> Answer<proto::NamesResponse> {
        self.call(|store| store.collections(), encode_collections).await
    }

    async fn list(&self, request: Request<proto::ListRequest>) -> Answer<proto::NamesResponse> {
        let (collection, after, limit) = decode_list(request.into_inner());
        self.call(move |store| store.list(&collection, after.as_deref(), limit), encode_names).await
    }
}
