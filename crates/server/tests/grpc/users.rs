//! Users over gRPC: tokens and certificates, roles, names; and certificates that are taken anew under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use esker_memory::MemoryStore;
use esker_server::front::{Users, token};
use esker_server::grpc::Config;
use esker_wire::proto::log as proto;
use esker_wire::proto::log::log_client::LogClient;
use esker_wire::proto::map::{CreateNamespaceRequest, ListNamespacesRequest, ListTablesRequest};
use esker_wire::proto::store::CollectionsRequest;
use esker_wire::proto::store::objects_client::ObjectsClient;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request};

use super::security::certificates;
use crate::running::{Running, near};

fn with<T>(message: T, token: &str) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    request
}

fn appended(log: &str) -> proto::AppendRequest {
    let record = Some(proto::Record { data: "x".into(), ..proto::Record::default() });
    proto::AppendRequest { log: log.into(), record, ..proto::AppendRequest::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn users_do_what_their_roles_faces_and_names_allow() {
    let [(reader, reader_hash), (writer, writer_hash), (operator, operator_hash)] =
        std::array::from_fn(|_| token().unwrap());
    let text = format!(
        "[[user]]\nname = 'reader'\nrole = 'reader'\ntokens = ['{reader_hash}']\nfaces = ['log']\n\
         [[user]]\nname = 'writer'\nrole = 'writer'\ntokens = ['{writer_hash}']\nnames = ['w-*']\n\
         [[user]]\nname = 'op'\nrole = 'operator'\ntokens = ['{operator_hash}']\n"
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let users = Users::open(file.path(), None, None).unwrap();
    let config = Config { users: Some(Arc::clone(&users)), objects: true, ..near() };
    let server = Running::start(Arc::new(MemoryStore::new()), config);
    let mut log = server.client().await;
    let create = |name: &str| proto::CreateRequest { log: name.into(), ..proto::CreateRequest::default() };
    let code = |status: tonic::Status| status.code();
    assert_eq!(log.create(create("w-1")).await.map_err(code).unwrap_err(), Code::Unauthenticated);
    assert_eq!(log.create(with(create("w-1"), "nobody's")).await.map_err(code).unwrap_err(), Code::Unauthenticated);
    assert_eq!(log.create(with(create("w-1"), &reader)).await.map_err(code).unwrap_err(), Code::PermissionDenied);
    log.create(with(create("w-1"), &writer)).await.unwrap();
    assert_eq!(log.create(with(create("other"), &writer)).await.map_err(code).unwrap_err(), Code::PermissionDenied);
    log.create(with(create("other"), &operator)).await.unwrap();
    log.append(with(appended("w-1"), &writer)).await.unwrap();
    assert_eq!(log.append(with(appended("w-1"), &reader)).await.map_err(code).unwrap_err(), Code::PermissionDenied);
    assert_eq!(log.append(with(appended("other"), &writer)).await.map_err(code).unwrap_err(), Code::PermissionDenied);
    let rename = proto::RenameRequest { log: "w-1".into(), to: "elsewhere".into() };
    assert_eq!(log.rename(with(rename, &writer)).await.map_err(code).unwrap_err(), Code::PermissionDenied);
    // A stream that goes on to a log that is not the user's ends there; what came before counts.
    let requests = tokio_stream::iter([appended("w-1"), appended("other")]);
    let mut answers = log.append_stream(with(requests, &writer)).await.unwrap().into_inner();
    assert!(answers.message().await.unwrap().is_some());
    assert_eq!(answers.message().await.map_err(code).unwrap_err(), Code::PermissionDenied);
    // Lists show what the user may read.
    let listed = |token: &str| {
        let (request, mut log) = (with(proto::ListRequest::default(), token), log.clone());
        async move { log.list(request).await.unwrap().into_inner().logs }
    };
    assert_eq!(listed(&reader).await, ["other", "w-1"]);
    assert_eq!(listed(&writer).await, ["w-1"]);
    let tail = || proto::TailRequest { log: "other".into() };
    assert_eq!(log.tail(with(tail(), &reader)).await.unwrap().into_inner().position, 0);
    assert_eq!(log.tail(with(tail(), &writer)).await.map_err(code).unwrap_err(), Code::PermissionDenied);
    // A face that is not his is refused whole, and the objects to all but operators.
    let mut map = server.map().await;
    let namespaces = ListNamespacesRequest {};
    assert_eq!(map.list_namespaces(with(namespaces, &reader)).await.map_err(code).unwrap_err(), Code::PermissionDenied);
    let namespace = |name: &str| CreateNamespaceRequest { namespace: name.into(), ..Default::default() };
    map.create_namespace(with(namespace("w-shop"), &writer)).await.unwrap();
    let refused = map.create_namespace(with(namespace("shop"), &writer)).await.map_err(code).unwrap_err();
    assert_eq!(refused, Code::PermissionDenied);
    map.list_tables(with(ListTablesRequest { namespace: "w-shop".into() }, &writer)).await.unwrap();
    let channel = Channel::from_shared(format!("http://{}", server.address)).unwrap().connect().await.unwrap();
    let mut objects = ObjectsClient::new(channel);
    let collections = || CollectionsRequest {};
    let refused = objects.collections(with(collections(), &writer)).await.map_err(code).unwrap_err();
    assert_eq!(refused, Code::PermissionDenied);
    objects.collections(with(collections(), &operator)).await.unwrap();
    // A token that is taken back is worth nothing any more.
    std::fs::write(file.path(), "").unwrap();
    users.reload(None, None).unwrap();
    assert_eq!(log.append(with(appended("w-1"), &writer)).await.map_err(code).unwrap_err(), Code::Unauthenticated);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_names_its_user() {
    let folder = tempfile::tempdir().unwrap();
    let files = certificates::make(folder.path());
    let file = folder.path().join("users.toml");
    std::fs::write(&file, "[[user]]\nname = 'ann'\nrole = 'writer'\ncertificates = ['client']\n").unwrap();
    let users = Users::open(&file, None, None).unwrap();
    let config = Config { tls: Some(files), users: Some(Arc::clone(&users)), ..near() };
    let server = Running::start(Arc::new(MemoryStore::new()), config);
    let channel = encrypted(&server, folder.path()).await.unwrap();
    let mut log = LogClient::new(channel);
    log.list(proto::ListRequest::default()).await.unwrap();
    std::fs::write(&file, "[[user]]\nname = 'ann'\nrole = 'writer'\ncertificates = ['another']\n").unwrap();
    users.reload(None, None).unwrap();
    let refused = log.list(proto::ListRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
}

async fn encrypted(server: &Running, folder: &std::path::Path) -> Result<Channel, tonic::transport::Error> {
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(read("ca-cert.pem")))
        .domain_name("localhost")
        .identity(Identity::from_pem(read("client-cert.pem"), read("client-key.pem")));
    Endpoint::from_shared(format!("https://{}", server.address)).unwrap().tls_config(tls).unwrap().connect().await
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_taken_anew_without_an_error_for_anybody() {
    let folder = tempfile::tempdir().unwrap();
    let files = certificates::make(folder.path());
    let server = Running::start(Arc::new(MemoryStore::new()), Config { tls: Some(files), ..near() });
    let old = encrypted(&server, folder.path()).await.unwrap();
    let (stop, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let load = tokio::spawn({
        let (stop, calls, mut log) = (Arc::clone(&stop), Arc::clone(&calls), LogClient::new(old));
        async move {
            while !stop.load(Ordering::SeqCst) {
                log.list(proto::ListRequest::default()).await.unwrap();
                calls.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    // New files of another authority: the client of the old one is refused from then on, but not cut off.
    let before = tempfile::tempdir().unwrap();
    for name in ["ca-cert.pem", "client-cert.pem", "client-key.pem"] {
        std::fs::copy(folder.path().join(name), before.path().join(name)).unwrap();
    }
    certificates::make(folder.path());
    encrypted(&server, before.path()).await.unwrap();
    server.handle().prepare(None).unwrap()();
    assert!(encrypted(&server, before.path()).await.is_err());
    let mut log = LogClient::new(encrypted(&server, folder.path()).await.unwrap());
    log.list(proto::ListRequest::default()).await.unwrap();
    // What cannot be read changes nothing.
    std::fs::write(folder.path().join("server-cert.pem"), "no certificate").unwrap();
    let error = server.handle().prepare(None).err().unwrap().to_string();
    assert!(error.contains("server-cert.pem"), "{error}");
    encrypted(&server, folder.path()).await.unwrap();
    let so_far = calls.load(Ordering::SeqCst);
    while calls.load(Ordering::SeqCst) < so_far + 10 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(!load.is_finished(), "the old connection has failed");
    }
    stop.store(true, Ordering::SeqCst);
    load.await.unwrap();
}
