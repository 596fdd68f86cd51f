//! A copy that this server pulls, and puts in place of what it has.
//!
//! letter → [`Pulling::begin`]: the one before is stopped → thread: [`Node::copying`] → what differs
//! → [`Node::copied`]
//!
//! Invariants:
//! 1. One thread at a time writes to the store of a node on behalf of copies.
//! 2. Where a copy does not come to its end the node and the other side are told, and it begins anew: also where its
//!    thread is not started, or panics.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use esker_chain::copy::{Content, Options, Page, Progress, Source, Span, bring_up};
use esker_chain::{COLLECTION, Copying, Node, ServerId};
use esker_store::{Error, Result};
use esker_wire::proto::chain as proto;
use esker_wire::proto::chain::replication_client::ReplicationClient;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tonic::Status;
use tonic::transport::Channel;

use crate::reach::Reach;
use crate::spans::{decode_content, decode_page, encode_page, encode_span};

/// An answer that has not come by then does not come.
const CALL: Duration = Duration::from_secs(20);
/// From one try to reach the other server to the next.
const AGAIN: Duration = Duration::from_secs(1);
/// Contents that are asked for ahead.
const IN_FLIGHT: usize = 4;

/// A copy that another server offers.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub chain: String,
    pub from: ServerId,
    pub version: u64,
    pub seq: u64,
    pub copy: u64,
}

/// The other side is told of the end of a copy for so long, while the end of its thread is waited for.
const AT_THE_END: Duration = Duration::from_secs(2);

/// Has a thread of its own do this.
type Start = fn(Box<dyn FnOnce() + Send>) -> std::io::Result<JoinHandle<()>>;

fn start(work: Box<dyn FnOnce() + Send>) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("esker-copy".into()).spawn(work)
}

struct Job {
    stop: watch::Sender<bool>,
    bytes: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Job {
    /// Gives it up, and waits for its end: for what its store is at, and for no answer of the other side.
    fn end(self, chain: &str) {
        // It may have ended.
        let _ = self.stop.send(true);
        if self.thread.join().is_err() {
            tracing::error!(chain, "the thread of a copy panicked");
        }
    }
}

/// The copy of a chain: locked while one ends or begins, which may wait for the chain's store.
type Slot = Arc<Mutex<Option<Job>>>;

/// The copies that are pulled, by chain.
pub(crate) struct Pulling {
    /// Locked for a look only: no chain waits for another's.
    jobs: Mutex<HashMap<String, Slot>>,
    reach: Arc<Reach>,
    /// This server.
    me: ServerId,
    /// Of each, at most; 0: no limit.
    bytes_per_s: u64,
    /// Another in tests.
    start: Mutex<Start>,
}

impl Pulling {
    pub(crate) fn new(reach: Arc<Reach>, me: ServerId, bytes_per_s: u64) -> Self {
        Self { jobs: Mutex::default(), reach, me, bytes_per_s, start: Mutex::new(start) }
    }

    /// Pulls this copy for this node; one that is pulled for the chain already is given up first, which is waited for.
    /// What the node hears once this has returned comes behind the copy.
    pub(crate) fn begin(&self, node: Arc<Node>, offer: Offer) {
        let slot = self.slot(&offer.chain);
        let mut job = slot.lock();
        if let Some(before) = job.take() {
            before.end(&offer.chain);
        }
        match node.copying(offer.from, offer.version, offer.seq) {
            Copying::Begins => {}
            Copying::Here => return,
            Copying::Refused => {
                // One of the two has not read the other's table yet: it is to be offered again.
                let (reach, me) = (Arc::clone(&self.reach), self.me);
                self.reach.runtime.spawn(async move {
                    tell(&reach, &offer, me, true, true).await;
                });
                return;
            }
        }
        let ((stop, stopped), bytes) = (watch::channel(false), Arc::<AtomicU64>::default());
        let pull = Pull { reach: Arc::clone(&self.reach), me: self.me, node, offer, is_here: false };
        let (counted, bytes_per_s, start) = (Arc::clone(&bytes), self.bytes_per_s, *self.start.lock());
        match start(Box::new(move || pull.run(bytes_per_s, stopped, &counted))) {
            Ok(thread) => *job = Some(Job { stop, bytes, thread }),
            Err(error) => tracing::error!(%error, "a copy cannot be begun"),
        }
    }

    /// Gives up the copy of this chain, and waits for its end.
    pub(crate) fn stop(&self, chain: &str) {
        let job = self.slot(chain).lock().take();
        job.into_iter().for_each(|job| job.end(chain));
    }

    fn slot(&self, chain: &str) -> Slot {
        Arc::clone(self.jobs.lock().entry(chain.to_owned()).or_default())
    }

