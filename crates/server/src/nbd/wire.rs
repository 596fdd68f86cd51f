//! The bytes of the NBD protocol: headers and options decoded, replies encoded, nothing read and nothing sent.
//!
//! bytes of a client → [`Request`], [`OptionHeader`], [`Info`], [`Contexts`]; outcomes → bytes for it; and the other
//! way what [`Client`](super::Client) needs
//!
//! Invariants:
//! 1. Numbers are big-endian, as the protocol has them; no length is believed before it is compared with a limit.
//! 2. Nothing here panics or allocates by what a client claims: strings are slices of what was received.
//!
//! Source: the protocol's own description, `doc/proto.md` of the NBD project.

/// Longest name of an export or a metadata context, in bytes, as the protocol has it.
pub const NAME_BYTES_MAX: usize = 4_096;
/// Longest data of an option that is looked at, in bytes; longer data is skipped and refused.
pub const OPTION_BYTES_MAX: u32 = 64 << 10;
/// Longest data of an option that is skipped, in bytes; above it the client is disconnected.
pub const OPTION_SKIP_BYTES_MAX: u32 = 16 << 20;
/// Bytes of an option's header.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Bytes of a request's header.
pub const REQUEST_BYTES: usize = 28;
/// Longest message of an error, in bytes.
const MESSAGE_BYTES_MAX: usize = 1_024;

const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Flags of the greeting, and of the client's answer to it.
pub mod hello {
    /// Options can fail one by one.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// No 124 zeros at the end of the old way to choose an export.
    pub const NO_ZEROES: u16 = 2;
}

/// Options of the negotiation.
pub mod option {
    /// Choose an export, without a way to fail.
    pub const EXPORT_NAME: u32 = 1;
    /// Leave.
    pub const ABORT: u32 = 2;
    /// Names of the exports.
    pub const LIST: u32 = 3;
    /// Go on encrypted.
    pub const STARTTLS: u32 = 5;
    /// What an export is like.
    pub const INFO: u32 = 6;
    /// Choose an export.
    pub const GO: u32 = 7;
    /// Replies in chunks.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Which metadata there is.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Which metadata is wanted.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Replies to options.
pub mod option_reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// An export's name.
    pub const SERVER: u32 = 2;
    /// Something about an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// Not known here.
    pub const ERR_UNSUP: u32 = 0x8000_0001;
    /// Known and not allowed.
    pub const ERR_POLICY: u32 = 0x8000_0002;
    /// Makes no sense, or not now.
    pub const ERR_INVALID: u32 = 0x8000_0003;
    /// Encrypt first.
    pub const ERR_TLS_REQD: u32 = 0x8000_0005;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = 0x8000_0006;
    /// Too long.
    pub const ERR_TOO_BIG: u32 = 0x8000_0009;
}

/// Kinds of information about an export.
pub mod info {
    /// Size and flags.
    pub const EXPORT: u16 = 0;
    /// Its name.
    pub const NAME: u16 = 1;
    /// What a person reads about it.
    pub const DESCRIPTION: u16 = 2;
    /// Smallest, preferred and largest block.
    pub const BLOCK_SIZE: u16 = 3;
}

