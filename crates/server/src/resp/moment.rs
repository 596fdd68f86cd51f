//! A moment of a store that others write to.
//!
//! who applies what others have decided holds it alone → applied; who reads several times holds it with others

use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard};

/// Held while a command reads, so that all it reads is of one moment.
#[derive(Clone, Debug)]
pub struct Moment(pub Arc<RwLock<()>>);

impl Moment {
    pub(crate) fn hold(&self) -> RwLockReadGuard<'_, ()> {
        self.0.read()
    }
}

impl PartialEq for Moment {
    /// Whether it is the same one.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Moment {}
