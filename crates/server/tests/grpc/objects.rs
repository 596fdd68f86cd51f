//! Objects: shown only when durable, and bad messages refused.

use std::sync::Arc;
use std::time::Duration;

use esker_server::grpc::Config;
use esker_store::{ObjectStore, Transaction};
use esker_wire::proto::store as proto;
use esker_wire::proto::store::objects_client::ObjectsClient;
use tonic::Code;
use tonic::transport::Channel;

use crate::held::Held;
use crate::running::{Running, near};

const SOON: Duration = Duration::from_millis(150);
const LATE: Duration = Duration::from_secs(20);

async fn started() -> (Arc<Held>, Running, ObjectsClient<Channel>) {
    let store = Held::new();
    store.submit(Transaction::new().create_collection(&"home".into())).wait().unwrap();
    let server = Running::start(Arc::clone(&store) as _, Config { objects: true, ..near() });
    let channel = Channel::from_shared(format!("http://{}", server.address)).unwrap().connect().await.unwrap();
    (store, server, ObjectsClient::new(channel))
}

fn object() -> proto::ObjectId {
    proto::ObjectId { collection: "home".into(), name: "object".into() }
}

fn set(value: &'static str, applied_only: bool) -> proto::SubmitRequest {
    let slot = proto::Slot { index: 1, value: value.into() };
    let ops = vec![proto::Op { object: 0, op: Some(proto::op::Op::SlotSet(slot)) }];
    proto::SubmitRequest { objects: vec![object()], ops, applied_only, ..Default::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_shown_before_it_is_durable() {
    let (store, _server, client) = started().await;
    let _holding = store.hold();
    let mut other = client.clone();
    let submitted = tokio::spawn(async move { other.submit(set("new", false)).await });
    tokio::time::sleep(SOON).await;
    let mut other = client.clone();
    let read = tokio::spawn(async move {
        other.slot_get(proto::SlotGetRequest { object: Some(object()), indexes: vec![1] }).await
    });
    tokio::time::sleep(SOON).await;
    assert!(!submitted.is_finished(), "acknowledged before it was durable");
    assert!(!read.is_finished(), "shown before it was durable");
    let mut other = client.clone();
    tokio::time::timeout(LATE, other.submit(set("newer", true))).await.unwrap().unwrap();
    store.release();
    tokio::time::timeout(LATE, submitted).await.unwrap().unwrap().unwrap();
    let read = tokio::time::timeout(LATE, read).await.unwrap().unwrap().unwrap().into_inner();
    assert_eq!(read.values[0].value.as_deref(), Some(&b"new"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_make_no_sense_are_refused() {
    let (_store, _server, mut client) = started().await;
    let mut check = async |message: proto::SubmitRequest, says: &str| {
        let refused = client.submit(message).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains(says), "{refused}");
        assert!(refused.metadata().get_bin("esker-error-bin").is_some());
    };
    let op = |object, op| proto::SubmitRequest {
        objects: vec![self::object()],
        ops: vec![proto::Op { object, op }],
        ..Default::default()
    };
    check(op(0, None), "empty").await;
    check(proto::SubmitRequest { always: true, ..set("both", true) }, "exclude each other").await;
    check(op(1, Some(proto::op::Op::Touch(proto::Nothing {}))), "object 1 of 1").await;
    check(op(0, Some(proto::op::Op::CloneTo(u32::MAX))), "object 4294967295 of 1").await;
    let nameless = proto::SubmitRequest { objects: vec![proto::ObjectId::default()], ..set("x", false) };
    check(nameless, "object name").await;
    let guards = vec![proto::Guard { object: 0, condition: None }];
    check(proto::SubmitRequest { guards, ..set("x", false) }, "no condition").await;
    let compare = proto::XattrCompare { compare: 99, ..Default::default() };
    let guards = vec![proto::Guard { object: 0, condition: Some(proto::guard::Condition::XattrCompare(compare)) }];
    check(proto::SubmitRequest { guards, ..set("x", false) }, "comparison 99").await;
    assert!(client.stat(proto::ObjectRequest { object: None }).await.is_err());
    client.submit(set("x", false)).await.unwrap();
}
