//! Requests: arrays of bulk strings, and inline commands, parsed in place and resumable.
//!
//! bytes of the connection → [`Parser::next`] → [`Step::Command`] → [`Args`], which point into the same bytes
//!
//! Invariants:
//! 1. Nothing is reserved for lengths that were only announced: memory grows with bytes that arrived.
//! 2. A half command costs nothing to resume: each byte is looked at once, but for an unfinished line.
//! 3. After an error the stream is out of step and the connection has to be closed.
//!
//! Why not a codec crate: docs/decisions/0002-resp-codec.md. Errors read as those of Redis 7.

use crate::resp::number::parse_i64;

/// Longest inline command or length line, in bytes, as in Redis.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Most arguments of a command.
pub const ARGS_MAX: usize = 1 << 20;
/// Most arguments before a client has authenticated, as in Redis.
pub const UNAUTHENTICATED_ARGS_MAX: usize = 10;
/// Longest argument before a client has authenticated, in bytes, as in Redis.
pub const UNAUTHENTICATED_ARG_BYTES_MAX: usize = 16 << 10;

/// What a parser accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest argument, in bytes.
    pub arg_bytes_max: usize,
    /// Longest command, in bytes with its framing.
    pub command_bytes_max: usize,
    /// Whether the tighter limits for unauthenticated clients apply.
    pub unauthenticated: bool,
}

/// A stream that is not the protocol. The connection has to be closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// `*` without a sensible number of arguments.
    #[error("Protocol error: invalid multibulk length")]
    ArgsCount,
    /// More than [`UNAUTHENTICATED_ARGS_MAX`] arguments before authentication.
    #[error("Protocol error: unauthenticated multibulk length")]
    UnauthenticatedArgs,
    /// A length line without end.
    #[error("Protocol error: too big mbulk count string")]
    LongArgsCount,
    /// A length line without end.
    #[error("Protocol error: too big bulk count string")]
    LongArgLength,
    /// Another byte where an argument should begin.
    #[error("Protocol error: expected '$', got '{}'", char::from(*.0))]
    NoArg(u8),
    /// An argument length that is no number, negative, or above the limit.
    #[error("Protocol error: invalid bulk length")]
    ArgLength,
    /// An argument above [`UNAUTHENTICATED_ARG_BYTES_MAX`] before authentication.
    #[error("Protocol error: unauthenticated bulk length")]
    UnauthenticatedArg,
    /// An argument that is longer than it says.
    #[error("Protocol error: expected CRLF after bulk")]
    NoArgEnd,
    /// An inline command without end.
    #[error("Protocol error: too big inline request")]
    LongLine,
    /// An inline command with an unclosed quote.
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
    /// A command above [`Limits::command_bytes_max`].
    #[error("Protocol error: command exceeds the query buffer limit")]
    LongCommand,
}

/// What [`Parser::next`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A command of this many bytes; its arguments are in [`Parser::args`].
    Command(usize),
    /// This many bytes that ask for nothing: an empty line or array.
    Nothing(usize),
    /// The command is not whole; call again with the same bytes and more behind them.
    Incomplete,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    start: u32,
    len: u32,
}

/// A resumable parser of one stream of requests.
#[derive(Debug, Default)]
pub struct Parser {
    spans: Vec<Span>,
    /// Arguments of an inline command, unquoted; spans point here if `inline`.
    unquoted: Vec<u8>,
    inline: bool,
    /// Where to go on in the unfinished command.
    at: usize,
    /// How far the unfinished line was searched for its end.
    searched: usize,
    /// Arguments still to come; 0 between commands.
    missing: usize,
    /// Length of the argument under way.
    arg_len: Option<usize>,
}

