//! The users of a server: what each may do, and how each shows that it is he.
//!
//! file of users, passwords and tokens of the settings → [`Users`] → the protocol looks a client up by its password,
//! its token or the name in its certificate → [`User`] → [`User::may`]
//!
//! Invariants:
//! 1. A file that cannot be read whole changes nothing.
//! 2. Each change has a new [`Users::generation`]: a session that keeps a user looks whether he is the same still.
//! 3. Secrets are compared in a time that does not tell where they differ, and are in no message.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use argon2::Argon2;
use argon2::password_hash::PasswordVerifier;
use argon2::password_hash::phc::PasswordHash;
use parking_lot::Mutex;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::front::pattern;

/// The user of clients that say no name.
pub const DEFAULT_USER: &str = "default";
/// Longest name of a user, in bytes.
pub const USER_NAME_BYTES_MAX: usize = 128;
/// Most users.
pub const USERS_MAX: usize = 10_000;

/// What a user may do, from little to much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Reads.
    Reader,
    /// Reads and writes data.
    Writer,
    /// Everything, what changes durability or ends the server too.
    Operator,
}

/// What is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Face {
    /// Keys and values, by the Redis protocol.
    Kv,
    /// Logs.
    Log,
    /// The map's tables.
    Map,
    /// Disks.
    Volume,
}

/// What a password is checked with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Secret {
    /// As it was given in the settings.
    Plain(String),
    /// SHA-256 of it, as Redis keeps it.
    Sha256([u8; 32]),
    /// Argon2, as a PHC string.
    Argon2(String),
}

/// What a pattern of keys allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) pattern: Vec<u8>,
}

/// A user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub(crate) name: String,
    pub(crate) enabled: bool,
    /// Any password is right, and none is needed.
    pub(crate) no_password: bool,
    pub(crate) secrets: Vec<Secret>,
    pub(crate) tokens: Vec<[u8; 32]>,
    pub(crate) certificates: Vec<String>,
    pub(crate) role: Role,
    pub(crate) faces: Vec<Face>,
    /// Patterns of the names of logs, tables and disks.
    pub(crate) names: Vec<String>,
    pub(crate) keys: Vec<Keys>,
    /// Rules about commands of the Redis protocol, in order, such as `+@read`.
    pub(crate) commands: Vec<String>,
}

/// The file, as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    user: Vec<Written>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: String,
    role: Role,
    #[serde(default = "yes")]
    enabled: bool,
    #[serde(default)]
    no_password: bool,
    #[serde(default)]
    passwords: Vec<String>,
    #[serde(default)]
    tokens: Vec<String>,
    #[serde(default)]
    certificates: Vec<String>,
    #[serde(default = "all_faces")]
    faces: Vec<Face>,
    #[serde(default = "anything")]
    names: Vec<String>,
    #[serde(default = "anything")]
    keys: Vec<String>,
    #[serde(default)]
    commands: Vec<String>,
}

fn yes() -> bool {
    true
}

fn all_faces() -> Vec<Face> {
    vec![Face::Kv, Face::Log, Face::Map, Face::Volume]
}

fn anything() -> Vec<String> {
    vec!["*".into()]
}

/// A file of users that cannot be used. Fix it.
#[derive(Debug, thiserror::Error)]
#[error("users file {}: {why}", path.display())]
pub struct UsersError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

/// SHA-256 of a secret.
pub(crate) fn digest(secret: &[u8]) -> [u8; 32] {
    Sha256::digest(secret).into()
}

/// 64 digits of hexadecimal as bytes.
pub(crate) fn from_hex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = (digit(0)? << 4 | digit(1)?) as u8;
    }
    Some(bytes)
}

/// Compares in a time that does not tell where the difference is.
pub(crate) fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

impl Secret {
    fn parse(text: &str) -> Result<Self, String> {
        if let Some(hash) = text.strip_prefix("sha256:") {
            return from_hex(hash).map(Self::Sha256).ok_or_else(|| "sha256: wants 64 hexadecimal digits".into());
        }
        PasswordHash::new(text)
            .map_err(|error| format!("a password is given as a hash of `esker password` or as sha256:HEX: {error}"))?;
        Ok(Self::Argon2(text.into()))
    }
}

impl Secret {
    /// Whether it is that of this password; takes its time.
    pub(crate) fn is(&self, password: &[u8]) -> bool {
        match self {
            Self::Plain(plain) => same(password, plain.as_bytes()),
            Self::Sha256(hash) => same(&digest(password), hash),
            Self::Argon2(hash) => is_hash_of(hash, password),
        }
    }
}

