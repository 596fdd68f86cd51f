//! Goes through a message value by value, as far as its bytes have come.
//!
//! [`Walker::step`] with all bytes so far → the next [`Event`] · so many bytes are missing still · malformed
//!
//! Invariants:
//! 1. A step that is short of bytes changes nothing, and is made again when there are more: a message costs its bytes
//!    once, however it is cut.
//! 2. A length is compared with what may be there at most before it is believed, and nothing is kept for it: memory is
//!    [`DEPTH_MAX`] levels.

use super::shape::{COMPACT, Dialect, MessageKind, ValueKind};
use super::unreadable::{DEPTH_MAX, METHOD_BYTES_MAX, Unreadable};

/// A place of bytes in a message, from its first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slice {
    pub(super) start: u32,
    pub(super) len: u32,
}

impl Slice {
    /// Its bytes in the message.
    pub(super) fn range(self) -> std::ops::Range<usize> {
        let start = self.start as usize;
        start..start + self.len as usize
    }
}

/// What comes next in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Its head. What follows are the fields of its arguments.
    Begin { kind: MessageKind, sequence: i32, name: Slice },
    /// A field, whose value comes next.
    Field(i16),
    /// A string.
    Text(Slice),
    /// A number, or a bool as 0 or 1.
    Number(i64),
    /// A struct begins.
    Struct,
    /// A list begins, of elements of this kind; `None`: it is empty.
    Elements(Option<ValueKind>),
    /// Something that no method has, or the beginning of it: a set, a map, a list of numbers.
    Other,
    /// A struct is over; where that is the arguments, so is the message.
    End,
}

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Walked {
    /// This.
    On(Event),
    /// At least so many bytes more are needed.
    Short(usize),
}

/// Where the walk is in a value that holds others.
#[derive(Clone, Copy, Debug)]
enum Level {
    /// The fields of a struct; the last had this id.
    Fields { last: i16 },
    /// The value of a field.
    Value(ValueKind),
    /// The value of a field of a bool in the compact protocol, which stood with its id.
    Known(bool),
    /// So many elements of a list or a set.
    Elements { kind: ValueKind, left: u32 },
    /// So many keys and values of a map; the next is a value.
    Pairs { key: ValueKind, value: ValueKind, left: u64 },
}

/// Why a step is not made.
enum Stop {
    Short(usize),
    Wrong(Unreadable),
}

impl From<Unreadable> for Stop {
    fn from(malformed: Unreadable) -> Self {
        Self::Wrong(malformed)
    }
}

type Read<T> = Result<T, Stop>;

/// A walk through one message.
#[derive(Debug)]
pub(super) struct Walker {
    dialect: Dialect,
    /// The message has at most so many bytes.
    bytes_max: usize,
    at: usize,
    begun: bool,
    levels: Vec<Level>,
}

/// Bytes that are read one after the other.
struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
    bytes_max: usize,
}

impl<'b> Reader<'b> {
    fn take(&mut self, len: usize) -> Read<&'b [u8]> {
        let left = self.bytes_max.saturating_sub(self.at);
        if len > left {
            return Err(Unreadable::TooLong { len: self.at as u64 + len as u64, max: self.bytes_max }.into());
        }
        let here = self.bytes.get(self.at..).unwrap_or_default();
        let taken = here.get(..len).ok_or(Stop::Short(len - here.len().min(len)))?;
        self.at += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn byte(&mut self) -> Read<u8> {
        Ok(self.array::<1>()?[0])
    }

    /// A number of at most `bits`, 7 of them in each byte, low ones first.
    fn variable(&mut self, bits: u32) -> Read<u64> {
        let (mut number, mut shift) = (0, 0);
        loop {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift >= bits || part.checked_shl(shift).is_none_or(|moved| moved >> shift != part) {
                return Err(Unreadable::Number.into());
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                let fits = bits == u64::BITS || number >> bits == 0;
                return if fits { Ok(number) } else { Err(Unreadable::Number.into()) };
            }
            shift += 7;
        }
    }

