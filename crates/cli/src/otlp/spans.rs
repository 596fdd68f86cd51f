//! Spans on their way: a bounded queue between those who end them and the thread that sends them.
//!
//! a span ends → [`Queue`] → [`super::exporter`] → [`COUNTS`]
//!
//! Invariant: a thread that ends a span neither waits nor wakes another; where the queue is full the span is dropped
//! and counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use esker_server::http::{Figure, Value};
use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::TraceContextExt;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};
use tonic::codegen::http::HeaderMap;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// What was counted of the exports of this process.
pub static COUNTS: Counts = Counts {
    sent: AtomicU64::new(0),
    dropped: AtomicU64::new(0),
    lost: AtomicU64::new(0),
    failures: AtomicU64::new(0),
};

/// What was counted.
pub struct Counts {
    /// Spans that the collector took.
    pub sent: AtomicU64,
    /// Spans for which the queue had no room.
    pub dropped: AtomicU64,
    /// Spans that could not be sent, or were rejected.
    pub lost: AtomicU64,
    /// Exports that failed, of spans and of figures.
    pub failures: AtomicU64,
}

impl Counts {
    /// As figures.
    pub fn figures(&self) -> Vec<Figure> {
        let figure = |name: &str, help: &str, count: &AtomicU64| {
            let value = Value::Counter(count.load(Ordering::Relaxed) as f64);
            Figure::new(format!("esker_otlp_{name}"), help, value)
        };
        vec![
            figure("spans_sent", "Spans that the collector took", &self.sent),
            figure("spans_dropped", "Spans for which there was no room in the queue", &self.dropped),
            figure("spans_lost", "Spans that could not be sent, or were rejected", &self.lost),
            figure("export_failures", "Exports by OTLP that failed, of spans or figures", &self.failures),
        ]
    }
}

/// Where ended spans wait.
#[derive(Debug)]
pub struct Queue(pub SyncSender<SpanData>);

impl SpanProcessor for Queue {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.0.try_send(span).is_err() {
            COUNTS.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

struct Metadata<'a>(&'a HeaderMap);

impl Extractor for Metadata<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|key| key.as_str()).collect()
    }
}

/// Makes a span the child of the `traceparent` of a call.
pub fn adopt(span: &tracing::Span, headers: &HeaderMap) {
    let caller = TraceContextPropagator::new().extract_with_context(&Context::new(), &Metadata(headers));
    if caller.span().span_context().is_valid() {
        // A span that no subscriber records any more needs no parent.
        let _ = span.set_parent(caller);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use opentelemetry::trace::{Tracer, TracerProvider};
    use opentelemetry_sdk::trace::SdkTracerProvider;

    #[test]
    fn spans_that_find_no_room_are_dropped_and_counted() {
        let (sender, queue) = std::sync::mpsc::sync_channel(2);
        let provider = SdkTracerProvider::builder().with_span_processor(Queue(sender)).build();
        let before = COUNTS.dropped.load(Ordering::Relaxed);
        for _ in 0..5 {
            drop(provider.tracer("test").start("span"));
        }
        assert_eq!(queue.try_iter().count(), 2);
        assert_eq!(COUNTS.dropped.load(Ordering::Relaxed) - before, 3);
    }
}
