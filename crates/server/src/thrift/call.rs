//! A call with its arguments, as the service understands it.
//!
//! [`Message`] → its method → [`Asked`] with keys of the namespace's kind · an [`Exception`] that says what is
//! wrong
//!
//! Invariant: what is asked for is whole and within the limits; the store is not touched for anything else.

use bytes::Bytes;
use esker_kv::{KEY_BYTES_MAX, Kind, OwnedKey, VALUE_BYTES_MAX};
use esker_store::CommitCursor;

use super::arguments::BATCH_MAX;
use super::decode::Message;
use super::encode::{Exception, ExceptionKind};
use super::memory::{ANSWER_BYTES_MAX, READ_BYTES_MAX};
use super::shape::ValueKind;
use super::walk::Slice;

/// Most pairs of a page.
pub const PAGE_MAX: usize = 1_000;
/// Pairs of a page where the call does not say.
const PAGE: usize = 100;
/// Bytes of each value that another chain is asked for, on average, before it is known that they are longer.
const FIRST_BYTES: usize = 1 << 20;
/// Bytes of a key that an error shows.
const SHOWN_BYTES: usize = 128;

/// Before what a cursor of an order holds.
const BY_KEY: u8 = b'k';
const BY_INSERTION: u8 = b'i';

/// The methods, in the order of [`METHODS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Procedure {
    Get,
    MultiGet,
    Remove,
    Put,
    MultiPut,
    Has,
    Add,
    Update,
    CompareAndSet,
    RemoveMany,
    Iterate,
    IterateInserted,
    Count,
    Mode,
    SetMode,
}

/// Their names; the first six are those of the paper's service.
pub(super) const METHODS: [(Procedure, &str); 15] = [
    (Procedure::Get, "get"),
    (Procedure::MultiGet, "multiGet"),
    (Procedure::Remove, "remove"),
    (Procedure::Put, "put"),
    (Procedure::MultiPut, "multiPut"),
    (Procedure::Has, "has"),
    (Procedure::Add, "add"),
    (Procedure::Update, "update"),
    (Procedure::CompareAndSet, "compareAndSet"),
    (Procedure::RemoveMany, "removeMany"),
    (Procedure::Iterate, "iterate"),
    (Procedure::IterateInserted, "iterateInserted"),
    (Procedure::Count, "count"),
    (Procedure::Mode, "mode"),
    (Procedure::SetMode, "setMode"),
];

impl Procedure {
    /// The method of this name.
    pub(super) fn of(name: &[u8]) -> Option<Self> {
        METHODS.iter().find(|(_, known)| known.as_bytes() == name).map(|(method, _)| *method)
    }
}

/// When a write is acknowledged. The numbers are those of the published enum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteMode {
    /// When it is durable.
    #[default]
    Safe = 1,
    /// When it is applied.
    Asynchronous = 2,
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Get(OwnedKey),
    MultiGet(Vec<OwnedKey>),
    Remove(OwnedKey),
    Put(OwnedKey, Bytes),
    MultiPut(Vec<(OwnedKey, Bytes)>),
    Has(OwnedKey),
    Add(OwnedKey, Bytes),
    Update(OwnedKey, Bytes),
    CompareAndSet(OwnedKey, Option<Bytes>, Bytes),
    RemoveMany(Vec<OwnedKey>),
    Iterate { after: Option<OwnedKey>, limit: usize },
    IterateInserted { after: CommitCursor, limit: usize },
    Count,
    Mode,
    SetMode(WriteMode),
}

/// A message with its bytes, and the kind of keys that it may name.
struct Parts<'m> {
    message: &'m Message,
    method: &'static str,
    bytes: Bytes,
    kind: Kind,
}

