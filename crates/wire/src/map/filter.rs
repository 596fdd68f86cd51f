//! Filters.
//!
//! Invariant: filters that come from elsewhere are at most [`FILTER_DEPTH_MAX`] deep, so that looking at one takes
//! little of a thread's stack.

use esker_map::{Compare, Filter};

use super::value::{decode_some, encode_value};
use crate::proto::map as proto;
use crate::{Error, Result};

/// How deep filters may be: one inside another.
pub const FILTER_DEPTH_MAX: usize = 16;

fn encode_compare(compare: Compare) -> i32 {
    let compare = match compare {
        Compare::Equal => proto::Compare::Equal,
        Compare::NotEqual => proto::Compare::NotEqual,
        Compare::Less => proto::Compare::Less,
        Compare::LessOrEqual => proto::Compare::LessOrEqual,
        Compare::Greater => proto::Compare::Greater,
        Compare::GreaterOrEqual => proto::Compare::GreaterOrEqual,
    };
    compare.into()
}

fn decode_compare(number: i32) -> Result<Compare> {
    use proto::Compare as P;
    Ok(match P::try_from(number) {
        Ok(P::Equal) => Compare::Equal,
        Ok(P::NotEqual) => Compare::NotEqual,
        Ok(P::Less) => Compare::Less,
        Ok(P::LessOrEqual) => Compare::LessOrEqual,
        Ok(P::Greater) => Compare::Greater,
        Ok(P::GreaterOrEqual) => Compare::GreaterOrEqual,
        Ok(P::Unspecified) | Err(_) => {
            return Err(Error::malformed("Comparison.compare", format!("compare {number} is not known")));
        }
    })
}

/// A filter.
pub(super) fn encode_filter(filter: &Filter) -> proto::Filter {
    use proto::filter::Filter as P;
    let each = |filters: &[Filter]| proto::Filters { filters: filters.iter().map(encode_filter).collect() };
    let told = match filter {
        Filter::All(filters) => P::All(each(filters)),
        Filter::Any(filters) => P::Any(each(filters)),
        Filter::Compare(column, compare, with) => P::Compare(proto::Comparison {
            column: column.clone(),
            compare: encode_compare(*compare),
            value: Some(encode_value(Some(with.clone()))),
        }),
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

/// A filter.
///
/// # Errors
/// [`Error::Malformed`] if one in it says nothing, compares with nothing or in a way that is not known, has an escape
/// of several characters, or if they are more than [`FILTER_DEPTH_MAX`] deep.
pub(super) fn decode_filter(message: proto::Filter) -> Result<Filter> {
    filter_at(message, 1)
}

fn filter_at(message: proto::Filter, depth: usize) -> Result<Filter> {
    use proto::filter::Filter as P;
    if depth > FILTER_DEPTH_MAX {
        let why = format!("the filter is more than {FILTER_DEPTH_MAX} deep (FILTER_DEPTH_MAX)");
        return Err(Error::malformed("Filters.filters", why));
    }
    let each = |filters: proto::Filters| -> Result<Vec<Filter>> {
        filters.filters.into_iter().map(|filter| filter_at(filter, depth + 1)).collect()
    };
    Ok(match message.filter.ok_or_else(|| Error::malformed("Filter.filter", "a filter says nothing"))? {
        P::All(filters) => Filter::All(each(filters)?),
        P::Any(filters) => Filter::Any(each(filters)?),
        P::Compare(comparison) => {
            let value = decode_some("Comparison.value", &comparison.column, comparison.value)?;
            Filter::Compare(comparison.column, decode_compare(comparison.compare)?, value)
        }
        P::IsNull(column) => Filter::IsNull(column),
        P::IsNotNull(column) => Filter::IsNotNull(column),
        P::Like(like) => {
            let mut escape = like.escape.chars();
            let (first, second) = (escape.next(), escape.next());
            if second.is_some() {
                let why = format!("escape {:?}: expected one character or none", like.escape);
                return Err(Error::malformed("Like.escape", why));
            }
            Filter::Like { column: like.column, pattern: like.pattern, escape: first, negated: like.negated }
        }
    })
}

/// The filter of a read; one that always holds is left out.
pub(super) fn encode_filter_of_read(filter: &Filter) -> Option<proto::Filter> {
    (*filter != Filter::always()).then(|| encode_filter(filter))
}

/// The filter of a read; one that is left out always holds.
///
/// # Errors
/// As [`decode_filter`].
pub(super) fn decode_filter_of_read(message: Option<proto::Filter>) -> Result<Filter> {
    message.map_or_else(|| Ok(Filter::always()), decode_filter)
}
