//! One client: a process that works on one face until its standard input ends, and notes what it was told.
//!
//! role → the face's client → calls, each noted · the last client reads everything back
//!
//! Places (groups of keys, partitions, objects of an image) are used for some seconds and then left, so that the
//! checker gets many short histories instead of a long one; now and then an old one is read, and at the end all are.
//!
//! Invariant: values are unique in a run: client, life, number.

mod actor;
mod kv;
mod log;
mod map;
mod volume;

use esker::Store;

use crate::terms::{Face, Failure};
use actor::Client;

pub use actor::Role;
/// The log that `record` begins a sequencer for, and how what stands at a position is noted.
pub use log::{SEQUENCED, shown};
/// How what a block holds is noted.
pub use volume::{BLOCK_BYTES, block, value};

/// Plays a client.
pub fn play(role: Role) -> Result<(), Failure> {
    let face = role.face;
    let mut client = Client::begin(role)?;
    match face {
        Face::Kv => kv::play(&mut client)?,
        Face::Map => map::play(&mut client)?,
        Face::Log => log::play(&mut client)?,
        Face::Volume => volume::play(&mut client)?,
    }
    client.tell();
    Ok(())
}

/// What `record` makes before clients begin.
pub fn prepare(face: Face, store: &Store) -> Result<(), Failure> {
    match face {
        Face::Kv => kv::prepare(store),
        Face::Map => map::prepare(store),
        Face::Log => log::prepare(store),
        Face::Volume => volume::prepare(store),
    }
}