impl Asked {
    /// What a message asks of `method`; `bytes` are those that it was read from.
    pub(super) fn of(method: Procedure, message: &Message, bytes: &Bytes, kind: Kind) -> Result<Self, Exception> {
        let name = METHODS.iter().find(|(known, _)| *known == method).map_or("", |(_, name)| name);
        let arguments = Parts { message, method: name, bytes: bytes.slice(message.start..), kind };
        Ok(match method {
            Procedure::Get => Self::Get(arguments.key()?),
            Procedure::MultiGet => Self::MultiGet(arguments.keys()?),
            Procedure::Remove => Self::Remove(arguments.key()?),
            Procedure::Put => Self::Put(arguments.key()?, arguments.text(2, "value")?),
            Procedure::MultiPut => Self::MultiPut(arguments.pairs()?),
            Procedure::Has => Self::Has(arguments.key()?),
            Procedure::Add => Self::Add(arguments.key()?, arguments.text(2, "value")?),
            Procedure::Update => Self::Update(arguments.key()?, arguments.text(2, "value")?),
            Procedure::CompareAndSet => {
                let expected = message.arguments.text(2).map(|slice| arguments.slice(slice));
                Self::CompareAndSet(arguments.key()?, expected, arguments.text(3, "value")?)
            }
            Procedure::RemoveMany => Self::RemoveMany(arguments.keys()?),
            Procedure::Iterate => Self::Iterate { after: arguments.after()?, limit: arguments.limit()? },
            Procedure::IterateInserted => {
                Self::IterateInserted { after: arguments.after_commit()?, limit: arguments.limit()? }
            }
            Procedure::Count => Self::Count,
            Procedure::Mode => Self::Mode,
            Procedure::SetMode => Self::SetMode(arguments.mode()?),
        })
    }

    /// Whether it changes data.
    pub(super) fn writes(&self) -> bool {
        match self {
            Self::Get(_) | Self::MultiGet(_) | Self::Has(_) | Self::Count | Self::Mode => false,
            Self::Iterate { .. } | Self::IterateInserted { .. } | Self::SetMode(_) => false,
            Self::Remove(_) | Self::Put(..) | Self::MultiPut(_) | Self::RemoveMany(_) => true,
            Self::Add(..) | Self::Update(..) | Self::CompareAndSet(..) => true,
        }
    }

    /// Whether its answer tells what is stored.
    pub(super) fn reads(&self) -> bool {
        !matches!(self, Self::Put(..) | Self::MultiPut(_) | Self::Mode | Self::SetMode(_))
    }

    /// Bytes of the values that it may read.
    pub(super) fn read_bytes_max(&self) -> usize {
        match self {
            Self::Put(..) | Self::MultiPut(_) | Self::Count | Self::Mode | Self::SetMode(_) => 0,
            Self::Get(_) | Self::Remove(_) | Self::Has(_) => VALUE_BYTES_MAX,
            Self::Add(..) | Self::Update(..) | Self::CompareAndSet(..) => VALUE_BYTES_MAX,
            Self::MultiGet(keys) | Self::RemoveMany(keys) => (keys.len() * VALUE_BYTES_MAX).min(READ_BYTES_MAX),
            // What of a page was read before, a scan of the store's, and the value with which that is too much.
            Self::Iterate { .. } | Self::IterateInserted { .. } => 3 * VALUE_BYTES_MAX,
        }
    }

    /// Bytes of the keys and values that another chain may give it. `first`: it says when these are more.
    pub(super) fn found_bytes_max(&self, first: bool) -> usize {
        let each = if first { FIRST_BYTES } else { VALUE_BYTES_MAX + KEY_BYTES_MAX + 16 };
        match self {
            Self::Get(_) => each,
            Self::MultiGet(keys) => (keys.len() * each).min(ANSWER_BYTES_MAX),
            _ => 0,
        }
    }

    /// Bytes of the values that it writes.
    pub(super) fn written_bytes(&self) -> usize {
        match self {
            Self::Put(_, value) | Self::Add(_, value) | Self::Update(_, value) => value.len(),
            Self::CompareAndSet(_, expected, value) => value.len() + expected.as_ref().map_or(0, Bytes::len),
            Self::MultiPut(pairs) => pairs.iter().map(|(_, value)| value.len()).sum(),
            _ => 0,
        }
    }

