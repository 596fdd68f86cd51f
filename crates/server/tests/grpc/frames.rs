//! Frames of appends: many in a message, each with an outcome of its own, answered together when they are durable.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use esker_log::{BATCH_BYTES_MAX, BATCH_MAX, Logs, Session};
use esker_server::grpc::Config;
use esker_wire::log::APPENDS_MAX;
use esker_wire::proto::log as proto;
use esker_wire::proto::log::answered::Outcome as Each;
use esker_wire::proto::log::append_stream_response::Outcome;
use esker_wire::proto::log::log_client::LogClient;
use tokio::sync::mpsc::Sender;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::held::Held;
use crate::running::{Running, all, entry, from_first, near};

const SOON: Duration = Duration::from_millis(150);
const LATE: Duration = Duration::from_secs(20);

type Requests = Sender<proto::AppendRequest>;
type Answers = Streaming<proto::AppendStreamResponse>;

async fn open(client: &mut LogClient<Channel>) -> (Requests, Answers) {
    let (requests, outgoing) = tokio::sync::mpsc::channel(64);
    let answers = client.append_stream(ReceiverStream::new(outgoing)).await.unwrap();
    assert_eq!(answers.metadata().get(APPENDS_MAX).unwrap(), &BATCH_MAX.to_string());
    (requests, answers.into_inner())
}

fn frame<T: Into<bytes::Bytes>>(tag: u64, data: impl IntoIterator<Item = T>) -> proto::AppendRequest {
    let records = data.into_iter().map(|data| proto::Record { data: data.into(), streams: Vec::new() });
    proto::AppendRequest { log: "log".into(), tag, records: records.collect(), ..Default::default() }
}

/// Numbers as text.
fn texts(numbers: std::ops::Range<u64>) -> impl Iterator<Item = String> {
    numbers.map(|number| number.to_string())
}

async fn message(answers: &mut Answers) -> proto::AppendStreamResponse {
    tokio::time::timeout(LATE, answers.message()).await.unwrap().unwrap().unwrap()
}

/// Outcomes by tag, position or name of the error; of messages until there are so many.
async fn outcomes(answers: &mut Answers, count: usize) -> BTreeMap<u64, Result<u64, String>> {
    let mut outcomes = BTreeMap::new();
    while outcomes.len() < count {
        let answer = message(answers).await;
        let alone = answer.outcome.map(|outcome| match outcome {
            Outcome::Appended(done) => (answer.tag, Ok(done.position)),
            Outcome::Failed(failure) => (answer.tag, Err(failure.error)),
        });
        let framed = answer.answered.into_iter().flat_map(|one| {
            (0..u64::from(one.count)).map(move |place| match one.outcome.clone().unwrap() {
                Each::Appended(done) => (one.tag + place, Ok(done.position + place)),
                Each::Failed(failure) => (one.tag + place, Err(failure.error)),
            })
        });
        for (tag, outcome) in alone.into_iter().chain(framed) {
            assert_eq!(outcomes.insert(tag, outcome), None, "{tag} was answered twice");
        }
    }
    outcomes
}

