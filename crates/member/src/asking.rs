//! What a server asks the head of another chain on behalf of its own clients, whose keys that chain keeps.
//!
//! ```text
//! client's call → [`KeyCalls::ask`] → connection to the other chain's head, which is kept → service
//!               → [`AnswersKeys`] of that chain
//! ```
//!
//! Invariants:
//! 1. Each call ends in time.
//! 2. Calls of one chain, which has a connection of its own to its head, take no places from those of another that has
//!    its head at the same address.
//! 3. That nothing was done is said only where the request did not reach what would do it.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use esker_peers::TlsFiles;
use esker_wire::proto::chain::keys_client::KeysClient;
use esker_wire::proto::chain::keys_server::{Keys, KeysServer};
use esker_wire::proto::chain::{AskKeysRequest, AskKeysResponse};
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use crate::desk::Desk;

/// Longest message, in bytes: an answer of many values.
const MESSAGE_BYTES_MAX: usize = 96 << 20;
/// A connection that is not there by then does not come.
const CONNECT: Duration = Duration::from_secs(2);
/// An answer that is not there by then does not come: longer than calls wait there for memory and for slots, if nothing
/// else is set. What holds up the store there may last longer.
const ANSWER: Duration = Duration::from_secs(75);

/// What is on its way.
pub type Answering = Pin<Box<dyn Future<Output = AskKeysResponse> + Send>>;

/// What answers for a chain that this server heads.
pub trait AnswersKeys: Send + Sync + 'static {
    /// Does what is asked for.
    fn answer(&self, request: AskKeysRequest) -> Answering;
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// Nothing was done.
    NotAsked(String),
    /// It is not known what was done.
    Unknown(String),
}

struct Service(Weak<Desk<dyn AnswersKeys>>);

/// The calls, which this desk answers for as long as it is there.
pub(crate) fn service(desk: &Arc<Desk<dyn AnswersKeys>>) -> KeysServer<impl Keys + use<>> {
    let service = KeysServer::new(Service(Arc::downgrade(desk)));
    service.max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX)
}

#[tonic::async_trait]
impl Keys for Service {
    async fn ask_keys(&self, request: Request<AskKeysRequest>) -> Result<Response<AskKeysResponse>, Status> {
        let request = request.into_inner();
        let desk = self.0.upgrade().ok_or_else(|| Status::failed_precondition("this server has stopped"))?;
        desk.check(&request.cluster)?;
        let answers = desk.of(&request.chain)?;
        Ok(Response::new(answers.answer(request).await))
    }
}

/// Connections to the heads of other chains.
pub(crate) struct KeyCalls {
    cluster: String,
    tls: Option<TlsFiles>,
    /// It outlasts the terms whose clients ask; there is none before the first of them does.
    runtime: OnceLock<Runtime>,
    /// By address and chain.
    open: Mutex<HashMap<(String, String), KeysClient<Channel>>>,
}

impl KeyCalls {
    pub(crate) fn new(cluster: &str, tls: Option<&TlsFiles>) -> Arc<Self> {
        let (cluster, tls) = (cluster.to_owned(), tls.cloned());
        Arc::new(Self { cluster, tls, runtime: OnceLock::new(), open: Mutex::default() })
    }

    /// What runs the connections.
    fn runtime(&self) -> std::io::Result<&Runtime> {
        if let Some(runtime) = self.runtime.get() {
            return Ok(runtime);
        }
        let made = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("esker-asks")
            .enable_all()
            .build()?;
        // Of two that were made at once one stays.
        if let Err(other) = self.runtime.set(made) {
            other.shutdown_background();
        }
        self.runtime.get().ok_or_else(|| std::io::ErrorKind::Other.into())
    }

