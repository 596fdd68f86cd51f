//! Checking passwords, which takes its time on purpose: on a thread of its own, never on those that answer.
//!
//! password → known at once? → answer; else queue → thread → argon2 → answer, later where an address fails often
//!
//! Invariants:
//! 1. Waiting jobs are bounded: one more is refused.
//! 2. An address whose logins failed lately, or of which several wait, waits behind the others, so that guessing keeps
//!    no client of another address out.
//! 3. A password that was right is right at once until its hash changes; neither it nor what it was is kept.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use argon2::Argon2;
use argon2::password_hash::PasswordHasher;
use esker_store::{Completion, Error, Promise, promised};
use parking_lot::{Condvar, Mutex};
use sha2::{Digest, Sha256};

use crate::front::random;
use crate::front::users::{Secret, User, is_hash_of};

/// Most logins that wait to be checked; one more is refused.
pub const LOGINS_WAITING_MAX: usize = 4_096;
/// Failures of an address that are answered at once; each later one waits twice as long as the one before.
const FREE_FAILURES: u32 = 3;
/// What the first that waits waits for, and the longest.
const DELAY: Duration = Duration::from_millis(100);
const DELAY_MAX: Duration = Duration::from_secs(5);
/// Jobs of one address that go before those of addresses that have failed.
const OF_ADDRESS_MAX: usize = 8;
/// An address that has failed is remembered for so long.
const MEMORY: Duration = Duration::from_secs(60);
/// Addresses remembered.
const ADDRESSES_MAX: usize = 4_096;
/// Right passwords remembered.
const RIGHT_MAX: usize = 1_024;
/// A thread that has had nothing to do for so long looks whether it is needed still.
const LOOK: Duration = Duration::from_secs(1);
/// What is checked for a user that is not there, so that he takes as long as one that is.
const NOBODY: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$YWFhYWFhYWFhYWFhYWFhYQ$YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE";

enum Job {
    Check { address: String, hashes: Vec<String>, password: Vec<u8>, promise: Promise<bool> },
    Work(Box<dyn FnOnce() + Send>),
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Those of addresses that have failed.
    doubtful: VecDeque<Job>,
    /// Failures to be told, by when; the number tells those of one moment apart.
    delayed: BTreeMap<(Instant, u64), Promise<bool>>,
    number: u64,
    failures: HashMap<String, (u32, Instant)>,
    right: HashSet<[u8; 32]>,
    started: bool,
}

struct Inner {
    /// What makes the digests of right passwords worthless elsewhere.
    key: [u8; 32],
    state: Mutex<State>,
    changed: Condvar,
}

/// The logins of a server. Its thread is started when it is needed.
pub(crate) struct Logins(Arc<Inner>);

impl Default for Logins {
    fn default() -> Self {
        let mut key = [0; 32];
        if let Err(error) = random::fill(&mut key) {
            tracing::warn!(%error, "digests of passwords in memory have no key");
        }
        Self(Arc::new(Inner { key, state: Mutex::default(), changed: Condvar::new() }))
    }
}

