//! Scans over a stream: pages of the face as messages, no faster than the client reads.
//!
//! room in a channel of two → a page (on a thread that may wait) → message with its token → HTTP/2
//!
//! Pages are asked for with as many rows as made a message of about [`MESSAGE_BYTES`] before, so that every message
//! ends where a page does, and so has a token. A scan in another order is one page, cut into messages.
//!
//! Invariants:
//! 1. What is held for a client is a page on its way and two messages (in another order: what the face sorted).
//! 2. A client that is gone ends its scan.

use std::pin::Pin;
use std::sync::Arc;

use esker_map::{MapStorage, PageToken, Record, Scan, Table};
use esker_wire::map::{cell_bytes, encode_cell, encode_token};
use esker_wire::proto::map as proto;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::grpc::status::Told;
use crate::grpc::waiting::waiting;

/// Messages of a scan.
pub(crate) type Rows = Pin<Box<dyn Stream<Item = Result<proto::ScanResponse, Status>> + Send>>;

/// About how long a message is, in bytes.
const MESSAGE_BYTES: usize = 256 << 10;
/// Rows of the first page: what they take says how many the next one has.
const FIRST_ROWS: usize = 16;
/// Rows of a page, at most.
const PAGE_ROWS_MAX: usize = 4_096;
/// Messages that wait for the client to read them.
const UNREAD_MAX: usize = 2;

/// A scan under way.
struct Scanner {
    map: Arc<dyn MapStorage>,
    scan: Scan,
    /// Names of cells: the key's columns, then the others, as far as they are asked for.
    names: Vec<String>,
    /// Rows that may still be sent.
    left: usize,
    /// Rows of the next page.
    rows: usize,
    /// In another order: what is not sent yet.
    sorted: Option<std::vec::IntoIter<Record>>,
}

/// Names of the cells of rows, in the order in which a record has them.
fn names(table: &Table, wanted: &[String]) -> Vec<String> {
    let named = |id: u16| table.columns.iter().find(|column| column.id == id).map(|column| column.name.clone());
    let key = table.partition_key.iter().copied().chain(table.clustering_key.iter().map(|(id, _)| *id));
    let others = table.columns.iter().filter(|column| !table.is_key(column.id));
    let others = others.filter(|column| wanted.is_empty() || wanted.contains(&column.name));
    key.filter_map(named).chain(others.map(|column| column.name.clone())).collect()
}

impl Scanner {
    /// The next message, and whether it is the last.
    fn next(&mut self) -> Result<(proto::ScanResponse, bool), Told> {
        if let Some(sorted) = &mut self.sorted {
            let message = message(&self.names, sorted, None);
            return Ok((message, sorted.len() == 0));
        }
        if !self.scan.order_by.is_empty() {
            self.scan.limit = if self.left == usize::MAX { 0 } else { self.left };
            self.sorted = Some(self.map.scan(&self.scan)?.records.into_iter());
            return self.next();
        }
        self.scan.limit = self.rows.min(self.left);
        let page = self.map.scan(&self.scan)?;
        let count = page.records.len();
        self.left = self.left.saturating_sub(count);
        let end = page.next.is_none() || self.left == 0;
        let mut records = page.records.into_iter();
        let (message, bytes) = cells(&self.names, &mut records, usize::MAX, page.next.as_ref());
        if let Some(average) = bytes.checked_div(count) {
            self.rows = (MESSAGE_BYTES / average.max(1)).clamp(1, PAGE_ROWS_MAX);
        }
        self.scan.page = page.next;
        Ok((message, end))
    }
}

fn message(
    names: &[String],
    records: &mut std::vec::IntoIter<Record>,
    token: Option<&PageToken>,
) -> proto::ScanResponse {
    cells(names, records, MESSAGE_BYTES, token).0
}

/// Records as a message of about `bytes_max`, and how long it is about.
fn cells(
    names: &[String],
    records: &mut std::vec::IntoIter<Record>,
    bytes_max: usize,
    token: Option<&PageToken>,
) -> (proto::ScanResponse, usize) {
    let mut bytes = 0;
    let mut rows = Vec::with_capacity(records.len().min(PAGE_ROWS_MAX));
    while bytes < bytes_max
        && let Some(record) = records.next()
    {
        let mut cells = Vec::with_capacity(record.columns.len());
        for (name, value) in record.columns {
            // Columns of records come in the order of the names: what lies between is absent.
            let Some(ahead) = names[cells.len()..].iter().position(|known| *known == name) else { continue };
            cells.resize_with(cells.len() + ahead, || encode_cell(None));
            let cell = encode_cell(Some(value));
            bytes += cell_bytes(&cell);
            cells.push(cell);
        }
        bytes += 2 * cells.len() + if record.expires_ms.is_some() { 10 } else { 0 };
        rows.push(proto::Row { cells, expires_ms: record.expires_ms });
    }
    (proto::ScanResponse { columns: names.to_vec(), rows, next_page_token: encode_token(token) }, bytes)
}

/// Begins a scan: its first message is made before this returns, so that what is wrong with it is the call's error.
pub(crate) async fn start(
    map: Arc<dyn MapStorage>,
    scan: Scan,
    permit: OwnedSemaphorePermit,
    mut stopping: watch::Receiver<bool>,
) -> Result<Rows, Told> {
    let (scanner, first) = waiting(move || {
        let mut table = map.table(&scan.table)?;
        loop {
            let (map, scan) = (Arc::clone(&map), scan.clone());
            let (names, left) = (names(&table, &scan.columns), if scan.limit == 0 { usize::MAX } else { scan.limit });
            let mut scanner = Scanner { map, scan, names, left, rows: FIRST_ROWS, sorted: None };
            let first = scanner.next()?;
            // The names are those of the schema that the rows were read by. Later pages are of the same, or their token
            // is refused.
            let now = scanner.map.table(&scanner.scan.table)?;
            if (now.id, now.generation) == (table.id, table.generation) {
                return Ok((scanner, first));
            }
            table = now;
        }
    })
    .await?;
    let (messages, unread) = mpsc::channel(UNREAD_MAX);
    tokio::spawn(async move {
        let _permit = permit;
        let stopped = async move { drop(stopping.wait_for(|stopping| *stopping).await) };
        tokio::select! {
            () = run(scanner, first, &messages) => {}
            () = messages.closed() => {}
            () = stopped => {
                // A client that does not read is not waited for.
                let _ = messages.try_send(Err(Told::stopping().into()));
            }
        }
    });
    Ok(Box::pin(ReceiverStream::new(unread)))
}

async fn run(
    mut scanner: Scanner,
    (first, mut end): (proto::ScanResponse, bool),
    messages: &mpsc::Sender<Result<proto::ScanResponse, Status>>,
) {
    if messages.send(Ok(first)).await.is_err() {
        return;
    }
    while !end {
        // Room first: what waits for its client reads nothing.
        let Ok(room) = messages.reserve().await else { return };
        let read = waiting(move || {
            let next = scanner.next();
            Ok((scanner, next))
        });
        match read.await {
            Ok((again, Ok((message, last)))) => {
                (scanner, end) = (again, last);
                room.send(Ok(message));
            }
            Ok((_, Err(told))) | Err(told) => return room.send(Err(told.into())),
        }
    }
}
