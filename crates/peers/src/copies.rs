//! Copies that this server has offered: states of its store that do not change, and that others pull from.
//!
//! offered → asked for, page by page → ended, or not asked for any more
//!
//! Invariant: one copy is offered to a server for a chain at a time; while one is, the space of what is deleted does
//! not come back.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_chain::copy::{Source, Span, StoreSource};
use esker_chain::{COLLECTION, ServerId};
use esker_store::{Error, ObjectStore};
use esker_wire::proto::chain as proto;
use parking_lot::Mutex;
use tonic::Status;

use crate::spans::{decode_page, decode_span, encode_content, encode_page};

/// What is not asked for within this time is given up.
const IDLE: Duration = Duration::from_secs(300);
const IDLE_BEFORE: Duration = Duration::from_secs(60);
/// Most bytes of a chunk; pages that were told of have no more.
const BYTES_MAX: u64 = 1 << 20;
/// Most pages of one answer.
const PAGES_MAX: usize = 1_024;

struct Offered {
    chain: String,
    to: ServerId,
    version: u64,
    source: Arc<StoreSource>,
    asked: Instant,
}

/// Copies that are offered, by numbers that are not to be guessed and come once.
#[derive(Default)]
pub(crate) struct Copies(Mutex<HashMap<u64, Offered>>);

fn status(error: Error) -> Status {
    Status::internal(error.to_string())
}

fn bad(error: Error) -> Status {
    Status::invalid_argument(error.to_string())
}

impl Copies {
    /// Offers what this store holds; what it is asked for by.
    pub(crate) fn offer(&self, chain: &str, to: ServerId, version: u64, store: Arc<dyn ObjectStore>) -> u64 {
        let source = Arc::new(StoreSource::new(store, [COLLECTION.into()]));
        let offered = Offered { chain: chain.to_owned(), to, version, source, asked: Instant::now() };
        let mut all = self.0.lock();
        all.retain(|_, one| (one.chain.as_str(), one.to) != (chain, to));
        // Its keys are random, of each anew.
        let number = RandomState::new().hash_one((chain, to, version));
        all.insert(number, offered);
        number
    }

    fn source(&self, copy: u64) -> Result<Arc<StoreSource>, Status> {
        let mut all = self.0.lock();
        let offered = all.get_mut(&copy);
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
        let page = decode_page(page).map_err(bad)?;
        if let Span::Bytes { range, .. } = &page.span
            && range.end.saturating_sub(range.start) > BYTES_MAX
        {
            let why = format!("BytesSpan: {range:?} is longer than {BYTES_MAX} bytes");
            return Err(Status::invalid_argument(why));
        }
        Ok(encode_content(source.content(&page).map_err(status)?))
    }

    /// It is over.
    pub(crate) fn end(&self, copy: u64) {
        self.0.lock().remove(&copy);
    }

    /// Nothing is offered of this chain any more.
    pub(crate) fn forget(&self, chain: &str) {
        self.0.lock().retain(|_, one| one.chain != chain);
    }

    /// Ends what was offered of this chain and was not asked for lately; the servers that it was for. In another
    /// version of the table than this it is over sooner.
    pub(crate) fn tidy(&self, chain: &str, version: u64) -> Vec<ServerId> {
        let mut all = self.0.lock();
        let idle = all.extract_if(|_, one| {
            let idle = if one.version == version { IDLE } else { IDLE_BEFORE };
            one.chain == chain && one.asked.elapsed() > idle
        });
        idle.map(|(_, one)| one.to).collect()
    }
}