    /// The slots of the keys that it names.
    pub(super) fn slots(&self) -> Vec<u16> {
        let mut slots = Vec::new();
        self.each_key(|key| {
            slots.push(key.as_key().slot());
            true
        });
        slots
    }

    /// The keys that it names; `None`: it is about all.
    pub(super) fn each_key(&self, mut each: impl FnMut(&OwnedKey) -> bool) -> Option<bool> {
        Some(match self {
            Self::Get(key) | Self::Remove(key) | Self::Has(key) => each(key),
            Self::Put(key, _) | Self::Add(key, _) | Self::Update(key, _) => each(key),
            Self::CompareAndSet(key, ..) => each(key),
            Self::MultiGet(keys) | Self::RemoveMany(keys) => keys.iter().all(each),
            Self::MultiPut(pairs) => pairs.iter().all(|(key, _)| each(key)),
            Self::Mode | Self::SetMode(_) => true,
            Self::Iterate { .. } | Self::IterateInserted { .. } | Self::Count => return None,
        })
    }
}

impl Parts<'_> {
    fn slice(&self, slice: Slice) -> Bytes {
        self.bytes.slice(slice.range())
    }

    fn missing(&self, field: usize, what: &str) -> Exception {
        let why = format!("{}: field {field} ({what}) is missing, or of another type", self.method);
        Exception::new(ExceptionKind::ProtocolError, why)
    }

    fn text(&self, field: usize, what: &str) -> Result<Bytes, Exception> {
        let slice = self.message.arguments.text(field).ok_or_else(|| self.missing(field, what))?;
        Ok(self.slice(slice))
    }

    fn key(&self) -> Result<OwnedKey, Exception> {
        key(self.text(1, "key")?, self.kind)
    }

    /// The list of the first field, which is of this kind and within the limit.
    fn list(&self, kind: ValueKind, what: &str) -> Result<&super::arguments::List, Exception> {
        let list = self.message.arguments.first_list().filter(|list| list.is_of(kind));
        let list = list.ok_or_else(|| self.missing(1, what))?;
        if list.count > BATCH_MAX {
            let (method, count) = (self.method, list.count);
            return Err(Exception::refused(format!("{method}: {count} {what} are above BATCH_MAX = {BATCH_MAX}")));
        }
        Ok(list)
    }

    fn keys(&self) -> Result<Vec<OwnedKey>, Exception> {
        let list = self.list(ValueKind::Text, "keys")?;
        list.texts.iter().map(|slice| key(self.slice(*slice), self.kind)).collect()
    }

    fn pairs(&self) -> Result<Vec<(OwnedKey, Bytes)>, Exception> {
        let list = self.list(ValueKind::Struct, "data")?;
        let whole = |pair: &super::arguments::Pair| {
            let both = pair.key.zip(pair.value).ok_or_else(|| {
                let why = format!("{}: a pair without key or value (fields 1 and 2 of DataType)", self.method);
                Exception::new(ExceptionKind::ProtocolError, why)
            });
            let (name, value) = both?;
            Ok((key(self.slice(name), self.kind)?, self.slice(value)))
        };
        list.pairs.iter().map(whole).collect()
    }

    /// How many pairs a page has at most.
    fn limit(&self) -> Result<usize, Exception> {
        match self.message.arguments.number(2) {
            None | Some(0) => Ok(PAGE),
            Some(limit @ 1..) if limit <= PAGE_MAX as i64 => Ok(limit as usize),
            Some(limit) => {
                let why = format!("{}: limit {limit}: expected 1 to PAGE_MAX = {PAGE_MAX}, or 0", self.method);
                Err(Exception::refused(why))
            }
        }
    }

    /// What stands in a cursor of this order; nothing at the start.
    fn cursor(&self, order: u8) -> Result<Option<Bytes>, Exception> {
        match self.message.arguments.text(1).map(|slice| self.slice(slice)) {
            None => Ok(None),
            Some(cursor) if cursor.is_empty() => Ok(None),
            Some(cursor) if cursor[0] == order => Ok(Some(cursor.slice(1..))),
            Some(_) => Err(self.foreign()),
        }
    }

    fn foreign(&self) -> Exception {
        let why = format!("{}: a cursor that is none of this method: expected that of the page before", self.method);
        Exception::refused(why)
    }

    fn after(&self) -> Result<Option<OwnedKey>, Exception> {
        let Some(after) = self.cursor(BY_KEY)? else { return Ok(None) };
        match (self.kind, <[u8; 8]>::try_from(&after[..])) {
            (Kind::Int, Ok(number)) => Ok(Some(OwnedKey::Int(u64::from_be_bytes(number)))),
            (Kind::Bytes, _) if after.len() <= KEY_BYTES_MAX => Ok(Some(OwnedKey::Bytes(after))),
            _ => Err(self.foreign()),
        }
    }

    fn after_commit(&self) -> Result<CommitCursor, Exception> {
        let Some(after) = self.cursor(BY_INSERTION)? else { return Ok(CommitCursor::default()) };
        let numbers = after.split_first_chunk::<8>().zip(after.last_chunk::<8>());
        let ((first, rest), second) = numbers.ok_or_else(|| self.foreign())?;
        if rest.len() != 8 {
            return Err(self.foreign());
        }
        Ok(CommitCursor(u64::from_be_bytes(*first), u64::from_be_bytes(*second)))
    }

    fn mode(&self) -> Result<WriteMode, Exception> {
        match self.message.arguments.number(1) {
            None => Err(self.missing(1, "mode")),
            Some(1) => Ok(WriteMode::Safe),
            Some(2) => Ok(WriteMode::Asynchronous),
            Some(other) => {
                Err(Exception::refused(format!("setMode: mode {other}: expected SAFE (1) or ASYNCHRONOUS (2)")))
            }
        }
    }
}

