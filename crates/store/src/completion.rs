//! Completions: a value, there already or on its way, and a barrier that says when it may be shown.
//!
//! ```text
//! store → Completion { value, barrier }            → wait() on a thread, or .await in a task
//!       → Completion { value that comes later }    → the same; its store has begun it, or does when it is polled
//! ```
//!
//! Invariants:
//! 1. A caller that takes the value with [`Completion::into_parts`] before the barrier is reached must not show it, or
//!    anything that depends on it, to others until it is.
//! 2. A caller that drops a completion waits for nothing; the work for its value ends as soon as it can.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::{Barrier, Error, Result};

/// An outcome as applied, and the barrier that has to be reached before any other client is shown it.
pub type Applied<T> = (Result<T>, Option<Barrier>);

/// An outcome on its way. Dropping it says that no caller wants it any more.
pub trait Later<T>: Send {
    /// Blocks until it is there. The waiting thread may do the work itself, where it has not been begun.
    fn wait(self: Box<Self>) -> Applied<T>;

    /// The outcome, or the waker of `cx` is called once it is there. Not called again after it was there.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Applied<T>>;
}

enum Outcome<T> {
    Here(Result<T>),
    Later(Box<dyn Later<T>>),
    Taken,
}

/// The outcome of a call on a store: applied already or soon, durable at once or later.
#[must_use = "a completion holds the outcome of the call: wait for it, or take its parts"]
pub struct Completion<T> {
    outcome: Outcome<T>,
    barrier: Option<Barrier>,
}

// Nothing in a completion is self-referential; the value is only ever moved out.
impl<T> Unpin for Completion<T> {}

impl<T: std::fmt::Debug> std::fmt::Debug for Completion<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let outcome: &dyn std::fmt::Debug = match &self.outcome {
            Outcome::Here(result) => result,
            Outcome::Later(_) => &"on its way",
            Outcome::Taken => &"taken",
        };
        f.debug_struct("Completion").field("outcome", outcome).field("barrier", &self.barrier).finish()
    }
}

impl<T> Completion<T> {
    /// An outcome that may be shown at once.
    pub fn ready(result: Result<T>) -> Self {
        Self { outcome: Outcome::Here(result), barrier: None }
    }

    /// An outcome that may be shown once `barrier` is reached.
    pub fn after(result: Result<T>, barrier: Option<Barrier>) -> Self {
        Self { outcome: Outcome::Here(result), barrier }
    }

    /// An outcome that comes later.
    pub fn later(later: Box<dyn Later<T>>) -> Self {
        Self { outcome: Outcome::Later(later), barrier: None }
    }

    /// Whether the outcome is here, so that [`Completion::into_parts`] does not block.
    pub fn is_here(&self) -> bool {
        !matches!(self.outcome, Outcome::Later(_))
    }

    /// Blocks until the outcome may be shown, and returns it.
    ///
    /// # Errors
    /// Those of the call; [`Error::Stopped`] when the store failed before the barrier.
    #[inline]
    pub fn wait(self) -> Result<T> {
        if let Outcome::Here(result) = self.outcome {
            if let Some(barrier) = self.barrier {
                barrier.wait()?;
            }
            return result;
        }
        let (result, barrier) = self.into_parts();
        if let Some(barrier) = barrier {
            barrier.wait()?;
        }
        result
    }

    /// The outcome as applied, if it is here: for who hands the completion on.
    pub fn outcome(&self) -> Option<&Result<T>> {
        match &self.outcome {
            Outcome::Here(result) => Some(result),
            Outcome::Later(_) | Outcome::Taken => None,
        }
    }

    /// The outcome as applied, and the barrier that has to be reached before any other client is shown it. Blocks until
    /// the outcome is here.
    #[inline]
    pub fn into_parts(self) -> Applied<T> {
        match self.outcome {
            Outcome::Here(result) => (result, self.barrier),
            Outcome::Later(later) => {
                let (result, behind) = later.wait();
                (result, Barrier::later(self.barrier, behind))
            }
            Outcome::Taken => (Err(Error::Closed), self.barrier),
        }
    }

    /// As [`Completion::into_parts`], for tasks.
    pub async fn arrived(mut self) -> Applied<T> {
        poll_fn(|cx| self.poll_arrived(cx)).await;
        self.into_parts()
    }

