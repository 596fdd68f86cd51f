//! The service `esker.map.v1.Map` over any storage of the map.
//!
//! request → checked, as the face's types → call of the face on a thread that may wait → barrier awaited → answer
//!
//! Invariants:
//! 1. Nothing is answered before it may be shown: mutations when durable, unless asked for otherwise.
//! 2. A condition that does not hold is an answer; only what went wrong is an error.
//! 3. What a client makes the server hold is bounded: messages, scans, what of them is read ahead.

mod scan;

use std::sync::Arc;

use esker_map::{Error, MapStorage};
use esker_wire::map as wire;
use esker_wire::proto::map as proto;
use esker_wire::proto::map::map_server::Map;
use tokio::sync::{Semaphore, watch};
use tonic::{Request, Response, Status};

use super::caller::{Access, caller, permit};
use super::status::Told;
use super::waiting::{completed, waiting};
use crate::front::users::Face;
use scan::Rows;

/// The service.
pub(crate) struct MapService {
    map: Arc<dyn MapStorage>,
    scans: Arc<Semaphore>,
    stopping: watch::Receiver<bool>,
}

type Answer<T> = Result<Response<T>, Status>;

fn answer<T>(outcome: Result<T, Told>) -> Answer<T> {
    outcome.map(Response::new).map_err(Status::from)
}

/// Whether something was done; that there was nothing to do is an error unless it was expected.
fn unless(expected: bool, nothing_to_do: impl Fn(&Error) -> bool, done: Result<(), Error>) -> Result<bool, Told> {
    match done {
        Ok(()) => Ok(true),
        Err(error) if expected && nothing_to_do(&error) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn is_there(kind: &'static str) -> impl Fn(&Error) -> bool {
    move |error| matches!(error, Error::Exists { what, .. } if *what == kind)
}

fn is_missing(kind: &'static str) -> impl Fn(&Error) -> bool {
    move |error| matches!(error, Error::Missing { what, .. } if *what == kind)
}

impl MapService {
    pub(crate) fn new(map: Arc<dyn MapStorage>, scans_max: usize, stopping: watch::Receiver<bool>) -> Self {
        Self { map, scans: Arc::new(Semaphore::new(scans_max)), stopping }
    }

    /// Does something with the storage, on a thread that may wait.
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn MapStorage) -> Result<T, Told> + Send + 'static,
    ) -> Result<T, Told> {
        let map = Arc::clone(&self.map);
        waiting(move || work(&*map)).await
    }

    async fn mutated(&self, request: proto::MutateRequest) -> Result<proto::MutateResponse, Told> {
        let (mutations, durability) = wire::decode_mutate(request)?;
        let (applied, answer) = self
            .with(move |map| {
                let (applied, done) = match map.mutate(&mutations, durability) {
                    Ok(applied) => (Some(applied), Ok(())),
                    Err(error) => (None, Err(error)),
                };
                Ok((applied, wire::encode_outcome(done)?))
            })
            .await?;
        if let Some(applied) = applied {
            completed(applied).await?;
        }
        Ok(answer)
    }
}

/// Refuses what the user of a call may not do to a table: its name is `namespace.table` then.
fn permit_table<T>(request: &Request<T>, table: Option<&proto::Table>, access: Access) -> Result<(), Status> {
    // A call without a table is refused for that.
    let Some(proto::Table { namespace, table }) = table else { return Ok(()) };
    permit(request, Face::Map, &format!("{namespace}.{table}"), access)
}

#[tonic::async_trait]
impl Map for MapService {
    async fn capability(&self, _: Request<proto::CapabilityRequest>) -> Answer<proto::CapabilityResponse> {
        answer(self.with(|map| Ok(wire::encode_capability(map.capability()))).await)
    }

    async fn create_namespace(
        &self,
        request: Request<proto::CreateNamespaceRequest>,
    ) -> Answer<proto::CreateNamespaceResponse> {
        permit(&request, Face::Map, &request.get_ref().namespace, Access::Write)?;
        let proto::CreateNamespaceRequest { namespace, if_not_exists } = request.into_inner();
        let created =
            self.with(move |map| unless(if_not_exists, is_there("namespace"), map.create_namespace(&namespace)));
        answer(created.await.map(|created| proto::CreateNamespaceResponse { created }))
    }