/// The cursor behind this key.
pub(super) fn cursor_behind(key: &OwnedKey) -> Bytes {
    match key {
        OwnedKey::Int(number) => [&[BY_KEY][..], &number.to_be_bytes()].concat().into(),
        OwnedKey::Bytes(key) => [&[BY_KEY][..], key].concat().into(),
    }
}

/// The cursor from which the next page in the order of insertion goes on.
pub(super) fn cursor_of_commit(CommitCursor(first, second): CommitCursor) -> Bytes {
    [&[BY_INSERTION][..], &first.to_be_bytes(), &second.to_be_bytes()].concat().into()
}

/// A key as a namespace of this kind has it.
pub(super) fn key(text: Bytes, kind: Kind) -> Result<OwnedKey, Exception> {
    if kind == Kind::Bytes {
        if text.len() > KEY_BYTES_MAX {
            let why = format!("key {:?}: {} bytes are above KEY_BYTES_MAX = {KEY_BYTES_MAX}", shown(&text), text.len());
            return Err(Exception::refused(why));
        }
        return Ok(OwnedKey::Bytes(text));
    }
    // One spelling for each number, so that keys come back as they were sent.
    let digits = std::str::from_utf8(&text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let number = digits.filter(|text| *text == "0" || !text.starts_with('0')).and_then(|text| text.parse().ok());
    number.map(OwnedKey::Int).ok_or_else(|| {
        let why = "the namespace holds int keys: expected a decimal number without leading zeros";
        Exception::refused(format!("key {:?}: {why}, 0 to {}", shown(&text), u64::MAX))
    })
}

/// A key as clients have it.
pub(super) fn text_of(key: OwnedKey) -> Bytes {
    match key {
        OwnedKey::Int(number) => number.to_string().into(),
        OwnedKey::Bytes(key) => key,
    }
}

fn shown(key: &[u8]) -> String {
    String::from_utf8_lossy(&key[..key.len().min(SHOWN_BYTES)]).into_owned()
}
