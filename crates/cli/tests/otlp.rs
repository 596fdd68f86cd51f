//! Spans and figures of `esker serve --otlp`, as a collector receives them, and a collector that does not answer.
//!
//! The collector is the receiving side of OTLP over gRPC that the published files generate.
#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use esker_wire::proto::log::log_client::LogClient;
use esker_wire::proto::log::{CreateRequest, InfoRequest};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{Metric, number_data_point};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{Span, status::StatusCode};
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

/// What a collector was sent.
#[derive(Clone, Default)]
struct Received(Arc<Mutex<All>>);

#[derive(Default)]
struct All {
    spans: Vec<Span>,
    metrics: BTreeMap<String, Metric>,
    resources: Vec<Resource>,
    tokens: Vec<Option<String>>,
}

#[tonic::async_trait]
impl TraceService for Received {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut all = self.0.lock().unwrap();
        all.tokens.push(token(&request));
        for of_resource in request.into_inner().resource_spans {
            all.resources.extend(of_resource.resource);
            all.spans.extend(of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Received {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let mut all = self.0.lock().unwrap();
        all.tokens.push(token(&request));
        for of_resource in request.into_inner().resource_metrics {
            all.resources.extend(of_resource.resource);
            let metrics = of_resource.scope_metrics.into_iter().flat_map(|scope| scope.metrics);
            all.metrics.extend(metrics.map(|metric| (metric.name.clone(), metric)));
        }
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

fn token<T>(request: &Request<T>) -> Option<String> {
    Some(request.metadata().get("authorization")?.to_str().unwrap().to_string())
}

/// A collector on a thread, over TLS where it has an identity.
fn collector(identity: Option<Identity>) -> (Received, SocketAddr) {
    let received = Received::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let incoming = {
        let _inside = runtime.enter();
        tonic::transport::server::TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap()
    };
    let address = incoming.local_addr().unwrap();
    let mut server = Server::builder();
    if let Some(identity) = identity {
        server = server.tls_config(ServerTlsConfig::new().identity(identity)).unwrap();
    }
    let router = server
        .add_service(TraceServiceServer::new(received.clone()))
        .add_service(MetricsServiceServer::new(received.clone()));
    std::thread::spawn(move || runtime.block_on(router.serve_with_incoming(incoming)));
    (received, address)
}

impl Received {
    fn eventually<T>(&self, what: &str, find: impl Fn(&All) -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            let all = self.0.lock().unwrap();
            if let Some(found) = find(&all) {
                return found;
            }
            let names: Vec<_> = all.spans.iter().map(|span| &span.name[..]).collect();
            assert!(began.elapsed() < Duration::from_secs(20), "{what}, among {names:?}");
            drop(all);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn span(&self, name: &str) -> Span {
        self.eventually(name, |all| all.spans.iter().find(|span| span.name == name).cloned())
    }
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.clone()? {
        AnyValue { value: Some(Any::StringValue(text)) } => Some(text),
        AnyValue { value: Some(Any::IntValue(number)) } => Some(number.to_string()),
        other => panic!("{key}: {other:?}"),
    }
}

/// `esker serve` of all protocols.
struct Esker {
    child: Child,
    printed: Vec<String>,
    _more: BufReader<ChildStdout>,
}

impl Esker {
    fn start(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_esker"))
            .args(["serve", "--listen", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--nbd", "127.0.0.1:0"])
            .args(["--log", "warn", "--store", "data?size=256m&segment=1m"])
            .args(arguments)
            .current_dir(folder)
            .env_remove("ESKER_CONFIG")
            .env_remove("ESKER_PASSWORD")
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut more = BufReader::new(child.stdout.take().unwrap());
        let mut printed = Vec::new();
        let mut lines = more.by_ref().lines();
        while !printed.last().is_some_and(|line: &String| line.starts_with("grpc ")) {
            printed.push(lines.next().expect("the server serves").unwrap());
        }
        Self { child, printed, _more: more }
    }

    fn printed(&self, word: &str) -> &str {
        self.printed.iter().find_map(|line| line.strip_prefix(word)).unwrap().trim()
    }

    fn redis(&self) -> redis::Connection {
        redis::Client::open(format!("redis://{}/", self.printed("listening"))).unwrap().get_connection().unwrap()
    }

    /// Ends it; how long that took.
    fn end(&mut self) -> Duration {
        let began = Instant::now();
        let killed = Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        assert!(killed.success());
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        began.elapsed()
    }
}

impl Drop for Esker {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Calls by gRPC: a caller that has a trace of its own says so.
fn calls(address: &str, parent: Option<&str>, logs: &[&str]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = tonic::transport::Endpoint::from_shared(address.replace("grpc:", "http:")).unwrap();
        let mut client = LogClient::new(endpoint.connect().await.unwrap());
        fn request<T>(message: T, parent: Option<&str>) -> Request<T> {
            let mut request = Request::new(message);
            if let Some(parent) = parent {
                request.metadata_mut().insert("traceparent", parent.parse().unwrap());
            }
            request
        }
        for log in logs {
            let create = CreateRequest { log: (*log).into(), ..CreateRequest::default() };
            client.create(request(create, parent)).await.unwrap();
        }
        let unknown = InfoRequest { log: "hidden-none".into() };
        let status = client.info(request(unknown, parent)).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::NotFound);
    });
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

#[test]
fn a_collector_receives_spans_of_all_protocols_and_the_figures_and_nothing_of_anybodys_data() {
    let (received, address) = collector(None);
    let folder = tempfile::tempdir().unwrap();
    let store = esker::Store::open(&format!("{}?size=256m&segment=1m", folder.path().join("data").display())).unwrap();
    store.volumes().unwrap().create("hidden-disk", 1 << 20, esker::volume::Layout::default(), 0).unwrap();
    store.close().unwrap();
    std::fs::write(folder.path().join("esker.toml"), "[otlp]\ntraces = 1\nmetrics_interval = '100ms'\n").unwrap();
    let endpoint = format!("http://{address}");
    let mut server = Esker::start(
        folder.path(),
        &["--config", "esker.toml", "--otlp", &endpoint],
        &[
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc"),
            ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test"),
        ],
    );
    assert!(server.printed("otlp").starts_with(&endpoint), "{:?}", server.printed);

    let mut redis = server.redis();
    redis::cmd("SELECT").arg(3).exec(&mut redis).unwrap();
    redis::cmd("SET").arg("hidden-key").arg("hidden-value").exec(&mut redis).unwrap();
    let value: String = redis::cmd("GET").arg("hidden-key").query(&mut redis).unwrap();
    assert_eq!(value, "hidden-value");
    redis::cmd("HGET").arg("hidden-key").arg("hidden-field").exec(&mut redis).unwrap_err();
    redis::cmd("HIDDEN-COMMAND").arg("hidden-argument").exec(&mut redis).unwrap_err();
    let set = received.span("SET");
    assert_eq!(text(&set.attributes, "db.operation.name").as_deref(), Some("SET"));
    assert_eq!(text(&set.attributes, "db.namespace").as_deref(), Some("3"));
    assert_eq!((text(&set.attributes, "error.type"), set.parent_span_id.len()), (None, 0));
    assert_eq!(set.kind, 2, "a server's");
    assert!(
        set.end_time_unix_nano >= set.start_time_unix_nano && set.start_time_unix_nano > 1_700_000_000 * 1_000_000_000
    );
    assert_ne!(set.trace_id, received.span("GET").trace_id);
    let refused = received.span("HGET");
    assert_eq!(text(&refused.attributes, "error.type").as_deref(), Some("WRONGTYPE"));
    assert_eq!(refused.status.unwrap().code(), StatusCode::Error);
    assert_eq!(text(&received.span("unknown").attributes, "error.type").as_deref(), Some("ERR"));

    calls(server.printed("grpc"), Some(&format!("00-{TRACE}-{PARENT}-01")), &["hidden-log"]);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let create = received.span("esker.log.v1.Log/Create");
    assert_eq!((&*hex(&create.trace_id), &*hex(&create.parent_span_id)), (TRACE, PARENT));
    assert_eq!(text(&create.attributes, "rpc.method").as_deref(), Some("Create"));
    assert_eq!(text(&create.attributes, "rpc.grpc.status_code").as_deref(), Some("0"));
    let info = received.span("esker.log.v1.Log/Info");
    assert_eq!((hex(&info.trace_id).as_str(), info.status.unwrap().code()), (TRACE, StatusCode::Error));
    assert_eq!(text(&info.attributes, "rpc.grpc.status_code").as_deref(), Some("5"));

    let place = format!("{}hidden-disk", server.printed("disks")).parse().unwrap();
    let mut disk = esker_server::nbd::Client::connect(&place, None).unwrap();
    disk.write(4_096, &[7; 8_192], true).unwrap();
    assert_eq!(disk.read(4_096, 4_096).unwrap(), [7; 4_096]);
    disk.read(1 << 20, 4_096).unwrap_err();
    let write = received.span("NBD write");
    assert_eq!(text(&write.attributes, "nbd.bytes").as_deref(), Some("8192"));
    received.eventually("a read that is refused", |all| {
        let mut reads = all.spans.iter().filter(|span| span.name == "NBD read");
        reads.find(|span| text(&span.attributes, "error.type").as_deref() == Some("EINVAL")).cloned()
    });

    let calls = received.eventually("a histogram of SET", |all| {
        let Some(Data::Histogram(histogram)) = &all.metrics.get("esker_resp_command_seconds")?.data else {
            return None;
        };
        let mut points = histogram.data_points.iter();
        points.find(|point| text(&point.attributes, "command").as_deref() == Some("set")).cloned()
    });
    assert_eq!((calls.count, calls.bucket_counts.len()), (1, calls.explicit_bounds.len() + 1));
    let state = received.eventually("the state", |all| {
        let Some(Data::Gauge(gauge)) = &all.metrics.get("esker_state")?.data else { return None };
        let mut points = gauge.data_points.iter();
        let running = points.find(|point| text(&point.attributes, "state").as_deref() == Some("running"))?;
        running.value.filter(|value| *value == number_data_point::Value::AsDouble(1.0))
    });
    assert_eq!(state, number_data_point::Value::AsDouble(1.0));
    let took = server.end();
    assert!(took < Duration::from_secs(10), "{took:?}");

    let all = received.0.lock().unwrap();
    assert!(all.metrics.contains_key("esker_otlp_spans_sent") && all.metrics.contains_key("process_open_fds"));
    assert!(all.spans.iter().any(|span| span.name == "checkpoint"), "that of the end is sent, too");
    assert!(all.tokens.iter().all(|token| token.as_deref() == Some("Bearer abc")), "{:?}", all.tokens);
    let told =
        |key| all.resources.iter().map(|of| text(&of.attributes, key)).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(told("service.name"), [Some("esker".to_string())].into());
    assert_eq!(told("service.version"), [Some(env!("CARGO_PKG_VERSION").to_string())].into());
    assert_eq!(told("service.instance.id").len(), 1);
    assert_eq!(told("deployment.environment.name"), [Some("test".to_string())].into());
    // Figures tell names of logs and disks, as those for Prometheus do; spans do not.
    let everything = format!("{:?} {:?} {:?}", all.spans, all.metrics, all.resources).to_ascii_lowercase();
    let everything = everything.replace("hidden-disk", "");
    assert!(!format!("{:?}", all.spans).contains("hidden"), "{:?}", all.spans);
    assert!(!everything.contains("hidden") && !everything.contains("127.0.0.1"), "{everything}");
}

#[test]
fn a_share_of_0_traces_calls_only_whose_callers_are_sampled() {
    let (received, address) = collector(None);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("esker.toml"), "[otlp]\ntraces = 0\nmetrics_interval = '0'\n").unwrap();
    let endpoint = format!("http://{address}");
    let mut server = Esker::start(folder.path(), &["--config", "esker.toml", "--otlp", &endpoint], &[]);
    redis::cmd("PING").exec(&mut server.redis()).unwrap();
    calls(server.printed("grpc"), None, &["one"]);
    calls(server.printed("grpc"), Some(&format!("00-{TRACE}-{PARENT}-00")), &["two"]);
    calls(server.printed("grpc"), Some(&format!("00-{TRACE}-{PARENT}-01")), &["three"]);
    server.end();
    let all = received.0.lock().unwrap();
    let names: Vec<_> = all.spans.iter().map(|span| &span.name[..]).filter(|name| *name != "checkpoint").collect();
    assert_eq!(names, ["esker.log.v1.Log/Create", "esker.log.v1.Log/Info"]);
    assert!(all.metrics.is_empty());
}

#[test]
fn a_collector_that_never_answers_holds_up_neither_clients_nor_the_end() {
    // Connections are accepted by the system, and no collector reads them.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    std::fs::write(folder.path().join("esker.toml"), "[otlp]\ntraces = 1.0\nmetrics_interval = '50ms'\n").unwrap();
    let mut server =
        Esker::start(folder.path(), &["--config", "esker.toml", "--otlp", &endpoint, "--http", "127.0.0.1:0"], &[]);
    let mut redis = server.redis();
    let began = Instant::now();
    for n in 0..100 {
        let mut pipe = redis::pipe();
        for key in 0..100 {
            pipe.cmd("SET").arg(key).arg(n).ignore();
        }
        pipe.exec(&mut redis).unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    // 10,000 spans and room for 4,096, beside a batch that is being sent.
    let http = server.printed("http").split_whitespace().next().unwrap().to_string();
    let figures = get(&http, "/metrics");
    let dropped = figures.lines().find_map(|line| line.strip_prefix("esker_otlp_spans_dropped_total ")).unwrap();
    assert!(dropped.parse::<f64>().unwrap() > 1_000.0, "{dropped}");
    let took = server.end();
    assert!(took < Duration::from_secs(6), "{took:?}");
}

/// What an address answers by HTTP.
fn get(url: &str, path: &str) -> String {
    use std::io::Write;
    let mut stream = std::net::TcpStream::connect(url.trim_start_matches("http://")).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_collector_is_reached_by_tls_and_not_where_its_certificate_is_another_authoritys() {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["localhost".into()]).unwrap().self_signed(&key).unwrap();
    let (received, address) = collector(Some(Identity::from_pem(certificate.pem(), key.serialize_pem())));
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("authority.pem"), certificate.pem()).unwrap();
    std::fs::write(folder.path().join("esker.toml"), "[otlp]\ntraces = 1.0\n").unwrap();
    let endpoint = format!("https://localhost:{}", address.port());
    let arguments = ["--config", "esker.toml", "--otlp", &endpoint];
    let mut server = Esker::start(folder.path(), &arguments, &[]);
    redis::cmd("SET").arg("a").arg("b").exec(&mut server.redis()).unwrap();
    server.end();
    assert!(received.0.lock().unwrap().spans.is_empty());
    let trusted = [("OTEL_EXPORTER_OTLP_CERTIFICATE", "authority.pem")];
    let mut server = Esker::start(folder.path(), &arguments, &trusted);
    redis::cmd("SET").arg("a").arg("b").exec(&mut server.redis()).unwrap();
    received.span("SET");
    server.end();
    assert!(received.0.lock().unwrap().metrics.contains_key("esker_state"), "figures are sent at the end");
}

#[test]
fn credentials_in_the_clear_are_refused_before_anything_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_esker"))
        .args(["serve", "--store", "data", "--otlp", "http://192.0.2.1:4317"])
        .current_dir(folder.path())
        .env_remove("ESKER_CONFIG")
        .env("OTEL_EXPORTER_OTLP_HEADERS", "api-key=s3cret")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("in the clear") && !said.contains("s3cret"), "{said}");
    assert!(!folder.path().join("data").exists());
}
