//! The commands that took longest, as SLOWLOG shows them.
//!
//! executor, for a command that took `slowlog-log-slower-than` → [`Slowlog::add`] → SLOWLOG GET
//!
//! Invariants:
//! 1. Of a command at most [`KEPT_ARGS_MAX`] arguments of [`KEPT_ARG_BYTES_MAX`] bytes are kept, no secrets among them.
//! 2. At most `slowlog-max-len` commands are kept, and [`BYTES_MAX`] bytes whatever that says.
//! 3. A command that is not slow costs one load.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::resp::parse::Args;
use crate::resp::secrets::shown_args;

/// Arguments that are kept of a command, its name included; the last tells how many more there were.
pub(crate) const KEPT_ARGS_MAX: usize = 32;
/// Bytes that are kept of an argument, before the words that tell how many more there were.
pub(crate) const KEPT_ARG_BYTES_MAX: usize = 128;
/// Memory of all commands that are kept, about.
const BYTES_MAX: usize = 16 << 20;
/// `slowlog-log-slower-than` at the start, in microseconds.
const SLOWER_THAN_US: i64 = 10_000;
/// `slowlog-max-len` at the start.
const LEN_MAX: u64 = 128;

/// Arguments of a command, cut.
#[derive(Debug)]
pub(crate) struct KeptArgs {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl KeptArgs {
    /// Keeps what may be shown of the arguments of the command `name`.
    pub(crate) fn new(name: &str, args: Args<'_>) -> Self {
        let cut = args.len() > KEPT_ARGS_MAX;
        let whole = if cut { KEPT_ARGS_MAX - 1 } else { args.len() };
        let mut kept = Self { bytes: Vec::new(), ends: Vec::with_capacity(whole + usize::from(cut)) };
        for arg in shown_args(name, args).take(whole) {
            kept.bytes.extend_from_slice(&arg[..arg.len().min(KEPT_ARG_BYTES_MAX)]);
            if let Some(more) = arg.len().checked_sub(KEPT_ARG_BYTES_MAX).filter(|more| *more > 0) {
                kept.bytes.extend_from_slice(format!("... ({more} more bytes)").as_bytes());
            }
            kept.ends.push(kept.bytes.len() as u32);
        }
        if cut {
            kept.bytes.extend_from_slice(format!("... ({} more arguments)", args.len() - whole).as_bytes());
            kept.ends.push(kept.bytes.len() as u32);
        }
        kept
    }

    /// Of a command of which nothing but the name is known any more.
    pub(crate) fn of_name(name: &str) -> Self {
        Self { bytes: name.as_bytes().to_vec(), ends: vec![name.len() as u32] }
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut from = 0;
        self.ends.iter().map(move |end| {
            let arg = &self.bytes[from..*end as usize];
            from = *end as usize;
            arg
        })
    }
}

/// A command that was slow.
#[derive(Debug)]
pub(crate) struct SlowCommand {
    /// Counts up from 0 as long as the server runs.
    pub(crate) id: u64,
    /// Unix seconds at which it ended.
    pub(crate) at_s: u64,
    pub(crate) took: Duration,
    pub(crate) args: KeptArgs,
    pub(crate) address: String,
    /// The name that the client gave itself, cut to [`KEPT_ARG_BYTES_MAX`] bytes.
    pub(crate) client: String,
}

impl SlowCommand {
    fn bytes(&self) -> usize {
        let texts = self.args.bytes.capacity() + self.address.len() + self.client.len();
        texts + self.args.ends.len() * size_of::<u32>() + size_of::<Self>()
    }
}

#[derive(Default)]
struct Kept {
    /// Newest first.
    commands: VecDeque<Arc<SlowCommand>>,
    bytes: usize,
    next_id: u64,
}

/// The slow commands of a server.
pub(crate) struct Slowlog {
    /// Nanoseconds from which on a command is slow; none is at `u64::MAX`.
    from_ns: AtomicU64,
    len_max: AtomicU64,
    kept: Mutex<Kept>,
}

impl Default for Slowlog {
    fn default() -> Self {
        let slowlog =
            Self { from_ns: AtomicU64::new(u64::MAX), len_max: AtomicU64::new(LEN_MAX), kept: Mutex::default() };
        slowlog.set_slower_than_us(SLOWER_THAN_US);
        slowlog
    }
}

impl Slowlog {
    /// Whether a command that took so long is kept.
    pub(crate) fn is_slow(&self, took: Duration) -> bool {
        let from_ns = self.from_ns.load(Ordering::Relaxed);
        from_ns != u64::MAX && took.as_nanos() >= u128::from(from_ns)
    }

    /// Commands that take so many nanoseconds are kept; none with `u64::MAX`.
    pub(crate) fn slow_from_ns(&self) -> u64 {
        self.from_ns.load(Ordering::Relaxed)
    }

    /// Whether any command may be kept.
    pub(crate) fn is_on(&self) -> bool {
        self.from_ns.load(Ordering::Relaxed) != u64::MAX
    }

