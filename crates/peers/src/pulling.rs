//! A copy that this server pulls, and puts in place of what it has.
//!
//! letter → [`Pulling::begin`]: the one before is stopped → thread: [`Node::copying`] → what differs
//! → [`Node::copied`]
//!
//! Invariants:
//! 1. One thread at a time writes to the store of a node on behalf of copies.
//! 2. Where a copy does not come to its end the other side is told, and begins anew.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use esker_chain::copy::{Content, Options, Page, Progress, Source, Span, bring_up};
use esker_chain::{COLLECTION, Copying, Node, ServerId};
use esker_store::{Error, Result};
use esker_wire::proto::chain as proto;
use esker_wire::proto::chain::replication_client::ReplicationClient;
use parking_lot::Mutex;
use tokio::runtime::Handle;
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

struct Job {
    stop: Arc<AtomicBool>,
    bytes: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Job {
    /// Gives it up, and waits for its end.
    fn end(self, chain: &str) {
        self.stop.store(true, Ordering::SeqCst);
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
}

impl Pulling {
    pub(crate) fn new(reach: Arc<Reach>, me: ServerId, bytes_per_s: u64) -> Self {
        Self { jobs: Mutex::default(), reach, me, bytes_per_s }
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
        let (stop, bytes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&bytes));
        let (reach, me, bytes_per_s) = (Arc::clone(&self.reach), self.me, self.bytes_per_s);
        let thread = std::thread::Builder::new()
            .name("esker-copy".into())
            .spawn(move || pull(&reach, (me, bytes_per_s), &node, &offer, (&stopped, &counted)));
        match thread {
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

fn pull(
    reach: &Reach,
    (me, bytes_per_s): (ServerId, u64),
    node: &Node,
    offer: &Offer,
    (stop, bytes): (&AtomicBool, &AtomicU64),
) {
    let Offer { chain, from, version, seq, copy } = offer;
    let runtime = reach.runtime.clone();
    let client = loop {
        match runtime.block_on(reach.connect(chain, *from)) {
            Ok(client) => break client,
            Err(why) => {
                tracing::warn!(chain, server = %from, why, "a copy cannot be pulled yet");
                std::thread::sleep(AGAIN);
            }
        }
        if stop.load(Ordering::SeqCst) {
            return;
        }
    };
    let source = Remote { client, copy: *copy, runtime: runtime.clone() };
    let rate = Some(bytes_per_s).filter(|rate| *rate > 0);
    let options = Options { rate_bytes_per_s: rate, in_flight: IN_FLIGHT };
    let began = std::time::Instant::now();
    let mut progress = |done: Progress| {
        bytes.store(done.bytes, Ordering::Relaxed);
        !stop.load(Ordering::SeqCst)
    };
    let done = bring_up(&**node.store(), &source, &[COLLECTION.into()], options, &mut progress);
    let done = done.and_then(|report| {
        let ms = began.elapsed().as_millis() as u64;
        tracing::info!(chain, server = %from, seq, ?report, ms, "a copy is here");
        node.copied(*from, *version, *seq)
    });
    let failed = done.is_err();
    if let Err(error) = done {
        tracing::warn!(chain, server = %from, %error, "a copy was given up");
        node.copy_failed();
    }
    runtime.block_on(tell(reach, offer, me, failed, false));
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
}

impl Remote {
    fn ask<T>(&self, call: impl Future<Output = std::result::Result<tonic::Response<T>, Status>>) -> Result<T> {
        let answer = self.runtime.block_on(async { tokio::time::timeout(CALL, call).await });
        let failed = |kind, why: String| Error::io("asking for a part of a copy", std::io::Error::new(kind, why));
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
    use super::*;

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