/// Whether an argon2 hash is that of this password; takes its time.
pub(crate) fn is_hash_of(hash: &str, password: &[u8]) -> bool {
    PasswordHash::new(hash).is_ok_and(|hash| Argon2::default().verify_password(password, &hash).is_ok())
}

impl User {
    /// A user of this name who may do nothing yet: as `ACL SETUSER` of Redis makes one.
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            enabled: false,
            no_password: false,
            secrets: Vec::new(),
            tokens: Vec::new(),
            certificates: Vec::new(),
            role: Role::Operator,
            faces: vec![Face::Kv],
            names: Vec::new(),
            keys: Vec::new(),
            commands: vec!["-@all".into()],
        }
    }

    /// The user of servers without users: he may do everything.
    pub(crate) fn everybody(password: Option<&str>) -> Self {
        Self {
            enabled: true,
            no_password: password.is_none(),
            secrets: password.map(|password| Secret::Plain(password.into())).into_iter().collect(),
            faces: all_faces(),
            names: anything(),
            keys: vec![Keys { read: true, write: true, pattern: b"*".to_vec() }],
            commands: vec!["+@all".into()],
            ..Self::new(DEFAULT_USER)
        }
    }

    fn read(written: Written) -> Result<Self, String> {
        let Written { name, .. } = &written;
        if !is_name(name) {
            return Err(format!("user {name:?}: a name is 1 to {USER_NAME_BYTES_MAX} bytes without spaces"));
        }
        let of = |why: String| format!("user {name}: {why}");
        let secrets = written.passwords.iter().map(|text| Secret::parse(text)).collect::<Result<_, _>>().map_err(of)?;
        let token = |text: &String| {
            let hash = text.strip_prefix("sha256:").and_then(from_hex);
            hash.ok_or_else(|| of("a token is given as `esker token` shows it: sha256:HEX".into()))
        };
        let tokens = written.tokens.iter().map(token).collect::<Result<_, _>>()?;
        let keys = written.keys.iter().map(|pattern| Keys::everything(pattern.as_bytes())).collect();
        let base: &[&str] = match written.role {
            Role::Operator => &["+@all"],
            Role::Writer => &["+@all", "-@admin", "-@dangerous", "+info"],
            Role::Reader => &["-@all", "+@read", "+@connection", "+@transaction", "-@dangerous", "-@admin", "+info"],
        };
        if let Some(rule) = written.commands.iter().find(|rule| !rule.starts_with(['+', '-']) || rule.len() < 2) {
            return Err(of(format!("rule {rule:?}: expected such as +get, -keys or +@read")));
        }
        let commands = base.iter().map(|rule| (*rule).to_owned()).chain(written.commands).collect();
        Ok(Self {
            name: written.name,
            enabled: written.enabled,
            no_password: written.no_password,
            secrets,
            tokens,
            certificates: written.certificates,
            role: written.role,
            faces: written.faces,
            names: written.names,
            keys,
            commands,
        })
    }

    /// His name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What he may do.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Whether he may use this face.
    pub(crate) fn uses(&self, face: Face) -> bool {
        self.enabled && self.faces.contains(&face)
    }

    /// Whether he may read, or write, the log, table or disk of this name.
    pub(crate) fn may(&self, face: Face, name: &str, write: bool) -> bool {
        self.uses(face)
            && (!write || self.role >= Role::Writer)
            && self.names.iter().any(|pattern| pattern::matches(pattern.as_bytes(), name.as_bytes(), false))
    }

    /// Whether one of his secrets that cost nothing to check is this password.
    pub(crate) fn knows_at_once(&self, password: &[u8]) -> bool {
        self.secrets.iter().any(|secret| match secret {
            Secret::Argon2(_) => false,
            quick => quick.is(password),
        })
    }

    /// His secrets that take their time.
    pub(crate) fn hashes(&self) -> Vec<String> {
        self.secrets
            .iter()
            .filter_map(|secret| match secret {
                Secret::Argon2(hash) => Some(hash.clone()),
                Secret::Plain(_) | Secret::Sha256(_) => None,
            })
            .collect()
    }
}

impl Keys {
    /// Keys of this pattern, to read and to write.
    pub(crate) fn everything(pattern: &[u8]) -> Self {
        Self { read: true, write: true, pattern: pattern.to_vec() }
    }
}

