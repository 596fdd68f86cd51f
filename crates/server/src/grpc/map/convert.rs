//! Messages to the map face's types and back.
//!
//! Invariants:
//! 1. What makes no sense is refused here or by the face, never guessed: an enum's unknown number, a value that says
//!    nothing, null in a key.
//! 2. Filters are at most [`FILTER_DEPTH_MAX`] deep, so that looking at one takes little of a thread's stack.

use esker_map::{
    Alter, Atomicity, Bound, Change, Compare, Condition, DataType, Filter, Get, Key, MUTATIONS_MAX, MapCapability,
    Mutation, Order, Over, PageToken, Record, Scan, Schema, Table, TableName, Value, Values,
};

use crate::grpc::proto::map as proto;
use crate::grpc::status::Told;

/// How deep filters may be: one inside another.
const FILTER_DEPTH_MAX: usize = 16;

pub(super) fn table(message: Option<proto::Table>) -> Result<TableName, Told> {
    let message = message.ok_or_else(|| Told::invalid("the request names no table"))?;
    Ok(TableName::new(message.namespace, message.table))
}

fn data_type(number: i32, column: &str) -> Result<DataType, Told> {
    use proto::DataType as P;
    Ok(match P::try_from(number) {
        Ok(P::Boolean) => DataType::Boolean,
        Ok(P::Int) => DataType::Int,
        Ok(P::Bigint) => DataType::BigInt,
        Ok(P::Float) => DataType::Float,
        Ok(P::Double) => DataType::Double,
        Ok(P::Text) => DataType::Text,
        Ok(P::Blob) => DataType::Blob,
        Ok(P::Date) => DataType::Date,
        Ok(P::Time) => DataType::Time,
        Ok(P::Timestamp) => DataType::Timestamp,
        Ok(P::Timestamptz) => DataType::TimestampTz,
        Ok(P::Unspecified) | Err(_) => {
            return Err(Told::invalid(format!("type {number} of column {column:?} is not known")));
        }
    })
}

fn told_type(data_type: DataType) -> i32 {
    use proto::DataType as P;
    let told = match data_type {
        DataType::Boolean => P::Boolean,
        DataType::Int => P::Int,
        DataType::BigInt => P::Bigint,
        DataType::Float => P::Float,
        DataType::Double => P::Double,
        DataType::Text => P::Text,
        DataType::Blob => P::Blob,
        DataType::Date => P::Date,
        DataType::Time => P::Time,
        DataType::Timestamp => P::Timestamp,
        DataType::TimestampTz => P::Timestamptz,
    };
    told.into()
}

fn order(number: i32) -> Result<Order, Told> {
    match proto::Order::try_from(number) {
        Ok(proto::Order::Asc) => Ok(Order::Asc),
        Ok(proto::Order::Desc) => Ok(Order::Desc),
        Err(_) => Err(Told::invalid(format!("order {number} is not known"))),
    }
}

fn told_order(order: Order) -> i32 {
    match order {
        Order::Asc => proto::Order::Asc.into(),
        Order::Desc => proto::Order::Desc.into(),
    }
}

/// A value; `None` is null.
fn value(message: Option<proto::Value>, column: &str) -> Result<Option<Value>, Told> {
    use proto::value::Value as P;
    let value = message.and_then(|message| message.value);
    let value = value.ok_or_else(|| Told::invalid(format!("column {column:?} has no value (null is one)")))?;
    Ok(Some(match value {
        P::Null(_) => return Ok(None),
        P::Boolean(value) => Value::Boolean(value),
        P::Int(value) => Value::Int(value),
        P::Bigint(value) => Value::BigInt(value),
        P::Float(value) => Value::Float(value),
        P::Double(value) => Value::Double(value),
        P::Text(value) => Value::Text(value),
        P::Blob(value) => Value::Blob(value),
        P::Date(value) => Value::Date(value),
        P::Time(value) => Value::Time(value),
        P::Timestamp(value) => Value::Timestamp(value),
        P::Timestamptz(value) => Value::TimestampTz(value),
    }))
}

/// A value as a message; `None` is null.
pub(super) fn told_value(value: Option<Value>) -> proto::Value {
    use proto::value::Value as P;
    let told = match value {
        None => P::Null(proto::Null {}),
        Some(Value::Boolean(value)) => P::Boolean(value),
        Some(Value::Int(value)) => P::Int(value),
        Some(Value::BigInt(value)) => P::Bigint(value),
        Some(Value::Float(value)) => P::Float(value),
        Some(Value::Double(value)) => P::Double(value),
        Some(Value::Text(value)) => P::Text(value),
        Some(Value::Blob(value)) => P::Blob(value),
        Some(Value::Date(value)) => P::Date(value),
        Some(Value::Time(value)) => P::Time(value),
        Some(Value::Timestamp(value)) => P::Timestamp(value),
        Some(Value::TimestampTz(value)) => P::Timestamptz(value),
    };
    proto::Value { value: Some(told) }
}

