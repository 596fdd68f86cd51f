//! Completions: a value that is there, and a barrier that says when it may be shown.
//!
//! store → `Completion` { value, barrier } → `wait()` on a thread, or `.await` in a task
//!
//! Invariant: whoever takes the value with [`Completion::into_parts`] before the barrier is reached must not
//! show it, or anything that depends on it, to others until it is.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::{Barrier, Error, Result};

/// The outcome of a call on a store: applied already, durable at once or later.
#[must_use = "a completion holds the outcome of the call: wait for it, or take its parts"]
#[derive(Debug)]
pub struct Completion<T> {
    result: Option<Result<T>>,
    barrier: Option<Barrier>,
}

// Nothing in a completion is self-referential; the value is only ever moved out.
impl<T> Unpin for Completion<T> {}

impl<T> Completion<T> {
    /// An outcome that may be shown at once.
    pub fn ready(result: Result<T>) -> Self {
        Self { result: Some(result), barrier: None }
    }

    /// An outcome that may be shown once `barrier` is reached.
    pub fn after(result: Result<T>, barrier: Option<Barrier>) -> Self {
        Self { result: Some(result), barrier }
    }

    /// Blocks until the outcome may be shown, and returns it.
    ///
    /// # Errors
    /// Those of the call; [`Error::Stopped`] when the store failed before the barrier.
    pub fn wait(self) -> Result<T> {
        let (result, barrier) = self.into_parts();
        if let Some(barrier) = barrier {
            barrier.wait()?;
        }
        result
    }

    /// The outcome as applied, and the barrier that has to be reached before anybody else is shown it.
    pub fn into_parts(self) -> (Result<T>, Option<Barrier>) {
        (self.result.unwrap_or(Err(Error::Closed)), self.barrier)
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

    /// Changes the value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Completion<U> {
        Completion { result: self.result.map(|result| result.map(f)), barrier: self.barrier }
    }

    /// Changes the outcome.
    pub fn then<U>(self, f: impl FnOnce(Result<T>) -> Result<U>) -> Completion<U> {
        Completion { result: self.result.map(f), barrier: self.barrier }
    }

    /// Makes the outcome wait for `barrier` as well.
    pub fn behind(mut self, barrier: Option<Barrier>) -> Self {
        self.barrier = Barrier::later(self.barrier.take(), barrier);
        self
    }
}

impl<T> Future for Completion<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(barrier) = &self.barrier {
            match barrier.poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) => {}
            }
        }
        Poll::Ready(self.result.take().unwrap_or(Err(Error::Closed)))
    }
}