    /// The same with the sign in the lowest bit.
    fn signed(&mut self, bits: u32) -> Read<i64> {
        let number = self.variable(bits)?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    /// A length, or a count.
    fn len(&mut self, dialect: Dialect, what: &'static str) -> Read<usize> {
        let len = match dialect {
            // As other implementations do: 32 bits, with a sign.
            Dialect::Compact => i64::from(self.variable(u32::BITS)? as u32 as i32),
            Dialect::Binary | Dialect::OldBinary => i64::from(i32::from_be_bytes(self.array()?)),
        };
        usize::try_from(len).map_err(|_| Unreadable::Negative { what, len }.into())
    }

    /// The place of so many bytes.
    fn slice(&mut self, len: usize) -> Read<Slice> {
        let start = self.at as u32;
        self.take(len)?;
        Ok(Slice { start, len: len as u32 })
    }

    /// The name of a method, of this length.
    fn name(&mut self, len: i64) -> Read<Slice> {
        let fits = usize::try_from(len).ok().filter(|len| *len <= METHOD_BYTES_MAX);
        self.slice(fits.ok_or(Unreadable::Name { len })?)
    }

    /// How many elements there are, of which each has `least` bytes or more.
    fn count(&mut self, count: usize, least: usize) -> Read<u32> {
        let left = self.bytes_max.saturating_sub(self.at);
        let fits = count.checked_mul(least).is_some_and(|bytes| bytes <= left);
        let count = u32::try_from(count).ok().filter(|_| fits);
        count.ok_or(Unreadable::Count { count: count.map_or(u64::MAX, u64::from), left }.into())
    }

    fn head(&mut self, dialect: Dialect) -> Read<Event> {
        match dialect {
            Dialect::Binary => {
                let word = u32::from_be_bytes(self.array()?);
                if word & 0xffff_ff00 != 0x8001_0000 {
                    return Err(Unreadable::Version { word }.into());
                }
                let kind = MessageKind::of(word as u8)?;
                let len = i32::from_be_bytes(self.array()?);
                let name = self.name(len.into())?;
                Ok(Event::Begin { kind, name, sequence: i32::from_be_bytes(self.array()?) })
            }
            Dialect::OldBinary => {
                let len = i32::from_be_bytes(self.array()?);
                if len < 0 {
                    return Err(Unreadable::Version { word: len as u32 }.into());
                }
                let name = self.name(len.into())?;
                let kind = MessageKind::of(self.byte()?)?;
                Ok(Event::Begin { kind, name, sequence: i32::from_be_bytes(self.array()?) })
            }
            Dialect::Compact => {
                let [protocol, version] = self.array()?;
                if protocol != COMPACT || version & 0x1f != 1 {
                    let word = u32::from_be_bytes([protocol, version, 0, 0]);
                    return Err(Unreadable::Version { word }.into());
                }
                let kind = MessageKind::of(version >> 5)?;
                let sequence = self.variable(u32::BITS)? as u32 as i32;
                let len = self.variable(u32::BITS)?;
                Ok(Event::Begin { kind, sequence, name: self.name(len as i64)? })
            }
        }
    }

    /// The head of a field after one of this id; `None` at the end of the struct.
    fn field(&mut self, dialect: Dialect, last: i16) -> Read<Option<(i16, Level)>> {
        let byte = self.byte()?;
        if byte == 0 {
            return Ok(None);
        }
        if dialect != Dialect::Compact {
            let kind = ValueKind::of_binary(byte)?;
            return Ok(Some((i16::from_be_bytes(self.array()?), Level::Value(kind))));
        }
        let (kind, delta) = (ValueKind::of_compact(byte & 0x0f)?, i16::from(byte >> 4));
        let id = if delta == 0 { self.signed(u16::BITS)? as i16 } else { last.wrapping_add(delta) };
        let level = if kind == ValueKind::Bool { Level::Known(byte & 0x0f == 1) } else { Level::Value(kind) };
        Ok(Some((id, level)))
    }

    /// A value, or the head of one that holds others.
    fn value(&mut self, dialect: Dialect, kind: ValueKind) -> Read<(Event, Option<Level>)> {
        let is_compact = dialect == Dialect::Compact;
        let event = match kind {
            ValueKind::Bool => Event::Number((self.byte()? == 1).into()),
            ValueKind::I8 => Event::Number((self.byte()? as i8).into()),
            ValueKind::I16 if is_compact => Event::Number(self.signed(u16::BITS)?),
            ValueKind::I32 if is_compact => Event::Number(self.signed(u32::BITS)?),
            ValueKind::I64 if is_compact => Event::Number(self.signed(u64::BITS)?),
            ValueKind::I16 => Event::Number(i16::from_be_bytes(self.array()?).into()),
            ValueKind::I32 => Event::Number(i32::from_be_bytes(self.array()?).into()),
            ValueKind::I64 => Event::Number(i64::from_be_bytes(self.array()?)),
            ValueKind::Double => self.take(8).map(|_| Event::Other)?,
            ValueKind::Uuid => self.take(16).map(|_| Event::Other)?,
            ValueKind::Text => {
                let len = self.len(dialect, "length of a string")?;
                Event::Text(self.slice(len)?)
            }
            ValueKind::Struct => return Ok((Event::Struct, Some(Level::Fields { last: 0 }))),
            ValueKind::List => return self.elements(dialect),
            ValueKind::Set => return self.elements(dialect).map(|(_, level)| (Event::Other, level)),
            ValueKind::Map => return self.pairs(dialect),
        };
        Ok((event, None))
    }

    fn elements(&mut self, dialect: Dialect) -> Read<(Event, Option<Level>)> {
        let byte = self.byte()?;
        let (number, len) = match dialect {
            Dialect::Compact if byte >> 4 < 15 => (byte & 0x0f, usize::from(byte >> 4)),
            Dialect::Compact => (byte & 0x0f, self.len(dialect, "count of a list")?),
            Dialect::Binary | Dialect::OldBinary => (byte, self.len(dialect, "count of a list")?),
        };
        if len == 0 {
            // Of what there is none, the kind says nothing: some write zero.
            return Ok((Event::Elements(None), Some(Level::Elements { kind: ValueKind::Bool, left: 0 })));
        }
        let kind = kind_of(dialect, number)?;
        let left = self.count(len, kind.least_bytes(dialect))?;
        if let Some(bytes) = kind.fixed_bytes(dialect) {
            // No method has any: they are passed over at once.
            self.take(len * bytes)?;
            return Ok((Event::Other, None));
        }
        Ok((Event::Elements(Some(kind)), Some(Level::Elements { kind, left })))
    }

    fn pairs(&mut self, dialect: Dialect) -> Read<(Event, Option<Level>)> {
        let (kinds, len) = match dialect {
            Dialect::Compact => {
                let len = self.len(dialect, "count of a map")?;
                let kinds = if len == 0 { 0 } else { self.byte()? };
                ([kinds >> 4, kinds & 0x0f], len)
            }
            Dialect::Binary | Dialect::OldBinary => (self.array()?, self.len(dialect, "count of a map")?),
        };
        if len == 0 {
            return Ok((Event::Other, Some(Level::Elements { kind: ValueKind::Bool, left: 0 })));
        }
        let (key, value) = (kind_of(dialect, kinds[0])?, kind_of(dialect, kinds[1])?);
        let count = self.count(len, key.least_bytes(dialect) + value.least_bytes(dialect))?;
        Ok((Event::Other, Some(Level::Pairs { key, value, left: 2 * u64::from(count) })))
    }
}

fn kind_of(dialect: Dialect, number: u8) -> Result<ValueKind, Unreadable> {
    if dialect == Dialect::Compact { ValueKind::of_compact(number) } else { ValueKind::of_binary(number) }
}

impl Walker {
    /// A walk through a message of at most so many bytes.
    pub(super) fn new(dialect: Dialect, bytes_max: usize) -> Self {
        Self { dialect, bytes_max, at: 0, begun: false, levels: Vec::new() }
    }

