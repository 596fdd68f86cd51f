//! Values as text and as JSON, by their column's type; null and absent told apart in both.
//!
//! text ↔ [`esker::map::Value`] ↔ JSON · a cell of CSV: empty is absent, `\N` null, and what begins with a backslash is
//! what follows it
//!
//! Invariant: what [`show`] and [`cell`] write, [`parse`] and [`from_cell`] read as the same value.

use esker::Bytes;
use esker::map::{Compare, DAY_NANOS, DataType, Filter, Record, Table, Value, Values};
use serde_json::Value as Json;
use time::format_description::well_known::Rfc3339;
use time::macros::{date, format_description};
use time::{Date, OffsetDateTime, PrimitiveDateTime, Time};

use crate::commands::kv::from_hex;
use crate::exit::Failure;

/// Stands for null in lines and CSV.
pub const NULL: &str = "\\N";

/// A value of a type from its text.
pub fn parse(data_type: DataType, text: &str) -> Result<Value, String> {
    fn number<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, String> {
        text.parse().map_err(|error| format!("{text:?}: {error}"))
    }
    Ok(match data_type {
        DataType::Boolean => Value::Boolean(number(text)?),
        DataType::Int => Value::Int(number(text)?),
        DataType::BigInt => Value::BigInt(number(text)?),
        DataType::Float => Value::Float(number(text)?),
        DataType::Double => Value::Double(number(text)?),
        DataType::Text => Value::Text(text.into()),
        DataType::Blob => {
            let bytes = from_hex(text).ok_or_else(|| format!("{text:?}: expected bytes in hexadecimal"))?;
            Value::Blob(Bytes::from(bytes))
        }
        DataType::Date => match text.parse() {
            Ok(days) => Value::Date(days),
            Err(_) => Value::Date(days_of(text).ok_or_else(|| expected(text, "a date such as 2024-02-29"))?),
        },
        DataType::Time => match text.parse() {
            Ok(nanos) if (0..DAY_NANOS).contains(&nanos) => Value::Time(nanos),
            Ok(nanos) => return Err(format!("{nanos}: expected nanoseconds of a day, below {DAY_NANOS}")),
            Err(_) => Value::Time(nanos_of(text).ok_or_else(|| expected(text, "a time such as 13:37:00.5"))?),
        },
        DataType::Timestamp => match text.parse() {
            Ok(ms) => Value::Timestamp(ms),
            Err(_) => {
                let ms = local_ms(text).ok_or_else(|| expected(text, "a timestamp such as 2024-02-29T13:37:00.123"))?;
                Value::Timestamp(ms)
            }
        },
        DataType::TimestampTz => match text.parse() {
            Ok(ms) => Value::TimestampTz(ms),
            Err(_) => {
                let ms = OffsetDateTime::parse(&text.replacen(' ', "T", 1), &Rfc3339).ok().and_then(ms_of);
                Value::TimestampTz(ms.ok_or_else(|| expected(text, "a timestamp such as 2024-02-29T13:37:00.123Z"))?)
            }
        },
    })
}

fn expected(text: &str, what: &str) -> String {
    format!("{text:?}: expected {what}, to milliseconds at most, or the number that is stored")
}

const EPOCH: Date = date!(1970 - 01 - 01);

fn days_of(text: &str) -> Option<i32> {
    let date = Date::parse(text, format_description!("[year]-[month]-[day]")).ok()?;
    Some(date.to_julian_day() - EPOCH.to_julian_day())
}

fn time_of(text: &str) -> Option<Time> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let time = Time::parse(whole, format_description!("[hour]:[minute]:[second]"))
        .or_else(|_| Time::parse(whole, format_description!("[hour]:[minute]")))
        .ok()?;
    if fraction.len() > 9 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nanos: u32 = format!("{fraction:0<9}").parse().ok()?;
    time.replace_nanosecond(nanos).ok()
}

fn nanos_of(text: &str) -> Option<i64> {
    let time = time_of(text)?;
    i64::try_from((time - Time::MIDNIGHT).whole_nanoseconds()).ok()
}

