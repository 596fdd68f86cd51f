//! Many appends under way on one stream: in frames where the server takes them, each with its own outcome.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use esker_log::{Log, Logs, Record, Session};
use esker_memory::MemoryStore;
use esker_remote::{AppendError, Appender};
use esker_server::grpc::{Address, Config, Faces, Server};
use esker_wire::log::APPENDS_MAX;
use esker_wire::proto::log as proto;
use esker_wire::proto::log::append_stream_response::Outcome;
use esker_wire::proto::log::log_client::LogClient;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::{Body, Service, StdError, http};
use tonic::server::{Grpc, StreamingService};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status, Streaming};

const LATE: Duration = Duration::from_secs(20);

/// A server of streams of appends in this process. It notes how many appends each request holds and answers it when it
/// may.
#[derive(Clone)]
struct Fake {
    /// What it says of frames.
    appends_max: Option<u64>,
    requests: Arc<Mutex<Vec<usize>>>,
    may_answer: Arc<Semaphore>,
    /// After so many requests it ends the stream.
    requests_max: usize,
}

impl Fake {
    fn new(appends_max: Option<u64>, may_answer: usize, requests_max: usize) -> Self {
        let may_answer = Arc::new(Semaphore::new(may_answer));
        Self { appends_max, requests: Arc::default(), may_answer, requests_max }
    }

    fn requests(&self) -> Vec<usize> {
        self.requests.lock().unwrap().clone()
    }
}

impl StreamingService<proto::AppendRequest> for Fake {
    type Response = proto::AppendStreamResponse;
    type ResponseStream = ReceiverStream<Result<proto::AppendStreamResponse, Status>>;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Self::ResponseStream>, Status>> + Send>>;

    fn call(&mut self, request: Request<Streaming<proto::AppendRequest>>) -> Self::Future {
        let fake = self.clone();
        Box::pin(async move {
            let (answers, outgoing) = mpsc::channel(1_024);
            let mut answer = Response::new(ReceiverStream::new(outgoing));
            if let Some(max) = fake.appends_max {
                answer.metadata_mut().insert(APPENDS_MAX, max.into());
            }
            tokio::spawn(async move {
                let (mut requests, mut position) = (request.into_inner(), 0);
                while let Some(Ok(request)) = requests.next().await {
                    let count = request.records.len() + usize::from(request.record.is_some());
                    fake.requests.lock().unwrap().push(count);
                    fake.may_answer.acquire().await.unwrap().forget();
                    if fake.requests().len() > fake.requests_max {
                        let _ = answers.send(Err(Status::unavailable("it is over"))).await;
                        return;
                    }
                    let appended = proto::AppendResponse { position, already_there: false };
                    let (tag, count) = (request.tag, count as u32);
                    let answer = if request.records.is_empty() {
                        proto::AppendStreamResponse {
                            tag,
                            outcome: Some(Outcome::Appended(appended)),
                            answered: vec![],
                        }
                    } else {
                        let outcome = Some(proto::answered::Outcome::Appended(appended));
                        let answered = vec![proto::Answered { tag, count, outcome }];
                        proto::AppendStreamResponse { answered, ..Default::default() }
                    };
                    position += u64::from(count);
                    answers.send(Ok(answer)).await.unwrap();
                }
            });
            Ok(answer)
        })
    }
}

impl<B> Service<http::Request<B>> for Fake
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let fake = self.clone();
        let codec = tonic_prost::ProstCodec::<proto::AppendStreamResponse, proto::AppendRequest>::default();
        Box::pin(async move { Ok(Grpc::new(codec).streaming(fake, request).await) })
    }
}

/// Appends so many entries at once, and the positions in the order of the calls.
async fn positions(appender: &Appender, count: usize) -> Vec<Result<u64, AppendError>> {
    let appends = (0..count).map(|number| {
        let appender = appender.clone();
        tokio::spawn(async move { appender.append(Record::from(number.to_string())).await })
    });
    let mut positions = Vec::new();
    for append in appends.collect::<Vec<_>>() {
        positions.push(tokio::time::timeout(LATE, append).await.unwrap().unwrap());
    }
    positions
}

fn sorted(positions: Vec<Result<u64, AppendError>>) -> Vec<u64> {
    let mut sorted: Vec<u64> = positions.into_iter().collect::<Result<_, _>>().unwrap();
    sorted.sort_unstable();
    sorted
}

#[tokio::test]
async fn one_append_goes_alone_and_what_gathers_goes_together() {
    let fake = Fake::new(Some(40), 1_000, usize::MAX);
    let appender = Appender::open(LogClient::new(fake.clone()), "log", 1_000).await.unwrap();
    for position in 0..3 {
        assert_eq!(appender.append(Record::from("alone")).await, Ok(position));
    }
    assert_eq!(fake.requests(), [1, 1, 1]);
    assert_eq!(sorted(positions(&appender, 100).await), (3..103).collect::<Vec<_>>());
    assert_eq!(fake.requests()[3..], [40, 40, 20], "no more in a frame than the server takes");
}

#[tokio::test]
async fn a_server_that_says_nothing_of_frames_is_sent_none() {
    let fake = Fake::new(None, 1_000, usize::MAX);
    let appender = Appender::open(LogClient::new(fake.clone()), "log", 1_000).await.unwrap();
    assert_eq!(sorted(positions(&appender, 100).await), (0..100).collect::<Vec<_>>());
    assert_eq!(fake.requests(), [1; 100]);
}

