//! The thread that sends spans and figures to the collector.
//!
//! queue of spans, source of figures → batches → OTLP by gRPC, over one connection → what failed is counted
//!
//! The SDK's batch processor and the crate `opentelemetry-otlp` are not used: they tell what they dropped only at the
//! end, and figures need a client beside them in any case (see [`super::figures`]).
//!
//! Invariants:
//! 1. At most [`QUEUE_MAX`] spans wait, and a batch is tried [`TRIES`] times.
//! 2. Failures are told at most once in [`SILENCE`].
//! 3. The end takes [`END`] at most, whatever the collector does.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use esker_server::http::Source;
use esker_server::trace;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider, SpanData};
use tokio::sync::watch;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};

use super::endpoint::Endpoint;
use super::figures::{SCOPE, Times, request};
use super::spans::{COUNTS, Queue, adopt};
use crate::config::OtlpSettings;
use crate::exit::Failure;
use crate::logging::Spans;

/// Spans that wait to be sent.
const QUEUE_MAX: usize = 4_096;
/// Spans sent at once.
const BATCH_MAX: usize = 512;
/// Spans are sent so often.
const EVERY: Duration = Duration::from_millis(200);
/// A batch of spans is tried so often, as long as the collector may take it later.
const TRIES: u32 = 3;
/// Between the first try and the second; twice that each time after.
const AGAIN: Duration = Duration::from_secs(1);
/// Failures are told so often at most.
const SILENCE: Duration = Duration::from_secs(60);
/// The end waits so long for the collector.
const END: Duration = Duration::from_secs(2);

type Figures = Arc<OnceLock<Arc<dyn Source>>>;

/// What is exported, and where to.
pub struct Exporter {
    about: String,
    share: f64,
    tracer: SdkTracer,
    figures: Figures,
    stop: watch::Sender<bool>,
    ended: Receiver<()>,
}

impl Exporter {
    /// Starts the thread. The collector is reached when there is something to send.
    ///
    /// # Errors
    /// [`Failure::usage`] as [`Endpoint::from_environment`]; others if there is no thread to be had.
    pub fn start(settings: &OtlpSettings) -> Result<Self, Failure> {
        let endpoint = Endpoint::from_environment(&settings.endpoint)?;
        let resource = resource();
        let (sender, queue) = sync_channel(QUEUE_MAX);
        // Which requests are traced was decided before their spans were made.
        let sampler = Sampler::ParentBased(Box::new(Sampler::AlwaysOn));
        let provider = SdkTracerProvider::builder()
            .with_sampler(sampler)
            .with_resource(resource.clone())
            .with_span_processor(Queue(sender))
            .build();
        let scope = InstrumentationScope::builder(SCOPE).with_version(env!("CARGO_PKG_VERSION")).build();
        let tracer = provider.tracer_with_scope(scope);
        let (stop, stopping) = watch::channel(false);
        let (end, ended) = sync_channel(1);
        let figures = Figures::default();
        let interval = settings.metrics_interval.0.0;
        let sending = Sending { endpoint, resource, queue, figures: Arc::clone(&figures), interval, stopping };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("esker-otlp".into()).spawn(move || {
            runtime.block_on(sending.run());
            tell_end(&end);
        })?;
        let every = if interval.is_zero() { "none".into() } else { format!("every {}", settings.metrics_interval.0) };
        let about = format!("{} ({} of requests traced, metrics {every})", settings.endpoint, settings.traces);
        Ok(Self { about, share: settings.traces, tracer, figures, stop, ended })
    }

    /// What takes spans.
    pub fn layer(&self) -> Spans {
        let spans = tracing_opentelemetry::layer()
            .with_tracer(self.tracer.clone())
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_level(false)
            .with_target(false);
        // Nothing else: other spans and all lines of the log may tell what no collector is to see.
        spans.with_filter(Targets::new().with_target(trace::TARGET, LevelFilter::TRACE)).boxed()
    }

    /// Tells these figures and traces requests from now on; returns where to, for people.
    pub fn tell(&self, source: Arc<dyn Source>) -> String {
        // Told once, when the server starts.
        let _ = self.figures.set(source);
        trace::start(self.share, adopt);
        self.about.clone()
    }