fn local_ms(text: &str) -> Option<i64> {
    let (date, time) = text.split_once(['T', ' '])?;
    let date = Date::parse(date, format_description!("[year]-[month]-[day]")).ok()?;
    ms_of(PrimitiveDateTime::new(date, time_of(time)?).assume_utc())
}

fn ms_of(time: OffsetDateTime) -> Option<i64> {
    let nanos = time.unix_timestamp_nanos();
    if nanos % 1_000_000 != 0 {
        return None;
    }
    i64::try_from(nanos / 1_000_000).ok()
}

fn shown_date(date: Date) -> Option<String> {
    date.format(format_description!("[year]-[month]-[day]")).ok()
}

fn at_ms(ms: i64) -> Option<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000).ok()
}

/// A value as text. Times outside the years that have four digits are shown as the number that is stored.
pub fn show(value: &Value) -> String {
    let written = match value {
        Value::Date(days) => {
            let day = EPOCH.to_julian_day().checked_add(*days);
            day.and_then(|day| Date::from_julian_day(day).ok()).filter(|date| date.year() >= 0).and_then(shown_date)
        }
        Value::Time(nanos) => {
            let time = Time::MIDNIGHT + std::time::Duration::from_nanos(nanos.unsigned_abs());
            let form = format_description!("[hour]:[minute]:[second].[subsecond]");
            if (0..DAY_NANOS).contains(nanos) { time.format(form).ok() } else { None }
        }
        Value::Timestamp(ms) => {
            let form = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]");
            at_ms(*ms).filter(|time| time.year() >= 0).and_then(|time| time.format(form).ok())
        }
        Value::TimestampTz(ms) => at_ms(*ms).and_then(|time| time.format(&Rfc3339).ok()),
        _ => None,
    };
    written.unwrap_or_else(|| value.to_string())
}

/// A value as JSON: numbers and booleans as such, all else as text.
fn json(value: &Value) -> Json {
    match value {
        Value::Boolean(value) => (*value).into(),
        Value::Int(value) => (*value).into(),
        Value::BigInt(value) => (*value).into(),
        Value::Float(value) if value.is_finite() => serde_json::Number::from_f64(shortest(*value)).into(),
        Value::Double(value) if value.is_finite() => (*value).into(),
        other => show(other).into(),
    }
}

/// The double that is written with the fewest digits that mean this float.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

/// A row as a JSON object; what is absent is left out.
pub fn record_json(record: &Record) -> Json {
    let column = |(name, value): &(String, Option<Value>)| (name.clone(), value.as_ref().map_or(Json::Null, json));
    Json::Object(record.columns.iter().map(column).collect())
}

/// A value of a type from JSON; `None` is null.
pub fn from_json(data_type: DataType, value: &Json) -> Result<Option<Value>, String> {
    let mismatch = || format!("{value} is no {data_type}");
    Ok(Some(match value {
        Json::Null => return Ok(None),
        Json::Bool(value) if data_type == DataType::Boolean => Value::Boolean(*value),
        // The text of a number means the same number, whatever its width.
        Json::Number(number) if !matches!(data_type, DataType::Text | DataType::Blob | DataType::Boolean) => {
            parse(data_type, &number.to_string())?
        }
        Json::String(text) => parse(data_type, text)?,
        _ => return Err(mismatch()),
    }))
}

/// A column as a cell: absent, null, or a value.
pub fn cell(value: Option<Option<&Value>>) -> String {
    match value {
        None => String::new(),
        Some(None) => NULL.into(),
        Some(Some(value)) => {
            let text = show(value);
            if text.is_empty() || text.starts_with('\\') { format!("\\{text}") } else { text }
        }
    }
}

/// What a cell says: absent, null, or a value.
pub fn from_cell(data_type: DataType, text: &str) -> Result<Option<Option<Value>>, String> {
    match text {
        "" => Ok(None),
        NULL => Ok(Some(None)),
        _ => parse(data_type, text.strip_prefix('\\').unwrap_or(text)).map(|value| Some(Some(value))),
    }
}