/// Whether this may be a user's name.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=USER_NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(|c| c.is_whitespace() || c.is_control())
}

#[derive(Clone, Default)]
struct Directory {
    users: BTreeMap<String, Arc<User>>,
    by_token: HashMap<[u8; 32], Arc<User>>,
    by_certificate: HashMap<String, Arc<User>>,
}

impl Directory {
    fn of(users: Vec<User>) -> Result<Self, String> {
        if users.len() > USERS_MAX {
            return Err(format!("{} users are above USERS_MAX = {USERS_MAX}", users.len()));
        }
        let mut directory = Self::default();
        for user in users {
            let user = Arc::new(user);
            for token in &user.tokens {
                if let Some(other) = directory.by_token.insert(*token, Arc::clone(&user)) {
                    return Err(format!("users {} and {} have one token", other.name, user.name));
                }
            }
            for name in &user.certificates {
                if let Some(other) = directory.by_certificate.insert(name.clone(), Arc::clone(&user)) {
                    return Err(format!("users {} and {} have the certificate name {name}", other.name, user.name));
                }
            }
            if let Some(user) = directory.users.insert(user.name.clone(), user) {
                return Err(format!("user {} is there twice", user.name));
            }
        }
        Ok(directory)
    }
}

/// The users of a server, for all its protocols.
pub struct Users {
    file: Option<PathBuf>,
    /// Held while the directory is changed.
    changing: Mutex<()>,
    directory: ArcSwap<Directory>,
    generation: AtomicU64,
    /// A client that shows nothing has no user.
    closed: AtomicBool,
    /// Whether a rule about commands means something.
    means: OnceLock<fn(&str) -> bool>,
}

impl std::fmt::Debug for Users {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Users").field("file", &self.file).finish_non_exhaustive()
    }
}

/// The same users, not only equal ones.
impl PartialEq for Users {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Users {}

impl Users {
    /// Those of a server without a file: `default`, who may do everything, with this password if there is one, and by
    /// this token.
    pub fn alone(password: Option<&str>, token: Option<&str>) -> Arc<Self> {
        let mut user = User::everybody(password);
        user.tokens = token.map(|token| digest(token.as_bytes())).into_iter().collect();
        user.no_password &= token.is_none();
        // A single user shares its name with no other.
        Arc::new(Self::with(None, Directory::of(vec![user]).unwrap_or_default()))
    }

    /// From now on rules about commands have to mean something to this.
    ///
    /// # Errors
    /// The first that does not, and its user.
    pub(crate) fn understand(&self, means: fn(&str) -> bool) -> Result<(), String> {
        let _changing = self.changing.lock();
        // Set by the first protocol that has commands; there is one.
        let _ = self.means.set(means);
        self.allowed(&self.directory.load())
    }

    /// Those of a file, and `default` where a password or a token is given and the file does not name him. Without
    /// either, a client that says no name may do nothing unless the file names `default`.
    ///
    /// # Errors
    /// [`UsersError`] says what cannot be read.
    pub fn open(file: &Path, password: Option<&str>, token: Option<&str>) -> Result<Arc<Self>, UsersError> {
        let directory = read(file, password, token)?;
        Ok(Arc::new(Self::with(Some(file.to_owned()), directory)))
    }

    fn with(file: Option<PathBuf>, directory: Directory) -> Self {
        let (changing, generation) = (Mutex::new(()), AtomicU64::new(1));
        let (directory, closed, means) = (ArcSwap::from_pointee(directory), AtomicBool::new(false), OnceLock::new());
        Self { file, changing, directory, generation, closed, means }
    }

    /// Reads the file anew, with the password and the token of the settings; what is returned puts it into force. What
    /// `ACL SETUSER` has changed is gone then.
    ///
    /// # Errors
    /// [`UsersError`]; then nothing changes.
    pub fn prepare(
        self: &Arc<Self>,
        password: Option<&str>,
        token: Option<&str>,
    ) -> Result<Box<dyn FnOnce() + Send>, UsersError> {
        let Some(file) = &self.file else { return Ok(Box::new(|| ())) };
        let directory = read(file, password, token)?;
        self.allowed(&directory).map_err(|why| UsersError { path: file.clone(), why })?;
        let own = Arc::clone(self);
        Ok(Box::new(move || {
            let _changing = own.changing.lock();
            own.put(directory);
        }))
    }

