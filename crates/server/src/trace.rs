//! Spans of requests: which of them are traced, and what is told of those.
//!
//! a command, a call, a request of a disk → is tracing on, is this one drawn → `Traced`, a span of `tracing` → what
//! it came to → it ends when it is dropped. The exporter takes those of [`TARGET`] at level trace, and turns
//! tracing on by [`start`].
//!
//! Invariants:
//! 1. While tracing is off a request costs one relaxed load; one that is not drawn costs a random number more.
//! 2. No span tells a key, a value, an argument, a client or an address.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tonic::codegen::http::HeaderMap;
use tracing::field::Empty;
use tracing::{Level, Span};

use crate::nbd::wire::{Request, code, command};

/// The target of all spans of requests.
pub const TARGET: &str = "esker_trace";

/// Makes a span the child of what the metadata of a call names.
pub type Adopt = fn(&Span, &HeaderMap);

/// 0 while tracing is off; else one more than how many of [`DRAWS`] requests are traced.
static SHARE: AtomicU64 = AtomicU64::new(0);
static ADOPT: OnceLock<Adopt> = OnceLock::new();
/// What shares are told in.
const DRAWS: u64 = 1 << 32;

/// Has requests traced from now on: this share of them, 0 to 1, and of calls by gRPC those whose callers say in
/// `traceparent` that they are sampled, and none of those that say they are not.
pub fn start(share: f64, adopt: Adopt) {
    // Set once in a process.
    let _ = ADOPT.set(adopt);
    SHARE.store(1 + (share.clamp(0.0, 1.0) * DRAWS as f64) as u64, Ordering::Relaxed);
}

/// Traces no request that begins from now on.
pub fn stop() {
    SHARE.store(0, Ordering::Relaxed);
}

/// Whether requests are traced at all.
#[inline]
pub(crate) fn is_on() -> bool {
    SHARE.load(Ordering::Relaxed) != 0
}

/// Whether this request is one of those that are traced.
#[cold]
fn drawn() -> bool {
    let share = SHARE.load(Ordering::Relaxed);
    share > DRAWS || u64::from(fastrand::u32(..)) + 1 < share
}

/// A span that is recorded until this is dropped.
pub(crate) struct Traced(Box<Span>);

impl Traced {
    fn of(span: Span) -> Option<Self> {
        (!span.is_disabled()).then(|| Self(Box::new(span)))
    }

    /// The request goes on, and this span does not.
    pub(crate) fn goes_on(&self) {
        self.0.record("esker.goes_on", true);
    }

    /// It came to an error of this kind.
    pub(crate) fn failed(&self, kind: &str) {
        self.0.record("error.type", kind);
        self.0.record("otel.status_code", "ERROR");
    }
}

/// A command of the Redis protocol begins: its name among all, nothing if it is unknown.
#[cold]
pub(crate) fn command(name: Option<&str>, database: u8) -> Option<Traced> {
    if !drawn() {
        return None;
    }
    let name = name.map_or_else(|| "unknown".into(), str::to_ascii_uppercase);
    Traced::of(tracing::span!(
        target: TARGET,
        parent: None,
        Level::TRACE,
        "command",
        otel.name = name,
        otel.kind = "server",
        db.system.name = "redis",
        db.operation.name = name,
        db.namespace = database,
        esker.goes_on = Empty,
        error.type = Empty,
        otel.status_code = Empty,
    ))
}

/// The word that an error of the Redis protocol begins with; nothing if the reply is no error.
pub(crate) fn error_of(reply: &[u8]) -> Option<&str> {
    let line = reply.strip_prefix(b"-")?;
    let word = line.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    // Never what a client has sent: the words are few and short.
    let known = (1..=16).contains(&word) && line.get(word) == Some(&b' ');
    Some(if known { std::str::from_utf8(&line[..word]).unwrap_or("ERR") } else { "ERR" })
}

/// A request of a disk begins.
#[cold]
pub(crate) fn request(request: &Request) -> Option<Traced> {
    if !drawn() {
        return None;
    }
    let name = match request.command {
        command::READ => "read",
        command::WRITE => "write",
        command::FLUSH => "flush",
        command::TRIM => "trim",
        command::CACHE => "cache",
        command::WRITE_ZEROES => "write_zeroes",
        command::BLOCK_STATUS => "block_status",
        _ => "unknown",
    };
    Traced::of(tracing::span!(
        target: TARGET,
        parent: None,
        Level::TRACE,
        "request",
        otel.name = format!("NBD {name}"),
        otel.kind = "server",
        nbd.command = name,
        nbd.bytes = request.len,
        error.type = Empty,
        otel.status_code = Empty,
    ))
}

