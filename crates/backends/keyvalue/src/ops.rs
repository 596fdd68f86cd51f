//! What guards ask of a draft and what operations do to it.
//!
//! Invariants:
//! 1. An operation sees those before it, in every space.
//! 2. An error leaves the draft half-done: its caller drops it.

use bytes::Bytes;
use esker_store::{Change, Collection, Condition, Error, ObjectId, Op, Result, Stat};

use crate::draft::Draft;
use crate::keys::{self, Tag};
use crate::records::Head;
use crate::strips::Room;

/// Objects with at most so many strips lose them with the transaction that removes them; others leave them to the
/// sweeper.
const STRIPS_AT_ONCE: u64 = 16;
/// From so many keys on, an engine that can is told the range as well.
const RANGE_KEYS_MIN: usize = 64;
/// Longest value that is copied where it is kept.
const COPIED_BYTES_MAX: usize = 128;

impl Draft<'_> {
    /// Whether a guard's condition holds.
    pub fn holds(&self, object: &ObjectId, condition: &Condition) -> Result<bool> {
        // Only its size, or whether it is there, is a matter of the whole head.
        let Some(head) = self.head(object, !matches!(condition, Condition::SizeEquals { .. }))? else {
            return Ok(match condition {
                Condition::Absent
                | Condition::XattrAbsent { .. }
                | Condition::OmapAbsent { .. }
                | Condition::SlotAbsent { .. } => true,
                Condition::XattrCompare { absent_holds, .. } => *absent_holds,
                _ => false,
            });
        };
        let xattr = |name: &Bytes| self.get(&keys::entry(Tag::Xattrs, head.xattrs, name));
        let omap = |key: &Bytes| self.get(&keys::entry(Tag::Omap, head.omap, key));
        let slot = |index: &u64| self.get(&keys::numbered(Tag::Slots, head.slots, *index));
        Ok(match condition {
            Condition::Exists => true,
            Condition::Absent => false,
            Condition::SizeEquals { size } => head.stat.size == *size,
            Condition::XattrEquals { name, value } => xattr(name)?.as_ref() == Some(value),
            Condition::XattrAbsent { name } => xattr(name)?.is_none(),
            Condition::XattrCompare { name, compare, value, absent_holds } => match xattr(name)? {
                None => *absent_holds,
                Some(stored) => {
                    let stored = <[u8; 8]>::try_from(&stored[..]);
                    stored.is_ok_and(|stored| compare.holds(u64::from_le_bytes(stored), *value))
                }
            },
            Condition::OmapAbsent { key } => omap(key)?.is_none(),
            Condition::OmapPresent { key } => omap(key)?.is_some(),
            Condition::OmapEquals { key, value } => omap(key)?.as_ref() == Some(value),
            Condition::SlotAbsent { index } => slot(index)?.is_none(),
            Condition::SlotPresent { index } => slot(index)?.is_some(),
            Condition::SlotEquals { index, value } => slot(index)?.as_ref() == Some(value),
        })
    }

    /// Does what an operation says.
    pub fn apply(&mut self, op: Op, room: &mut Room) -> Result<()> {
        match op {
            Op::CreateCollection(collection) => {
                if !self.has_collection(&collection)? {
                    self.put(keys::collection(&collection), Some(Bytes::new()));
                }
                Ok(())
            }
            Op::RemoveCollection(collection) => self.remove_collection(&collection),
            Op::Object(object, change) => self.change(&object, change, room),
        }
    }

    fn remove_collection(&mut self, collection: &Collection) -> Result<()> {
        if !self.has_collection(collection)? {
            return Ok(());
        }
        self.flush_heads();
        let (start, mut empty) = (keys::names(collection), true);
        self.scan(&start, &keys::after_all(&start), false, &mut |_, _| {
            empty = false;
            Ok(false)
        })?;
        if !empty {
            return Err(Error::NotEmpty { collection: collection.to_string() });
        }
        self.put(keys::collection(collection), None);
        Ok(())
    }

    /// The object's head; a missing object is made.
    fn made(&mut self, object: &ObjectId) -> Result<Head> {
        if let Some(head) = self.head(object, false)? {
            return Ok(head);
        }
        if !self.has_collection(object.collection())? {
            return Err(Error::NoCollection { collection: object.collection().to_string() });
        }
        let head = Head::new(self.state.number());
        self.set_head(object, Some(head))?;
        Ok(head)
    }

    fn source(&self, object: &ObjectId) -> Result<Head> {
        self.head(object, false)?.ok_or_else(|| Error::NoObject { object: object.to_string() })
    }

    fn change(&mut self, object: &ObjectId, change: Change, room: &mut Room) -> Result<()> {
        match change {
            Change::Touch => self.made(object).map(drop),
            Change::Write { offset, data } => {
                let mut head = self.made(object)?;
                if data.is_empty() {
                    return Ok(());
                }
                let end = offset + data.len() as u64;
                self.write_bytes(head.bytes, head.stat.size, offset, data)?;
                head.stat.size = head.stat.size.max(end);
                self.set_head(object, Some(head))
            }
            Change::Zero { offset, len } => {
                let mut head = self.made(object)?;
                if len == 0 {
                    return Ok(());
                }
                self.punch(head.bytes, head.stat.size, offset, offset + len)?;
                head.stat.size = head.stat.size.max(offset + len);
                self.set_head(object, Some(head))
            }
            Change::Truncate { size } => self.truncate(object, size),
            Change::Remove => {
                if let Some(head) = self.head(object, false)? {
                    self.kill(&head)?;
                    self.set_head(object, None)?;
                }
                Ok(())
            }
            Change::XattrSet { name, value } => {
                self.set(object, Tag::Xattrs, &name, value, |head| (head.xattrs, &mut head.stat.xattrs))
            }
            Change::OmapSet { key, value } => {
                self.set(object, Tag::Omap, &key, value, |head| (head.omap, &mut head.stat.omap_keys))
            }
            Change::SlotSet { index, value } => {
                let at = index.to_be_bytes();
                self.set(object, Tag::Slots, &at, value, |head| (head.slots, &mut head.stat.slots))
            }
            Change::CloneTo { to } => self.clone_to(object, &to, room),
            Change::CloneRange { to, from_offset, len, to_offset } => {
                self.clone_range(object, &to, from_offset, len, to_offset, room)
            }
            Change::Rename { to } => {
                let head = self.source(object)?;
                if self.head(&to, false)?.is_some() {
                    return Err(Error::Invalid { what: "rename", why: format!("object {to} exists") });
                }
                if !self.has_collection(to.collection())? {
                    return Err(Error::NoCollection { collection: to.collection().to_string() });
                }
                self.set_head(object, None)?;
                self.set_head(&to, Some(head))
            }
            taking => self.take_away(object, taking),
        }
    }

    /// Changes that do nothing to a missing object.
    fn take_away(&mut self, object: &ObjectId, change: Change) -> Result<()> {
        let Some(mut head) = self.head(object, false)? else { return Ok(()) };
        match change {
            Change::XattrRemove { name } => {
                self.unset(keys::entry(Tag::Xattrs, head.xattrs, &name), &mut head.stat.xattrs)?;
            }
            Change::OmapRemove { key } => {
                self.unset(keys::entry(Tag::Omap, head.omap, &key), &mut head.stat.omap_keys)?;
            }
            Change::SlotRemove { index } => {
                self.unset(keys::numbered(Tag::Slots, head.slots, index), &mut head.stat.slots)?;
            }
            Change::OmapRemoveRange { start, end } => {
                let stop = match end {
                    Some(end) => keys::entry(Tag::Omap, head.omap, &end),
                    None => keys::space_end(Tag::Omap, head.omap),
                };
                let start = keys::entry(Tag::Omap, head.omap, &start);
                self.unset_range(start, stop, &mut head.stat.omap_keys)?;
            }
            Change::SlotRemoveRange { start, end } => {
                let stop = match end {
                    u64::MAX => keys::space_end(Tag::Slots, head.slots),
                    end => keys::numbered(Tag::Slots, head.slots, end),
                };
                let start = keys::numbered(Tag::Slots, head.slots, start);
                self.unset_range(start, stop, &mut head.stat.slots)?;
            }
            Change::OmapClear => {
                if head.stat.omap_keys > 0 {
                    self.bury(Tag::Omap, head.omap);
                    head.omap = self.state.number();
                    head.stat.omap_keys = 0;
                }
            }
            // The others make their object, or do without one; `change` has done them.
            _ => return Ok(()),
        }
        self.set_head(object, Some(head))
    }

    fn set(
        &mut self,
        object: &ObjectId,
        tag: Tag,
        rest: &[u8],
        value: Bytes,
        space: impl FnOnce(&mut Head) -> (u64, &mut u64),
    ) -> Result<()> {
        let mut head = self.made(object)?;
        let (number, count) = space(&mut head);
        let key = keys::entry(tag, number, rest);
        // A short one may be a piece of memory that is many times as long, and is kept until it is durable.
        let value = if value.len() <= COPIED_BYTES_MAX { Bytes::copy_from_slice(&value) } else { value };
        if self.get(&key)?.is_none() {
            *count += 1;
            self.set_head(object, Some(head))?;
        }
        self.put(key, Some(value));
        Ok(())
    }

    fn unset(&mut self, key: Bytes, count: &mut u64) -> Result<()> {
        if self.get(&key)?.is_some() {
            *count = count.saturating_sub(1);
            self.put(key, None);
        }
        Ok(())
    }

    fn unset_range(&mut self, start: Bytes, end: Bytes, count: &mut u64) -> Result<()> {
        let found = self.keys(&start, &end)?;
        *count = count.saturating_sub(found.len() as u64);
        if found.len() >= RANGE_KEYS_MIN && self.state.store.removes_ranges() {
            self.outcome.ranges.push((start, end));
        }
        for key in found {
            self.put(key, None);
        }
        Ok(())
    }

    fn truncate(&mut self, object: &ObjectId, size: u64) -> Result<()> {
        if size == 0 && self.head(object, false)?.is_none() {
            return Ok(());
        }
        let mut head = self.made(object)?;
        if size == 0 {
            self.kill_bytes(&head)?;
            head.bytes = self.state.number();
        } else {
            self.punch(head.bytes, head.stat.size, size, u64::MAX)?;
        }
        head.stat.size = size;
        self.set_head(object, Some(head))
    }

    /// Removes the bytes under their number, now or later.
    fn kill_bytes(&mut self, head: &Head) -> Result<()> {
        let size = head.stat.size;
        if size == 0 {
            return Ok(());
        }
        let last = (size - 1) / self.state.strip_bytes;
        if last < STRIPS_AT_ONCE && self.state.files.is_none() {
            for index in 0..=last {
                self.put(keys::numbered(Tag::Strips, head.bytes, index), None);
            }
        } else {
            self.bury(Tag::Strips, head.bytes);
            if self.state.files.is_some() {
                self.bury(Tag::Extents, head.bytes);
            }
        }
        Ok(())
    }

    fn kill(&mut self, head: &Head) -> Result<()> {
        self.kill_bytes(head)?;
        let Stat { omap_keys, slots, xattrs, .. } = head.stat;
        for (tag, number, count) in
            [(Tag::Xattrs, head.xattrs, xattrs), (Tag::Omap, head.omap, omap_keys), (Tag::Slots, head.slots, slots)]
        {
            if count > 0 {
                self.bury(tag, number);
            }
        }
        Ok(())
    }

    fn clone_to(&mut self, from: &ObjectId, to: &ObjectId, room: &mut Room) -> Result<()> {
        let source = self.source(from)?;
        // An object is its own copy already.
        if from == to {
            return Ok(());
        }
        let old = self.made(to)?;
        self.kill(&old)?;
        let copy = Head { stat: source.stat, ..Head::new(self.state.number()) };
        for (tag, source, copy) in [
            (Tag::Xattrs, source.xattrs, copy.xattrs),
            (Tag::Omap, source.omap, copy.omap),
            (Tag::Slots, source.slots, copy.slots),
        ] {
            let mut entries = Vec::new();
            let (start, end) = (keys::entry(tag, source, &[]), keys::space_end(tag, source));
            self.scan(&start, &end, false, &mut |key, value| {
                room.take((key.len() + value.len()) as u64)?;
                entries.push((keys::entry(tag, copy, keys::rest(key)), Bytes::copy_from_slice(value)));
                Ok(true)
            })?;
            for (key, value) in entries {
                self.put(key, Some(value));
            }
        }
        let mut size = 0;
        for (offset, data) in self.pieces(source.bytes, 0, source.stat.size, room)? {
            let end = offset + data.len() as u64;
            self.write_bytes(copy.bytes, size, offset, data)?;
            size = end;
        }
        self.set_head(to, Some(copy))
    }

    fn clone_range(
        &mut self,
        from: &ObjectId,
        to: &ObjectId,
        from_offset: u64,
        len: u64,
        to_offset: u64,
        room: &mut Room,
    ) -> Result<()> {
        let source = self.source(from)?;
        let mut target = self.made(to)?;
        if len == 0 {
            return Ok(());
        }
        let end = (from_offset + len).min(source.stat.size);
        let pieces = self.pieces(source.bytes, from_offset, end, room)?;
        self.punch(target.bytes, target.stat.size, to_offset, to_offset + len)?;
        for (offset, data) in pieces {
            let at = to_offset + (offset - from_offset);
            let written = at + data.len() as u64;
            self.write_bytes(target.bytes, target.stat.size, at, data)?;
            target.stat.size = target.stat.size.max(written);
        }
        target.stat.size = target.stat.size.max(to_offset + len);
        self.set_head(to, Some(target))
    }
}