    /// [`Users::prepare`], put into force at once.
    ///
    /// # Errors
    /// [`UsersError`]; then nothing changes.
    pub fn reload(self: &Arc<Self>, password: Option<&str>, token: Option<&str>) -> Result<(), UsersError> {
        self.prepare(password, token).map(|apply| apply())
    }

    /// Gives `default` this token in place of those he has.
    pub(crate) fn set_token(&self, token: &str) {
        // A user with a token more is no less closed.
        let _ = self.change(DEFAULT_USER, |user| {
            let mut user = user.unwrap_or_else(|| User::everybody(None));
            (user.no_password, user.tokens) = (false, vec![digest(token.as_bytes())]);
            Some(user)
        });
    }

    /// The password of `default`, where it is known as it was given.
    pub(crate) fn password(&self) -> Option<String> {
        let user = self.find(DEFAULT_USER)?;
        user.secrets.iter().find_map(|secret| match secret {
            Secret::Plain(plain) => Some(plain.clone()),
            Secret::Sha256(_) | Secret::Argon2(_) => None,
        })
    }

    /// Gives `default` this password in place of those he has; `None`: he needs none.
    ///
    /// # Errors
    /// Why he must have one.
    pub(crate) fn set_password(&self, password: Option<&str>) -> Result<(), String> {
        let changed = self.change(DEFAULT_USER, |user| {
            let mut user = user.unwrap_or_else(|| User::everybody(None));
            user.no_password = password.is_none();
            user.secrets = password.map(|password| Secret::Plain(password.into())).into_iter().collect();
            Some(user)
        });
        changed.map(|_| ())
    }

    fn put(&self, directory: Directory) {
        self.directory.store(Arc::new(directory));
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether they are those of a file.
    pub fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Changes whenever a user does.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// All users, by name.
    pub(crate) fn all(&self) -> Vec<Arc<User>> {
        self.directory.load().users.values().cloned().collect()
    }

    /// The user of this name.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<User>> {
        self.directory.load().users.get(name).cloned()
    }

    /// The user with this token.
    pub(crate) fn by_token(&self, token: &[u8]) -> Option<Arc<User>> {
        self.directory.load().by_token.get(&digest(token)).filter(|user| user.enabled).cloned()
    }

    /// Whether any user has a token.
    pub(crate) fn has_tokens(&self) -> bool {
        !self.directory.load().by_token.is_empty()
    }

    /// The user that one of the names in a client's certificate means.
    pub(crate) fn by_certificate(&self, names: &[String]) -> Option<Arc<User>> {
        let directory = self.directory.load();
        let mut found = names.iter().filter_map(|name| directory.by_certificate.get(name));
        found.find(|user| user.enabled).cloned()
    }

    /// The user of a client that shows nothing: `default`, where he needs no password and may use this face.
    pub(crate) fn nobody(&self, face: Face) -> Option<Arc<User>> {
        self.find(DEFAULT_USER).filter(|user| user.no_password && user.uses(face))
    }

    /// A client that shows nothing is to have no user, now and later: an address is listened on that others reach.
    ///
    /// # Errors
    /// Why that is not so now.
    pub(crate) fn close(&self) -> Result<(), String> {
        let _changing = self.changing.lock();
        self.closed.store(true, Ordering::SeqCst);
        self.allowed(&self.directory.load())
    }

    fn allowed(&self, directory: &Directory) -> Result<(), String> {
        if let Some(means) = self.means.get() {
            for user in directory.users.values() {
                if let Some(rule) = user.commands.iter().find(|rule| !means(rule)) {
                    return Err(format!("user {}: rule {rule:?} names no command or category", user.name));
                }
            }
        }
        let open = directory.users.get(DEFAULT_USER).is_some_and(|user| user.enabled && user.no_password);
        if open && self.closed.load(Ordering::SeqCst) {
            return Err("the server listens on addresses that others reach: user default needs a password".into());
        }
        Ok(())
    }