    /// Sends what there is, as far as that goes in [`END`].
    pub fn stop(self) {
        trace::stop();
        self.stop.send_replace(true);
        if self.ended.recv_timeout(END).is_err() {
            tracing::warn!(seconds = END.as_secs(), "the last spans and figures were not sent by OTLP in time");
        }
    }
}

fn tell_end(end: &SyncSender<()>) {
    // The thread that waited may have gone.
    let _ = end.try_send(());
}

/// Who tells: this service, under what the environment says of it.
fn resource() -> Resource {
    let name = std::env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.is_empty());
    // A random UUID (version 4), anew at each start; OTEL_RESOURCE_ATTRIBUTES gives one that lasts.
    let bits = fastrand::u128(..) & !(0xf << 76) & !(0x3 << 62) | 4 << 76 | 2 << 62;
    let hex = format!("{bits:032x}");
    let id = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-");
    let mut attributes =
        vec![KeyValue::new("service.version", env!("CARGO_PKG_VERSION")), KeyValue::new("service.instance.id", id)];
    if let Ok(host) = rustix::system::uname().nodename().to_str() {
        attributes.push(KeyValue::new("host.name", host.to_string()));
    }
    Resource::builder_empty()
        .with_service_name("esker")
        .with_attributes(attributes)
        .with_detector(Box::new(EnvResourceDetector::new()))
        .with_attributes(name.map(|name| KeyValue::new("service.name", name)))
        .build()
}

/// Now, in nanoseconds of the epoch.
fn now_ns() -> u64 {
    u64::try_from(time::OffsetDateTime::now_utc().unix_timestamp_nanos()).unwrap_or(0)
}

/// What the thread has.
struct Sending {
    endpoint: Endpoint,
    resource: Resource,
    queue: Receiver<SpanData>,
    figures: Figures,
    interval: Duration,
    stopping: watch::Receiver<bool>,
}

impl Sending {
    async fn run(self) {
        let Self { endpoint, resource, queue, figures, interval, stopping } = self;
        let Endpoint { transport, metadata } = endpoint;
        let channel = transport.connect_lazy();
        let told = tokio::spawn(send_figures(
            (channel.clone(), metadata.clone()),
            (&resource).into(),
            figures,
            interval,
            stopping.clone(),
        ));
        send_spans(channel, metadata, (&resource).into(), queue, stopping).await;
        if told.await.is_err() {
            tracing::error!("the export of figures panicked");
        }
    }
}

/// Waits so long, or until the end; whether it is the end.
async fn wait(stopping: &mut watch::Receiver<bool>, time: Duration) -> bool {
    // The server, which tells of the end, may be gone.
    tokio::time::timeout(time, stopping.wait_for(|stopping| *stopping)).await.is_ok()
}

async fn send_spans(
    channel: Channel,
    metadata: MetadataMap,
    resource: ResourceAttributesWithSchema,
    queue: Receiver<SpanData>,
    mut stopping: watch::Receiver<bool>,
) {
    let mut client = TraceServiceClient::new(channel);
    let mut complaints = Complaints::default();
    loop {
        // A thread that ends a span does not wake this one.
        let stops = wait(&mut stopping, EVERY).await;
        loop {
            let batch: Vec<SpanData> = queue.try_iter().take(BATCH_MAX).collect();
            if batch.is_empty() {
                break;
            }
            let spans = batch.len() as u64;
            let message =
                ExportTraceServiceRequest { resource_spans: group_spans_by_resource_and_scope(batch, &resource) };
            let mut tries = 1;
            let answer = loop {
                let answer = client.export(with(&metadata, message.clone())).await;
                let later = answer.as_ref().is_err_and(may_work_later);
                if !later || tries == TRIES || wait(&mut stopping, AGAIN * (1 << (tries - 1))).await {
                    break answer;
                }
                tries += 1;
            };
            let partial = answer.map(|answer| answer.into_inner().partial_success);
            let lost = match &partial {
                Ok(partial) => partial.as_ref().map_or(0, |partial| partial.rejected_spans.max(0) as u64).min(spans),
                Err(_) => spans,
            };
            COUNTS.sent.fetch_add(spans - lost, Ordering::Relaxed);
            COUNTS.lost.fetch_add(lost, Ordering::Relaxed);
            match partial {
                Ok(Some(partial)) if lost > 0 => complaints.note("spans are rejected", &partial.error_message),
                Ok(_) => {}
                Err(status) => complaints.failed("spans cannot be sent", &status),
            }
            complaints.note_dropped();
        }
        complaints.note_dropped();
        if stops {
            return;
        }
    }
}