/// The arguments of one command, its name first.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    bytes: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Args<'a> {
    pub(crate) fn new(bytes: &'a [u8], spans: &'a [Span]) -> Self {
        Self { bytes, spans }
    }

    /// How many, with the command's name.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there is not even a name.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// An argument; empty if there is none at this index.
    pub fn get(&self, index: usize) -> &'a [u8] {
        let Some(span) = self.spans.get(index) else { return &[] };
        self.bytes.get(span.start as usize..span.start as usize + span.len as usize).unwrap_or_default()
    }

    /// The arguments from `first` on.
    pub fn from(&self, first: usize) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let args = *self;
        (first.min(args.len())..args.len()).map(move |index| args.get(index))
    }

    /// The same without the first so many.
    pub(crate) fn after(self, count: usize) -> Self {
        Self::new(self.bytes, &self.spans[count.min(self.spans.len())..])
    }

    /// A copy that owns its bytes: bytes and spans.
    pub(crate) fn to_owned_parts(self) -> (Vec<u8>, Vec<Span>) {
        let mut bytes = Vec::with_capacity(self.from(0).map(<[u8]>::len).sum());
        let spans = self.from(0).map(|arg| {
            let start = bytes.len() as u32;
            bytes.extend_from_slice(arg);
            Span { start, len: arg.len() as u32 }
        });
        let spans = spans.collect();
        (bytes, spans)
    }
}

impl Parser {
    /// A parser at the beginning of a command.
    pub fn new() -> Self {
        Self::default()
    }

    /// The arguments of the command that [`Parser::next`] found at the start of `bytes`.
    pub fn args<'a>(&'a self, bytes: &'a [u8]) -> Args<'a> {
        Args { bytes: if self.inline { &self.unquoted } else { bytes }, spans: &self.spans }
    }

