//! Where the log goes and how it looks: stderr, as text for people or as JSON for programs.
//!
//! flag, RUST_LOG, file → filter and [`LogFormat`] → one subscriber for the process, the exporter of spans beside it

use std::fmt;
use std::str::FromStr;

use tracing::Subscriber;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::exit::Failure;

/// What takes spans, beside the lines.
pub type Spans = Box<dyn Layer<Registry> + Send + Sync>;

/// How a line of the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// A JSON object a line: `timestamp`, `level`, `target`, `message`, and the fields of the event beside them.
    Json,
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(format!("{other:?} is not a format of logs: text or json")),
        }
    }
}

/// Lines on stderr.
fn lines<S: Subscriber + for<'a> LookupSpan<'a>>(format: LogFormat) -> Box<dyn Layer<S> + Send + Sync> {
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    match format {
        LogFormat::Text => {
            let colour = std::io::IsTerminal::is_terminal(&std::io::stderr());
            lines.with_ansi(colour).with_target(false).boxed()
        }
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    }
}

/// Starts the log: what `flag` lets through, else RUST_LOG, else `level`. What takes spans has a filter of its own.
///
/// # Errors
/// [`Failure::usage`] if the filter cannot be read.
pub fn start(flag: Option<&str>, level: &str, format: LogFormat, spans: Option<Spans>) -> Result<(), Failure> {
    let from_environment = std::env::var("RUST_LOG").ok().filter(|filter| !filter.is_empty());
    let filter = flag.map(str::to_string).or(from_environment).unwrap_or_else(|| level.to_string());
    let filter =
        EnvFilter::try_new(&filter).map_err(|error| Failure::usage(format!("log filter {filter:?}: {error}")))?;
    let log = tracing_subscriber::registry();
    match spans {
        // A filter for all costs less than one for each.
        None => log.with(filter).with(lines(format)).init(),
        Some(spans) => log.with(spans).with(lines(format).with_filter(filter)).init(),
    }
    Ok(())
}