/// About how many bytes a value takes in a message.
pub(super) fn value_bytes(value: &proto::Value) -> usize {
    use proto::value::Value as P;
    match &value.value {
        Some(P::Text(text)) => 6 + text.len(),
        Some(P::Blob(bytes)) => 6 + bytes.len(),
        _ => 9,
    }
}

/// A value that may not be null.
fn some_value(message: Option<proto::Value>, column: &str) -> Result<Value, Told> {
    let value = value(message, column)?;
    value.ok_or_else(|| Told::invalid(format!("column {column:?}: null is no value of a key, a bound or a comparison")))
}

fn values(columns: Vec<proto::Column>) -> Result<Values, Told> {
    let one = |column: proto::Column| Ok((column.name.clone(), some_value(column.value, &column.name)?));
    columns.into_iter().map(one).collect()
}

/// A row as a message.
pub(super) fn told_record(record: Record) -> proto::Record {
    let column = |(name, value)| proto::Column { name, value: Some(told_value(value)) };
    let expires_ms = record.expires_ms;
    proto::Record { columns: record.columns.into_iter().map(column).collect(), expires_ms }
}

pub(super) fn schema(message: Option<proto::Schema>) -> Result<Schema, Told> {
    let message = message.ok_or_else(|| Told::invalid("the request has no schema"))?;
    let mut schema = Schema::new();
    for column in message.columns {
        let data_type = data_type(column.r#type, &column.name)?;
        schema = schema.column(column.name, data_type);
    }
    for name in message.partition_key {
        schema = schema.partition(name);
    }
    for column in message.clustering_key {
        schema = schema.clustering(column.name, order(column.order)?);
    }
    Ok(message.indexes.into_iter().fold(schema, Schema::index))
}

/// A table's schema as a message.
pub(super) fn told_table(table: &Table) -> proto::DescribeTableResponse {
    let named = |id: u16| table.columns.iter().find(|column| column.id == id).map(|column| column.name.clone());
    let schema = proto::Schema {
        columns: table
            .columns
            .iter()
            .map(|column| proto::ColumnType { name: column.name.clone(), r#type: told_type(column.data_type) })
            .collect(),
        partition_key: table.partition_key.iter().filter_map(|id| named(*id)).collect(),
        clustering_key: table
            .clustering_key
            .iter()
            .filter_map(|(id, order)| Some(proto::ClusteringColumn { name: named(*id)?, order: told_order(*order) }))
            .collect(),
        // One that is being built is there for nobody who reads.
        indexes: table.indexes.iter().filter(|index| !index.building).filter_map(|index| named(index.column)).collect(),
    };
    proto::DescribeTableResponse { schema: Some(schema), id: table.id, generation: table.generation }
}

pub(super) fn alter(change: Option<proto::alter_table_request::Change>) -> Result<Alter, Told> {
    use proto::alter_table_request::Change as P;
    Ok(match change.ok_or_else(|| Told::invalid("the request says no change"))? {
        P::AddColumn(column) => {
            let data_type = data_type(column.r#type, &column.name)?;
            Alter::AddColumn(column.name, data_type)
        }
        P::DropColumn(name) => Alter::DropColumn(name),
        P::RenameColumn(rename) => Alter::RenameColumn(rename.column, rename.to),
        P::ChangeType(column) => {
            let data_type = data_type(column.r#type, &column.name)?;
            Alter::ChangeType(column.name, data_type)
        }
    })
}

fn compare(number: i32) -> Result<Compare, Told> {
    use proto::Compare as P;
    Ok(match P::try_from(number) {
        Ok(P::Equal) => Compare::Equal,
        Ok(P::NotEqual) => Compare::NotEqual,
        Ok(P::Less) => Compare::Less,
        Ok(P::LessOrEqual) => Compare::LessOrEqual,
        Ok(P::Greater) => Compare::Greater,
        Ok(P::GreaterOrEqual) => Compare::GreaterOrEqual,
        Ok(P::Unspecified) | Err(_) => return Err(Told::invalid(format!("compare {number} is not known"))),
    })
}

/// A filter, of which one that is left out always holds.
fn filter(message: Option<proto::Filter>) -> Result<Filter, Told> {
    message.map_or_else(|| Ok(Filter::always()), |message| filter_at(message, 1))
}

fn filter_at(message: proto::Filter, depth: usize) -> Result<Filter, Told> {
    use proto::filter::Filter as P;
    if depth > FILTER_DEPTH_MAX {
        return Err(Told::invalid(format!("the filter is more than {FILTER_DEPTH_MAX} deep (FILTER_DEPTH_MAX)")));
    }
    let each = |filters: proto::Filters| -> Result<Vec<Filter>, Told> {
        filters.filters.into_iter().map(|filter| filter_at(filter, depth + 1)).collect()
    };
    Ok(match message.filter.ok_or_else(|| Told::invalid("a filter says nothing"))? {
        P::All(filters) => Filter::All(each(filters)?),
        P::Any(filters) => Filter::Any(each(filters)?),
        P::Compare(comparison) => {
            let value = some_value(comparison.value, &comparison.column)?;
            Filter::Compare(comparison.column, compare(comparison.compare)?, value)
        }
        P::IsNull(column) => Filter::IsNull(column),
        P::IsNotNull(column) => Filter::IsNotNull(column),
        P::Like(like) => {
            let mut escape = like.escape.chars();
            let (first, second) = (escape.next(), escape.next());
            if second.is_some() {
                return Err(Told::invalid(format!("escape {:?}: expected one character or none", like.escape)));
            }
            Filter::Like { column: like.column, pattern: like.pattern, escape: first, negated: like.negated }
        }
    })
}

fn check_consistency(number: i32) -> Result<(), Told> {
    // Reads are strong, which is good enough for whoever asks for less.
    match proto::Consistency::try_from(number) {
        Ok(_) => Ok(()),
        Err(_) => Err(Told::invalid(format!("consistency {number} is not known"))),
    }
}

pub(super) fn get(message: proto::GetRequest) -> Result<Get, Told> {
    check_consistency(message.consistency)?;
    Ok(Get {
        table: table(message.table)?,
        key: Key(values(message.key)?),
        columns: message.columns,
        filter: filter(message.filter)?,
    })
}

fn bound(message: Option<proto::Bound>) -> Result<Option<Bound>, Told> {
    let Some(message) = message else { return Ok(None) };
    Ok(Some(Bound { values: values(message.values)?, inclusive: !message.exclusive }))
}

/// A scan, and how many rows are asked for.
pub(super) fn scan(message: proto::ScanRequest) -> Result<(Scan, Option<u64>), Told> {
    use proto::scan_request::Over as P;
    check_consistency(message.consistency)?;
    let over = match message.over.ok_or_else(|| Told::invalid("the scan says not over what"))? {
        P::Partition(partition) => {
            Over::Partition { key: values(partition.key)?, low: bound(partition.low)?, high: bound(partition.high)? }
        }
        P::Index(column) => {
            let value = some_value(column.value, &column.name)?;
            Over::Index(column.name, value)
        }
        P::All(_) => Over::All,
    };
    let mut order_by = Vec::with_capacity(message.order_by.len());
    for by in message.order_by {
        order_by.push((by.column, order(by.order)?));
    }
    let scan = Scan {
        table: table(message.table)?,
        over,
        reverse: message.reverse,
        columns: message.columns,
        filter: filter(message.filter)?,
        order_by,
        limit: 0,
        page: (!message.page_token.is_empty()).then(|| PageToken(message.page_token.to_vec())),
    };
    Ok((scan, Some(message.limit).filter(|limit| *limit > 0)))
}

fn condition(message: Option<proto::Condition>) -> Result<Condition, Told> {
    use proto::condition::Condition as P;
    let Some(message) = message else { return Ok(Condition::Always) };
    match message.condition {
        Some(P::Exists(true)) => Ok(Condition::Exists),
        Some(P::NotExists(true)) => Ok(Condition::NotExists),
        Some(P::Holds(filter)) => Ok(Condition::If(filter_at(filter, 1)?)),
        Some(P::Exists(false) | P::NotExists(false)) | None => {
            Err(Told::invalid("condition: expected exists = true, not_exists = true or holds"))
        }
    }
}

pub(super) fn mutation(message: proto::Mutation) -> Result<Mutation, Told> {
    use proto::mutation::Change as P;
    let change = match message.change.ok_or_else(|| Told::invalid("a mutation is neither put nor delete"))? {
        P::Put(put) => {
            let column = |column: proto::Column| Ok((column.name.clone(), value(column.value, &column.name)?));
            let columns = put.columns.into_iter().map(column).collect::<Result<Vec<_>, Told>>()?;
            Change::Put { columns, expires_ms: put.expires_ms }
        }
        P::Delete(_) => Change::Delete,
    };
    Ok(Mutation {
        table: table(message.table)?,
        key: Key(values(message.key)?),
        change,
        condition: condition(message.condition)?,
    })
}

pub(super) fn told_capability(able: MapCapability) -> proto::CapabilityResponse {
    let atomicity = match able.atomicity {
        Atomicity::Record => proto::Atomicity::Record,
        Atomicity::Partition => proto::Atomicity::Partition,
        Atomicity::Storage => proto::Atomicity::Storage,
    };
    proto::CapabilityResponse {
        storage: able.storage.into(),
        atomicity: atomicity.into(),
        indexes: able.indexes,
        filters: able.filters,
        expiry: able.expiry,
        persistent: able.persistent,
        mutations_max: MUTATIONS_MAX as u32,
    }
}
