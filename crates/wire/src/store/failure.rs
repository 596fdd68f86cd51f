//! Errors of the store as what a client is told, and back.
//!
//! error → gRPC code, text, and metadata [`ERROR`] with an encoded `StoreError` · status → that error, if it has one
//!
//! Invariant: an error comes back as the variant it was, with its numbers. What names a backend, and causes of the
//! operating system, come back as texts.

use std::io;

use esker_store::Error as StoreError;
use prost::Message;
use tonic::metadata::{BinaryMetadataValue, MetadataMap};
use tonic::{Code, Status};

use crate::kept::kept;
use crate::named::Named;
use crate::proto::store as proto;
use crate::{Error, Result};

/// Metadata with an encoded [`proto::StoreError`].
pub const ERROR: &str = "esker-error-bin";

/// The code of an error, and its name among the errors of faces.
pub fn name_error(error: &StoreError) -> Named {
    let (code, name) = match error {
        StoreError::GuardFailed { .. } => (Code::Aborted, "guard"),
        StoreError::NoObject { .. } | StoreError::NoCollection { .. } => (Code::NotFound, "missing"),
        StoreError::NotEmpty { .. } => (Code::FailedPrecondition, "not-empty"),
        StoreError::TooLarge { .. } | StoreError::Invalid { .. } => (Code::InvalidArgument, "invalid"),
        StoreError::Unsupported { .. } => (Code::Unimplemented, "unsupported"),
        StoreError::Full { .. } => (Code::ResourceExhausted, "full"),
        StoreError::ReadOnly => (Code::FailedPrecondition, "read-only"),
        StoreError::Corrupt { .. } => (Code::DataLoss, "damaged"),
        StoreError::Unknown { .. } => (Code::Unknown, "uncertain"),
        StoreError::Restarted => (Code::Aborted, "restarted"),
        StoreError::Contended { .. } => (Code::Aborted, "contended"),
        StoreError::Io { .. }
        | StoreError::Stopped { .. }
        | StoreError::NotServing { .. }
        | StoreError::Closed
        | StoreError::Busy { .. } => (Code::Unavailable, "store"),
        // No client repeats what is added later, until a developer has looked at it.
        _ => (Code::Internal, "store"),
    };
    Named::new(code, name)
}

/// An error with all that tells it apart.
pub fn encode_error(error: &StoreError) -> proto::StoreError {
    use proto::store_error::{Contended, Corrupt, Error as Told, Full, Text, TooLarge};
    let nothing = proto::Nothing {};
    let told = match error {
        StoreError::GuardFailed { index } => Told::GuardFailed(*index as u64),
        StoreError::NoObject { object } => Told::NoObject(object.clone()),
        StoreError::NoCollection { collection } => Told::NoCollection(collection.clone()),
        StoreError::NotEmpty { collection } => Told::NotEmpty(collection.clone()),
        StoreError::TooLarge { what, len, limit, max } => {
            Told::TooLarge(TooLarge { what: (*what).into(), len: *len, limit: (*limit).into(), max: *max })
        }
        StoreError::Invalid { what, why } => Told::Invalid(Text { what: (*what).into(), why: why.clone() }),
        StoreError::Unsupported { what, .. } => Told::Unsupported((*what).into()),
        StoreError::Full { needed, free } => Told::Full(Full { needed: *needed, free: *free }),
        StoreError::ReadOnly => Told::ReadOnly(nothing),
        StoreError::Corrupt { offset, what } => Told::Corrupt(Corrupt { offset: *offset, what: what.clone() }),
        StoreError::Io { what, source } => Told::Io(Text { what: what.clone(), why: source.to_string() }),
        StoreError::Stopped { cause } => Told::Stopped(cause.to_string()),
        StoreError::NotServing { cause } => Told::NotServing(cause.to_string()),
        StoreError::Closed => Told::Closed(nothing),
        StoreError::Unknown { cause } => Told::Unknown(cause.clone()),
        StoreError::Restarted => Told::Restarted(nothing),
        StoreError::Contended { what, attempts } => {
            Told::Contended(Contended { what: what.clone(), attempts: *attempts })
        }
        // A store that waits on its side has no other; to a reader a newer one is a failure like any.
        other => Told::Io(Text { what: "the store".into(), why: other.to_string() }),
    };
    proto::StoreError { error: Some(told) }
}

/// The error that a server tells of.
///
/// # Errors
/// [`Error::Malformed`] if it says nothing, or numbers a guard that no transaction has.
pub fn decode_error(message: proto::StoreError) -> Result<StoreError> {
    use proto::store_error::Error as Told;
    let told = message.error.ok_or_else(|| Error::malformed("StoreError.error", "it is none that is known"))?;
    Ok(match told {
        Told::GuardFailed(index) => {
            let far = |_| Error::malformed("StoreError.guard_failed", format!("guard {index}"));
            StoreError::GuardFailed { index: usize::try_from(index).map_err(far)? }
        }
        Told::NoObject(object) => StoreError::NoObject { object },
        Told::NoCollection(collection) => StoreError::NoCollection { collection },
        Told::NotEmpty(collection) => StoreError::NotEmpty { collection },
        Told::TooLarge(large) => {
            StoreError::TooLarge { what: kept(&large.what), len: large.len, limit: kept(&large.limit), max: large.max }
        }
        Told::Invalid(text) => StoreError::Invalid { what: kept(&text.what), why: text.why },
        Told::Unsupported(what) => StoreError::Unsupported { backend: "the server's store", what: kept(&what) },
        Told::Full(full) => StoreError::Full { needed: full.needed, free: full.free },
        Told::ReadOnly(_) => StoreError::ReadOnly,
        Told::Corrupt(corrupt) => StoreError::Corrupt { offset: corrupt.offset, what: corrupt.what },
        Told::Io(text) => StoreError::io(text.what, io::Error::other(text.why)),
        Told::Stopped(cause) => StoreError::Stopped { cause: cause.into() },
        Told::NotServing(cause) => StoreError::NotServing { cause: cause.into() },
        Told::Closed(_) => StoreError::Closed,
        Told::Unknown(cause) => StoreError::Unknown { cause },
        Told::Restarted(_) => StoreError::Restarted,
        Told::Contended(by) => StoreError::Contended { what: by.what, attempts: by.attempts },
    })
}

/// An error as the status of a call.
pub fn encode_status(error: &StoreError) -> Status {
    let mut metadata = MetadataMap::new();
    let encoded = encode_error(error).encode_to_vec();
    metadata.insert_bin(ERROR, BinaryMetadataValue::from_bytes(&encoded));
    Status::with_metadata(name_error(error).code, error.to_string(), metadata)
}

/// Whether the store itself has answered: the status has an error of it, whether that is understood or not.
pub fn is_told(status: &Status) -> bool {
    status.metadata().get_bin(ERROR).is_some()
}

/// The store's error, if the status of a call has one that is understood.
pub fn decode_status(status: &Status) -> Option<StoreError> {
    let encoded = status.metadata().get_bin(ERROR)?.to_bytes().ok()?;
    decode_error(proto::StoreError::decode(encoded).ok()?).ok()
}
