//! Messages to the log face's types and back.
//!
//! Invariant: what a message leaves out has the face's default; what makes no sense is refused here or by the face,
//! never guessed.

use esker_log::{Compression, Delivery, Durability, Entry, Found, GapKind, Layout, Log, Options, Record};

use super::proto::log as proto;
use super::status::Told;

/// Options as asked for; `layout` is taken where none is.
pub(crate) fn options(message: Option<proto::Options>, layout: Layout) -> Result<Options, Told> {
    let plain = Options { layout, ..Options::default() };
    let Some(message) = message else { return Ok(plain) };
    let layout = match message.layout() {
        proto::Layout::Unspecified if message.layout == 0 => layout,
        proto::Layout::Omap => Layout::Omap,
        proto::Layout::Stream => Layout::Stream,
        proto::Layout::Slots => Layout::Slots,
        proto::Layout::Unspecified => return Err(Told::invalid(format!("layout {} is not known", message.layout))),
    };
    let compression = match message.compression() {
        proto::Compression::Lz4 => Compression::Lz4,
        proto::Compression::Zstd => Compression::Zstd,
        proto::Compression::None if message.compression == 0 => Compression::None,
        proto::Compression::None => {
            return Err(Told::invalid(format!("compression {} is not known", message.compression)));
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

fn told_options(options: &Options) -> proto::Options {
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

/// What there is to say about a log, called `name` by who asks. Reads.
pub(crate) fn info(log: &Log, name: &str) -> Result<proto::InfoResponse, Told> {
    let view = log.refresh()?;
    let tail = log.tail()?;
    Ok(proto::InfoResponse {
        log: name.to_owned(),
        id: log.id(),
        options: Some(told_options(&view.options)),
        epoch: view.epoch,
        tail: tail.position,
        trimmed: view.trimmed,
        sealed: view.sealed.is_some(),
        sequencer: view.sequencer.clone(),
        owner: view.owner.clone(),
    })
}

/// What is to be appended.
pub(crate) fn record(message: Option<proto::Record>) -> Record {
    let message = message.unwrap_or_default();
    Record { data: message.data, streams: message.streams.into_iter().collect() }
}

/// When an append is answered.
pub(crate) fn durability(applied_only: bool) -> Durability {
    if applied_only { Durability::Applied } else { Durability::Durable }
}

fn entry(entry: Entry) -> proto::Entry {
    proto::Entry {
        position: entry.position,
        data: entry.data,
        streams: entry.streams.into_iter().collect(),
        time_ms: entry.time_ms,
        writer: entry.nonce.writer,
        number: entry.nonce.number,
    }
}

/// What stands at a position.
pub(crate) fn found(found: Found) -> proto::Found {
    use proto::found::Found as Is;
    let gap = |gap: proto::Gap| proto::Found { found: Some(Is::Gap(gap.into())), why: String::new() };
    match found {
        Found::Entry(one) => proto::Found { found: Some(Is::Entry(entry(one))), why: String::new() },
        Found::Hole => gap(proto::Gap::Hole),
        Found::Filled => gap(proto::Gap::Filled),
        Found::Trimmed => gap(proto::Gap::Trimmed),
        Found::BeyondTail => gap(proto::Gap::BeyondTail),
        Found::Lost(why) => proto::Found { why, ..gap(proto::Gap::Lost) },
    }
}

/// What a follower is handed.
pub(crate) fn delivery(delivery: Delivery) -> proto::Delivery {
    use proto::delivery::What;
    let what = match delivery {
        Delivery::Entry(one) => What::Entry(entry(one)),
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
