//! Appends: durable when answered, each once, bounded while under way.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_log::{Logs, Session};
use esker_server::grpc::Config;
use esker_wire::proto::log as proto;
use esker_wire::proto::log::append_stream_response::Outcome;
use tokio_stream::wrappers::ReceiverStream;

use crate::held::Held;
use crate::running::{Running, all, entry, from_first, near};

const SOON: Duration = Duration::from_millis(150);
const LATE: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn appends_of_many_clients_get_each_position_once_and_are_followed_in_order() {
    let server = Running::in_memory();
    server.with_log("orders").await;
    let mut writers = Vec::new();
    for writer in 0..8u32 {
        let mut client = server.client().await;
        writers.push(tokio::spawn(async move {
            let mut positions = Vec::new();
            for number in 0..50u32 {
                let answer = client.append(entry("orders", format!("{writer}:{number}"))).await.unwrap();
                positions.push(answer.into_inner().position);
            }
            positions
        }));
    }
    let mut positions = BTreeSet::new();
    for writer in writers {
        let its = writer.await.unwrap();
        assert!(its.is_sorted(), "{its:?}");
        positions.extend(its);
    }
    assert_eq!(positions.into_iter().collect::<Vec<_>>(), (0..400).collect::<Vec<_>>());
    let request = proto::FollowRequest { until_tail: true, ..from_first("orders") };
    let followed = all(server.client().await.follow(request).await.unwrap().into_inner()).await;
    let mut last = [-1i64; 8];
    for (at, what) in followed.iter().enumerate() {
        let proto::delivery::What::Entry(entry) = what else { panic!("{what:?}") };
        assert_eq!(entry.position, at as u64);
        let text = String::from_utf8(entry.data.to_vec()).unwrap();
        let (writer, number) = text.split_once(':').unwrap();
        let (writer, number): (usize, i64) = (writer.parse().unwrap(), number.parse().unwrap());
        assert_eq!(number, last[writer] + 1, "entries of a writer come in its order");
        last[writer] = number;
    }
    assert_eq!(last, [49; 8]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_append_is_answered_only_when_it_is_durable() {
    let store = Held::new();
    let server = Running::start(Arc::clone(&store) as _, near());
    let mut client = server.with_log("log").await;
    client.append(entry("log", "first")).await.unwrap();
    let _holding = store.hold();
    let mut again = client.clone();
    let append = tokio::spawn(async move { again.append(entry("log", "second")).await });
    let batch = proto::AppendBatchRequest {
        log: "log".into(),
        records: vec![proto::Record { data: "third".into(), streams: Vec::new() }],
        applied_only: false,
    };
    let mut again = client.clone();
    let batch = tokio::spawn(async move { again.append_batch(batch).await });
    tokio::time::sleep(SOON).await;
    assert!(!append.is_finished() && !batch.is_finished(), "answered before it was durable");
    // Who asks for less is answered.
    let applied = proto::AppendRequest { applied_only: true, ..entry("log", "fourth") };
    tokio::time::timeout(LATE, client.append(applied)).await.unwrap().unwrap();
    store.release();
    let append = tokio::time::timeout(LATE, append).await.unwrap().unwrap().unwrap().into_inner();
    let batch = tokio::time::timeout(LATE, batch).await.unwrap().unwrap().unwrap().into_inner();
    assert_eq!(append.position + batch.position, 3, "positions 1 and 2, in the order in which they came");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_answers_each_append_by_its_tag_and_goes_on_after_a_failure() {
    let server = Running::in_memory();
    let mut client = server.with_log("log").await;
    let (requests, incoming) = tokio::sync::mpsc::channel(8);
    let mut answers = client.append_stream(ReceiverStream::new(incoming)).await.unwrap().into_inner();
    for tag in 0..100u64 {
        let data = if tag == 40 { vec![0; (1 << 20) + 1] } else { tag.to_string().into_bytes() };
        // Only the first names the log.
        let log = if tag == 0 { "log" } else { "" };
        requests.send(proto::AppendRequest { tag, ..entry(log, data) }).await.unwrap();
        if tag % 10 == 9 {
            for _ in 0..10 {
                let answer = answers.message().await.unwrap().unwrap();
                match answer.outcome.unwrap() {
                    Outcome::Appended(done) => {
                        let position = if answer.tag < 40 { answer.tag } else { answer.tag - 1 };
                        assert_eq!(done.position, position);
                    }
                    Outcome::Failed(failed) => {
                        assert_eq!((answer.tag, &failed.error[..], failed.code), (40, "invalid", 3));
                        assert!(failed.message.contains("entry_bytes_max = 1048576"), "{}", failed.message);
                    }
                }
            }
        }
    }
    drop(requests);
    assert!(answers.message().await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_of_a_stream_is_applied_than_may_be_in_flight() {
    let store = Held::new();
    let server = Running::start(Arc::clone(&store) as _, Config { in_flight_max: 4, ..near() });
    let mut client = server.with_log("log").await;
    client.append(entry("log", "first")).await.unwrap();
    let _holding = store.hold();
    let requests = tokio_stream::iter((0..50u64).map(|tag| proto::AppendRequest { tag, ..entry("log", "x") }));
    let mut answers = client.append_stream(requests).await.unwrap().into_inner();
    let applied = Logs::open(store.below(), Session::new(Arc::new(|| 0), 8)).unwrap().log("log").unwrap();
    let until = Instant::now() + LATE;
    while applied.tail().unwrap().position < 5 && Instant::now() < until {
        tokio::time::sleep(SOON / 10).await;
    }
    tokio::time::sleep(SOON).await;
    assert_eq!(applied.tail().unwrap().position, 5, "one that is durable, and four in flight");
    let asked = tokio::spawn({
        let mut client = client.clone();
        async move { client.tail(proto::TailRequest { log: "log".into() }).await.unwrap().into_inner().position }
    });
    tokio::time::sleep(SOON).await;
    assert!(!asked.is_finished(), "a tail is told when what stands below is durable");
    store.release();
    assert!(tokio::time::timeout(LATE, asked).await.unwrap().unwrap() >= 1);
    let mut tags = BTreeSet::new();
    while let Some(answer) = tokio::time::timeout(LATE, answers.message()).await.unwrap().unwrap() {
        assert!(matches!(answer.outcome, Some(Outcome::Appended(_))));
        tags.insert(answer.tag);
    }
    assert_eq!(tags.len(), 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_numbered_append_is_written_once_and_an_earlier_opening_is_fenced() {
    let server = Running::in_memory();
    let mut client = server.with_log("log").await;
    let open = proto::OpenWriterRequest { log: "log".into(), writer: "importer".into() };
    let opened = client.open_writer(open.clone()).await.unwrap().into_inner();
    assert_eq!(opened.next_number, 0);
    let numbered = |number, session, data: &str| proto::AppendRequest {
        writer: Some(proto::WriterNumber { writer: "importer".into(), number, session }),
        ..entry("log", data.to_string())
    };
    let first = client.append(numbered(0, opened.session, "a")).await.unwrap().into_inner();
    let again = client.append(numbered(0, opened.session, "a")).await.unwrap().into_inner();
    assert_eq!((first.already_there, again.already_there, first.position), (false, true, again.position));
    let skipping = client.append(numbered(5, opened.session, "f")).await.unwrap_err();
    assert_eq!(skipping.code(), tonic::Code::InvalidArgument);
    let later = client.open_writer(open).await.unwrap().into_inner();
    assert_eq!(later.next_number, 1);
    let late = client.append(numbered(1, opened.session, "of the earlier")).await.unwrap_err();
    assert_eq!(late.code(), tonic::Code::FailedPrecondition);
    assert_eq!(late.metadata().get("esker-error").unwrap(), "fenced");
    let done = client.append(numbered(1, later.session, "b")).await.unwrap().into_inner();
    assert!(!done.already_there);
    let request = proto::FollowRequest { until_tail: true, ..from_first("log") };
    let data: Vec<_> = all(client.follow(request).await.unwrap().into_inner())
        .await
        .into_iter()
        .filter_map(|what| match what {
            proto::delivery::What::Entry(entry) => Some(entry.data),
            _ => None,
        })
        .collect();
    assert_eq!(data, ["a", "b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conditional_append_tells_where_the_tail_is() {
    let server = Running::in_memory();
    let mut client = server.with_log("log").await;
    client.append(entry("log", "a")).await.unwrap();
    let at = |expected| proto::AppendAtRequest {
        log: "log".into(),
        expected,
        records: vec![proto::Record { data: "b".into(), streams: Vec::new() }],
    };
    let refused = client.append_at(at(7)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Aborted);
    assert_eq!(refused.metadata().get("esker-error").unwrap(), "not-tail");
    assert_eq!(refused.metadata().get("esker-position").unwrap(), "1");
    assert_eq!(client.append_at(at(1)).await.unwrap().into_inner().position, 1);
}
