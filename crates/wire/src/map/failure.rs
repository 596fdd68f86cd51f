//! Errors of the map by their published names, and back.
//!
//! error → code, name, the name that is missing or taken · name → error
//!
//! Invariant: an error comes back as the variant it was, save that failures of the store's come back as those of
//! "the call at the server", told apart as far as a caller does something else about them.

use std::io;

use esker_map::Error as MapError;
use esker_store::Error as StoreError;
use tonic::Code;

use crate::kept::kept;
use crate::named::Named;

/// The code and the name of an error, and what name it is about.
pub fn name_error(error: &MapError) -> Named {
    match error {
        MapError::Store(error) => crate::store::name_error(error),
        MapError::Missing { what, name } => {
            let told = match *what {
                "namespace" => "no-namespace",
                "column" => "no-column",
                "index" => "no-index",
                _ => "no-table",
            };
            Named::new(Code::NotFound, told).about(name)
        }
        MapError::Exists { what, name } => {
            let told = match *what {
                "namespace" => "namespace-exists",
                "column" => "column-exists",
                "index" => "index-exists",
                _ => "table-exists",
            };
            Named::new(Code::AlreadyExists, told).about(name)
        }
        MapError::Invalid { what: "page token", .. } => Named::new(Code::InvalidArgument, "page-token"),
        MapError::Invalid { .. } => Named::new(Code::InvalidArgument, "invalid"),
        MapError::Contended { .. } => Named::new(Code::Aborted, "contended"),
        MapError::Unknown { .. } => Named::new(Code::Unknown, "uncertain"),
        MapError::Unsupported { .. } => Named::new(Code::Unimplemented, "unsupported"),
        MapError::Damaged { .. } => Named::new(Code::DataLoss, "damaged"),
        _ => Named::new(Code::Internal, "internal"),
    }
}

/// The error of a call of `what` that a server told by `name` and `message`; `about` is the name that is missing or
/// taken. `None` if `name` is not known here, or says nothing that the status code does not say.
pub fn decode_named(what: &'static str, name: &str, about: Option<String>, message: &str) -> Option<MapError> {
    let message = || message.to_owned();
    let failed = |kind| {
        let source = io::Error::new(kind, message());
        MapError::Store(StoreError::io(format!("{what} at the server"), source))
    };
    let about = || about.unwrap_or_else(message);
    Some(match name {
        "no-namespace" => MapError::Missing { what: "namespace", name: about() },
        "no-table" => MapError::Missing { what: "table", name: about() },
        "no-column" => MapError::Missing { what: "column", name: about() },
        "no-index" => MapError::Missing { what: "index", name: about() },
        "namespace-exists" => MapError::Exists { what: "namespace", name: about() },
        "table-exists" => MapError::Exists { what: "table", name: about() },
        "column-exists" => MapError::Exists { what: "column", name: about() },
        "index-exists" => MapError::Exists { what: "index", name: about() },
        "invalid" => MapError::Invalid { what, why: message() },
        "page-token" => MapError::Invalid { what: "page token", why: message() },
        "not-empty" => MapError::Invalid { what: "namespace", why: message() },
        "contended" => MapError::Contended { what: format!("{what} at the server ({})", message()), attempts: 1 },
        "uncertain" => MapError::Unknown { cause: message() },
        "unsupported" => MapError::Unsupported { storage: "the server", what: kept(&message()) },
        "read-only" => MapError::Store(StoreError::ReadOnly),
        "full" => failed(io::ErrorKind::StorageFull),
        "busy" => failed(io::ErrorKind::ResourceBusy),
        "damaged" => MapError::Damaged { what: "the server's store".into(), why: message() },
        _ => return None,
    })
}
