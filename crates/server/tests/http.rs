//! HTTP for monitors: what the server tells them, where it listens, and what silent clients cost.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use esker_server::http::{CONNECTIONS_MAX, Error, Figure, Running, Server, Source, Value};
use parking_lot::Mutex;

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

fn start() -> (Arc<Told>, SocketAddr, Running) {
    let told = Arc::new(Told::default());
    let server = Server::bind(&["127.0.0.1:0".parse().unwrap()]).unwrap();
    let address = server.addresses()[0];
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

#[test]
fn other_addresses_than_loopback_are_refused() {
    let address: SocketAddr = "0.0.0.0:0".parse().unwrap();
    match Server::bind(&[address]) {
        Err(error @ Error::Open(_)) => assert!(error.to_string().contains("loopback")),
        _ => panic!("it is served"),
    }
}
