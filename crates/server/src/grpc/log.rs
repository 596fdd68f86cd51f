//! The service `esker.log.v1.Log` over the log face.
//!
//! request → handle of the log → call of the face (on a thread that may wait, save for appends that need not) → barrier
//! awaited → answer
//!
//! Invariants:
//! 1. Nothing is answered before it may be shown: appends when durable, unless asked for otherwise.
//! 2. What a client makes the server hold is bounded: messages, appends in flight, followers, what is read ahead.

use std::sync::Arc;

use esker_log::{BATCH_MAX, Layout, Log as Handle, Record};
use esker_wire::log as wire;
use esker_wire::proto::log as proto;
use esker_wire::proto::log::log_server::Log;
use tonic::{Request, Response, Status, Streaming};

use super::append;
use super::caller::{Access, caller, permit};
use super::follow::{self, Deliveries};
use super::service::LogService;
use super::status::Told;
use super::waiting::{completed, waiting};
use crate::front::users::Face;

/// Names that one List returns, at most; and if nothing is said.
const LIST_MAX: usize = 10_000;
const LIST_DEFAULT: usize = 1_000;
/// Bytes of data that one ReadRange returns, about, at most; and if nothing is said.
const RANGE_BYTES_MAX: usize = 16 << 20;
const RANGE_BYTES_DEFAULT: usize = 1 << 20;

type Answer<T> = Result<Response<T>, Status>;

fn answer<T>(outcome: Result<T, Told>) -> Answer<T> {
    outcome.map(Response::new).map_err(Status::from)
}

/// What there is to say about a log, called `name` by who asks. Reads.
fn info(log: &Handle, name: &str) -> Result<proto::InfoResponse, Told> {
    let view = log.refresh()?;
    let tail = log.tail()?;
    Ok(proto::InfoResponse {
        log: name.to_owned(),
        id: log.id(),
        options: Some(wire::encode_options(&view.options)),
        epoch: view.epoch,
        tail: tail.position,
        trimmed: view.trimmed,
        sealed: view.sealed.is_some(),
        sequencer: view.sequencer.clone(),
        owner: view.owner.clone(),
    })
}

#[tonic::async_trait]
impl Log for LogService {
    async fn create(&self, request: Request<proto::CreateRequest>) -> Answer<proto::InfoResponse> {
        permit(&request, Face::Log, &request.get_ref().log, Access::Write)?;
        let request = request.into_inner();
        let names = Arc::clone(&self.names);
        answer(
            waiting(move || {
                let best = Layout::best_for(&names.logs.store().capability());
                let log = names.logs.create(&request.log, wire::decode_options(request.options, best)?)?;
                names.forget(&request.log);
                info(&log, &request.log)
            })
            .await,
        )
    }

    async fn delete(&self, request: Request<proto::DeleteRequest>) -> Answer<proto::DeleteResponse> {
        permit(&request, Face::Log, &request.get_ref().log, Access::Write)?;
        let name = request.into_inner().log;
        let names = Arc::clone(&self.names);
        answer(
            waiting(move || {
                let deleted = names.logs.delete(&name);
                names.forget(&name);
                Ok(deleted.map(|()| proto::DeleteResponse {})?)
            })
            .await,
        )
    }

    async fn rename(&self, request: Request<proto::RenameRequest>) -> Answer<proto::RenameResponse> {
        permit(&request, Face::Log, &request.get_ref().log, Access::Write)?;
        permit(&request, Face::Log, &request.get_ref().to, Access::Write)?;
        let request = request.into_inner();
        let names = Arc::clone(&self.names);
        answer(
            waiting(move || {
                let renamed = names.logs.rename(&request.log, &request.to);
                names.forget(&request.log);
                names.forget(&request.to);
                Ok(renamed.map(|()| proto::RenameResponse {})?)
            })
            .await,
        )
    }

