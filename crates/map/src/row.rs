//! A stored row: what it holds by column number, as bytes.
//!
//! Row: version u8 · flags u8 (1: it expires) · number of columns u16 · expiry u64 if flagged · columns in order of
//! number: number u16, type u8 (0: null), value: 1, 4 or 8 bytes, or length u32 and bytes. All little-endian.
//!
//! Invariants:
//! 1. A column that is absent takes no bytes; null takes three.
//! 2. What stands under a number that the table does not have (any more) is kept out of records, and goes with the next
//! change of the row.
//! 3. Decoding checks every length; stored bytes never panic.

use std::collections::BTreeMap;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::record::NEVER_MS;
use crate::schema::Table;
use crate::value::{DataType, Value};
use crate::{Error, Result};

/// Longest row as it is stored, in bytes (16 MiB), its before-images left aside. With them it has at most what the
/// store takes in a value, which is more than twice as much: any row fits beside its before-image.
pub const ROW_BYTES_MAX: usize = 16 << 20;
/// A column with this before the name of another holds that one's before-image: what it was before a transaction that
/// is not decided yet.
pub const BEFORE_PREFIX: &str = "before_";

/// Version of rows that this code writes, and the highest that it reads.
pub(crate) const ROW_VERSION: u8 = 1;
const EXPIRES: u8 = 1;

/// A row as it is stored, its key apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Columns that are there, by number; `None` is null.
    pub columns: BTreeMap<u16, Option<Value>>,
    /// When it goes by itself, in unix milliseconds.
    pub expires_ms: Option<u64>,
}

impl Row {
    /// As stored; see the module.
    pub(crate) fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(16 + 16 * self.columns.len());
        bytes.put_u8(ROW_VERSION);
        bytes.put_u8(if self.expires_ms.is_some() { EXPIRES } else { 0 });
        bytes.put_u16_le(self.columns.len() as u16);
        if let Some(expires) = self.expires_ms {
            bytes.put_u64_le(expires);
        }
        for (id, value) in &self.columns {
            bytes.put_u16_le(*id);
            let Some(value) = value else {
                bytes.put_u8(0);
                continue;
            };
            bytes.put_u8(value.data_type() as u8);
            match value {
                Value::Boolean(value) => bytes.put_u8(u8::from(*value)),
                Value::Int(value) | Value::Date(value) => bytes.put_i32_le(*value),
                Value::BigInt(value) | Value::Time(value) | Value::Timestamp(value) | Value::TimestampTz(value) => {
                    bytes.put_i64_le(*value);
                }
                Value::Float(value) => bytes.put_f32_le(*value),
                Value::Double(value) => bytes.put_f64_le(*value),
                Value::Text(value) => {
                    bytes.put_u32_le(value.len() as u32);
                    bytes.put_slice(value.as_bytes());
                }
                Value::Blob(value) => {
                    bytes.put_u32_le(value.len() as u32);
                    bytes.put_slice(value);
                }
            }
        }
        bytes.freeze()
    }

    /// Refuses a row that is longer than [`ROW_BYTES_MAX`]; `bytes` is all of it, as [`Row::encode`] made it.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the limit.
    pub(crate) fn check_len(&self, table: &Table, bytes: usize) -> Result<()> {
        if bytes <= ROW_BYTES_MAX {
            return Ok(());
        }
        let is_image = |id: u16| {
            let name = table.column_numbered(id).and_then(|column| column.name.strip_prefix(BEFORE_PREFIX));
            name.is_some_and(|name| table.column(name).is_ok())
        };
        let images = self.columns.iter().filter(|(id, _)| is_image(**id));
        let own = bytes - images.map(|(_, value)| column_len(value.as_ref())).sum::<usize>();
        if own > ROW_BYTES_MAX {
            return Err(Error::invalid("row", format!("{own} bytes exceed ROW_BYTES_MAX = {ROW_BYTES_MAX}")));
        }
        Ok(())
    }

    pub(crate) fn decode(bytes: &Bytes) -> std::result::Result<Self, String> {
        let mut at = bytes.clone();
        let short = || format!("{} bytes, too few for a row", bytes.len());
        let need = |at: &Bytes, len: usize| if at.len() < len { Err(short()) } else { Ok(()) };
        need(&at, 4)?;
        let (version, flags, count) = (at.get_u8(), at.get_u8(), at.get_u16_le());
        if version > ROW_VERSION {
            return Err(format!("row of version {version}, this program reads up to {ROW_VERSION}"));
        }
        let mut row = Self::default();
        if flags & EXPIRES != 0 {
            need(&at, 8)?;
            row.expires_ms = Some(at.get_u64_le());
        }
        for _ in 0..count {
            need(&at, 3)?;
            let (id, number) = (at.get_u16_le(), at.get_u8());
            if number == 0 {
                row.columns.insert(id, None);
                continue;
            }
            let data_type = DataType::from_number(number).ok_or_else(|| format!("type {number} of column {id}"))?;
            let value = match data_type {
                DataType::Boolean => {
                    need(&at, 1)?;
                    Value::Boolean(at.get_u8() != 0)
                }
                DataType::Int | DataType::Date | DataType::Float => {
                    need(&at, 4)?;
                    match data_type {
                        DataType::Int => Value::Int(at.get_i32_le()),
                        DataType::Date => Value::Date(at.get_i32_le()),
                        _ => Value::Float(at.get_f32_le()),
                    }
                }
                DataType::Text | DataType::Blob => {
                    need(&at, 4)?;
                    let len = at.get_u32_le() as usize;
                    need(&at, len)?;
                    let part = at.split_to(len);
                    if data_type == DataType::Blob {
                        Value::Blob(part)
                    } else {
                        let text = String::from_utf8(part.to_vec())
                            .map_err(|_| format!("text of column {id} is not UTF-8"))?;
                        Value::Text(text)
                    }
                }
                _ => {
                    need(&at, 8)?;
                    match data_type {
                        DataType::BigInt => Value::BigInt(at.get_i64_le()),
                        DataType::Time => Value::Time(at.get_i64_le()),
                        DataType::Timestamp => Value::Timestamp(at.get_i64_le()),
                        DataType::TimestampTz => Value::TimestampTz(at.get_i64_le()),
                        _ => Value::Double(at.get_f64_le()),
                    }
                }
            };
            row.columns.insert(id, Some(value));
        }
        if at.is_empty() { Ok(row) } else { Err(format!("{} bytes too many", at.len())) }
    }

    /// Whether it has gone by itself by `now_ms` (unix milliseconds).
    pub fn expired(&self, now_ms: u64) -> bool {
        self.expires_ms.is_some_and(|expires| expires <= now_ms)
    }

    /// When it goes by itself, in unix milliseconds, if it ever does.
    pub fn expiry(&self) -> Option<u64> {
        self.expires_ms.filter(|at| *at != NEVER_MS)
    }

    /// A column's value as the table has its type now: absent, null or a value.
    pub fn column(&self, table: &Table, id: u16) -> Option<Option<Value>> {
        let column = table.column_numbered(id)?;
        let value = self.columns.get(&id)?;
        Some(value.clone().and_then(|value| value.widen(column.data_type)))
    }
}

