//! Answers as bytes.
//!
//! [`Given`] or [`Exception`] → [`encode`] → one message, in the shape of the call
//!
//! Invariant: an answer has the name and the number of its call, and in a frame its length stands before it.

use bytes::Bytes;

use super::shape::{COMPACT, Dialect, MessageKind, Shape, ValueKind};

/// What a call has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Given {
    /// Nothing: of a method that returns nothing, and of `get` where the key is missing.
    Nothing,
    /// A string.
    Text(Bytes),
    /// Pairs of key and value.
    Pairs(Vec<(Bytes, Bytes)>),
    /// Pairs, and where the next are found; the end without.
    Page(Vec<(Bytes, Bytes)>, Option<Bytes>),
    /// An i32, or an enum.
    I32(i32),
    /// An i64.
    I64(i64),
    /// A bool.
    Bool(bool),
}

/// What an error is to a client: the numbers of `TApplicationException`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExceptionKind {
    /// Of no other kind: what was asked for cannot be, as a key that is no number or one that a user may not read.
    Unknown = 0,
    /// There is no such method.
    UnknownMethod = 1,
    /// A message that is no call.
    InvalidMessageType = 2,
    /// The store's.
    InternalError = 6,
    /// A message that is malformed, or an argument that is missing.
    ProtocolError = 7,
}

/// What a call that failed has done, where its message alone would not do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effect {
    /// What the message says.
    #[default]
    AsTold,
    /// It is not known.
    Unknown,
    /// Nothing, and it may be done soon: the chain has no head now.
    None,
}

/// An error, as a client is told it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exception {
    /// What it is.
    pub kind: ExceptionKind,
    /// What happened, for people.
    pub message: String,
    /// What was done of a call that writes; where that is not known the message says so.
    pub effect: Effect,
}

impl Exception {
    pub(super) fn new(kind: ExceptionKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), effect: Effect::AsTold }
    }

    /// It is not known whether it was done.
    pub(super) fn unknown(message: impl Into<String>) -> Self {
        Self { effect: Effect::Unknown, ..Self::internal(message) }
    }

    /// What was asked for cannot be.
    pub(super) fn refused(message: impl Into<String>) -> Self {
        Self::new(ExceptionKind::Unknown, message)
    }

    /// The server cannot do it.
    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self::new(ExceptionKind::InternalError, message)
    }
}

impl Given {
    /// Bytes of keys and values.
    pub fn payload_bytes(&self) -> usize {
        let all = |pairs: &[(Bytes, Bytes)]| pairs.iter().map(|(key, value)| key.len() + value.len() + 16).sum();
        match self {
            Self::Text(text) => text.len(),
            Self::Pairs(pairs) => all(pairs),
            Self::Page(pairs, next) => all(pairs) + next.as_ref().map_or(0, Bytes::len),
            Self::Nothing | Self::I32(_) | Self::I64(_) | Self::Bool(_) => 0,
        }
    }
}

/// The message that answers the call of a method with this number.
pub fn encode(shape: Shape, method: &[u8], sequence: i32, answer: &Result<Given, Exception>) -> Vec<u8> {
    let payload = answer.as_ref().map_or_else(|exception| exception.message.len(), Given::payload_bytes);
    let mut out = Writer { out: Vec::with_capacity(payload + method.len() + 64), dialect: shape.dialect };
    if shape.framed {
        out.out.extend([0; 4]);
    }
    match answer {
        Ok(given) => {
            out.begin(MessageKind::Reply, method, sequence);
            out.given(given);
        }
        Err(Exception { kind, message, .. }) => {
            out.begin(MessageKind::Exception, method, sequence);
            out.field(ValueKind::Text, 0, 1);
            out.text(message.as_bytes());
            out.field(ValueKind::I32, 1, 2);
            out.i32(*kind as i32);
        }
    }
    out.stop();
    let mut out = out.out;
    if shape.framed {
        let len = (out.len() - 4) as u32;
        out[..4].copy_from_slice(&len.to_be_bytes());
    }
    out
}

struct Writer {
    out: Vec<u8>,
    dialect: Dialect,
}

