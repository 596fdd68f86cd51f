//! How the program ends: the exit codes that scripts may rely on, and which error gives which.
//!
//! Invariant: a code, once given a meaning, keeps it.

use std::fmt;
use std::process::ExitCode;

/// Why a command did not do what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// It failed.
    Failure = 1,
    /// The command line or the configuration is wrong. (clap ends with this code as well.)
    Usage = 2,
    /// What was asked for does not exist: the store, the namespace or the key, the image or the snapshot, the log or
    /// the consumer, the table, column or row.
    NotFound = 3,
    /// The store is damaged.
    Damage = 4,
    /// Another process has the store open.
    InUse = 5,
    /// The store was repaired, and something was lost.
    Lost = 6,
    /// An answer was lost: it is not known whether what was asked for was done.
    Unknown = 7,
}

/// The part of `esker --help` that explains the codes.
pub const HELP: &str = "Exit codes:\n  0  done\n  1  failed\n  2  the command line or the configuration is wrong\n  3  the store or the key does not exist\n  4  the store is damaged\n  5  another process has the store open\n  6  the store was repaired, and something was lost\n  7  an answer was lost: it is not known whether it was done";

/// The end of a command that did not succeed: what to say, and the code.
#[derive(Debug)]
pub struct Failure {
    code: Code,
    message: String,
}

impl Failure {
    /// A failure with this code.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// A failure that tells this error and its causes.
    pub fn of(code: Code, error: &dyn std::error::Error) -> Self {
        Self::new(code, chain(error))
    }

    /// The command line or the configuration is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Code::Usage, message)
    }

    /// Why it ended.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The same, told with what it was met in.
    pub fn within(self, place: impl fmt::Display) -> Self {
        Self { code: self.code, message: format!("{place}: {}", self.message) }
    }

    /// The exit code.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code as u8)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The error with its causes, those left out that its own text already contains.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
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

fn store_code(error: &esker::objects::Error) -> Code {
    match error {
        esker::objects::Error::Corrupt { .. } => Code::Damage,
        esker::objects::Error::Unknown { .. } => Code::Unknown,
        esker::objects::Error::Restarted => Code::Lost,
        _ => Code::Failure,
    }
}

fn volume_code(error: &esker::volume::Error) -> Code {
    use esker::volume::Error;
    match error {
        Error::Store(error) => store_code(error),
        Error::NoImage { .. } | Error::NoSnapshot { .. } => Code::NotFound,
        Error::Invalid { .. } | Error::PastEnd { .. } => Code::Usage,
        Error::Damaged { .. } => Code::Damage,
        _ => Code::Failure,
    }
}

fn log_code(error: &esker::log::Error) -> Code {
    use esker::log::Error;
    match error {
        Error::Store(error) => store_code(error),
        Error::NoLog { .. } => Code::NotFound,
        Error::Invalid { .. } | Error::PastTail { .. } => Code::Usage,
        Error::Uncertain { .. } => Code::Unknown,
        Error::Damaged { .. } => Code::Damage,
        _ => Code::Failure,
    }
}

fn map_code(error: &esker::map::Error) -> Code {
    use esker::map::Error;
    match error {
        Error::Store(error) => store_code(error),
        Error::Missing { .. } => Code::NotFound,
        Error::Unknown { .. } => Code::Unknown,
        Error::Invalid { .. } => Code::Usage,
        Error::Damaged { .. } => Code::Damage,
        _ => Code::Failure,
    }
}

fn device_code(error: &esker::device::Error) -> Code {
    match error {
        esker::device::Error::InUse { .. } => Code::InUse,
        esker::device::Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => Code::NotFound,
        _ => Code::Failure,
    }
}

impl From<esker::Error> for Failure {
    fn from(error: esker::Error) -> Self {
        let code = match &error {
            esker::Error::Location { .. }
            | esker::Error::UnknownOption { .. }
            | esker::Error::BadOption { .. }
            | esker::Error::SameStore { .. }
            | esker::Error::NotBuilt { .. }
            | esker::Error::Remote(esker::remote::Error::Address { .. } | esker::remote::Error::Option { .. }) => {
                Code::Usage
            }
            esker::Error::NotFound { .. } | esker::Error::Remote(esker::remote::Error::Unreachable { .. }) => {
                Code::NotFound
            }
            esker::Error::InUse { .. } => Code::InUse,
            esker::Error::Store(error) => store_code(error),
            esker::Error::Device(error) => device_code(error),
            esker::Error::Kv(esker::kv::Error::Store(error)) => store_code(error),
            esker::Error::Log(error) => log_code(error),
            esker::Error::Map(error) => map_code(error),
            esker::Error::Volume(error) => volume_code(error),
            _ => Code::Failure,
        };
        Self::of(code, &error)
    }
}

impl From<esker::objects::Error> for Failure {
    fn from(error: esker::objects::Error) -> Self {
        Self::of(store_code(&error), &error)
    }
}

impl From<esker::kv::Error> for Failure {
    fn from(error: esker::kv::Error) -> Self {
        esker::Error::from(error).into()
    }
}

impl From<esker::log::Error> for Failure {
    fn from(error: esker::log::Error) -> Self {
        esker::Error::from(error).into()
    }
}

impl From<esker::map::Error> for Failure {
    fn from(error: esker::map::Error) -> Self {
        esker::Error::from(error).into()
    }
}

impl From<esker::volume::Error> for Failure {
    fn from(error: esker::volume::Error) -> Self {
        esker::Error::from(error).into()
    }
}

impl From<esker::device::Error> for Failure {
    fn from(error: esker::device::Error) -> Self {
        Self::of(device_code(&error), &error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(Code::Failure, error.to_string())
    }
}
