//! Mutations, and what became of them.

use esker_map::{Change, Condition, Durability, Error as MapError, Key, MUTATIONS_MAX, Mutation};

use super::filter::{decode_filter, encode_filter};
use super::rows::{decode_record, encode_record};
use super::table_name::{decode_table_name, encode_table_name};
use super::value::{decode_column, decode_values, encode_column, encode_values};
use crate::durability::{decode_durability, encode_durability};
use crate::error::at_most;
use crate::proto::map as proto;
use crate::{Error, Result};

fn encode_condition(condition: &Condition) -> Option<proto::Condition> {
    use proto::condition::Condition as P;
    let told = match condition {
        Condition::Always => return None,
        Condition::Exists => P::Exists(true),
        Condition::NotExists => P::NotExists(true),
        Condition::If(holds) => P::Holds(encode_filter(holds)),
    };
    Some(proto::Condition { condition: Some(told) })
}

fn decode_condition(message: Option<proto::Condition>) -> Result<Condition> {
    use proto::condition::Condition as P;
    let Some(message) = message else { return Ok(Condition::Always) };
    match message.condition {
        Some(P::Exists(true)) => Ok(Condition::Exists),
        Some(P::NotExists(true)) => Ok(Condition::NotExists),
        Some(P::Holds(filter)) => Ok(Condition::If(decode_filter(filter)?)),
        Some(P::Exists(false) | P::NotExists(false)) | None => {
            Err(Error::malformed("Condition.condition", "expected exists = true, not_exists = true or holds"))
        }
    }
}

fn encode_change(change: &Change) -> proto::mutation::Change {
    use proto::mutation::Change as P;
    match change {
        Change::Put { columns, expires_ms } => {
            let columns = columns.iter().map(|(name, value)| encode_column(name.clone(), value.clone()));
            P::Put(proto::Put { columns: columns.collect(), expires_ms: *expires_ms })
        }
        Change::Delete => P::Delete(proto::Delete {}),
    }
}

fn decode_change(message: Option<proto::mutation::Change>) -> Result<Change> {
    use proto::mutation::Change as P;
    let neither = || Error::malformed("Mutation.change", "a mutation is neither put nor delete");
    Ok(match message.ok_or_else(neither)? {
        P::Put(put) => {
            let columns = put.columns.into_iter().map(decode_column).collect::<Result<_>>()?;
            Change::Put { columns, expires_ms: put.expires_ms }
        }
        P::Delete(_) => Change::Delete,
    })
}

/// A mutation of one row.
pub fn encode_mutation(mutation: &Mutation) -> proto::Mutation {
    proto::Mutation {
        table: encode_table_name(&mutation.table),
        key: encode_values(&mutation.key.0),
        change: Some(encode_change(&mutation.change)),
        condition: encode_condition(&mutation.condition),
    }
}

/// A mutation of one row.
///
/// # Errors
/// [`Error::Malformed`] if it is neither put nor delete, names no table, a value is not there (or null, in its key), or
/// its condition makes no sense.
pub fn decode_mutation(message: proto::Mutation) -> Result<Mutation> {
    Ok(Mutation {
        change: decode_change(message.change)?,
        table: decode_table_name("Mutation.table", message.table)?,
        key: Key(decode_values("Mutation.key", message.key)?),
        condition: decode_condition(message.condition)?,
    })
}

/// Mutations that are made together.
pub fn encode_mutate(mutations: &[Mutation], durability: Durability) -> proto::MutateRequest {
    let (applied_only, always) = encode_durability(durability);
    proto::MutateRequest { mutations: mutations.iter().map(encode_mutation).collect(), applied_only, always }
}

/// Mutations that are made together, and when they are answered.
///
/// # Errors
/// [`Error::TooMany`] above [`MUTATIONS_MAX`]; [`Error::Malformed`] as [`decode_mutation`], and if `applied_only` and
/// `always` are both set.
pub fn decode_mutate(message: proto::MutateRequest) -> Result<(Vec<Mutation>, Durability)> {
    let durability = decode_durability("MutateRequest.always", message.applied_only, message.always)?;
    at_most("MutateRequest.mutations", message.mutations.len(), "MUTATIONS_MAX", MUTATIONS_MAX)?;
    let mutations = message.mutations.into_iter().map(decode_mutation).collect::<Result<_>>()?;
    Ok((mutations, durability))
}

/// What became of mutations: a condition that does not hold is an answer.
///
/// # Errors
/// Any other error, which is told otherwise.
pub fn encode_outcome(done: std::result::Result<(), MapError>) -> std::result::Result<proto::MutateResponse, MapError> {
    use proto::mutate_response::Outcome;
    let outcome = match done {
        Ok(()) => Outcome::Applied(proto::Applied {}),
        Err(MapError::ConditionFailed { mutation, current }) => Outcome::ConditionFailed(proto::ConditionFailed {
            mutation: u32::try_from(mutation).unwrap_or(u32::MAX),
            current: current.map(|record| encode_record(*record)),
        }),
        Err(error) => return Err(error),
    };
    Ok(proto::MutateResponse { outcome: Some(outcome) })
}

/// What became of mutations: the inner error is [`MapError::ConditionFailed`].
///
/// # Errors
/// [`Error::Malformed`] if the answer does not say what became of them, or the row that a condition met makes no sense.
pub fn decode_outcome(answer: proto::MutateResponse) -> Result<std::result::Result<(), MapError>> {
    use proto::mutate_response::Outcome;
    match answer.outcome {
        Some(Outcome::Applied(_)) => Ok(Ok(())),
        Some(Outcome::ConditionFailed(failed)) => {
            let current = failed.current.map(decode_record).transpose()?.map(Box::new);
            Ok(Err(MapError::ConditionFailed { mutation: failed.mutation as usize, current }))
        }
        None => Err(Error::malformed("MutateResponse.outcome", "it is neither applied nor condition_failed")),
    }
}
