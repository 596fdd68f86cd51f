//! The map's types as messages and back: what `esker.map.v1.Map` is asked and what it answers.
//!
//! value ⊂ filter ⊂ get, scan, mutation → request → answer → row · error → its name in metadata
//!
//! Format: crates/wire/proto/esker/map/v1/map.proto

mod capability;
mod failure;
mod filter;
mod mutation;
mod read;
mod rows;
mod schema;
mod table_name;
mod value;

pub use capability::{decode_capability, encode_capability};
pub use failure::{decode_named, name_error};
pub use filter::FILTER_DEPTH_MAX;
pub use mutation::{decode_mutate, decode_mutation, decode_outcome, encode_mutate, encode_mutation, encode_outcome};
pub use read::{decode_get, decode_scan, encode_get, encode_scan};
pub use rows::{
    cell_bytes, decode_cell, decode_record, decode_row, decode_token, encode_cell, encode_record, encode_token,
};
pub use schema::{decode_alter, decode_schema, decode_table, encode_alter, encode_schema, encode_table};
pub use table_name::{decode_table_name, encode_table_name};