    /// Changes the user of this name, adds or removes him; true if he was there.
    ///
    /// # Errors
    /// Why it must not be: then nothing changes.
    pub(crate) fn change(&self, name: &str, change: impl FnOnce(Option<User>) -> Option<User>) -> Result<bool, String> {
        let _changing = self.changing.lock();
        let mut users = self.directory.load().users.clone();
        let old = users.remove(name).map(|user| (*user).clone());
        let was_there = old.is_some();
        if let Some(user) = change(old) {
            users.insert(name.to_owned(), Arc::new(user));
        }
        let directory = Directory::of(users.into_values().map(Arc::unwrap_or_clone).collect())?;
        self.allowed(&directory)?;
        self.put(directory);
        Ok(was_there)
    }
}

fn read(file: &Path, password: Option<&str>, token: Option<&str>) -> Result<Directory, UsersError> {
    let bad = |why: String| UsersError { path: file.to_owned(), why };
    let text = std::fs::read_to_string(file).map_err(|error| bad(error.to_string()))?;
    // The line itself may hold a password.
    let wrong = |error: toml::de::Error| {
        let line = error.span().map_or(0, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        bad(format!("line {line}: {}", error.message()))
    };
    let written: File = toml::from_str(&text).map_err(wrong)?;
    let mut users = written.user.into_iter().map(User::read).collect::<Result<Vec<_>, _>>().map_err(bad)?;
    let named = users.iter_mut().find(|user| user.name == DEFAULT_USER);
    match named {
        Some(_) if password.is_some() || token.is_some() => {
            return Err(bad("user default is there, and a password or token in the settings is his as well".into()));
        }
        Some(_) => {}
        None => {
            let mut user = User::everybody(password);
            user.tokens = token.map(|token| digest(token.as_bytes())).into_iter().collect();
            // Without a secret this user would let every client in.
            user.no_password = false;
            user.enabled = password.is_some() || token.is_some();
            users.push(user);
        }
    }
    Directory::of(users).map_err(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        [[user]]
        name = "ann"
        role = "reader"
        passwords = ["sha256:2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90"]
        tokens = ["sha256:2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90"]
        names = ["orders*"]
        faces = ["log"]

        [[user]]
        name = "bob"
        role = "writer"
        certificates = ["bob.example"]
        enabled = false
    "#;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn a_user_may_what_his_role_faces_and_names_allow() {
        let file = file(FILE);
        let users = Users::open(file.path(), None, None).unwrap();
        let ann = users.by_token(b"alice").unwrap();
        assert!(ann.knows_at_once(b"alice") && !ann.knows_at_once(b"alic"));
        assert!(ann.may(Face::Log, "orders-1", false));
        for (face, name, write) in
            [(Face::Log, "orders-1", true), (Face::Log, "other", false), (Face::Map, "orders", false)]
        {
            assert!(!ann.may(face, name, write), "{face:?} {name} {write}");
        }
        // The certificate of a user who is not enabled names no user; and a client that shows nothing is not `default`,
        // which has no secret here.
        assert!(users.by_certificate(&["bob.example".into()]).is_none());
        assert!(users.nobody(Face::Log).is_none() && !users.find(DEFAULT_USER).unwrap().enabled);
    }

    #[test]
    fn a_file_that_is_wrong_is_refused_with_the_reason_and_changes_nothing() {
        let file = file(FILE);
        let users = Users::open(file.path(), None, None).unwrap();
        let generation = users.generation();
        for (text, why) in [
            ("[[user]]\nname = 'x'\nrole = 'king'", "king"),
            ("[[user]]\nname = 'x y'\nrole = 'reader'", "spaces"),
            ("[[user]]\nname = 'x'\nrole = 'reader'\npasswords = ['secret']", "esker password"),
            ("[[user]]\nname = 'x'\nrole = 'reader'\ntokens = ['secret']", "esker token"),
            ("[[user]]\nname = 'x'\nrole = 'reader'\n[[user]]\nname = 'x'\nrole = 'reader'", "twice"),
            (
                "[[user]]\nname='x'\nrole='reader'\ncertificates=['c']\n[[user]]\nname='y'\nrole='reader'\n\
                 certificates=['c']",
                "certificate name c",
            ),
            ("[[user]]\nname = 'x'\nrole = 'reader'\nkinds = []", "kinds"),
        ] {
            std::fs::write(file.path(), text).unwrap();
            let error = users.reload(None, None).unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("secret\""), "{error}");
        }
        assert_eq!(users.generation(), generation);
        assert!(users.find("ann").is_some());
        std::fs::write(file.path(), "").unwrap();
        users.reload(Some("pw"), None).unwrap();
        assert!(users.generation() > generation && users.find("ann").is_none());
        assert!(users.find(DEFAULT_USER).unwrap().knows_at_once(b"pw"));
    }
}
