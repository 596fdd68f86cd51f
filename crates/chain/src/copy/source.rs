//! The side that is copied from: a store that does not change, cut into pages.
//!
//! place → [`StoreSource`]: collections → objects → chunks with data, runs of keys → digested → [`Page`]s
//!
//! Invariant: pages depend on the store's state and on the place only, so that a walk may go on anywhere, and at any
//! source of the same state.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_store::{Collection, Error, ObjectId, ObjectStore, Result, prefix};

use super::content::{CHUNK_BYTES, Content, SCAN_ENTRIES, first_data, read, read_bytes};
use super::keyed::Keyed;
use super::page::{Page, Span};

/// Keys and values of one page, in bytes; more only where one entry is larger.
const KEYS_BYTES_MAX: u64 = 256 << 10;
/// One answer ends after as many bytes were read for its digests.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// And with its first page after this: on a slow device what was asked for comes before the side that asks gives up.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);

/// Where a store's state comes from. Called from several threads at once.
pub trait Source: Send + Sync {
    /// Pages in canonical order behind `after`, or from the beginning, about `max` of them at most; none: the end.
    ///
    /// # Errors
    /// Those of reading.
    fn pages(&self, after: Option<&Span>, max: usize) -> Result<Vec<Page>>;

    /// What stands in a page that [`pages`](Self::pages) has told of, and that is not a collection.
    ///
    /// # Errors
    /// Those of reading; [`Error::Invalid`]: it has told of no such page.
    fn content(&self, page: &Page) -> Result<Content>;
}

/// A snapshot of a store as a source.
pub struct StoreSource {
    store: Arc<dyn ObjectStore>,
    left_out: BTreeSet<Collection>,
    answer_time_max: Duration,
}

/// One answer in the making.
struct Answer {
    pages: Vec<Page>,
    max: usize,
    bytes: u64,
    began: Instant,
    time_max: Duration,
}

impl Answer {
    /// Once it is, it stays so.
    fn is_full(&self) -> bool {
        // One without pages is the end.
        let is_late = || !self.pages.is_empty() && self.began.elapsed() >= self.time_max;
        self.pages.len() >= self.max || self.bytes >= ANSWER_BYTES_MAX || is_late()
    }

    fn push(&mut self, span: Span, content: &Content) {
        let page = Page { span, digest: content.digest(), bytes: content.bytes() };
        self.bytes += page.bytes;
        self.pages.push(page);
    }
}

impl StoreSource {
    /// A source of what `store` holds but for the collections `left_out`. The store must not change, as a
    /// [snapshot](ObjectStore::snapshot) does not.
    pub fn new(store: Arc<dyn ObjectStore>, left_out: impl IntoIterator<Item = Collection>) -> Self {
        Self { store, left_out: left_out.into_iter().collect(), answer_time_max: ANSWER_TIME_MAX }
    }

    /// The pages of an object behind `after`, which is one of its spans, or all of them.
    fn object(&self, object: &ObjectId, after: Option<&Span>, answer: &mut Answer) -> Result<()> {
        let Some(size) = self.store.size(object).wait()? else { return Ok(()) };
        if after.is_none() {
            let xattrs = Content::Xattrs(self.store.xattrs(object).wait()?);
            answer.push(Span::Object { object: object.clone(), size }, &xattrs);
        }
        let mut at = match after {
            None | Some(Span::Object { .. } | Span::Collection(_)) => 0,
            Some(Span::Bytes { range, .. }) => range.end,
            Some(Span::Omap { .. } | Span::Slots { .. }) => size,
        };
        while at < size && !answer.is_full() {
            let Some(run) = first_data(&*self.store, object, at..size)? else { break };
            let start = run.offset - run.offset % CHUNK_BYTES;
            let range = start..size.min(start + CHUNK_BYTES);
            at = range.end;
            let content = read_bytes(&*self.store, object, range.clone())?;
            answer.push(Span::Bytes { object: object.clone(), range }, &content);
        }
        if !matches!(after, Some(Span::Slots { .. })) {
            let above = if let Some(Span::Omap { to, .. }) = after { Some(to.clone()) } else { None };
            let span = |after, to| Span::Omap { object: object.clone(), after, to };
            self.keys::<Bytes>(object, above, answer, span, Content::Omap)?;
        }
        let above = if let Some(Span::Slots { to, .. }) = after { Some(*to) } else { None };
        let span = |after, to| Span::Slots { object: object.clone(), after, to };
        self.keys::<u64>(object, above, answer, span, Content::Slots)
    }

