//! Objects by their names.

use esker_store::{Collection, ObjectId};

use crate::proto::store as proto;
use crate::{Error, Result};

/// An object by its name.
pub fn encode_object(object: &ObjectId) -> proto::ObjectId {
    proto::ObjectId { collection: object.collection().name().clone(), name: object.name().clone() }
}

/// The object that a request names in `field`.
///
/// # Errors
/// [`Error::Malformed`] if it names none.
pub fn decode_object(field: &'static str, message: Option<proto::ObjectId>) -> Result<ObjectId> {
    let message = message.ok_or_else(|| Error::malformed(field, "it names no object"))?;
    Ok(ObjectId::new(Collection::new(message.collection), message.name))
}
