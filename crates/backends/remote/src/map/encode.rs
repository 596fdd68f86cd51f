//! The map face's types as messages.

use esker_map::{
    Alter, Bound, Change, Compare, Condition, DataType, Durability, Filter, Get, Mutation, Order, Over, Scan, Schema,
    TableName, Value, Values,
};

use crate::proto::map as proto;

pub(super) fn table(name: &TableName) -> Option<proto::Table> {
    Some(proto::Table { namespace: name.namespace.clone(), table: name.table.clone() })
}

fn data_type(data_type: DataType) -> i32 {
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

fn order(order: Order) -> i32 {
    match order {
        Order::Asc => proto::Order::Asc.into(),
        Order::Desc => proto::Order::Desc.into(),
    }
}

fn value(value: Option<&Value>) -> Option<proto::Value> {
    use proto::value::Value as P;
    let told = match value {
        None => P::Null(proto::Null {}),
        Some(Value::Boolean(value)) => P::Boolean(*value),
        Some(Value::Int(value)) => P::Int(*value),
        Some(Value::BigInt(value)) => P::Bigint(*value),
        Some(Value::Float(value)) => P::Float(*value),
        Some(Value::Double(value)) => P::Double(*value),
        Some(Value::Text(value)) => P::Text(value.clone()),
        Some(Value::Blob(value)) => P::Blob(value.clone()),
        Some(Value::Date(value)) => P::Date(*value),
        Some(Value::Time(value)) => P::Time(*value),
        Some(Value::Timestamp(value)) => P::Timestamp(*value),
        Some(Value::TimestampTz(value)) => P::Timestamptz(*value),
    };
    Some(proto::Value { value: Some(told) })
}

fn columns(values: &Values) -> Vec<proto::Column> {
    values.iter().map(|(name, one)| proto::Column { name: name.clone(), value: value(Some(one)) }).collect()
}

fn column_type(name: &str, column: DataType) -> proto::ColumnType {
    proto::ColumnType { name: name.into(), r#type: data_type(column) }
}

pub(super) fn schema(schema: &Schema) -> proto::Schema {
    let clustering =
        |(name, rises): &(String, Order)| proto::ClusteringColumn { name: name.clone(), order: order(*rises) };
    proto::Schema {
        columns: schema.columns().iter().map(|(name, column)| column_type(name, *column)).collect(),
        partition_key: schema.partition_key().to_vec(),
        clustering_key: schema.clustering_key().iter().map(clustering).collect(),
        indexes: schema.indexes().to_vec(),
    }
}

pub(super) fn alter(change: &Alter) -> proto::alter_table_request::Change {
    use proto::alter_table_request::Change as P;
    match change {
        Alter::AddColumn(name, column) => P::AddColumn(column_type(name, *column)),
        Alter::DropColumn(name) => P::DropColumn(name.clone()),
        Alter::RenameColumn(column, to) => {
            P::RenameColumn(proto::RenameColumn { column: column.clone(), to: to.clone() })
        }
        Alter::ChangeType(name, column) => P::ChangeType(column_type(name, *column)),
    }
}

fn filter(filter: &Filter) -> proto::Filter {
    use proto::filter::Filter as P;
    let each = |filters: &[Filter]| proto::Filters { filters: filters.iter().map(self::filter).collect() };
    let told = match filter {
        Filter::All(filters) => P::All(each(filters)),
        Filter::Any(filters) => P::Any(each(filters)),
        Filter::Compare(column, compare, with) => {
            let compare = match compare {
                Compare::Equal => proto::Compare::Equal,
                Compare::NotEqual => proto::Compare::NotEqual,
                Compare::Less => proto::Compare::Less,
                Compare::LessOrEqual => proto::Compare::LessOrEqual,
                Compare::Greater => proto::Compare::Greater,
                Compare::GreaterOrEqual => proto::Compare::GreaterOrEqual,
            };
            P::Compare(proto::Comparison { column: column.clone(), compare: compare.into(), value: value(Some(with)) })
        }
        Filter::IsNull(column) => P::IsNull(column.clone()),
        Filter::IsNotNull(column) => P::IsNotNull(column.clone()),
        Filter::Like { column, pattern, escape, negated } => P::Like(proto::Like {
            column: column.clone(),
            pattern: pattern.clone(),
            escape: escape.map(String::from).unwrap_or_default(),
            negated: *negated,
        }),
    };
    proto::Filter { filter: Some(told) }
}

/// A filter; one that always holds is left out.
fn filter_unless_always(one: &Filter) -> Option<proto::Filter> {
    (*one != Filter::always()).then(|| filter(one))
}

pub(super) fn get(get: &Get) -> proto::GetRequest {
    proto::GetRequest {
        table: table(&get.table),
        key: columns(&get.key.0),
        columns: get.columns.clone(),
        filter: filter_unless_always(&get.filter),
        consistency: proto::Consistency::Strong.into(),
    }
}

fn bound(bound: &Bound) -> proto::Bound {
    proto::Bound { values: columns(&bound.values), exclusive: !bound.inclusive }
}

pub(super) fn scan(scan: &Scan) -> proto::ScanRequest {
    use proto::scan_request::Over as P;
    let over = match &scan.over {
        Over::Partition { key, low, high } => P::Partition(proto::PartitionRange {
            key: columns(key),
            low: low.as_ref().map(bound),
            high: high.as_ref().map(bound),
        }),
        Over::Index(name, is) => P::Index(proto::Column { name: name.clone(), value: value(Some(is)) }),
        Over::All => P::All(proto::AllRows {}),
    };
    let by = |(column, rises): &(String, Order)| proto::OrderBy { column: column.clone(), order: order(*rises) };
    proto::ScanRequest {
        table: table(&scan.table),
        over: Some(over),
        reverse: scan.reverse,
        columns: scan.columns.clone(),
        filter: filter_unless_always(&scan.filter),
        order_by: scan.order_by.iter().map(by).collect(),
        limit: scan.limit as u64,
        page_token: scan.page.as_ref().map_or_else(Default::default, |token| token.0.clone().into()),
        consistency: proto::Consistency::Strong.into(),
    }
}

fn mutation(mutation: &Mutation) -> proto::Mutation {
    use proto::condition::Condition as If;
    use proto::mutation::Change as P;
    let change = match &mutation.change {
        Change::Put { columns, expires_ms } => {
            let column = |(name, one): &(String, Option<Value>)| proto::Column {
                name: name.clone(),
                value: value(one.as_ref()),
            };
            P::Put(proto::Put { columns: columns.iter().map(column).collect(), expires_ms: *expires_ms })
        }
        Change::Delete => P::Delete(proto::Delete {}),
    };
    let condition = match &mutation.condition {
        Condition::Always => None,
        Condition::Exists => Some(If::Exists(true)),
        Condition::NotExists => Some(If::NotExists(true)),
        Condition::If(holds) => Some(If::Holds(filter(holds))),
    };
    proto::Mutation {
        table: table(&mutation.table),
        key: columns(&mutation.key.0),
        change: Some(change),
        condition: condition.map(|condition| proto::Condition { condition: Some(condition) }),
    }
}

pub(super) fn mutate(mutations: &[Mutation], durability: Durability) -> proto::MutateRequest {
    proto::MutateRequest {
        mutations: mutations.iter().map(mutation).collect(),
        applied_only: durability == Durability::Applied,
        always: durability == Durability::Always,
    }
}