impl Writer {
    fn is_compact(&self) -> bool {
        self.dialect == Dialect::Compact
    }

    fn variable(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.out.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.out.push(number as u8);
    }

    fn begin(&mut self, kind: MessageKind, method: &[u8], sequence: i32) {
        match self.dialect {
            Dialect::Binary => {
                self.out.extend([0x80, 1, 0, kind.number()]);
                self.text(method);
                self.out.extend(sequence.to_be_bytes());
            }
            Dialect::OldBinary => {
                self.text(method);
                self.out.push(kind.number());
                self.out.extend(sequence.to_be_bytes());
            }
            Dialect::Compact => {
                self.out.extend([COMPACT, kind.number() << 5 | 1]);
                self.variable(u64::from(sequence as u32));
                self.text(method);
            }
        }
    }

    /// The head of a field with this id, after the one before it in the struct, 0 for the first.
    fn field(&mut self, kind: ValueKind, before: i16, id: i16) {
        if !self.is_compact() {
            self.out.push(kind.binary());
            self.out.extend(id.to_be_bytes());
            return;
        }
        self.compact_field(kind.compact(), before, id);
    }

    fn compact_field(&mut self, kind: u8, before: i16, id: i16) {
        match id - before {
            delta @ 1..=15 => self.out.push((delta as u8) << 4 | kind),
            _ => {
                self.out.push(kind);
                self.variable(zigzag(id.into()));
            }
        }
    }

    fn stop(&mut self) {
        self.out.push(0);
    }

    fn text(&mut self, text: &[u8]) {
        if self.is_compact() {
            self.variable(text.len() as u64);
        } else {
            self.out.extend((text.len() as u32).to_be_bytes());
        }
        self.out.extend(text);
    }

    fn i32(&mut self, number: i32) {
        if self.is_compact() { self.variable(zigzag(number.into())) } else { self.out.extend(number.to_be_bytes()) }
    }

    fn i64(&mut self, number: i64) {
        if self.is_compact() { self.variable(zigzag(number)) } else { self.out.extend(number.to_be_bytes()) }
    }

    fn pairs(&mut self, pairs: &[(Bytes, Bytes)]) {
        match (self.is_compact(), pairs.len()) {
            (true, len @ 0..=14) => self.out.push((len as u8) << 4 | ValueKind::Struct.compact()),
            (true, len) => {
                self.out.push(0xf0 | ValueKind::Struct.compact());
                self.variable(len as u64);
            }
            (false, len) => {
                self.out.push(ValueKind::Struct.binary());
                self.out.extend((len as u32).to_be_bytes());
            }
        }
        for (key, value) in pairs {
            self.field(ValueKind::Text, 0, 1);
            self.text(key);
            self.field(ValueKind::Text, 1, 2);
            self.text(value);
            self.stop();
        }
    }

    fn given(&mut self, given: &Given) {
        // What a method returns is field 0 of its result.
        match given {
            Given::Nothing => {}
            Given::Text(text) => {
                self.field(ValueKind::Text, 0, 0);
                self.text(text);
            }
            Given::Pairs(pairs) => {
                self.field(ValueKind::List, 0, 0);
                self.pairs(pairs);
            }
            Given::Page(pairs, next) => {
                self.field(ValueKind::Struct, 0, 0);
                self.field(ValueKind::List, 0, 1);
                self.pairs(pairs);
                if let Some(next) = next {
                    self.field(ValueKind::Text, 1, 2);
                    self.text(next);
                }
                self.stop();
            }
            Given::I32(number) => {
                self.field(ValueKind::I32, 0, 0);
                self.i32(*number);
            }
            Given::I64(number) => {
                self.field(ValueKind::I64, 0, 0);
                self.i64(*number);
            }
            Given::Bool(is) if self.is_compact() => self.compact_field(if *is { 1 } else { 2 }, 0, 0),
            Given::Bool(is) => {
                self.field(ValueKind::Bool, 0, 0);
                self.out.push((*is).into());
            }
        }
    }
}

fn zigzag(number: i64) -> u64 {
    (number << 1 ^ number >> 63) as u64
}
