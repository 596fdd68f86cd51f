//! What the server notes of commands: statistics, the slow log, latency spikes, MONITOR, figures for Prometheus.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_kv::SystemClock;
use esker_memory::MemoryStore;
use esker_server::front::Endpoint;
use esker_server::http::{Figure, Source, Value};
use esker_server::resp::{Config, EngineInfo, Handle, InfoLine, NoEngineInfo};
use esker_store::{Completion, Forward, ObjectId, ObjectStore};
use support::{Client, PATIENCE, Running, config, elements, encode, eventually};

/// Takes its time to say something for INFO: a command that is slow.
const SLOW: Duration = Duration::from_millis(60);

struct SlowInfo;

impl EngineInfo for SlowInfo {
    fn info(&self) -> Vec<InfoLine> {
        std::thread::sleep(SLOW);
        Vec::new()
    }

    fn settings(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    fn set(&self, _: &str, _: &str) -> Result<bool, String> {
        Ok(false)
    }
}

fn slow_server() -> Running {
    Running::start_on(Arc::new(MemoryStore::new()), config(), Arc::new(SystemClock), Arc::new(SlowInfo))
}

/// A figure of a line such as `cmdstat_get:calls=1,usec=2`.
fn figure(info: &str, line: &str, figure: &str) -> Option<f64> {
    let value = info.lines().find_map(|have| have.strip_prefix(line)?.strip_prefix(':'))?;
    value.split(',').find_map(|part| part.strip_prefix(figure)?.strip_prefix('=')?.parse().ok())
}

fn cost(client: &mut Client<TcpStream>, command: &str, what: &str) -> Option<f64> {
    figure(&client.run("INFO commandstats"), &format!("cmdstat_{command}"), what)
}

#[test]
fn brief_commands_of_a_pipeline_are_all_counted_and_one_by_one_where_somebody_looks_closely() {
    let server = Running::start(Config { threads: 1, ..config() });
    let mut client = server.client();
    client.check("SET k v", "+OK\r\n");
    client.check("HSET h f v", ":1\r\n");
    let (get, ping) = (encode(&["GET", "k"]), encode(&["PING"]));
    let stats = encode(&["INFO", "commandstats"]);
    let pipeline = [get.repeat(40), encode(&["GET", "h"]), ping.repeat(3), get.clone(), stats, ping.clone()].concat();
    client.send(&pipeline);
    (0..45).for_each(|_| drop(client.reply().unwrap()));
    // It stands in the same batch, and sees what was run before it.
    let info = String::from_utf8(client.reply().unwrap()).unwrap();
    let of = |command: &str, what| figure(&info, &format!("cmdstat_{command}"), what);
    assert_eq!(
        (of("get", "calls"), of("get", "failed_calls"), of("ping", "calls")),
        (Some(42.0), Some(1.0), Some(3.0))
    );
    assert!(of("get", "usec").unwrap() > 0.0 && of("get", "usec_per_call").unwrap() > 0.0, "{info}");
    assert_eq!(client.reply().unwrap(), b"+PONG\r\n");
    assert_eq!(cost(&mut client, "ping", "calls"), Some(4.0));
    assert!(client.run("LATENCY HISTOGRAM get").contains("calls\r\n:42\r\n"));
    // One that is refused, or has a long reply, is not timed with the others.
    client.check("ACL SETUSER some on nopass +get +ping ~k %R~long", "+OK\r\n");
    assert_eq!(client.call(&["SET", "long", &"x".repeat(5_000)]), b"+OK\r\n");
    client.check("AUTH some any", "+OK\r\n");
    let (refused, long) = (encode(&["GET", "other"]), encode(&["GET", "long"]));
    client.send(&[get.clone(), refused.repeat(3), get.repeat(2), long.repeat(2), get.clone()].concat());
    (0..9).for_each(|_| drop(client.reply().unwrap()));
    client.check("AUTH default any", "+OK\r\n");
    assert_eq!(cost(&mut client, "get", "calls"), Some(48.0));
    assert_eq!(cost(&mut client, "get", "rejected_calls"), Some(3.0));
    client.check("CONFIG SET slowlog-log-slower-than 0", "+OK\r\n");
    client.check("SLOWLOG RESET", "+OK\r\n");
    client.send(&get.repeat(20));
    (0..20).for_each(|_| drop(client.reply().unwrap()));
    assert_eq!(client.run("SLOWLOG GET -1").matches("$3\r\nGET\r\n$1\r\nk\r\n").count(), 20);
}

/// A store that takes its time over the key `big`, and over it alone only where it is to.
struct SlowKey {
    store: Arc<MemoryStore>,
    alone: bool,
}

const BIG_TAKES: Duration = Duration::from_millis(30);

impl Forward for SlowKey {
    fn behind(&self) -> &dyn ObjectStore {
        &*self.store
    }