    async fn drop_namespace(
        &self,
        request: Request<proto::DropNamespaceRequest>,
    ) -> Answer<proto::DropNamespaceResponse> {
        permit(&request, Face::Map, &request.get_ref().namespace, Access::Write)?;
        let proto::DropNamespaceRequest { namespace, if_exists } = request.into_inner();
        let dropped = self.with(move |map| {
            // The storage refuses that too; here it gets a name of its own.
            if let Some(table) = map.tables(&namespace).ok().and_then(|tables| tables.into_iter().next()) {
                let why = format!("namespace {namespace} has tables, {table} among them: drop them first");
                return Err(Told::not_empty(why));
            }
            unless(if_exists, is_missing("namespace"), map.drop_namespace(&namespace))
        });
        answer(dropped.await.map(|dropped| proto::DropNamespaceResponse { dropped }))
    }

    async fn list_namespaces(&self, _: Request<proto::ListNamespacesRequest>) -> Answer<proto::ListNamespacesResponse> {
        answer(self.with(|map| Ok(proto::ListNamespacesResponse { namespaces: map.namespaces()? })).await)
    }

    async fn create_table(&self, request: Request<proto::CreateTableRequest>) -> Answer<proto::CreateTableResponse> {
        permit_table(&request, request.get_ref().table.as_ref(), Access::Write)?;
        let request = request.into_inner();
        let outcome = async {
            let (name, schema) = (
                wire::decode_table_name("CreateTableRequest.table", request.table)?,
                wire::decode_schema(request.schema)?,
            );
            let needed = request.if_not_exists;
            let created =
                self.with(move |map| unless(needed, is_there("table"), map.create_table(&name, &schema))).await?;
            Ok(proto::CreateTableResponse { created })
        };
        answer(outcome.await)
    }

    async fn drop_table(&self, request: Request<proto::DropTableRequest>) -> Answer<proto::DropTableResponse> {
        permit_table(&request, request.get_ref().table.as_ref(), Access::Write)?;
        let request = request.into_inner();
        let outcome = async {
            let (name, needed) = (wire::decode_table_name("DropTableRequest.table", request.table)?, request.if_exists);
            let dropped = self.with(move |map| unless(needed, is_missing("table"), map.drop_table(&name))).await?;
            Ok(proto::DropTableResponse { dropped })
        };
        answer(outcome.await)
    }

    async fn truncate_table(
        &self,
        request: Request<proto::TruncateTableRequest>,
    ) -> Answer<proto::TruncateTableResponse> {
        permit_table(&request, request.get_ref().table.as_ref(), Access::Write)?;
        let outcome = async {
            let name = wire::decode_table_name("TruncateTableRequest.table", request.into_inner().table)?;
            self.with(move |map| Ok(map.truncate_table(&name)?)).await?;
            Ok(proto::TruncateTableResponse {})
        };
        answer(outcome.await)
    }

    async fn rename_table(&self, request: Request<proto::RenameTableRequest>) -> Answer<proto::RenameTableResponse> {
        permit_table(&request, request.get_ref().table.as_ref(), Access::Write)?;
        let renamed =
            request.get_ref().table.clone().map(|table| proto::Table { table: request.get_ref().to.clone(), ..table });
        permit_table(&request, renamed.as_ref(), Access::Write)?;
        let request = request.into_inner();
        let outcome = async {
            let name = wire::decode_table_name("RenameTableRequest.table", request.table)?;
            self.with(move |map| Ok(map.rename_table(&name, &request.to)?)).await?;
            Ok(proto::RenameTableResponse {})
        };
        answer(outcome.await)
    }

    async fn list_tables(&self, request: Request<proto::ListTablesRequest>) -> Answer<proto::ListTablesResponse> {
        let user = caller(&request)?;
        let namespace = request.into_inner().namespace;
        let tables = self.with(move |map| {
            let mut tables = map.tables(&namespace)?;
            tables.retain(|table| user.may(Face::Map, &format!("{namespace}.{table}"), false));
            Ok(proto::ListTablesResponse { tables })
        });
        answer(tables.await)
    }

