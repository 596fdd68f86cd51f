//! Values and their types: eleven of them, totally ordered within each, null kept apart from absent.
//!
//! Invariant: two values of one type compare as their keys do byte by byte ([`crate::key`]).

use std::cmp::Ordering;
use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Nanoseconds of a day.
pub const DAY_NANOS: i64 = 86_400_000_000_000;

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum DataType {
    /// True or false; false is below true.
    Boolean = 1,
    /// 32 bits with sign.
    Int = 2,
    /// 64 bits with sign.
    BigInt = 3,
    /// 32 bits, IEEE 754, in total order: -NaN, -inf, ... , +inf, NaN; -0 is below +0.
    Float = 4,
    /// 64 bits, the same.
    Double = 5,
    /// UTF-8, ordered by its bytes.
    Text = 6,
    /// Bytes, in their order.
    Blob = 7,
    /// Days since 1970-01-01, 32 bits with sign.
    Date = 8,
    /// Nanoseconds since midnight, below [`DAY_NANOS`].
    Time = 9,
    /// Milliseconds since 1970-01-01 00:00:00, without a time zone.
    Timestamp = 10,
    /// Milliseconds since 1970-01-01 00:00:00 UTC.
    TimestampTz = 11,
}

impl DataType {
    /// All of them, with the names that they are written with.
    pub const ALL: [(Self, &'static str); 11] = [
        (Self::Boolean, "boolean"),
        (Self::Int, "int"),
        (Self::BigInt, "bigint"),
        (Self::Float, "float"),
        (Self::Double, "double"),
        (Self::Text, "text"),
        (Self::Blob, "blob"),
        (Self::Date, "date"),
        (Self::Time, "time"),
        (Self::Timestamp, "timestamp"),
        (Self::TimestampTz, "timestamptz"),
    ];

    /// The name that it is written with.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(one, _)| *one == self).map_or("", |(_, name)| name)
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.iter().map(|(one, _)| *one).find(|one| *one as u8 == number)
    }

    /// Whether every value of this type is one of `other` without loss. Anything is text, as it is displayed: a blob in
    /// hexadecimal digits.
    pub fn widens_to(self, other: Self) -> bool {
        use DataType as T;
        self == other
            || other == T::Text
            || matches!((self, other), (T::Int, T::BigInt) | (T::Int, T::Double) | (T::Float, T::Double))
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A value that is not null.
#[derive(Clone, Debug)]
pub enum Value {
    /// [`DataType::Boolean`]
    Boolean(bool),
    /// [`DataType::Int`]
    Int(i32),
    /// [`DataType::BigInt`]
    BigInt(i64),
    /// [`DataType::Float`]
    Float(f32),
    /// [`DataType::Double`]
    Double(f64),
    /// [`DataType::Text`]
    Text(String),
    /// [`DataType::Blob`]
    Blob(Bytes),
    /// [`DataType::Date`]
    Date(i32),
    /// [`DataType::Time`]
    Time(i64),
    /// [`DataType::Timestamp`]
    Timestamp(i64),
    /// [`DataType::TimestampTz`]
    TimestampTz(i64),
}

impl Value {
    /// Its type.
    pub fn data_type(&self) -> DataType {
        match self {
            Self::Boolean(_) => DataType::Boolean,
            Self::Int(_) => DataType::Int,
            Self::BigInt(_) => DataType::BigInt,
            Self::Float(_) => DataType::Float,
            Self::Double(_) => DataType::Double,
            Self::Text(_) => DataType::Text,
            Self::Blob(_) => DataType::Blob,
            Self::Date(_) => DataType::Date,
            Self::Time(_) => DataType::Time,
            Self::Timestamp(_) => DataType::Timestamp,
            Self::TimestampTz(_) => DataType::TimestampTz,
        }
    }

    /// The order of two values of one type; `None` for two types.
    pub fn compare(&self, other: &Self) -> Option<Ordering> {
        Some(match (self, other) {
            (Self::Boolean(a), Self::Boolean(b)) => a.cmp(b),
            (Self::Int(a), Self::Int(b)) | (Self::Date(a), Self::Date(b)) => a.cmp(b),
            (Self::BigInt(a), Self::BigInt(b))
            | (Self::Time(a), Self::Time(b))
            | (Self::Timestamp(a), Self::Timestamp(b))
            | (Self::TimestampTz(a), Self::TimestampTz(b)) => a.cmp(b),
            (Self::Float(a), Self::Float(b)) => a.total_cmp(b),
            (Self::Double(a), Self::Double(b)) => a.total_cmp(b),
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            (Self::Blob(a), Self::Blob(b)) => a.cmp(b),
            _ => return None,
        })
    }

    /// The value as one of `to`, where that loses nothing.
    pub(crate) fn widen(self, to: DataType) -> Option<Self> {
        if self.data_type() == to {
            return Some(self);
        }
        Some(match (self, to) {
            (Self::Int(value), DataType::BigInt) => Self::BigInt(value.into()),
            (Self::Int(value), DataType::Double) => Self::Double(value.into()),
            (Self::Float(value), DataType::Double) => Self::Double(value.into()),
            (value, DataType::Text) => Self::Text(value.to_string()),
            _ => return None,
        })
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.compare(other) == Some(Ordering::Equal)
    }
}

impl Eq for Value {}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean(value) => value.fmt(f),
            Self::Int(value) | Self::Date(value) => value.fmt(f),
            Self::BigInt(value) | Self::Time(value) | Self::Timestamp(value) | Self::TimestampTz(value) => value.fmt(f),
            Self::Float(value) => value.fmt(f),
            Self::Double(value) => value.fmt(f),
            Self::Text(value) => value.fmt(f),
            Self::Blob(value) => value.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
        }
    }
}

macro_rules! from {
    ($($from:ty => $variant:ident),*) => {
        $(impl From<$from> for Value {
            fn from(value: $from) -> Self {
                Self::$variant(value.into())
            }
        })*
    };
}

from!(bool => Boolean, i32 => Int, i64 => BigInt, f32 => Float, f64 => Double, &str => Text, String => Text, Bytes => Blob);
