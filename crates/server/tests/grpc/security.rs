//! Who is let in: tokens, certificates, and what is not served unless it was asked for.

#[path = "../certificates/mod.rs"]
pub mod certificates;

use std::sync::Arc;

use esker_memory::MemoryStore;
use esker_server::grpc::Config;
use esker_wire::proto::log as proto;
use esker_wire::proto::log::log_client::LogClient;
use esker_wire::proto::map::ListNamespacesRequest;
use esker_wire::proto::store::objects_client::ObjectsClient;
use esker_wire::proto::store::{CapabilityRequest, CollectionsRequest};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request};
use tonic_health::pb::health_client::HealthClient;

use crate::running::{Running, near};

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_asked_for_on_every_call_but_health() {
    let config = Config { token: Some("open-sesame".into()), objects: true, ..near() };
    let server = Running::start(Arc::new(MemoryStore::new()), config);
    let list = |token: Option<&'static str>| {
        let mut request = Request::new(proto::ListRequest::default());
        if let Some(token) = token {
            request.metadata_mut().insert("authorization", token.parse().unwrap());
        }
        request
    };
    let mut client = server.client().await;
    for wrong in [None, Some("Bearer open-sesam"), Some("open-sesame"), Some("Bearer open-sesamE"), Some("Bearer ")] {
        assert_eq!(client.list(list(wrong)).await.unwrap_err().code(), Code::Unauthenticated, "{wrong:?}");
    }
    client.list(list(Some("Bearer open-sesame"))).await.unwrap();
    let channel = Channel::from_shared(format!("http://{}", server.address)).unwrap().connect().await.unwrap();
    let refused = ObjectsClient::new(channel.clone()).collections(CollectionsRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    let mut map = server.map().await;
    let refused = map.list_namespaces(ListNamespacesRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    let check = tonic_health::pb::HealthCheckRequest { service: "esker.map.v1.Map".into() };
    let healthy = HealthClient::new(channel).check(check).await.unwrap().into_inner();
    assert_eq!(healthy.status, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_served_only_where_it_was_asked_for() {
    let server = Running::in_memory();
    let channel = Channel::from_shared(format!("http://{}", server.address)).unwrap().connect().await.unwrap();
    let refused = ObjectsClient::new(channel).capability(CapabilityRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
}

#[tokio::test(flavor = "multi_thread")]
async fn encrypted_connections_need_the_clients_certificate_where_it_is_required() {
    let folder = tempfile::tempdir().unwrap();
    let files = certificates::make(folder.path());
    let server = Running::start(Arc::new(MemoryStore::new()), Config { tls: Some(files), ..near() });
    let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    let plain = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read("ca-cert.pem")));
    let plain = plain.domain_name("localhost");
    let shown = plain.clone().identity(Identity::from_pem(read("client-cert.pem"), read("client-key.pem")));
    let connect = |tls: ClientTlsConfig| {
        let endpoint = Endpoint::from_shared(format!("https://{}", server.address)).unwrap().tls_config(tls).unwrap();
        async move {
            let channel = endpoint.connect().await.map_err(|error| format!("{error:?}"))?;
            let listed = LogClient::new(channel).list(proto::ListRequest::default()).await;
            listed.map_err(|status| format!("{status:?}"))
        }
    };
    connect(shown).await.unwrap();
    connect(plain).await.unwrap_err();
    // Nor is anything said to who does not encrypt at all.
    let open = Endpoint::from_shared(format!("http://{}", server.address)).unwrap().connect().await;
    if let Ok(channel) = open {
        LogClient::new(channel).list(proto::ListRequest::default()).await.unwrap_err();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reflection_tells_the_services_that_are_served() {
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    let server = Running::in_memory();
    let channel = Channel::from_shared(format!("http://{}", server.address)).unwrap().connect().await.unwrap();
    let request = tonic_reflection::pb::v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(channel);
    let mut answers = client.server_reflection_info(tokio_stream::iter([request])).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap().message_response.unwrap();
    let MessageResponse::ListServicesResponse(list) = answer else { panic!("{answer:?}") };
    let names: Vec<_> = list.service.iter().map(|service| &service.name[..]).collect();
    assert!(names.contains(&"esker.log.v1.Log") && names.contains(&"esker.map.v1.Map"), "{names:?}");
    assert!(!names.contains(&"esker.store.v1.Objects"), "{names:?}");
}
