//! Gets and scans.
//!
//! Invariant: reads are asked for as strong ones; who asks for less gets a strong one, which is good enough.

use esker_map::{Bound, Get, Key, Order, Over, Scan};

use super::filter::{decode_filter_of_read, encode_filter_of_read};
use super::rows::{decode_token, encode_token};
use super::table_name::{decode_table_name, encode_table_name};
use super::value::{decode_order, decode_some, decode_values, encode_column, encode_order, encode_values};
use crate::proto::map as proto;
use crate::{Error, Result};

fn check_consistency(field: &'static str, number: i32) -> Result<()> {
    match proto::Consistency::try_from(number) {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::malformed(field, format!("consistency {number} is not known"))),
    }
}

/// A read of one row.
pub fn encode_get(get: &Get) -> proto::GetRequest {
    proto::GetRequest {
        table: encode_table_name(&get.table),
        key: encode_values(&get.key.0),
        columns: get.columns.clone(),
        filter: encode_filter_of_read(&get.filter),
        consistency: proto::Consistency::Strong.into(),
    }
}

/// A read of one row.
///
/// # Errors
/// [`Error::Malformed`] if it names no table, a value is null or not there, the consistency is not known, or its filter
/// makes no sense.
pub fn decode_get(message: proto::GetRequest) -> Result<Get> {
    check_consistency("GetRequest.consistency", message.consistency)?;
    Ok(Get {
        table: decode_table_name("GetRequest.table", message.table)?,
        key: Key(decode_values("GetRequest.key", message.key)?),
        columns: message.columns,
        filter: decode_filter_of_read(message.filter)?,
    })
}

fn encode_bound(bound: &Bound) -> proto::Bound {
    proto::Bound { values: encode_values(&bound.values), exclusive: !bound.inclusive }
}

fn decode_bound(message: proto::Bound) -> Result<Bound> {
    Ok(Bound { values: decode_values("Bound.values", message.values)?, inclusive: !message.exclusive })
}

fn encode_over(over: &Over) -> proto::scan_request::Over {
    use proto::scan_request::Over as P;
    match over {
        Over::Partition { key, low, high } => P::Partition(proto::PartitionRange {
            key: encode_values(key),
            low: low.as_ref().map(encode_bound),
            high: high.as_ref().map(encode_bound),
        }),
        Over::Index(name, value) => P::Index(encode_column(name.clone(), Some(value.clone()))),
        Over::All => P::All(proto::AllRows {}),
    }
}

fn decode_over(message: Option<proto::scan_request::Over>) -> Result<Over> {
    use proto::scan_request::Over as P;
    Ok(match message.ok_or_else(|| Error::malformed("ScanRequest.over", "the scan says not over what"))? {
        P::Partition(partition) => Over::Partition {
            key: decode_values("PartitionRange.key", partition.key)?,
            low: partition.low.map(decode_bound).transpose()?,
            high: partition.high.map(decode_bound).transpose()?,
        },
        P::Index(column) => {
            let value = decode_some("ScanRequest.index", &column.name, column.value)?;
            Over::Index(column.name, value)
        }
        P::All(_) => Over::All,
    })
}

/// A scan.
pub fn encode_scan(scan: &Scan) -> proto::ScanRequest {
    let by = |(column, order): &(String, Order)| proto::OrderBy { column: column.clone(), order: encode_order(*order) };
    proto::ScanRequest {
        table: encode_table_name(&scan.table),
        over: Some(encode_over(&scan.over)),
        reverse: scan.reverse,
        columns: scan.columns.clone(),
        filter: encode_filter_of_read(&scan.filter),
        order_by: scan.order_by.iter().map(by).collect(),
        limit: scan.limit as u64,
        page_token: encode_token(scan.page.as_ref()),
        consistency: proto::Consistency::Strong.into(),
    }
}

/// A scan; its limit is that of all its pages together, one above what this machine can count as good as none.
///
/// # Errors
/// As [`decode_get`]; [`Error::Malformed`] too if it does not say over what, or an order is not known.
pub fn decode_scan(message: proto::ScanRequest) -> Result<Scan> {
    check_consistency("ScanRequest.consistency", message.consistency)?;
    let by = |by: proto::OrderBy| Ok((by.column, decode_order("OrderBy.order", by.order)?));
    Ok(Scan {
        over: decode_over(message.over)?,
        order_by: message.order_by.into_iter().map(by).collect::<Result<_>>()?,
        table: decode_table_name("ScanRequest.table", message.table)?,
        reverse: message.reverse,
        columns: message.columns,
        filter: decode_filter_of_read(message.filter)?,
        limit: usize::try_from(message.limit).unwrap_or(usize::MAX),
        page: decode_token(&message.page_token),
    })
}