impl Logins {
    /// Whether the password is that of this user; without a user it never is.
    ///
    /// `address` is where the client comes from, without its port.
    pub(crate) fn check(&self, user: Option<&User>, password: &[u8], address: &str) -> Completion<bool> {
        let user = user.filter(|user| user.enabled);
        let inner = &self.0;
        if let Some(user) = user {
            let known = user.no_password || user.knows_at_once(password);
            let mut hashes = user.secrets_hashed();
            if known || hashes.any(|hash| inner.state.lock().right.contains(&inner.mark(hash, password))) {
                return Completion::ready(Ok(true));
            }
        }
        let (promise, answer) = promised("the thread that checks passwords");
        let hashes = match user {
            Some(user) => user.hashes(),
            None => vec![NOBODY.into()],
        };
        let mut state = inner.state.lock();
        if hashes.is_empty() {
            inner.fail(&mut state, address, promise);
        } else {
            state.forget_unwanted();
            if state.jobs.len() + state.doubtful.len() >= LOGINS_WAITING_MAX {
                return Completion::ready(Err(Error::Invalid {
                    what: "login",
                    why: format!(
                        "{LOGINS_WAITING_MAX} logins wait to be checked (LOGINS_WAITING_MAX): try again later"
                    ),
                }));
            }
            let job = Job::Check { address: address.into(), hashes, password: password.to_vec(), promise };
            let failed = state.failures.get(address).is_some_and(|(_, when)| when.elapsed() < MEMORY);
            let of_it = |job: &&Job| matches!(job, Job::Check { address: other, .. } if other == address);
            let several = state.jobs.iter().filter(of_it).nth(OF_ADDRESS_MAX - 1).is_some();
            if failed || several { &mut state.doubtful } else { &mut state.jobs }.push_back(job);
        }
        inner.start(&mut state);
        drop(state);
        inner.changed.notify_one();
        answer
    }

    /// Does work with passwords, such as hashing one.
    pub(crate) fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Completion<T> {
        let (promise, answer) = promised("the thread that checks passwords");
        let mut state = self.0.state.lock();
        state.jobs.push_back(Job::Work(Box::new(move || promise.fulfil((Ok(work()), None)))));
        self.0.start(&mut state);
        drop(state);
        self.0.changed.notify_one();
        answer
    }
}

impl User {
    fn secrets_hashed(&self) -> impl Iterator<Item = &str> {
        self.secrets.iter().filter_map(|secret| match secret {
            Secret::Argon2(hash) => Some(hash.as_str()),
            _ => None,
        })
    }
}

impl State {
    /// Drops the jobs whose clients wait no more, where there are many.
    fn forget_unwanted(&mut self) {
        if self.jobs.len() + self.doubtful.len() >= LOGINS_WAITING_MAX {
            let wanted = |job: &Job| !matches!(job, Job::Check { promise, .. } if !promise.is_wanted());
            self.jobs.retain(wanted);
            self.doubtful.retain(wanted);
        }
    }
}

impl Inner {
    fn mark(&self, hash: &str, password: &[u8]) -> [u8; 32] {
        let length = (hash.len() as u64).to_be_bytes();
        let parts = [&self.key[..], &length, hash.as_bytes(), password];
        parts.iter().fold(Sha256::new(), |digest, part| digest.chain_update(part)).finalize().into()
    }

    /// Notes a failure, and tells of it when its time has come.
    fn fail(&self, state: &mut State, address: &str, promise: Promise<bool>) {
        let now = Instant::now();
        if state.failures.len() >= ADDRESSES_MAX && !state.failures.contains_key(address) {
            state.failures.retain(|_, (_, when)| now.duration_since(*when) < MEMORY);
            if state.failures.len() >= ADDRESSES_MAX {
                state.failures.clear();
            }
        }
        let (count, when) = state.failures.entry(address.into()).or_insert((0, now));
        *count = if now.duration_since(*when) < MEMORY { *count + 1 } else { 1 };
        *when = now;
        let Some(times) = count.checked_sub(FREE_FAILURES + 1) else {
            return promise.fulfil((Ok(false), None));
        };
        let delay = DELAY_MAX.min(DELAY * 2u32.pow(times.min(10)));
        state.number += 1;
        state.delayed.insert((now + delay, state.number), promise);
    }

    fn start(self: &Arc<Self>, state: &mut State) {
        if state.started {
            return;
        }
        let weak = Arc::downgrade(self);
        let started = std::thread::Builder::new().name("esker-logins".into()).spawn(move || work(&weak));
        match started {
            Ok(_) => state.started = true,
            // What waits is answered when the promises are dropped: the login fails, and is tried again.
            Err(error) => {
                tracing::error!(%error, "cannot start the thread that checks passwords");
                state.jobs.clear();
                state.doubtful.clear();
                state.delayed.clear();
            }
        }
    }

