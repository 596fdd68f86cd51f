//! One request against an export: checked, then carried out.
//!
//! [`Request`] (and payload) → [`check`] → [`carry_out`] → [`Answer`], or the [`Fault`] that the client is told
//!
//! Invariant: an export sees only ranges inside itself, whole blocks, and writes it may take.

use bytes::Bytes;

use crate::nbd::config::PAYLOAD_BYTES_MAX;
use crate::nbd::export::{Done, Extent, Fault, Piece};
use crate::nbd::negotiate::Chosen;
use crate::nbd::reply::EXTENTS_MAX;
use crate::nbd::wire::{Request, command, flag};

/// CACHE reads in steps of this.
const CACHE_STEP_BYTES: u64 = 1 << 20;
/// CACHE reads no more than this; it is a hint.
const CACHE_BYTES_MAX: u64 = 64 << 20;

/// What came of a request.
pub(crate) enum Answer {
    /// Done, with nothing to tell.
    Done,
    /// Data and holes.
    Read(Vec<Piece>),
    /// What a range is made of.
    Extents(Vec<Extent>),
}

/// Refuses what must not reach the export.
pub(crate) fn check(request: &Request, chosen: &Chosen) -> Result<(), Fault> {
    let invalid = |why: String| Err(Fault::Invalid(why));
    let export = &chosen.export;
    if request.command > command::BLOCK_STATUS || request.command == command::DISC {
        return invalid(format!("unknown command {}", request.command));
    }
    let allowed = request.allowed_flags() & if chosen.structured { u16::MAX } else { !flag::DF };
    if request.flags & !allowed != 0 {
        return invalid(format!("flags {:#x} are not for command {}", request.flags, request.command));
    }
    let writes = matches!(request.command, command::WRITE | command::TRIM | command::WRITE_ZEROES);
    if writes && export.read_only() {
        return Err(Fault::NotPermitted("this export is read-only".into()));
    }
    if request.command == command::FLUSH {
        return if request.offset == 0 && request.len == 0 { Ok(()) } else { invalid("FLUSH has no range".into()) };
    }
    if matches!(request.command, command::READ | command::WRITE) && request.len > PAYLOAD_BYTES_MAX {
        return invalid(format!("{} bytes exceed PAYLOAD_BYTES_MAX = {PAYLOAD_BYTES_MAX}", request.len));
    }
    if request.command == command::BLOCK_STATUS && (!chosen.allocation || request.len == 0) {
        return invalid("BLOCK_STATUS needs a metadata context and a length".into());
    }
    let size = export.size();
    if request.offset.checked_add(request.len.into()).is_none_or(|end| end > size) {
        let why = format!("{} bytes at {} go past the end at {size}", request.len, request.offset);
        let grows = matches!(request.command, command::WRITE | command::WRITE_ZEROES);
        return Err(if grows { Fault::Full(why) } else { Fault::Invalid(why) });
    }
    let block = export.block_sizes().min;
    if !request.offset.is_multiple_of(u64::from(block)) || !request.len.is_multiple_of(block) {
        return invalid(format!("{} bytes at {} are not blocks of {block}", request.len, request.offset));
    }
    Ok(())
}

/// Carries out a request that was checked. The answer may be told once what is
/// done has come, and its barrier is reached.
pub(crate) fn carry_out(request: &Request, payload: Bytes, chosen: &Chosen) -> Result<(Answer, Done), Fault> {
    let export = &chosen.export;
    let (offset, len, flags) = (request.offset, u64::from(request.len), request.flags);
    let fua = flags & flag::FUA != 0;
    let done = |done: Done| (Answer::Done, done);
    if len == 0 && request.command != command::FLUSH {
        let nothing = if request.command == command::READ { Answer::Read(Vec::new()) } else { Answer::Done };
        return Ok((nothing, Done::now(())));
    }
    Ok(match request.command {
        command::READ => {
            let read = export.read(offset, request.len)?;
            (Answer::Read(read.value), Done::behind((), read.barrier))
        }
        command::WRITE => done(export.write(offset, payload, fua)?),
        command::FLUSH => done(export.flush()?),
        command::TRIM => done(export.discard(offset, len, fua)?),
        command::WRITE_ZEROES => {
            done(export.zero(offset, len, flags & flag::NO_HOLE != 0, flags & flag::FAST_ZERO != 0, fua)?)
        }
        command::CACHE => {
            let end = offset + len.min(CACHE_BYTES_MAX);
            let mut at = offset;
            while at < end {
                let step = CACHE_STEP_BYTES.min(end - at);
                export.read(at, step as u32)?;
                at += step;
            }
            (Answer::Done, Done::now(()))
        }
        _ => {
            let limit = if flags & flag::REQ_ONE != 0 { 1 } else { EXTENTS_MAX };
            let extents = export.extents(offset, len, limit)?;
            (Answer::Extents(extents.value), Done::behind((), extents.barrier))
        }
    })
}