    /// As [`Parser::args`] has it, an argument that outlives the next look: not that of an inline command.
    pub(crate) fn arg_in<'a>(&self, bytes: &'a [u8], index: usize) -> Option<&'a [u8]> {
        let span = self.spans.get(index).filter(|_| !self.inline)?;
        bytes.get(span.start as usize..span.start as usize + span.len as usize)
    }

    /// Whether behind the command at the start of `bytes`, of this length, one begins that has its name and as many
    /// arguments.
    #[inline]
    pub(crate) fn is_repeated(&self, bytes: &[u8], len: usize) -> bool {
        let Some(name) = self.spans.first().filter(|_| !self.inline) else { return false };
        let head = name.start as usize + name.len as usize;
        match (bytes.get(..head), bytes.get(len..len + head)) {
            (Some(this), Some(next)) => this == next,
            _ => false,
        }
    }

    /// Looks for a command at the start of `bytes`. After [`Step::Incomplete`] the next call must begin with the same
    /// bytes.
    ///
    /// # Errors
    /// [`ProtocolError`]; the parser is of no more use.
    pub fn next(&mut self, bytes: &[u8], limits: &Limits) -> Result<Step, ProtocolError> {
        if self.missing == 0 {
            self.spans.clear();
            if self.spans.capacity() > 4_096 {
                self.spans = Vec::new();
            }
            match bytes.first() {
                None => return Ok(Step::Incomplete),
                Some(b'*') => {}
                Some(_) => return self.next_inline(bytes),
            }
            self.inline = false;
            self.at = 1;
            let count = match self.small_number(bytes) {
                Some(count) => count,
                None => {
                    let Some(count) = self.line(bytes, ProtocolError::LongArgsCount, ProtocolError::ArgsCount)? else {
                        return Ok(Step::Incomplete);
                    };
                    let count = parse_i64(count).ok_or(ProtocolError::ArgsCount)?;
                    // None at all is as good as fewer.
                    usize::try_from(count.max(0)).unwrap_or(usize::MAX)
                }
            };
            if count == 0 {
                return Ok(Step::Nothing(self.at));
            }
            self.missing = Some(count).filter(|count| *count <= ARGS_MAX).ok_or(ProtocolError::ArgsCount)?;
            if limits.unauthenticated && self.missing > UNAUTHENTICATED_ARGS_MAX {
                return Err(ProtocolError::UnauthenticatedArgs);
            }
        }
        while self.missing > 0 {
            let len = match self.arg_len {
                Some(len) => len,
                None => {
                    match bytes.get(self.at) {
                        None => return self.incomplete(bytes, limits),
                        Some(b'$') => {}
                        Some(other) => return Err(ProtocolError::NoArg(*other)),
                    }
                    let start = self.at;
                    self.at += 1;
                    let len = match self.small_number(bytes) {
                        Some(len) => Some(len),
                        None => {
                            let line = self.line(bytes, ProtocolError::LongArgLength, ProtocolError::ArgLength)?;
                            let Some(len) = line else {
                                self.at = start;
                                return self.incomplete(bytes, limits);
                            };
                            parse_i64(len).and_then(|len| usize::try_from(len).ok())
                        }
                    };
                    let len = len.filter(|len| *len <= limits.arg_bytes_max).ok_or(ProtocolError::ArgLength)?;
                    if limits.unauthenticated && len > UNAUTHENTICATED_ARG_BYTES_MAX {
                        return Err(ProtocolError::UnauthenticatedArg);
                    }
                    if self.at + len > limits.command_bytes_max {
                        return Err(ProtocolError::LongCommand);
                    }
                    self.arg_len = Some(len);
                    len
                }
            };
            match bytes.get(self.at + len..) {
                Some([b'\r', b'\n', ..]) => {}
                None | Some([] | [b'\r']) => return self.incomplete(bytes, limits),
                Some(_) => return Err(ProtocolError::NoArgEnd),
            }
            self.spans.push(Span { start: self.at as u32, len: len as u32 });
            self.at += len + 2;
            self.arg_len = None;
            self.missing -= 1;
        }
        self.searched = 0;
        Ok(Step::Command(self.at))
    }

    /// The number of one or two digits at the start of a line that is whole; the line is passed. `None` for every other
    /// line, which [`Parser::line`] looks at.
    #[inline]
    fn small_number(&mut self, bytes: &[u8]) -> Option<usize> {
        let digit = |byte: u8| usize::from(byte.wrapping_sub(b'0'));
        let (number, len) = match bytes.get(self.at..)? {
            [one, b'\r', b'\n', ..] if digit(*one) <= 9 => (digit(*one), 3),
            [ten, one, b'\r', b'\n', ..] if (1..=9).contains(&digit(*ten)) && digit(*one) <= 9 => {
                (10 * digit(*ten) + digit(*one), 4)
            }
            _ => return None,
        };
        self.at += len;
        self.searched = 0;
        Some(number)
    }

    fn incomplete(&self, bytes: &[u8], limits: &Limits) -> Result<Step, ProtocolError> {
        if bytes.len() > limits.command_bytes_max { Err(ProtocolError::LongCommand) } else { Ok(Step::Incomplete) }
    }

    /// The text from `at` to CRLF, which is passed; `None` if its end is not there yet.
    fn line<'b>(
        &mut self,
        bytes: &'b [u8],
        too_long: ProtocolError,
        no_newline: ProtocolError,
    ) -> Result<Option<&'b [u8]>, ProtocolError> {
        let from = self.at.max(self.searched);
        let rest = bytes.get(from..).unwrap_or_default();
        match rest.iter().position(|byte| *byte == b'\r') {
            Some(end) if from + end + 1 < bytes.len() => {
                let text = &bytes[self.at..from + end];
                if bytes[from + end + 1] != b'\n' {
                    return Err(no_newline);
                }
                self.at = from + end + 2;
                self.searched = 0;
                Ok(Some(text))
            }
            found => {
                if bytes.len() - self.at > LINE_BYTES_MAX {
                    return Err(too_long);
                }
                self.searched = from + found.unwrap_or(rest.len());
                Ok(None)
            }
        }
    }

    fn next_inline(&mut self, bytes: &[u8]) -> Result<Step, ProtocolError> {
        let from = self.searched.min(bytes.len());
        let Some(end) = bytes[from..].iter().position(|byte| *byte == b'\n').map(|end| from + end) else {
            self.searched = bytes.len();
            return if bytes.len() > LINE_BYTES_MAX { Err(ProtocolError::LongLine) } else { Ok(Step::Incomplete) };
        };
        self.searched = 0;
        if end > LINE_BYTES_MAX {
            return Err(ProtocolError::LongLine);
        }
        let line = &bytes[..end];
        self.inline = true;
        self.unquoted.clear();
        unquote(line.strip_suffix(b"\r").unwrap_or(line), &mut self.unquoted, &mut self.spans)?;
        Ok(if self.spans.is_empty() { Step::Nothing(end + 1) } else { Step::Command(end + 1) })
    }
}

