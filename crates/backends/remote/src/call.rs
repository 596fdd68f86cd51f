//! One call of a server: within its time, and again after a loss where that does no harm.
//!
//! message → request with its deadline → answer · lost and not told by the server → a short wait → again

use std::task::{Context, Poll};
use std::time::Duration;

use esker_store::{Applied, Completion, Error, Later, promised};
use tonic::{Code, Request, Response, Status};

use crate::address::{ask, runtime};

/// How often a read is tried, and how long is waited before it is tried again.
const TRIES: u32 = 5;
const AGAIN: Duration = Duration::from_millis(50);

/// How a call is made.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    /// How long it may take.
    pub timeout: Duration,
    /// Whether it is tried again after a loss: only what does no harm the second time.
    pub again: bool,
    /// Whether an error comes from the service itself, and is no loss.
    pub told: fn(&Status) -> bool,
}

/// Makes a call on the process's runtime and waits for its answer.
pub(crate) fn call<C, M, A, F>(
    client: &C,
    manner: Manner,
    message: M,
    call: impl Fn(C, Request<M>) -> F + Send + 'static,
) -> Result<Response<A>, Status>
where
    C: Clone + Send + Sync + 'static,
    M: Clone + Send + 'static,
    A: Send + 'static,
    F: Future<Output = Result<Response<A>, Status>> + Send + 'static,
{
    let asked = ask(calling(client.clone(), manner, message, call));
    asked.unwrap_or_else(|error| Err(Status::internal(error.to_string())))
}

/// Makes a call on the process's runtime, and what `understand` makes of its answer. Does not wait; dropping the
/// completion ends the call.
pub(crate) fn begin<C, M, A, T, F>(
    client: &C,
    manner: Manner,
    message: M,
    call: impl Fn(C, Request<M>) -> F + Send + 'static,
    understand: impl FnOnce(Result<Response<A>, Status>) -> esker_store::Result<T> + Send + 'static,
) -> Completion<T>
where
    C: Clone + Send + Sync + 'static,
    M: Clone + Send + 'static,
    A: Send + 'static,
    T: Send + 'static,
    F: Future<Output = Result<Response<A>, Status>> + Send + 'static,
{
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => return Completion::ready(Err(Error::io("starting threads to ask a server", error))),
    };
    let (promise, answer) = promised("a call of the server");
    let asking = calling(client.clone(), manner, message, call);
    let task = runtime.spawn(async move { promise.fulfil((understand(asking.await), None)) });
    Completion::later(Box::new(Answer { answer: Some(answer), task: task.abort_handle() }))
}

/// An answer on its way.
struct Answer<T> {
    answer: Option<Completion<T>>,
    task: tokio::task::AbortHandle,
}

impl<T: Send> Later<T> for Answer<T> {
    fn wait(mut self: Box<Self>) -> Applied<T> {
        self.answer.take().map_or((Err(Error::Closed), None), Completion::into_parts)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Applied<T>> {
        if self.answer.as_mut().is_some_and(|answer| answer.poll_arrived(cx).is_pending()) {
            return Poll::Pending;
        }
        Poll::Ready(self.answer.take().map_or((Err(Error::Closed), None), Completion::into_parts))
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        // Does nothing once the answer is there.
        self.task.abort();
    }
}

async fn calling<C, M, A, F>(
    client: C,
    manner: Manner,
    message: M,
    call: impl Fn(C, Request<M>) -> F,
) -> Result<Response<A>, Status>
where
    C: Clone,
    M: Clone,
    F: Future<Output = Result<Response<A>, Status>>,
{
    let Manner { timeout, again, told } = manner;
    let mut tries = 1;
    loop {
        let mut request = Request::new(message.clone());
        request.set_timeout(timeout);
        let called = tokio::time::timeout(timeout, call(client.clone(), request)).await;
        match called {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(status)) => {
                let lost = matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled);
                if !again || !lost || told(&status) || tries >= TRIES {
                    return Err(status);
                }
            }
            Err(_) => return Err(Status::deadline_exceeded(format!("no answer within {timeout:?}"))),
        }
        tokio::time::sleep(AGAIN * tries).await;
        tries += 1;
    }
}