    /// Bytes that it has gone through.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Levels that it is in: the arguments are the first.
    pub(super) fn depth(&self) -> usize {
        self.levels.len()
    }

    /// The next event of the message that begins with `bytes`. Not to be asked after the last.
    pub(super) fn step(&mut self, bytes: &[u8]) -> Result<Walked, Unreadable> {
        match self.next(bytes) {
            Ok(event) => Ok(Walked::On(event)),
            Err(Stop::Short(len)) => Ok(Walked::Short(len)),
            Err(Stop::Wrong(malformed)) => Err(malformed),
        }
    }

    fn next(&mut self, bytes: &[u8]) -> Read<Event> {
        let (dialect, bytes_max) = (self.dialect, self.bytes_max);
        let mut reader = Reader { bytes, at: self.at, bytes_max };
        if !self.begun {
            let event = reader.head(dialect)?;
            (self.begun, self.at) = (true, reader.at);
            self.levels.push(Level::Fields { last: 0 });
            return Ok(event);
        }
        while let Some(Level::Elements { left: 0, .. } | Level::Pairs { left: 0, .. }) = self.levels.last() {
            self.levels.pop();
        }
        let depth = self.levels.len();
        let Some(level) = self.levels.last_mut() else { return Ok(Event::End) };
        let kind = match *level {
            Level::Fields { last } => {
                let field = reader.field(dialect, last)?;
                self.at = reader.at;
                let Some((id, value)) = field else {
                    self.levels.pop();
                    return Ok(Event::End);
                };
                *level = Level::Fields { last: id };
                // Taken away with the value: no level of its own.
                self.levels.push(value);
                return Ok(Event::Field(id));
            }
            Level::Known(value) => {
                self.levels.pop();
                return Ok(Event::Number(value.into()));
            }
            Level::Value(kind) | Level::Elements { kind, .. } => kind,
            Level::Pairs { key, left, .. } if left % 2 == 0 => key,
            Level::Pairs { value, .. } => value,
        };
        let (event, inner) = reader.value(dialect, kind)?;
        match level {
            Level::Elements { left, .. } => *left -= 1,
            Level::Pairs { left, .. } => *left -= 1,
            Level::Value(_) | Level::Fields { .. } | Level::Known(_) => {
                self.levels.pop();
            }
        }
        if let Some(inner) = inner {
            if depth > DEPTH_MAX {
                return Err(Unreadable::Depth.into());
            }
            self.levels.push(inner);
        }
        self.at = reader.at;
        Ok(event)
    }
}