/// Splits a line at blanks; `"…"` with escapes and `'…'` hold blanks together.
fn unquote(line: &[u8], out: &mut Vec<u8>, spans: &mut Vec<Span>) -> Result<(), ProtocolError> {
    let blank = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0x0b || *byte == 0;
    let mut rest = line;
    loop {
        let skip = rest.iter().position(|byte| !blank(byte)).unwrap_or(rest.len());
        rest = &rest[skip..];
        if rest.is_empty() {
            return Ok(());
        }
        let start = out.len();
        loop {
            match rest {
                [] => break,
                [byte, ..] if blank(byte) => break,
                [quote @ (b'"' | b'\''), quoted @ ..] => {
                    rest = unquote_one(*quote, quoted, out)?;
                    // A closing quote ends the argument.
                    if rest.first().is_some_and(|byte| !blank(byte)) {
                        return Err(ProtocolError::Quotes);
                    }
                    break;
                }
                [byte, after @ ..] => {
                    out.push(*byte);
                    rest = after;
                }
            }
        }
        spans.push(Span { start: start as u32, len: (out.len() - start) as u32 });
    }
}

fn unquote_one<'a>(quote: u8, mut rest: &'a [u8], out: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    let hex = |digit: u8| char::from(digit).to_digit(16).map(|digit| digit as u8);
    loop {
        match rest {
            [] => return Err(ProtocolError::Quotes),
            [end, after @ ..] if *end == quote => return Ok(after),
            [b'\\', b'\'', after @ ..] if quote == b'\'' => {
                out.push(b'\'');
                rest = after;
            }
            [b'\\', b'x', high, low, after @ ..]
                if quote == b'"' && high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                out.push(hex(*high).unwrap_or(0) << 4 | hex(*low).unwrap_or(0));
                rest = after;
            }
            [b'\\', escaped, after @ ..] if quote == b'"' => {
                out.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => *other,
                });
                rest = after;
            }
            [byte, after @ ..] => {
                out.push(*byte);
                rest = after;
            }
        }
    }
}

/// Arguments of a command, copied.
pub type OwnedArgs = Vec<Vec<u8>>;