/// Reads `COLUMN=VALUE`, by the type that the table has for the column.
pub fn assignment(table: &Table, text: &str) -> Result<(String, Value), Failure> {
    let (name, value) =
        text.split_once('=').ok_or_else(|| Failure::usage(format!("{text:?}: expected COLUMN=VALUE")))?;
    Ok((name.into(), typed(table, name, value)?))
}

/// Reads several of them.
pub fn assignments(table: &Table, texts: &[String]) -> Result<Values, Failure> {
    texts.iter().map(|text| assignment(table, text)).collect()
}

fn typed(table: &Table, name: &str, text: &str) -> Result<Value, Failure> {
    let column = table.column(name)?;
    parse(column.data_type, text).map_err(|why| Failure::usage(format!("column {name}: {why}")))
}

/// Operators of conditions. Of those that begin at one place the longest counts, so it stands first.
const OPERATORS: [(&str, Option<Compare>); 8] = [
    ("!=", Some(Compare::NotEqual)),
    ("<=", Some(Compare::LessOrEqual)),
    (">=", Some(Compare::GreaterOrEqual)),
    ("=", Some(Compare::Equal)),
    ("<", Some(Compare::Less)),
    (">", Some(Compare::Greater)),
    (" not like ", None),
    (" like ", None),
];

/// Reads `COLUMN OPERATOR VALUE`, `COLUMN is null` or `COLUMN is not null`.
pub fn condition(table: &Table, text: &str) -> Result<Filter, Failure> {
    let found = OPERATORS.iter().filter_map(|(name, compare)| Some((text.find(name)?, name, *compare)));
    // Of equals the first.
    let first = found.min_by_key(|(at, name, _)| (*at, std::cmp::Reverse(name.len())));
    let Some((at, name, compare)) = first else {
        let column = |suffix: &str| text.trim_end().strip_suffix(suffix).map(str::trim);
        return match (column(" is not null"), column(" is null")) {
            (Some(name), _) => Ok(Filter::IsNotNull(table.column(name)?.name.clone())),
            (None, Some(name)) => Ok(Filter::IsNull(table.column(name)?.name.clone())),
            (None, None) => Err(Failure::usage(format!(
                "{text:?}: expected COLUMN and =, !=, <, <=, >, >=, like or not like with a value, or is null, or is not null"
            ))),
        };
    };
    let (column, value) = (text[..at].trim(), text[at + name.len()..].trim());
    Ok(match compare {
        Some(compare) => Filter::Compare(column.into(), compare, typed(table, column, value)?),
        None => Filter::Like {
            column: table.column(column)?.name.clone(),
            pattern: value.into(),
            escape: Some('\\'),
            negated: name.contains("not"),
        },
    })
}

