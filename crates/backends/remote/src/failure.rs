//! What it means for the store's callers that a call failed.
//!
//! status → the store's own error, if it has one · else the loss of an answer
//!
//! Invariant: of a transaction whose answer was lost the error is [`Error::Unknown`]; a reader is told of the loss as
//! [`Error::Io`].

use std::io;

use esker_store::Error;
use esker_wire::store::decode_status;
use tonic::{Code, Status};

/// What a failed call of `what` means.
pub(crate) fn error(what: &str, status: &Status) -> Error {
    decode_status(status).unwrap_or_else(|| {
        let kind = match status.code() {
            Code::DeadlineExceeded => io::ErrorKind::TimedOut,
            Code::Unauthenticated | Code::PermissionDenied => io::ErrorKind::PermissionDenied,
            Code::Unimplemented => io::ErrorKind::Unsupported,
            _ => io::ErrorKind::ConnectionAborted,
        };
        Error::io(format!("{what} at the server"), io::Error::new(kind, text(status)))
    })
}

/// What a failed submit means.
pub(crate) fn submit_error(status: &Status) -> Error {
    decode_status(status).unwrap_or_else(|| match status.code() {
        // The server refused before it looked at what was asked.
        Code::Unauthenticated | Code::PermissionDenied | Code::Unimplemented => error("submit", status),
        _ => Error::Unknown { cause: format!("submit at the server: {}", text(status)) },
    })
}

/// A failure with its causes.
pub(crate) fn text(status: &Status) -> String {
    let mut text = status.message().to_string();
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

/// What an answer of `what` means that does not fit its question.
pub(crate) fn nonsense(what: &str, wrong: &esker_wire::Error) -> Error {
    let why = format!("the answer does not fit the question: {wrong}");
    Error::io(format!("{what} at the server"), io::Error::other(why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_answer_is_an_error_of_unknown_fate() {
        let lost = submit_error(&Status::unavailable("connection reset"));
        assert!(matches!(&lost, Error::Unknown { cause } if cause.contains("connection reset")), "{lost:?}");
        let refused = submit_error(&Status::unauthenticated("no token"));
        assert!(matches!(&refused, Error::Io { .. }), "{refused:?}");
        let read = error("stat", &Status::unavailable("connection reset"));
        assert!(matches!(&read, Error::Io { source, .. } if source.to_string().contains("connection reset")));
    }
}