/// What an export can do, as told at the end of the negotiation.
pub mod export_flag {
    /// There are flags.
    pub const HAS_FLAGS: u16 = 1;
    /// No writes.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// Writes that are durable when answered.
    pub const SEND_FUA: u16 = 1 << 3;
    /// TRIM.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// Reads in one piece on request.
    pub const SEND_DF: u16 = 1 << 7;
    /// Several connections may be used as one.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// CACHE.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// WRITE_ZEROES that fails at once where it would not be fast.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Commands.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write; the payload follows.
    pub const WRITE: u16 = 1;
    /// Leave.
    pub const DISC: u16 = 2;
    /// Make durable what was answered.
    pub const FLUSH: u16 = 3;
    /// Discard.
    pub const TRIM: u16 = 4;
    /// Read ahead.
    pub const CACHE: u16 = 5;
    /// Zero.
    pub const WRITE_ZEROES: u16 = 6;
    /// Where data and holes are.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of commands.
pub mod flag {
    /// Durable when answered.
    pub const FUA: u16 = 1;
    /// Zeros that take space.
    pub const NO_HOLE: u16 = 1 << 1;
    /// In one piece.
    pub const DF: u16 = 1 << 2;
    /// One extent suffices.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fast or not at all.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Errors of replies.
pub mod code {
    /// Not permitted.
    pub const PERM: u32 = 1;
    /// Reading or writing failed.
    pub const IO: u32 = 5;
    /// Makes no sense.
    pub const INVAL: u32 = 22;
    /// No space.
    pub const NOSPC: u32 = 28;
    /// Not supported, or not fast.
    pub const NOTSUP: u32 = 95;
    /// The server stops.
    pub const SHUTDOWN: u32 = 108;
}

/// Bits of an extent's status in `base:allocation`.
pub mod state {
    /// Takes no space.
    pub const HOLE: u32 = 1;
    /// Reads as zeros.
    pub const ZERO: u32 = 2;
}

/// The metadata context that is known here.
pub const ALLOCATION: &str = "base:allocation";
/// Its number in replies.
pub const ALLOCATION_ID: u32 = 1;

const CHUNK_DONE: u16 = 1;
const CHUNK_NONE: u16 = 0;
const CHUNK_DATA: u16 = 1;
const CHUNK_HOLE: u16 = 2;
const CHUNK_STATUS: u16 = 5;
const CHUNK_ERROR: u16 = 0x8001;

/// Bytes that are not the protocol. What came before them was answered; the connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A header does not begin as it must.
    #[error("bad magic in {0}")]
    Magic(&'static str),
    /// A length is inconsistent, or a name too long or not UTF-8.
    #[error("bad {0}")]
    Data(&'static str),
}

type Decoded<T> = std::result::Result<T, Malformed>;

/// A number at the start of `bytes`, and what follows.
fn be16(bytes: &[u8]) -> Option<(u16, &[u8])> {
    bytes.split_first_chunk().map(|(number, rest)| (u16::from_be_bytes(*number), rest))
}

fn be32(bytes: &[u8]) -> Option<(u32, &[u8])> {
    bytes.split_first_chunk().map(|(number, rest)| (u32::from_be_bytes(*number), rest))
}

fn be64(bytes: &[u8]) -> Option<(u64, &[u8])> {
    bytes.split_first_chunk().map(|(number, rest)| (u64::from_be_bytes(*number), rest))
}

/// A string behind its length.
fn text<'b>(bytes: &'b [u8], what: &'static str) -> Decoded<(&'b str, &'b [u8])> {
    let bad = Malformed::Data(what);
    let (len, rest) = be32(bytes).ok_or(bad)?;
    let len = usize::try_from(len).map_err(|_| bad)?;
    if len > NAME_BYTES_MAX || len > rest.len() {
        return Err(bad);
    }
    let (text, rest) = rest.split_at(len);
    Ok((name(text).map_err(|_| bad)?, rest))
}

/// The name in the data of EXPORT_NAME.
///
/// # Errors
/// [`Malformed::Data`] above [`NAME_BYTES_MAX`] or if it is not UTF-8.
pub fn name(bytes: &[u8]) -> Decoded<&str> {
    let bad = Malformed::Data("export name");
    if bytes.len() > NAME_BYTES_MAX {
        return Err(bad);
    }
    std::str::from_utf8(bytes).map_err(|_| bad)
}

/// Header of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// Which, of [`option`] or unknown.
    pub option: u32,
    /// Bytes of data that follow.
    pub len: u32,
}

impl OptionHeader {
    /// Decodes the header.
    ///
    /// # Errors
    /// [`Malformed::Magic`].
    pub fn decode(bytes: &[u8; OPTION_HEADER_BYTES]) -> Decoded<Self> {
        let what = Malformed::Magic("an option");
        let (magic, rest) = be64(bytes).ok_or(what)?;
        let (option, rest) = be32(rest).ok_or(what)?;
        let (len, _) = be32(rest).ok_or(what)?;
        if magic == OPTION_MAGIC { Ok(Self { option, len }) } else { Err(what) }
    }
}

/// Data of INFO and GO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info<'b> {
    /// The export; empty is the default one.
    pub name: &'b str,
    /// What the client asks for; the rest is told anyway where it must be.
    pub kinds: &'b [u8],
}

