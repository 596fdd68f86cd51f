//! How messages of a connection are written: the protocol, framed or not, and kinds of values and messages.
//!
//! first bytes of a connection → [`Shape::of`] → every message of it
//!
//! Source: the specifications of Apache Thrift, `thrift-binary-protocol.md` and `thrift-compact-protocol.md`.

use super::unreadable::Unreadable;

/// The first byte of a message of the binary protocol that is strict.
const STRICT: u8 = 0x80;
/// That of the compact protocol.
pub(super) const COMPACT: u8 = 0x82;

/// A protocol of Thrift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Binary, each message with its version.
    Binary,
    /// Binary as it first was, without one.
    OldBinary,
    /// Compact.
    Compact,
}

/// How the messages of a connection are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The protocol.
    pub dialect: Dialect,
    /// Whether the length stands before messages, in 4 bytes, big-endian.
    pub framed: bool,
}

impl Shape {
    /// What the first bytes of a connection say; `None` while they are too few.
    ///
    /// A frame's length and the length of a name in an old message both begin with zeros: the fifth byte tells them
    /// apart, since no name begins with a byte that begins a message.
    pub(super) fn of(input: &[u8]) -> Result<Option<Self>, Unreadable> {
        let (framed, first) = match *input {
            [] => return Ok(None),
            [first @ (STRICT | COMPACT), ..] => (false, first),
            [0..=0x02, _, _, _, first @ (0 | STRICT | COMPACT), ..] => (true, first),
            [0, 0, 0, _, _, ..] => return Ok(Some(Self { dialect: Dialect::OldBinary, framed: false })),
            [0..=0x02, ..] if input.len() < 5 => return Ok(None),
            [..] => {
                let mut first = [0; 4];
                let len = input.len().min(4);
                first[..len].copy_from_slice(&input[..len]);
                return Err(Unreadable::NoThrift { first });
            }
        };
        let dialect = match first {
            STRICT => Dialect::Binary,
            COMPACT => Dialect::Compact,
            _ => Dialect::OldBinary,
        };
        Ok(Some(Self { dialect, framed }))
    }
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// A call that is answered.
    Call,
    /// An answer.
    Reply,
    /// An error.
    Exception,
    /// A call that is not answered.
    Oneway,
}

impl MessageKind {
    pub(super) fn of(number: u8) -> Result<Self, Unreadable> {
        Ok(match number {
            1 => Self::Call,
            2 => Self::Reply,
            3 => Self::Exception,
            4 => Self::Oneway,
            number => return Err(Unreadable::MessageKind { number }),
        })
    }

    pub(super) fn number(self) -> u8 {
        match self {
            Self::Call => 1,
            Self::Reply => 2,
            Self::Exception => 3,
            Self::Oneway => 4,
        }
    }
}

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    Bool,
    I8,
    Double,
    I16,
    I32,
    I64,
    Text,
    Struct,
    Map,
    Set,
    List,
    Uuid,
}

impl ValueKind {
    /// The kind with this number in the binary protocol.
    pub(super) fn of_binary(number: u8) -> Result<Self, Unreadable> {
        Ok(match number {
            2 => Self::Bool,
            3 => Self::I8,
            4 => Self::Double,
            6 => Self::I16,
            8 => Self::I32,
            10 => Self::I64,
            11 => Self::Text,
            12 => Self::Struct,
            13 => Self::Map,
            14 => Self::Set,
            15 => Self::List,
            16 => Self::Uuid,
            number => return Err(Unreadable::ValueKind { number }),
        })
    }

    pub(super) fn binary(self) -> u8 {
        match self {
            Self::Bool => 2,
            Self::I8 => 3,
            Self::Double => 4,
            Self::I16 => 6,
            Self::I32 => 8,
            Self::I64 => 10,
            Self::Text => 11,
            Self::Struct => 12,
            Self::Map => 13,
            Self::Set => 14,
            Self::List => 15,
            Self::Uuid => 16,
        }
    }

    /// The kind with this number in the compact protocol; that of a field of a bool says which it is.
    pub(super) fn of_compact(number: u8) -> Result<Self, Unreadable> {
        Ok(match number {
            1 | 2 => Self::Bool,
            3 => Self::I8,
            4 => Self::I16,
            5 => Self::I32,
            6 => Self::I64,
            7 => Self::Double,
            8 => Self::Text,
            9 => Self::List,
            10 => Self::Set,
            11 => Self::Map,
            12 => Self::Struct,
            13 => Self::Uuid,
            number => return Err(Unreadable::ValueKind { number }),
        })
    }

    pub(super) fn compact(self) -> u8 {
        match self {
            Self::Bool => 1,
            Self::I8 => 3,
            Self::I16 => 4,
            Self::I32 => 5,
            Self::I64 => 6,
            Self::Double => 7,
            Self::Text => 8,
            Self::List => 9,
            Self::Set => 10,
            Self::Map => 11,
            Self::Struct => 12,
            Self::Uuid => 13,
        }
    }

    /// The bytes of each value of this kind, where all have as many.
    pub(super) fn fixed_bytes(self, dialect: Dialect) -> Option<usize> {
        let is_compact = dialect == Dialect::Compact;
        match self {
            Self::Bool | Self::I8 => Some(1),
            Self::I16 if !is_compact => Some(2),
            Self::I32 if !is_compact => Some(4),
            Self::I64 if !is_compact => Some(8),
            Self::Double => Some(8),
            Self::Uuid => Some(16),
            _ => None,
        }
    }

    /// The bytes of the shortest value of this kind.
    pub(super) fn least_bytes(self, dialect: Dialect) -> usize {
        let is_compact = dialect == Dialect::Compact;
        self.fixed_bytes(dialect).unwrap_or(match self {
            _ if is_compact => 1,
            Self::Text => 4,
            Self::Map => 6,
            Self::Set | Self::List => 5,
            _ => 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_tell_protocols_and_frames_apart() {
        let check = |bytes: &[u8], dialect, framed| {
            let found = Shape::of(bytes).unwrap();
            assert_eq!(found, Some(Shape { dialect, framed }), "{bytes:x?}");
            // Whatever came of them so far, they are not taken for something else.
            for len in 0..bytes.len() {
                let found = Shape::of(&bytes[..len]).unwrap();
                assert!(found.is_none_or(|shape| shape == Shape { dialect, framed }), "{bytes:x?}, {len} bytes of it");
            }
        };
        check(&[0x80, 1, 0, 1, 0], Dialect::Binary, false);
        check(&[0x82, 0x21, 0, 3, b'g'], Dialect::Compact, false);
        check(b"\0\0\0\x03get\x01", Dialect::OldBinary, false);
        check(b"\0\0\0\x20\x80\x01\0\x01", Dialect::Binary, true);
        check(b"\0\x01\0\x20\x82\x21\0\x01", Dialect::Compact, true);
        check(b"\0\0\0\x20\0\0\0\x03get\x01", Dialect::OldBinary, true);
    }

    #[test]
    fn other_protocols_are_refused_at_once() {
        for other in [&b"GET / HTTP/1.1"[..], b"\x16\x03\x01\x02", b"*1\r\n$4\r\nPING", b"\0\x01\0\x02abcd", b"\x7f"] {
            assert!(matches!(Shape::of(other), Err(Unreadable::NoThrift { .. })), "{other:x?}");
        }
    }
}
