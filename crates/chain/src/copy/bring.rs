//! The side that is brought up: it goes through the source's pages and through what it holds itself, side by side.
//!
//! page → what the target holds before it is removed → the same span of the target: the same digest? → next
//!                                                                      ↓ no: into the line
//! the device is full → only what the source does not have is removed → from the beginning
//!
//! Invariants:
//! 1. Pages come in order, or the source is refused: out of order they would remove what is not to be removed.
//! 2. Operations that are not submitted yet concern spans that are behind, and what is read is ahead of them.

use std::collections::VecDeque;
use std::io;
use std::iter::Peekable;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use bytes::Bytes;
use esker_store::{Change, Collection, Error, ObjectId, ObjectStore, Op, Result, prefix};

use super::content::{Content, first_data, read};
use super::difference::SURPLUS_BYTES;
use super::fetch::{Fetching, list, serve};
use super::keyed::Keyed;
use super::line::Line;
pub use super::line::Progress;
use super::pace::Pace;
use super::page::{Page, Span};
use super::source::Source;

/// Most contents on their way at once.
const IN_FLIGHT_MAX: usize = 64;

/// How a store is brought up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of contents per second that are fetched, from 1; `None`: as fast as it goes.
    pub rate_bytes_per_s: Option<u64>,
    /// Contents on their way at once, each by a thread of its own: 1 to 64; what is beyond counts as the nearest.
    pub in_flight: usize,
}

impl Default for Options {
    /// No limit of the rate, 8 in flight.
    fn default() -> Self {
        Self { rate_bytes_per_s: None, in_flight: 8 }
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Pages that were compared; again, if the target was full and had to begin anew.
    pub pages: u64,
    /// Pages whose contents were fetched.
    pub pages_fetched: u64,
    /// About the bytes of these contents.
    pub bytes_fetched: u64,
    /// Operations that took something away: an object, a collection, an entry, a run of entries or of bytes.
    pub removed: u64,
}

/// Brings `target` to the state of `source`, whatever it holds: afterwards every read of both gives the same, and all
/// of it is durable. Collections of `left_out` are neither looked at nor changed, whether the source has them or not.
/// No one else may write to `target` meanwhile; what it shows until then is neither state. After an error, or a crash,
/// it is brought up again as if nothing had been done, to the same source or to another.
///
/// Spans of which the target holds the same are not fetched. Where one of the two stores does not tell exactly which
/// bytes are holes ([`exact_extents`](esker_store::Capability::exact_extents)), chunks with holes may be fetched and
/// written though they read the same.
///
/// `progress` is called after each page and each transaction, and ten times a second while the rate is waited for;
/// `false` ends it.
///
/// # Errors
/// Those of `source` and of `target`. [`Error::Full`]: also without what the source does not have there is no room.
/// [`Error::Invalid`]: the rate is 0; the source's pages are out of order, or contents are not those of their pages.
/// [`Error::Stopped`]: `progress` said so, or a thread that reads the source panicked.
pub fn bring_up(
    target: &dyn ObjectStore,
    source: &dyn Source,
    left_out: &[Collection],
    options: Options,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<Report> {
    if options.rate_bytes_per_s == Some(0) {
        return Err(Error::Invalid { what: "rate", why: "at 0 bytes per second nothing ever comes".into() });
    }
    let (mut done, mut removed) = (Progress::default(), 0);
    let mut pass = |only_removes| {
        let mut told = |done| progress(done);
        removed += run(target, source, left_out, options, only_removes, &mut done, &mut told)?;
        target.sync().wait()
    };
    let ended = pass(false);
    if let Err(Error::Full { needed, free }) = ended {
        tracing::info!(needed, free, "the store is full: what its source does not have is removed first");
        pass(true)?;
        pass(false)?;
    } else {
        ended?;
    }
    let Progress { pages, pages_fetched, bytes_fetched, .. } = done;
    Ok(Report { pages, pages_fetched, bytes_fetched, removed })
}

/// Goes through everything once, with the threads that it needs.
fn run(
    target: &dyn ObjectStore,
    source: &dyn Source,
    left_out: &[Collection],
    options: Options,
    only_removes: bool,
    done: &mut Progress,
    tell: &mut dyn FnMut(Progress) -> bool,
) -> Result<u64> {
    let in_flight = options.in_flight.clamp(1, IN_FLIGHT_MAX);
    let failed = |error: io::Error| Error::io("starting a thread that reads the source", error);
    let name = || thread::Builder::new().name("chain-copy".into());
    let (fetching, wanted) = Fetching::new();
    let (send, pages) = sync_channel(1);
    let wanted = &wanted;
    // Both ends whose going ends the threads are gone before the scope waits for them, also after an error.
    thread::scope(move |scope| {
        let mut threads = vec![name().spawn_scoped(scope, move || list(source, &send)).map_err(failed)?];
        for _ in 0..if only_removes { 0 } else { in_flight } {
            threads.push(name().spawn_scoped(scope, move || serve(source, wanted)).map_err(failed)?);
        }
        let pace = options.rate_bytes_per_s.map(Pace::new);
        let line = Line::new(target, fetching, in_flight, pace, done, tell);
        let outcome = Own::new(target, left_out)
            .and_then(|own| Walk { target, left_out, only_removes, line, own, open: None, removed: 0 }.go(pages));
        for thread in threads {
            // One that panicked has left its question without an answer, which is the error that is told.
            let _ = thread.join();
        }
        outcome
    })
}

type Names<'a> = Peekable<Box<dyn Iterator<Item = Result<Bytes>> + 'a>>;

/// What the target holds and the walk has not come to.
struct Own<'a> {
    target: &'a dyn ObjectStore,
    collections: VecDeque<Collection>,
    /// The objects of the collection that the walk is in, unless it is new.
    names: Option<Names<'a>>,
    /// That collection.
    collection: Option<Collection>,
    /// The object that the walk was in last in it.
    name: Option<Bytes>,
}

impl<'a> Own<'a> {
    fn new(target: &'a dyn ObjectStore, left_out: &[Collection]) -> Result<Self> {
        let mut collections = target.collections().wait()?;
        collections.retain(|one| !left_out.contains(one));
        Ok(Self { target, collections: collections.into(), names: None, collection: None, name: None })
    }