impl<'b> Info<'b> {
    /// Decodes the data.
    ///
    /// # Errors
    /// [`Malformed::Data`].
    pub fn decode(bytes: &'b [u8]) -> Decoded<Self> {
        let bad = Malformed::Data("option data");
        let (name, rest) = text(bytes, "export name")?;
        let (count, kinds) = be16(rest).ok_or(bad)?;
        if kinds.len() == usize::from(count) * 2 { Ok(Self { name, kinds }) } else { Err(bad) }
    }

    /// Whether the client asks for this kind of [`info`].
    pub fn asks_for(&self, kind: u16) -> bool {
        self.kinds.chunks_exact(2).any(|pair| pair == kind.to_be_bytes())
    }
}

/// Data of LIST_META_CONTEXT and SET_META_CONTEXT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contexts<'b> {
    /// The export.
    pub name: &'b str,
    /// How many queries there are.
    pub queries: u32,
    /// Whether one of them finds `base:allocation`: by its name, or, in a list, by its namespace.
    pub allocation: bool,
}

impl<'b> Contexts<'b> {
    /// Decodes the data. In a list, no query at all asks for everything.
    ///
    /// # Errors
    /// [`Malformed::Data`].
    pub fn decode(bytes: &'b [u8], list: bool) -> Decoded<Self> {
        let (name, rest) = text(bytes, "export name")?;
        let (queries, mut rest) = be32(rest).ok_or(Malformed::Data("option data"))?;
        let mut allocation = list && queries == 0;
        for _ in 0..queries {
            // Each takes at least its length from what was received, so a huge count ends here.
            let (query, after) = text(rest, "metadata context")?;
            allocation |= query == ALLOCATION || (list && query == "base:");
            rest = after;
        }
        if rest.is_empty() { Ok(Self { name, queries, allocation }) } else { Err(Malformed::Data("option data")) }
    }
}

/// A request of the transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Of [`flag`].
    pub flags: u16,
    /// Of [`command`], or unknown.
    pub command: u16,
    /// The client's own number, which goes back with the reply.
    pub cookie: u64,
    /// First byte of the export.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

impl Request {
    /// Decodes a header.
    ///
    /// # Errors
    /// [`Malformed::Magic`].
    pub fn decode(bytes: &[u8; REQUEST_BYTES]) -> Decoded<Self> {
        let what = Malformed::Magic("a request");
        let (magic, rest) = be32(bytes).ok_or(what)?;
        let (flags, rest) = be16(rest).ok_or(what)?;
        let (command, rest) = be16(rest).ok_or(what)?;
        let (cookie, rest) = be64(rest).ok_or(what)?;
        let (offset, rest) = be64(rest).ok_or(what)?;
        let (len, _) = be32(rest).ok_or(what)?;
        if magic == REQUEST_MAGIC { Ok(Self { flags, command, cookie, offset, len }) } else { Err(what) }
    }

    /// Encodes a header.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
        out.extend_from_slice(&self.flags.to_be_bytes());
        out.extend_from_slice(&self.command.to_be_bytes());
        out.extend_from_slice(&self.cookie.to_be_bytes());
        out.extend_from_slice(&self.offset.to_be_bytes());
        out.extend_from_slice(&self.len.to_be_bytes());
    }

    /// Flags that this command may carry. FUA is allowed everywhere, as the protocol says.
    pub fn allowed_flags(&self) -> u16 {
        flag::FUA
            | match self.command {
                command::READ => flag::DF,
                command::WRITE_ZEROES => flag::NO_HOLE | flag::FAST_ZERO,
                command::BLOCK_STATUS => flag::REQ_ONE,
                _ => 0,
            }
    }
}

/// Whether this greets as fixed newstyle negotiation begins.
pub fn is_greeting(bytes: &[u8; 18]) -> bool {
    let mut expected = Vec::with_capacity(16);
    expected.extend_from_slice(&GREETING_MAGIC.to_be_bytes());
    expected.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    bytes[..16] == expected[..] && bytes[17] & hello::FIXED_NEWSTYLE as u8 != 0
}

