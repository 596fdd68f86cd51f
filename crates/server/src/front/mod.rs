//! What all protocols have in common before a client is known: sockets that listen, TLS, strangers, users.

pub(crate) mod audit;
pub(crate) mod certificates;
pub(crate) mod listen;
pub(crate) mod logins;
pub(crate) mod pattern;
pub(crate) mod random;
pub(crate) mod strangers;
pub(crate) mod tls;
pub(crate) mod unix;
pub(crate) mod users;

pub use audit::AUDIT;
pub use listen::{Endpoint, Passed};
pub use logins::{LOGINS_WAITING_MAX, hash_password};
pub use random::token;
pub use tls::{TlsError, TlsFiles};
pub use unix::UnixAccess;
pub use users::{DEFAULT_USER, Face, Role, USER_NAME_BYTES_MAX, USERS_MAX, User, Users, UsersError};
