//! HTTP for monitors: what the server tells them, where it listens, and what silent clients cost.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod certificates;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use esker_server::front::{Endpoint, TlsFiles};
use esker_server::http::{Address, CONNECTIONS_MAX, Config, Error, Figure, Running, Server, Source, Value};
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

#[derive(Default)]
struct Told(Mutex<Option<String>>);

impl Source for Told {
    fn ready(&self) -> Result<(), String> {
        self.0.lock().clone().map_or(Ok(()), Err)
    }

    fn figures(&self) -> Vec<Figure> {
        let stage =
            |name: &str, times| Figure::new("t_stage_seconds", "Stages", Value::Times(times)).labelled("stage", name);
        vec![
            Figure::new("t_commands", "Commands \"run\"\nso far", Value::Counter(3.0)),
            Figure::new("t_clients", "Clients", Value::Gauge(1.5)),
            stage("sync", vec![(0.001, 2), (0.01, 1)]),
            stage("write \"x\"", vec![]),
        ]
    }
}

fn at(address: &Address) -> SocketAddr {
    let Endpoint::Tcp(address) = address.endpoint else { panic!("{address} is no TCP address") };
    address
}

fn start() -> (Arc<Told>, SocketAddr, Running) {
    let told = Arc::new(Told::default());
    let server = Server::bind(&Config { listen: vec!["127.0.0.1:0".parse().unwrap()], ..Config::default() }).unwrap();
    let address = at(&server.addresses()[0]);
    (Arc::clone(&told), address, server.start(told).unwrap())
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// The status line and headers, and the body.
fn ask(address: SocketAddr, request: &str) -> (String, String) {
    let mut stream = connect(address);
    stream.write_all(format!("{request}\r\nhost: x\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

#[test]
fn whether_it_lives_and_takes_writes_is_told() {
    let (told, address, running) = start();
    let status = |path: &str| {
        let (head, body) = ask(address, &format!("GET {path} HTTP/1.1"));
        (head.split(' ').nth(1).unwrap().to_owned(), body)
    };
    assert_eq!(status("/livez"), ("200".into(), "alive\n".into()));
    assert_eq!(status("/readyz"), ("200".into(), "ready\n".into()));
    *told.0.lock() = Some("the device is gone".into());
    assert_eq!(status("/readyz"), ("503".into(), "not ready: the device is gone\n".into()));
    assert_eq!(status("/livez").0, "200");
    assert_eq!(status("/").0, "404");
    let (head, _) = ask(address, "POST /metrics HTTP/1.1\r\ncontent-length: 0");
    assert!(head.starts_with("HTTP/1.1 405") && head.contains("allow: GET, HEAD"), "{head}");
    running.stop();
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn figures_are_in_the_text_format_of_prometheus() {
    let (_told, address, running) = start();
    let (head, body) = ask(address, "GET /metrics HTTP/1.1");
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    for line in [
        "# TYPE t_commands_total counter",
        "t_commands_total 3",
        "# TYPE t_clients gauge",
        "t_clients 1.5",
        "# TYPE t_stage_seconds histogram",
        "t_stage_seconds_bucket{stage=\"sync\",le=\"0.001\"} 2",
        "t_stage_seconds_bucket{stage=\"sync\",le=\"0.01\"} 3",
        "t_stage_seconds_bucket{stage=\"sync\",le=\"+Inf\"} 3",
        "t_stage_seconds_count{stage=\"sync\"} 3",
    ] {
        assert!(body.lines().any(|have| have.trim_end_matches(".0") == line), "{line}\n{body}");
    }
    assert_eq!(body.matches("# TYPE t_stage_seconds ").count(), 1, "{body}");
    assert!(body.contains("stage=\"write \\\"x\\\"\""), "{body}");
    running.stop();
}

#[test]
fn clients_that_say_nothing_keep_nobody_out() {
    let (_told, address, running) = start();
    let silent: Vec<TcpStream> = (0..3 * CONNECTIONS_MAX).map(|_| connect(address)).collect();
    let mut half = connect(address);
    half.write_all(b"GET /metr").unwrap();
    assert!(ask(address, "GET /livez HTTP/1.1").0.starts_with("HTTP/1.1 200"));
    // All but as many as may be open were closed.
    for mut stream in &silent[..CONNECTIONS_MAX] {
        assert!(matches!(stream.read(&mut [0; 8]), Ok(0) | Err(_)));
    }
    // A head without end is refused.
    let mut endless = connect(address);
    let line = format!("x-{}: y\r\n", "a".repeat(1_000));
    let _ = endless.write_all(b"GET /livez HTTP/1.1\r\n");
    let sent = (0..1_000).take_while(|_| endless.write_all(line.as_bytes()).is_ok()).count();
    let mut answer = String::new();
    let _ = endless.read_to_string(&mut answer);
    assert!(sent < 1_000 || !answer.starts_with("HTTP/1.1 200"), "{sent} lines, {answer}");
    running.stop();
}

/// The status and body of a request over TLS, and the certificate that the server has shown.
fn ask_tls(address: SocketAddr, authority: &Path, request: &str) -> (String, String, Vec<u8>) {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = builder.with_root_certificates(roots).with_no_client_auth();
    let tls = rustls::ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let mut stream = rustls::StreamOwned::new(tls, connect(address));
    stream.write_all(format!("{request}\r\n\r\n").as_bytes()).unwrap();
    let mut answer = Vec::new();
    // The server may close without a goodbye.
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let shown = stream.conn.peer_certificates().unwrap()[0].to_vec();
    (head.split(' ').nth(1).unwrap().to_owned(), body.to_owned(), shown)
}

#[test]
fn figures_and_causes_are_told_over_tls_to_those_who_send_the_token_and_both_are_taken_anew() {
    let folder = tempfile::tempdir().unwrap();
    let tls = TlsFiles { client_authorities: None, ..certificates::make(folder.path()) };
    let everywhere = vec!["0.0.0.0:0".parse().unwrap()];
    let config = Config { tls_listen: everywhere, tls: Some(tls), token: Some("one".into()), ..Config::default() };
    let server = Server::bind(&config).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], at(&server.addresses()[0]).port()));
    let told = Arc::new(Told::default());
    *told.0.lock() = Some("a secret cause".into());
    let running = server.start(told).unwrap();
    let ask = |path: &str, token: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: {token}");
        ask_tls(address, &folder.path().join("ca-cert.pem"), &request)
    };
    for wrong in ["Bearer two", "Bearer", "Basic one", "one", ""] {
        assert_eq!(ask("/metrics", wrong).0, "401", "{wrong}");
    }
    assert_eq!(ask("/livez", "").0, "200");
    assert_eq!(ask("/readyz", "").1, "not ready\n");
    assert_eq!(ask("/readyz", "Bearer one").1, "not ready: a secret cause\n");
    let (status, body, before) = ask("/metrics", "bearer one");
    assert!(status == "200" && body.contains("t_clients 1.5"), "{status}: {body}");

    // What cannot be read changes nothing; what can is all in force at once.
    std::fs::write(folder.path().join("server-cert.pem"), "no certificate").unwrap();
    assert!(matches!(running.handle().prepare(Some("two")), Err(Error::Tls(_))));
    assert_eq!(ask("/metrics", "Bearer one").0, "200");
    certificates::make(folder.path());
    running.handle().prepare(Some("two")).unwrap()();
    assert_eq!(ask("/metrics", "Bearer one").0, "401");
    let (status, _, after) = ask("/metrics", "Bearer two");
    assert!(status == "200" && after != before, "the certificate is a new one");

    // In the clear nothing is said.
    let mut plain = connect(address);
    plain.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    // A client that does not go on with its handshake keeps no other out.
    let silent: Vec<TcpStream> = (0..2 * CONNECTIONS_MAX).map(|_| connect(address)).collect();
    assert_eq!(ask("/livez", "").0, "200");
    drop(silent);
    running.stop();
}

#[test]
fn other_addresses_than_loopback_are_refused_in_the_clear() {
    let address: SocketAddr = "0.0.0.0:0".parse().unwrap();
    match Server::bind(&Config { listen: vec![address], token: Some("one".into()), ..Config::default() }) {
        Err(error @ Error::Open(_)) => assert!(error.to_string().contains("loopback")),
        _ => panic!("it is served"),
    }
}
