//! What a client is told of a failure: an error of a face by its published name, or what is wrong at this server.
//!
//! error → its name ([`Named`]) and text → status with metadata, or a failure within a stream
//!
//! Invariant: who tells errors apart needs no message text.

use esker_log::Error as LogError;
use esker_map::Error as MapError;
use esker_store::Error as StoreError;
use esker_wire::Named;
use esker_wire::proto::log as proto;
use tonic::metadata::{BinaryMetadataValue, MetadataMap};
use tonic::{Code, Status};

/// What a client is told of a failure.
pub(crate) struct Told {
    named: Named,
    message: String,
}

impl Told {
    fn new(code: Code, name: &'static str, message: impl Into<String>) -> Self {
        Self::named(Named { code, name, position: None, about: None }, message)
    }

    fn named(named: Named, message: impl Into<String>) -> Self {
        Self { named, message: message.into() }
    }

    /// Something is wrong with the input.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, "invalid", message)
    }

    /// There is too much under way.
    pub(crate) fn busy(message: impl Into<String>) -> Self {
        Self::new(Code::ResourceExhausted, "busy", message)
    }

    /// The server stops.
    pub(crate) fn stopping() -> Self {
        Self::new(Code::Unavailable, "stopping", "the server is stopping")
    }

    /// Another client has opened the writer since.
    pub(crate) fn fenced(message: impl Into<String>) -> Self {
        Self::new(Code::FailedPrecondition, "fenced", message)
    }

    /// A namespace has tables.
    pub(crate) fn not_empty(message: impl Into<String>) -> Self {
        Self::new(Code::FailedPrecondition, "not-empty", message)
    }

    /// Whether there is no such log.
    pub(crate) fn is_no_log(&self) -> bool {
        self.named.name == "no-log"
    }
}

impl From<LogError> for Told {
    fn from(error: LogError) -> Self {
        Self::named(esker_wire::log::name_error(&error), error.to_string())
    }
}

impl From<MapError> for Told {
    fn from(error: MapError) -> Self {
        Self::named(esker_wire::map::name_error(&error), error.to_string())
    }
}

impl From<StoreError> for Told {
    fn from(error: StoreError) -> Self {
        Self::named(esker_wire::store::name_error(&error), error.to_string())
    }
}

impl From<esker_wire::Error> for Told {
    fn from(error: esker_wire::Error) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<Told> for Status {
    fn from(told: Told) -> Self {
        let Told { named, message } = told;
        let mut metadata = MetadataMap::new();
        metadata.insert(Named::NAME, tonic::metadata::MetadataValue::from_static(named.name));
        if let Some(position) = named.position {
            metadata.insert(Named::POSITION, position.into());
        }
        if let Some(about) = &named.about {
            metadata.insert_bin(Named::ABOUT, BinaryMetadataValue::from_bytes(about.as_bytes()));
        }
        Self::with_metadata(named.code, message, metadata)
    }
}

impl From<Told> for proto::Failure {
    fn from(told: Told) -> Self {
        let Told { named, message } = told;
        Self { code: i32::from(named.code) as u32, message, error: named.name.into(), position: named.position }
    }
}
