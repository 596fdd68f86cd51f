//! How errors of the faces are told to clients: gRPC status code and name, as the published files list them.
//!
//! Invariant: who tells errors apart needs no message text.

use tonic::Code;

/// What is told of an error beside its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The gRPC status code.
    pub code: Code,
    /// Its name, sent as [`Named::NAME`].
    pub name: &'static str,
    /// The position that it is about, sent as [`Named::POSITION`].
    pub position: Option<u64>,
    /// The name that is missing or taken, sent as [`Named::ABOUT`].
    pub about: Option<String>,
}

impl Named {
    /// Metadata with the error's name.
    pub const NAME: &'static str = "esker-error";
    /// Metadata with the position that the error is about, a decimal number.
    pub const POSITION: &'static str = "esker-position";
    /// Metadata with the name that is missing or taken, in UTF-8.
    pub const ABOUT: &'static str = "esker-name-bin";

    pub(crate) fn new(code: Code, name: &'static str) -> Self {
        Self { code, name, position: None, about: None }
    }

    pub(crate) fn at(self, position: u64) -> Self {
        Self { position: Some(position), ..self }
    }

    pub(crate) fn about(self, about: &str) -> Self {
        Self { about: Some(about.to_owned()), ..self }
    }
}