    async fn connection(&self, of: &(String, String)) -> Result<KeysClient<Channel>, Unanswered> {
        let address = &of.0;
        if let Some(open) = self.open.lock().get(of) {
            return Ok(open.clone());
        }
        let not_asked = |why: String| Unanswered::NotAsked(format!("{address}: {why}"));
        let runtime = self.runtime().map_err(|error| not_asked(error.to_string()))?;
        let (to, tls) = (address.clone(), self.tls.clone());
        let connecting = async move { tokio::time::timeout(CONNECT, esker_peers::connect(&to, tls.as_ref())).await };
        let connected = runtime.spawn(connecting).await.map_err(|error| not_asked(error.to_string()))?;
        let channel = connected.map_err(|_| not_asked("it does not answer".into()))?.map_err(not_asked)?;
        let client = KeysClient::new(channel)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        self.open.lock().insert(of.clone(), client.clone());
        Ok(client)
    }

    /// Asks what listens for peers at `HOST:PORT`, and heads this chain.
    pub(crate) async fn ask(
        &self,
        address: &str,
        chain: &str,
        request: AskKeysRequest,
    ) -> Result<AskKeysResponse, Unanswered> {
        let of = (address.to_owned(), chain.to_owned());
        let mut client = self.connection(&of).await?;
        let request = AskKeysRequest { chain: chain.to_owned(), cluster: self.cluster.clone(), ..request };
        let told = |why: &str| format!("the head of the chain {chain} ({address}): {why}");
        match tokio::time::timeout(ANSWER, client.ask_keys(request)).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            // Those of the service, before it begins, and of a server that does not have it.
            Ok(Err(status)) if matches!(status.code(), Code::FailedPrecondition | Code::Unimplemented) => {
                Err(Unanswered::NotAsked(told(status.message())))
            }
            Ok(Err(status)) => {
                // The next call makes another, and so finds whether it can be reached.
                self.open.lock().remove(&of);
                Err(Unanswered::Unknown(told(status.message())))
            }
            Err(_) => Err(Unanswered::Unknown(told(&format!("no answer within {} s", ANSWER.as_secs())))),
        }
    }

    /// Ends all connections.
    pub(crate) fn stop(&self) {
        self.open.lock().clear();
    }
}

impl Drop for KeyCalls {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use esker_chain::ServerId;
    use esker_peers::{Config, Peers};
    use tokio::task::JoinSet;
    use tonic::service::Routes;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// Says its number, or nothing.
    #[derive(Default)]
    struct Says {
        number: Option<i64>,
        asked: AtomicUsize,
    }

    impl AnswersKeys for Says {
        fn answer(&self, _: AskKeysRequest) -> Answering {
            let number = self.number;
            self.asked.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move {
                match number {
                    Some(number) => AskKeysResponse { number, ..AskKeysResponse::default() },
                    None => std::future::pending().await,
                }
            })
        }
    }

    #[test]
    fn a_chain_that_does_not_answer_takes_no_places_from_another_at_the_same_address() {
        // As many as one connection has places for, and some.
        const PLACES: usize = 256;
        let desk: Arc<Desk<dyn AnswersKeys>> = Desk::new("c");
        let says = Arc::new(Says::default());
        desk.set("silent", Some(Arc::clone(&says) as _));
        desk.set("other", Some(Arc::new(Says { number: Some(7), ..Says::default() })));
        let listen = "127.0.0.1:0".parse().unwrap();
        let (cluster, me) = ("c".to_owned(), ServerId(1));
        let config = Config { cluster, me, listen, tls: None, copy_bytes_per_s: 0, waiting_bytes_max: 1 << 20 };
        let peers = Peers::bind_beside(config, Routes::default().add_service(service(&desk))).unwrap();
        let (address, calls) = (peers.address().to_string(), KeyCalls::new("c", None));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut silent = JoinSet::new();
            // The first makes the connection.
            for count in [1, PLACES] {
                while silent.len() < if count == 1 { 1 } else { count + 50 } {
                    let (calls, address) = (Arc::clone(&calls), address.clone());
                    silent.spawn(async move { calls.ask(&address, "silent", AskKeysRequest::default()).await });
                }
                let asked = async {
                    while says.asked.load(Ordering::SeqCst) < count {
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                };
                tokio::time::timeout(PATIENCE, asked).await.unwrap();
            }
            let asked = calls.ask(&address, "other", AskKeysRequest::default());
            let answer = tokio::time::timeout(PATIENCE, asked).await;
            assert_eq!(answer.unwrap().unwrap().number, 7);
        });
        peers.stop();
    }
}