    fn omap_get(&self, object: &ObjectId, key: &[u8]) -> Completion<Option<Bytes>> {
        if self.alone && key == b"big" {
            std::thread::sleep(BIG_TAKES);
        }
        self.store.omap_get(object, key)
    }

    fn omap_get_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<Option<Bytes>>> {
        if keys.iter().any(|key| key == "big") {
            std::thread::sleep(BIG_TAKES);
        }
        self.store.omap_get_many(object, keys)
    }
}

/// A server of one loop on such a store.
fn with_slow_key(alone: bool) -> Running {
    let store = Arc::new(MemoryStore::new());
    let seen = Arc::new(SlowKey { store: Arc::clone(&store), alone });
    let one_loop = Config { threads: 1, ..config() };
    Running::start_over(store, seen, one_loop, Arc::new(SystemClock), Arc::new(NoEngineInfo))
}

#[test]
fn the_time_of_a_look_that_was_slow_and_in_vain_is_its_commands() {
    let server = with_slow_key(false);
    let mut client = server.client();
    client.check("MSET k v big v", "+OK\r\n");
    client.check("CONFIG SET slowlog-log-slower-than 20000", "+OK\r\n");
    client.send(&[encode(&["GET", "k"]), encode(&["GET", "big"])].concat());
    (0..2).for_each(|_| drop(client.reply().unwrap()));
    assert!(cost(&mut client, "get", "usec").unwrap() >= BIG_TAKES.as_micros() as f64 * 0.9);
    assert_eq!(cost(&mut client, "get", "calls"), Some(2.0));
    assert_eq!(client.run("SLOWLOG LEN"), ":1\r\n");
}

#[test]
fn a_long_command_behind_brief_ones_is_noted_with_its_time_and_key_and_they_are_not() {
    let server = with_slow_key(true);
    let mut client = server.client();
    client.check("SET k v", "+OK\r\n");
    assert_eq!(client.call(&["SET", "big", &"x".repeat(5_000)]), b"+OK\r\n");
    let (get, big) = (encode(&["GET", "k"]), encode(&["GET", "big"]));
    for before in [1, 15] {
        client.check("SLOWLOG RESET", "+OK\r\n");
        client.check("CONFIG SET slowlog-log-slower-than 20000", "+OK\r\n");
        client.send(&[get.repeat(before), big.clone()].concat());
        (0..=before).for_each(|_| drop(client.reply().unwrap()));
        let slow = client.run("SLOWLOG GET -1");
        assert_eq!(slow.matches("$3\r\nGET\r\n").count(), 1, "{before} before: {slow}");
        assert_eq!(slow.matches("$3\r\nbig\r\n").count(), 1, "{before} before: {slow}");
    }
    assert!(cost(&mut client, "get", "usec").unwrap() >= 2.0 * BIG_TAKES.as_micros() as f64 * 0.9);
    client.check("CONFIG SET latency-monitor-threshold 10", "+OK\r\n");
    client.send(&[get.repeat(3), big].concat());
    (0..4).for_each(|_| drop(client.reply().unwrap()));
    assert!(client.run("LATENCY LATEST").contains("fast-command"));
}

#[test]
fn commands_are_counted_on_all_loops_as_run_refused_and_failed() {
    let server = Running::start(config());
    // Dealt out in turn, so that each loop has some.
    let mut clients: Vec<_> = (0..4).map(|_| server.client()).collect();
    for client in &mut clients {
        let pipeline = [encode(&["SET", "k", "text"]), encode(&["INCR", "k"]), encode(&["INCR"])].concat();
        client.send(&[pipeline, encode(&["MULTI"]), encode(&["DECR", "k"]), encode(&["NOSUCH"])].concat());
        client.send(&[encode(&["DISCARD"]), encode(&["MULTI"]), encode(&["DECR", "k"]), encode(&["EXEC"])].concat());
        (0..10).for_each(|_| drop(client.reply().unwrap()));
    }
    let client = &mut clients[0];
    // The counts of a batch are there when its replies are.
    for (command, calls, rejected, failed) in
        [("set", 4.0, 0.0, 0.0), ("incr", 4.0, 4.0, 4.0), ("decr", 4.0, 0.0, 4.0), ("exec", 4.0, 0.0, 0.0)]
    {
        assert_eq!(cost(client, command, "calls"), Some(calls), "{command}");
        assert_eq!(cost(client, command, "rejected_calls"), Some(rejected), "{command}");
        assert_eq!(cost(client, command, "failed_calls"), Some(failed), "{command}");
    }
    assert_eq!((cost(client, "get", "calls"), cost(client, "nosuch", "calls")), (None, None));
    let info = client.run("INFO everything");
    assert!(info.contains("# Commandstats\r\n") && info.contains("# Latencystats\r\n"), "{info}");
    let at = |quantile| figure(&info, "latency_percentiles_usec_set", quantile).unwrap();
    assert!(at("p50") > 0.0 && at("p50") <= at("p99") && at("p99") <= at("p99.9"), "{info}");
    assert!(client.run("INFO all").contains("cmdstat_set:"));
    for default in ["INFO", "INFO default", "INFO server"] {
        let info = client.run(default);
        assert!(!info.contains("ommandstats") && !info.contains("atencystats"), "{default}: {info}");
    }
    assert!(client.run("INFO default latencystats").contains("latency_percentiles_usec_set:"));

    let set = client.call(&["LATENCY", "HISTOGRAM", "SET", "nosuch", "get", "set"]);
    assert!(set.starts_with(b"*2\r\n$3\r\nset\r\n*4\r\n$5\r\ncalls\r\n:4\r\n$14\r\nhistogram_usec\r\n"), "{set:?}");
    // The last bucket has all calls.
    assert!(set.ends_with(b":4\r\n"));
    client.run("HELLO 3");
    let all = client.call(&["LATENCY", "HISTOGRAM"]);
    assert!(all.starts_with(b"%"), "{}", all.escape_ascii());
    assert!(elements(&all).contains(&b"$4\r\nincr\r\n".to_vec()));

    client.check("CONFIG RESETSTAT", "+OK\r\n");
    assert_eq!((cost(client, "set", "calls"), cost(client, "incr", "rejected_calls")), (None, None));
    client.check("LATENCY HISTOGRAM set", "%0\r\n");
    client.check("SET k v", "+OK\r\n");
    assert_eq!(cost(client, "set", "calls"), Some(1.0));
}

#[test]
fn time_is_counted_for_the_command_that_took_it() {
    let server = slow_server();
    let mut client = server.client();
    client.check("CONFIG SET latency-monitor-threshold 30", "+OK\r\n");
    client.check("LATENCY LATEST", "*0\r\n");
    client.send(&[encode(&["PING"]), encode(&["INFO", "server"]), encode(&["PING"])].concat());
    (0..3).for_each(|_| drop(client.reply().unwrap()));
    let slow_us = SLOW.as_micros() as f64;
    let info = client.run("INFO all");
    let of = |command: &str, what| figure(&info, &format!("cmdstat_{command}"), what).unwrap();
    assert!(of("info", "calls") == 1.0 && of("info", "usec") >= slow_us && of("info", "usec_per_call") >= slow_us);
    assert!(of("ping", "calls") == 2.0 && of("ping", "usec") < slow_us, "{info}");
    assert!(figure(&info, "latency_percentiles_usec_info", "p50").unwrap() >= slow_us, "{info}");
    assert!(figure(&info, "latency_percentiles_usec_ping", "p99.9").unwrap() < slow_us, "{info}");

    let log = client.call(&["SLOWLOG", "GET"]);
    let entries = elements(&log);
    assert_eq!(entries.len(), 2, "INFO twice, and nothing else: {}", log.escape_ascii());
    let fields = elements(&entries[1]);
    let number = |at: usize| std::str::from_utf8(&fields[at][1..]).unwrap().trim().parse::<u64>().unwrap();
    assert!(number(0) < number(1) && number(2) >= SLOW.as_micros() as u64);
    assert_eq!(fields[3], b"*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n");
    let address = client.stream.local_addr().unwrap().to_string();
    assert_eq!(fields[4], format!("${}\r\n{address}\r\n", address.len()).as_bytes());

    let latest = client.run("LATENCY LATEST");
    assert!(latest.starts_with("*1\r\n*4\r\n$7\r\ncommand\r\n:"), "{latest}");
    assert!(client.run("LATENCY HISTORY command").starts_with("*"));
    client.check("LATENCY HISTORY fast-command", "*0\r\n");
    assert!(client.run("LATENCY DOCTOR").contains("command: "));
    client.check("LATENCY RESET nosuch", ":0\r\n");
    client.check("LATENCY RESET", ":1\r\n");
    client.check("LATENCY LATEST", "*0\r\n");
    client.check("LATENCY bogus", "-ERR unknown subcommand 'bogus'. Try LATENCY HELP.\r\n");
}

#[test]
fn the_slow_log_keeps_what_it_is_told_to_and_no_secrets() {
    let server = Running::start(config());
    let mut client = server.client();
    client.check("SLOWLOG GET", "*0\r\n");
    client.check("CONFIG SET slowlog-log-slower-than 0", "+OK\r\n");
    client.run("CLIENT SETNAME me");
    client.run("AUTH hidden1");
    client.run("AUTH default hidden2");
    client.run("HELLO 2 AUTH default hidden3");
    client.run("CONFIG SET timeout 0 requirepass hidden4");
    client.run("CONFIG SET requirepass x timeout hidden5");
    client.run("CONFIG SET slowlog-log-slower-than -1");
    client.run("ECHO unseen");
    let log = String::from_utf8(client.call(&["SLOWLOG", "GET", "-1"])).unwrap();
    assert!(!log.contains("unseen") && log.contains("SETNAME"), "{log}");
    assert!((1..=4).all(|n| !log.contains(&format!("hidden{n}"))), "{log}");
    assert_eq!(log.matches("(redacted)").count(), 1 + 2 + 2 + 1 + 1, "{log}");
    // The value of another setting is shown, and so is the name of the client.
    assert!(log.contains("hidden5") && log.contains("$2\r\nme\r\n"), "{log}");

    client.run("CONFIG SET slowlog-max-len 3 slowlog-log-slower-than 0");
    for n in 0..5 {
        client.run(&format!("ECHO {n}"));
    }
    client.check("SLOWLOG LEN", ":3\r\n");
    let newest = client.call(&["SLOWLOG", "GET", "2"]);
    let of = |entry: &[u8], at: usize| elements(entry)[at].clone();
    let entries = elements(&newest);
    assert_eq!((entries.len(), of(&entries[0], 3)), (2, b"*2\r\n$7\r\nSLOWLOG\r\n$3\r\nLEN\r\n".to_vec()));
    assert_eq!(of(&entries[1], 3), b"*2\r\n$4\r\nECHO\r\n$1\r\n4\r\n");
    client.check("SLOWLOG RESET", "+OK\r\n");
    client.check("SLOWLOG LEN", ":1\r\n");
    client.check("CONFIG GET slowlog-max-len", "*2\r\n$15\r\nslowlog-max-len\r\n$1\r\n3\r\n");
}

#[test]
fn monitors_on_any_loop_are_told_what_others_run_until_they_reset_or_quit() {
    let server = Running::start(Config { threads: 3, ..config() });
    let mut monitors: Vec<_> = (0..4).map(|_| server.client()).collect();
    let mut others: Vec<_> = (0..3).map(|_| server.client()).collect();
    others[0].check("SET k 1", "+OK\r\n");
    for monitor in &mut monitors {
        monitor.check("MONITOR", "+OK\r\n");
        monitor.check("GET k", "-ERR Replica can't interact with the keyspace\r\n");
    }
    // Lines of one client come in its order; those of several loops in any.
    for round in 0..50 {
        for (nth, other) in others.iter_mut().enumerate() {
            other.check(
                &format!("ECHO {nth}:{round}"),
                &format!("${0}\r\n{nth}:{round}\r\n", 2 + round.to_string().len()),
            );
        }
        for monitor in &mut monitors {
            let lines: Vec<String> = (0..3).map(|_| String::from_utf8(monitor.reply().unwrap()).unwrap()).collect();
            for (nth, other) in others.iter().enumerate() {
                let address = other.stream.local_addr().unwrap();
                let end = format!(" [0 {address}] \"ECHO\" \"{nth}:{round}\"\r\n");
                assert!(lines.iter().any(|line| line.starts_with('+') && line.ends_with(&end)), "{end} in {lines:?}");
            }
        }
    }
    assert_eq!(others[0].run("CLIENT LIST").matches(" flags=O ").count(), monitors.len());
    // One that resets is told nothing any more, though it is still there.
    monitors[0].check("RESET", "+RESET\r\n");
    // After the reply to QUIT nothing comes, before it perhaps that another has reset.
    monitors[1].send(&encode(&["QUIT"]));
    assert!(monitors[1].expect_end().ends_with(b"+OK\r\n"));
    others[0].check("ECHO last", "$4\r\nlast\r\n");
    monitors[0].check("GET k", "$1\r\n1\r\n");
    let mut seen = String::new();
    while !seen.contains("last") {
        seen = String::from_utf8(monitors[2].reply().unwrap()).unwrap();
    }
    drop(monitors);
    eventually("no monitor is left", || !others[0].run("CLIENT LIST").contains(" flags=O "));
    others[0].check("MULTI", "+OK\r\n");
    others[0].check("MONITOR", "+QUEUED\r\n");
    others[0].check("EXEC", "*1\r\n-ERR MONITOR isn't allowed for DENY BLOCKING client\r\n");
}

#[test]
fn a_monitor_that_does_not_read_is_disconnected_and_keeps_nobody_waiting() {
    let limits = Config { output_bytes_soft: 64 << 10, output_bytes_max: 1 << 20, ..config() };
    let server = Running::start(limits);
    let (mut silent, mut reading, mut other) = (server.client(), server.client(), server.client());
    silent.check("MONITOR", "+OK\r\n");
    reading.check("MONITOR", "+OK\r\n");
    let mut stream = reading.stream.try_clone().unwrap();
    let received = Arc::new(AtomicUsize::new(0));
    let total = Arc::clone(&received);
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![0; 1 << 20];
        while let Ok(len) = stream.read(&mut bytes) {
            total.fetch_add(len, Ordering::SeqCst);
            if len == 0 || bytes[..len].windows(4).any(|part| part == b"done") {
                break;
            }
        }
    });
    let value = "v".repeat(50_000);
    let (started, mut sent) = (Instant::now(), 0);
    let monitors = |other: &mut Client<TcpStream>| other.run("CLIENT LIST").matches(" flags=O ").count();
    while monitors(&mut other) > 1 {
        assert!(started.elapsed() < PATIENCE, "it stays, after {sent} commands");
        let asked = Instant::now();
        assert_eq!(other.call(&["SET", "k", &value]), b"+OK\r\n");
        assert!(asked.elapsed() < Duration::from_secs(5), "a command waited for a monitor");
        sent += 1;
        // On a busy machine it may read as slowly as one that does not.
        eventually("it reads", || received.load(Ordering::SeqCst) + (256 << 10) > sent * value.len());
    }
    // It had more to read than its sockets hold and the limit allows.
    assert!(sent * value.len() > 1 << 20, "{sent} commands");
    other.check("ECHO done", "$4\r\ndone\r\n");
    reader.join().unwrap();
    assert!(received.load(Ordering::SeqCst) > sent * value.len(), "the one that reads has missed some");
}

