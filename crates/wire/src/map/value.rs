//! Values, their types and orders, and lists of named values.
//!
//! Invariant: null and "nothing is said" are two things: a value that is not there is refused where one must be.

use esker_map::{DataType, Order, Value, Values};

use crate::proto::map as proto;
use crate::{Error, Result};

pub(super) fn encode_type(data_type: DataType) -> i32 {
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

pub(super) fn decode_type(number: i32, column: &str) -> Result<DataType> {
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
            let why = format!("type {number} of column {column:?} is not known");
            return Err(Error::malformed("ColumnType.type", why));
        }
    })
}

pub(super) fn encode_order(order: Order) -> i32 {
    match order {
        Order::Asc => proto::Order::Asc.into(),
        Order::Desc => proto::Order::Desc.into(),
    }
}

pub(super) fn decode_order(field: &'static str, number: i32) -> Result<Order> {
    match proto::Order::try_from(number) {
        Ok(proto::Order::Asc) => Ok(Order::Asc),
        Ok(proto::Order::Desc) => Ok(Order::Desc),
        Err(_) => Err(Error::malformed(field, format!("order {number} is not known"))),
    }
}

/// A value; `None` is null.
pub(super) fn encode_value(value: Option<Value>) -> proto::Value {
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

/// A value; the inner `None` is null, the outer one says nothing.
pub(super) fn decode_value(message: proto::Value) -> Option<Option<Value>> {
    use proto::value::Value as P;
    Some(Some(match message.value? {
        P::Null(_) => return Some(None),
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

/// A column that is there; `None` is null.
pub(super) fn encode_column(name: String, value: Option<Value>) -> proto::Column {
    proto::Column { name, value: Some(encode_value(value)) }
}

/// A column that is there; `None` is null.
pub(super) fn decode_column(message: proto::Column) -> Result<(String, Option<Value>)> {
    let name = message.name;
    match message.value.and_then(decode_value) {
        Some(value) => Ok((name, value)),
        None => Err(Error::malformed("Column.value", format!("column {name:?} has no value (null is one)"))),
    }
}

/// A value that may not be null; `field` is where it stands, `column` what it is of.
pub(super) fn decode_some(field: &'static str, column: &str, message: Option<proto::Value>) -> Result<Value> {
    let nothing = || Error::malformed(field, format!("column {column:?} has no value (null is one)"));
    let null = || {
        let why = format!("column {column:?}: null is no value of a key, a bound or a comparison");
        Error::malformed(field, why)
    };
    message.and_then(decode_value).ok_or_else(nothing)?.ok_or_else(null)
}

/// Values of a key or a bound.
pub(super) fn encode_values(values: &Values) -> Vec<proto::Column> {
    values.iter().map(|(name, value)| encode_column(name.clone(), Some(value.clone()))).collect()
}

/// Values of a key or a bound; `field` is where they stand.
pub(super) fn decode_values(field: &'static str, columns: Vec<proto::Column>) -> Result<Values> {
    let one = |column: proto::Column| {
        let value = decode_some(field, &column.name, column.value)?;
        Ok((column.name, value))
    };
    columns.into_iter().map(one).collect()
}
