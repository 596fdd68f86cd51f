//! What the other server of a pair, and operators, ask by gRPC.
//!
//! call → a thread that may wait for the store → [`Answers`] → answer, or in words why there is none

use std::sync::{Arc, Weak};

use esker_wire::proto::chain as proto;
use esker_wire::proto::chain::pair_server::{Pair, PairServer};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

/// A refusal, in words for the operator of the other side.
pub(crate) type Answer<T> = Result<T, String>;

/// What answers.
pub(crate) trait Answers: Send + Sync + 'static {
    fn follow(&self, request: proto::FollowRequest) -> Answer<proto::FollowResponse>;
    fn fence(&self, request: proto::FenceRequest) -> Answer<proto::FenceResponse>;
    fn stand(&self) -> Answer<proto::StandResponse>;
    fn promote(&self, force: bool) -> Answer<proto::PromoteResponse>;
    fn release(&self) -> Answer<proto::ReleaseResponse>;
}

struct Service<A>(Weak<A>);

/// The calls, which this one answers for as long as it lives.
pub(crate) fn routes<A: Answers>(answers: &Arc<A>) -> Routes {
    Routes::default().add_service(PairServer::new(Service(Arc::downgrade(answers))))
}

impl<A: Answers> Service<A> {
    async fn answer<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&A) -> Answer<T> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let answers = self.0.upgrade().ok_or_else(|| Status::unavailable("this server has stopped"))?;
        let answered = tokio::task::spawn_blocking(move || ask(&answers)).await;
        let answered = answered.map_err(|error| Status::internal(error.to_string()))?;
        answered.map(Response::new).map_err(Status::failed_precondition)
    }
}

#[tonic::async_trait]
impl<A: Answers> Pair for Service<A> {
    async fn follow(&self, request: Request<proto::FollowRequest>) -> Result<Response<proto::FollowResponse>, Status> {
        self.answer(|answers| answers.follow(request.into_inner())).await
    }

    async fn fence(&self, request: Request<proto::FenceRequest>) -> Result<Response<proto::FenceResponse>, Status> {
        self.answer(|answers| answers.fence(request.into_inner())).await
    }

    async fn stand(&self, _: Request<proto::StandRequest>) -> Result<Response<proto::StandResponse>, Status> {
        self.answer(A::stand).await
    }

    async fn promote(
        &self,
        request: Request<proto::PromoteRequest>,
    ) -> Result<Response<proto::PromoteResponse>, Status> {
        self.answer(move |answers| answers.promote(request.into_inner().force)).await
    }

    async fn release(&self, _: Request<proto::ReleaseRequest>) -> Result<Response<proto::ReleaseResponse>, Status> {
        self.answer(A::release).await
    }
}
