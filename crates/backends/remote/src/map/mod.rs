//! The map of a server: each call of [`MapStorage`] as one call over the network.
//!
//! call → message → answer, which may be shown · reads: again after a loss · a scan: as much of the stream as makes a
//! page, then it is cancelled
//!
//! Invariants:
//! 1. A mutation is sent once. Where its answer is lost, the error is [`Error::Unknown`](esker_map::Error::Unknown).
//! 2. Rows and conditions come as the server's storage has them: nothing is evaluated here.
//!
//! Format: crates/wire/proto/esker/map/v1/map.proto

mod failure;

use std::sync::Arc;
use std::time::Duration;

use esker_map::{
    Alter, Completion, Durability, Error as MapError, Get, MapCapability, MapStorage, Mutation, Page, Record,
    Result as MapResult, Scan, Schema, Table, TableName,
};
use esker_wire::map as wire;
use esker_wire::proto::map as proto;
use esker_wire::proto::map::map_client::MapClient;
use tonic::{Code, Request, Response, Status};

use crate::address::{Error, Options, Place, Result, Tokened, channel};
use crate::call::{Manner, call};
use failure::nonsense;

/// Longest message either way, in bytes.
const MESSAGE_BYTES_MAX: usize = 40 << 20;

/// The map of a running server. Cloning gives the same one.
#[derive(Clone)]
pub struct RemoteMap {
    client: MapClient<Tokened>,
    capability: MapCapability,
    place: Arc<Place>,
    timeout: Duration,
}

impl std::fmt::Debug for RemoteMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteMap").field("place", &self.place).finish_non_exhaustive()
    }
}

impl RemoteMap {
    /// Reaches the server's map, and asks what it can do.
    ///
    /// # Errors
    /// [`Error::Option`]; [`Error::Unreachable`] if the server does not answer or serves no map.
    pub fn connect(place: Place, options: &Options) -> Result<Self> {
        let client = MapClient::new(channel(&place, options)?)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let manner = Manner { timeout: options.timeout, again: true, told: failure::is_told };
        let asked = call(&client, manner, proto::CapabilityRequest {}, |mut client, request| async move {
            client.capability(request).await
        });
        let able = asked.map_err(|status: Status| {
            let why = match status.code() {
                Code::Unimplemented => "the server serves no map".into(),
                _ => crate::failure::text(&status),
            };
            Error::Unreachable { place: place.clone(), why }
        })?;
        let capability = wire::decode_capability("grpc", able.get_ref());
        Ok(Self { client, capability, place: Arc::new(place), timeout: options.timeout })
    }

    /// Where the server is.
    pub fn place(&self) -> &Place {
        &self.place
    }

    fn ask<M, A, F>(
        &self,
        again: bool,
        message: M,
        ask: impl Fn(MapClient<Tokened>, Request<M>) -> F + Send + 'static,
    ) -> std::result::Result<A, Status>
    where
        M: Clone + Send + 'static,
        A: Send + 'static,
        F: Future<Output = std::result::Result<Response<A>, Status>> + Send + 'static,
    {
        let manner = Manner { timeout: self.timeout, again, told: failure::is_told };
        call(&self.client, manner, message, ask).map(Response::into_inner)
    }

    /// What only reads: asked again after a loss.
    fn read<M, A, F>(
        &self,
        what: &'static str,
        message: M,
        ask: impl Fn(MapClient<Tokened>, Request<M>) -> F + Send + 'static,
    ) -> MapResult<A>
    where
        M: Clone + Send + 'static,
        A: Send + 'static,
        F: Future<Output = std::result::Result<Response<A>, Status>> + Send + 'static,
    {
        self.ask(true, message, ask).map_err(|status| failure::error(what, &status, false))
    }

    /// What changes something: sent once.
    fn change<M, A, F>(
        &self,
        what: &'static str,
        message: M,
        ask: impl Fn(MapClient<Tokened>, Request<M>) -> F + Send + 'static,
    ) -> MapResult<A>
    where
        M: Clone + Send + 'static,
        A: Send + 'static,
        F: Future<Output = std::result::Result<Response<A>, Status>> + Send + 'static,
    {
        self.ask(false, message, ask).map_err(|status| failure::error(what, &status, true))
    }
}

/// A page of a scan's stream: what its first message shows is of one moment, and of two it would not be. `whole` is set
/// where all of it is one page.
async fn page(
    mut client: MapClient<Tokened>,
    request: Request<proto::ScanRequest>,
    whole: bool,
    timeout: Duration,
) -> std::result::Result<Response<Page>, Status> {
    let mut stream = client.scan(request).await?.into_inner();
    let mut page = Page::default();
    loop {
        let message = tokio::time::timeout(timeout, stream.message()).await;
        let late = |_| Status::deadline_exceeded(format!("no rows within {timeout:?}"));
        let Some(message) = message.map_err(late)?? else { return Ok(Response::new(page)) };
        page.next = wire::decode_token(&message.next_page_token);
        let columns = message.columns;
        for row in message.rows {
            page.records.push(wire::decode_row(&columns, row).map_err(|wrong| nonsense("scan", &wrong))?);
        }
        if page.next.is_some() && !whole {
            return Ok(Response::new(page));
        }
    }
}

impl MapStorage for RemoteMap {
    fn capability(&self) -> MapCapability {
        self.capability
    }

