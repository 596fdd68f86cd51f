//! Following and reading: in order, with typed gaps, no faster than the client reads.

use std::sync::Arc;
use std::time::Duration;

use esker_server::grpc::Config;
use esker_server::http::Value;
use esker_wire::proto::log as proto;
use esker_wire::proto::log::delivery::What;
use esker_wire::proto::log::follow_request::Start;

use crate::held::Held;
use crate::running::{Running, all, entry, from_first, near};

const LATE: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_gets_what_comes_gaps_with_their_reason_and_the_end() {
    let server = Running::in_memory();
    let mut client = server.with_log("log").await;
    for number in 0..10 {
        client.append(entry("log", format!("{number}"))).await.unwrap();
    }
    let trim = |position| proto::TrimToRequest { log: "log".into(), position };
    for (position, trimmed) in [(3, 3), (1, 3)] {
        assert_eq!(client.trim_to(trim(position)).await.unwrap().into_inner().trimmed, trimmed);
    }
    client.trim(proto::TrimRequest { log: "log".into(), position: 5 }).await.unwrap();
    let mut at = from_first("log");
    at.start = Some(Start::Position(0));
    let mut following = client.follow(at).await.unwrap().into_inner();
    let mut got = Vec::new();
    let mut appended = false;
    let end = 'all: loop {
        let message = tokio::time::timeout(LATE, following.message()).await.unwrap().unwrap().unwrap();
        for delivery in message.deliveries {
            match delivery.what.unwrap() {
                What::Entry(entry) => got.push(format!("{}={}", entry.position, String::from_utf8_lossy(&entry.data))),
                What::Gap(gap) => got.push(format!("{}..{} {:?}", gap.start, gap.end, gap.gap())),
                What::End(tail) => break 'all tail,
            }
        }
        if !appended && got.last().is_some_and(|last| last == "9=9") {
            appended = true;
            // It waits at the tail now, and is woken.
            client.append(entry("log", "last")).await.unwrap();
            client.seal(proto::SealRequest { log: "log".into() }).await.unwrap();
        }
    };
    let expected = ["0..3 Trimmed", "3=3", "4=4", "5..6 Trimmed", "6=6", "7=7", "8=8", "9=9", "10=last"];
    assert_eq!((got.as_slice(), end), (&expected.map(String::from)[..], 11));
    let ended = tokio::time::timeout(LATE, following.message()).await.unwrap().unwrap();
    assert!(ended.is_none(), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_followed_without_the_others() {
    let server = Running::in_memory();
    let mut client = server.with_log("log").await;
    for number in 0..60u32 {
        let streams = vec![if number % 3 == 0 { "fizz".into() } else { "other".into() }];
        let record = Some(proto::Record { data: number.to_string().into(), streams });
        client.append(proto::AppendRequest { record, ..entry("log", "") }).await.unwrap();
    }
    let request = proto::FollowRequest { stream: Some("fizz".into()), until_tail: true, ..from_first("log") };
    let positions: Vec<_> = all(client.follow(request).await.unwrap().into_inner())
        .await
        .into_iter()
        .map(|what| match what {
            What::Entry(entry) => entry.position,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(positions, (0..60).step_by(3).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_from_the_tail_gets_only_what_comes() {
    let server = Running::in_memory();
    let mut client = server.with_log("log").await;
    client.append(entry("log", "before")).await.unwrap();
    let request = proto::FollowRequest { start: Some(Start::Tail(true)), ..from_first("log") };
    let mut following = client.follow(request).await.unwrap().into_inner();
    client.append(entry("log", "after")).await.unwrap();
    let message = tokio::time::timeout(LATE, following.message()).await.unwrap().unwrap().unwrap();
    let [proto::Delivery { what: Some(What::Entry(entry)) }] = &message.deliveries[..] else { panic!("{message:?}") };
    assert_eq!((entry.position, &entry.data[..]), (1, &b"after"[..]));
}

/// Entries of the next message, as text.
async fn next(following: &mut tonic::Streaming<proto::FollowResponse>) -> Vec<String> {
    let message = tokio::time::timeout(LATE, following.message()).await.unwrap().unwrap().unwrap();
    let entries = message.deliveries.into_iter().map(|delivery| match delivery.what.unwrap() {
        What::Entry(entry) => format!("{}={}", entry.position, String::from_utf8_lossy(&entry.data)),
        other => panic!("{other:?}"),
    });
    entries.collect()
}

/// Entries that become durable one after the other reach a follower one after the other; `pause` before they are
/// written.
async fn each_entry_comes_with_its_own_sync(followed: Option<&str>, pause: Duration) {
    let store = Held::new();
    let server = Running::start(Arc::clone(&store) as _, near());
    let mut client = server.with_log("log").await;
    let streams: Vec<_> = followed.map(|name| name.to_owned().into()).into_iter().collect();
    let entry = |data: &'static str| {
        let record = Some(proto::Record { data: data.into(), streams: streams.clone() });
        proto::AppendRequest { record, ..entry("log", "") }
    };
    client.append(entry("a")).await.unwrap();
    let request = proto::FollowRequest { stream: streams.first().cloned(), ..from_first("log") };
    let mut following = client.follow(request).await.unwrap().into_inner();
    assert_eq!(next(&mut following).await, ["0=a"]);
    let _holding = store.hold();
    let (requests, incoming) = tokio::sync::mpsc::channel(8);
    let incoming = tokio_stream::wrappers::ReceiverStream::new(incoming);
    let mut answers = client.append_stream(incoming).await.unwrap().into_inner();
    tokio::time::sleep(pause).await;
    for data in ["b", "c", "d"] {
        requests.send(entry(data)).await.unwrap();
    }
    if pause.is_zero() {
        let nothing = tokio::time::timeout(Duration::from_millis(150), following.message()).await;
        assert!(nothing.is_err(), "handed out before it was durable: {nothing:?}");
    }
    for expected in ["1=b", "2=c"] {
        store.release_one();
        assert_eq!(next(&mut following).await, [expected], "{followed:?}");
        assert!(answers.message().await.unwrap().is_some());
    }
    store.release();
    assert_eq!(next(&mut following).await, ["3=d"]);
    client.append(entry("e")).await.unwrap();
    assert_eq!(next(&mut following).await, ["4=e"]);
}

// Failure: an entry reached followers up to a sync later than its writer was answered. Cause: they were handed it
// together with what had been applied since, when that was durable. Fix: what is durable is handed out, and the rest
// when it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_gets_each_entry_when_it_is_durable_and_not_with_a_later_one() {
    for followed in [None, Some("stream")] {
        each_entry_comes_with_its_own_sync(followed, Duration::ZERO).await;
    }
}

// Failure: entries reached followers milliseconds late, several times in a second. Cause: whenever a look at the store
// was due, the thread that looked waited for the sync of one entry after another, until its message was full. Fix: what
// it has is handed out.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_has_looked_is_not_held_back_by_a_later_sync() {
    // A look is due, whatever else has looked.
    for followed in [None, Some("stream")] {
        each_entry_comes_with_its_own_sync(followed, Duration::from_millis(600)).await;
    }
}

// Failure: a look of a follower of a stream without new entries never ended while writers of others always had an entry
// under way; it kept its thread, also when its client was gone. Fix: it looks as far as the tail was when it began.
#[test]
fn a_look_at_a_quiet_stream_ends_though_others_always_write() {
    let store = Held::new();
    let session = esker_log::Session::new(Arc::new(|| 1_700_000_000_000), 8);
    let logs = esker_log::Logs::open(Arc::clone(&store) as _, session).unwrap();
    let log = logs.create("log", esker_log::Options::default()).unwrap();
    let mut quiet = log.follow_stream("quiet", 0, esker_log::Follow::default());
    let append = || drop(log.append(esker_log::Record::from("x").stream("busy")).unwrap());
    append();
    let _holding = store.hold();
    append();
    append();
    std::thread::scope(|scope| {
        let look = scope.spawn(move || (quiet.poll().unwrap(), quiet.position()));
        // The next entry is always there and not durable.
        for _ in 0..1_000 {
            if look.is_finished() {
                break;
            }
            append();
            store.release_one();
            std::thread::sleep(Duration::from_millis(1));
        }
        let ended = look.is_finished();
        store.release();
        let (found, position) = look.join().unwrap();
        assert!(ended && found.is_none() && position >= 3, "{ended} {found:?} {position}");
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_waits_learns_that_another_process_has_taken_over() {
    let store: Arc<dyn esker_store::ObjectStore> = Arc::new(esker_memory::MemoryStore::new());
    let server = Running::start(Arc::clone(&store), near());
    let mut client = server.with_log("log").await;
    client.append(entry("log", "a")).await.unwrap();
    let mut following = client.follow(from_first("log")).await.unwrap().into_inner();
    assert_eq!(next(&mut following).await, ["0=a"]);
    tokio::time::sleep(Duration::from_millis(100)).await;
    tokio::task::spawn_blocking(move || {
        let other = esker_log::Logs::open(store, esker_log::Session::new(Arc::new(|| 1_700_000_000_000), 8)).unwrap();
        other.log("log").unwrap().append("b").unwrap().wait().unwrap();
    })
    .await
    .unwrap();
    let began = std::time::Instant::now();
    assert_eq!(next(&mut following).await, ["1=b"]);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_holds_nobody_up() {
    let server = Running::in_memory();
    let mut client = server.with_log("log").await;
    for _ in 0..64 {
        client.append(entry("log", vec![7; 512 << 10])).await.unwrap();
    }
    let mut idle = Vec::new();
    for _ in 0..20 {
        idle.push(server.client().await.follow(from_first("log")).await.unwrap().into_inner());
    }
    let request = proto::FollowRequest { until_tail: true, ..from_first("log") };
    let followed = tokio::time::timeout(LATE, client.follow(request)).await.unwrap().unwrap().into_inner();
    assert_eq!(tokio::time::timeout(LATE, all(followed)).await.unwrap().len(), 64);
    client.append(entry("log", "and on")).await.unwrap();
    drop(idle);
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_beyond_the_limit_are_refused_until_one_is_gone() {
    let server =
        Running::start(std::sync::Arc::new(esker_memory::MemoryStore::new()), Config { followers_max: 2, ..near() });
    let mut client = server.with_log("log").await;
    let one = client.follow(from_first("log")).await.unwrap();
    let _two = client.follow(from_first("log")).await.unwrap();
    let refused = client.follow(from_first("log")).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    assert!(refused.message().contains("followers_max"), "{refused}");
    drop(one);
    let began = std::time::Instant::now();
    while client.follow(from_first("log")).await.is_err() {
        assert!(began.elapsed() < LATE, "a follower that is gone keeps its place");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn monitors_are_told_how_far_the_slowest_follower_is_behind() {
    let server = Running::in_memory();
    let mut client = server.with_log("log").await;
    let figure = |name: &str| {
        let labels = [("log", "log".to_owned())];
        let found = server.handle().figures().into_iter().find(|figure| figure.name == name && figure.labels == labels);
        match found.map(|figure| figure.value) {
            Some(Value::Gauge(value)) => value as u64,
            other => panic!("{name}: {other:?}"),
        }
    };
    let entries: u64 = 400;
    for number in 0..entries {
        let large = entry("log", format!("{number} {}", "x".repeat(32 << 10)));
        client.append(large).await.unwrap();
    }
    assert_eq!(
        (figure("esker_log_tail"), figure("esker_log_followers"), figure("esker_log_follower_lag")),
        (entries, 0, 0)
    );
    // One that takes nothing is behind by what is not on its way to it; one that takes all is at the tail.
    let deaf = client.follow(from_first("log")).await.unwrap().into_inner();
    let mut reader = client.follow(from_first("log")).await.unwrap().into_inner();
    let mut got = 0;
    while got < entries {
        got += tokio::time::timeout(LATE, reader.message()).await.unwrap().unwrap().unwrap().deliveries.len() as u64;
    }
    let lag = figure("esker_log_follower_lag");
    assert!(figure("esker_log_followers") == 2 && lag > entries / 2 && lag < entries, "{lag}");
    drop(deaf);
    let began = std::time::Instant::now();
    while (figure("esker_log_followers"), figure("esker_log_follower_lag")) != (1, 0) {
        assert!(began.elapsed() < LATE, "{} followers", figure("esker_log_followers"));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(reader);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_read_says_what_stands_there() {
    let server = Running::in_memory();
    let mut client = server.with_log("log").await;
    for number in 0..6 {
        client.append(entry("log", format!("{number}"))).await.unwrap();
    }
    client.trim(proto::TrimRequest { log: "log".into(), position: 2 }).await.unwrap();
    let request = proto::ReadRangeRequest { log: "log".into(), start: 1, end: 8, bytes_max: 0 };
    let found = client.read_range(request).await.unwrap().into_inner().found;
    let found: Vec<_> = found
        .iter()
        .map(|one| match one.found.as_ref().unwrap() {
            proto::found::Found::Entry(entry) => String::from_utf8_lossy(&entry.data).into_owned(),
            proto::found::Found::Gap(_) => format!("{:?}", proto::Gap::try_from(gap(one)).unwrap()),
        })
        .collect();
    assert_eq!(found, ["1", "Trimmed", "3", "4", "5", "BeyondTail", "BeyondTail"]);
    let one = client.read(proto::ReadRequest { log: "log".into(), position: 99 }).await.unwrap().into_inner();
    assert_eq!(gap(&one.found.unwrap()), proto::Gap::BeyondTail as i32);
    let consumer = |position| proto::SetConsumerRequest { log: "log".into(), consumer: "billing".into(), position };
    let get = proto::GetConsumerRequest { log: "log".into(), consumer: "billing".into() };
    client.set_consumer(consumer(Some(4))).await.unwrap();
    assert_eq!(client.get_consumer(get.clone()).await.unwrap().into_inner().position, Some(4));
    client.set_consumer(consumer(None)).await.unwrap();
    assert_eq!(client.get_consumer(get).await.unwrap().into_inner().position, None);
}

fn gap(found: &proto::Found) -> i32 {
    match found.found {
        Some(proto::found::Found::Gap(gap)) => gap,
        _ => panic!("{found:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_tells_its_streams() {
    let mut server = Running::in_memory();
    let mut client = server.with_log("log").await;
    let mut following = client.follow(from_first("log")).await.unwrap().into_inner();
    let (requests, incoming) = tokio::sync::mpsc::channel::<proto::AppendRequest>(1);
    let stream = tokio_stream::wrappers::ReceiverStream::new(incoming);
    let mut answers = client.append_stream(stream).await.unwrap().into_inner();
    let began = std::time::Instant::now();
    let stopped = tokio::task::spawn_blocking(move || server.stop());
    assert_eq!(following.message().await.unwrap_err().code(), tonic::Code::Unavailable);
    assert_eq!(answers.message().await.unwrap_err().code(), tonic::Code::Unavailable);
    drop(requests);
    stopped.await.unwrap().unwrap();
    assert!(began.elapsed() < LATE, "{:?}", began.elapsed());
}
