//! What is wrong with the bytes of a client: after it nothing of its connection can be read.

/// Longest message, in bytes: a transaction of the store at its limit, with room for what stands beside it.
pub const MESSAGE_BYTES_MAX: usize = 44 << 20;
/// Longest name of a method, in bytes.
pub const METHOD_BYTES_MAX: usize = 128;
/// Most levels of structs, lists and maps in one another, that of the arguments included.
pub const DEPTH_MAX: usize = 32;

/// Bytes that are no message, or one beyond the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The first bytes are those of no protocol that is served.
    #[error("the first bytes {first:x?} are neither of the binary nor of the compact protocol, framed or unframed")]
    NoThrift {
        /// Up to four of them.
        first: [u8; 4],
    },
    /// A frame of a length that cannot be.
    #[error("a frame of {len} bytes: expected at most MESSAGE_BYTES_MAX = {MESSAGE_BYTES_MAX}")]
    Frame {
        /// The length that it begins with.
        len: u32,
    },
    /// A message that goes on beyond its frame, or is too long.
    #[error("the message goes on for {len} bytes and more, of at most {max} (its frame, or MESSAGE_BYTES_MAX)")]
    TooLong {
        /// Bytes that it has at least.
        len: u64,
        /// The limit.
        max: usize,
    },
    /// A name of a method of a length that cannot be.
    #[error("the name of a method of {len} bytes: expected at most METHOD_BYTES_MAX = {METHOD_BYTES_MAX}")]
    Name {
        /// The length.
        len: i64,
    },
    /// A length or count below zero.
    #[error("a {what} of {len}")]
    Negative {
        /// Of what.
        what: &'static str,
        /// The length.
        len: i64,
    },
    /// A list, set or map of more elements than there is room for.
    #[error("a list or map of {count} elements in at most {left} bytes")]
    Count {
        /// The elements.
        count: u64,
        /// The bytes that they would have to be in.
        left: usize,
    },
    /// Too many levels.
    #[error("more than DEPTH_MAX = {DEPTH_MAX} levels of structs, lists and maps")]
    Depth,
    /// A kind of value that there is not.
    #[error("values of kind {number}, which there is not")]
    ValueKind {
        /// Its number.
        number: u8,
    },
    /// A kind of message that there is not.
    #[error("a message of kind {number}, which there is not")]
    MessageKind {
        /// Its number.
        number: u8,
    },
    /// Another version of the protocol, or another protocol than the connection began with.
    #[error("a message begins with {word:08x}: not in the protocol, or the version, of the connection's first")]
    Version {
        /// What it begins with.
        word: u32,
    },
    /// A number of more bytes than its kind has.
    #[error("a number of more bytes than its kind has")]
    Number,
}
