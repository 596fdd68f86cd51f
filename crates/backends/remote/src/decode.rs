//! Answers and failures of the server as the store's types.
//!
//! Invariant: of a transaction whose answer was lost the error is [`Error::Unknown`]; a reader is told of the loss as
//! [`Error::Io`].

use std::collections::HashSet;
use std::io;

use esker_store::Error;
use parking_lot::Mutex;
use prost::Message;
use tonic::{Code, Status};

use crate::proto::store as proto;

/// Name of the metadata with an encoded error.
const ERROR: &str = "esker-error-bin";
/// Most texts that are kept for good, and how long each may be, in bytes.
const TEXTS_MAX: usize = 256;
const TEXT_BYTES_MAX: usize = 256;

/// What a failed call of `what` means.
pub(crate) fn error(what: &str, status: &Status) -> Error {
    told(status).unwrap_or_else(|| {
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
    told(status).unwrap_or_else(|| match status.code() {
        // Refused before anybody looked at what was asked.
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

/// Whether the store itself has answered.
pub(crate) fn is_told(status: &Status) -> bool {
    status.metadata().get_bin(ERROR).is_some()
}

fn told(status: &Status) -> Option<Error> {
    use proto::store_error::Error as Told;
    let encoded = status.metadata().get_bin(ERROR)?.to_bytes().ok()?;
    Some(match proto::StoreError::decode(encoded).ok()?.error? {
        Told::GuardFailed(index) => Error::GuardFailed { index: usize::try_from(index).ok()? },
        Told::NoObject(object) => Error::NoObject { object },
        Told::NoCollection(collection) => Error::NoCollection { collection },
        Told::NotEmpty(collection) => Error::NotEmpty { collection },
        Told::TooLarge(large) => {
            Error::TooLarge { what: kept(&large.what), len: large.len, limit: kept(&large.limit), max: large.max }
        }
        Told::Invalid(text) => Error::Invalid { what: kept(&text.what), why: text.why },
        Told::Unsupported(what) => Error::Unsupported { backend: "the server's store", what: kept(&what) },
        Told::Full(full) => Error::Full { needed: full.needed, free: full.free },
        Told::ReadOnly(_) => Error::ReadOnly,
        Told::Corrupt(corrupt) => Error::Corrupt { offset: corrupt.offset, what: corrupt.what },
        Told::Io(text) => Error::io(text.what, io::Error::other(text.why)),
        Told::Stopped(cause) => Error::Stopped { cause: cause.into() },
        Told::Closed(_) => Error::Closed,
        Told::Unknown(cause) => Error::Unknown { cause },
        Told::Restarted(_) => Error::Restarted,
        Told::Contended(by) => Error::Contended { what: by.what, attempts: by.attempts },
    })
}

/// A text of the server's as one that stays. There are few of them; a server that makes up more is not followed.
pub(crate) fn kept(text: &str) -> &'static str {
    static KEPT: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut kept = KEPT.lock();
    let kept = kept.get_or_insert_default();
    if let Some(text) = kept.get(text) {
        return text;
    }
    if kept.len() >= TEXTS_MAX || text.len() > TEXT_BYTES_MAX {
        return "something that the server tells of";
    }
    let text: &'static str = Box::leak(text.to_owned().into_boxed_str());
    kept.insert(text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_are_kept_are_few_and_short() {
        assert_eq!(kept("value"), "value");
        assert!(std::ptr::eq(kept("value"), kept("value")));
        assert_ne!(kept(&"x".repeat(TEXT_BYTES_MAX + 1)).len(), TEXT_BYTES_MAX + 1);
        for number in 0..2 * TEXTS_MAX {
            kept(&format!("text {number}"));
        }
        assert_eq!(kept("one more"), "something that the server tells of");
    }

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
