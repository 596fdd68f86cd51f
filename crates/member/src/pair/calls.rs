//! What one server of a pair asks of the other, and operators of both.
//!
//! address → connection → one call → its answer, or in words why there is none
//!
//! Invariant: each call ends in time.

use std::time::Duration;

use esker_peers::TlsFiles;
use esker_wire::proto::chain as proto;
use esker_wire::proto::chain::pair_client::PairClient;
use tonic::transport::Channel;

use crate::pair::promotion::Promotion;
use crate::pair::stand::Stand;

/// An answer that has not come by then does not come.
const CALL: Duration = Duration::from_secs(3);
/// Of a promotion, which waits for what the primary has still to send.
const PROMOTE: Duration = Duration::from_secs(30);

/// The other server.
#[derive(Clone)]
pub struct Calls {
    client: PairClient<Channel>,
}

async fn within<T>(
    time: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, String> {
    match tokio::time::timeout(time, call).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(status.message().to_owned()),
        Err(_) => Err(format!("no answer within {} s", time.as_secs())),
    }
}

impl Calls {
    /// The server that listens for peers at `HOST:PORT`.
    ///
    /// # Errors
    /// Why it cannot be reached.
    pub async fn connect(address: &str, tls: Option<&TlsFiles>) -> Result<Self, String> {
        let connected = tokio::time::timeout(CALL, esker_peers::connect(address, tls)).await;
        let channel = connected.map_err(|_| format!("no connection within {} s", CALL.as_secs()))??;
        Ok(Self { client: PairClient::new(channel) })
    }

    pub(crate) async fn follow(&mut self, request: proto::FollowRequest) -> Result<proto::FollowResponse, String> {
        within(CALL, self.client.follow(request)).await
    }

    pub(crate) async fn fence(&mut self, request: proto::FenceRequest) -> Result<proto::FenceResponse, String> {
        within(CALL, self.client.fence(request)).await
    }

    /// How the server stands.
    ///
    /// # Errors
    /// Why that is not known.
    pub async fn stand(&mut self) -> Result<Stand, String> {
        let answer = within(CALL, self.client.stand(proto::StandRequest {})).await?;
        Stand::decoded(answer).ok_or_else(|| "it does not say which role it has".into())
    }

    /// The server, a standby, is to be the primary; `force`: also where its primary cannot be told.
    ///
    /// # Errors
    /// Why it is not.
    pub async fn promote(&mut self, force: bool) -> Result<Promotion, String> {
        let answer = within(PROMOTE, self.client.promote(proto::PromoteRequest { force })).await?;
        let proto::PromoteResponse { epoch, lacks, told } = answer;
        Ok(Promotion { epoch, lacks, told })
    }

    /// The server, a primary, is to go on without its standby; whether nothing was acknowledged without that before.
    ///
    /// # Errors
    /// Why it does not.
    pub async fn release(&mut self) -> Result<bool, String> {
        Ok(within(CALL, self.client.release(proto::ReleaseRequest {})).await?.was_in_step)
    }
}