/// Bytes that a column takes in a row.
fn column_len(value: Option<&Value>) -> usize {
    3 + match value {
        None => 0,
        Some(Value::Boolean(_)) => 1,
        Some(Value::Int(_) | Value::Date(_) | Value::Float(_)) => 4,
        Some(Value::Text(text)) => 4 + text.len(),
        Some(Value::Blob(blob)) => 4 + blob.len(),
        Some(_) => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        let values = [
            Some(Value::Boolean(true)),
            None,
            Some(Value::Int(-5)),
            Some(Value::Double(0.5)),
            Some(Value::Text("text".into())),
            Some(Value::Blob(Bytes::from_static(&[0, 255]))),
            Some(Value::Time(7)),
            Some(Value::TimestampTz(-1)),
            Some(Value::Date(9)),
            Some(Value::Float(-0.0)),
            Some(Value::BigInt(i64::MIN)),
            Some(Value::Timestamp(1)),
        ];
        Row { columns: (3..).zip(values).collect(), expires_ms: Some(12) }
    }

    #[test]
    fn rows_are_read_back_and_cut_ones_are_not() {
        let bytes = row().encode();
        assert_eq!(Row::decode(&bytes), Ok(row()));
        let columns: usize = row().columns.values().map(|value| column_len(value.as_ref())).sum();
        assert_eq!(4 + 8 + columns, bytes.len());
        for end in 0..bytes.len() {
            assert!(Row::decode(&bytes.slice(..end)).is_err(), "cut to {end}");
        }
        let mut newer = bytes.to_vec();
        newer[0] = 2;
        assert!(Row::decode(&newer.into()).unwrap_err().contains("version 2"));
    }

    #[test]
    fn any_bytes_are_read_without_panic() {
        let mut rng = fastrand::Rng::with_seed(2);
        let bytes = row().encode();
        for _ in 0..20_000 {
            let mut broken = bytes.to_vec();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(..broken.len());
                broken[at] = rng.u8(..);
            }
            let _ = Row::decode(&broken.into());
        }
    }
}
