//! Calls of the faces on behalf of tasks: what may wait for the store does so on a thread of its own, not on those that
//! answer.
//!
//! Invariant: no thread that answers sleeps, waits for a sync, or reads a device.

use std::sync::atomic::{AtomicUsize, Ordering};

use esker_store::{Barrier, Completion, ObjectStore};
use tokio::task::JoinHandle;

use super::status::Told;

/// Backends that apply a transaction in memory before `submit` returns, and make it durable on a thread of their own.
/// The others do their I/O in the call.
const APPLY_AT_ONCE: &[&str] = &["esker", "memory"];

/// Whether a submit to this store may be made by a thread that answers.
pub(crate) fn applies_at_once(store: &dyn ObjectStore) -> bool {
    APPLY_AT_ONCE.contains(&store.capability().backend)
}

/// Most calls that have a thread which may wait, or wait for one; one more is refused.
pub(crate) const WAITING_CALLS_MAX: usize = 16_384;

/// Calls that have such a thread, or wait for one.
static CALLS: AtomicUsize = AtomicUsize::new(0);

/// A place among those calls.
struct Place;

impl Place {
    fn take() -> Result<Self, Told> {
        if CALLS.fetch_add(1, Ordering::Relaxed) < WAITING_CALLS_MAX {
            return Ok(Self);
        }
        CALLS.fetch_sub(1, Ordering::Relaxed);
        Err(Told::busy(format!("{WAITING_CALLS_MAX} calls wait for the store (WAITING_CALLS_MAX): try again later")))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        CALLS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Work that is not begun any more once its call has stopped waiting for it.
struct Wanted<T>(JoinHandle<T>);

impl<T> Drop for Wanted<T> {
    fn drop(&mut self) {
        // What has begun goes on to its end.
        self.0.abort();
    }
}

/// Does `work` on a thread that may wait; of a call that its client has given up, only what has begun.
pub(crate) async fn waiting<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Told> + Send + 'static,
) -> Result<T, Told> {
    let place = Place::take()?;
    let mut wanted = Wanted(tokio::task::spawn_blocking(move || {
        let _place = place;
        work()
    }));
    match (&mut wanted.0).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(Told::stopping()),
    }
}

/// Awaits a barrier, as one more client that waits for a sync.
pub(crate) async fn reached(barrier: Option<Barrier>) -> Result<(), Told> {
    if let Some(barrier) = barrier {
        if barrier.state().is_none() {
            barrier.want_for(1);
        }
        barrier.await?;
    }
    Ok(())
}

/// Awaits a completion.
pub(crate) async fn completed<T>(completion: Completion<T>) -> Result<T, Told> {
    let (value, barrier) = completion.arrived().await;
    reached(barrier).await?;
    Ok(value?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_above_the_limit_are_refused_and_those_given_up_are_not_begun() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).max_blocking_threads(1).build();
        let runtime = runtime.unwrap();
        let (begin, wait) = std::sync::mpsc::channel::<()>();
        let first = runtime.spawn(waiting(move || Ok(wait.recv().is_ok())));
        while CALLS.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        let begun = std::sync::Arc::new(AtomicUsize::new(0));
        let given_up: Vec<_> = (0..10)
            .map(|_| {
                let begun = std::sync::Arc::clone(&begun);
                runtime.spawn(waiting(move || Ok(begun.fetch_add(1, Ordering::Relaxed))))
            })
            .collect();
        while CALLS.load(Ordering::Relaxed) < 11 {
            std::thread::yield_now();
        }
        given_up.iter().for_each(tokio::task::JoinHandle::abort);
        while !given_up.iter().all(tokio::task::JoinHandle::is_finished) {
            std::thread::yield_now();
        }
        let full: Vec<Place> = std::iter::from_fn(|| Place::take().ok()).collect();
        let refused = runtime.block_on(waiting(|| Ok(()))).err().map(tonic::Status::from).unwrap();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert!(refused.message().contains("WAITING_CALLS_MAX"), "{refused}");
        drop(full);
        begin.send(()).unwrap();
        assert!(matches!(runtime.block_on(first), Ok(Ok(true))));
        assert!(runtime.block_on(waiting(|| Ok(()))).is_ok());
        assert_eq!(begun.load(Ordering::Relaxed), 0, "work of a call that was given up was begun");
    }
}