    /// Pages of ordered keys, until there are no more or the answer is full; then what was gathered for the next page
    /// is gathered anew for the next answer.
    fn keys<K: Keyed>(
        &self,
        object: &ObjectId,
        mut above: Option<K>,
        answer: &mut Answer,
        span: impl Fn(Option<K>, K) -> Span,
        content: impl Fn(Vec<(K, Bytes)>) -> Content,
    ) -> Result<()> {
        let (mut gathered, mut bytes, mut seen) = (Vec::new(), 0, above.clone());
        while !answer.is_full() {
            let more = K::scan(&*self.store, object, seen.as_ref(), None, SCAN_ENTRIES, false)?;
            let ended = more.is_empty();
            for (key, value) in more {
                let len = key.entry_bytes(&value);
                if bytes + len > KEYS_BYTES_MAX && !gathered.is_empty() {
                    above = Self::page(above, std::mem::take(&mut gathered), answer, &span, &content);
                    bytes = 0;
                    if answer.is_full() {
                        return Ok(());
                    }
                }
                seen = Some(key.clone());
                bytes += len;
                gathered.push((key, value));
            }
            if ended {
                Self::page(above, gathered, answer, &span, &content);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Adds what was gathered as a page behind `above`, and tells its last key.
    fn page<K: Keyed>(
        above: Option<K>,
        gathered: Vec<(K, Bytes)>,
        answer: &mut Answer,
        span: impl Fn(Option<K>, K) -> Span,
        content: impl Fn(Vec<(K, Bytes)>) -> Content,
    ) -> Option<K> {
        let Some((last, _)) = gathered.last().cloned() else { return above };
        answer.push(span(above, last.clone()), &content(gathered));
        Some(last)
    }
}

impl Source for StoreSource {
    fn pages(&self, after: Option<&Span>, max: usize) -> Result<Vec<Page>> {
        let (began, time_max) = (Instant::now(), self.answer_time_max);
        let mut answer = Answer { pages: Vec::new(), max: max.max(1), bytes: 0, began, time_max };
        let mut collections = self.store.collections().wait()?;
        collections.retain(|one| !self.left_out.contains(one) && after.is_none_or(|after| one >= after.collection()));
        for collection in collections {
            let within = after.filter(|after| *after.collection() == collection);
            if within.is_none() {
                answer.pages.push(Page { span: Span::Collection(collection.clone()), digest: 0, bytes: 0 });
            }
            let begun = within.and_then(Span::object);
            if let Some(object) = begun {
                self.object(object, within, &mut answer)?;
            }
            if answer.is_full() {
                break;
            }
            let begun = begun.map(|object| &object.name()[..]);
            for object in prefix::objects(&*self.store, &collection, b"", begun) {
                self.object(&object?, None, &mut answer)?;
                if answer.is_full() {
                    break;
                }
            }
            if answer.is_full() {
                break;
            }
        }
        Ok(answer.pages)
    }

    fn content(&self, page: &Page) -> Result<Content> {
        read(&*self.store, &page.span, page.bytes)?.ok_or_else(|| {
            let why = format!("{:?} holds more than the {} bytes that it was said to hold", page.span, page.bytes);
            Error::Invalid { what: "page", why }
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use esker_memory::MemoryStore;
    use esker_store::{Change, Transaction};

    use super::*;
    use crate::copy::{Options, bring_up};

    /// All pages, and how many came with each answer.
    fn walk(source: &StoreSource) -> (Vec<Page>, Vec<usize>) {
        let (mut pages, mut counts) = (Vec::<Page>::new(), Vec::new());
        loop {
            let answer = source.pages(pages.last().map(|page| &page.span), 256).unwrap();
            if answer.is_empty() {
                return (pages, counts);
            }
            counts.push(answer.len());
            pages.extend(answer);
        }
    }

    #[test]
    fn an_answer_that_takes_long_ends_after_its_first_page_and_the_walk_is_the_same() {
        // Failure: a device so slow that 64 MiB took longer than the other side waits had each copy begin anew for
        // ever. Fix: an answer is full also after a time.
        let store = Arc::new(MemoryStore::new());
        for collection in ["a", "b"] {
            store.submit(Transaction::new().create_collection(&collection.into())).wait().unwrap();
            for object in ["o", "p"] {
                let object = ObjectId::new(collection.into(), object);
                let write = |offset| Change::Write { offset, data: vec![1; 100].into() };
                let mut txn = Transaction::new().change(&object, write(0)).change(&object, write(3 << 20));
                for key in 0..12_u64 {
                    let value = Bytes::from(vec![key as u8; 100 << 10]);
                    let name = Bytes::from(format!("k{key:02}"));
                    txn = txn.change(&object, Change::OmapSet { key: name, value: value.clone() });
                    txn = txn.change(&object, Change::SlotSet { index: key, value });
                }
                store.submit(txn).wait().unwrap();
            }
        }
        let at_once = StoreSource::new(Arc::clone(&store) as _, []);
        let late = StoreSource { answer_time_max: Duration::ZERO, ..StoreSource::new(Arc::clone(&store) as _, []) };
        let ((pages, counts), (late_pages, late_counts)) = (walk(&at_once), walk(&late));
        assert!(counts.len() == 1 && pages.len() > 40, "{counts:?}");
        assert_eq!(late_counts, vec![1; pages.len()]);
        assert_eq!(late_pages, pages);
        let target = Arc::new(MemoryStore::new());
        bring_up(&*target, &late, &[], Options::default(), &mut |_| true).unwrap();
        assert_eq!(walk(&StoreSource::new(target, [])).0, pages);
    }
}
