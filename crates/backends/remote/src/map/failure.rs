//! What it means for the map's callers that a call failed.
//!
//! status → the map's own error, if it names one · else the loss of an answer
//!
//! Invariant: of a change whose answer was lost, or that failed in the store, the error is [`Error::Unknown`]; a reader
//! is told of the loss.

use std::io;

use esker_map::Error;
use esker_store::Error as StoreError;
use esker_wire::Named;
use esker_wire::map::decode_named;
use tonic::{Code, Status};

use crate::failure::text;

fn told(status: &Status) -> Option<&str> {
    status.metadata().get(Named::NAME)?.to_str().ok()
}

/// Whether the service itself has answered.
pub(super) fn is_told(status: &Status) -> bool {
    told(status).is_some()
}

/// An answer of `what` that does not fit the question.
pub(super) fn nonsense(what: &str, wrong: &esker_wire::Error) -> Status {
    Status::internal(format!("{what}: the server's answer does not fit the question: {wrong}"))
}

/// What a failed call of `what` means; `changes` where it may have changed something.
pub(super) fn error(what: &'static str, status: &Status, changes: bool) -> Error {
    let message = text(status);
    let about = || String::from_utf8(status.metadata().get_bin(Named::ABOUT)?.to_bytes().ok()?.to_vec()).ok();
    // A server without the call has no name for it.
    let unnamed = (status.code() == Code::Unimplemented).then_some("unsupported");
    let named = |name| decode_named(what, name, about(), &message);
    if let Some(error) = told(status).and_then(named).or_else(|| unnamed.and_then(named)) {
        return error;
    }
    let failed = |kind| {
        let source = io::Error::new(kind, message.clone());
        Error::Store(StoreError::io(format!("{what} at the server"), source))
    };
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => failed(io::ErrorKind::PermissionDenied),
        Code::OutOfRange => Error::Invalid { what, why: message },
        _ if changes => Error::Unknown { cause: format!("{what} at the server: {message}") },
        Code::DeadlineExceeded => failed(io::ErrorKind::TimedOut),
        _ => failed(io::ErrorKind::ConnectionAborted),
    }
}