#[test]
fn client_list_tells_what_memory_a_client_takes() {
    let server = Running::start(Config { output_bytes_soft: 1 << 10, ..config() });
    let (mut watching, mut half) = (server.client(), server.client());
    half.check("MULTI", "+OK\r\n");
    let queued = "q".repeat(20_000);
    assert_eq!(half.call(&["SET", "k", &queued]), b"+QUEUED\r\n");
    let id = half.run("CLIENT ID");
    assert_eq!(id, "+QUEUED\r\n");
    half.send(&encode(&["SET", "k", &"v".repeat(30_000)])[..25_000]);
    let address = half.stream.local_addr().unwrap();
    eventually("the half command is told", || {
        let list = watching.run("CLIENT LIST");
        let line = list.lines().find(|line| line.contains(&format!(" addr={address} "))).unwrap();
        let of = |name: &str| {
            let value = line.split(' ').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
            value.unwrap_or_else(|| panic!("{name} in {line}")).parse::<usize>().unwrap()
        };
        if of("qbuf") != 25_000 {
            return false;
        }
        assert!((20_000..40_000).contains(&of("multi-mem")), "{line}");
        assert!(of("tot-mem") >= of("qbuf") + of("qbuf-free") + of("multi-mem") + of("omem"), "{line}");
        assert!(line.contains(" cmd=client ") && line.contains(" user=default "), "{line}");
        true
    });
}

