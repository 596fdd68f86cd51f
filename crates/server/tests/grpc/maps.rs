//! The map over gRPC: values as they were put, conditions as answers, scans as far as they are read, errors by name.

use std::sync::Arc;
use std::time::Duration;

use esker_map::{Alter, MapStorage, TableName, Waist};
use esker_memory::MemoryStore;
use esker_server::grpc::Config;
use esker_wire::proto::map as proto;
use esker_wire::proto::map::map_client::MapClient;
use esker_wire::proto::map::mutate_response::Outcome;
use esker_wire::proto::map::scan_request::Over;
use esker_wire::proto::map::value::Value as V;
use tonic::transport::Channel;
use tonic::{Code, Request};

use crate::errors::check;
use crate::held::Held;
use crate::running::{Running, near};

const SOON: Duration = Duration::from_millis(150);
const LATE: Duration = Duration::from_secs(20);

type Client = MapClient<Channel>;

fn table(name: &str) -> Option<proto::Table> {
    Some(proto::Table { namespace: "ns".into(), table: name.into() })
}

fn column(name: &str, value: V) -> proto::Column {
    proto::Column { name: name.into(), value: Some(proto::Value { value: Some(value) }) }
}

fn typed(name: &str, data_type: proto::DataType) -> proto::ColumnType {
    proto::ColumnType { name: name.into(), r#type: data_type.into() }
}

fn text(text: &str) -> V {
    V::Text(text.into())
}

/// Partition p, clustering c falling; x indexed, y.
fn schema() -> proto::Schema {
    use proto::DataType as T;
    proto::Schema {
        columns: vec![typed("p", T::Text), typed("c", T::Int), typed("x", T::Bigint), typed("y", T::Text)],
        partition_key: vec!["p".into()],
        clustering_key: vec![proto::ClusteringColumn { name: "c".into(), order: proto::Order::Desc.into() }],
        indexes: vec!["x".into()],
    }
}

async fn with_table(server: &Running) -> Client {
    let mut client = server.map().await;
    client
        .create_namespace(proto::CreateNamespaceRequest { namespace: "ns".into(), ..Default::default() })
        .await
        .unwrap();
    let create = proto::CreateTableRequest { table: table("t"), schema: Some(schema()), if_not_exists: false };
    assert!(client.create_table(create).await.unwrap().into_inner().created);
    client
}

fn put(p: &str, c: i32, columns: Vec<proto::Column>) -> proto::Mutation {
    proto::Mutation {
        table: table("t"),
        key: vec![column("p", text(p)), column("c", V::Int(c))],
        change: Some(proto::mutation::Change::Put(proto::Put { columns, expires_ms: None })),
        condition: None,
    }
}

fn delete(p: &str, c: i32) -> proto::Mutation {
    proto::Mutation { change: Some(proto::mutation::Change::Delete(proto::Delete {})), ..put(p, c, Vec::new()) }
}

fn when(mutation: proto::Mutation, condition: proto::condition::Condition) -> proto::Mutation {
    proto::Mutation { condition: Some(proto::Condition { condition: Some(condition) }), ..mutation }
}

fn equals(name: &str, value: V) -> proto::Filter {
    let value = Some(proto::Value { value: Some(value) });
    let compare = proto::Comparison { column: name.into(), compare: proto::Compare::Equal.into(), value };
    proto::Filter { filter: Some(proto::filter::Filter::Compare(compare)) }
}

fn mutations(mutations: Vec<proto::Mutation>) -> proto::MutateRequest {
    proto::MutateRequest { mutations, applied_only: false, always: false }
}

async fn mutate(client: &mut Client, list: Vec<proto::Mutation>) -> Outcome {
    client.mutate(mutations(list)).await.unwrap().into_inner().outcome.unwrap()
}

fn get(p: &str, c: i32) -> proto::GetRequest {
    proto::GetRequest {
        table: table("t"),
        key: vec![column("p", text(p)), column("c", V::Int(c))],
        ..Default::default()
    }
}

fn partition(p: &str) -> proto::ScanRequest {
    let over = Over::Partition(proto::PartitionRange { key: vec![column("p", text(p))], low: None, high: None });
    proto::ScanRequest { table: table("t"), over: Some(over), ..Default::default() }
}

async fn messages(client: &mut Client, scan: proto::ScanRequest) -> Vec<proto::ScanResponse> {
    let mut stream = client.scan(scan).await.unwrap().into_inner();
    let mut all = Vec::new();
    while let Some(message) = tokio::time::timeout(LATE, stream.message()).await.unwrap().unwrap() {
        all.push(message);
    }
    all
}

/// The cells of a column over all rows; rows must have it.
fn cells(messages: &[proto::ScanResponse], name: &str) -> Vec<V> {
    let mut all = Vec::new();
    for message in messages {
        let at = message.columns.iter().position(|column| column == name).unwrap();
        all.extend(message.rows.iter().map(|row| row.cells[at].value.clone().unwrap()));
    }
    all
}

fn ints(messages: &[proto::ScanResponse], name: &str) -> Vec<i64> {
    let number = |value| match value {
        V::Int(number) => i64::from(number),
        V::Bigint(number) => number,
        other => panic!("{other:?}"),
    };
    cells(messages, name).into_iter().map(number).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_type_comes_back_as_it_was_put_and_null_is_not_absent() {
    use proto::DataType as T;
    let server = Running::in_memory();
    let mut client = server.map().await;
    client
        .create_namespace(proto::CreateNamespaceRequest { namespace: "ns".into(), ..Default::default() })
        .await
        .unwrap();
    let values = [
        ("boolean", T::Boolean, V::Boolean(true)),
        ("int", T::Int, V::Int(i32::MIN)),
        ("bigint", T::Bigint, V::Bigint(i64::MIN)),
        ("float", T::Float, V::Float(-0.5)),
        ("double", T::Double, V::Double(f64::MAX)),
        ("text", T::Text, text("日本語")),
        ("blob", T::Blob, V::Blob(vec![0, 255].into())),
        ("date", T::Date, V::Date(-1)),
        ("time", T::Time, V::Time(86_399_999_999_999)),
        ("timestamp", T::Timestamp, V::Timestamp(-1)),
        ("timestamptz", T::Timestamptz, V::Timestamptz(i64::MAX)),
    ];
    let mut columns: Vec<_> = values.iter().map(|(name, data_type, _)| typed(name, *data_type)).collect();
    columns.extend([typed("key", T::Int), typed("nothing", T::Text), typed("absent", T::Text)]);
    let schema = proto::Schema { columns, partition_key: vec!["key".into()], ..Default::default() };
    let create = proto::CreateTableRequest { table: table("all"), schema: Some(schema.clone()), if_not_exists: false };
    client.create_table(create.clone()).await.unwrap();
    let again = proto::CreateTableRequest { if_not_exists: true, ..create };
    assert!(!client.create_table(again).await.unwrap().into_inner().created);
    let described = client.describe_table(proto::DescribeTableRequest { table: table("all") }).await.unwrap();
    assert_eq!(described.into_inner().schema.unwrap(), schema);

    let key = vec![column("key", V::Int(1))];
    let mut put: Vec<_> = values.iter().map(|(name, _, value)| column(name, value.clone())).collect();
    put.push(column("nothing", V::Null(proto::Null {})));
    let mut expected = key.clone();
    expected.extend(put.iter().cloned());
    let change = Some(proto::mutation::Change::Put(proto::Put { columns: put, expires_ms: None }));
    let put = proto::Mutation { table: table("all"), key: key.clone(), change, condition: None };
    assert_eq!(mutate(&mut client, vec![put]).await, Outcome::Applied(proto::Applied {}));
    let get = proto::GetRequest { table: table("all"), key, ..Default::default() };
    let record = client.get(get).await.unwrap().into_inner().record.unwrap();
    assert_eq!(record.columns, expected);
    let all =
        proto::ScanRequest { table: table("all"), over: Some(Over::All(proto::AllRows {})), ..Default::default() };
    let scanned = messages(&mut client, all).await;
    let row = &scanned[0].rows[0];
    let named: Vec<_> = scanned[0].columns.iter().cloned().zip(row.cells.iter().cloned()).collect();
    let present = |record: Vec<proto::Column>| -> Vec<_> {
        record.into_iter().map(|column| (column.name, column.value.unwrap())).collect()
    };
    assert_eq!(named, present(expected), "cells at the end that are absent may be left out");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_condition_that_does_not_hold_is_an_answer_with_the_row_and_nothing_is_changed() {
    use proto::condition::Condition as If;
    let server = Running::in_memory();
    let mut client = with_table(&server).await;
    let fresh = || when(put("p", 1, vec![column("x", V::Bigint(1))]), If::NotExists(true));
    assert_eq!(mutate(&mut client, vec![fresh()]).await, Outcome::Applied(proto::Applied {}));
    let Outcome::ConditionFailed(failed) = mutate(&mut client, vec![put("q", 1, Vec::new()), fresh()]).await else {
        panic!("the row is there")
    };
    let current = vec![column("p", text("p")), column("c", V::Int(1)), column("x", V::Bigint(1))];
    assert_eq!((failed.mutation, failed.current), (1, Some(proto::Record { columns: current, expires_ms: None })));
    assert_eq!(client.get(get("q", 1)).await.unwrap().into_inner().record, None);
    let Outcome::ConditionFailed(failed) = mutate(&mut client, vec![when(delete("q", 1), If::Exists(true))]).await
    else {
        panic!("there is no such row")
    };
    assert_eq!((failed.mutation, failed.current), (0, None));
    let update = when(put("p", 1, vec![column("x", V::Bigint(2))]), If::Holds(equals("x", V::Bigint(1))));
    assert_eq!(mutate(&mut client, vec![update]).await, Outcome::Applied(proto::Applied {}));
    let filtered = |x| proto::GetRequest { filter: Some(equals("x", V::Bigint(x))), ..get("p", 1) };
    assert_eq!(client.get(filtered(1)).await.unwrap().into_inner().record, None);
    assert!(client.get(filtered(2)).await.unwrap().into_inner().record.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn conditional_updates_of_many_clients_lose_none() {
    use proto::condition::Condition as If;
    let server = Running::in_memory();
    let mut client = with_table(&server).await;
    mutate(&mut client, vec![put("p", 1, vec![column("x", V::Bigint(0))])]).await;
    let mut clients = Vec::new();
    for _ in 0..6 {
        let mut client = server.map().await;
        clients.push(tokio::spawn(async move {
            for _ in 0..30 {
                loop {
                    let record = client.get(get("p", 1)).await.unwrap().into_inner().record.unwrap();
                    let x = record.columns.into_iter().find(|column| column.name == "x").unwrap();
                    let Some(V::Bigint(x)) = x.value.unwrap().value else { panic!("no number") };
                    let put = put("p", 1, vec![column("x", V::Bigint(x + 1))]);
                    let update = when(put, If::Holds(equals("x", V::Bigint(x))));
                    if mutate(&mut client, vec![update]).await == Outcome::Applied(proto::Applied {}) {
                        break;
                    }
                }
            }
        }));
    }
    for client in clients {
        client.await.unwrap();
    }
    assert_eq!(ints(&messages(&mut client, partition("p")).await, "x"), [180]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mutation_is_answered_only_when_it_is_durable() {
    let store = Held::new();
    let server = Running::start(Arc::clone(&store) as _, near());
    let mut client = with_table(&server).await;
    let _holding = store.hold();
    let mut again = client.clone();
    let durable = tokio::spawn(async move { again.mutate(mutations(vec![put("p", 1, Vec::new())])).await });
    tokio::time::sleep(SOON).await;
    assert!(!durable.is_finished(), "answered before it was durable");
    let applied = proto::MutateRequest { applied_only: true, ..mutations(vec![put("p", 2, Vec::new())]) };
    tokio::time::timeout(LATE, client.mutate(applied)).await.unwrap().unwrap();
    let both = proto::MutateRequest { applied_only: true, always: true, ..mutations(vec![put("p", 2, Vec::new())]) };
    assert_eq!(client.mutate(both).await.unwrap_err().code(), Code::InvalidArgument);
    store.release();
    tokio::time::timeout(LATE, durable).await.unwrap().unwrap().unwrap();
    // A deadline is kept, whatever becomes of the mutation.
    let _holding = store.hold();
    let mut late = Request::new(mutations(vec![put("p", 3, Vec::new())]));
    late.metadata_mut().insert("grpc-timeout", "100m".parse().unwrap());
    let late = client.mutate(late).await.unwrap_err();
    assert!(matches!(late.code(), Code::DeadlineExceeded | Code::Cancelled), "{late}");
    assert!(late.metadata().get("esker-error").is_none());
    store.release();
}

async fn fill(client: &mut Client, p: &str, rows: i32, bytes: usize) {
    let filling = "y".repeat(bytes);
    for first in (0..rows).step_by(500) {
        let list = (first..(first + 500).min(rows))
            .map(|c| put(p, c, vec![column("x", V::Bigint(i64::from(c % 7))), column("y", text(&filling))]));
        mutate(client, list.collect()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_goes_on_from_every_token_after_a_restart_too() {
    let store: Arc<dyn esker_store::ObjectStore> = Arc::new(MemoryStore::new());
    let mut server = Running::start(Arc::clone(&store), near());
    let mut client = with_table(&server).await;
    fill(&mut client, "p", 3_000, 300).await;
    fill(&mut client, "other", 10, 10).await;
    let all = messages(&mut client, partition("p")).await;
    let falling: Vec<i64> = (0..3_000).rev().collect();
    assert_eq!(ints(&all, "c"), falling);
    assert!(all.len() >= 4, "{} messages", all.len());
    for message in &all {
        let bytes = prost::Message::encoded_len(message);
        assert!(bytes < 600 << 10, "a message of {bytes} bytes");
    }
    server.stop().unwrap();
    drop(client);
    let server = Running::start(store, near());
    let mut client = server.map().await;
    let mut seen = 0;
    for message in &all {
        seen += message.rows.len();
        if message.next_page_token.is_empty() {
            assert_eq!(seen, 3_000, "a message in the middle without a token");
            continue;
        }
        let rest = proto::ScanRequest { page_token: message.next_page_token.clone(), ..partition("p") };
        assert_eq!(ints(&messages(&mut client, rest).await, "c"), falling[seen..]);
    }
    // Pages of a client's choice.
    let (mut pages, mut token) = (Vec::new(), Default::default());
    loop {
        let page = proto::ScanRequest { limit: 700, page_token: token, columns: vec!["x".into()], ..partition("p") };
        let page = messages(&mut client, page).await;
        assert_eq!(page[0].columns, ["p", "c", "x"]);
        token = page.last().unwrap().next_page_token.clone();
        pages.extend(page);
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(ints(&pages, "c"), falling);
    let foreign = proto::ScanRequest { page_token: all[0].next_page_token.clone(), ..partition("other") };
    check(client.scan(foreign).await, Code::InvalidArgument, "page-token", "not of this scan");
}

#[tokio::test(flavor = "multi_thread")]
async fn scans_take_ranges_orders_indexes_and_filters() {
    let server = Running::in_memory();
    let mut client = with_table(&server).await;
    fill(&mut client, "p", 50, 3).await;
    let c = |value| vec![column("c", V::Int(value))];
    let ranged = |reverse| {
        let range = proto::PartitionRange {
            key: vec![column("p", text("p"))],
            low: Some(proto::Bound { values: c(10), exclusive: true }),
            high: Some(proto::Bound { values: c(14), exclusive: false }),
        };
        proto::ScanRequest { over: Some(Over::Partition(range)), reverse, ..partition("p") }
    };
    assert_eq!(ints(&messages(&mut client, ranged(false)).await, "c"), [14, 13, 12, 11]);
    assert_eq!(ints(&messages(&mut client, ranged(true)).await, "c"), [11, 12, 13, 14]);
    let limited = proto::ScanRequest { limit: 2, ..ranged(true) };
    assert_eq!(ints(&messages(&mut client, limited).await, "c"), [11, 12]);
    let index = proto::ScanRequest { over: Some(Over::Index(column("x", V::Bigint(3)))), ..partition("p") };
    let mut found = ints(&messages(&mut client, index).await, "c");
    found.sort_unstable();
    assert_eq!(found, [3, 10, 17, 24, 31, 38, 45]);
    let or = |filters| proto::Filter { filter: Some(proto::filter::Filter::Any(proto::Filters { filters })) };
    let either = or(vec![equals("c", V::Int(7)), equals("c", V::Int(40)), equals("y", text("no"))]);
    let filtered = proto::ScanRequest { filter: Some(either), ..partition("p") };
    assert_eq!(ints(&messages(&mut client, filtered.clone()).await, "c"), [40, 7]);
    let by = |column: &str, order: proto::Order| proto::OrderBy { column: column.into(), order: order.into() };
    let sorted = proto::ScanRequest {
        order_by: vec![by("x", proto::Order::Desc), by("c", proto::Order::Asc)],
        limit: 3,
        ..partition("p")
    };
    let sorted = messages(&mut client, sorted).await;
    assert_eq!((ints(&sorted, "x"), ints(&sorted, "c")), (vec![6; 3], vec![6, 13, 20]));
    assert!(sorted.iter().all(|message| message.next_page_token.is_empty()));
    let nothing = messages(&mut client, partition("nobody")).await;
    assert!(nothing.len() == 1 && nothing[0].rows.is_empty() && nothing[0].next_page_token.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn cells_stand_under_their_columns_whatever_is_absent() {
    let server = Running::in_memory();
    let mut client = with_table(&server).await;
    let (x, y) = (|| column("x", V::Bigint(5)), || column("y", text("why")));
    let null = column("x", V::Null(proto::Null {}));
    let list = [vec![], vec![y()], vec![x()], vec![null.clone(), y()]];
    let list = list.into_iter().zip(1..).map(|(columns, c)| put("p", c, columns));
    mutate(&mut client, list.collect()).await;
    let scanned = messages(&mut client, partition("p")).await;
    assert_eq!((scanned.len(), &scanned[0].columns[..]), (1, &["p", "c", "x", "y"].map(String::from)[..]));
    let rows: Vec<Vec<Option<V>>> =
        scanned[0].rows.iter().map(|row| row.cells.iter().map(|cell| cell.value.clone()).collect()).collect();
    let key = |c| vec![Some(text("p")), Some(V::Int(c))];
    let with = |c, more: &[Option<V>]| [key(c), more.to_vec()].concat();
    let null = null.value.unwrap().value;
    assert_eq!(
        rows,
        [
            with(4, &[null, Some(text("why"))]),
            with(3, &[Some(V::Bigint(5))]),
            with(2, &[None, Some(text("why"))]),
            with(1, &[]),
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_say_when_they_expire() {
    let server = Running::in_memory();
    let mut client = with_table(&server).await;
    let until = |c, expires_ms| {
        let change = Some(proto::mutation::Change::Put(proto::Put { columns: Vec::new(), expires_ms }));
        proto::Mutation { change, ..put("p", c, Vec::new()) }
    };
    let late = 1 << 50;
    mutate(&mut client, vec![until(1, Some(late)), until(2, None), until(3, Some(u64::MAX)), until(4, Some(1))]).await;
    let scanned = messages(&mut client, partition("p")).await;
    let expiries: Vec<_> = scanned[0].rows.iter().map(|row| row.expires_ms).collect();
    assert_eq!((ints(&scanned, "c"), expiries), (vec![3, 2, 1], vec![None, None, Some(late)]));
    let record = client.get(get("p", 1)).await.unwrap().into_inner().record.unwrap();
    assert_eq!(record.expires_ms, Some(late));
}

/// The server has taken its names from the schema, and before it looks whether that is still the one (an xattr),
/// another process gives a column another name.
#[tokio::test(flavor = "multi_thread")]
async fn names_of_cells_are_of_the_schema_that_the_rows_were_read_by() {
    let store = Held::new();
    let server = Running::start(Arc::clone(&store) as _, near());
    let mut client = with_table(&server).await;
    mutate(&mut client, vec![put("p", 1, vec![column("y", text("here"))])]).await;
    let other = Waist::open(Arc::clone(&store) as _, Arc::new(|| 1_700_000_000_000), [9; 32]).unwrap();
    store.before_xattr(move || {
        other.alter_table(&TableName::new("ns", "t"), &Alter::RenameColumn("y".into(), "z".into())).unwrap();
    });
    let scanned = messages(&mut client, partition("p")).await;
    assert_eq!(scanned[0].columns, ["p", "c", "x", "z"]);
    assert_eq!(cells(&scanned, "z"), [text("here")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_counts_over_all_messages_of_a_scan() {
    let server = Running::in_memory();
    let mut client = with_table(&server).await;
    fill(&mut client, "p", 3_000, 300).await;
    let falling: Vec<i64> = (0..3_000).rev().collect();
    for limit in [1, 15, 16, 17, 2_500, 3_000, 3_001] {
        let limited = messages(&mut client, proto::ScanRequest { limit, ..partition("p") }).await;
        let count = falling.len().min(limit as usize);
        assert_eq!(ints(&limited, "c"), falling[..count], "limit {limit}");
        let page_token = limited.last().unwrap().next_page_token.clone();
        if page_token.is_empty() {
            assert_eq!(count, falling.len(), "limit {limit}: the last message has no token");
            continue;
        }
        let rest = messages(&mut client, proto::ScanRequest { page_token, ..partition("p") }).await;
        assert_eq!(ints(&rest, "c"), falling[count..], "behind limit {limit}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_reads_only_as_far_as_its_client_and_ends_with_it() {
    let server = Running::start(Arc::new(MemoryStore::new()), Config { followers_max: 1, ..near() });
    let mut client = with_table(&server).await;
    fill(&mut client, "p", 8_000, 2_000).await;
    // A client that takes little ahead of its reader: on the wire is less than a message.
    let endpoint = Channel::from_shared(format!("http://{}", server.address)).unwrap();
    let narrow = endpoint.initial_stream_window_size(64 << 10).initial_connection_window_size(64 << 10);
    let mut narrow = MapClient::new(narrow.connect().await.unwrap());
    let mut stream = narrow.scan(partition("p")).await.unwrap().into_inner();
    tokio::time::sleep(2 * SOON).await;
    // The scan falls, with some 130 rows in a message. What goes now, seven of them down, it has not read yet.
    mutate(&mut client, vec![delete("p", 7_000)]).await;
    check(client.scan(partition("p")).await, Code::ResourceExhausted, "busy", "followers_max");
    let mut rows = 0;
    while let Some(message) = tokio::time::timeout(LATE, stream.message()).await.unwrap().unwrap() {
        rows += message.rows.len();
    }
    assert_eq!(rows, 7_999, "it was read ahead of its client");
    let stream = client.scan(partition("p")).await.unwrap();
    drop(stream);
    let began = std::time::Instant::now();
    while client.scan(partition("p")).await.is_err() {
        assert!(began.elapsed() < LATE, "the scan of a client that is gone goes on");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_are_listed_changed_and_dropped_and_what_is_missing_is_named() {
    use proto::alter_table_request::Change;
    let server = Running::in_memory();
    let mut client = with_table(&server).await;
    let c = &mut client;
    mutate(c, vec![put("p", 1, vec![column("x", V::Bigint(5)), column("y", text("seven"))])]).await;
    let alter = |change| proto::AlterTableRequest { table: table("t"), change: Some(change), if_needed: false };
    let needed = |change| proto::AlterTableRequest { if_needed: true, ..alter(change) };
    let z = || Change::AddColumn(typed("z", proto::DataType::Int));
    assert!(c.alter_table(alter(z())).await.unwrap().into_inner().changed);
    check(c.alter_table(alter(z())).await, Code::AlreadyExists, "column-exists", "z");
    assert!(!c.alter_table(needed(z())).await.unwrap().into_inner().changed);
    let rename = proto::RenameColumn { column: "y".into(), to: "why".into() };
    c.alter_table(alter(Change::RenameColumn(rename))).await.unwrap();
    c.alter_table(alter(Change::ChangeType(typed("z", proto::DataType::Bigint)))).await.unwrap();
    let loses = Change::ChangeType(typed("why", proto::DataType::Int));
    check(c.alter_table(alter(loses)).await, Code::InvalidArgument, "invalid", "without loss");
    check(c.alter_table(alter(Change::DropColumn("x".into()))).await, Code::InvalidArgument, "invalid", "index");
    let index = |column: &str| proto::DropIndexRequest { table: table("t"), column: column.into(), if_exists: false };
    assert!(c.drop_index(index("x")).await.unwrap().into_inner().dropped);
    check(c.drop_index(index("x")).await, Code::NotFound, "no-index", "x");
    let gone = proto::DropIndexRequest { if_exists: true, ..index("x") };
    assert!(!c.drop_index(gone).await.unwrap().into_inner().dropped);
    c.alter_table(alter(Change::DropColumn("x".into()))).await.unwrap();
    check(c.alter_table(alter(Change::DropColumn("x".into()))).await, Code::NotFound, "no-column", "x");
    assert!(!c.alter_table(needed(Change::DropColumn("x".into()))).await.unwrap().into_inner().changed);
    let make =
        |column: &str| proto::CreateIndexRequest { table: table("t"), column: column.into(), if_not_exists: true };
    assert!(c.create_index(make("why")).await.unwrap().into_inner().created);
    assert!(!c.create_index(make("why")).await.unwrap().into_inner().created);
    let found = proto::ScanRequest { over: Some(Over::Index(column("why", text("seven")))), ..partition("p") };
    assert_eq!(ints(&messages(c, found).await, "c"), [1]);

    let rename = proto::RenameTableRequest { table: table("t"), to: "renamed".into() };
    c.rename_table(rename.clone()).await.unwrap();
    let lost = c.rename_table(rename).await.unwrap_err();
    assert_eq!(lost.metadata().get_bin("esker-name-bin").unwrap().to_bytes().unwrap(), "ns.t");
    check(Err::<(), _>(lost), Code::NotFound, "no-table", "ns.t");
    let tables = c.list_tables(proto::ListTablesRequest { namespace: "ns".into() }).await.unwrap();
    assert_eq!(tables.into_inner().tables, ["renamed"]);
    let nowhere = proto::ListTablesRequest { namespace: "nowhere".into() };
    check(c.list_tables(nowhere).await, Code::NotFound, "no-namespace", "nowhere");
    c.truncate_table(proto::TruncateTableRequest { table: table("renamed") }).await.unwrap();
    let all =
        proto::ScanRequest { table: table("renamed"), over: Some(Over::All(proto::AllRows {})), ..Default::default() };
    assert!(messages(c, all).await.iter().all(|message| message.rows.is_empty()));
    let namespace = |if_exists| proto::DropNamespaceRequest { namespace: "ns".into(), if_exists };
    check(c.drop_namespace(namespace(false)).await, Code::FailedPrecondition, "not-empty", "renamed");
    let drop = |if_exists| proto::DropTableRequest { table: table("renamed"), if_exists };
    assert!(c.drop_table(drop(false)).await.unwrap().into_inner().dropped);
    assert!(!c.drop_table(drop(true)).await.unwrap().into_inner().dropped);
    check(c.drop_table(drop(false)).await, Code::NotFound, "no-table", "renamed");
    assert!(c.drop_namespace(namespace(false)).await.unwrap().into_inner().dropped);
    assert!(!c.drop_namespace(namespace(true)).await.unwrap().into_inner().dropped);
    check(c.drop_namespace(namespace(false)).await, Code::NotFound, "no-namespace", "ns");
    assert!(c.list_namespaces(proto::ListNamespacesRequest {}).await.unwrap().into_inner().namespaces.is_empty());
    let able = c.capability(proto::CapabilityRequest {}).await.unwrap().into_inner();
    assert_eq!((able.atomicity(), able.mutations_max), (proto::Atomicity::Storage, 16_384));
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_of_the_map_is_an_error_that_names_it() {
    use proto::condition::Condition as If;
    let server = Running::in_memory();
    let mut client = with_table(&server).await;
    let c = &mut client;
    let (bad, invalid) = (Code::InvalidArgument, "invalid");
    let one = |mutation| mutations(vec![mutation]);
    check(c.mutate(mutations(Vec::new())).await, bad, invalid, "MUTATIONS_MAX");
    check(c.mutate(mutations(vec![put("p", 1, Vec::new()); 16_385])).await, bad, invalid, "MUTATIONS_MAX");
    let unknown = put("p", 1, vec![column("nothing", V::Int(1))]);
    check(c.mutate(one(unknown)).await, Code::NotFound, "no-column", "nothing");
    check(c.mutate(one(put("p", 1, vec![column("x", V::Int(1))]))).await, bad, invalid, "column x is bigint, not int");
    let empty = proto::Column { name: "x".into(), value: Some(proto::Value::default()) };
    check(c.mutate(one(put("p", 1, vec![empty]))).await, bad, invalid, "\"x\" has no value");
    let keyless = proto::Mutation { key: vec![column("p", text("p"))], ..put("p", 1, Vec::new()) };
    check(c.mutate(one(keyless)).await, bad, invalid, "column c is missing");
    let null = vec![column("p", V::Null(proto::Null {})), column("c", V::Int(1))];
    check(c.mutate(one(proto::Mutation { key: null, ..put("p", 1, Vec::new()) })).await, bad, invalid, "\"p\": null");
    let long = put(&"long".repeat(300), 1, Vec::new());
    check(c.mutate(one(long)).await, bad, invalid, "KEY_BYTES_MAX");
    let neither = proto::Mutation { change: None, ..put("p", 1, Vec::new()) };
    check(c.mutate(one(neither)).await, bad, invalid, "neither put nor delete");
    check(c.mutate(one(proto::Mutation { table: None, ..delete("p", 1) })).await, bad, invalid, "no table");
    check(c.mutate(one(when(delete("p", 1), If::Exists(false)))).await, bad, invalid, "condition");
    let all = |filters| proto::Filter { filter: Some(proto::filter::Filter::All(proto::Filters { filters })) };
    check(c.mutate(one(when(delete("p", 1), If::Holds(all(Vec::new()))))).await, bad, invalid, "empty");
    let mut deep = equals("x", V::Bigint(1));
    for _ in 0..16 {
        deep = all(vec![deep]);
    }
    let scan = |filter| proto::ScanRequest { filter: Some(filter), ..partition("p") };
    check(c.scan(scan(deep)).await, bad, invalid, "FILTER_DEPTH_MAX");
    check(c.scan(scan(proto::Filter::default())).await, bad, invalid, "a filter says nothing");
    let like = |pattern: &str, escape: &str| {
        let like = proto::Like { column: "y".into(), pattern: pattern.into(), escape: escape.into(), negated: false };
        proto::Filter { filter: Some(proto::filter::Filter::Like(like)) }
    };
    check(c.scan(scan(like("a", "ab"))).await, bad, invalid, "escape");
    check(c.scan(scan(like("a\\", "\\"))).await, bad, invalid, "escape character");
    check(c.scan(proto::ScanRequest { over: None, ..partition("p") }).await, bad, invalid, "over what");
    check(c.scan(proto::ScanRequest { consistency: 9, ..partition("p") }).await, bad, invalid, "consistency 9");
    let garbage = proto::ScanRequest { page_token: "no token at all".into(), ..partition("p") };
    check(c.scan(garbage).await, bad, "page-token", "page token");
    let index = proto::ScanRequest { over: Some(Over::Index(column("y", text("a")))), ..partition("p") };
    check(c.scan(index).await, Code::NotFound, "no-index", "y");
    let elsewhere = proto::GetRequest { table: table("nothing"), ..get("p", 1) };
    check(c.get(elsewhere).await, Code::NotFound, "no-table", "ns.nothing");
    let schema = proto::Schema { columns: vec![proto::ColumnType { name: "a".into(), r#type: 99 }], ..schema() };
    let create = proto::CreateTableRequest { table: table("u"), schema: Some(schema), if_not_exists: false };
    check(c.create_table(create).await, bad, invalid, "type 99 of column \"a\"");
    let create = proto::CreateTableRequest { table: table("u"), schema: None, if_not_exists: false };
    check(c.create_table(create).await, bad, invalid, "no schema");
    let mut lost = Request::new(partition("p"));
    lost.metadata_mut().insert("authorization", "Bearer anything".parse().unwrap());
    c.scan(lost).await.unwrap();
}
