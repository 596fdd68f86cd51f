//! What the actions of `esker log` share.

use esker::kv::{Clock, SystemClock};
use esker::log::{Log, Logs};
use serde_json::Value;

use crate::commands::tell;
use crate::exit::Failure;

/// Names that one page of the directory asks for.
const NAMES: usize = 1_000;

/// What the actions share: the logs, and how results are told.
pub(super) struct Context {
    pub(super) logs: Logs,
    pub(super) store: esker::Store,
    pub(super) json: bool,
}

impl Context {
    /// Prints `value` as JSON, or else `text`.
    pub(super) fn tell(&self, value: Value, text: &str) -> Result<(), Failure> {
        tell(self.json, &value, text)
    }

    pub(super) fn log(&self, name: &str) -> Result<Log, Failure> {
        Ok(self.logs.log(name)?)
    }

    pub(super) fn now_ms(&self) -> u64 {
        SystemClock.now_ms()
    }

    pub(super) fn names(&self) -> Result<Vec<String>, Failure> {
        let mut all: Vec<String> = Vec::new();
        loop {
            let page = self.logs.list(all.last().map(String::as_str), NAMES)?;
            if page.is_empty() {
                return Ok(all);
            }
            all.extend(page);
        }
    }

    pub(super) fn names_or(&self, name: Option<String>) -> Result<Vec<String>, Failure> {
        name.map_or_else(|| self.names(), |name| Ok(vec![name]))
    }
}
