//! The log's types as messages and back.
//!
//! Invariant: what a message leaves out has the log's default; what makes no sense is refused here or by the log.
//!
//! Format: crates/wire/proto/esker/log/v1/log.proto

use esker_log::{
    Compression, Delivery, Durability, Entry, Error as LogError, Found, GapKind, Layout, Nonce, Options, Record,
};
use tonic::Code;

use crate::named::Named;
use crate::proto::log as proto;
use crate::{Error, Result};

/// Metadata in the head of a stream of appends: how many a frame of them may hold. Where it is missing the server takes
/// no frames.
pub const APPENDS_MAX: &str = "esker-appends-max";

/// The code and the name of an error, and the position that it is about.
pub fn name_error(error: &LogError) -> Named {
    match error {
        LogError::Store(error) => crate::store::name_error(error),
        LogError::NoLog { .. } => Named::new(Code::NotFound, "no-log"),
        LogError::Exists { .. } => Named::new(Code::AlreadyExists, "exists"),
        LogError::Invalid { .. } => Named::new(Code::InvalidArgument, "invalid"),
        LogError::Sealed { tail, .. } => Named::new(Code::FailedPrecondition, "sealed").at(*tail),
        LogError::Fenced { .. } => Named::new(Code::FailedPrecondition, "fenced"),
        LogError::Taken { position } => Named::new(Code::AlreadyExists, "taken").at(*position),
        LogError::Trimmed { position } => Named::new(Code::OutOfRange, "trimmed").at(*position),
        LogError::NotTail { tail, .. } => Named::new(Code::Aborted, "not-tail").at(*tail),
        LogError::PastTail { tail, .. } => Named::new(Code::OutOfRange, "past-tail").at(*tail),
        LogError::Uncertain { position, .. } => Named::new(Code::Unknown, "uncertain").at(*position),
        LogError::NoSequencer { .. } => Named::new(Code::Unavailable, "no-sequencer"),
        LogError::Deposed { .. } => Named::new(Code::Aborted, "contended"),
        LogError::Unsupported { .. } => Named::new(Code::Unimplemented, "unsupported"),
        LogError::Damaged { .. } => Named::new(Code::DataLoss, "damaged"),
        _ => Named::new(Code::Internal, "internal"),
    }
}

/// Options, all of them said.
pub fn encode_options(options: &Options) -> proto::Options {
    let layout = match options.layout {
        Layout::Omap => proto::Layout::Omap,
        Layout::Stream => proto::Layout::Stream,
        Layout::Slots => proto::Layout::Slots,
    };
    let compression = match options.compression {
        Compression::None => proto::Compression::None,
        Compression::Lz4 => proto::Compression::Lz4,
        Compression::Zstd => proto::Compression::Zstd,
    };
    proto::Options {
        layout: layout.into(),
        width: Some(options.width),
        slots: Some(options.slots),
        entry_bytes_max: Some(options.entry_bytes_max),
        inline_bytes_max: Some(options.inline_bytes_max),
        object_bytes_max: Some(options.object_bytes_max),
        compression: compression.into(),
        retain_positions: options.retain_positions,
        retain_bytes: options.retain_bytes,
        retain_ms: options.retain_ms,
    }
}

/// Options as asked for; `layout` is taken where none is.
///
/// # Errors
/// [`Error::Malformed`] for a layout or a compression that is not known.
pub fn decode_options(message: Option<proto::Options>, layout: Layout) -> Result<Options> {
    let plain = Options { layout, ..Options::default() };
    let Some(message) = message else { return Ok(plain) };
    let layout = match proto::Layout::try_from(message.layout) {
        Ok(proto::Layout::Unspecified) => layout,
        Ok(proto::Layout::Omap) => Layout::Omap,
        Ok(proto::Layout::Stream) => Layout::Stream,
        Ok(proto::Layout::Slots) => Layout::Slots,
        Err(_) => return Err(Error::malformed("Options.layout", format!("layout {} is not known", message.layout))),
    };
    let compression = match proto::Compression::try_from(message.compression) {
        Ok(proto::Compression::None) => Compression::None,
        Ok(proto::Compression::Lz4) => Compression::Lz4,
        Ok(proto::Compression::Zstd) => Compression::Zstd,
        Err(_) => {
            let why = format!("compression {} is not known", message.compression);
            return Err(Error::malformed("Options.compression", why));
        }
    };
    Ok(Options {
        layout,
        width: message.width.unwrap_or(plain.width),
        slots: message.slots.unwrap_or(plain.slots),
        entry_bytes_max: message.entry_bytes_max.unwrap_or(plain.entry_bytes_max),
        inline_bytes_max: message.inline_bytes_max.unwrap_or(plain.inline_bytes_max),
        object_bytes_max: message.object_bytes_max.unwrap_or(plain.object_bytes_max),
        compression,
        retain_positions: message.retain_positions,
        retain_bytes: message.retain_bytes,
        retain_ms: message.retain_ms,
    })
}

