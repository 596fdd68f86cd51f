//! Clients beside connections that say nothing, or not who they are.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use esker_memory::MemoryStore;
use esker_server::grpc::Config;
use esker_wire::proto::map as proto;
use tonic::Code;
use tonic::transport::Channel;

use crate::running::{Running, near};

fn start(config: Config) -> Running {
    Running::start(Arc::new(MemoryStore::new()), config)
}

fn silent(server: &Running) -> TcpStream {
    let stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Whether the server ends it, within 20 seconds.
fn is_ended(mut stream: &TcpStream) -> bool {
    let mut all = [0; 4_096];
    loop {
        match stream.read(&mut all) {
            Ok(0) => return true,
            // The server's settings and pings.
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return false,
            Err(_) => return true,
        }
    }
}

fn request() -> proto::ListNamespacesRequest {
    proto::ListNamespacesRequest {}
}

async fn ask(map: &mut proto::map_client::MapClient<Channel>) -> Result<(), Code> {
    map.list_namespaces(request()).await.map(drop).map_err(|status| status.code())
}

/// Failure: 1,100 connections that said nothing locked every client out for ever. Cause: each took one of the places of
/// clients when it was accepted, and had no deadline. Fix: strangers have places of their own, and make room.
#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_lock_no_client_out() {
    let server = start(Config { strangers_max: 4, connections_max: 2, ..near() });
    let mut before = server.map().await;
    assert_eq!(ask(&mut before).await, Ok(()));
    let all: Vec<TcpStream> = (0..50).map(|_| silent(&server)).collect();
    let mut after = server.map().await;
    assert_eq!(ask(&mut after).await, Ok(()));
    assert_eq!(ask(&mut before).await, Ok(()));
    // All but as many as may stay had to make room at once.
    for stream in &all[..40] {
        assert!(is_ended(stream));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_has_so_long_and_a_client_as_long_as_it_likes() {
    let server = start(Config { stranger_seconds: 1, token: Some("secret".into()), ..near() });
    let endpoint = Channel::from_shared(format!("http://{}", server.address)).unwrap();
    let channel = endpoint.connect().await.unwrap();
    let with_token = |mut request: tonic::Request<()>| {
        request.metadata_mut().insert("authorization", "Bearer secret".parse().unwrap());
        Ok(request)
    };
    let mut known = proto::map_client::MapClient::with_interceptor(channel, with_token);
    known.list_namespaces(request()).await.unwrap();
    let nothing = silent(&server);
    // Half a greeting, and a whole one with nothing behind it.
    let (half, greeting) = (silent(&server), silent(&server));
    std::io::Write::write_all(&mut &half, b"PRI * HT").unwrap();
    std::io::Write::write_all(&mut &greeting, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    assert!([&nothing, &half, &greeting].into_iter().all(is_ended));
    // A client without the token is told, and stays a stranger.
    let mut unknown = server.map().await;
    assert_eq!(ask(&mut unknown).await, Err(Code::Unauthenticated));
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    known.list_namespaces(request()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn more_clients_than_may_be_are_refused_by_the_limit_until_one_leaves() {
    let server = start(Config { connections_max: 1, ..near() });
    let (mut first, mut second) = (server.map().await, server.map().await);
    assert_eq!(ask(&mut first).await, Ok(()));
    let refused = second.list_namespaces(request()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("connections_max"), "{refused}");
    // Told as what it is: nothing was looked at.
    assert_eq!(refused.metadata().get("esker-error").unwrap(), "busy");
    let endpoint = Channel::from_shared(format!("http://{}", server.address)).unwrap();
    let mut health = tonic_health::pb::health_client::HealthClient::new(endpoint.connect().await.unwrap());
    let asked = tonic_health::pb::HealthCheckRequest { service: String::new() };
    assert!(health.check(asked).await.is_ok(), "health is told though all places are taken");
    assert_eq!(ask(&mut first).await, Ok(()));
    drop(first);
    for _ in 0..500 {
        if ask(&mut second).await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the place of a client that left is not free");
}

/// Failure: health said SERVING while the store had stopped, and while the server drained.
#[tokio::test(flavor = "multi_thread")]
async fn health_says_whether_writes_are_taken_and_that_the_server_stops() {
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::health_client::HealthClient;
    let ready = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let asked = Arc::clone(&ready);
    let is_ready: esker_server::grpc::Ready = Arc::new(move || asked.load(std::sync::atomic::Ordering::SeqCst));
    let mut server = Running::watched(Arc::new(MemoryStore::new()), near(), Some(is_ready));
    let endpoint = Channel::from_shared(format!("http://{}", server.address)).unwrap();
    let mut health = HealthClient::new(endpoint.connect().await.unwrap());
    for service in ["", "esker.map.v1.Map"] {
        let request = tonic_health::pb::HealthCheckRequest { service: service.into() };
        let mut watched = health.watch(request).await.unwrap().into_inner();
        let mut becomes = async |status: ServingStatus| {
            loop {
                let told = watched.message().await.unwrap().unwrap();
                if told.status() == status {
                    return;
                }
            }
        };
        ready.store(true, std::sync::atomic::Ordering::SeqCst);
        becomes(ServingStatus::Serving).await;
        ready.store(false, std::sync::atomic::Ordering::SeqCst);
        becomes(ServingStatus::NotServing).await;
    }
    ready.store(true, std::sync::atomic::Ordering::SeqCst);
    server.stop().unwrap();
}

/// Failure: a stranger that did not read what it was sent was never ended, since only reading looked at its time, and
/// was not counted any more. Fix: writing looks as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_that_does_not_read_is_ended_too() {
    let server = start(Config { strangers_max: 4, stranger_seconds: 1, ..near() });
    let mut all = Vec::new();
    for _ in 0..8 {
        let stream = silent(&server);
        stream.set_nonblocking(true).unwrap();
        let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
        // Pings, each of which is to be answered.
        (0..4_000).for_each(|_| sent.extend_from_slice(b"\0\0\x08\x06\0\0\0\0\0pingping"));
        let mut quiet = 0;
        // Until the server takes no more, since it gets none of its answers rid of.
        while quiet < 20 {
            match std::io::Write::write(&mut &stream, &sent) {
                Ok(_) => quiet = 0,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    quiet += 1;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err(_) => break,
            }
        }
        all.push(stream);
    }
    let is_over = |stream: &TcpStream| match std::io::Write::write(&mut &*stream, b"\0") {
        Ok(_) => false,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    };
    for _ in 0..200 {
        if all.iter().all(is_over) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{} of {} are open still", all.iter().filter(|stream| !is_over(stream)).count(), all.len());
}
