//! Calls of the faces on behalf of tasks: what may wait for the store does so on a thread of its own, not on those that answer.
//!
//! Invariant: no thread that answers sleeps, waits for a sync, or reads a device.

use esker_store::{Barrier, Completion, ObjectStore};

use super::status::Told;

/// Backends that apply a transaction in memory before `submit` returns, and make it durable on a thread of their own. The others do their
/// I/O in the call.
const APPLY_AT_ONCE: &[&str] = &["esker", "memory"];

/// Whether a submit to this store may be made by a thread that answers.
pub(crate) fn applies_at_once(store: &dyn ObjectStore) -> bool {
    APPLY_AT_ONCE.contains(&store.capability().backend)
}

/// Does `work` on a thread that may wait.
pub(crate) async fn waiting<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Told> + Send + 'static,
) -> Result<T, Told> {
    match tokio::task::spawn_blocking(work).await {
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