struct Told(Handle);

impl Source for Told {
    fn ready(&self) -> Result<(), String> {
        Ok(())
    }

    fn figures(&self) -> Vec<Figure> {
        self.0.figures()
    }
}

#[test]
fn prometheus_gets_times_of_commands_that_were_called_and_finds_nothing_wrong_with_them() {
    let server = slow_server();
    let mut client = server.client();
    client.check("SET k text", "+OK\r\n");
    (0..3).for_each(|_| assert!(client.run("INCR k").starts_with('-')));
    client.run("INFO");
    let figures = server.handle.figures();
    let mut families: Vec<&str> = figures.iter().map(|figure| figure.name.as_str()).collect();
    families.dedup();
    let mut distinct = families.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(families.len(), distinct.len(), "figures of one name are not together: {families:?}");
    let of = |name: &str, command: &str| {
        let is = |figure: &&Figure| figure.labels == [("command", command.to_owned())] && figure.name == name;
        figures.iter().find(is).map(|figure| figure.value.clone())
    };
    assert_eq!(of("esker_resp_command_failures", "incr"), Some(Value::Counter(3.0)));
    assert_eq!(of("esker_resp_command_seconds", "get"), None);
    let Some(Value::Summed(buckets, sum)) = of("esker_resp_command_seconds", "info") else { panic!("{figures:?}") };
    assert!(sum >= SLOW.as_secs_f64() && sum < PATIENCE.as_secs_f64(), "{sum}");
    let found: Vec<f64> = buckets.iter().filter(|(_, count)| *count > 0).map(|(end, _)| *end).collect();
    assert!(found.len() == 1 && found[0] >= SLOW.as_secs_f64(), "{buckets:?}");

    let listen = vec!["127.0.0.1:0".parse().unwrap()];
    let config = esker_server::http::Config { listen, ..esker_server::http::Config::default() };
    let http = esker_server::http::Server::bind(&config).unwrap();
    let Endpoint::Tcp(address) = http.addresses()[0].endpoint else { panic!("TCP was asked for") };
    let running = http.start(Arc::new(Told(server.handle.clone()))).unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (_, text) = answer.split_once("\r\n\r\n").unwrap();
    for line in [
        "# TYPE esker_resp_command_seconds histogram",
        "esker_resp_command_seconds_count{command=\"incr\"} 3",
        "esker_resp_command_seconds_bucket{command=\"incr\",le=\"+Inf\"} 3",
        "esker_resp_command_failures_total{command=\"incr\"} 3",
        "esker_resp_slow_commands_total 1",
    ] {
        assert_eq!(text.lines().filter(|have| have.trim_end_matches(".0") == line).count(), 1, "{line}\n{text}");
    }
    running.stop();
    check_with_promtool(text);
}

/// Has `promtool` judge the text, where it is installed.
fn check_with_promtool(text: &str) {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut promtool) = command.spawn() else {
        eprintln!("skipped: promtool is not installed");
        return;
    };
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && said.is_empty(), "{said}\n{text}");
}