    async fn list(&self, request: Request<proto::ListRequest>) -> Answer<proto::ListResponse> {
        let user = caller(&request)?;
        let request = request.into_inner();
        let limit = if request.limit == 0 { LIST_DEFAULT } else { LIST_MAX.min(request.limit as usize) };
        let names = Arc::clone(&self.names);
        answer(
            waiting(move || {
                let mut after = Some(request.after).filter(|after| !after.is_empty());
                let mut logs = Vec::new();
                // What the user may not read is passed over, so that an empty answer is the end.
                while logs.len() < limit {
                    let page = names.logs.list(after.as_deref(), limit)?;
                    after = page.last().cloned();
                    let last = page.len() < limit;
                    logs.extend(page.into_iter().filter(|name| user.may(Face::Log, name, false)));
                    if last {
                        break;
                    }
                }
                logs.truncate(limit);
                Ok(proto::ListResponse { logs })
            })
            .await,
        )
    }

    async fn info(&self, request: Request<proto::InfoRequest>) -> Answer<proto::InfoResponse> {
        permit(&request, Face::Log, &request.get_ref().log, Access::Read)?;
        let name = request.into_inner().log;
        answer(self.with(name.clone(), move |log| info(log, &name)).await)
    }

    async fn append(&self, request: Request<proto::AppendRequest>) -> Answer<proto::AppendResponse> {
        permit(&request, Face::Log, &request.get_ref().log, Access::Write)?;
        let outcome = async {
            if !request.get_ref().records.is_empty() {
                return Err(Told::invalid(
                    "Append takes a record: frames are for AppendStream, batches for AppendBatch",
                ));
            }
            let (position, already_there) = completed(self.apply_one(request.into_inner()).await?).await?;
            Ok(proto::AppendResponse { position, already_there })
        };
        answer(outcome.await)
    }

    type AppendStreamStream = append::Answers;

    async fn append_stream(
        &self,
        request: Request<Streaming<proto::AppendRequest>>,
    ) -> Answer<Self::AppendStreamStream> {
        let user = caller(&request)?;
        let mut answers = Response::new(append::start(self.clone(), user, request.into_inner()));
        answers.metadata_mut().insert(wire::APPENDS_MAX, (BATCH_MAX as u64).into());
        Ok(answers)
    }

    async fn append_batch(&self, request: Request<proto::AppendBatchRequest>) -> Answer<proto::AppendResponse> {
        permit(&request, Face::Log, &request.get_ref().log, Access::Write)?;
        let request = request.into_inner();
        let outcome = async {
            let records = request.records.into_iter().map(|one| wire::decode_record(Some(one))).collect();
            let applied = self.apply(&request.log, records, wire::decode_durability(request.applied_only)).await?;
            Ok(proto::AppendResponse { position: completed(applied).await?, already_there: false })
        };
        answer(outcome.await)
    }

    async fn append_at(&self, request: Request<proto::AppendAtRequest>) -> Answer<proto::AppendResponse> {
        permit(&request, Face::Log, &request.get_ref().log, Access::Write)?;
        let request = request.into_inner();
        let outcome = async {
            let records: Vec<Record> = request.records.into_iter().map(|one| wire::decode_record(Some(one))).collect();
            let expected = request.expected;
            let applied = self.with(request.log, move |log| Ok(log.append_at(expected, &records)?)).await?;
            Ok(proto::AppendResponse { position: completed(applied).await?, already_there: false })
        };
        answer(outcome.await)
    }

    async fn open_writer(&self, request: Request<proto::OpenWriterRequest>) -> Answer<proto::OpenWriterResponse> {
        permit(&request, Face::Log, &request.get_ref().log, Access::Write)?;
        let request = request.into_inner();
        let names = Arc::clone(&self.names);
        let opened = self.with(request.log, move |log| names.open_writer(log, &request.writer)).await;
        answer(opened.map(|(next_number, session)| proto::OpenWriterResponse { next_number, session }))
    }

    async fn read(&self, request: Request<proto::ReadRequest>) -> Answer<proto::ReadResponse> {
        permit(&request, Face::Log, &request.get_ref().log, Access::Read)?;
        let request = request.into_inner();
        let outcome = async {
            let read = self.with(request.log, move |log| Ok(log.read(request.position)?)).await?;
            Ok(proto::ReadResponse { found: Some(wire::encode_found(completed(read).await?)) })
        };
        answer(outcome.await)
    }

