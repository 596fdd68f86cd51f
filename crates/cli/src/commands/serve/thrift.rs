//! The Thrift side of `esker serve`: its flags and settings, and the server of a namespace of keys.
//!
//! Invariant: where nothing of Thrift is asked for, no namespace is made.

use std::path::PathBuf;
use std::thread::JoinHandle;

use clap::Args;
use esker::kv::Kind;
use esker_server::front::Passed;
use esker_server::thrift::{self, Address, Config, Handle, NAMESPACE, Server, Sharing, WriteMode};

use super::shared::{Front, addresses};
use crate::config::ServeSettings;
use crate::exit::{Code, Failure};

/// The flags of `esker serve` that begin with thrift.
#[derive(Args, Default)]
pub struct ThriftFlags {
    /// Address to serve a namespace of keys on by Thrift, such as 127.0.0.1:9901; may be given several times. Speaks
    /// TLS where there is a certificate
    #[arg(long = "thrift", value_name = "ADDRESS")]
    thrift_listen: Vec<String>,
    /// Unix socket to serve Thrift on
    #[arg(long = "thrift-unix-socket", value_name = "PATH")]
    thrift_unix_socket: Option<String>,
    /// The namespace that is served by Thrift, and its keys: int (decimal numbers) or bytes, the default
    #[arg(long = "thrift-namespace", value_name = "NAME[:KIND]")]
    thrift_namespace: Option<String>,
    /// The node of ZooKeeper below which to register, such as /data/zdb; in a cluster
    #[arg(long = "thrift-registry", value_name = "NODE")]
    thrift_registry: Option<String>,
    /// When writes by Thrift are acknowledged at first: safe (durable) or asynchronous (applied); clients change it
    #[arg(long = "thrift-mode", value_name = "MODE")]
    thrift_mode: Option<String>,
    /// With a certificate, whether Thrift clients must use TLS: required or off; never over the unix socket
    #[arg(long = "thrift-tls", value_name = "MODE")]
    thrift_tls: Option<String>,
}

impl ThriftFlags {
    /// Puts the flags over the configuration.
    pub fn apply(self, serve: &mut ServeSettings) {
        if !self.thrift_listen.is_empty() {
            serve.thrift_listen = self.thrift_listen;
        }
        let over = |target: &mut String, flag: Option<String>| {
            if let Some(value) = flag {
                *target = value;
            }
        };
        over(&mut serve.thrift_unix_socket, self.thrift_unix_socket);
        over(&mut serve.thrift_namespace, self.thrift_namespace);
        over(&mut serve.thrift_registry, self.thrift_registry);
        over(&mut serve.thrift_mode, self.thrift_mode);
        over(&mut serve.thrift_tls, self.thrift_tls);
    }
}

/// A namespace as it is written: its name, and the kind of its keys.
fn namespace(text: &str) -> Result<(String, Kind), Failure> {
    let (name, kind) = text.rsplit_once(':').unwrap_or((text, "bytes"));
    let kind = match kind {
        "bytes" => Kind::Bytes,
        "int" => Kind::Int,
        _ => {
            let expected = format!("expected a name, NAME:int or NAME:bytes, such as {NAMESPACE}");
            return Err(Failure::usage(format!("thrift_namespace = {text:?}: {expected}")));
        }
    };
    Ok((name.to_owned(), kind))
}