/// Kind and length of data of a reply to option `asked`.
///
/// # Errors
/// [`Malformed::Magic`], also for a reply to something else.
pub fn option_reply_header(bytes: &[u8; 20], asked: u32) -> Decoded<(u32, u32)> {
    let what = Malformed::Magic("a reply to an option");
    let (magic, rest) = be64(bytes).ok_or(what)?;
    let (option, rest) = be32(rest).ok_or(what)?;
    let (kind, rest) = be32(rest).ok_or(what)?;
    let (len, _) = be32(rest).ok_or(what)?;
    if magic == OPTION_REPLY_MAGIC && option == asked { Ok((kind, len)) } else { Err(what) }
}

/// Size and [`export_flag`]s in the data of an INFO reply, if it is about those.
pub fn export_info(data: &[u8]) -> Option<(u64, u16)> {
    let (kind, rest) = be16(data)?;
    let (size, rest) = be64(rest)?;
    let (flags, _) = be16(rest)?;
    (kind == info::EXPORT).then_some((size, flags))
}

/// Error and cookie of a simple reply.
///
/// # Errors
/// [`Malformed::Magic`].
pub fn simple_reply_header(bytes: &[u8; 16]) -> Decoded<(u32, u64)> {
    let what = Malformed::Magic("a simple reply");
    let (magic, rest) = be32(bytes).ok_or(what)?;
    let (error, rest) = be32(rest).ok_or(what)?;
    let (cookie, _) = be64(rest).ok_or(what)?;
    if magic == SIMPLE_REPLY_MAGIC { Ok((error, cookie)) } else { Err(what) }
}

/// Encodes an option.
pub fn put_option(out: &mut Vec<u8>, option: u32, data: &[u8]) {
    out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
}

/// The greeting of the server.
pub fn greeting(out: &mut Vec<u8>) {
    out.extend_from_slice(&GREETING_MAGIC.to_be_bytes());
    out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    out.extend_from_slice(&(hello::FIXED_NEWSTYLE | hello::NO_ZEROES).to_be_bytes());
}

/// The end of the negotiation by EXPORT_NAME.
pub fn export_name_reply(out: &mut Vec<u8>, size: u64, flags: u16, zeroes: bool) {
    out.extend_from_slice(&size.to_be_bytes());
    out.extend_from_slice(&flags.to_be_bytes());
    if zeroes {
        out.extend_from_slice(&[0; 124]);
    }
}

/// A reply to an option.
pub fn put_option_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
}

/// Header of a simple reply; the data of a READ follows if there is no error.
pub fn simple_reply(out: &mut Vec<u8>, cookie: u64, error: u32) {
    out.extend_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&error.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
}

fn chunk(out: &mut Vec<u8>, cookie: u64, done: bool, kind: u16, len: u32) {
    out.extend_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&(if done { CHUNK_DONE } else { 0 }).to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&len.to_be_bytes());
}

/// A chunk that says that all is said.
pub fn none_chunk(out: &mut Vec<u8>, cookie: u64) {
    chunk(out, cookie, true, CHUNK_NONE, 0);
}

/// Head of a chunk of `len` bytes of data from `offset`; the data follows.
pub fn data_chunk(out: &mut Vec<u8>, cookie: u64, done: bool, offset: u64, len: u32) {
    chunk(out, cookie, done, CHUNK_DATA, len + 8);
    out.extend_from_slice(&offset.to_be_bytes());
}

/// A chunk for `len` zeros from `offset`.
pub fn hole_chunk(out: &mut Vec<u8>, cookie: u64, done: bool, offset: u64, len: u32) {
    chunk(out, cookie, done, CHUNK_HOLE, 12);
    out.extend_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(&len.to_be_bytes());
}

/// The chunk with an error and what a person reads about it.
pub fn error_chunk(out: &mut Vec<u8>, cookie: u64, error: u32, message: &str) {
    let message = clip(message);
    chunk(out, cookie, true, CHUNK_ERROR, 6 + message.len() as u32);
    out.extend_from_slice(&error.to_be_bytes());
    out.extend_from_slice(&(message.len() as u16).to_be_bytes());
    out.extend_from_slice(message.as_bytes());
}

