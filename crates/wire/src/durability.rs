//! When a write is answered, as the two flags that the requests of store and map have for it.

use esker_store::Durability;

use crate::{Error, Result};

/// `applied_only` and `always`.
pub(crate) fn encode_durability(durability: Durability) -> (bool, bool) {
    (durability == Durability::Applied, durability == Durability::Always)
}

/// From `applied_only` and `always`; `field` is the latter's.
///
/// # Errors
/// [`Error::Malformed`] if both are set.
pub(crate) fn decode_durability(field: &'static str, applied_only: bool, always: bool) -> Result<Durability> {
    match (applied_only, always) {
        (true, true) => Err(Error::malformed(field, "applied_only and always exclude each other")),
        (true, false) => Ok(Durability::Applied),
        (false, true) => Ok(Durability::Always),
        (false, false) => Ok(Durability::Durable),
    }
}