    /// Ready once the outcome is here; the waker of `cx` is called then.
    pub fn poll_arrived(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Outcome::Later(later) = &mut self.outcome {
            let Poll::Ready((result, behind)) = later.poll(cx) else { return Poll::Pending };
            self.barrier = Barrier::later(self.barrier.take(), behind);
            self.outcome = Outcome::Here(result);
        }
        Poll::Ready(())
    }

    /// The outcome as applied; what it waits for is added to `barrier`, for an answer that is made of several.
    ///
    /// # Errors
    /// Those of the call.
    pub fn applied(self, barrier: &mut Option<Barrier>) -> Result<T> {
        let (result, behind) = self.into_parts();
        *barrier = Barrier::later(barrier.take(), behind);
        result
    }

    /// Makes the outcome wait for `barrier` as well.
    pub fn behind(mut self, barrier: Option<Barrier>) -> Self {
        self.barrier = Barrier::later(self.barrier.take(), barrier);
        self
    }
}

impl<T: 'static> Completion<T> {
    /// Changes the value.
    pub fn map<U: 'static>(self, f: impl FnOnce(T) -> U + Send + 'static) -> Completion<U> {
        self.then(|result| result.map(f))
    }

    /// Changes the outcome, when it is here.
    pub fn then<U: 'static>(self, f: impl FnOnce(Result<T>) -> Result<U> + Send + 'static) -> Completion<U> {
        let outcome = match self.outcome {
            Outcome::Here(result) => Outcome::Here(f(result)),
            Outcome::Later(later) => Outcome::Later(Box::new(Then { later, f: Some(f) })),
            Outcome::Taken => Outcome::Taken,
        };
        Completion { outcome, barrier: self.barrier }
    }
}

impl<T: Send + 'static> Completion<T> {
    /// All of them, in this order; the first error of any is the outcome. What each waits for all wait for.
    pub fn all(completions: Vec<Self>) -> Completion<Vec<T>> {
        if completions.iter().all(Self::is_here) {
            let (result, barrier) = gathered(completions);
            return Completion::after(result, barrier);
        }
        Completion::later(Box::new(All(completions, false)))
    }
}

struct Then<T, F> {
    later: Box<dyn Later<T>>,
    f: Option<F>,
}

impl<T, U, F: FnOnce(Result<T>) -> Result<U> + Send> Later<U> for Then<T, F> {
    fn wait(self: Box<Self>) -> Applied<U> {
        let Self { later, f } = *self;
        let (result, barrier) = later.wait();
        (f.map_or(Err(Error::Closed), |f| f(result)), barrier)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Applied<U>> {
        let Poll::Ready((result, barrier)) = self.later.poll(cx) else { return Poll::Pending };
        Poll::Ready((self.f.take().map_or(Err(Error::Closed), |f| f(result)), barrier))
    }
}

fn gathered<T>(completions: Vec<Completion<T>>) -> Applied<Vec<T>> {
    let mut barrier = None;
    // Every one of them is taken, so that the answer waits for all that was read.
    let results: Vec<_> = completions.into_iter().map(|completion| completion.applied(&mut barrier)).collect();
    (results.into_iter().collect(), barrier)
}

/// And whether all of them were polled once.
struct All<T>(Vec<Completion<T>>, bool);

impl<T: Send> Later<Vec<T>> for All<T> {
    fn wait(self: Box<Self>) -> Applied<Vec<T>> {
        gathered(self.0)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Applied<Vec<T>>> {
        // One waker is enough, that of the first that is not here; but polling is what has the others begun.
        let others = !std::mem::replace(&mut self.1, true);
        let mut here = true;
        for completion in &mut self.0 {
            if completion.poll_arrived(cx).is_pending() {
                here = false;
                if !others {
                    break;
                }
            }
        }
        if !here {
            return Poll::Pending;
        }
        Poll::Ready(gathered(std::mem::take(&mut self.0)))
    }
}

impl<T> Future for Completion<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.poll_arrived(cx).is_pending() {
            return Poll::Pending;
        }
        if let Some(barrier) = &self.barrier {
            match barrier.poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) => {}
            }
        }
        match std::mem::replace(&mut self.outcome, Outcome::Taken) {
            Outcome::Here(result) => Poll::Ready(result),
            Outcome::Later(_) | Outcome::Taken => Poll::Ready(Err(Error::Closed)),
        }
    }
}
