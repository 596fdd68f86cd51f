//! The Thrift side of `esker serve`: its flags and settings, and the server of a namespace of keys.
//!
//! Invariants:
//! 1. Where nothing of Thrift is asked for, no namespace is made.
//! 2. A file that is taken anew changes the mode only if it says another than before: what an operator has set stays.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use clap::Args;
use esker::kv::Kind;
use esker_server::front::Passed;
use esker_server::thrift::{self, Address, Config, Handle, KeptMode, NAMESPACE, Server, Sharing, WriteMode};
use parking_lot::Mutex;

use super::shared::{Front, addresses};
use crate::config::{ServeSettings, Settings};
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
    /// Whether the mode is a flag, so that a file does not say it.
    pub fn give_mode(&self) -> bool {
        self.thrift_mode.is_some()
    }

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

fn mode(settings: &ServeSettings) -> Result<WriteMode, Failure> {
    match settings.thrift_mode.as_str() {
        "safe" => Ok(WriteMode::Safe),
        "asynchronous" => Ok(WriteMode::Asynchronous),
        other => Err(Failure::usage(format!("thrift_mode = {other:?}: expected safe or asynchronous"))),
    }
}

/// The mode as the configuration file says it, of the services of all stores of the process.
pub struct ModeOfFile {
    file: PathBuf,
    last: Arc<Mutex<WriteMode>>,
    kept: Vec<KeptMode>,
}

impl ModeOfFile {
    /// Of these services; `None`: they are none, or no file says it.
    pub fn of(settings: &Settings, is_flag: bool, kept: Vec<KeptMode>) -> Result<Option<Self>, Failure> {
        match &settings.file {
            Some(file) if !is_flag && !kept.is_empty() => {
                let last = Arc::new(Mutex::new(mode(&settings.serve)?));
                Ok(Some(Self { file: file.clone(), last, kept }))
            }
            _ => Ok(None),
        }
    }

    /// Reads it anew; what is returned puts it into force.
    pub fn prepare(&self) -> Result<Box<dyn FnOnce() + Send>, Failure> {
        let now = mode(&Settings::load(Some(&self.file))?.serve)?;
        let (last, kept) = (Arc::clone(&self.last), self.kept.clone());
        Ok(Box::new(move || {
            let before = std::mem::replace(&mut *last.lock(), now);
            if before != now {
                kept.iter().for_each(|mode| mode.set(now));
                tracing::info!(mode = ?now, "the configuration says another mode of Thrift than before");
            }
        }))
    }
}

/// The Thrift server's configuration; `None` if it is not asked for.
pub fn config(settings: &ServeSettings, front: &Front, passed: Vec<Passed>) -> Result<Option<Config>, Failure> {
    let tls = match settings.thrift_tls.as_str() {
        "required" => front.tls_for(&settings.thrift_tls_client_ca),
        "off" => None,
        other => return Err(Failure::usage(format!("thrift_tls = {other:?}: expected required or off"))),
    };
    let mode = mode(settings)?;
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
        async_bytes_max: settings.thrift_async_bytes.0.0,
        async_age_max: settings.thrift_async_age.0.0,
        connections_max: number(settings.thrift_connections),
        memory_bytes_max: number(settings.thrift_memory.0.0),
        threads: number(settings.threads),
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
    use std::time::Duration;

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
        check(|settings| settings.thrift_async_bytes.0.0 = 1_023, "async_bytes_max = 1023 is not within 1024..=");
        check(|settings| settings.thrift_async_age.0.0 = Duration::from_millis(9), "async_age_max = 9ms is not within");
    }

    #[test]
    fn a_file_taken_anew_changes_the_mode_only_where_it_says_another_than_before() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("esker.toml");
        let write = |mode: &str| std::fs::write(&file, format!("[serve]\nthrift_mode = '{mode}'\n")).unwrap();
        write("safe");
        let settings = Settings::load(Some(&file)).unwrap();
        let (one, other) = (KeptMode::default(), KeptMode::default());
        let kept = || vec![one.clone(), other.clone()];
        assert!(ModeOfFile::of(&settings, true, kept()).unwrap().is_none(), "a flag says it");
        assert!(ModeOfFile::of(&settings, false, Vec::new()).unwrap().is_none(), "there is no service");
        assert!(ModeOfFile::of(&Settings::default(), false, kept()).unwrap().is_none(), "there is no file");
        let of_file = ModeOfFile::of(&settings, false, kept()).unwrap().unwrap();
        // An operator has set it since.
        one.set(WriteMode::Asynchronous);
        of_file.prepare().unwrap()();
        assert_eq!((one.get(), other.get()), (WriteMode::Asynchronous, WriteMode::Safe));
        write("asynchronous");
        let anew = of_file.prepare().unwrap();
        assert_eq!(other.get(), WriteMode::Safe, "it is only read");
        anew();
        assert_eq!((one.get(), other.get()), (WriteMode::Asynchronous, WriteMode::Asynchronous));
        write("safe");
        of_file.prepare().unwrap()();
        assert_eq!((one.get(), other.get()), (WriteMode::Safe, WriteMode::Safe));
        write("fast");
        let error = of_file.prepare().err().unwrap().to_string();
        assert!(error.contains("thrift_mode = \"fast\""), "{error}");
        assert_eq!(one.get(), WriteMode::Safe);
    }
}
