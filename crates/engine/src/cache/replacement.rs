//! What a policy has to say: what a use of a value changes, and what goes when another comes.
//!
//! The cache asks it under the lock of the part that a key belongs to.

use smallvec::SmallVec;

use super::queues::{At, Queues};

/// Values that went, dropped when no lock is held any more.
pub type Evicted<V> = SmallVec<[V; 4]>;

/// Which values of one part of a cache stay.
///
/// Invariant: [`Queues::bytes_in_all`] of its queues is at most the bytes that it was made with.
pub trait Replacement<K, V> {
    /// Whether [`Replacement::touch_shared`] is all that a use of a value changes.
    const SHARED: bool = false;

    /// For values of at most `bytes_max` bytes together.
    fn new(bytes_max: u64) -> Self;

    /// The values.
    fn queues(&self) -> &Queues<K, V>;

    /// The values, to take one out or to put another in its place.
    fn queues_mut(&mut self) -> &mut Queues<K, V>;

    /// The heaviest value that is kept, in bytes.
    fn weight_max(&self) -> u64;

    /// A value was used; several readers may say so at once.
    fn touch_shared(&self, _at: At) {}

    /// A value was used.
    fn touch(&mut self, at: At);

    /// Takes in a value that is not there, of at most [`Replacement::weight_max`] bytes, once room is made for it. What
    /// goes for it is pushed to `evicted`; that may be the value itself.
    fn admit(&mut self, key: K, value: V, weight: u64, evicted: &mut Evicted<V>);
}
