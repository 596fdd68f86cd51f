//! Keys: values as bytes whose order is the order of the values, each part rising or falling.
//!
//! A part is of fixed width, or (text and blob) escaped and ended, so that a part that begins like another sorts before
//! it. Falling parts have all bits turned over. Encoding can be undone.
//!
//! | type | bytes |
//! |---|---|
//! | boolean | 0 or 1 |
//! | int, date | 4, big-endian, sign turned over |
//! | bigint, time, timestamps | 8, the same |
//! | float, double | 4 or 8, big-endian; sign turned over, or all bits if negative |
//! | text, blob | each 0 as 0, 255; at the end 0, 1 |
//!
//! Invariant: byte order of two keys of one shape is the order of their values, part by part.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::value::{DataType, Value};

/// In which direction a clustering column rises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// From low to high.
    #[default]
    Asc,
    /// From high to low.
    Desc,
}

/// Adds a part to a key.
pub(crate) fn push(key: &mut Vec<u8>, value: &Value, order: Order) {
    let start = key.len();
    match value {
        Value::Boolean(value) => key.push(u8::from(*value)),
        Value::Int(value) | Value::Date(value) => key.extend((*value as u32 ^ 1 << 31).to_be_bytes()),
        Value::BigInt(value) | Value::Time(value) | Value::Timestamp(value) | Value::TimestampTz(value) => {
            key.extend((*value as u64 ^ 1 << 63).to_be_bytes());
        }
        Value::Float(value) => {
            let bits = value.to_bits();
            key.extend((if bits >> 31 == 0 { bits ^ 1 << 31 } else { !bits }).to_be_bytes());
        }
        Value::Double(value) => {
            let bits = value.to_bits();
            key.extend((if bits >> 63 == 0 { bits ^ 1 << 63 } else { !bits }).to_be_bytes());
        }
        Value::Text(value) => push_escaped(key, value.as_bytes()),
        Value::Blob(value) => push_escaped(key, value),
    }
    if order == Order::Desc {
        key[start..].iter_mut().for_each(|byte| *byte = !*byte);
    }
}

fn push_escaped(key: &mut Vec<u8>, bytes: &[u8]) {
    for byte in bytes {
        key.push(*byte);
        if *byte == 0 {
            key.push(255);
        }
    }
    key.extend([0, 1]);
}

/// Takes a part off the front of a key.
pub(crate) fn pop(key: &mut &[u8], data_type: DataType, order: Order) -> Option<Value> {
    let turn = |byte: u8| if order == Order::Desc { !byte } else { byte };
    let mut fixed = |width: usize| -> Option<u64> {
        let (part, rest) = key.split_at_checked(width)?;
        *key = rest;
        Some(part.iter().fold(0, |number, byte| number << 8 | u64::from(turn(*byte))))
    };
    Some(match data_type {
        DataType::Boolean => Value::Boolean(match fixed(1)? {
            0 => false,
            1 => true,
            _ => return None,
        }),
        DataType::Int => Value::Int((fixed(4)? as u32 ^ 1 << 31) as i32),
        DataType::Date => Value::Date((fixed(4)? as u32 ^ 1 << 31) as i32),
        DataType::BigInt => Value::BigInt((fixed(8)? ^ 1 << 63) as i64),
        DataType::Time => Value::Time((fixed(8)? ^ 1 << 63) as i64),
        DataType::Timestamp => Value::Timestamp((fixed(8)? ^ 1 << 63) as i64),
        DataType::TimestampTz => Value::TimestampTz((fixed(8)? ^ 1 << 63) as i64),
        DataType::Float => {
            let bits = fixed(4)? as u32;
            Value::Float(f32::from_bits(if bits >> 31 == 1 { bits ^ 1 << 31 } else { !bits }))
        }
        DataType::Double => {
            let bits = fixed(8)?;
            Value::Double(f64::from_bits(if bits >> 63 == 1 { bits ^ 1 << 63 } else { !bits }))
        }
        DataType::Text => Value::Text(String::from_utf8(pop_escaped(key, turn)?).ok()?),
        DataType::Blob => Value::Blob(Bytes::from(pop_escaped(key, turn)?)),
    })
}

fn pop_escaped(key: &mut &[u8], turn: impl Fn(u8) -> u8) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut at = 0;
    loop {
        let byte = turn(*key.get(at)?);
        at += 1;
        if byte == 0 {
            let next = turn(*key.get(at)?);
            at += 1;
            match next {
                1 => break,
                255 => {}
                _ => return None,
            }
        }
        bytes.push(byte);
    }
    *key = &key[at..];
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn values() -> impl Strategy<Value = (Value, Value)> {
        let small = prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(255), any::<u8>()], 0..6);
        prop_oneof![
            (any::<bool>(), any::<bool>()).prop_map(|(a, b)| (Value::Boolean(a), Value::Boolean(b))),
            (any::<i32>(), any::<i32>()).prop_map(|(a, b)| (Value::Int(a), Value::Int(b))),
            (any::<i64>(), any::<i64>()).prop_map(|(a, b)| (Value::BigInt(a), Value::BigInt(b))),
            (any::<u32>(), any::<u32>())
                .prop_map(|(a, b)| (Value::Float(f32::from_bits(a)), Value::Float(f32::from_bits(b)))),
            (any::<u64>(), any::<u64>())
                .prop_map(|(a, b)| (Value::Double(f64::from_bits(a)), Value::Double(f64::from_bits(b)))),
            (".{0,4}", ".{0,4}").prop_map(|(a, b)| (Value::Text(a), Value::Text(b))),
            (small.clone(), small).prop_map(|(a, b)| (Value::Blob(a.into()), Value::Blob(b.into()))),
            (any::<i32>(), any::<i32>()).prop_map(|(a, b)| (Value::Date(a), Value::Date(b))),
            (any::<i64>(), any::<i64>()).prop_map(|(a, b)| (Value::TimestampTz(a), Value::TimestampTz(b))),
        ]
    }

    proptest! {
        #[test]
        fn keys_sort_as_their_values_and_are_read_back((a, b) in values(), (c, d) in values(), desc in any::<bool>()) {
            let order = if desc { Order::Desc } else { Order::Asc };
            let encode = |first: &Value, second: &Value| {
                let mut key = Vec::new();
                push(&mut key, first, order);
                push(&mut key, second, Order::Asc);
                key
            };
            let (left, right) = (encode(&a, &c), encode(&b, &d));
            let first = a.compare(&b).unwrap();
            let first = if desc { first.reverse() } else { first };
            prop_assert_eq!(left.cmp(&right), first.then(c.compare(&d).unwrap()));
            let mut rest = &left[..];
            prop_assert_eq!(pop(&mut rest, a.data_type(), order), Some(a));
            prop_assert_eq!(pop(&mut rest, c.data_type(), Order::Asc), Some(c));
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..20)) {
            for (data_type, _) in DataType::ALL {
                for order in [Order::Asc, Order::Desc] {
                    let _ = pop(&mut &bytes[..], data_type, order);
                }
            }
        }

        #[test]
        fn what_follows_a_prefix_is_above_all_that_begin_with_it(prefix in prop::collection::vec(any::<u8>(), 0..4), more in prop::collection::vec(any::<u8>(), 0..4)) {
            let whole = [&prefix[..], &more].concat();
            match esker_store::prefix::prefix_end(&prefix) {
                Some(after) => prop_assert!(whole[..] < after[..]),
                None => prop_assert!(prefix.iter().all(|byte| *byte == 255)),
            }
        }
    }
}
