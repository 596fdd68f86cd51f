//! What the gRPC server has counted: calls, failures and times by method, connections.
//!
//! request → [`Counted`] around all services → answer's head → [`CallCounts`] → [`CallCounts::figures`]
//!
//! A call's time ends with the head of its answer: that of a stream says how long its begin took. So does its span.
//!
//! Invariant: methods that there are are counted by name, whatever clients ask for.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use tonic::codegen::{Service, http};

use super::names::Names;
use super::visitor::Room;
use crate::http::{Figure, Times, Value};
use crate::trace;

/// What was counted of a method.
#[derive(Default)]
struct Method {
    failed: AtomicU64,
    times: Times,
}

/// What was counted.
#[derive(Default)]
pub(crate) struct CallCounts {
    methods: RwLock<BTreeMap<String, Arc<Method>>>,
    room: RwLock<Option<Room>>,
    names: RwLock<Option<Arc<Names>>>,
}

impl CallCounts {
    /// Tells of these connections too.
    pub(crate) fn watch(&self, room: &Room) {
        *self.room.write() = Some(room.clone());
    }

    /// Tells of these logs too.
    pub(crate) fn tell_of(&self, names: &Arc<Names>) {
        *self.names.write() = Some(Arc::clone(names));
    }

    fn method(&self, path: &str) -> Arc<Method> {
        if let Some(method) = self.methods.read().get(path) {
            return Arc::clone(method);
        }
        let mut methods = self.methods.write();
        // What else is asked for is one figure.
        let name = if trace::is_method(path) { path } else { "other" };
        Arc::clone(methods.entry(name.to_owned()).or_default())
    }

    /// The figures, those of one name one behind the other.
    pub(crate) fn figures(&self) -> Vec<Figure> {
        let methods: Vec<(String, Arc<Method>)> =
            self.methods.read().iter().map(|(name, method)| (name.clone(), Arc::clone(method))).collect();
        let mut figures: Vec<Figure> = methods
            .iter()
            .map(|(name, method)| {
                let help = "How long gRPC calls took, up to the head of their answers";
                Figure::new("esker_grpc_call_seconds", help, method.times.value()).labelled("method", name)
            })
            .collect();
        figures.extend(methods.iter().map(|(name, method)| {
            let failed = Value::Counter(method.failed.load(Ordering::Relaxed) as f64);
            Figure::new("esker_grpc_call_failures", "gRPC calls answered with an error", failed)
                .labelled("method", name)
        }));
        if let Some(room) = &*self.room.read() {
            let gauge = |name: &str, help: &str, value: usize| Figure::new(name, help, Value::Gauge(value as f64));
            figures.extend([
                gauge("esker_grpc_connections", "Connections of clients that have made a request", room.known()),
                gauge("esker_grpc_connections_max", "Most of them (grpc_connections)", room.known_max()),
                gauge("esker_grpc_strangers", "Connections without such a request yet", room.strangers()),
                Figure::new(
                    "esker_grpc_strangers_sent_away",
                    "Connections closed before such a request, to make room or for their time",
                    Value::Counter(room.sent_away() as f64),
                ),
            ]);
        }
        let names = self.names.read().clone();
        figures.extend(names.iter().flat_map(|names| names.figures()));
        figures
    }
}

impl Method {
    fn note(&self, took: Duration, failed: bool) {
        self.times.note(took);
        self.failed.fetch_add(u64::from(failed), Ordering::Relaxed);
    }
}

/// Has everything counted that passes.
#[derive(Clone)]
pub(crate) struct Counting(pub(crate) Arc<CallCounts>);

impl<S> tower::Layer<S> for Counting {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, counts: Arc::clone(&self.0) }
    }
}

/// A service whose calls are counted.
#[derive(Clone)]
pub(crate) struct Counted<S> {
    inner: S,
    counts: Arc<CallCounts>,
}

impl<S, B, R> Service<http::Request<B>> for Counted<S>
where
    S: Service<http::Request<B>, Response = http::Response<R>>,
    S::Future: Send + 'static,
    S::Error: 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let path = request.uri().path();
        let method = self.counts.method(path);
        let traced = if trace::is_on() { trace::call(path, request.headers()) } else { None };
        let (began, answer) = (Instant::now(), self.inner.call(request));
        Box::pin(async move {
            let answer = answer.await;
            // A call that fails has its status in the head.
            let status = answer.as_ref().ok().and_then(|answer| answer.headers().get("grpc-status"));
            let failed = answer.is_err() || status.is_some_and(|status| status != "0");
            method.note(began.elapsed(), failed);
            if let Some(traced) = traced {
                let status = status.and_then(|status| status.to_str().ok()?.parse().ok());
                // What broke off has no head: unknown, in gRPC's words.
                traced.answered(if failed { status.or(Some(2)) } else { status });
            }
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_fall_into_their_buckets_and_names_are_bounded() {
        let counts = CallCounts::default();
        for (micros, failed) in [(0, false), (1, false), (1_000, true), (u64::MAX >> 20, false)] {
            counts.method("/esker.log.v1.Log/Append").note(Duration::from_micros(micros), failed);
        }
        for n in 0..1_000 {
            counts.method(&format!("/esker.none/{n}")).note(Duration::ZERO, true);
            counts.method(&format!("/anything/{n}")).note(Duration::ZERO, true);
        }
        let figures = counts.figures();
        assert_eq!(figures.len(), 2 * 2, "of the method, and of all others");
        let first = figures.iter().find(|figure| figure.labels == [("method", "/esker.log.v1.Log/Append".into())]);
        let Some(Figure { value: Value::Summed(buckets, _), .. }) = first else { panic!("{first:?}") };
        let filled: Vec<(f64, u64)> = buckets.iter().copied().filter(|(_, count)| *count > 0).collect();
        assert_eq!(filled, [(1e-6, 1), (2e-6, 1), (1_024e-6, 1), ((1u64 << 24) as f64 / 1e6, 1)]);
    }
}