#[tokio::test]
async fn no_more_is_under_way_than_may_be() {
    let fake = Fake::new(Some(4_096), 0, usize::MAX);
    let appender = Appender::open(LogClient::new(fake.clone()), "log", 8).await.unwrap();
    let appending = tokio::spawn(async move { positions(&appender, 50).await });
    while fake.requests().is_empty() {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(fake.requests().iter().sum::<usize>(), 8);
    fake.may_answer.add_permits(1_000);
    assert_eq!(sorted(appending.await.unwrap()), (0..50).collect::<Vec<_>>());
    assert!(fake.requests().iter().all(|count| *count <= 8));
}

#[tokio::test]
async fn when_the_stream_ends_each_append_is_told_whether_it_may_be_there() {
    let fake = Fake::new(Some(10), 1, 1);
    let appender = Appender::open(LogClient::new(fake.clone()), "log", 30).await.unwrap();
    // Ten are answered, twenty more were sent or gathered, and others wait for room.
    let told = positions(&appender, 60);
    let more = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        fake.may_answer.add_permits(1);
    };
    let (told, ()) = tokio::join!(told, more);
    let why = "Unavailable: it is over";
    let (lost, over) = (AppendError::Lost(why.into()), AppendError::Ended(why.into()));
    assert_eq!(told.iter().filter(|one| one.is_ok()).count(), 10);
    assert!(told.iter().filter(|one| **one == Err(lost.clone())).count() >= 10, "{told:?}");
    assert!(told.iter().any(|one| *one == Err(over.clone())), "{told:?}");
    assert!(told.iter().all(|one| one.is_ok() || *one == Err(lost.clone()) || *one == Err(over.clone())), "{told:?}");
    assert_eq!(appender.append(Record::from("late")).await, Err(over));
}

#[test]
fn appends_are_told_when_the_runtime_of_their_stream_is_shut_down() {
    let (theirs, ours) = (tokio::runtime::Runtime::new().unwrap(), tokio::runtime::Runtime::new().unwrap());
    let fake = Fake::new(Some(10), 0, usize::MAX);
    let appender = theirs.block_on(Appender::open(LogClient::new(fake.clone()), "log", 4)).unwrap();
    // Four are under way, or gathered; two wait for room.
    let under_way = ours.spawn({
        let appender = appender.clone();
        async move { positions(&appender, 6).await }
    });
    while fake.requests().is_empty() {
        std::thread::yield_now();
    }
    theirs.shutdown_timeout(LATE);
    for told in ours.block_on(under_way).unwrap() {
        assert!(matches!(told, Err(AppendError::Lost(_) | AppendError::Ended(_))), "{told:?}");
    }
    let late = ours.block_on(async { tokio::time::timeout(LATE, appender.append(Record::from("late"))).await });
    assert!(matches!(late, Ok(Err(AppendError::Ended(_)))), "{late:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_append_to_a_server_has_its_own_outcome() {
    let logs = Logs::open(Arc::new(MemoryStore::new()), Session::new(Arc::new(|| 1_700_000_000_000), 7)).unwrap();
    let log: Log = logs.create("log", esker_log::Options::default()).unwrap();
    let config = Config { listen: vec![([127, 0, 0, 1], 0).into()], ..Config::default() };
    let server = Server::bind(config, Faces { logs: Some(logs), ..Faces::default() }).unwrap();
    let Address::Tcp(address) = server.addresses()[0] else { panic!("{:?}", server.addresses()) };
    let (handle, thread) = (server.handle(), std::thread::spawn(move || server.run()));
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let client = LogClient::new(channel);
    let appender = Appender::open(client.clone(), "log", 256).await.unwrap();
    let mut appends = Vec::new();
    for number in 0..5_000u32 {
        let appender = appender.clone();
        // The last is larger than a frame may be, and fails alone as well.
        let bytes = match number {
            4_999 => 17 << 20,
            number if number % 1_000 == 999 => (1 << 20) + 1,
            _ => 100,
        };
        let mut data = number.to_le_bytes().to_vec();
        data.resize(bytes, 7);
        appends.push((number, tokio::spawn(async move { appender.append(Record::from(data)).await })));
    }
    let mut refused = 0;
    for (number, append) in appends {
        match tokio::time::timeout(LATE, append).await.unwrap().unwrap() {
            Ok(position) => {
                let esker_log::Found::Entry(entry) = log.read(position).unwrap().wait().unwrap() else {
                    panic!("nothing at {position}")
                };
                assert_eq!(entry.data[..4], number.to_le_bytes(), "at its position stands its entry");
                assert_ne!(number % 1_000, 999);
            }
            Err(AppendError::Failed { code, error, message, .. }) => {
                assert_eq!((number % 1_000, code, &error[..]), (999, Code::InvalidArgument, "invalid"));
                assert!(message.contains("entry_bytes_max"), "{message}");
                refused += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!((refused, log.tail().unwrap().position), (5, 4_995));
    let missing = Appender::open(client, "no such log", 4).await.unwrap();
    let missing = missing.append(Record::from("x")).await;
    assert!(matches!(&missing, Err(AppendError::Failed { error, .. }) if error == "no-log"), "{missing:?}");
    handle.shutdown();
    thread.join().unwrap().unwrap();
    let late = tokio::time::timeout(LATE, appender.append(Record::from("late"))).await.unwrap();
    assert!(matches!(late, Err(AppendError::Lost(_) | AppendError::Ended(_))), "{late:?}");
}
