//! Sockets that a supervisor has bound and passes at the start, as systemd's socket units do.
//!
//! LISTEN_FDS, LISTEN_FDNAMES → [`Sockets::take`] → each protocol listens on its own, not on its settings' addresses
//!
//! Invariant: a socket that was passed is listened on, or the start fails with its name.

use esker_server::front::Passed;
use listenfd::ListenFd;

use crate::exit::Failure;

/// The names that sockets have, `FileDescriptorName=` of systemd, and what is served on them.
const NAMES: [&str; 7] = ["resp", "resp-tls", "nbd", "grpc", "thrift", "http", "https"];

/// What was passed, by protocol.
#[derive(Default)]
pub struct Sockets {
    /// The Redis protocol.
    pub resp: Vec<Passed>,
    /// The same by TLS.
    pub resp_tls: Vec<Passed>,
    /// Disks.
    pub nbd: Vec<Passed>,
    /// Logs and map.
    pub grpc: Vec<Passed>,
    /// A namespace of keys.
    pub thrift: Vec<Passed>,
    /// Figures, by HTTP and by HTTPS.
    pub http: Vec<Passed>,
    pub https: Vec<Passed>,
}

impl Sockets {
    /// Takes what was passed to this process; nothing without a supervisor.
    ///
    /// # Errors
    /// [`Failure::usage`] for a socket of another name or kind.
    pub fn take() -> Result<Self, Failure> {
        // Before they are taken: the variables may go with them.
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        // Variables without a process are another's, inherited.
        let named = std::env::var("LISTEN_PID").is_ok_and(|process| !process.is_empty());
        let mut passed = if named { ListenFd::from_env() } else { ListenFd::empty() };
        let mut sockets = Self::default();
        let mut names = names.split(':');
        for number in 0..passed.len() {
            let name = names.next().unwrap_or_default();
            let socket = match passed.take_tcp_listener(number) {
                Ok(socket) => socket.map(Passed::tcp),
                // It is none of TCP.
                Err(_) => passed.take_unix_listener(number).ok().flatten().map(Passed::unix),
            };
            let place = match name {
                // A supervisor that gives no names passes what Redis would listen on.
                "" | "resp" => &mut sockets.resp,
                "resp-tls" => &mut sockets.resp_tls,
                "nbd" => &mut sockets.nbd,
                "grpc" => &mut sockets.grpc,
                "thrift" => &mut sockets.thrift,
                "http" => &mut sockets.http,
                "https" => &mut sockets.https,
                other => {
                    let names = NAMES.join(", ");
                    return Err(Failure::usage(format!(
                        "socket {other:?} was passed: FileDescriptorName= is one of {names}"
                    )));
                }
            };
            let refused = |why: String| Failure::usage(format!("socket {name:?} was passed: {why}"));
            match socket {
                Some(Ok(socket)) => place.push(socket),
                Some(Err(error)) => return Err(refused(error.to_string())),
                None => return Err(refused("it is neither a TCP nor a unix stream socket".into())),
            }
        }
        Ok(sockets)
    }
}
