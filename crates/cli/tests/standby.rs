//! A primary and its standby as processes of their own: killed, frozen, promoted, made standbys again.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "chains/ports.rs"]
mod ports;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ports::free;
use serde_json::Value;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(40);
/// A write that is not acknowledged within this time waits for something.
const WAITS: Duration = Duration::from_millis(800);
/// Keys of one question.
const ASKED: usize = 400;

fn command(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_esker"));
    command.current_dir(folder).env_remove("ESKER_CONFIG").env_remove("ESKER_PASSWORD").env_remove("RUST_LOG");
    command.stdin(Stdio::null());
    command
}

fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "not so: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A connection, and what is asked on it.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    fn send(&mut self, words: &[&str]) -> std::io::Result<()> {
        let mut request = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| request.push_str(&format!("${}\r\n{word}\r\n", word.len())));
        self.0.get_mut().write_all(request.as_bytes())
    }

    /// A reply of one line, or of a string.
    fn reply(&mut self, within: Duration) -> std::io::Result<String> {
        self.0.get_ref().set_read_timeout(Some(within))?;
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if line.starts_with('$') && !line.starts_with("$-") {
            line.clear();
            self.0.read_line(&mut line)?;
        }
        Ok(line.trim_end().to_owned())
    }

    fn call(&mut self, words: &[&str]) -> std::io::Result<String> {
        self.send(words)?;
        self.reply(Duration::from_secs(5))
    }
}

/// Two servers, each of which may be the primary, or run or not.
struct Servers {
    folder: TempDir,
    running: [Option<Child>; 2],
    clients: [SocketAddr; 2],
    peers: [SocketAddr; 2],
    http: [SocketAddr; 2],
    settings: String,
}

impl Servers {
    fn new(settings: &str) -> Self {
        let [clients, peers, http] = [(); 3].map(|()| [free(), free()]);
        let folder = TempDir::new().unwrap();
        Self { folder, running: [None, None], clients, peers, http, settings: settings.to_owned() }
    }

    /// A primary with a standby that holds what it holds.
    fn pair(mode: &str, settings: &str) -> Self {
        let mut servers = Self::new(settings);
        servers.start(0, &["--standby", mode]);
        servers.follow(1);
        servers.caught_up(1);
        servers
    }

    fn serve(&self, at: usize, arguments: &[&str]) -> Command {
        let file = format!("s{at}.toml");
        let text = format!("[cluster]\npeer_listen = '{}'\n{}", self.peers[at], self.settings);
        std::fs::write(self.folder.path().join(&file), text).unwrap();
        let log = File::options().create(true).append(true).open(self.folder.path().join(format!("log{at}")));
        let mut command = command(self.folder.path());
        command
            .args(["--config", &file, "serve", "--store", &format!("d{at}?size=128m&segment=1m")])
            .args(["--listen", &self.clients[at].to_string(), "--http", &self.http[at].to_string()])
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(log.unwrap());
        command
    }

    fn start(&mut self, at: usize, arguments: &[&str]) {
        assert!(self.running[at].is_none());
        self.running[at] = Some(self.serve(at, arguments).spawn().unwrap());
        let address = self.clients[at];
        soon("a server listens", || Client::connect(address).is_ok());
    }

    fn follow(&mut self, at: usize) {
        let primary = self.url(1 - at);
        self.start(at, &["--follow", &primary]);
    }

    /// A start that is refused; what it complained of.
    fn refused(&self, at: usize, arguments: &[&str]) -> String {
        let mut child = self.serve(at, arguments).stderr(Stdio::piped()).spawn().unwrap();
        let mut printed = child.stderr.take().unwrap();
        let reading = std::thread::spawn(move || {
            let mut complained = String::new();
            printed.read_to_string(&mut complained).map(|_| complained)
        });
        let until = Instant::now() + PATIENCE / 4;
        while child.try_wait().unwrap().is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        // It may have ended.
        let _ = child.kill();
        let (ended, complained) = (child.wait().unwrap(), reading.join().unwrap().unwrap());
        assert_eq!(ended.code(), Some(1), "{arguments:?}: {complained}");
        complained
    }

