//! One call of a server: within its time, and again after a loss where that does no harm.
//!
//! message → request with its deadline → answer · lost and not told by the server → a short wait → again

use std::time::Duration;

use tonic::{Code, Request, Response, Status};

use crate::address::ask;

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
    let client = client.clone();
    let Manner { timeout, again, told } = manner;
    let asked = ask(async move {
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
    });
    asked.unwrap_or_else(|error| Err(Status::internal(error.to_string())))
}
