//! Figures as Prometheus reads them.
//!
//! [`Source::figures`] → [`Figure`]s → the library's encoder → text, format 0.0.4
//!
//! Invariant: a family of figures is written once, with all its labels; no label tells a key, a client or an address.

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

/// What is told. Called on the thread that answers: it must not take long.
pub trait Source: Send + Sync {
    /// Whether writes are taken; else why not.
    ///
    /// # Errors
    /// The cause, for people.
    fn ready(&self) -> std::result::Result<(), String>;

    /// All figures; those of one name one behind the other.
    fn figures(&self) -> Vec<Figure>;
}

/// What a figure says.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// It only grows, from the start of the process on.
    Counter(f64),
    /// It goes up and down.
    Gauge(f64),
    /// How often something took so long: upper ends of buckets in seconds, ascending, with the counts of each alone;
    /// the sum is not known better than by those ends.
    Times(Vec<(f64, u64)>),
    /// The same where the sum is known, in seconds.
    Summed(Vec<(f64, u64)>, f64),
}

/// A figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Its name, without the suffix of counters: lower case, words joined by `_`, the unit last.
    pub name: String,
    /// What it is, for people.
    pub help: String,
    /// What tells it from others of its name, such as a stage.
    pub labels: Vec<(&'static str, String)>,
    /// What it says.
    pub value: Value,
}

impl Figure {
    /// A figure without a label.
    pub fn new(name: impl Into<String>, help: impl Into<String>, value: Value) -> Self {
        Self { name: name.into(), help: help.into(), labels: Vec::new(), value }
    }

    /// The same with a label, after those that it has.
    #[must_use]
    pub fn labelled(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.labels.push((name, value.into()));
        self
    }

    fn kind(&self) -> MetricType {
        match self.value {
            Value::Counter(_) => MetricType::Counter,
            Value::Gauge(_) => MetricType::Gauge,
            Value::Times(_) | Value::Summed(..) => MetricType::Histogram,
        }
    }

    fn encode(&self, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        match &self.value {
            Value::Counter(value) => encoder.encode_counter::<NoLabelSet, f64, f64>(value, None),
            Value::Gauge(value) => encoder.encode_gauge(value),
            Value::Times(buckets) => {
                let sum = buckets.iter().fold(0.0, |sum, (end, count)| sum + end * *count as f64);
                encode_times(encoder, buckets, sum)
            }
            Value::Summed(buckets, sum) => encode_times(encoder, buckets, *sum),
        }
    }
}

fn encode_times(encoder: &mut MetricEncoder<'_>, buckets: &[(f64, u64)], sum: f64) -> fmt::Result {
    let count = buckets.iter().map(|(_, count)| count).sum();
    encoder.encode_histogram::<NoLabelSet>(sum, count, buckets, None)
}

/// All figures of a source, as text.
pub(super) fn text(source: &Arc<dyn Source>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Collected(source.figures())));
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Collected(Vec<Figure>);

impl prometheus_client::collector::Collector for Collected {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let mut rest = &self.0[..];
        while let Some(first) = rest.first() {
            let len = rest.iter().take_while(|figure| figure.name == first.name).count();
            let mut family = encoder.encode_descriptor(&first.name, &first.help, None, first.kind())?;
            for figure in &rest[..len] {
                match figure.labels.as_slice() {
                    [] => figure.encode(&mut family)?,
                    labels => figure.encode(&mut family.encode_family(&labels)?)?,
                }
            }
            rest = &rest[len..];
        }
        Ok(())
    }
}
