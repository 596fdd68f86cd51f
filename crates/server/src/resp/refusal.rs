//! Why a command was refused, and the line that tells a client.

use std::borrow::Cow;

pub(crate) const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// Why a command was refused.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The whole error line; the input was at fault and nothing was written.
    Text(Cow<'static, str>),
    /// The store's error.
    Store(esker_store::Error),
    /// Nothing is refused: what was to be read is on its way, and nothing was written.
    OnItsWay,
}

impl From<&'static str> for Refusal {
    fn from(text: &'static str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Refusal {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<esker_store::Error> for Refusal {
    fn from(error: esker_store::Error) -> Self {
        Self::Store(error)
    }
}

impl From<esker_kv::Error> for Refusal {
    fn from(error: esker_kv::Error) -> Self {
        match error {
            esker_kv::Error::Store(error) => Self::Store(error),
            esker_kv::Error::OnItsWay => Self::OnItsWay,
            other => Self::Text(format!("ERR {other}").into()),
        }
    }
}

/// The line that tells a client of a store's error.
pub(crate) fn store_error_line(error: &esker_store::Error) -> String {
    match error {
        esker_store::Error::Stopped { .. } | esker_store::Error::ReadOnly => format!("MISCONF {error}"),
        // Clients of clusters look for another node then, or try again.
        esker_store::Error::NotServing { .. } => format!("CLUSTERDOWN {error}"),
        esker_store::Error::Full { .. } => format!("OOM {error}"),
        esker_store::Error::Unknown { .. } => format!("UNKNOWN {error}"),
        esker_store::Error::Unsupported { what: esker_kv::ACROSS_PARTITIONS, .. } => {
            "CROSSSLOT Keys in request don't hash to the same slot".into()
        }
        other => format!("ERR {other}"),
    }
}

impl Refusal {
    /// The line that tells a client.
    pub(crate) fn line(&self) -> Cow<'static, str> {
        match self {
            Self::Text(text) => text.clone(),
            Self::Store(error) => store_error_line(error).into(),
            // The server meets it before a client is told.
            Self::OnItsWay => "ERR a value is on its way".into(),
        }
    }
}