    /// The next thing to do, waited for until the next look.
    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        let now = Instant::now();
        while let Some(first) = state.delayed.first_entry() {
            if first.key().0 > now {
                break;
            }
            first.remove().fulfil((Ok(false), None));
        }
        if let Some(job) = state.jobs.pop_front().or_else(|| state.doubtful.pop_front()) {
            return Some(job);
        }
        let until = state.delayed.first_key_value().map_or(now + LOOK, |((when, _), _)| (*when).min(now + LOOK));
        self.changed.wait_until(&mut state, until);
        None
    }

    fn check(&self, address: &str, hashes: &[String], password: &[u8], promise: Promise<bool>) {
        if !promise.is_wanted() {
            return;
        }
        let right = hashes.iter().find(|hash| is_hash_of(hash, password));
        let mut state = self.state.lock();
        match right {
            Some(hash) => {
                if state.right.len() >= RIGHT_MAX {
                    state.right.clear();
                }
                state.right.insert(self.mark(hash, password));
                drop(state);
                promise.fulfil((Ok(true), None));
            }
            None => self.fail(&mut state, address, promise),
        }
    }
}

fn work(inner: &Weak<Inner>) {
    // It ends with the server: no client waits then.
    while let Some(inner) = inner.upgrade() {
        let job = inner.next();
        // A defect in one login is not the end of all.
        let done = catch_unwind(AssertUnwindSafe(|| match job {
            Some(Job::Check { address, hashes, password, promise }) => {
                inner.check(&address, &hashes, &password, promise);
            }
            Some(Job::Work(work)) => work(),
            None => {}
        }));
        if done.is_err() {
            tracing::error!("a login panicked");
        }
    }
}

/// A password as argon2 keeps it, a PHC string with a salt of its own.
///
/// # Errors
/// The cause, as text: of a password that is too long, or where there is no randomness.
pub fn hash_password(password: &[u8]) -> Result<String, String> {
    Argon2::default().hash_password(password).map(|hash| hash.to_string()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(password: &[u8]) -> User {
        let mut user = User::new("ann");
        user.enabled = true;
        user.secrets = vec![Secret::Argon2(hash_password(password).unwrap())];
        user
    }

    #[test]
    fn a_right_password_is_right_at_once_the_second_time_and_another_never() {
        let logins = Logins::default();
        let ann = user(b"secret");
        for password in [&b"other"[..], b"", b"secret2"] {
            assert!(!logins.check(Some(&ann), password, "a").wait().unwrap());
        }
        let first = logins.check(Some(&ann), b"secret", "b");
        assert!(!first.is_here() && first.wait().unwrap());
        let second = logins.check(Some(&ann), b"secret", "b");
        assert!(second.is_here() && second.wait().unwrap());
        // Another hash of the same password is another password.
        assert!(!logins.check(Some(&user(b"secret")), b"secret", "b").is_here());
        assert!(!logins.check(None, b"secret", "c").wait().unwrap());
        let disabled = User { enabled: false, ..ann };
        assert!(!logins.check(Some(&disabled), b"secret", "c").wait().unwrap());
    }

    #[test]
    fn one_who_guesses_waits_longer_each_time_and_others_do_not() {
        let logins = Logins::default();
        let ann = User { secrets: vec![Secret::Plain("secret".into())], enabled: true, ..User::new("ann") };
        let fail = |address| {
            let began = Instant::now();
            assert!(!logins.check(Some(&ann), b"guess", address).wait().unwrap());
            began.elapsed()
        };
        for _ in 0..FREE_FAILURES {
            fail("guesser");
        }
        assert!(fail("guesser") >= DELAY && fail("guesser") >= DELAY * 2);
        // A client at the same address that knows the password is let in at once.
        assert!(logins.check(Some(&ann), b"secret", "guesser").is_here());
        assert_eq!(logins.0.state.lock().failures["guesser"].0, FREE_FAILURES + 2);
        fail("other");
        assert_eq!(logins.0.state.lock().failures["other"].0, 1);
    }
}