    fn names(target: &'a dyn ObjectStore, collection: &Collection) -> Names<'a> {
        let names: Box<dyn Iterator<Item = Result<Bytes>> + 'a> =
            Box::new(prefix::names(target, collection, b"", None));
        names.peekable()
    }
}

/// The object that the walk is in.
struct Open {
    object: ObjectId,
    /// Its size in the source.
    size: u64,
    /// Its size in the target, which has it.
    own_size: Option<u64>,
    space: Space,
    /// Up to where its bytes are done.
    bytes_to: u64,
    omap_to: Option<Bytes>,
    slots_to: Option<u64>,
}

/// In the order of pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Space {
    Bytes,
    Omap,
    Slots,
    Done,
}

/// Through both at once.
struct Walk<'a> {
    target: &'a dyn ObjectStore,
    left_out: &'a [Collection],
    /// Nothing is compared or added.
    only_removes: bool,
    line: Line<'a>,
    own: Own<'a>,
    open: Option<Open>,
    /// Sizes that were cut.
    removed: u64,
}

fn out_of_order(span: &Span) -> Error {
    Error::Invalid { what: "pages of the source", why: format!("{span:?} is out of order") }
}

impl Walk<'_> {
    /// Goes through all pages. Tells how much was taken away.
    fn go(mut self, pages: Receiver<Result<Vec<Page>>>) -> Result<u64> {
        loop {
            let ended = |_| Error::Stopped { cause: "the thread that lists the source ended".into() };
            let batch = pages.recv().map_err(ended)??;
            if batch.is_empty() {
                return self.end();
            }
            batch.into_iter().try_for_each(|page| self.page(page))?;
        }
    }

    fn page(&mut self, page: Page) -> Result<()> {
        if self.left_out.contains(page.span.collection()) {
            return Ok(());
        }
        match &page.span {
            Span::Collection(collection) => {
                self.leave_collection()?;
                if self.own.collection.as_ref().is_some_and(|last| last >= collection) {
                    return Err(out_of_order(&page.span));
                }
                self.enter_collection(collection)?;
            }
            Span::Object { object, size } => {
                self.leave_object()?;
                let behind = self.own.name.as_ref().is_some_and(|last| last >= object.name());
                if behind || self.own.collection.as_ref() != Some(object.collection()) {
                    return Err(out_of_order(&page.span));
                }
                self.enter_object(object, *size)?;
                self.compare(&page)?;
            }
            Span::Bytes { range, .. } => {
                let open = self.enter_space(&page.span, Space::Bytes)?;
                if range.start < open.bytes_to || range.is_empty() || range.end > open.size {
                    return Err(out_of_order(&page.span));
                }
                let hole = std::mem::replace(&mut open.bytes_to, range.end)..range.start;
                self.clear_bytes(hole)?;
                self.compare(&page)?;
            }
            Span::Omap { after, to, .. } => {
                let open = self.enter_space(&page.span, Space::Omap)?;
                if *after != open.omap_to || after.as_ref().is_some_and(|after| after >= to) {
                    return Err(out_of_order(&page.span));
                }
                open.omap_to = Some(to.clone());
                self.compare(&page)?;
            }
            Span::Slots { after, to, .. } => {
                let open = self.enter_space(&page.span, Space::Slots)?;
                if *after != open.slots_to || after.as_ref().is_some_and(|after| after >= to) {
                    return Err(out_of_order(&page.span));
                }
                open.slots_to = Some(*to);
                self.compare(&page)?;
            }
        }
        self.line.passed(&page)
    }

    /// Has the page's content fetched if the target holds another.
    fn compare(&mut self, page: &Page) -> Result<()> {
        let Some(open) = &self.open else { return Ok(()) };
        if self.only_removes {
            return Ok(());
        }
        let fresh = open.own_size.is_none();
        let own = if !fresh {
            read(self.target, &page.span, page.bytes + SURPLUS_BYTES)?
        } else {
            // An object that is not there has no xattrs. Pages of other kinds are never empty.
            matches!(page.span, Span::Object { .. }).then(|| Content::Xattrs(Vec::new()))
        };
        if own.is_some_and(|own| own.digest() == page.digest) {
            return Ok(());
        }
        self.line.content(page.clone(), fresh)
    }

    fn enter_collection(&mut self, collection: &Collection) -> Result<()> {
        while let Some(gone) = self.own.collections.pop_front_if(|own| *own < *collection) {
            self.remove_collection(&gone)?;
        }
        let is_there = self.own.collections.pop_front_if(|own| own == collection).is_some();
        self.own.names = is_there.then(|| Own::names(self.own.target, collection));
        (self.own.collection, self.own.name) = (Some(collection.clone()), None);
        if !is_there && !self.only_removes {
            self.line.op(Op::CreateCollection(collection.clone()))?;
        }
        Ok(())
    }

    fn remove_collection(&mut self, collection: &Collection) -> Result<()> {
        for name in Own::names(self.own.target, collection) {
            self.change(&ObjectId::new(collection.clone(), name?), Change::Remove)?;
        }
        self.line.op(Op::RemoveCollection(collection.clone()))
    }

    fn leave_collection(&mut self) -> Result<()> {
        self.leave_object()?;
        self.remove_objects(None)
    }

    /// Removes the objects of this collection below `name`, or all that are left.
    fn remove_objects(&mut self, name: Option<&Bytes>) -> Result<()> {
        let Some(collection) = self.own.collection.clone() else { return Ok(()) };
        while let Some(names) = &mut self.own.names {
            let is_gone = |own: &Result<Bytes>| own.as_ref().is_ok_and(|own| name.is_none_or(|name| own < name));
            match names.next_if(|own| own.is_err() || is_gone(own)) {
                None => return Ok(()),
                Some(gone) => self.change(&ObjectId::new(collection.clone(), gone?), Change::Remove)?,
            }
        }
        Ok(())
    }

    fn enter_object(&mut self, object: &ObjectId, size: u64) -> Result<()> {
        self.remove_objects(Some(object.name()))?;
        self.own.name = Some(object.name().clone());
        let names = self.own.names.as_mut();
        let is_there = names
            .is_some_and(|names| names.next_if(|own| own.as_ref().is_ok_and(|own| own == object.name())).is_some());
        let own_size = if is_there { self.target.size(object).wait()? } else { None };
        let (bytes_to, omap_to, slots_to) = (0, None, None);
        let object = object.clone();
        self.open =
            Some(Open { object: object.clone(), size, own_size, space: Space::Bytes, bytes_to, omap_to, slots_to });
        if own_size.is_none() && !self.only_removes {
            self.change(&object, Change::Touch)?;
        }
        let own_size = own_size.unwrap_or(0);
        self.removed += u64::from(own_size > size);
        if own_size > size || (own_size < size && !self.only_removes) {
            self.change(&object, Change::Truncate { size })?;
        }
        Ok(())
    }

    /// Ends the spaces before this one.
    fn enter_space(&mut self, span: &Span, space: Space) -> Result<&mut Open> {
        let open = self.open.as_ref().filter(|open| Some(&open.object) == span.object() && open.space <= space);
        if open.is_none() {
            return Err(out_of_order(span));
        }
        self.leave_spaces(space)?;
        self.open.as_mut().ok_or_else(|| out_of_order(span))
    }

    fn leave_object(&mut self) -> Result<()> {
        self.leave_spaces(Space::Done)?;
        self.open = None;
        Ok(())
    }

    /// Removes what the target has behind the last pages of the spaces before this one.
    fn leave_spaces(&mut self, space: Space) -> Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let (from, object) = (std::mem::replace(&mut open.space, space), open.object.clone());
        if open.own_size.is_none() {
            return Ok(());
        }
        let (rest, omap_to, slots_to) = (open.bytes_to..open.size, open.omap_to.clone(), open.slots_to);
        if from <= Space::Bytes && space > Space::Bytes {
            self.clear_bytes(rest)?;
        }
        if from <= Space::Omap && space > Space::Omap {
            self.clear_keys(&object, omap_to.as_ref())?;
        }
        if from <= Space::Slots && space > Space::Slots {
            self.clear_keys(&object, slots_to.as_ref())?;
        }
        Ok(())
    }

    /// Makes a hole where the target has data.
    fn clear_bytes(&mut self, hole: std::ops::Range<u64>) -> Result<()> {
        let Some(Open { object, own_size: Some(own_size), .. }) = &self.open else { return Ok(()) };
        let (object, end) = (object.clone(), hole.end.min(*own_size));
        let Some(first) = first_data(self.target, &object, hole.start..end)? else { return Ok(()) };
        self.change(&object, Change::Zero { offset: first.offset, len: end - first.offset })
    }

    fn clear_keys<K: Keyed>(&mut self, object: &ObjectId, above: Option<&K>) -> Result<()> {
        match K::scan(self.target, object, above, None, 1, true)?.into_iter().next() {
            None => Ok(()),
            Some((first, _)) => self.change(object, K::remove_range(first, None)),
        }
    }

    fn change(&mut self, object: &ObjectId, change: Change) -> Result<()> {
        self.line.op(Op::Object(object.clone(), change))
    }

    /// Removes what is behind the last page, and does all that is in line. Tells how much was taken away.
    fn end(mut self) -> Result<u64> {
        self.leave_collection()?;
        while let Some(gone) = self.own.collections.pop_front() {
            self.remove_collection(&gone)?;
        }
        Ok(self.line.end()? + self.removed)
    }
}