    async fn read_range(&self, request: Request<proto::ReadRangeRequest>) -> Answer<proto::ReadRangeResponse> {
        permit(&request, Face::Log, &request.get_ref().log, Access::Read)?;
        let request = request.into_inner();
        let bytes = match request.bytes_max {
            0 => RANGE_BYTES_DEFAULT,
            bytes => RANGE_BYTES_MAX.min(bytes as usize),
        };
        let outcome = async {
            let range = request.start..request.end;
            let read = self.with(request.log, move |log| Ok(log.read_range(range.clone(), bytes)?)).await?;
            Ok(proto::ReadRangeResponse { found: completed(read).await?.into_iter().map(wire::encode_found).collect() })
        };
        answer(outcome.await)
    }

    type FollowStream = Deliveries;

    async fn follow(&self, request: Request<proto::FollowRequest>) -> Answer<Self::FollowStream> {
        permit(&request, Face::Log, &request.get_ref().log, Access::Read)?;
        answer(follow::start(self, request.into_inner()).await)
    }

    async fn fill(&self, request: Request<proto::FillRequest>) -> Answer<proto::FillResponse> {
        permit(&request, Face::Log, &request.get_ref().log, Access::Write)?;
        let request = request.into_inner();
        let done = self.with(request.log, move |log| Ok(log.fill(request.position)?)).await;
        answer(done.map(|()| proto::FillResponse {}))
    }

    async fn trim(&self, request: Request<proto::TrimRequest>) -> Answer<proto::TrimResponse> {
        permit(&request, Face::Log, &request.get_ref().log, Access::Write)?;
        let request = request.into_inner();
        let done = self.with(request.log, move |log| Ok(log.trim(request.position)?)).await;
        answer(done.map(|()| proto::TrimResponse {}))
    }

    async fn trim_to(&self, request: Request<proto::TrimToRequest>) -> Answer<proto::TrimToResponse> {
        permit(&request, Face::Log, &request.get_ref().log, Access::Write)?;
        let request = request.into_inner();
        let done = self
            .with(request.log, move |log| {
                log.trim_to(request.position)?;
                Ok(log.view().trimmed)
            })
            .await;
        answer(done.map(|trimmed| proto::TrimToResponse { trimmed }))
    }

    async fn tail(&self, request: Request<proto::TailRequest>) -> Answer<proto::TailResponse> {
        permit(&request, Face::Log, &request.get_ref().log, Access::Read)?;
        let tail = self.with(request.into_inner().log, |log| Ok(log.tail()?)).await;
        answer(tail.map(|tail| proto::TailResponse { position: tail.position, epoch: tail.epoch }))
    }

    async fn seal(&self, request: Request<proto::SealRequest>) -> Answer<proto::SealResponse> {
        permit(&request, Face::Log, &request.get_ref().log, Access::Write)?;
        let sealed = self.with(request.into_inner().log, |log| Ok(log.seal()?)).await;
        answer(sealed.map(|tail| proto::SealResponse { tail }))
    }

    async fn reshape(&self, request: Request<proto::ReshapeRequest>) -> Answer<proto::ReshapeResponse> {
        permit(&request, Face::Log, &request.get_ref().log, Access::Write)?;
        let request = request.into_inner();
        let done = self.with(request.log, move |log| Ok(log.reshape(request.width, request.slots)?)).await;
        answer(done.map(|()| proto::ReshapeResponse {}))
    }

    async fn set_consumer(&self, request: Request<proto::SetConsumerRequest>) -> Answer<proto::SetConsumerResponse> {
        permit(&request, Face::Log, &request.get_ref().log, Access::Write)?;
        let request = request.into_inner();
        let done = self
            .with(request.log, move |log| match request.position {
                Some(position) => Ok(log.set_consumer(&request.consumer, position)?),
                None => Ok(log.remove_consumer(&request.consumer)?),
            })
            .await;
        answer(done.map(|()| proto::SetConsumerResponse {}))
    }

    async fn get_consumer(&self, request: Request<proto::GetConsumerRequest>) -> Answer<proto::GetConsumerResponse> {
        permit(&request, Face::Log, &request.get_ref().log, Access::Read)?;
        let request = request.into_inner();
        let found = self.with(request.log, move |log| Ok(log.consumer(&request.consumer)?)).await;
        answer(found.map(|position| proto::GetConsumerResponse { position }))
    }
}