/// All commands in `bytes`, copied, and how many bytes they took: for tests and fuzzing.
///
/// # Errors
/// [`ProtocolError`] of the first command that is none.
pub fn parse(bytes: &[u8], limits: &Limits) -> Result<(Vec<OwnedArgs>, usize), ProtocolError> {
    let mut parser = Parser::new();
    let (mut commands, mut at) = (Vec::new(), 0);
    loop {
        match parser.next(&bytes[at..], limits)? {
            Step::Incomplete => return Ok((commands, at)),
            Step::Nothing(len) => at += len,
            Step::Command(len) => {
                commands.push(parser.args(&bytes[at..]).from(0).map(<[u8]>::to_vec).collect());
                at += len;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { arg_bytes_max: 1_000, command_bytes_max: 100_000, unauthenticated: false };

    #[test]
    fn commands_are_parsed_whole_and_byte_by_byte() {
        let check = |text: &[u8], expected: &[&[&[u8]]]| {
            let (commands, used) = parse(text, &LIMITS).unwrap();
            assert_eq!(commands, expected, "{}", text.escape_ascii());
            assert_eq!(used, text.len());
            let (mut parser, mut from, mut found) = (Parser::new(), 0, Vec::new());
            for end in 0..=text.len() {
                loop {
                    match parser.next(&text[from..end], &LIMITS).unwrap() {
                        Step::Incomplete => break,
                        Step::Nothing(len) => from += len,
                        Step::Command(len) => {
                            found.push(parser.args(&text[from..end]).from(0).map(<[u8]>::to_vec).collect::<Vec<_>>());
                            from += len;
                        }
                    }
                }
            }
            assert_eq!(found, expected, "byte by byte: {}", text.escape_ascii());
        };
        check(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*1\r\n$4\r\nPING\r\n", &[&[b"GET", b"k"], &[b"PING"]]);
        check(b"*3\r\n$3\r\nSET\r\n$0\r\n\r\n$4\r\n\r\n\r\n\r\n", &[&[b"SET", b"", b"\r\n\r\n"]]);
        check(b"*0\r\n*-1\r\n\r\nPING\r\n\n", &[&[b"PING"]]);
        for len in [0, 1, 9, 10, 11, 99, 100, 101] {
            let text = vec![b'x'; len];
            let command = [format!("*2\r\n$4\r\nECHO\r\n${len}\r\n").as_bytes(), &text, b"\r\n"].concat();
            check(&command, &[&[b"ECHO", &text]]);
            let args = vec![&b"x"[..]; len];
            let one = [&args[..]];
            let command = [format!("*{len}\r\n").into_bytes(), b"$1\r\nx\r\n".repeat(len)].concat();
            check(&command, if len == 0 { &[] } else { &one });
        }
        check(b"set k \"a b\\x41\\n\\\"\" 'c d\\''\r\n", &[&[b"set", b"k", b"a bA\n\"", b"c d'"]]);
        check(b"  set\tk  v  \n", &[&[b"set", b"k", b"v"]]);
    }

    #[test]
    fn a_command_is_repeated_where_the_next_begins_as_it_does() {
        for (text, repeated) in [
            ("*2\r\n$3\r\nGET\r\n$1\r\na\r\n*2\r\n$3\r\nGET\r\n$2\r\nbb\r\n", true),
            ("*2\r\n$3\r\nGET\r\n$1\r\na\r\n*2\r\n$3\r\nGET", true),
            ("*2\r\n$3\r\nGET\r\n$1\r\na\r\n*2\r\n$3\r\nGE", false),
            ("*2\r\n$3\r\nGET\r\n$1\r\na\r\n*2\r\n$3\r\nget\r\n", false),
            ("*2\r\n$3\r\nGET\r\n$1\r\na\r\n*3\r\n$3\r\nGET\r\n", false),
            ("*2\r\n$3\r\nGET\r\n$1\r\na\r\n", false),
            ("PING\r\nPING\r\n", false),
        ] {
            let mut parser = Parser::new();
            let Step::Command(len) = parser.next(text.as_bytes(), &LIMITS).unwrap() else { panic!("{text:?}") };
            assert_eq!(parser.is_repeated(text.as_bytes(), len), repeated, "{text:?}");
        }
    }

    #[test]
    fn bad_requests_are_named_as_in_redis() {
        let check = |text: &[u8], expected: &str| {
            let error = parse(text, &LIMITS).unwrap_err();
            assert_eq!(error.to_string(), format!("Protocol error: {expected}"), "{}", text.escape_ascii());
        };
        check(b"*x\r\n", "invalid multibulk length");
        check(b"*9999999999\r\n", "invalid multibulk length");
        check(b"*1\r\nGET\r\n", "expected '$', got 'G'");
        check(b"*1\r\n$-1\r\n", "invalid bulk length");
        for wrong in ["01", "00", "+5", "-0", " 1", "1 ", "1x", "x1", ""] {
            check(format!("*{wrong}\r\n").as_bytes(), "invalid multibulk length");
            check(format!("*1\r\n${wrong}\r\n").as_bytes(), "invalid bulk length");
        }
        check(b"*1\r\n$x\r\n", "invalid bulk length");
        check(b"*1\r\n$1001\r\n", "invalid bulk length");
        check(b"*1\r\n$3\r\nGETX\r\n", "expected CRLF after bulk");
        check(b"set \"a\r\n", "unbalanced quotes in request");
        check(b"set \"a\"b\r\n", "unbalanced quotes in request");
        check(&[b'a'; LINE_BYTES_MAX + 1], "too big inline request");
        check(&[&b"*"[..], &[b'1'; LINE_BYTES_MAX + 1]].concat(), "too big mbulk count string");
        check(&[&b"*1\r\n$"[..], &[b'1'; LINE_BYTES_MAX + 1]].concat(), "too big bulk count string");
        let many = [
            &b"*200\r\n"[..],
            &b"$1000\r\n".iter().chain([b'x'; 1000].iter()).chain(b"\r\n").copied().collect::<Vec<_>>().repeat(200),
        ]
        .concat();
        check(&many, "command exceeds the query buffer limit");
    }

    #[test]
    fn unauthenticated_clients_have_tighter_limits() {
        let limits = Limits { arg_bytes_max: 1 << 20, unauthenticated: true, ..LIMITS };
        assert_eq!(parse(b"*11\r\n", &limits), Err(ProtocolError::UnauthenticatedArgs));
        assert_eq!(parse(b"*1\r\n$16385\r\n", &limits), Err(ProtocolError::UnauthenticatedArg));
        assert!(parse(b"*10\r\n$16384\r\n", &limits).is_ok());
    }

    #[test]
    fn announced_lengths_reserve_nothing() {
        let mut parser = Parser::new();
        let limits = Limits { arg_bytes_max: 1 << 29, command_bytes_max: 1 << 30, ..LIMITS };
        assert_eq!(parser.next(b"*1048576\r\n$536870912\r\nx", &limits), Ok(Step::Incomplete));
        assert!(parser.spans.capacity() < 16);
    }
}