/// All of these conditions.
pub fn conditions(table: &Table, texts: &[String]) -> Result<Filter, Failure> {
    Ok(Filter::All(texts.iter().map(|text| condition(table, text)).collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let store = esker::Store::open("memory:").unwrap();
        let map = store.map().unwrap();
        use esker::map::{MapStorage, Schema, TableName};
        map.create_namespace("n").unwrap();
        let schema = DataType::ALL.iter().fold(Schema::new(), |schema, (one, name)| schema.column(*name, *one));
        let name = TableName::new("n", "t");
        map.create_table(&name, &schema.partition("int")).unwrap();
        (*map.table(&name).unwrap()).clone()
    }

    #[test]
    fn values_are_read_back_from_text_cells_and_json() {
        let values = [
            Value::Boolean(true),
            Value::Int(i32::MIN),
            Value::BigInt(i64::MIN),
            Value::Float(0.1),
            Value::Float(f32::NEG_INFINITY),
            Value::Double(1e300),
            Value::Double(f64::NAN),
            Value::Text(String::new()),
            Value::Text("\\N".into()),
            Value::Text("\\\\".into()),
            Value::Text("a,\"b\"\n日本".into()),
            Value::Blob(Bytes::from_static(&[0, 255])),
            Value::Blob(Bytes::new()),
            Value::Date(0),
            Value::Date(19_782),
            Value::Date(i32::MIN),
            Value::Date(i32::MAX),
            Value::Time(0),
            Value::Time(DAY_NANOS - 1),
            Value::Timestamp(-1),
            Value::Timestamp(1_700_000_000_123),
            Value::Timestamp(i64::MAX),
            Value::TimestampTz(1_700_000_000_120),
            Value::TimestampTz(-62_135_596_800_001),
            Value::TimestampTz(i64::MIN),
        ];
        for value in values {
            let data_type = value.data_type();
            assert_eq!(parse(data_type, &show(&value)), Ok(value.clone()), "{}", show(&value));
            let shown = cell(Some(Some(&value)));
            assert_eq!(from_cell(data_type, &shown), Ok(Some(Some(value.clone()))), "{shown}");
            let written: Json = serde_json::from_str(&json(&value).to_string()).unwrap();
            assert_eq!(from_json(data_type, &written), Ok(Some(value.clone())), "{written}");
        }
        for data_type in [DataType::Text, DataType::Int] {
            assert_eq!(from_cell(data_type, &cell(Some(None))), Ok(Some(None)));
            assert_eq!(from_cell(data_type, &cell(None)), Ok(None));
        }
    }

    #[test]
    fn times_are_written_as_people_write_them() {
        for (data_type, text, expected) in [
            (DataType::Date, "2024-02-29", Some(Value::Date(19_782))),
            (DataType::Date, "2023-02-29", None),
            (DataType::Time, "13:37", Some(Value::Time((13 * 3_600 + 37 * 60) * 1_000_000_000))),
            (DataType::Time, "00:00:00.5", Some(Value::Time(500_000_000))),
            (DataType::Time, "24:00:00", None),
            (DataType::Time, "86400000000000", None),
            (DataType::Timestamp, "1970-01-01T00:00:01", Some(Value::Timestamp(1_000))),
            (DataType::Timestamp, "1970-01-01 00:00:00.001", Some(Value::Timestamp(1))),
            (DataType::Timestamp, "1970-01-01T00:00:00.0001", None),
            (DataType::TimestampTz, "1970-01-01T01:00:00+01:00", Some(Value::TimestampTz(0))),
            (DataType::TimestampTz, "1970-01-01T01:00:00", None),
            (DataType::Int, "2147483648", None),
            (DataType::Blob, "0g", None),
            (DataType::Boolean, "yes", None),
        ] {
            assert_eq!(parse(data_type, text).ok(), expected, "{data_type} {text}");
        }
        assert_eq!(show(&Value::Date(19_782)), "2024-02-29");
        assert_eq!(show(&Value::TimestampTz(0)), "1970-01-01T00:00:00Z");
    }

    #[test]
    fn conditions_are_read_by_their_first_operator() {
        let table = table();
        let text = |filter| Some(filter);
        let compare = |column: &str, compare, value: Value| text(Filter::Compare(column.into(), compare, value));
        let like = |negated| Filter::Like { column: "text".into(), pattern: "a%".into(), escape: Some('\\'), negated };
        for (input, expected) in [
            ("int=5", compare("int", Compare::Equal, 5.into())),
            ("int <= -5", compare("int", Compare::LessOrEqual, (-5).into())),
            ("int != 5", compare("int", Compare::NotEqual, 5.into())),
            ("text = I like tea <= it", compare("text", Compare::Equal, "I like tea <= it".into())),
            ("text like a%", Some(like(false))),
            ("text not like a%", Some(like(true))),
            ("text is null", Some(Filter::IsNull("text".into()))),
            ("text is not null", Some(Filter::IsNotNull("text".into()))),
            ("text", None),
            ("int = five", None),
            ("nothing = 5", None),
        ] {
            assert_eq!(condition(&table, input).ok(), expected, "{input}");
        }
    }
}
