//! Copies that this server has offered: states of its store that do not change, and that others pull from.
//!
//! offered → asked for, page by page → ended, or not asked for any more
//!
//! Invariant: one copy is offered to a server for a chain at a time; while one is, the space of what is deleted does
//! not come back.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_chain::copy::{Source, StoreSource};
use esker_chain::{COLLECTION, ServerId};
use esker_store::{Error, ObjectStore};
use esker_wire::proto::chain as proto;
use parking_lot::Mutex;
use tonic::Status;

use crate::spans::{decode_page, decode_span, encode_content, encode_page};

/// What is not asked for within this time is given up.
const IDLE: Duration = Duration::from_secs(30);
/// Most pages of one answer.
const PAGES_MAX: usize = 1_024;

struct Offered {
    chain: String,
    to: ServerId,
    source: Arc<StoreSource>,
    asked: Instant,
}

#[derive(Default)]
struct All {
    last: u64,
    offered: HashMap<u64, Offered>,
}

/// Copies that are offered.
#[derive(Default)]
pub(crate) struct Copies(Mutex<All>);

fn status(error: Error) -> Status {
    Status::internal(error.to_string())
}

fn bad(error: Error) -> Status {
    Status::invalid_argument(error.to_string())
}

impl Copies {
    /// Offers what this store holds; what it is asked for by.
    pub(crate) fn offer(&self, chain: &str, to: ServerId, store: Arc<dyn ObjectStore>) -> u64 {
        let source = Arc::new(StoreSource::new(store, [COLLECTION.into()]));
        let offered = Offered { chain: chain.to_owned(), to, source, asked: Instant::now() };
        let mut all = self.0.lock();
        all.offered.retain(|_, one| (one.chain.as_str(), one.to) != (chain, to));
        all.last += 1;
        let number = all.last;
        all.offered.insert(number, offered);
        number
    }

    fn source(&self, copy: u64) -> Result<Arc<StoreSource>, Status> {
        let mut all = self.0.lock();
        let offered = all.offered.get_mut(&copy);
        let offered = offered.ok_or_else(|| Status::not_found(format!("copy {copy} is not offered any more")))?;
        offered.asked = Instant::now();
        Ok(Arc::clone(&offered.source))
    }

    pub(crate) fn pages(&self, request: proto::PagesRequest) -> Result<proto::PagesResponse, Status> {
        let source = self.source(request.copy)?;
        let after = request.after.map(decode_span).transpose().map_err(bad)?;
        let max = (request.max as usize).clamp(1, PAGES_MAX);
        let pages = source.pages(after.as_ref(), max).map_err(status)?;
        Ok(proto::PagesResponse { pages: pages.iter().map(encode_page).collect() })
    }

    pub(crate) fn content(&self, request: proto::ContentRequest) -> Result<proto::ContentResponse, Status> {
        let source = self.source(request.copy)?;
        let page = request.page.ok_or_else(|| Status::invalid_argument("ContentRequest.page: it is absent"))?;
        Ok(encode_content(source.content(&decode_page(page).map_err(bad)?).map_err(status)?))
    }

    /// It is over; the chain that it was of, if it was offered still.
    pub(crate) fn end(&self, copy: u64) -> Option<String> {
        self.0.lock().offered.remove(&copy).map(|one| one.chain)
    }

    /// Nothing is offered of this chain any more.
    pub(crate) fn forget(&self, chain: &str) {
        self.0.lock().offered.retain(|_, one| one.chain != chain);
    }

    /// Ends what was not asked for lately; the chains of that.
    pub(crate) fn idle(&self) -> Vec<String> {
        let mut all = self.0.lock();
        let idle = all.offered.extract_if(|_, one| one.asked.elapsed() > IDLE);
        idle.map(|(_, one)| one.chain).collect()
    }
}