    async fn describe_table(
        &self,
        request: Request<proto::DescribeTableRequest>,
    ) -> Answer<proto::DescribeTableResponse> {
        permit_table(&request, request.get_ref().table.as_ref(), Access::Read)?;
        let outcome = async {
            let name = wire::decode_table_name("DescribeTableRequest.table", request.into_inner().table)?;
            self.with(move |map| Ok(wire::encode_table(&*map.table(&name)?))).await
        };
        answer(outcome.await)
    }

    async fn alter_table(&self, request: Request<proto::AlterTableRequest>) -> Answer<proto::AlterTableResponse> {
        permit_table(&request, request.get_ref().table.as_ref(), Access::Write)?;
        let request = request.into_inner();
        let outcome = async {
            let (name, needed) =
                (wire::decode_table_name("AlterTableRequest.table", request.table)?, request.if_needed);
            let change = wire::decode_alter(request.change)?;
            let nothing_to_do = |error: &Error| is_there("column")(error) || is_missing("column")(error);
            let conditional = matches!(change, esker_map::Alter::AddColumn(..) | esker_map::Alter::DropColumn(..));
            let changed =
                self.with(move |map| unless(needed && conditional, nothing_to_do, map.alter_table(&name, &change)));
            Ok(proto::AlterTableResponse { changed: changed.await? })
        };
        answer(outcome.await)
    }

    async fn create_index(&self, request: Request<proto::CreateIndexRequest>) -> Answer<proto::CreateIndexResponse> {
        permit_table(&request, request.get_ref().table.as_ref(), Access::Write)?;
        let request = request.into_inner();
        let outcome = async {
            let (name, column, needed) = (
                wire::decode_table_name("CreateIndexRequest.table", request.table)?,
                request.column,
                request.if_not_exists,
            );
            let created =
                self.with(move |map| unless(needed, is_there("index"), map.create_index(&name, &column))).await?;
            Ok(proto::CreateIndexResponse { created })
        };
        answer(outcome.await)
    }

    async fn drop_index(&self, request: Request<proto::DropIndexRequest>) -> Answer<proto::DropIndexResponse> {
        permit_table(&request, request.get_ref().table.as_ref(), Access::Write)?;
        let request = request.into_inner();
        let outcome = async {
            let (name, column, needed) =
                (wire::decode_table_name("DropIndexRequest.table", request.table)?, request.column, request.if_exists);
            let dropped =
                self.with(move |map| unless(needed, is_missing("index"), map.drop_index(&name, &column))).await?;
            Ok(proto::DropIndexResponse { dropped })
        };
        answer(outcome.await)
    }

    async fn get(&self, request: Request<proto::GetRequest>) -> Answer<proto::GetResponse> {
        permit_table(&request, request.get_ref().table.as_ref(), Access::Read)?;
        let outcome = async {
            let get = wire::decode_get(request.into_inner())?;
            let record = self.with(move |map| Ok(map.get(&get)?)).await?;
            Ok(proto::GetResponse { record: record.map(wire::encode_record) })
        };
        answer(outcome.await)
    }

    type ScanStream = Rows;

    async fn scan(&self, request: Request<proto::ScanRequest>) -> Answer<Self::ScanStream> {
        permit_table(&request, request.get_ref().table.as_ref(), Access::Read)?;
        let outcome = async {
            let permit = Arc::clone(&self.scans).try_acquire_owned();
            let Ok(permit) = permit else {
                return Err(Told::busy("too many scans: the server's followers_max is reached"));
            };
            let scan = wire::decode_scan(request.into_inner())?;
            scan::start(Arc::clone(&self.map), scan, permit, self.stopping.clone()).await
        };
        answer(outcome.await)
    }

    async fn mutate(&self, request: Request<proto::MutateRequest>) -> Answer<proto::MutateResponse> {
        for mutation in &request.get_ref().mutations {
            permit_table(&request, mutation.table.as_ref(), Access::Write)?;
        }
        answer(self.mutated(request.into_inner()).await)
    }
}
