//! OpenTelemetry: spans and figures of `esker serve`, sent to a collector by OTLP. Cargo feature `otlp`.
//!
//! `[otlp]` → [`Exporting::start`] → [`Exporting::layer`] of the log, which takes spans; [`Exporting::tell`], which
//! takes figures → one thread that sends both → [`Exporting::stop`]
//!
//! Invariants:
//! 1. Nothing here waits for the collector: what cannot be sent in time is dropped, counted, and told of once in a
//!    while. The end of the server waits two seconds for it at most.
//! 2. Without the feature an endpoint is refused by name, before anything is opened.

#[cfg(feature = "otlp")]
mod endpoint;
#[cfg(feature = "otlp")]
mod exporter;
#[cfg(feature = "otlp")]
mod figures;
#[cfg(feature = "otlp")]
mod spans;

use std::sync::Arc;

use esker_server::http::{Figure, Source};

use crate::config::OtlpSettings;
use crate::exit::Failure;
use crate::logging::Spans;

/// What is exported: nothing where no endpoint is given.
#[derive(Default)]
pub struct Exporting {
    #[cfg(feature = "otlp")]
    exporter: Option<exporter::Exporter>,
}

/// What the settings say, checked.
fn check(settings: &OtlpSettings) -> Result<(), Failure> {
    if !(0.0..=1.0).contains(&settings.traces) {
        return Err(Failure::usage(format!("otlp traces = {}: expected a share from 0 to 1", settings.traces)));
    }
    if cfg!(not(feature = "otlp")) {
        let why = "this program was built without OpenTelemetry: build it with `--features otlp`, or leave the \
                   endpoint of [otlp] (--otlp) out";
        return Err(Failure::usage(why.to_string()));
    }
    Ok(())
}

#[cfg(not(feature = "otlp"))]
impl Exporting {
    /// Refuses an endpoint.
    ///
    /// # Errors
    /// [`Failure::usage`], with the feature that is missing.
    pub fn start(settings: &OtlpSettings) -> Result<Self, Failure> {
        if settings.endpoint.is_empty() { Ok(Self::default()) } else { check(settings).map(|()| Self::default()) }
    }

    /// Nothing takes spans.
    pub fn layer(&self) -> Option<Spans> {
        None
    }

    /// Nothing is told.
    pub fn tell(&self, _source: Arc<dyn Source>) -> Option<String> {
        None
    }

    /// Nothing is to be ended.
    pub fn stop(self) {}
}

#[cfg(feature = "otlp")]
impl Exporting {
    /// Begins to export, if there is an endpoint. It need not be there yet.
    ///
    /// # Errors
    /// [`Failure::usage`]: the settings make no sense, or would send credentials in the clear.
    pub fn start(settings: &OtlpSettings) -> Result<Self, Failure> {
        if settings.endpoint.is_empty() {
            return Ok(Self::default());
        }
        check(settings)?;
        exporter::Exporter::start(settings).map(|exporter| Self { exporter: Some(exporter) })
    }

    /// What takes spans, for the log.
    pub fn layer(&self) -> Option<Spans> {
        self.exporter.as_ref().map(exporter::Exporter::layer)
    }

    /// Tells figures of this from now on, and traces requests; says where to, for people.
    pub fn tell(&self, source: Arc<dyn Source>) -> Option<String> {
        self.exporter.as_ref().map(|exporter| exporter.tell(source))
    }

    /// Sends what there is, for two seconds at most.
    pub fn stop(self) {
        self.exporter.into_iter().for_each(exporter::Exporter::stop);
    }
}

/// What was exported, for those who watch.
pub fn figures() -> Vec<Figure> {
    #[cfg(feature = "otlp")]
    return spans::COUNTS.figures();
    #[cfg(not(feature = "otlp"))]
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_taken_with_the_feature_only() {
        let settings = OtlpSettings { endpoint: "http://127.0.0.1:4317".into(), ..OtlpSettings::default() };
        assert!(Exporting::start(&OtlpSettings::default()).is_ok());
        let checked = check(&settings);
        assert_eq!(checked.is_ok(), cfg!(feature = "otlp"));
        if let Err(failure) = checked {
            assert!(failure.to_string().contains("--features otlp"), "{failure}");
        }
    }

    #[test]
    fn a_share_of_requests_is_from_0_to_1() {
        for traces in [-0.1, 1.1, f64::NAN] {
            let settings = OtlpSettings { traces, ..OtlpSettings::default() };
            let error = check(&settings).unwrap_err().to_string();
            assert!(error.contains("from 0 to 1"), "{error}");
        }
    }
}