    fn signal(&self, at: usize, signal: &str) {
        let process = self.running[at].as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([signal, &process]).status().unwrap().success());
    }

    fn kill(&mut self, at: usize) {
        let mut child = self.running[at].take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn stop(&mut self, at: usize) {
        self.signal(at, "-TERM");
        let ended = self.running[at].take().unwrap().wait().unwrap();
        assert!(ended.success(), "{ended}");
    }

    fn url(&self, at: usize) -> String {
        format!("grpc://{}", self.peers[at])
    }

    fn log(&self, at: usize) -> String {
        std::fs::read_to_string(self.folder.path().join(format!("log{at}"))).unwrap_or_default()
    }

    fn standby(&self, arguments: &[&str]) -> Output {
        command(self.folder.path()).arg("standby").args(arguments).output().unwrap()
    }

    /// A command that must succeed; what it printed.
    fn done(&self, arguments: &[&str]) -> String {
        let output = self.standby(arguments);
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {}: {complained}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    /// A command that must fail; what it complained of.
    fn fails(&self, arguments: &[&str]) -> String {
        let output = self.standby(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn status(&self, at: usize) -> Value {
        let output = self.standby(&["status", "--json", "--at", &self.url(at)]);
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// Waits until this server answers as the primary.
    fn answers(&self, at: usize) {
        soon("it answers as the primary", || {
            let reply = Client::connect(self.clients[at]).and_then(|mut client| client.call(&["EXISTS", "none"]));
            reply.is_ok_and(|reply| reply == ":0")
        });
    }

    /// Waits until this standby holds what its primary holds, and both say so.
    fn caught_up(&self, at: usize) {
        soon("the standby has caught up", || {
            let (own, primary) = (self.status(at), self.status(1 - at));
            let is_so = |status: &Value| status["lag"] == 0 && status["connected"] == true;
            own["role"] == "standby" && own["whole"] == true && is_so(&own) && is_so(&primary)
        });
    }

    fn in_step(&self, at: usize) {
        soon("the standby is in step", || self.status(at)["in_step"] == true);
    }

    fn client(&self, at: usize) -> Client {
        Client::connect(self.clients[at]).unwrap()
    }

    fn call(&self, at: usize, words: &[&str]) -> String {
        self.client(at).call(words).unwrap()
    }

    fn write(&self, at: usize, name: &str, count: usize, value: &str) -> Vec<String> {
        let mut client = self.client(at);
        let keys: Vec<_> = (0..count).map(|number| format!("{name}{number}")).collect();
        for keys in keys.chunks(64) {
            keys.iter().for_each(|key| client.send(&["SET", key, value]).unwrap());
            keys.iter().for_each(|_| assert_eq!(client.reply(PATIENCE).unwrap(), "+OK"));
        }
        keys
    }

    /// How many of these keys there are, by what this server says.
    fn count(&self, at: usize, keys: &[String]) -> usize {
        let mut client = self.client(at);
        let count = |keys: &[String]| {
            let words: Vec<_> = std::iter::once("EXISTS").chain(keys.iter().map(String::as_str)).collect();
            let reply = client.call(&words).unwrap();
            reply.strip_prefix(':').unwrap_or_else(|| panic!("{reply}")).parse::<usize>().unwrap()
        };
        keys.chunks(ASKED).map(count).sum()
    }

    fn have(&self, at: usize, keys: &[String]) {
        assert_eq!(self.count(at, keys), keys.len());
    }

    fn figures(&self, at: usize) -> String {
        let mut stream = TcpStream::connect(self.http[at]).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// The store of a standby that does not run is promoted, and its server started.
    fn promote_store(&mut self, at: usize, arguments: &[&str]) -> String {
        let told = self.done(&[&["promote", "--store", &format!("d{at}")], arguments].concat());
        self.start(at, &["--standby", "async"]);
        told
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for at in [0, 1] {
                let log = self.log(at);
                let last: Vec<_> = log.lines().rev().take(40).collect();
                eprintln!("server {at}:\n{}", last.into_iter().rev().collect::<Vec<_>>().join("\n"));
            }
        }
        for child in self.running.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Clients that write one key after the other each, and note which are acknowledged.
struct Writers {
    acknowledged: Arc<Mutex<Vec<String>>>,
    over: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Writers {
    fn start(address: SocketAddr, count: usize) -> Self {
        let own = fastrand::u32(..);
        let (acknowledged, over) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let tasks = (0..count).map(|writer| {
            let (notes, over) = (Arc::clone(&acknowledged), Arc::clone(&over));
            std::thread::spawn(move || {
                let mut client = None;
                for number in 0_u64.. {
                    if over.load(Ordering::SeqCst) {
                        return;
                    }
                    let key = format!("w{own:x}-{writer}-{number}");
                    let called = match &mut client {
                        Some(client) => Ok(client),
                        None => Client::connect(address).map(|new| client.insert(new)),
                    };
                    match called.and_then(|client| client.call(&["SET", &key, &key])) {
                        Ok(reply) if reply == "+OK" => notes.lock().unwrap().push(key),
                        _ => {
                            client = None;
                            std::thread::sleep(Duration::from_millis(5));
                        }
                    }
                }
            })
        });
        let tasks = tasks.collect();
        Self { acknowledged, over, tasks }
    }

    fn reach(&self, count: usize) {
        let goal = self.acknowledged.lock().unwrap().len() + count;
        soon("writes go on", || self.acknowledged.lock().unwrap().len() >= goal);
    }

    /// Ends; what was acknowledged.
    fn end(mut self) -> Vec<String> {
        self.over.store(true, Ordering::SeqCst);
        self.tasks.drain(..).for_each(|task| task.join().unwrap());
        std::mem::take(&mut self.acknowledged.lock().unwrap())
    }
}

#[test]
fn an_asynchronous_standby_has_all_that_a_lag_of_0_covers() {
    let mut servers = Servers::new("");
    servers.start(0, &["--standby", "async"]);
    let before = servers.write(0, "before", 500, "x");
    servers.follow(1);
    let during = servers.write(0, "during", 500, "x");
    servers.caught_up(1);
    let told = servers.call(1, &["GET", "before0"]);
    assert!(told.starts_with("-MOVED") && told.ends_with(&servers.clients[0].to_string()), "{told}");
    for at in [0, 1] {
        let figures = servers.figures(at);
        assert!(figures.contains("\nesker_standby_lag 0"), "{figures}");
        assert!(figures.contains("\nesker_standby_epoch 1"), "{figures}");
    }
    let shown = servers.done(&["status", "--at", &servers.url(0)]);
    assert!(shown.contains("lag        0 operations") && shown.contains("once they are durable here"), "{shown}");

    // Writes never wait for it.
    servers.signal(1, "-STOP");
    let late = servers.write(0, "late", 100, "x");
    servers.kill(1);
    servers.kill(0);
    let refused = servers.fails(&["promote", "--store", "d1"]);
    assert!(refused.contains("--force") && refused.contains("the primary was at"), "{refused}");
    assert!(servers.refused(1, &["--standby", "async"]).contains("esker standby promote"));
    let promoted = servers.promote_store(1, &["--force"]);
    assert!(promoted.contains("epoch 2"), "{promoted}");
    servers.have(1, &before);
    servers.have(1, &during);
    assert!(servers.count(1, &late) < late.len(), "it was frozen, and writes did not wait for it");
    servers.write(1, "after", 100, "x");
    // It is the primary, also of a server that stands alone, but only once the one before need not be told any more.
    servers.stop(1);
    let refused = servers.refused(1, &[]);
    assert!(refused.contains("esker standby release --store"), "{refused}");
    assert!(servers.done(&["release", "--store", "d1"]).contains("do not promote"));
    servers.start(1, &[]);
    servers.have(1, &before);
}

#[test]
fn a_synchronous_standby_has_every_write_that_was_acknowledged() {
    for is_running in [true, false] {
        let mut servers = Servers::pair("sync", "");
        servers.in_step(0);
        servers.in_step(1);
        let writers = Writers::start(servers.clients[0], 8);
        writers.reach(2_000);
        if !is_running {
            // What it has not read yet it never has.
            servers.signal(1, "-STOP");
            std::thread::sleep(WAITS / 4);
        }
        servers.kill(0);
        let acknowledged = writers.end();
        if is_running {
            let told = servers.done(&["promote", "--force", "--at", &servers.url(1)]);
            assert!(told.contains("no acknowledged write is lost"), "{told}");
            // Faces over the chain take the place of those that told where the primary is.
            servers.answers(1);
        } else {
            servers.kill(1);
            servers.promote_store(1, &["--force"]);
        }
        servers.have(1, &acknowledged);
        println!("{} writes were acknowledged", acknowledged.len());
    }
}

#[test]
fn a_primary_that_comes_back_is_refused_and_made_the_standby_of_the_new_one() {
    let mut servers = Servers::pair("async", "");
    let both = servers.write(0, "both", 300, "old");
    servers.caught_up(1);
    servers.kill(1);
    let alone = servers.write(0, "alone", 300, "x");
    servers.write(0, "both", 100, "only here");
    servers.kill(0);
    servers.promote_store(1, &["--force"]);
    let new = servers.write(1, "new", 300, "x");
    let refused = servers.refused(0, &["--standby", "async"]);
    assert!(refused.contains("deposed") && refused.contains(&format!("--follow {}", servers.url(1))), "{refused}");
    // It was kept: the new primary need not be there.
    servers.stop(1);
    for arguments in [&["--standby", "sync"][..], &[]] {
        assert!(servers.refused(0, arguments).contains("deposed"));
    }
    servers.start(1, &["--standby", "async"]);
    servers.follow(0);
    servers.caught_up(0);
    // What it had alone is gone: it is asked as the primary, which it is made as planned.
    let promoted = servers.done(&["promote", "--at", &servers.url(0)]);
    assert!(promoted.contains("has everything that it had") && promoted.contains("epoch 3"), "{promoted}");
    servers.answers(0);
    assert_eq!(servers.call(0, &["GET", "both0"]), "old");
    servers.have(0, &both);
    servers.have(0, &new);
    assert_eq!(servers.count(0, &alone), 0);
    assert_eq!(servers.call(0, &["DBSIZE"]), format!(":{}", both.len() + new.len()));
    // And the one before knows, and tells where the primary is.
    assert_eq!(servers.status(1)["role"], "deposed");
    soon("clients of the deposed are told", || {
        let reply = Client::connect(servers.clients[1]).and_then(|mut client| client.call(&["GET", "both0"]));
        reply.is_ok_and(|reply| reply.starts_with("-MOVED") && reply.ends_with(&servers.clients[0].to_string()))
    });
}

/// The answer to a call of Thrift with these strings as its arguments (strict binary protocol, framed).
fn thrift(address: SocketAddr, method: &str, arguments: &[&str]) -> std::io::Result<Vec<u8>> {
    let mut message = [&[0x80, 1, 0, 1, 0, 0, 0, method.len() as u8][..], method.as_bytes(), &[0, 0, 0, 1]].concat();
    for (number, text) in (1..).zip(arguments) {
        message.extend([&[11, 0, number, 0, 0, 0, text.len() as u8][..], text.as_bytes()].concat());
    }
    message.push(0);
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(&[&(message.len() as u32).to_be_bytes()[..], &message].concat())?;
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let mut answer = vec![0; u32::from_be_bytes(len) as usize];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

#[test]
fn thrift_is_answered_by_the_primary_whichever_server_is_asked() {
    let mut servers = Servers::new("");
    let doors = [free(), free()];
    let with = |at: usize, more: &[&str]| -> Vec<String> {
        let door = doors[at].to_string();
        more.iter().copied().chain(["--thrift", &door, "--thrift-namespace", "users:int"]).map(str::to_owned).collect()
    };
    let (first, second) = (with(0, &["--standby", "async"]), with(1, &["--follow", &servers.url(0)]));
    for (at, arguments) in [(0, first), (1, second)] {
        servers.start(at, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    }
    servers.caught_up(1);
    let put = |at: usize, key: &str| thrift(doors[at], "put", &[key, "ada"]).is_ok_and(|answer| answer[3] == 2);
    let has = |at: usize, key: &str| thrift(doors[at], "get", &[key]).is_ok_and(|answer| answer.ends_with(b"ada\0"));
    // By the standby to the primary.
    soon("the standby passes a call on", || put(1, "7"));
    assert!(has(0, "7") && has(1, "7"));
    servers.caught_up(1);
    servers.done(&["promote", "--at", &servers.url(1)]);
    servers.answers(1);
    // And the other way round: the one before has heard where the new one is.
    soon("the deposed passes a call on", || put(0, "8"));
    assert!(has(1, "7") && has(1, "8") && has(0, "8"));
    assert!(servers.figures(1).contains("\nesker_thrift_call_seconds_count{method=\"put\"} "));
}

#[test]
fn asynchronous_writes_by_thrift_are_bounded_by_what_the_standby_has() {
    const BOUND: usize = 4 << 10;
    let settings = "[serve]\nthrift_mode = 'safe'\nthrift_async_bytes = '4k'\nthrift_async_age = '1h'\n";
    let (mut servers, doors) = (Servers::new(settings), [free(), free()]);
    servers.start(0, &["--standby", "sync", "--thrift", &doors[0].to_string()]);
    servers.start(1, &["--follow", &servers.url(0), "--thrift", &doors[1].to_string()]);
    servers.in_step(1);
    let value = "v".repeat(200);
    let weight = |key: &String| 64 + key.len() + value.len();
    let put = |key: &String| thrift(doors[0], "put", &[key, &value]).is_ok_and(|answer| answer[3] == 2);
    let keys = |name: &str, count: usize| -> Vec<String> { (0..count).map(|key| format!("{name}{key}")).collect() };
    let before = keys("before", 100);
    assert!(before.iter().all(put));
    let file = servers.folder.path().join("s0.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("'safe'", "'asynchronous'")).unwrap();
    servers.signal(0, "-HUP");
    soon("the mode is another", || servers.figures(0).contains("\nesker_thrift_asynchronous 1"));
    // The standby hears nothing any more: what only the primary has is bounded, however long that takes.
    servers.signal(1, "-STOP");
    let alone: Vec<_> = keys("alone", 100).into_iter().take_while(put).collect();
    let bytes: usize = alone.iter().map(weight).sum();
    assert!(bytes <= BOUND && bytes + weight(&alone[0]) > BOUND, "{} writes, {bytes} bytes", alone.len());
    // And the loss of the primary takes no more than that.
    servers.kill(0);
    servers.signal(1, "-CONT");
    servers.done(&["promote", "--force", "--at", &servers.url(1)]);
    let has = |key: &&String| thrift(doors[1], "has", &[key]).is_ok_and(|answer| answer.ends_with(&[1, 0]));
    soon("the standby answers", || has(&&before[0]));
    assert_eq!(before.iter().filter(has).count(), before.len());
    let lost: usize = alone.iter().filter(|key| !has(key)).map(weight).sum();
    assert!(lost <= BOUND, "{lost} bytes");
}

#[test]
fn a_primary_that_was_away_hears_of_a_promotion_and_answers_no_more() {
    let servers = Servers::pair("async", "");
    servers.write(0, "key", 100, "x");
    servers.caught_up(1);
    let mut client = servers.client(0);
    assert_eq!(client.call(&["GET", "key0"]).unwrap(), "x");
    servers.signal(0, "-STOP");
    let refused = servers.fails(&["promote", "--at", &servers.url(1)]);
    assert!(refused.contains("--force"), "{refused}");
    servers.done(&["promote", "--force", "--at", &servers.url(1)]);
    servers.signal(0, "-CONT");
    soon("the old primary has heard", || servers.status(0)["role"] == "deposed");
    // Those who were connected are not answered, and others are told of the new one.
    let answered = client.call(&["SET", "key0", "stale"]);
    assert!(!answered.as_ref().is_ok_and(|reply| reply == "+OK"), "{answered:?}");
    soon("clients are told", || {
        let reply = Client::connect(servers.clients[0]).and_then(|mut client| client.call(&["GET", "key0"]));
        reply.is_ok_and(|reply| reply.starts_with("-MOVED"))
    });
    servers.answers(1);
    assert_eq!(servers.call(1, &["GET", "key0"]), "x");
}

#[test]
fn part_of_a_copy_is_not_promoted() {
    let mut servers = Servers::new("copy_rate = '4m'\n");
    servers.start(0, &["--standby", "async"]);
    let keys = servers.write(0, "large", 400, &"x".repeat(100_000));
    servers.follow(1);
    soon("a copy is under way", || servers.status(1)["copied_bytes"].as_u64().is_some_and(|bytes| bytes > 4 << 20));
    let refused = servers.fails(&["promote", "--force", "--at", &servers.url(1)]);
    assert!(refused.contains("part of a copy"), "{refused}");
    servers.kill(1);
    let refused = servers.fails(&["promote", "--force", "--store", "d1"]);
    assert!(refused.contains("part of a copy"), "{refused}");
    assert!(servers.refused(1, &[]).contains("standby"));
    assert_eq!(servers.status(0)["role"], "primary", "a refusal fences no primary");
    servers.have(0, &keys);
    // It is brought up after all, and then may be.
    servers.settings.clear();
    servers.follow(1);
    servers.caught_up(1);
    servers.done(&["promote", "--at", &servers.url(1)]);
    servers.answers(1);
    servers.have(1, &keys);
}

#[test]
fn a_standby_and_a_primary_that_are_started_again_go_on() {
    let mut servers = Servers::pair("async", "");
    let offered = |servers: &Servers| servers.log(0).matches("a copy is offered").count();
    let copies = offered(&servers);
    let writers = Writers::start(servers.clients[0], 2);
    for stops in [true, false] {
        writers.reach(200);
        if stops {
            servers.stop(1)
        } else {
            servers.kill(1)
        }
        writers.reach(200);
        servers.follow(1);
        writers.reach(200);
    }
    let mut keys = writers.end();
    servers.caught_up(1);
    assert_eq!(offered(&servers), copies, "what it lacked was kept: it is sent that, and no copy");
    // Another start of the primary: only what differs is fetched.
    keys.extend(servers.write(0, "large", 100, &"x".repeat(100_000)));
    servers.caught_up(1);
    let copies = offered(&servers);
    servers.stop(0);
    servers.start(0, &["--standby", "async"]);
    keys.extend(servers.write(0, "planned", 100, "x"));
    servers.caught_up(1);
    assert_eq!(offered(&servers), copies, "it ended as planned: what its standby holds is its own state");
    servers.stop(0);
    let (folder, location) = (servers.folder.path(), "d0");
    assert!(command(folder).args(["kv", "put", "--store", location, "beside", "x"]).status().unwrap().success());
    keys.push("beside".into());
    servers.start(0, &["--standby", "async"]);
    servers.caught_up(1);
    // It may be offered anew, where the first is told on a stream that ends.
    assert!(offered(&servers) > copies, "its store was changed meanwhile");
    servers.kill(0);
    servers.start(0, &["--standby", "async"]);
    keys.extend(servers.write(0, "later", 100, "x"));
    servers.caught_up(1);
    let log = servers.log(1);
    let last = log.lines().rfind(|line| line.contains("a copy is here")).unwrap();
    let fetched: u64 = last.split("bytes_fetched: ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    assert!(fetched < 2 << 20, "{fetched} bytes were fetched of 10 MB: {last}");
    servers.kill(0);
    servers.kill(1);
    servers.promote_store(1, &["--force"]);
    servers.have(1, &keys);
}

#[test]
fn a_synchronous_primary_waits_while_its_standby_is_away_and_until_it_is_released() {
    let mut servers = Servers::pair("sync", "");
    servers.in_step(0);
    let waits = |servers: &Servers, key: &str| {
        let mut client = servers.client(0);
        client.send(&["SET", key, "x"]).unwrap();
        let early = client.reply(WAITS);
        assert!(early.is_err(), "{key}: {early:?}");
        client
    };
    servers.kill(1);
    let mut waiting = waits(&servers, "one");
    servers.follow(1);
    assert_eq!(waiting.reply(PATIENCE).unwrap(), "+OK");
    // Also where the primary was started anew meanwhile.
    servers.caught_up(1);
    servers.kill(1);
    servers.kill(0);
    servers.start(0, &["--standby", "sync"]);
    servers.in_step(0);
    let mut waiting = waits(&servers, "two");
    servers.follow(1);
    assert_eq!(waiting.reply(PATIENCE).unwrap(), "+OK");
    servers.caught_up(1);
    // A lone server does not take it over, nor an operator's mistake.
    servers.stop(1);
    let waiting = waits(&servers, "three");
    servers.signal(0, "-TERM");
    assert!(servers.running[0].take().unwrap().wait().unwrap().code().is_some());
    drop(waiting);
    assert!(servers.refused(0, &[]).contains("--standby sync"));
    servers.start(0, &["--standby", "sync"]);
    let mut waiting = waits(&servers, "four");
    let released = servers.done(&["release", "--at", &servers.url(0)]);
    assert!(released.contains("writes waited"), "{released}");
    assert_eq!(waiting.reply(PATIENCE).unwrap(), "+OK");
    let keys = servers.write(0, "alone", 100, "x");
    servers.follow(1);
    servers.in_step(0);
    servers.kill(0);
    servers.kill(1);
    servers.promote_store(1, &["--force"]);
    servers.have(1, &keys);
    servers.have(1, &["one", "two", "four"].map(String::from));
}

#[test]
fn what_is_kept_for_a_standby_that_hears_nothing_is_bounded() {
    let servers = Servers::pair("async", "kept = '1m'\n");
    servers.signal(1, "-STOP");
    let keys = servers.write(0, "large", 300, &"x".repeat(100_000));
    let status = servers.status(0);
    assert!(status["kept_bytes"].as_u64().is_some_and(|bytes| bytes <= 1 << 20), "{status:#}");
    assert!(status["lag"].as_u64().is_some_and(|lag| lag > 0), "{status:#}");
    servers.signal(1, "-CONT");
    servers.caught_up(1);
    servers.done(&["promote", "--at", &servers.url(1)]);
    servers.answers(1);
    servers.have(1, &keys);
}

#[test]
fn acknowledged_writes_outlive_promotions_one_after_the_other() {
    let rounds = std::env::var("ESKER_STANDBY_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(3_usize);
    let mut servers = Servers::new("");
    servers.start(0, &["--standby", "sync"]);
    let (mut primary, mut acknowledged) = (0, Vec::new());
    for round in 0..rounds {
        let (standby, follow) = (1 - primary, servers.url(primary));
        servers.start(standby, &["--standby", "sync", "--follow", &follow]);
        servers.in_step(primary);
        servers.in_step(standby);
        let writers = Writers::start(servers.clients[primary], 4);
        writers.reach(300);
        match round % 3 {
            0 => {
                servers.kill(standby);
                std::thread::sleep(WAITS / 4);
                servers.start(standby, &["--standby", "sync", "--follow", &follow]);
            }
            1 => {
                servers.kill(primary);
                servers.start(primary, &["--standby", "sync"]);
            }
            _ => {}
        }
        writers.reach(300);
        soon("the standby holds a state", || servers.status(standby)["whole"] == true);
        servers.kill(primary);
        acknowledged.extend(writers.end());
        servers.done(&["promote", "--force", "--at", &servers.url(standby)]);
        servers.answers(standby);
        servers.have(standby, &acknowledged);
        assert_eq!(servers.status(standby)["epoch"], round + 2);
        primary = standby;
    }
    println!("{} writes were acknowledged", acknowledged.len());
}

#[test]
fn what_cannot_be_is_refused_and_says_why() {
    let mut servers = Servers::pair("async", "");
    servers.write(0, "key", 10, "x");
    servers.caught_up(1);
    // A store that is open, and a server that is none.
    let output = servers.standby(&["promote", "--store", "d1"]);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("--at"), "{output:?}");
    assert!(servers.fails(&["promote", "--at", &servers.url(0)]).contains("the primary already"));
    assert!(servers.fails(&["release", "--at", &servers.url(1)]).contains("no primary"));
    assert_eq!(servers.standby(&["promote"]).status.code(), Some(2));
    assert_eq!(servers.standby(&["status", "--at", "grpc://h"]).status.code(), Some(2));
    // A store with data of its own, and the primary's own store, are not replaced by mistake.
    servers.kill(1);
    std::fs::remove_dir_all(servers.folder.path().join("d1")).unwrap();
    servers.start(1, &[]);
    servers.write(1, "other", 10, "x");
    servers.stop(1);
    let follow = servers.url(0);
    assert!(servers.refused(1, &["--follow", &follow]).contains("--replace"));
    servers.start(1, &["--follow", &follow, "--replace"]);
    servers.caught_up(1);
    servers.done(&["promote", "--at", &servers.url(1)]);
    servers.stop(0);
    // Promoted, and started as before: it is said what to do.
    servers.stop(1);
    servers.start(0, &["--follow", &servers.url(1)]);
    servers.start(1, &["--standby", "async"]);
    servers.caught_up(0);
    servers.stop(1);
    let own = servers.url(0);
    assert!(servers.refused(1, &["--follow", &own]).contains("not promoted over this one"));
    for (arguments, said) in [
        (&["--standby", "sometimes"][..], "async or sync"),
        (&["--follow", "nowhere"], "grpc://HOST:7600"),
        (&["--standby", "async", "--peer-listen", "0.0.0.0:7600"], "peer_announce = HOST:PORT"),
        (&["--standby", "sync", "--cluster", "zk://h/e"], "cannot be used with"),
    ] {
        let output = servers.serve(1, arguments).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let complained = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(complained.contains(said), "{arguments:?}: {complained}");
    }
}

#[test]
fn a_primary_that_was_killed_is_not_fenced_for_a_standby_that_has_not_heard_of_its_new_life() {
    let mut servers = Servers::pair("async", "");
    let both = servers.write(0, "both", 100, "x");
    servers.caught_up(1);
    servers.kill(1);
    let alone = servers.write(0, "alone", 100, "x");
    servers.kill(0);
    servers.start(0, &["--standby", "async"]);
    servers.answers(0);
    let refused = servers.fails(&["promote", "--store", "d1"]);
    assert!(refused.contains("is not known") && refused.contains("--force"), "{refused}");
    assert_eq!(servers.status(0)["role"], "primary", "a refusal fences no primary");
    servers.have(0, &alone);
    let promoted = servers.promote_store(1, &["--force"]);
    assert!(promoted.contains("answers no more"), "{promoted}");
    servers.have(1, &both);
    assert_eq!(servers.status(0)["role"], "deposed");
    // And back: what it acknowledged it has.
    servers.stop(0);
    servers.stop(1);
    assert!(servers.fails(&["promote", "--store", "d0"]).contains("--force"));
    let promoted = servers.promote_store(0, &["--force"]);
    assert!(promoted.contains("epoch 3") && promoted.contains("everything that it acknowledged"), "{promoted}");
    servers.have(0, &both);
    servers.have(0, &alone);
    servers.follow(1);
    servers.caught_up(1);
}
