//! What the users of a server may do by Thrift. A client is the user that its certificate names, since the protocol has
//! no credentials.
//!
//! names in the certificate → [`Guest::user`] → [`Guest::permit`] of each call
//!
//! Invariants:
//! 1. Where there are users, a client that is none is answered nothing but that.
//! 2. A call touches no key outside the patterns of its user; those about all keys are for users of all.

use std::sync::Arc;

use esker_kv::OwnedKey;

use super::call::{Asked, text_of};
use super::encode::Exception;
use crate::front::audit;
use crate::front::pattern::matches;
use crate::front::users::{Face, Keys, Role, User, Users};

/// A client of the connection, as far as users go.
pub(super) struct Guest {
    users: Option<Arc<Users>>,
    peer: String,
    names: Vec<String>,
    /// Who it is, and in which generation of the users it was looked up.
    found: Option<(u64, Option<Arc<User>>)>,
}

impl Guest {
    /// Of a client from there, with these names in its certificate.
    pub(super) fn new(users: Option<&Arc<Users>>, peer: String, names: Vec<String>) -> Self {
        Self { users: users.cloned(), peer, names, found: None }
    }

    /// Where the client comes from.
    pub(super) fn peer(&self) -> &str {
        &self.peer
    }

    /// The client's user; `None` where there are no users.
    ///
    /// # Errors
    /// It is no user.
    pub(super) fn user(&mut self) -> Result<Option<Arc<User>>, Exception> {
        let Some(users) = &self.users else { return Ok(None) };
        let generation = users.generation();
        let known = self.found.as_ref().filter(|(of, _)| *of == generation).map(|(_, user)| user.clone());
        let user = known.unwrap_or_else(|| {
            let user = users.by_certificate(&self.names).or_else(|| users.nobody(Face::Kv));
            self.found = Some((generation, user.clone()));
            user
        });
        let no_user = || {
            audit::login_failed(&self.peer, "");
            Exception::refused("no user: show a client certificate that names one")
        };
        user.ok_or_else(no_user).map(Some)
    }

    /// Refuses what the client may not do to this namespace.
    pub(super) fn permit(&mut self, namespace: &str, asked: &Asked) -> Result<(), Exception> {
        let Some(user) = self.user()? else { return Ok(()) };
        let denied = |what: String| {
            audit::denied(&self.peer, user.name(), &what);
            Err(Exception::refused(format!("user {} may not {what}", user.name())))
        };
        if let Asked::SetMode(mode) = asked {
            if user.role() < Role::Operator || !user.may(Face::Kv, namespace, true) {
                return denied(format!("change when writes to {namespace} are acknowledged"));
            }
            audit::act(&self.peer, user.name(), &format!("set the mode of {namespace} to {mode:?}"));
            return Ok(());
        }
        let (reads, writes) = (asked.reads(), asked.writes());
        if !user.may(Face::Kv, namespace, writes) {
            return denied(format!("{} namespace {namespace}", if writes { "change" } else { "read" }));
        }
        let covers = |wanted: fn(&Keys) -> bool, key: &[u8]| {
            user.keys.iter().any(|keys| wanted(keys) && matches(&keys.pattern, key, false))
        };
        let has = |key: &OwnedKey| {
            let key = text_of(key.clone());
            (!reads || covers(|keys| keys.read, &key)) && (!writes || covers(|keys| keys.write, &key))
        };
        let all = || user.keys.iter().any(|keys| keys.read && keys.pattern == b"*");
        if !asked.each_key(has).unwrap_or_else(all) {
            return denied(format!("reach some of these keys of {namespace}"));
        }
        Ok(())
    }
}
