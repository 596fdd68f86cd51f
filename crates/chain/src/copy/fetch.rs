//! Pages and contents that are fetched while others are compared and written.
//!
//! [`list`]: source → batches of pages, one ahead → who compares
//! who compares → page → [`serve`], some threads → content → the answer that waits in its place in line
//!
//! Invariant: a thread ends when the other end of its channel has gone, and after what it is at.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use esker_store::{Error, Result};
use parking_lot::Mutex;

use super::content::Content;
use super::page::Page;
use super::source::Source;

/// Pages that are asked for at once.
const PAGES_MAX: usize = 256;

/// A content that is asked for.
pub(super) struct Wanted {
    page: Page,
    answer: SyncSender<Result<Content>>,
}

/// A content that was asked for and may have come.
pub(super) struct Fetched(Receiver<Result<Content>>);

/// Where contents are asked for.
pub(super) struct Fetching(Sender<Wanted>);

fn lost() -> Error {
    Error::Stopped { cause: "the thread that reads the source ended".into() }
}

impl Fetching {
    /// Asks for contents here, and has them served from there.
    pub(super) fn new() -> (Self, Mutex<Receiver<Wanted>>) {
        let (wanted, served) = channel();
        (Self(wanted), Mutex::new(served))
    }

    /// Asks for a page's content.
    pub(super) fn ask(&self, page: Page) -> Result<Fetched> {
        let (answer, fetched) = sync_channel(1);
        self.0.send(Wanted { page, answer }).map_err(|_| lost())?;
        Ok(Fetched(fetched))
    }
}

impl Fetched {
    /// Waits for it.
    pub(super) fn wait(self) -> Result<Content> {
        self.0.recv().unwrap_or_else(|_| Err(lost()))
    }
}

/// Fetches what is asked for until no one asks any more.
pub(super) fn serve(source: &dyn Source, wanted: &Mutex<Receiver<Wanted>>) {
    loop {
        let next = wanted.lock().recv();
        let Ok(Wanted { page, answer }) = next else { return };
        // Where the one who asked has given up, no one is left to be told.
        let _ = answer.send(source.content(&page));
    }
}

/// Lists all pages, until the last or until no one listens any more.
pub(super) fn list(source: &dyn Source, pages: &SyncSender<Result<Vec<Page>>>) {
    let mut after = None;
    loop {
        let batch = source.pages(after.as_ref(), PAGES_MAX);
        let last = batch.as_ref().ok().and_then(|batch| batch.last());
        after = last.map(|page| page.span.clone());
        if pages.send(batch).is_err() || after.is_none() {
            return;
        }
    }
}