    /// `slowlog-log-slower-than`: microseconds, -1 if it is off.
    pub(crate) fn slower_than_us(&self) -> i64 {
        match self.from_ns.load(Ordering::Relaxed) {
            u64::MAX => -1,
            from_ns => (from_ns / 1_000) as i64,
        }
    }

    /// Sets `slowlog-log-slower-than`. What no command can take, 584 years, is cut to that.
    pub(crate) fn set_slower_than_us(&self, us: i64) {
        let from_ns = u64::try_from(us).map_or(u64::MAX, |us| us.saturating_mul(1_000).min(u64::MAX - 1));
        self.from_ns.store(from_ns, Ordering::Relaxed);
    }

    /// `slowlog-max-len`.
    pub(crate) fn len_max(&self) -> u64 {
        self.len_max.load(Ordering::Relaxed)
    }

    /// Sets `slowlog-max-len`; it is kept to from the next slow command on.
    pub(crate) fn set_len_max(&self, len_max: u64) {
        self.len_max.store(len_max, Ordering::Relaxed);
    }

    /// Keeps a command of a client that has this address and gave itself this name.
    pub(crate) fn add(&self, at_s: u64, took: Duration, args: KeptArgs, address: &str, client: &str) {
        let client = client.chars().scan(0, |bytes, char| {
            *bytes += char.len_utf8();
            (*bytes <= KEPT_ARG_BYTES_MAX).then_some(char)
        });
        let (address, client) = (address.to_owned(), client.collect());
        let mut kept = self.kept.lock();
        let slow = SlowCommand { id: kept.next_id, at_s, took, args, address, client };
        kept.next_id += 1;
        kept.bytes += slow.bytes();
        kept.commands.push_front(Arc::new(slow));
        let len_max = self.len_max();
        while kept.commands.len() as u64 > len_max || kept.bytes > BYTES_MAX {
            let Some(oldest) = kept.commands.pop_back() else { break };
            kept.bytes -= oldest.bytes();
        }
    }

    /// The newest `count`, newest first.
    pub(crate) fn newest(&self, count: usize) -> Vec<Arc<SlowCommand>> {
        self.kept.lock().commands.iter().take(count).cloned().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.kept.lock().commands.len()
    }

    /// How many commands were slow since the start.
    pub(crate) fn total(&self) -> u64 {
        self.kept.lock().next_id
    }

    pub(crate) fn reset(&self) {
        let mut kept = self.kept.lock();
        kept.commands.clear();
        kept.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::parse::{Limits, Parser};

    fn kept(args: &[&[u8]]) -> KeptArgs {
        let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            bytes.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            bytes.extend_from_slice(arg);
            bytes.extend_from_slice(b"\r\n");
        }
        let limits = Limits { arg_bytes_max: 1 << 20, command_bytes_max: 1 << 24, unauthenticated: false };
        let mut parser = Parser::new();
        parser.next(&bytes, &limits).unwrap();
        KeptArgs::new("mget", parser.args(&bytes))
    }

    #[test]
    fn what_is_kept_is_bounded_whatever_the_limit_says() {
        let slowlog = Slowlog::default();
        slowlog.set_len_max(i64::MAX as u64);
        let arg = [b'x'; 1_000];
        let args = [&arg[..]; 40];
        let adds = 10_000;
        for at_s in 0..adds {
            slowlog.add(at_s, Duration::ZERO, kept(&args), "address", &"n".repeat(100_000));
        }
        assert!(slowlog.len() > 1_000, "{}", slowlog.len());
        let all = slowlog.newest(usize::MAX);
        assert!(all.iter().map(|slow| slow.bytes()).sum::<usize>() <= BYTES_MAX);
        assert_eq!((all[0].id, all[0].at_s, all[0].client.len()), (adds - 1, adds - 1, KEPT_ARG_BYTES_MAX));
        assert_eq!(slowlog.total(), adds);
        slowlog.set_len_max(2);
        slowlog.add(0, Duration::ZERO, kept(&[b"get"]), "", "");
        assert_eq!(slowlog.len(), 2);
        slowlog.reset();
        assert_eq!((slowlog.len(), slowlog.total(), slowlog.kept.lock().bytes), (0, adds + 1, 0));
    }

    #[test]
    fn settings_say_what_is_slow() {
        let slowlog = Slowlog::default();
        let us = Duration::from_micros;
        assert_eq!((slowlog.slower_than_us(), slowlog.len_max()), (10_000, 128));
        assert!(!slowlog.is_slow(us(9_999)) && slowlog.is_slow(us(10_000)));
        slowlog.set_slower_than_us(0);
        assert!(slowlog.is_slow(Duration::ZERO) && slowlog.is_on());
        slowlog.set_slower_than_us(-1);
        assert!(!slowlog.is_slow(Duration::MAX) && !slowlog.is_on() && slowlog.slower_than_us() == -1);
        slowlog.set_slower_than_us(i64::MAX);
        assert!(!slowlog.is_slow(us(1 << 40)) && slowlog.is_on());
    }
}