    /// Bytes that the copy of this chain has gone through, while it is pulled.
    pub(crate) fn progress(&self, chain: &str) -> Option<u64> {
        let slot = self.slot(chain);
        let job = slot.try_lock()?;
        let job = job.as_ref().filter(|job| !job.thread.is_finished())?;
        Some(job.bytes.load(Ordering::Relaxed))
    }
}

/// A copy that is pulled. Its node and the other side are told of its end when it is dropped.
struct Pull {
    reach: Arc<Reach>,
    /// This server.
    me: ServerId,
    node: Arc<Node>,
    offer: Offer,
    is_here: bool,
}

impl Pull {
    /// Pulls it, as far as it comes.
    fn run(mut self, bytes_per_s: u64, mut stop: watch::Receiver<bool>, bytes: &AtomicU64) {
        let Some(client) = self.connect(&mut stop) else { return };
        let Offer { chain, from, version, seq, copy } = &self.offer;
        let source = Remote { client, copy: *copy, runtime: self.reach.runtime.clone(), stop: stop.clone() };
        let rate = Some(bytes_per_s).filter(|rate| *rate > 0);
        let options = Options { rate_bytes_per_s: rate, in_flight: IN_FLIGHT };
        let began = std::time::Instant::now();
        let mut progress = |done: Progress| {
            bytes.store(done.bytes, Ordering::Relaxed);
            !*stop.borrow()
        };
        let done = bring_up(&**self.node.store(), &source, &[COLLECTION.into()], options, &mut progress);
        let done = done.and_then(|report| {
            let ms = began.elapsed().as_millis() as u64;
            tracing::info!(chain, server = %from, seq, ?report, ms, "a copy is here");
            self.node.copied(*from, *version, *seq)
        });
        if let Err(error) = &done {
            tracing::warn!(chain, server = %from, %error, "a copy was given up");
        }
        self.is_here = done.is_ok();
    }

    /// Connects to the other side; `None`: it is to stop.
    fn connect(&self, stop: &mut watch::Receiver<bool>) -> Option<ReplicationClient<Channel>> {
        let Offer { chain, from, .. } = &self.offer;
        let connected = async {
            loop {
                match self.reach.connect(chain, *from).await {
                    Ok(client) => return client,
                    Err(why) => tracing::warn!(chain, server = %from, why, "a copy cannot be pulled yet"),
                }
                tokio::time::sleep(AGAIN).await;
            }
        };
        self.reach.runtime.block_on(async {
            tokio::select! {
                client = connected => Some(client),
                () = stopped(stop) => None,
            }
        })
    }
}

impl Drop for Pull {
    fn drop(&mut self) {
        if !self.is_here {
            self.node.copy_failed();
        }
        let (reach, offer, me, failed) = (Arc::clone(&self.reach), self.offer.clone(), self.me, !self.is_here);
        let telling = async move { tell(&reach, &offer, me, failed, false).await };
        match Handle::try_current() {
            Ok(_) => drop(self.reach.runtime.spawn(telling)),
            // The end of the process waits for this thread, and ends the runtime behind it.
            Err(_) => drop(self.reach.runtime.block_on(async { tokio::time::timeout(AT_THE_END, telling).await })),
        }
    }
}

/// Waits until a copy is to stop.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // Where its job is gone, no one waits for it.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Tells the other side of the end of a copy.
async fn tell(reach: &Reach, offer: &Offer, me: ServerId, failed: bool, refused: bool) {
    let (copy, chain, server) = (offer.copy, offer.chain.clone(), me.0);
    let end = proto::EndCopyRequest { copy, failed, refused, chain, server };
    let told = async {
        let mut client = reach.connect(&offer.chain, offer.from).await?;
        client.end_copy(end).await.map_err(|status| status.to_string())
    };
    match tokio::time::timeout(CALL, told).await {
        Ok(Ok(_)) => {}
        // It gives it up by itself, later.
        Ok(Err(why)) => tracing::debug!(chain = offer.chain, why, "the end of a copy could not be told"),
        Err(_) => tracing::debug!(chain = offer.chain, "the end of a copy could not be told in time"),
    }
}

/// The copy, page by page, at the other server.
struct Remote {
    client: ReplicationClient<Channel>,
    copy: u64,
    runtime: Handle,
    stop: watch::Receiver<bool>,
}

impl Remote {
    fn ask<T>(&self, call: impl Future<Output = std::result::Result<tonic::Response<T>, Status>>) -> Result<T> {
        let failed = |kind, why: String| Error::io("asking for a part of a copy", std::io::Error::new(kind, why));
        let mut stop = self.stop.clone();
        let answer = self.runtime.block_on(async {
            tokio::select! {
                answer = tokio::time::timeout(CALL, call) => Some(answer),
                () = stopped(&mut stop) => None,
            }
        });
        let Some(answer) = answer else { return Err(failed(std::io::ErrorKind::Interrupted, "it is to stop".into())) };
        match answer {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(failed(std::io::ErrorKind::Other, status.to_string())),
            Err(_) => Err(failed(std::io::ErrorKind::TimedOut, format!("no answer within {} s", CALL.as_secs()))),
        }
    }
}

impl Source for Remote {
    fn pages(&self, after: Option<&Span>, max: usize) -> Result<Vec<Page>> {
        let request = proto::PagesRequest { copy: self.copy, after: after.map(encode_span), max: max as u32 };
        let answer = self.ask(self.client.clone().pages(request))?;
        answer.pages.into_iter().map(decode_page).collect()
    }

