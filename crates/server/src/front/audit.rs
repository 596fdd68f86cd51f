//! The audit log: logins, refusals, and what operators did. Events of their own target, in whatever the process
//! logs to.
//!
//! Invariant: no event holds a password, a token, or a value.

/// The target of all events of the audit log.
pub const AUDIT: &str = "esker_audit";

/// A user has shown that it is he.
pub(crate) fn login(client: &str, user: &str) {
    tracing::info!(target: AUDIT, event = "login", client, user);
}

/// A client has not shown that it is this user.
pub(crate) fn login_failed(client: &str, user: &str) {
    tracing::warn!(target: AUDIT, event = "login failed", client, user);
}

/// A user may not do what he asked for.
pub(crate) fn denied(client: &str, user: &str, what: &str) {
    tracing::warn!(target: AUDIT, event = "denied", client, user, what);
}

/// A user did what is for operators.
pub(crate) fn act(client: &str, user: &str, what: &str) {
    tracing::info!(target: AUDIT, event = "act", client, user, what);
}
