//! What the Thrift server has counted: calls, errors and times by method, connections.
//!
//! Invariant: methods that there are are counted by name, and all others together, whatever clients ask for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::call::{METHODS, Procedure};
use crate::http::{Figure, Times, Value};

/// What was counted of a method.
#[derive(Default)]
struct Tallied {
    errors: AtomicU64,
    times: Times,
}

/// What was counted.
#[derive(Default)]
pub(super) struct ThriftCounts {
    /// By method; the last are all that there are not.
    methods: [Tallied; METHODS.len() + 1],
    /// Connections that were accepted, refused for want of a place, and ended for what they sent.
    pub(super) accepted: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) malformed: AtomicU64,
    /// Calls, or parts of them, that the heads of other chains were asked for, and that those asked for here.
    pub(super) passed_on: AtomicU64,
    pub(super) taken_on: AtomicU64,
}

impl ThriftCounts {
    /// A call of this method, or of one that there is not, took so long.
    pub(super) fn note(&self, method: Option<Procedure>, took: Duration, failed: bool) {
        let counted = &self.methods[method.map_or(METHODS.len(), |method| method as usize)];
        counted.times.note(took);
        counted.errors.fetch_add(u64::from(failed), Ordering::Relaxed);
    }

    /// The figures, those of one name one behind the other.
    pub(super) fn figures(&self) -> Vec<Figure> {
        let names = METHODS.iter().map(|(_, name)| *name).chain(["other"]);
        let methods: Vec<(&str, &Tallied)> = names.zip(&self.methods).collect();
        let mut figures: Vec<Figure> = methods
            .iter()
            .map(|(name, counted)| {
                let help = "How long Thrift calls took, until their answers were made";
                Figure::new("esker_thrift_call_seconds", help, counted.times.value()).labelled("method", *name)
            })
            .collect();
        let counter = |value: &AtomicU64| Value::Counter(value.load(Ordering::Relaxed) as f64);
        figures.extend(methods.iter().map(|(name, counted)| {
            let help = "Thrift calls answered with an exception";
            Figure::new("esker_thrift_call_failures", help, counter(&counted.errors)).labelled("method", *name)
        }));
        for (name, help, value) in [
            ("accepted", "Connections accepted", &self.accepted),
            ("refused", "Connections refused for want of a place (thrift_connections)", &self.refused),
            ("malformed", "Connections ended for what they sent", &self.malformed),
        ] {
            figures.push(Figure::new(format!("esker_thrift_connections_{name}"), help, counter(value)));
        }
        for (name, help, value) in [
            ("passed_on", "Calls, or parts of them, that the heads of other chains were asked for", &self.passed_on),
            ("taken_on", "Calls, or parts of them, that the heads of other chains asked for", &self.taken_on),
        ] {
            figures.push(Figure::new(format!("esker_thrift_{name}"), help, counter(value)));
        }
        figures
    }
}
