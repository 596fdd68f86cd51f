//! What was refused lately: what ACL LOG tells.
//!
//! Invariant: at most [`KEPT`] entries; the same refusal within a minute counts as one.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Entries kept.
const KEPT: usize = 128;
/// Refusals that are the same within so long are one entry.
const SAME: Duration = Duration::from_secs(60);

/// A refusal.
#[derive(Clone, Debug)]
pub(crate) struct Denial {
    pub(crate) count: u64,
    /// `auth`, `command` or `key`.
    pub(crate) reason: &'static str,
    /// `toplevel` or `multi`.
    pub(crate) context: &'static str,
    pub(crate) object: String,
    pub(crate) user: String,
    pub(crate) client: String,
    pub(crate) when: Instant,
}

/// The last refusals, the latest first.
#[derive(Default)]
pub(crate) struct Denials(Mutex<VecDeque<Denial>>);

impl Denials {
    /// Notes one.
    pub(crate) fn note(&self, reason: &'static str, multi: bool, object: &str, user: &str, client: String) {
        let (context, when) = (if multi { "multi" } else { "toplevel" }, Instant::now());
        let mut kept = self.0.lock();
        let is_same = |known: &Denial| {
            (known.reason, known.context, known.object.as_str(), known.user.as_str()) == (reason, context, object, user)
                && known.when.elapsed() < SAME
        };
        let count = match kept.iter().position(is_same).and_then(|at| kept.remove(at)) {
            Some(known) => known.count + 1,
            None => 1,
        };
        kept.truncate(KEPT - 1);
        kept.push_front(Denial { count, reason, context, object: object.into(), user: user.into(), client, when });
    }

    /// The latest.
    pub(crate) fn latest(&self, count: usize) -> Vec<Denial> {
        self.0.lock().iter().take(count).cloned().collect()
    }

    /// Forgets all.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }
}
