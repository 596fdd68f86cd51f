//! Filters: conditions on the columns of one row, with null and absent told apart where that is asked.
//!
//! Invariant: a comparison with null or with an absent column never holds, whatever the operator; only the null tests
//! see them (null and absent are one there). So `not (a = 1)` is not among the filters: `a != 1` does not hold for
//! null.

use crate::record::Record;
use crate::schema::Table;
use crate::value::Value;
use crate::{DataType, Error, Result};

/// How a column is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compare {
    /// column = value
    Equal,
    /// column != value
    NotEqual,
    /// column < value
    Less,
    /// column <= value
    LessOrEqual,
    /// column > value
    Greater,
    /// column >= value
    GreaterOrEqual,
}

impl Compare {
    fn holds(self, order: std::cmp::Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::GreaterOrEqual => order.is_ge(),
        }
    }
}

/// A condition on one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// All of them; holds if there are none.
    All(Vec<Filter>),
    /// At least one of them; does not hold if there are none.
    Any(Vec<Filter>),
    /// A column compared with a value of its type.
    Compare(String, Compare, Value),
    /// A column is null or absent.
    IsNull(String),
    /// A column has a value.
    IsNotNull(String),
    /// A text column is like a pattern: `%` is any text, `_` any character, each taken for itself behind the escape
    /// character.
    Like {
        /// The column.
        column: String,
        /// The pattern.
        pattern: String,
        /// The escape character, if there is one.
        escape: Option<char>,
        /// Holds where it is not like the pattern (and not null).
        negated: bool,
    },
}

impl Filter {
    /// Holds for every row.
    pub fn always() -> Self {
        Self::All(Vec::new())
    }

    /// Refuses unknown columns, values of other types, and patterns that end in their escape character.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Invalid`].
    pub fn check(&self, table: &Table) -> Result<()> {
        match self {
            Self::All(filters) | Self::Any(filters) => filters.iter().try_for_each(|filter| filter.check(table)),
            Self::Compare(column, _, value) => table.check_value(table.column(column)?, value),
            Self::IsNull(column) | Self::IsNotNull(column) => table.column(column).map(drop),
            Self::Like { column, pattern, escape, .. } => {
                let column = table.column(column)?;
                if column.data_type != DataType::Text {
                    let why = format!("LIKE on column {}, which is {}", column.name, column.data_type);
                    return Err(Error::invalid("filter", why));
                }
                parse(pattern, *escape).map(drop)
            }
        }
    }

    /// Whether it holds for a record with all the columns that it names.
    pub fn matches(&self, record: &Record) -> bool {
        self.holds(&|name| record.get(name).map(|value| value.cloned()))
    }

    /// Whether it holds, given what `column` says: absent, null or a value.
    pub fn holds(&self, column: &dyn Fn(&str) -> Option<Option<Value>>) -> bool {
        match self {
            Self::All(filters) => filters.iter().all(|filter| filter.holds(column)),
            Self::Any(filters) => filters.iter().any(|filter| filter.holds(column)),
            Self::Compare(name, compare, value) => {
                let order = column(name).flatten().and_then(|found| found.compare(value));
                order.is_some_and(|order| compare.holds(order))
            }
            Self::IsNull(name) => column(name).flatten().is_none(),
            Self::IsNotNull(name) => column(name).flatten().is_some(),
            Self::Like { column: name, pattern, escape, negated } => match column(name).flatten() {
                Some(Value::Text(text)) => {
                    parse(pattern, *escape).is_ok_and(|pattern| like(&text, &pattern) != *negated)
                }
                _ => false,
            },
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Piece {
    Any,
    One,
    Char(char),
}

fn parse(pattern: &str, escape: Option<char>) -> Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut chars = pattern.chars();
    while let Some(char) = chars.next() {
        pieces.push(if Some(char) == escape {
            match chars.next() {
                Some(next) if next == '%' || next == '_' || Some(next) == escape => Piece::Char(next),
                _ => {
                    let why = format!("{pattern:?}: the escape character {char:?} must stand before %, _ or itself");
                    return Err(Error::invalid("pattern", why));
                }
            }
        } else if char == '%' {
            Piece::Any
        } else if char == '_' {
            Piece::One
        } else {
            Piece::Char(char)
        });
    }
    Ok(pieces)
}

/// Takes time in proportion to text times pattern at most: of several `%` only the last is tried again.
fn like(text: &str, pattern: &[Piece]) -> bool {
    let text: Vec<char> = text.chars().collect();
    let (mut at, mut piece) = (0, 0);
    let mut again: Option<(usize, usize)> = None;
    while at < text.len() {
        match pattern.get(piece) {
            Some(Piece::Any) => {
                again = Some((at, piece));
                piece += 1;
            }
            Some(Piece::One) => (at, piece) = (at + 1, piece + 1),
            Some(Piece::Char(char)) if *char == text[at] => (at, piece) = (at + 1, piece + 1),
            _ => {
                let Some((from, any)) = again else { return false };
                again = Some((from + 1, any));
                (at, piece) = (from + 1, any + 1);
            }
        }
    }
    pattern[piece..].iter().all(|piece| *piece == Piece::Any)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_sql() {
        let cases: &[(&str, &str, Option<char>, bool)] = &[
            ("abc", "abc", None, true),
            ("abc", "a%", None, true),
            ("abc", "%c", None, true),
            ("abc", "a_c", None, true),
            ("abc", "a_", None, false),
            ("", "%", None, true),
            ("", "_", None, false),
            ("a%c", "a\\%c", Some('\\'), true),
            ("abc", "a\\%c", Some('\\'), false),
            ("a_c", "a+_c", Some('+'), true),
            ("a\\c", "a\\\\c", Some('\\'), true),
            ("mississippi", "m%iss%pi", None, true),
            ("mississippi", "m%isp%pi", None, false),
            ("日本語", "_本%", None, true),
            ("aaaaaaaaaaaaaaaaaaaaaaaaaaaab", "%a%a%a%a%a%a%a%a%a%c", None, false),
        ];
        for (text, pattern, escape, expected) in cases {
            assert_eq!(like(text, &parse(pattern, *escape).unwrap()), *expected, "{text:?} like {pattern:?}");
        }
        assert!(parse("a\\", Some('\\')).is_err());
        assert!(parse("a\\b", Some('\\')).is_err());
    }
}
