//! The line of what is to be done to the target: in the order of the source's pages, contents fetched ahead.
//!
//! operation → the line → in its turn → a transaction
//! page that differs → asked for, the line → its content, in its turn → checked → what differs → submitted
//!
//! Invariants:
//! 1. Everything is written in the order in which it entered the line.
//! 2. At most as many contents are on their way as was agreed, of [`FETCHING_BYTES_MAX`] together or one alone.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use esker_store::{Error, ObjectStore, Op, Result};

use super::difference;
use super::fetch::{Fetched, Fetching};
use super::pace::Pace;
use super::page::Page;
use super::write::Writing;

/// Contents on their way, in bytes.
const FETCHING_BYTES_MAX: u64 = 64 << 20;
/// What waits behind a content that is on its way.
const STEPS_MAX: usize = 4_096;
/// How long a wait goes on before the one who waits says so.
const NAP: Duration = Duration::from_millis(100);

enum Step {
    Op(Op),
    Content { page: Page, fresh: bool, fetched: Fetched },
}

/// What has been done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Pages that were compared.
    pub pages: u64,
    /// About the bytes that the source holds in them.
    pub bytes: u64,
    /// Pages whose contents were fetched.
    pub pages_fetched: u64,
    /// About the bytes of these contents.
    pub bytes_fetched: u64,
}

/// The line.
pub(super) struct Line<'a> {
    target: &'a dyn ObjectStore,
    steps: VecDeque<Step>,
    fetching: Fetching,
    in_flight: usize,
    in_flight_bytes: u64,
    in_flight_max: usize,
    pace: Option<Pace>,
    writing: Writing<'a>,
    done: &'a mut Progress,
    tell: &'a mut dyn FnMut(Progress) -> bool,
}

impl<'a> Line<'a> {
    pub(super) fn new(
        target: &'a dyn ObjectStore,
        fetching: Fetching,
        in_flight_max: usize,
        pace: Option<Pace>,
        done: &'a mut Progress,
        tell: &'a mut dyn FnMut(Progress) -> bool,
    ) -> Self {
        let writing = Writing::new(target);
        let (in_flight, in_flight_bytes) = (0, 0);
        let steps = VecDeque::new();
        Self { target, steps, fetching, in_flight, in_flight_bytes, in_flight_max, pace, writing, done, tell }
    }

    /// Tells how far it is.
    ///
    /// # Errors
    /// [`Error::Stopped`]: it is not to go on.
    fn tell(&mut self) -> Result<()> {
        if (self.tell)(*self.done) {
            return Ok(());
        }
        Err(Error::Stopped { cause: "a store was being brought up, which was told to end".into() })
    }

    /// A page was compared.
    pub(super) fn passed(&mut self, page: &Page) -> Result<()> {
        self.done.pages += 1;
        self.done.bytes += page.bytes;
        self.tell()
    }

    /// Puts an operation in line.
    pub(super) fn op(&mut self, op: Op) -> Result<()> {
        self.steps.push_back(Step::Op(op));
        self.go_on()
    }

    /// Puts the content of a page in line. `fresh`: the target holds nothing there.
    pub(super) fn content(&mut self, page: Page, fresh: bool) -> Result<()> {
        while self.in_flight >= self.in_flight_max
            || (self.in_flight > 0 && self.in_flight_bytes + page.bytes > FETCHING_BYTES_MAX)
        {
            self.step()?;
        }
        while let Some(left) = self.pace.as_ref().map(|pace| pace.left(Instant::now())).filter(|left| !left.is_zero()) {
            std::thread::sleep(left.min(NAP));
            self.tell()?;
        }
        if let Some(pace) = &mut self.pace {
            pace.take(page.bytes, Instant::now());
        }
        let fetched = self.fetching.ask(page.clone())?;
        self.in_flight += 1;
        self.in_flight_bytes += page.bytes;
        self.steps.push_back(Step::Content { page, fresh, fetched });
        self.go_on()
    }

    /// Does what waits for nothing, and more where too much waits.
    fn go_on(&mut self) -> Result<()> {
        while matches!(self.steps.front(), Some(Step::Op(_))) || self.steps.len() > STEPS_MAX {
            self.step()?;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        match self.steps.pop_front() {
            None => Ok(()),
            Some(Step::Op(op)) => self.write(op),
            Some(Step::Content { page, fresh, fetched }) => {
                let content = fetched.wait()?;
                self.in_flight -= 1;
                self.in_flight_bytes -= page.bytes;
                if !content.fits(&page.span) || content.digest() != page.digest {
                    let why = format!("it is not what {:?} was said to hold", page.span);
                    return Err(Error::Invalid { what: "content of the source", why });
                }
                self.done.pages_fetched += 1;
                self.done.bytes_fetched += page.bytes;
                let Some(object) = page.span.object() else { return Ok(()) };
                let target = self.target;
                difference::tell(target, &page, content, fresh, &mut |change| {
                    self.write(Op::Object(object.clone(), change))
                })
            }
        }
    }

    fn write(&mut self, op: Op) -> Result<()> {
        if self.writing.push(op)? { self.tell() } else { Ok(()) }
    }

    /// Does everything that is in line, and tells how many operations took something away.
    pub(super) fn end(mut self) -> Result<u64> {
        while !self.steps.is_empty() {
            self.step()?;
        }
        self.writing.submit()?;
        self.tell()?;
        Ok(self.writing.removed())
    }
}