/// What is to be appended.
pub fn encode_record(record: Record) -> proto::Record {
    proto::Record { data: record.data, streams: record.streams.into_iter().collect() }
}

/// What is to be appended; nothing is an empty record.
pub fn decode_record(message: Option<proto::Record>) -> Record {
    let message = message.unwrap_or_default();
    Record { data: message.data, streams: message.streams.into_iter().collect() }
}

/// `applied_only` of an append. There is no word for [`Durability::Always`], which is told as durable.
pub fn encode_durability(durability: Durability) -> bool {
    durability == Durability::Applied
}

/// When an append is answered, by its `applied_only`.
pub fn decode_durability(applied_only: bool) -> Durability {
    if applied_only { Durability::Applied } else { Durability::Durable }
}

fn encode_entry(entry: Entry) -> proto::Entry {
    proto::Entry {
        position: entry.position,
        data: entry.data,
        streams: entry.streams.into_iter().collect(),
        time_ms: entry.time_ms,
        writer: entry.nonce.writer,
        number: entry.nonce.number,
    }
}

fn decode_entry(message: proto::Entry) -> Entry {
    Entry {
        position: message.position,
        data: message.data,
        streams: message.streams.into_iter().collect(),
        nonce: Nonce { writer: message.writer, number: message.number },
        time_ms: message.time_ms,
    }
}

fn gap(field: &'static str, number: i32) -> Result<proto::Gap> {
    let unknown = |_| Error::malformed(field, format!("gap {number} is not known"));
    proto::Gap::try_from(number).map_err(unknown)
}

/// What stands at a position.
pub fn encode_found(found: Found) -> proto::Found {
    use proto::found::Found as Is;
    let gap = |gap: proto::Gap| proto::Found { found: Some(Is::Gap(gap.into())), why: String::new() };
    match found {
        Found::Entry(one) => proto::Found { found: Some(Is::Entry(encode_entry(one))), why: String::new() },
        Found::Hole => gap(proto::Gap::Hole),
        Found::Filled => gap(proto::Gap::Filled),
        Found::Trimmed => gap(proto::Gap::Trimmed),
        Found::BeyondTail => gap(proto::Gap::BeyondTail),
        Found::Lost(why) => proto::Found { why, ..gap(proto::Gap::Lost) },
    }
}

/// What stands at a position.
///
/// # Errors
/// [`Error::Malformed`] if it is neither an entry nor a gap that is known.
pub fn decode_found(message: proto::Found) -> Result<Found> {
    use proto::found::Found as Is;
    let number = match message.found {
        Some(Is::Entry(entry)) => return Ok(Found::Entry(decode_entry(entry))),
        Some(Is::Gap(number)) => number,
        None => return Err(Error::malformed("Found.found", "it is neither an entry nor a gap")),
    };
    match gap("Found.gap", number)? {
        proto::Gap::Hole => Ok(Found::Hole),
        proto::Gap::Filled => Ok(Found::Filled),
        proto::Gap::Trimmed => Ok(Found::Trimmed),
        proto::Gap::BeyondTail => Ok(Found::BeyondTail),
        proto::Gap::Lost => Ok(Found::Lost(message.why)),
        proto::Gap::Unspecified => Err(Error::malformed("Found.gap", "it says no kind of gap")),
    }
}

/// What a follower is handed.
pub fn encode_delivery(delivery: Delivery) -> proto::Delivery {
    use proto::delivery::What;
    let what = match delivery {
        Delivery::Entry(one) => What::Entry(encode_entry(one)),
        Delivery::Gap { positions, kind } => {
            let (gap, why) = match kind {
                GapKind::Filled => (proto::Gap::Filled, String::new()),
                GapKind::Trimmed => (proto::Gap::Trimmed, String::new()),
                GapKind::Lost(why) => (proto::Gap::Lost, why),
            };
            What::Gap(proto::GapRange { start: positions.start, end: positions.end, gap: gap.into(), why })
        }
        Delivery::End { tail } => What::End(tail),
    };
    proto::Delivery { what: Some(what) }
}

/// What a follower is handed.
///
/// # Errors
/// [`Error::Malformed`] if it is nothing that followers are handed.
pub fn decode_delivery(message: proto::Delivery) -> Result<Delivery> {
    use proto::delivery::What;
    let range = match message.what {
        Some(What::Entry(entry)) => return Ok(Delivery::Entry(decode_entry(entry))),
        Some(What::End(tail)) => return Ok(Delivery::End { tail }),
        Some(What::Gap(range)) => range,
        None => return Err(Error::malformed("Delivery.what", "it is neither an entry, a gap nor the end")),
    };
    let kind = match gap("GapRange.gap", range.gap)? {
        proto::Gap::Filled => GapKind::Filled,
        proto::Gap::Trimmed => GapKind::Trimmed,
        proto::Gap::Lost => GapKind::Lost(range.why),
        other => {
            let why = format!("{} is no gap of followers", other.as_str_name());
            return Err(Error::malformed("GapRange.gap", why));
        }
    };
    Ok(Delivery::Gap { positions: range.start..range.end, kind })
}