    fn create_namespace(&self, namespace: &str) -> MapResult<()> {
        let message = proto::CreateNamespaceRequest { namespace: namespace.into(), if_not_exists: false };
        let call = |mut client: MapClient<Tokened>, request| async move { client.create_namespace(request).await };
        self.change("create namespace", message, call).map(drop)
    }

    fn drop_namespace(&self, namespace: &str) -> MapResult<()> {
        let message = proto::DropNamespaceRequest { namespace: namespace.into(), if_exists: false };
        let call = |mut client: MapClient<Tokened>, request| async move { client.drop_namespace(request).await };
        self.change("drop namespace", message, call).map(drop)
    }

    fn namespaces(&self) -> MapResult<Vec<String>> {
        let call = |mut client: MapClient<Tokened>, request| async move { client.list_namespaces(request).await };
        self.read("list namespaces", proto::ListNamespacesRequest {}, call).map(|answer| answer.namespaces)
    }

    fn create_table(&self, name: &TableName, schema: &Schema) -> MapResult<()> {
        let message = proto::CreateTableRequest {
            table: wire::encode_table_name(name),
            schema: Some(wire::encode_schema(schema)),
            if_not_exists: false,
        };
        let call = |mut client: MapClient<Tokened>, request| async move { client.create_table(request).await };
        self.change("create table", message, call).map(drop)
    }

    fn table(&self, name: &TableName) -> MapResult<Arc<Table>> {
        let message = proto::DescribeTableRequest { table: wire::encode_table_name(name) };
        let call = |mut client: MapClient<Tokened>, request| async move { client.describe_table(request).await };
        let answer = self.read("describe table", message, call)?;
        wire::decode_table(answer).map(Arc::new).map_err(|wrong| {
            let why = format!("the server's answer makes no sense: {wrong}");
            MapError::Damaged { what: format!("schema of table {name}"), why }
        })
    }

    fn tables(&self, namespace: &str) -> MapResult<Vec<String>> {
        let message = proto::ListTablesRequest { namespace: namespace.into() };
        let call = |mut client: MapClient<Tokened>, request| async move { client.list_tables(request).await };
        self.read("list tables", message, call).map(|answer| answer.tables)
    }

    fn drop_table(&self, name: &TableName) -> MapResult<()> {
        let message = proto::DropTableRequest { table: wire::encode_table_name(name), if_exists: false };
        let call = |mut client: MapClient<Tokened>, request| async move { client.drop_table(request).await };
        self.change("drop table", message, call).map(drop)
    }

    fn truncate_table(&self, name: &TableName) -> MapResult<()> {
        let message = proto::TruncateTableRequest { table: wire::encode_table_name(name) };
        let call = |mut client: MapClient<Tokened>, request| async move { client.truncate_table(request).await };
        self.change("truncate table", message, call).map(drop)
    }

    fn rename_table(&self, name: &TableName, to: &str) -> MapResult<()> {
        let message = proto::RenameTableRequest { table: wire::encode_table_name(name), to: to.into() };
        let call = |mut client: MapClient<Tokened>, request| async move { client.rename_table(request).await };
        self.change("rename table", message, call).map(drop)
    }

    fn alter_table(&self, name: &TableName, change: &Alter) -> MapResult<()> {
        let message = proto::AlterTableRequest {
            table: wire::encode_table_name(name),
            change: Some(wire::encode_alter(change)),
            if_needed: false,
        };
        let call = |mut client: MapClient<Tokened>, request| async move { client.alter_table(request).await };
        self.change("alter table", message, call).map(drop)
    }

    fn create_index(&self, name: &TableName, column: &str) -> MapResult<()> {
        let message = proto::CreateIndexRequest {
            table: wire::encode_table_name(name),
            column: column.into(),
            if_not_exists: false,
        };
        let call = |mut client: MapClient<Tokened>, request| async move { client.create_index(request).await };
        self.change("create index", message, call).map(drop)
    }

    fn drop_index(&self, name: &TableName, column: &str) -> MapResult<()> {
        let message =
            proto::DropIndexRequest { table: wire::encode_table_name(name), column: column.into(), if_exists: false };
        let call = |mut client: MapClient<Tokened>, request| async move { client.drop_index(request).await };
        self.change("drop index", message, call).map(drop)
    }

    fn get(&self, get: &Get) -> MapResult<Option<Record>> {
        let call = |mut client: MapClient<Tokened>, request| async move { client.get(request).await };
        let answer = self.read("get", wire::encode_get(get), call)?;
        let record = answer.record.map(wire::decode_record).transpose();
        record.map_err(|wrong| failure::error("get", &nonsense("get", &wrong), false))
    }

    fn scan(&self, scan: &Scan) -> MapResult<Page> {
        let (whole, timeout) = (!scan.order_by.is_empty(), self.timeout);
        self.read("scan", wire::encode_scan(scan), move |client, request| page(client, request, whole, timeout))
    }

    fn mutate(&self, mutations: &[Mutation], durability: Durability) -> MapResult<Completion<()>> {
        let call = |mut client: MapClient<Tokened>, request| async move { client.mutate(request).await };
        let answer = self.change("mutate", wire::encode_mutate(mutations, durability), call)?;
        // That a condition was not met is known, even if the row that it met is not understood.
        let told = answer.outcome.is_some();
        match wire::decode_outcome(answer) {
            Ok(done) => done.map(|()| Completion::ready(Ok(()))),
            Err(wrong) => Err(failure::error("mutate", &nonsense("mutate", &wrong), !told)),
        }
    }
}