    fn content(&self, page: &Page) -> Result<Content> {
        let request = proto::ContentRequest { copy: self.copy, page: Some(encode_page(page)) };
        decode_content(self.ask(self.client.clone().content(request))?)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::time::Instant;

    use bytes::Bytes;
    use esker_chain::{Incarnation, Links, Member, Message, Operation, Place, Standing, Table};
    use esker_memory::MemoryStore;
    use esker_store::ObjectStore;
    use esker_wire::proto::chain::replication_server::{Replication, ReplicationServer};
    use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
    use tonic::{Request, Response, Streaming};

    use super::*;

    struct Alone;

    impl Links for Alone {
        fn send(&self, _: ServerId, _: Message<Operation>) {}
        fn refresh(&self) {}
        fn tell_in_step(&self, _: ServerId, _: u64) {}
        fn copy(&self, _: ServerId, _: u64, _: u64, _: Arc<dyn ObjectStore>) {}
        fn encode(&self, _: &Operation) -> Bytes {
            Bytes::new()
        }
        fn decode(&self, _: Bytes) -> Result<Operation> {
            Err(Error::Closed)
        }
        fn again(&self, _: ServerId) {}
    }

    /// What it is told of the end of a copy is counted.
    #[derive(Default)]
    struct Ends(Arc<AtomicU32>);

    #[tonic::async_trait]
    impl Replication for Ends {
        type SendStream = ReceiverStream<std::result::Result<proto::Sent, Status>>;

        async fn send(
            &self,
            _: Request<Streaming<proto::Letters>>,
        ) -> std::result::Result<Response<Self::SendStream>, Status> {
            Err(Status::unimplemented("letters"))
        }
        async fn pages(
            &self,
            _: Request<proto::PagesRequest>,
        ) -> std::result::Result<Response<proto::PagesResponse>, Status> {
            std::future::pending().await
        }
        async fn content(
            &self,
            _: Request<proto::ContentRequest>,
        ) -> std::result::Result<Response<proto::ContentResponse>, Status> {
            Err(Status::unimplemented("contents"))
        }
        async fn end_copy(
            &self,
            request: Request<proto::EndCopyRequest>,
        ) -> std::result::Result<Response<proto::EndCopyResponse>, Status> {
            let end = request.into_inner();
            assert!(end.failed && !end.refused && end.copy == 7);
            self.0.fetch_add(1, Ordering::SeqCst);
            Ok(Response::new(proto::EndCopyResponse {}))
        }
    }

    #[test]
    fn a_copy_ends_for_both_sides_also_where_its_thread_is_not_started_or_panics_or_waits() {
        // Failure: the other side went on to send what was to come behind the copy, which never came, and the server
        // put it by until its store was full. Fix: what pulls a copy tells of its end when it is dropped.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let (address, told) = (listener.local_addr().unwrap().to_string(), Ends::default());
        let count = Arc::clone(&told.0);
        let server = tonic::transport::Server::builder().add_service(ReplicationServer::new(told));
        runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        let reach = Arc::new(Reach::new(runtime.handle().clone(), None));
        reach.know("a", [(ServerId(0), address)].into());
        let pulling = Pulling::new(reach, ServerId(1), 0);
        let member = |server, place| Member { server: ServerId(server), incarnation: Incarnation(1), place, since: 1 };
        let members = vec![member(0, Place::Serving), member(1, Place::Syncing)];
        let starts: [Start; 3] = [
            |_| Err(std::io::Error::from_raw_os_error(11)),
            |work| {
                std::thread::Builder::new().spawn(move || {
                    let _work = work;
                    panic!("as a defect may");
                })
            },
            start,
        ];
        for (ends, start) in (1..).zip(starts) {
            let store = Arc::new(MemoryStore::new());
            let standing = Standing::read(&*store, &"s".into()).unwrap();
            let node = Node::new(store, &standing, ServerId(1), Incarnation(1), 1 << 20, Arc::new(Alone));
            node.go_by(Table { version: 1, members: members.clone() });
            *pulling.start.lock() = start;
            pulling.begin(node, Offer { chain: "a".into(), from: ServerId(0), version: 1, seq: 3, copy: 7 });
            let began = Instant::now();
            // One that waits for an answer is given up at once.
            pulling.stop("a");
            while count.load(Ordering::SeqCst) < ends {
                assert!(began.elapsed() < Duration::from_secs(10), "it is not told of the end of copy {ends}");
                std::thread::sleep(Duration::from_millis(2));
            }
            assert!(began.elapsed() < CALL / 2);
        }
    }

    #[test]
    fn no_chain_waits_for_the_copy_of_another() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let pulling = Pulling::new(Arc::new(Reach::new(runtime.handle().clone(), None)), ServerId(1), 0);
        let slot = pulling.slot("a");
        // So it stands while a copy of `a` begins, or ends, on a store that hangs.
        let beginning = slot.lock();
        pulling.stop("b");
        assert_eq!((pulling.progress("b"), pulling.progress("a")), (None, None));
        drop(beginning);
        pulling.stop("a");
    }
}
