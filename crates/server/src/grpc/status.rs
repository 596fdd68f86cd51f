//! Errors of the faces as gRPC status codes: one place, as the published `.proto` files list them.
//!
//! error → code, message, `esker-error`, `esker-position`, `esker-name-bin`
//!
//! Invariant: who tells errors apart needs no message text.

use esker_log::Error as LogError;
use esker_map::Error as MapError;
use esker_store::Error as StoreError;
use tonic::metadata::{BinaryMetadataValue, MetadataMap};
use tonic::{Code, Status};

use super::proto::log as proto;

/// Name of the metadata with an error's name.
pub(crate) const ERROR: &str = "esker-error";
/// Name of the metadata with the position that an error is about.
pub(crate) const POSITION: &str = "esker-position";
/// Name of the metadata with the name that is missing or taken.
pub(crate) const NAME: &str = "esker-name-bin";

/// What a client is told of a failure.
pub(crate) struct Told {
    code: Code,
    name: &'static str,
    position: Option<u64>,
    about: Option<String>,
    message: String,
}

impl Told {
    fn new(code: Code, name: &'static str, message: impl Into<String>) -> Self {
        Self { code, name, position: None, about: None, message: message.into() }
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

    /// A writer was opened by somebody else since.
    pub(crate) fn fenced(message: impl Into<String>) -> Self {
        Self::new(Code::FailedPrecondition, "fenced", message)
    }

    /// A namespace has tables.
    pub(crate) fn not_empty(message: impl Into<String>) -> Self {
        Self::new(Code::FailedPrecondition, "not-empty", message)
    }

    /// Whether there is no such log.
    pub(crate) fn is_no_log(&self) -> bool {
        self.name == "no-log"
    }
}

impl From<LogError> for Told {
    fn from(error: LogError) -> Self {
        let (code, name, position) = match &error {
            LogError::Store(error) => return error.clone().into(),
            LogError::NoLog { .. } => (Code::NotFound, "no-log", None),
            LogError::Exists { .. } => (Code::AlreadyExists, "exists", None),
            LogError::Invalid { .. } => (Code::InvalidArgument, "invalid", None),
            LogError::Sealed { tail, .. } => (Code::FailedPrecondition, "sealed", Some(*tail)),
            LogError::Fenced { .. } => (Code::FailedPrecondition, "fenced", None),
            LogError::Taken { position } => (Code::AlreadyExists, "taken", Some(*position)),
            LogError::Trimmed { position } => (Code::OutOfRange, "trimmed", Some(*position)),
            LogError::NotTail { tail, .. } => (Code::Aborted, "not-tail", Some(*tail)),
            LogError::PastTail { tail, .. } => (Code::OutOfRange, "past-tail", Some(*tail)),
            LogError::Uncertain { position, .. } => (Code::Unknown, "uncertain", Some(*position)),
            LogError::NoSequencer { .. } => (Code::Unavailable, "no-sequencer", None),
            LogError::Deposed { .. } => (Code::Aborted, "contended", None),
            LogError::Unsupported { .. } => (Code::Unimplemented, "unsupported", None),
            LogError::Damaged { .. } => (Code::DataLoss, "damaged", None),
            _ => (Code::Internal, "internal", None),
        };
        Self { code, name, position, about: None, message: error.to_string() }
    }
}

impl From<MapError> for Told {
    fn from(error: MapError) -> Self {
        let (code, name, about) = match &error {
            MapError::Store(error) => return error.clone().into(),
            MapError::Missing { what, name } => {
                let told = match *what {
                    "namespace" => "no-namespace",
                    "column" => "no-column",
                    "index" => "no-index",
                    _ => "no-table",
                };
                (Code::NotFound, told, Some(name.clone()))
            }
            MapError::Exists { what, name } => {
                let told = match *what {
                    "namespace" => "namespace-exists",
                    "column" => "column-exists",
                    "index" => "index-exists",
                    _ => "table-exists",
                };
                (Code::AlreadyExists, told, Some(name.clone()))
            }
            MapError::Invalid { what: "page token", .. } => (Code::InvalidArgument, "page-token", None),
            MapError::Invalid { .. } => (Code::InvalidArgument, "invalid", None),
            MapError::Contended { .. } => (Code::Aborted, "contended", None),
            MapError::Unknown { .. } => (Code::Unknown, "uncertain", None),
            MapError::Unsupported { .. } => (Code::Unimplemented, "unsupported", None),
            MapError::Damaged { .. } => (Code::DataLoss, "damaged", None),
            _ => (Code::Internal, "internal", None),
        };
        Self { code, name, position: None, about, message: error.to_string() }
    }
}

impl From<StoreError> for Told {
    fn from(error: StoreError) -> Self {
        let (code, name) = match &error {
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
            _ => (Code::Unavailable, "store"),
        };
        Self::new(code, name, error.to_string())
    }
}

impl From<Told> for Status {
    fn from(told: Told) -> Self {
        let mut metadata = MetadataMap::new();
        metadata.insert(ERROR, tonic::metadata::MetadataValue::from_static(told.name));
        if let Some(position) = told.position {
            metadata.insert(POSITION, position.into());
        }
        if let Some(about) = &told.about {
            metadata.insert_bin(NAME, BinaryMetadataValue::from_bytes(about.as_bytes()));
        }
        Self::with_metadata(told.code, told.message, metadata)
    }
}

impl From<Told> for proto::Failure {
    fn from(told: Told) -> Self {
        Self {
            code: i32::from(told.code) as u32,
            message: told.message,
            error: told.name.into(),
            position: told.position,
        }
    }
}
