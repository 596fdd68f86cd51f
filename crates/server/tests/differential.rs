//! The same commands to a real redis-server 7 and to this server: the replies have to be the same bytes.
//!
//! Needs `redis-server`; the README's test command installs it. Known differences, compared more loosely or left out:
//! order of fields and keys (here sorted), cursors of unfinished scans, ids and texts of CLIENT, INFO and COMMAND, the
//! last digits of large INCRBYFLOAT sums, limits of keys and values, a stricter end of bulk strings.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};

use support::{Client, Running, config, elements};

/// A redis-server of its own, ended when dropped.
struct Redis {
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Redis {
    fn start(extra: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut command = Command::new("redis-server");
        command.args([
            "--port",
            &address.port().to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        command.arg("--dir").arg(folder.path()).args(extra).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap_or_else(|error| {
            panic!("redis-server cannot be started ({error}): install it, as the README's test command does")
        });
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.any(|line| line.is_ok_and(|line| line.contains("Ready to accept connections")));
        assert!(ready, "redis-server ended before it was ready");
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address, _folder: folder }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One command per line, its arguments split at blanks (`""` is empty, `\s` a blank). First byte of a line:
/// `~` elements in any order, `=` integers within two seconds (2,000), `?` same kind of reply.
const STRINGS: &str = r#"
PING
PING hello
PING a b
ping
ECHO hi
ECHO
ECHO a b
GET missing
SET k v
GET k
GET
GET a b
SET
SET k
SET k v bogus
SET k v NX
SET k v2 XX
GET k
SET new v XX
GET new
SET k v NX XX
SET k v XX NX
SET k v EX
SET k v EX 0
SET k v EX -1
SET k v EX abc
SET k v EX 9223372036854775807
SET k v PX 9223372036854775807
SET k v EX 100 PX 100
SET k v EX 100 KEEPTTL
SET k v KEEPTTL EX 100
SET k v EX 100
TTL k
=PTTL k
SET k v3 KEEPTTL
TTL k
SET k v4
TTL k
SET k v5 GET
SET nothere v5 GET
SET nothere v6 GET NX
SET nothere2 v6 GET NX
SET nothere2 v6 XX GET
SET k v EXAT 9999999999
EXPIRETIME k
PEXPIRETIME k
SET k v PXAT 9999999999999
PEXPIRETIME k
SET k v EXAT 1
EXISTS k
SET k v PXAT 1
GET k
SETNX k 1
SETNX k 2
SETEX k 0 v
SETEX k -5 v
SETEX k x v
SETEX k 100 v
TTL k
PSETEX k 0 v
PSETEX k 100000 v
=PTTL k
GETSET k new
TTL k
GETSET absent x
GETDEL absent
GETDEL absent
GETDEL
GETEX k
GETEX k EX 50
TTL k
GETEX k PERSIST
TTL k
GETEX k PERSIST EX 1
GETEX k EX 1 PX 1
GETEX k EX 0
GETEX k EX
GETEX k bogus
GETEX k PX 70000
=PTTL k
GETEX k EXAT 1
GET k
GETEX missing
GETEX missing EX 10
APPEND a hello
APPEND a \sworld
GET a
STRLEN a
STRLEN missing
GETRANGE a 0 4
GETRANGE a -5 -1
GETRANGE a -100 100
GETRANGE a 5 1
GETRANGE a -1 -5
GETRANGE a 100 200
GETRANGE a 0 -100
GETRANGE missing 0 -1
GETRANGE a x 1
SUBSTR a 0 2
SETRANGE a 6 redis
GET a
SETRANGE a 20 x
GET a
SETRANGE a -1 x
SETRANGE a x x
SETRANGE missing2 0 ""
SETRANGE missing2 3 ab
GET missing2
SETRANGE a 0 ""
SETRANGE a 4294967296 x
MSET a 1 b 2 c 3
MGET a b c nope
MSET a
MSET a 1 b
MSETNX a 1 d 4
MSETNX d 4 e 5
MSETNX d
MGET d e
MGET
SET "" emptykey
GET ""
SET emptyval ""
GET emptyval
STRLEN emptyval
FOO
FOO a b c
foo\sbar a
GETT k
"#;

const NUMBERS: &str = r#"
INCR n
INCR n
DECR n
INCRBY n 10
DECRBY n 3
INCRBY n -20
GET n
INCRBY n abc
INCRBY n 1.5
INCRBY n 9223372036854775808
SET s abc
INCR s
INCRBYFLOAT s 1
SET big 9223372036854775807
INCR big
DECR big
DECRBY big -9223372036854775808
DECRBY big 9223372036854775807
SET low -9223372036854775808
DECR low
INCRBY low -1
SET spaced \s1
INCR spaced
SET plus +1
INCR plus
SET lead 01
INCR lead
SET neg -0
INCR neg
SET f 10.50
INCRBYFLOAT f 0.1
INCRBYFLOAT f -5
INCRBYFLOAT f abc
INCRBYFLOAT f nan
INCRBYFLOAT f inf
GET f
SET f 5.0e3
INCRBYFLOAT f 2.0e2
SET f 3.0
INCRBYFLOAT f 1
INCRBYFLOAT f 0.25
INCRBYFLOAT f 1e-5
INCRBYFLOAT f -4.25001
INCRBYFLOAT fresh 0.1
INCRBYFLOAT fresh 0.2
INCRBYFLOAT fresh 1.0
INCRBYFLOAT fresh \s1
EXPIRE n 100
INCR n
TTL n
"#;

const KEYS: &str = r#"
MSET a 1 b 2 c 3 d 4
DEL a
DEL a b nope
UNLINK c
EXISTS c
EXISTS d d nope
TOUCH d nope
TYPE d
TYPE nope
DEL
EXISTS
HSET h f v
TYPE h
TTL nope
PTTL nope
TTL d
PTTL d
EXPIRE d 100
TTL d
=PTTL d
EXPIRE d 50 NX
EXPIRE d 50 GT
EXPIRE d 150 GT
TTL d
EXPIRE d 200 LT
EXPIRE d 20 LT
TTL d
EXPIRE d 20 XX
PERSIST d
PERSIST d
PERSIST nope
EXPIRE d 20 XX
EXPIRE d 20 GT
EXPIRE d 20 LT
TTL d
EXPIRE d 20 NX XX
EXPIRE d 20 NX GT
EXPIRE d 20 GT LT
EXPIRE d 20 bogus
EXPIRE d abc
EXPIRE d abc bogus
EXPIRE d 9223372036854775807
EXPIRE d -9223372036854775808
PEXPIRE d 9223372036854775807
EXPIRE d
EXPIRE nope 10
PEXPIRE d 100000
=PTTL d
EXPIREAT d 9999999999
EXPIRETIME d
PEXPIREAT d 9999999999999
PEXPIRETIME d
EXPIRETIME nope
PEXPIRETIME h
EXPIREAT d 1
EXISTS d
SET d 1
EXPIRE d -1
EXISTS d
SET d 1
PEXPIREAT d 0
EXISTS d
EXPIRE h 100
TTL h
HSET h g w
TTL h
RENAME nope x
RENAME h h2
TTL h2
HGET h2 f
EXISTS h
PERSIST h2
SET s 1
RENAMENX s h2
RENAMENX s s2
RENAMENX s2 s2
RENAME s2 s2
RENAME s2 h2
TYPE h2
HSET h a 1 b 2
COPY h h3
HGET h3 b
COPY h h3
COPY h h3 REPLACE
COPY h h
COPY nope x
COPY h x DB 1
COPY h x DB 99
COPY h x bogus
SELECT 1
HGET x a
MOVE x 0
MOVE x 1
SELECT 0
HGET x a
SELECT 16
SELECT -1
SELECT abc
SELECT
FLUSHDB
DBSIZE
RANDOMKEY
SET only 1
RANDOMKEY
DBSIZE
KEYS *
KEYS nope
KEYS o?ly
KEYS [a-z]nly
KEYS o*
KEYS
MSET k:1 a k:2 b l:1 c
~KEYS k:*
~KEYS *
SCAN 0 COUNT 1000 MATCH only
SCAN 0 COUNT 1000 TYPE hash
SCAN abc
SCAN 0 COUNT 0
SCAN 0 COUNT abc
SCAN 0 bogus
SCAN 0 COUNT
SCAN
OBJECT ENCODING only
OBJECT ENCODING nope
OBJECT REFCOUNT
OBJECT BOGUS x
SET long aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
OBJECT ENCODING long
SET short abc
OBJECT ENCODING short
FLUSHDB ASYNC
FLUSHDB SYNC
FLUSHDB bogus
FLUSHALL
FLUSHALL bogus
DBSIZE
DBSIZE x
"#;

const HASHES: &str = r#"
HSET h a 1
HSET h a 2
HSET h a 3 b 4 c 5
HSET h a
HSET h
HSET h a 1 b
HMSET h d 6 e 7
HMSET h d
HGET h a
HGET h nope
HGET nope a
HGET h
HMGET h a b nope
HMGET nope a b
HMGET h
~HGETALL h
HGETALL nope
~HKEYS h
~HVALS h
HKEYS nope
HVALS nope
HLEN h
HLEN nope
HEXISTS h a
HEXISTS h nope
HEXISTS nope a
HSTRLEN h a
HSTRLEN h nope
HSTRLEN nope a
HSETNX h a x
HSETNX h new x
HSETNX fresh f v
HDEL h new nope
HDEL h
HDEL nope a
HDEL fresh f
EXISTS fresh
HINCRBY h a 5
HINCRBY h n 5
HINCRBY h n -10
HINCRBY h n abc
HSET h s abc
HINCRBY h s 1
HINCRBYFLOAT h s 1
HINCRBYFLOAT h a abc
HINCRBYFLOAT h f 0.1
HINCRBYFLOAT h f 0.2
HINCRBYFLOAT h f inf
HSET h big 9223372036854775807
HINCRBY h big 1
HSCAN nope 0
HSET one f v
HSCAN one 0
HSCAN one 0 MATCH x*
HSCAN one 0 COUNT 1
HSCAN one abc
HSCAN one 0 bogus
HSCAN one 0 COUNT 0
HSCAN one
HRANDFIELD one
HRANDFIELD one 5
HRANDFIELD one -2
HRANDFIELD one 1 WITHVALUES
HRANDFIELD one 0
HRANDFIELD nope
HRANDFIELD nope 5
HRANDFIELD one 1 bogus
HRANDFIELD one abc
HGETALL one
HSET one "" ""
HGET one ""
SET str v
HGET str a
HSET str a 1
HGETALL str
HDEL str a
HLEN str
HINCRBY str a 1
HSCAN str 0
GET one
APPEND one x
INCR one
STRLEN one
GETRANGE one 0 1
SETRANGE one 0 x
INCRBYFLOAT one 1
GETSET one x
GETDEL one
GETEX one
SET one v GET
MGET one str
SETNX one x
TYPE one
SET one now-a-string
TYPE one
GET one
HSET gone f v
DEL gone
HGETALL gone
HSET gone g w
HGETALL gone
DEL h
HLEN h
"#;

const TRANSACTIONS: &str = r#"
EXEC
DISCARD
MULTI
MULTI
SET a 1
INCR a
GET a
EXEC
MULTI
EXEC
MULTI
SET a 5
DISCARD
GET a
MULTI
SET a
GET a
EXEC
MULTI
NOSUCH
EXEC
MULTI
SET s abc
INCR s
HSET s f v
GET s
EXEC
MULTI
WATCH a
EXEC
WATCH a
MULTI
SET a 7
EXEC
WATCH a
SET a 8
MULTI
SET a 9
EXEC
GET a
WATCH a
SET a 10
UNWATCH
MULTI
SET a 11
EXEC
WATCH nope
MULTI
PING
ECHO x
EXEC
WATCH nope
SET nope 1
MULTI
PING
EXEC
WATCH h
HSET h f v
MULTI
PING
EXEC
WATCH h
HSET h f v
MULTI
PING
EXEC
WATCH h
HGET h f
MULTI
HGET h f
EXEC
WATCH a
DEL a
MULTI
PING
EXEC
WATCH a
DEL a
MULTI
PING
EXEC
WATCH h
FLUSHALL
MULTI
PING
EXEC
WATCH h
FLUSHALL
MULTI
PING
EXEC
WATCH
MULTI
HSET m a 1 b 2
HGETALL m
DEL m
EXISTS m
HLEN m
SET m x
GET m
EXEC
MULTI
SELECT 3
SET in3 yes
SELECT 0
GET in3
EXEC
SELECT 3
GET in3
FLUSHDB
SELECT 0
MULTI
SAVE
EXEC
MULTI
MSET x 1 y 2
DBSIZE
KEYS x
FLUSHDB
DBSIZE
SET z 1
DBSIZE
EXEC
DBSIZE
MULTI
UNWATCH
WAIT 0 0
TTL z
EXPIRE z 100
TTL z
PERSIST z
EXEC
WATCH z
RENAME z zz
MULTI
PING
EXEC
MULTI
EXEC x
DISCARD
"#;

const SERVER: &str = r#"
?HELLO 2
?HELLO
HELLO 4
HELLO abc
HELLO 3 bogus
HELLO 2 SETNAME a\sb
HELLO 2 AUTH a b
?HELLO 2 AUTH default anything
AUTH x
AUTH default x
AUTH other x
AUTH a b c
CLIENT GETNAME
CLIENT SETNAME tester
CLIENT GETNAME
CLIENT SETNAME a\sb
CLIENT SETNAME ""
CLIENT GETNAME
?CLIENT ID
?CLIENT INFO
?CLIENT LIST
CLIENT LIST TYPE bogus
CLIENT LIST bogus
CLIENT KILL 1.2.3.4:5
CLIENT KILL ID 999999
CLIENT KILL ID abc
CLIENT KILL bogus x
CLIENT NO-EVICT on
CLIENT NO-EVICT bogus
CLIENT GETREDIR
CLIENT
CLIENT bogus
CLIENT SETNAME
CLIENT ID x
CONFIG GET save
CONFIG GET maxmemory
CONFIG GET nosuch
CONFIG GET databases
CONFIG GET
CONFIG bogus
CONFIG SET nosuch 1
CONFIG SET timeout abc
CONFIG SET timeout -1
CONFIG SET timeout 0
CONFIG SET maxclients 0
CONFIG SET timeout
CONFIG SET appendfsync bogus
CONFIG REWRITE
CONFIG RESETSTAT
?COMMAND COUNT
?COMMAND
COMMAND bogus
COMMAND GETKEYS SET a b
COMMAND GETKEYS MSET a b c d
COMMAND GETKEYS PING
COMMAND GETKEYS nosuch
COMMAND GETKEYS GET
?COMMAND DOCS get
COMMAND INFO nosuch
?COMMAND INFO get
?INFO
?INFO server
INFO nosuch
?TIME
TIME x
?LASTSAVE
BGSAVE bogus
WAIT 0 0
WAIT 0 abc
WAIT abc 0
WAIT 0 -1
WAIT 0
ROLE
SHUTDOWN bogus
OBJECT HELP x
RESET
QUIT x
"#;

fn args(line: &str) -> Vec<Vec<u8>> {
    let arg = |word: &str| if word == "\"\"" { Vec::new() } else { word.replace("\\s", " ").into_bytes() };
    line.split_whitespace().map(arg).collect()
}

fn same(kind: char, ours: &[u8], theirs: &[u8]) -> bool {
    match kind {
        '~' => {
            let sorted = |reply| {
                let mut elements = elements(reply);
                elements.sort();
                elements
            };
            ours[0] == theirs[0] && sorted(ours) == sorted(theirs)
        }
        '=' => {
            let number = |reply: &[u8]| std::str::from_utf8(&reply[1..]).unwrap().trim().parse::<i64>().unwrap();
            ours[0] == b':' && theirs[0] == b':' && (number(ours) - number(theirs)).abs() <= 2_000
        }
        '?' => ours[0] == theirs[0],
        _ => ours == theirs,
    }
}

/// Sends all lines to both, in this version of the protocol.
fn compare(name: &str, script: &str, resp3: bool) {
    let redis = Redis::start(&[]);
    let esker = Running::start(config());
    compare_with(name, script, resp3, redis.address, esker.address());
}

fn compare_with(name: &str, script: &str, resp3: bool, theirs: SocketAddr, ours: SocketAddr) {
    let mut theirs = Client::connect(theirs);
    let mut ours = Client::connect(ours);
    theirs.foreign = true;
    if resp3 {
        theirs.call(&["HELLO", "3"]);
        ours.call(&["HELLO", "3"]);
    }
    let mut different = Vec::new();
    for line in script.lines().filter(|line| !line.is_empty()) {
        let kind = line.chars().next().filter(|kind| "~=?".contains(*kind)).unwrap_or(' ');
        let args = args(line.trim_start_matches(['~', '=', '?']));
        let (a, b) = (ours.call(&args), theirs.call(&args));
        if !same(kind, &a, &b) {
            different.push(format!("{line}\n  esker {}\n  redis {}", a.escape_ascii(), b.escape_ascii()));
        }
        // After a HELLO that was refused both speak what they spoke before.
        if args[0].eq_ignore_ascii_case(b"hello") || args[0].eq_ignore_ascii_case(b"reset") {
            let hello = ["HELLO", if resp3 { "3" } else { "2" }];
            theirs.call(&hello);
            ours.call(&hello);
        }
    }
    assert!(different.is_empty(), "{name}, resp3 {resp3}: {} differ\n{}", different.len(), different.join("\n"));
}

#[test]
fn strings_answer_as_redis_does() {
    compare("strings", STRINGS, false);
    compare("strings", STRINGS, true);
}

#[test]
fn numbers_answer_as_redis_does() {
    compare("numbers", NUMBERS, false);
    compare("numbers", NUMBERS, true);
}

#[test]
fn keys_answer_as_redis_does() {
    compare("keys", KEYS, false);
    compare("keys", KEYS, true);
}

#[test]
fn hashes_answer_as_redis_does() {
    compare("hashes", HASHES, false);
    compare("hashes", HASHES, true);
}

#[test]
fn transactions_answer_as_redis_does() {
    compare("transactions", TRANSACTIONS, false);
    compare("transactions", TRANSACTIONS, true);
}

#[test]
fn server_commands_answer_as_redis_does() {
    compare("server", SERVER, false);
    compare("server", SERVER, true);
}

/// Everything again with keys that are numbers, in a database that keeps those in slots.
#[test]
fn int_keys_answer_as_redis_does() {
    let numbered = |script: &str| {
        let word = |word: &str| match word {
            "k" | "a" | "h" | "n" => format!("{}", 1 + word.as_bytes()[0]),
            other => other.to_owned(),
        };
        let line = |line: &str| line.split(' ').map(word).collect::<Vec<_>>().join(" ");
        script.lines().map(line).collect::<Vec<_>>().join("\n")
    };
    for script in [STRINGS, NUMBERS, KEYS, HASHES, TRANSACTIONS] {
        let redis = Redis::start(&[]);
        let esker = Running::start(esker_server::resp::Config { int_databases: vec![0, 1], ..config() });
        compare_with("int", &numbered(script), false, redis.address, esker.address());
    }
}

/// Bytes that are not the protocol: the same error, then the end of the connection.
#[test]
fn bad_requests_are_refused_as_redis_does() {
    let redis = Redis::start(&[]);
    let esker = Running::start(config());
    let long = [&b"*1\r\n$"[..], &[b'1'; 70_000]].concat();
    let cases: &[&[u8]] = &[
        b"*x\r\n",
        b"*99999999999999\r\n",
        b"*1\r\n+OK\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$abc\r\n",
        b"*1\r\n$99999999999\r\n",
        b"*2\r\n$3\r\nGET\r\n:1\r\n",
        b"SET \"a\r\n",
        b"SET 'a'b\r\n",
        &[b'a'; 70_000],
        &[&b"*"[..], &[b'1'; 70_000]].concat(),
        &long,
        b"PING\r\n*1\r\n!\r\nPING\r\n",
    ];
    for case in cases {
        let answer = |address| {
            let mut client = Client::connect(address);
            client.send(case);
            client.expect_end()
        };
        let (ours, theirs) = (answer(esker.address()), answer(redis.address));
        let shown = case[..case.len().min(40)].escape_ascii();
        assert_eq!(ours.escape_ascii().to_string(), theirs.escape_ascii().to_string(), "{shown}");
    }
    let inline: &[&[u8]] = &[
        b"PING\r\n",
        b"  PING  \n",
        b"SET k \"a b\\x41\"\r\n",
        b"GET k\r\n",
        b"*0\r\nPING\r\n",
        b"\r\nPING\r\n",
        b"*-1\r\nGET 'k'\n",
    ];
    for case in inline {
        let answer = |address| {
            let mut client = Client::connect(address);
            client.send(case);
            client.reply().unwrap()
        };
        assert_eq!(answer(esker.address()), answer(redis.address), "{}", case.escape_ascii());
    }
}

#[test]
fn strangers_are_refused_as_redis_does() {
    let redis = Redis::start(&["--requirepass", "secret"]);
    let esker = Running::start(esker_server::resp::Config { password: Some("secret".into()), ..config() });
    let script = r#"
PING
GET a
NOSUCH
GET
HELLO 3
HELLO 2
HELLO 2 AUTH default wrong
AUTH wrong
AUTH default wrong
AUTH other secret
MULTI
?HELLO 2 AUTH default secret
PING
RESET
PING
AUTH secret
PING
QUIT
"#;
    let mut ours = Client::connect(esker.address());
    let mut theirs = Client::connect(redis.address);
    for line in script.lines().filter(|line| !line.is_empty()) {
        let kind = if line.starts_with('?') { '?' } else { ' ' };
        let args = args(line.trim_start_matches('?'));
        let (a, b) = (ours.call(&args), theirs.call(&args));
        (ours.resp3, theirs.resp3) = (false, false);
        assert!(same(kind, &a, &b), "{line}: esker {} redis {}", a.escape_ascii(), b.escape_ascii());
    }
    for case in [&b"*11\r\n"[..], b"*2\r\n$3\r\nGET\r\n$16385\r\n"] {
        let answer = |address| {
            let mut client = Client::connect(address);
            client.send(case);
            client.expect_end().escape_ascii().to_string()
        };
        assert_eq!(answer(esker.address()), answer(redis.address), "{}", case.escape_ascii());
    }
}
