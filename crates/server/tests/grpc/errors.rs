//! Bad input: a clear error with its code and name, and the server goes on.

use esker_wire::proto::log as proto;
use tonic::{Code, Request};

use crate::held::Held;
use crate::running::{Running, entry, from_first, near};

#[track_caller]
pub fn check<T: std::fmt::Debug>(outcome: Result<T, tonic::Status>, code: Code, name: &str, says: &str) {
    let error = outcome.unwrap_err();
    let told = error.metadata().get("esker-error").map(|value| value.to_str().unwrap().to_owned());
    assert_eq!((error.code(), told.as_deref().unwrap_or("")), (code, name), "{error}");
    assert!(error.message().contains(says), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_an_error_that_names_it() {
    let server = Running::in_memory();
    let mut client = server.with_log("log").await;
    let c = &mut client;
    let create = |log: &str, width| proto::CreateRequest {
        log: log.into(),
        options: Some(proto::Options { width, ..Default::default() }),
    };
    check(c.create(create("log", None)).await, Code::AlreadyExists, "exists", "log");
    check(c.create(create("wide", Some(5_000))).await, Code::InvalidArgument, "invalid", "WIDTH_MAX");
    check(c.create(create("", None)).await, Code::InvalidArgument, "invalid", "log name");
    check(c.append(entry("nothing", "x")).await, Code::NotFound, "no-log", "nothing");
    check(c.append(entry("log", vec![0; 2 << 20])).await, Code::InvalidArgument, "invalid", "entry_bytes_max");
    let records = vec![proto::Record::default(); 5_000];
    let batch = proto::AppendBatchRequest { log: "log".into(), records, applied_only: false };
    check(c.append_batch(batch).await, Code::InvalidArgument, "invalid", "BATCH_MAX");
    let empty = proto::AppendBatchRequest { log: "log".into(), ..Default::default() };
    check(c.append_batch(empty).await, Code::InvalidArgument, "invalid", "BATCH_MAX");
    let far = proto::FillRequest { log: "log".into(), position: u64::MAX };
    check(c.fill(far).await, Code::OutOfRange, "past-tail", "past the tail at 0");
    c.append(entry("log", "x")).await.unwrap();
    let taken = proto::FillRequest { log: "log".into(), position: 0 };
    check(c.fill(taken).await, Code::AlreadyExists, "taken", "0");
    let backwards = proto::ReadRangeRequest { log: "log".into(), start: 5, end: 1, bytes_max: 0 };
    check(c.read_range(backwards).await, Code::InvalidArgument, "invalid", "5..1");
    let nowhere = proto::FollowRequest { start: Some(proto::follow_request::Start::Tail(false)), ..from_first("log") };
    check(c.follow(nowhere).await, Code::InvalidArgument, "invalid", "start");
    let streams = vec![bytes::Bytes::new()];
    let bad = proto::AppendRequest { record: Some(proto::Record { data: "x".into(), streams }), ..entry("log", "") };
    check(c.append(bad).await, Code::InvalidArgument, "invalid", "STREAM_BYTES_MAX");
    c.seal(proto::SealRequest { log: "log".into() }).await.unwrap();
    check(c.append(entry("log", "x")).await, Code::FailedPrecondition, "sealed", "sealed at position 1");
    c.delete(proto::DeleteRequest { log: "log".into() }).await.unwrap();
    check(c.append(entry("log", "x")).await, Code::NotFound, "no-log", "log");
    c.create(create("log", None)).await.unwrap();
    assert_eq!(c.append(entry("log", "x")).await.unwrap().into_inner().position, 0, "a new log of the old name");
    c.rename(proto::RenameRequest { log: "log".into(), to: "renamed".into() }).await.unwrap();
    check(c.append(entry("log", "x")).await, Code::NotFound, "no-log", "log");
    assert_eq!(c.append(entry("renamed", "x")).await.unwrap().into_inner().position, 1);
    let list = c.list(proto::ListRequest::default()).await.unwrap().into_inner().logs;
    assert_eq!(list, ["renamed"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_over_the_limit_is_refused_and_others_are_unharmed() {
    let server = Running::in_memory();
    let mut client = server.with_log("log").await;
    let refused = client.append(entry("log", vec![0; 21 << 20])).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
    assert!(refused.message().contains("20971520"), "{refused}");
    assert_eq!(client.append(entry("log", "x")).await.unwrap().into_inner().position, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_is_kept_by_the_server() {
    let store = Held::new();
    let server = Running::start(std::sync::Arc::clone(&store) as _, near());
    let mut client = server.with_log("log").await;
    client.append(entry("log", "first")).await.unwrap();
    let _holding = store.hold();
    let mut request = Request::new(entry("log", "second"));
    // As a header: the client's own timer stays out of it.
    request.metadata_mut().insert("grpc-timeout", "100m".parse().unwrap());
    let late = client.append(request).await.unwrap_err();
    assert!(matches!(late.code(), Code::DeadlineExceeded | Code::Cancelled), "{late}");
    store.release();
    client.append(entry("log", "third")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_http2_end_their_connection_alone() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let server = Running::in_memory();
    let mut client = server.with_log("log").await;
    let mut rng = fastrand::Rng::with_seed(11);
    for round in 0..40 {
        let mut socket = tokio::net::TcpStream::connect(server.address).await.unwrap();
        let mut bytes: Vec<u8> = (0..rng.usize(1..2_000)).map(|_| rng.u8(..)).collect();
        if round % 2 == 0 {
            bytes.splice(0..0, *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        }
        // It may have been closed already.
        let _ = socket.write_all(&bytes).await;
        let _ = socket.shutdown().await;
        let mut answer = Vec::new();
        let read = socket.read_to_end(&mut answer);
        let _ = tokio::time::timeout(std::time::Duration::from_secs(20), read).await.expect("it is closed");
    }
    assert_eq!(client.append(entry("log", "x")).await.unwrap().into_inner().position, 0);
}