/// The Thrift server's configuration; `None` if it is not asked for.
pub fn config(settings: &ServeSettings, front: &Front, passed: Vec<Passed>) -> Result<Option<Config>, Failure> {
    let tls = match settings.thrift_tls.as_str() {
        "required" => front.tls_for(&settings.thrift_tls_client_ca),
        "off" => None,
        other => return Err(Failure::usage(format!("thrift_tls = {other:?}: expected required or off"))),
    };
    let mode = match settings.thrift_mode.as_str() {
        "safe" => WriteMode::Safe,
        "asynchronous" => WriteMode::Asynchronous,
        other => return Err(Failure::usage(format!("thrift_mode = {other:?}: expected safe or asynchronous"))),
    };
    let (namespace, kind) = namespace(&settings.thrift_namespace)?;
    let unix_socket = Some(settings.thrift_unix_socket.as_str()).filter(|path| !path.is_empty()).map(PathBuf::from);
    let listen = addresses(&settings.thrift_listen)?;
    // A supervisor that passes sockets for a protocol says where that is listened on.
    let (listen, unix_socket) = if passed.is_empty() { (listen, unix_socket) } else { (Vec::new(), None) };
    if listen.is_empty() && unix_socket.is_none() && passed.is_empty() {
        return Ok(None);
    }
    let number = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    let config = Config {
        listen,
        unix_socket,
        unix_access: front.unix.clone(),
        passed,
        tls,
        users: front.users.clone(),
        linger: front.linger,
        namespace,
        kind,
        mode: mode.into(),
        connections_max: number(settings.thrift_connections),
        memory_bytes_max: number(settings.thrift_memory.0.0),
        ..Config::default()
    };
    config.check().map_err(failure)?;
    Ok(Some(config))
}

/// What a Thrift server's error means for the command.
fn failure(error: thrift::Error) -> Failure {
    match error {
        thrift::Error::Kv(error) => error.into(),
        thrift::Error::Config(_) | thrift::Error::NoCertificates(_) | thrift::Error::Tls(_) => {
            Failure::of(Code::Usage, &error)
        }
        error => Failure::of(Code::Failure, &error),
    }
}

/// A running Thrift server.
pub struct Thrift {
    handle: Handle,
    thread: JoinHandle<()>,
}

impl Thrift {
    /// Listens and says where.
    pub fn start(store: &esker::Store, config: Config, sharing: Option<Sharing>) -> Result<Self, Failure> {
        let kind = config.kind;
        let name = config.namespace.clone();
        let server = Server::bind(config, store.kv()?, sharing).map_err(failure)?;
        for address in server.addresses() {
            say!("thrift     {address} (namespace {name}, {kind} keys)");
        }
        if let Some(Address::Tcp(address)) = server.addresses().first() {
            say!(
                "try        thrift --gen py clients/thrift/zdb.thrift; \
                 PYTHONPATH=gen-py python3 gen-py/zdb/EskerKeys-remote -h {address} count"
            );
        }
        let handle = server.handle();
        let thread = std::thread::Builder::new().name("esker-thrift-serve".into()).spawn(move || server.run())?;
        Ok(Self { handle, thread })
    }

    /// What tells it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Stops it once what is under way is answered.
    pub fn stop(self) -> Result<(), Failure> {
        self.handle.shutdown();
        self.thread.join().map_err(|panic| std::panic::resume_unwind(panic))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_a_name_and_the_kind_of_its_keys() {
        for (text, expected) in [
            ("users", ("users", Kind::Bytes)),
            ("users:int", ("users", Kind::Int)),
            ("a:b:bytes", ("a:b", Kind::Bytes)),
        ] {
            assert_eq!(namespace(text).unwrap(), (expected.0.into(), expected.1), "{text}");
        }
        assert!(namespace("users:text").unwrap_err().to_string().contains("users:text"));
    }

    #[test]
    fn what_cannot_be_served_is_refused_with_the_reason() {
        let check = |change: fn(&mut ServeSettings), expected: &str| {
            let listen = vec!["127.0.0.1:9901".into()];
            let mut settings = ServeSettings { thrift_listen: listen, ..ServeSettings::default() };
            change(&mut settings);
            let config = Front::of(&settings).and_then(|front| config(&settings, &front, Vec::new()));
            let error = config.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(|settings| settings.thrift_listen = vec!["0.0.0.0:9901".into()], "client certificates");
        check(|settings| settings.thrift_namespace = "a:b".into(), "thrift_namespace");
        check(|settings| settings.thrift_namespace = "db0".into(), "Redis");
        check(|settings| settings.thrift_mode = "fast".into(), "thrift_mode");
        check(|settings| settings.thrift_tls = "allowed".into(), "thrift_tls");
        check(|settings| settings.thrift_connections = 0, "connections_max");
    }
}
