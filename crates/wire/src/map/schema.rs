//! Schemas: of tables to be made, of tables that are described, and what changes them.
//!
//! Invariant: columns and indexes have numbers on either side of their own; between the two they have names.

use esker_map::{Alter, COLUMNS_MAX, Column, Index, Order, Schema, Table};

use super::value::{decode_order, decode_type, encode_order, encode_type};
use crate::error::at_most;
use crate::proto::map as proto;
use crate::{Error, Result};

fn encode_column_type(name: &str, data_type: esker_map::DataType) -> proto::ColumnType {
    proto::ColumnType { name: name.into(), r#type: encode_type(data_type) }
}

fn encode_clustering(name: &str, order: Order) -> proto::ClusteringColumn {
    proto::ClusteringColumn { name: name.into(), order: encode_order(order) }
}

fn decode_clustering(column: proto::ClusteringColumn) -> Result<(String, Order)> {
    Ok((column.name, decode_order("ClusteringColumn.order", column.order)?))
}

/// The schema of a table that is to be made.
pub fn encode_schema(schema: &Schema) -> proto::Schema {
    proto::Schema {
        columns: schema.columns().iter().map(|(name, data_type)| encode_column_type(name, *data_type)).collect(),
        partition_key: schema.partition_key().to_vec(),
        clustering_key: schema.clustering_key().iter().map(|(name, order)| encode_clustering(name, *order)).collect(),
        indexes: schema.indexes().to_vec(),
    }
}

/// The schema of a table that is to be made; whether it makes sense is the map's to say.
///
/// # Errors
/// [`Error::Malformed`] if there is none, or a type or an order is not known.
pub fn decode_schema(message: Option<proto::Schema>) -> Result<Schema> {
    let nothing = || Error::malformed("CreateTableRequest.schema", "the request has no schema");
    let message = message.ok_or_else(nothing)?;
    let mut schema = Schema::new();
    for column in message.columns {
        let data_type = decode_type(column.r#type, &column.name)?;
        schema = schema.column(column.name, data_type);
    }
    for name in message.partition_key {
        schema = schema.partition(name);
    }
    for column in message.clustering_key {
        let (name, order) = decode_clustering(column)?;
        schema = schema.clustering(name, order);
    }
    Ok(message.indexes.into_iter().fold(schema, Schema::index))
}

/// A table that is described. An index that is being built is there for no reader, and is left out.
pub fn encode_table(table: &Table) -> proto::DescribeTableResponse {
    let named = |id: u16| table.column_numbered(id).map(|column| column.name.clone());
    let clustering = |(id, order): &(u16, Order)| Some(encode_clustering(&named(*id)?, *order));
    let ready = table.indexes.iter().filter(|index| !index.building);
    let schema = proto::Schema {
        columns: table.columns.iter().map(|column| encode_column_type(&column.name, column.data_type)).collect(),
        partition_key: table.partition_key.iter().filter_map(|id| named(*id)).collect(),
        clustering_key: table.clustering_key.iter().filter_map(clustering).collect(),
        indexes: ready.filter_map(|index| named(index.column)).collect(),
    };
    proto::DescribeTableResponse { schema: Some(schema), id: table.id, generation: table.generation }
}

/// A table that is described; its columns, then its indexes, are numbered as they are listed.
///
/// # Errors
/// [`Error::Malformed`] if there is no schema, a type or an order is not known, or a key or an index is of a column
/// that is not listed; [`Error::TooMany`] above [`COLUMNS_MAX`] columns or indexes.
pub fn decode_table(message: proto::DescribeTableResponse) -> Result<Table> {
    let nothing = || Error::malformed("DescribeTableResponse.schema", "the answer has no schema");
    let schema = message.schema.ok_or_else(nothing)?;
    // A column has one index at most.
    at_most("Schema.columns", schema.columns.len(), "COLUMNS_MAX", COLUMNS_MAX)?;
    at_most("Schema.indexes", schema.indexes.len(), "COLUMNS_MAX", COLUMNS_MAX)?;
    let (mut next, mut columns) = (0, Vec::with_capacity(schema.columns.len()));
    for column in schema.columns {
        let data_type = decode_type(column.r#type, &column.name)?;
        columns.push(Column { id: next, name: column.name, data_type });
        next += 1;
    }
    let numbered = |field, name: &String| {
        let found = columns.iter().find(|column| column.name == *name).map(|column| column.id);
        found.ok_or_else(|| Error::malformed(field, format!("column {name:?} is not listed")))
    };
    let partition_key = schema.partition_key.iter().map(|name| numbered("Schema.partition_key", name));
    let partition_key = partition_key.collect::<Result<_>>()?;
    let clustering = |column| {
        let (name, order) = decode_clustering(column)?;
        Ok((numbered("Schema.clustering_key", &name)?, order))
    };
    let clustering_key = schema.clustering_key.into_iter().map(clustering).collect::<Result<_>>()?;
    let mut indexes = Vec::with_capacity(schema.indexes.len());
    for name in &schema.indexes {
        indexes.push(Index { id: next, column: numbered("Schema.indexes", name)?, building: false });
        next += 1;
    }
    let (id, generation) = (message.id, message.generation);
    Ok(Table { id, generation, columns, partition_key, clustering_key, indexes, next })
}

/// A change of a table.
pub fn encode_alter(change: &Alter) -> proto::alter_table_request::Change {
    use proto::alter_table_request::Change as P;
    match change {
        Alter::AddColumn(name, data_type) => P::AddColumn(encode_column_type(name, *data_type)),
        Alter::DropColumn(name) => P::DropColumn(name.clone()),
        Alter::RenameColumn(column, to) => {
            P::RenameColumn(proto::RenameColumn { column: column.clone(), to: to.clone() })
        }
        Alter::ChangeType(name, data_type) => P::ChangeType(encode_column_type(name, *data_type)),
    }
}

/// A change of a table.
///
/// # Errors
/// [`Error::Malformed`] if there is none, or a type is not known.
pub fn decode_alter(change: Option<proto::alter_table_request::Change>) -> Result<Alter> {
    use proto::alter_table_request::Change as P;
    let typed = |column: proto::ColumnType| {
        let data_type = decode_type(column.r#type, &column.name)?;
        Ok((column.name, data_type))
    };
    let nothing = || Error::malformed("AlterTableRequest.change", "the request says no change");
    Ok(match change.ok_or_else(nothing)? {
        P::AddColumn(column) => typed(column).map(|(name, data_type)| Alter::AddColumn(name, data_type))?,
        P::DropColumn(name) => Alter::DropColumn(name),
        P::RenameColumn(rename) => Alter::RenameColumn(rename.column, rename.to),
        P::ChangeType(column) => typed(column).map(|(name, data_type)| Alter::ChangeType(name, data_type))?,
    })
}