/// What stands in the log, from its first position on.
async fn data(client: &mut LogClient<Channel>) -> Vec<String> {
    let request = proto::FollowRequest { until_tail: true, ..from_first("log") };
    let found = all(client.follow(request).await.unwrap().into_inner()).await;
    let mut data = Vec::new();
    for what in found {
        let proto::delivery::What::Entry(entry) = what else { panic!("{what:?}") };
        assert_eq!(entry.position, data.len() as u64);
        data.push(String::from_utf8(entry.data.to_vec()).unwrap());
    }
    data
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_and_single_appends_share_a_stream_and_each_is_answered_in_its_own_shape() {
    let server = Running::in_memory();
    let mut client = server.with_log("log").await;
    let (requests, mut answers) = open(&mut client).await;
    requests.send(proto::AppendRequest { tag: 7, ..entry("log", "0") }).await.unwrap();
    let alone = message(&mut answers).await;
    let appended = |position| proto::AppendResponse { position, already_there: false };
    assert_eq!((alone.tag, alone.outcome, alone.answered), (7, Some(Outcome::Appended(appended(0))), vec![]));
    requests.send(frame(1_000, texts(1..101))).await.unwrap();
    // What one sync made durable may come in two messages: a frame of this length is applied in portions.
    let mut position = 1;
    while position < 101 {
        let framed = message(&mut answers).await;
        assert_eq!((framed.tag, framed.outcome), (0, None));
        let [one] = &framed.answered[..] else { panic!("{:?}", framed.answered) };
        assert_eq!((one.tag, one.outcome.clone()), (999 + position, Some(Each::Appended(appended(position)))));
        position += u64::from(one.count);
    }
    // Beside each other, in any mixture.
    for round in 0..50u64 {
        let tag = round * 10;
        let number = 101 + round * 10;
        requests
            .send(proto::AppendRequest { log: String::new(), ..frame(tag, texts(number..number + 9)) })
            .await
            .unwrap();
        requests.send(proto::AppendRequest { tag: tag + 9, ..entry("", (number + 9).to_string()) }).await.unwrap();
    }
    let outcomes = outcomes(&mut answers, 500).await;
    assert!(outcomes.iter().all(|(tag, outcome)| outcome == &Ok(tag + 101)), "{outcomes:?}");
    assert_eq!(data(&mut client).await, texts(0..601).collect::<Vec<_>>());
    drop(requests);
    assert!(answers.message().await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_entry_of_a_frame_fails_alone_and_the_others_keep_their_order() {
    let server = Running::in_memory();
    let mut client = server.with_log("log").await;
    let (requests, mut answers) = open(&mut client).await;
    let mut bad = frame(0, texts(0..20));
    bad.records[9].data = vec![0; (1 << 20) + 1].into();
    bad.records[15].streams = vec![bytes::Bytes::new()];
    requests.send(bad).await.unwrap();
    requests.send(frame(20, ["last"])).await.unwrap();
    let outcomes = outcomes(&mut answers, 21).await;
    for (tag, outcome) in &outcomes {
        let expected = match tag {
            9 | 15 => Err("invalid".to_owned()),
            _ => Ok(tag - u64::from(*tag > 9) - u64::from(*tag > 15)),
        };
        assert_eq!(outcome, &expected, "{tag}");
    }
    let expected: Vec<String> =
        texts(0..20).filter(|text| text != "9" && text != "15").chain(["last".into()]).collect();
    assert_eq!(data(&mut client).await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_over_a_limit_is_refused_as_a_whole_and_the_stream_goes_on() {
    let server = Running::in_memory();
    let mut client = server.with_log("log").await;
    let (requests, mut answers) = open(&mut client).await;
    let many = frame(0, (0..=BATCH_MAX as u64).map(|_| "x"));
    let large = frame(0, (0..17).map(|_| vec![0u8; 1 << 20]));
    let both = proto::AppendRequest { record: Some(proto::Record::default()), ..frame(0, ["a", "b", "c"]) };
    const { assert!(17 << 20 > BATCH_BYTES_MAX) };
    for (bad, count, limit) in
        [(many, BATCH_MAX as u32 + 1, "BATCH_MAX"), (large, 17, "BATCH_BYTES_MAX"), (both, 3, "not both")]
    {
        requests.send(bad).await.unwrap();
        let told = message(&mut answers).await;
        let [proto::Answered { tag: 0, count: told, outcome: Some(Each::Failed(failure)) }] = &told.answered[..] else {
            panic!("{told:?}")
        };
        assert_eq!((*told, &failure.error[..], failure.code), (count, "invalid", 3));
        assert!(failure.message.contains(limit), "{}", failure.message);
    }
    assert_eq!(data(&mut client).await, [""; 0]);
    // The largest that there may be.
    requests.send(frame(0, (0..BATCH_MAX as u64).map(|number| number.to_string()))).await.unwrap();
    let outcomes = outcomes(&mut answers, BATCH_MAX).await;
    assert!(outcomes.iter().all(|(tag, outcome)| outcome == &Ok(*tag)));
    assert_eq!(data(&mut client).await, texts(0..BATCH_MAX as u64).collect::<Vec<_>>());
    // A call for one append takes no frame for an empty one.
    let refused = client.append(frame(0, ["a"])).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert_eq!(data(&mut client).await.len(), BATCH_MAX);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_numbered_frame_that_is_sent_again_is_in_the_log_once() {
    let server = Running::in_memory();
    let mut client = server.with_log("log").await;
    let open_writer = proto::OpenWriterRequest { log: "log".into(), writer: "importer".into() };
    let session = client.open_writer(open_writer).await.unwrap().into_inner().session;
    let numbered = |number, texts: std::ops::Range<u64>| proto::AppendRequest {
        writer: Some(proto::WriterNumber { writer: "importer".into(), number, session }),
        ..frame(number, texts.map(|number| number.to_string()))
    };
    {
        // Its answer is lost with its stream.
        let (requests, answers) = open(&mut client).await;
        requests.send(numbered(0, 0..100)).await.unwrap();
        while client.tail(proto::TailRequest { log: "log".into() }).await.unwrap().into_inner().position < 30 {
            tokio::time::sleep(SOON / 30).await;
        }
        drop((requests, answers));
    }
    let (requests, mut answers) = open(&mut client).await;
    requests.send(numbered(0, 0..100)).await.unwrap();
    let again = outcomes(&mut answers, 100).await;
    assert!(again.values().all(Result::is_ok), "{again:?}");
    // Another one, which overlaps with what is there.
    requests.send(numbered(90, 90..120)).await.unwrap();
    let mut overlap = Vec::new();
    while overlap.iter().map(|one: &proto::Answered| one.count).sum::<u32>() < 30 {
        overlap.extend(message(&mut answers).await.answered);
    }
    for one in overlap {
        let Some(Each::Appended(done)) = one.outcome else { panic!("{one:?}") };
        assert_eq!(done.already_there, one.tag < 100, "{one:?}");
        assert!(one.tag >= 100 || one.tag + u64::from(one.count) <= 100, "{one:?}");
    }
    // Numbers that leave some out fail one by one, and take nothing with them.
    requests.send(numbered(130, 130..133)).await.unwrap();
    let refused = outcomes(&mut answers, 3).await;
    assert!(refused.values().all(|outcome| outcome == &Err("invalid".into())), "{refused:?}");
    assert_eq!(data(&mut client).await, texts(0..120).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_of_a_frame_is_applied_than_may_be_in_flight() {
    let store = Held::new();
    let server = Running::start(Arc::clone(&store) as _, Config { in_flight_max: 4, ..near() });
    let mut client = server.with_log("log").await;
    client.append(entry("log", "first")).await.unwrap();
    let _holding = store.hold();
    let (requests, mut answers) = open(&mut client).await;
    requests.send(frame(0, texts(0..3))).await.unwrap();
    requests.send(frame(3, texts(3..50))).await.unwrap();
    let applied = Logs::open(store.below(), Session::new(Arc::new(|| 0), 8)).unwrap().log("log").unwrap();
    while applied.tail().unwrap().position < 5 {
        tokio::time::sleep(SOON / 10).await;
    }
    let nothing = tokio::time::timeout(SOON, answers.message()).await;
    assert!(nothing.is_err(), "answered before it was durable: {nothing:?}");
    assert_eq!(applied.tail().unwrap().position, 5, "one that is durable, and four in flight");
    store.release();
    let outcomes = outcomes(&mut answers, 50).await;
    assert!(outcomes.iter().all(|(tag, outcome)| outcome == &Ok(tag + 1)), "{outcomes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_client_that_sends_frames_and_reads_no_answers_no_more_is_read() {
    let server = Running::start(Arc::new(esker_memory::MemoryStore::new()), Config { in_flight_max: 16, ..near() });
    let mut client = server.with_log("log").await;
    // Of its own, since what is not read of the stream holds up all of its connection.
    let endpoint = Channel::from_shared(format!("http://{}", server.address)).unwrap();
    let endpoint = endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
    let (requests, mut answers) = open(&mut LogClient::new(endpoint.connect().await.unwrap())).await;
    // Tags that do not go on from each other, so that each frame takes room in an answer.
    let sending = tokio::spawn(async move {
        for number in 0..200_000u64 {
            requests.send(frame(number * 1_000_000, ["a", "b"])).await.unwrap();
        }
    });
    let tail = async |client: &mut LogClient<Channel>| {
        client.tail(proto::TailRequest { log: "log".into() }).await.unwrap().into_inner().position
    };
    let (mut last, mut still) = (0, 0);
    while still < 5 {
        tokio::time::sleep(SOON).await;
        let now = tail(&mut client).await;
        still = if now == last && now > 0 { still + 1 } else { 0 };
        last = now;
    }
    assert!(last < 100_000, "{last} appends of a client that reads nothing");
    assert!(!sending.is_finished());
    // It goes on when the client reads.
    let mut read = 0;
    while read < last + 1_000 {
        read += message(&mut answers).await.answered.iter().map(|one| u64::from(one.count)).sum::<u64>();
    }
    assert!(tail(&mut client).await > last);
    sending.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_beside_frames_gets_each_entry_once_in_order_and_when_it_is_durable() {
    let store = Held::new();
    let server = Running::start(Arc::clone(&store) as _, near());
    let mut client = server.with_log("log").await;
    client.append(entry("log", "0")).await.unwrap();
    let mut following = client.follow(from_first("log")).await.unwrap().into_inner();
    let mut next = async |count: usize| {
        let mut entries = Vec::new();
        while entries.len() < count {
            let message = tokio::time::timeout(LATE, following.message()).await?.unwrap().unwrap();
            entries.extend(message.deliveries.into_iter().map(|one| match one.what.unwrap() {
                proto::delivery::What::Entry(entry) => (entry.position, entry.data),
                other => panic!("{other:?}"),
            }));
        }
        Ok::<_, tokio::time::error::Elapsed>(entries)
    };
    assert_eq!(next(1).await.unwrap(), [(0, "0".into())]);
    let holding = store.hold();
    let (requests, mut answers) = open(&mut client).await;
    requests.send(frame(1, texts(1..11))).await.unwrap();
    let nothing = tokio::time::timeout(SOON, next(1)).await;
    assert!(nothing.is_err(), "handed out before it was durable: {nothing:?}");
    store.release();
    drop(holding);
    assert_eq!(next(10).await.unwrap(), (1..11).map(|n| (n, n.to_string().into())).collect::<Vec<_>>());
    // Beside another client's single appends.
    let mut other = client.clone();
    let beside = tokio::spawn(async move {
        for _ in 0..200 {
            other.append(entry("log", "other")).await.unwrap();
        }
    });
    for tag in (11..2_011).step_by(50) {
        requests.send(frame(tag, texts(tag..tag + 50))).await.unwrap();
    }
    let followed = next(2_200).await.unwrap();
    assert!(followed.iter().map(|(position, _)| *position).eq(11..2_211));
    let framed = followed.iter().filter(|(_, data)| data != "other").map(|(_, data)| data.clone());
    assert!(framed.eq(texts(11..2_011)), "in their order, none missing");
    let outcomes = outcomes(&mut answers, 2_010).await;
    for (position, data) in followed.iter().filter(|(_, data)| data != "other") {
        let tag: u64 = std::str::from_utf8(data).unwrap().parse().unwrap();
        assert_eq!(outcomes[&tag], Ok(*position));
    }
    beside.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_of_a_frame_is_told_that_its_log_is_gone_or_sealed() {
    let server = Running::in_memory();
    let mut client = server.with_log("log").await;
    let (requests, mut answers) = open(&mut client).await;
    requests.send(frame(0, texts(0..5))).await.unwrap();
    assert_eq!(outcomes(&mut answers, 5).await.len(), 5);
    client.seal(proto::SealRequest { log: "log".into() }).await.unwrap();
    requests.send(frame(5, texts(5..10))).await.unwrap();
    let sealed = message(&mut answers).await;
    let [proto::Answered { tag: 5, count: 5, outcome: Some(Each::Failed(failure)) }] = &sealed.answered[..] else {
        panic!("{sealed:?}")
    };
    assert_eq!((&failure.error[..], failure.position), ("sealed", Some(5)));
    client.delete(proto::DeleteRequest { log: "log".into() }).await.unwrap();
    requests.send(frame(10, texts(10..13))).await.unwrap();
    let gone = outcomes(&mut answers, 3).await;
    assert!(gone.values().all(|outcome| outcome == &Err("no-log".into())), "{gone:?}");
}