async fn send_figures(
    (channel, metadata): (Channel, MetadataMap),
    resource: ResourceAttributesWithSchema,
    figures: Figures,
    interval: Duration,
    mut stopping: watch::Receiver<bool>,
) {
    if interval.is_zero() {
        return;
    }
    let mut client = MetricsServiceClient::new(channel);
    let mut complaints = Complaints::default();
    let start_ns = now_ns();
    let of =
        opentelemetry_proto::tonic::resource::v1::Resource { attributes: resource.attributes.0, ..Default::default() };
    loop {
        // What is not sent now is part of what is sent next, so that there is no second try.
        let stops = wait(&mut stopping, interval).await;
        if let Some(source) = figures.get() {
            let message = request(of.clone(), source.figures(), Times { start_ns, now_ns: now_ns() });
            match client.export(with(&metadata, message)).await {
                Ok(answer) => match answer.into_inner().partial_success {
                    Some(partial) if partial.rejected_data_points > 0 => {
                        complaints.note("figures are rejected", &partial.error_message);
                    }
                    _ => {}
                },
                Err(status) => complaints.failed("figures cannot be sent", &status),
            }
        }
        if stops {
            return;
        }
    }
}

fn with<T>(metadata: &MetadataMap, message: T) -> Request<T> {
    let mut request = Request::new(message);
    *request.metadata_mut() = metadata.clone();
    request
}

/// Whether the collector may take the same later. Source: OTLP specification, "Failures" of OTLP/gRPC.
fn may_work_later(status: &Status) -> bool {
    use Code::{Aborted, Cancelled, DataLoss, DeadlineExceeded, OutOfRange, Unavailable};
    matches!(status.code(), Cancelled | DeadlineExceeded | Aborted | OutOfRange | Unavailable | DataLoss)
}

/// Tells of failures, once in a while.
#[derive(Default)]
struct Complaints {
    told: Option<Instant>,
    dropped: u64,
}

impl Complaints {
    fn failed(&mut self, what: &str, status: &Status) {
        COUNTS.failures.fetch_add(1, Ordering::Relaxed);
        let mut why = format!("{:?}: {}", status.code(), status.message());
        let mut cause = std::error::Error::source(status);
        while let Some(error) = cause {
            why += &format!(": {error}");
            cause = error.source();
        }
        self.note(what, &why);
    }

    fn note(&mut self, what: &str, why: &str) {
        if self.told.is_some_and(|told| told.elapsed() < SILENCE) {
            return;
        }
        self.told = Some(Instant::now());
        let load = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        self.dropped = load(&COUNTS.dropped);
        let (dropped, lost, failures) = (self.dropped, load(&COUNTS.lost), load(&COUNTS.failures));
        tracing::warn!(why, dropped, lost, failures, "OTLP: {what}");
    }

    fn note_dropped(&mut self) {
        if COUNTS.dropped.load(Ordering::Relaxed) > self.dropped {
            self.note("spans are dropped", "more of them end than can be sent: lower `traces` of [otlp]");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resource_says_what_is_served_and_by_which_process() {
        let resource = resource();
        let told = |key: &'static str| resource.get(&key.into()).map(|value| value.to_string()).unwrap_or_default();
        assert_eq!(told("service.version"), env!("CARGO_PKG_VERSION"));
        let id = told("service.instance.id");
        let parts: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{id}");
        assert!(id.as_bytes()[14] == b'4' && b"89ab".contains(&id.as_bytes()[19]), "{id}");
    }
}
