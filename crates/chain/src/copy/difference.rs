//! What has to be done for a span of the target to hold what was fetched for it.
//!
//! fetched content, what the target holds in the span → operations, only where they differ
//!
//! Invariant: nothing outside the span is changed.

use std::iter::Peekable;

use bytes::Bytes;
use esker_store::{Change, DataRun, ObjectId, ObjectStore, Result};

use super::content::{Content, read_keyed};
use super::keyed::Keyed;
use super::page::{Page, Span};

/// How much more than the source a target may hold in a span of keys and still be compared with it key by key.
pub(super) const SURPLUS_BYTES: u64 = 1 << 20;

/// Tells `to` what changes `page` of the target into `content`, which fits it. `fresh`: the target holds nothing there.
pub(super) fn tell(
    target: &dyn ObjectStore,
    page: &Page,
    content: Content,
    fresh: bool,
    to: &mut dyn FnMut(Change) -> Result<()>,
) -> Result<()> {
    match (content, &page.span) {
        (Content::Xattrs(wanted), Span::Object { object, .. }) => {
            let own = if fresh { Vec::new() } else { target.xattrs(object).wait()? };
            merge(own, wanted, |name, value| match value {
                Some(value) => to(Change::XattrSet { name, value }),
                None => to(Change::XattrRemove { name }),
            })
        }
        (Content::Bytes { runs, mut data }, Span::Bytes { object, range }) => {
            let own = if fresh { Vec::new() } else { target.extents(object, range.clone()).wait()? };
            let mut own = own.into_iter().peekable();
            let mut at = range.start;
            for run in runs {
                clear(&mut own, at..run.offset, to)?;
                at = run.offset + run.len;
                to(Change::Write { offset: run.offset, data: data.split_to(run.len as usize) })?;
            }
            clear(&mut own, at..range.end, to)
        }
        (Content::Omap(wanted), Span::Omap { object, after, to: last }) => {
            keyed(target, (object, after.as_ref(), last, page.bytes), wanted, fresh, to)
        }
        (Content::Slots(wanted), Span::Slots { object, after, to: last }) => {
            keyed(target, (object, after.as_ref(), last, page.bytes), wanted, fresh, to)
        }
        // Contents that do not fit are refused before.
        _ => Ok(()),
    }
}

/// Makes a hole of this range if any of the target's own runs reaches into it.
fn clear(
    own: &mut Peekable<impl Iterator<Item = DataRun>>,
    hole: std::ops::Range<u64>,
    to: &mut dyn FnMut(Change) -> Result<()>,
) -> Result<()> {
    while own.next_if(|run| run.offset + run.len <= hole.start).is_some() {}
    if !hole.is_empty() && own.peek().is_some_and(|run| run.offset < hole.end) {
        to(Change::Zero { offset: hole.start, len: hole.end - hole.start })?;
    }
    Ok(())
}

/// Both in order: each key that has to get a value, or to lose it.
fn merge<K: Ord>(
    own: Vec<(K, Bytes)>,
    wanted: Vec<(K, Bytes)>,
    mut to: impl FnMut(K, Option<Bytes>) -> Result<()>,
) -> Result<()> {
    let mut own = own.into_iter().peekable();
    for (key, value) in wanted {
        while let Some((gone, _)) = own.next_if(|(own, _)| *own < key) {
            to(gone, None)?;
        }
        if own.next_if(|(own, _)| *own == key).is_none_or(|(_, own)| own != value) {
            to(key, Some(value))?;
        }
    }
    own.try_for_each(|(gone, _)| to(gone, None))
}

fn keyed<K: Keyed>(
    target: &dyn ObjectStore,
    (object, after, last, bytes): (&ObjectId, Option<&K>, &K, u64),
    wanted: Vec<(K, Bytes)>,
    fresh: bool,
    to: &mut dyn FnMut(Change) -> Result<()>,
) -> Result<()> {
    let own = if fresh { Some(Vec::new()) } else { read_keyed(target, object, after, last, bytes + SURPLUS_BYTES)? };
    if let Some(own) = own {
        return merge(own, wanted, |key, value| match value {
            Some(value) => to(key.set(value)),
            None => to(key.remove()),
        });
    }
    // Too much to be looked at: all of it goes. The last key is written anew in any case.
    if let Some((first, _)) = K::scan(target, object, after, Some(last), 1, true)?.into_iter().next() {
        to(K::remove_range(first, Some(last.clone())))?;
    }
    wanted.into_iter().try_for_each(|(key, value)| to(key.set(value)))
}