/// As much of a message as goes into a reply.
pub fn clip(message: &str) -> &str {
    let mut end = message.len().min(MESSAGE_BYTES_MAX);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}

/// The chunk with the extents of a BLOCK_STATUS, each a length and [`state`] bits.
pub fn status_chunk(out: &mut Vec<u8>, cookie: u64, extents: &[(u32, u32)]) {
    chunk(out, cookie, true, CHUNK_STATUS, 4 + 8 * extents.len() as u32);
    out.extend_from_slice(&ALLOCATION_ID.to_be_bytes());
    for (len, state) in extents {
        out.extend_from_slice(&len.to_be_bytes());
        out.extend_from_slice(&state.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_as_the_protocol_writes_it() {
        let bytes = [0x25, 0x60, 0x95, 0x13, 0, 1, 0, 6, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x10, 0];
        let request = Request::decode(&bytes).unwrap();
        let expected =
            Request { flags: flag::FUA, command: 6, cookie: 0x0102_0304_0506_0708, offset: 1 << 32, len: 4_096 };
        assert_eq!(request, expected);
        let mut again = Vec::new();
        request.encode(&mut again);
        assert_eq!(again, bytes);
        let mut bad = bytes;
        bad[0] = 0x26;
        assert_eq!(Request::decode(&bad), Err(Malformed::Magic("a request")));
    }

    fn with_len(name: &[u8]) -> Vec<u8> {
        [&(name.len() as u32).to_be_bytes()[..], name].concat()
    }

    #[test]
    fn option_data_with_lengths_that_lie_is_refused() {
        let good = [with_len(b"disk"), vec![0, 1, 0, 3]].concat();
        let info = Info::decode(&good).unwrap();
        assert!(info.name == "disk" && info.asks_for(info::BLOCK_SIZE) && !info.asks_for(info::NAME));
        for end in 0..good.len() {
            assert!(Info::decode(&good[..end]).is_err(), "{end} bytes of it");
        }
        assert!(Info::decode(&[good.clone(), vec![0]].concat()).is_err());
        assert!(Info::decode(&[0xff; 40]).is_err());
        assert!(Info::decode(&[with_len(&[0xff]), vec![0, 0]].concat()).is_err(), "not UTF-8");
        assert!(Info::decode(&[with_len(&vec![b'a'; NAME_BYTES_MAX + 1]), vec![0, 0]].concat()).is_err());

        let contexts = |name: &[u8], count: u32, queries: &[&[u8]]| {
            let queries: Vec<u8> = queries.iter().flat_map(|query| with_len(query)).collect();
            [with_len(name), count.to_be_bytes().to_vec(), queries].concat()
        };
        let bytes = contexts(b"disk", 2, &[b"qemu:x", b"base:allocation"]);
        assert!(Contexts::decode(&bytes, false).unwrap().allocation);
        assert!(!Contexts::decode(&contexts(b"disk", 1, &[b"base:"]), false).unwrap().allocation);
        assert!(Contexts::decode(&contexts(b"disk", 1, &[b"base:"]), true).unwrap().allocation);
        assert!(Contexts::decode(&contexts(b"disk", 0, &[]), true).unwrap().allocation);
        assert!(!Contexts::decode(&contexts(b"disk", 0, &[]), false).unwrap().allocation);
        assert!(Contexts::decode(&contexts(b"disk", u32::MAX, &[b"base:"]), true).is_err());
        assert!(Contexts::decode(&contexts(b"disk", 1, &[b"a", b"b"]), true).is_err());
        for end in 0..bytes.len() {
            assert!(Contexts::decode(&bytes[..end], false).is_err(), "{end} bytes of it");
        }
    }

    #[test]
    fn messages_are_cut_between_characters() {
        let mut out = Vec::new();
        error_chunk(&mut out, 1, code::IO, &"ü".repeat(1_000));
        assert_eq!(out.len(), 20 + 6 + 1_024);
        assert!(std::str::from_utf8(&out[26..]).is_ok());
    }
}