/// The name of an error of NBD.
pub(crate) fn errno(error: u32) -> &'static str {
    match error {
        code::PERM => "EPERM",
        code::IO => "EIO",
        code::INVAL => "EINVAL",
        code::NOSPC => "ENOSPC",
        code::NOTSUP => "ENOTSUP",
        code::SHUTDOWN => "ESHUTDOWN",
        _ => "other",
    }
}

/// A call by gRPC begins.
#[cold]
pub(crate) fn call(path: &str, headers: &HeaderMap) -> Option<Traced> {
    let wanted = caller_samples(headers).unwrap_or_else(drawn);
    if !wanted {
        return None;
    }
    // What else is asked for is the client's own words.
    let path = if is_method(path) { &path[1..] } else { "other" };
    let (service, method) = path.split_once('/').unwrap_or((path, ""));
    let traced = Traced::of(tracing::span!(
        target: TARGET,
        parent: None,
        Level::TRACE,
        "call",
        otel.name = path,
        otel.kind = "server",
        rpc.system = "grpc",
        rpc.service = service,
        rpc.method = method,
        rpc.grpc.status_code = Empty,
        error.type = Empty,
        otel.status_code = Empty,
    ))?;
    if let Some(adopt) = ADOPT.get() {
        adopt(&traced.0, headers);
    }
    Some(traced)
}

/// Whether a path is that of a method that Esker's servers have.
pub(crate) fn is_method(path: &str) -> bool {
    esker_wire::proto::METHODS.binary_search(&path).is_ok() || path.starts_with("/grpc.") && GRPC.contains(&path)
}

/// Methods that are gRPC's own.
const GRPC: [&str; 5] = [
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/List",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// Whether the caller's own trace is recorded; nothing if it has none. Source: W3C Trace Context, 3.2.
fn caller_samples(headers: &HeaderMap) -> Option<bool> {
    let parent = headers.get("traceparent")?.to_str().ok()?;
    let mut fields = parent.splitn(5, '-');
    let mut field = |len: usize| {
        fields.next().filter(|field| field.len() == len && field.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    let (version, trace, span, flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
    let is_none = |id: &str| id.bytes().all(|byte| byte == b'0');
    if version == "ff" || is_none(trace) || is_none(span) {
        return None;
    }
    Some(u8::from_str_radix(flags, 16).ok()? & 1 == 1)
}

impl Traced {
    /// The head of the answer to a call: with its status, if it failed.
    pub(crate) fn answered(&self, status: Option<u16>) {
        self.0.record("rpc.grpc.status_code", status.unwrap_or(0));
        if let Some(status) = status.filter(|status| *status != 0) {
            self.failed(&status.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_an_error_is_its_first_word_and_never_more() {
        for (reply, expected) in [
            ("+OK\r\n", None),
            ("$3\r\n-ER\r\n", None),
            ("-WRONGTYPE Operation against a key\r\n", Some("WRONGTYPE")),
            ("-ERR unknown command 'x'\r\n", Some("ERR")),
            ("-secret things\r\n", Some("ERR")),
            ("-SECRET\r\n", Some("ERR")),
            ("-\r\n", Some("ERR")),
        ] {
            assert_eq!(error_of(reply.as_bytes()), expected, "{reply}");
        }
    }

    #[test]
    fn a_method_is_one_that_there_is() {
        for (path, expected) in [
            ("/esker.log.v1.Log/Append", true),
            ("/esker.map.v1.Map/Scan", true),
            ("/grpc.health.v1.Health/Check", true),
            ("/esker.log.v1.Log/hunter2", false),
            ("/grpc.x/y", false),
            ("", false),
        ] {
            assert_eq!(is_method(path), expected, "{path}");
        }
        assert!(esker_wire::proto::METHODS.is_sorted());
    }

    #[test]
    fn a_caller_decides_by_the_flag_of_its_traceparent() {
        for (parent, expected) in [
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Some(true)),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-02", Some(false)),
            ("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03-more", Some(true)),
            ("00-0af7651916cd43dd8448eb211c80319c", None),
            ("00-00000000000000000000000000000000-b7ad6b7169203331-01", None),
            ("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", None),
            ("zz-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None),
            ("nonsense", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", parent.parse().unwrap());
            assert_eq!(caller_samples(&headers), expected, "{parent}");
        }
        assert_eq!(caller_samples(&HeaderMap::new()), None);
    }
}
