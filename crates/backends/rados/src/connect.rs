//! From a place such as `POOL/NAME` to an open store.
//!
//! place → pool and namespace → cluster, within a time → [`RadosStore`]

use crate::native::Cluster;
use crate::options::{NAME_BYTES_MAX, OpenError, Options};
use crate::store::RadosStore;

impl RadosStore {
    /// Opens the store `POOL/NAME`, and makes it in the pool if there is none and it may. The pool has to be there.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn connect(place: &str, options: &Options) -> Result<Self, OpenError> {
        let wrong = || OpenError::Place { found: place.to_owned() };
        let (pool, name) = place.split_once('/').ok_or_else(wrong)?;
        if pool.is_empty() || name.is_empty() || name.len() > NAME_BYTES_MAX || place.contains('\0') {
            return Err(wrong());
        }
        let seconds = options.timeout.as_secs().max(1).to_string();
        let timeouts =
            ["client_mount_timeout", "rados_mon_op_timeout", "rados_osd_op_timeout"].map(|name| (name, &seconds[..]));
        // Begun, not waited for: by default the library has a caller sleep who begins one above 1,024, or 100 MiB.
        let budget = [("objecter_inflight_ops", "65536"), ("objecter_inflight_op_bytes", "1073741824")];
        let settings = [&timeouts[..], &budget[..]].concat();
        let cluster = Cluster::connect(options.user.as_deref(), options.conf.as_deref(), &settings)?;
        let store = Self::open(cluster.pool(pool, name)?, options.create, options.data.as_ref())?;
        let store = store.ok_or_else(|| OpenError::Missing { place: place.to_owned() })?;
        Ok(store.opened_by(place, options))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_are_none_are_refused_before_anything_is_asked() {
        for wrong in ["", "pool", "/name", "pool/", "pool/na\0me", &format!("pool/{}", "n".repeat(201))] {
            let Err(error) = RadosStore::connect(wrong, &Options::default()) else { panic!("{wrong:?}") };
            assert!(matches!(error, OpenError::Place { .. }), "{wrong:?}: {error}");
        }
    }
}
