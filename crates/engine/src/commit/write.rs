//! Writing a group: it is cut and ended, its writers are waited for, and it is appended, synced and told by the mark.
//!
//! Invariant: a record of a group is written only after the sync of the group before has returned.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use esker_device::Device;
use esker_store::{Error, Result};
use parking_lot::MutexGuard;

use super::state::{EpochEnd, Piece, Ready, State};
use super::{HURRY, Log, are_low, stopped};
use crate::format::{
    RECORD_FLAG_GROUP_END, RECORD_HEADER_BYTES, RecordHeader, ReplayFrom, SegmentHeader, Stream, round_up,
};
use crate::policy::CommitPolicy;
use crate::segments::Lsn;

/// One device write is at most so many bytes, so that readers of the device are not held up.
const WRITE_BYTES_MAX: usize = 8 << 20;

impl Log {
    /// Ends the open group, makes everything durable, and says where the log goes on and which epoch has ended there:
    /// every transaction is of that epoch or earlier exactly if it stands before that place. A log that has stopped
    /// taking records is written and not synced, unless its policy bounds the time: its end is durable after the next
    /// [`Log::commit`].
    ///
    /// # Errors
    /// [`Error::Stopped`] with the first cause.
    pub fn end_epoch(&self) -> Result<EpochEnd> {
        let committing = self.committing.lock();
        let mut ended = None;
        let last = {
            let mut state = self.state.0.lock();
            if state.stopping {
                // No group follows this one: nothing is written behind it that its sync would have to come before.
                self.end_group(&mut state);
            }
            state.stopping
        };
        let bounded = matches!(self.policy(), CommitPolicy::Periodic { .. });
        let done = self.append_and_sync(!last || bounded, |state| {
            let from = ReplayFrom {
                generation: state.generation,
                offset: state.segment * self.segments.segment_bytes + state.tail,
                seq: state.seq,
                group: state.group - 1,
            };
            ended = Some(EpochEnd { from, epoch: state.epoch, last });
            state.epoch += 1;
        });
        if let Err(error) = done {
            self.fail(error.clone());
            return Err(error);
        }
        drop(committing);
        Ok(ended.expect("the group was cut"))
    }

    /// Writes the record that ends the open group, if there is one. `reserve` keeps two blocks free for it.
    fn end_group(&self, state: &mut State) {
        if !state.group_open {
            return;
        }
        let start = state.tail;
        let device_offset = state.segment * self.segments.segment_bytes + start;
        let header = RecordHeader {
            len: RECORD_HEADER_BYTES as u32,
            seq: state.seq,
            group: state.group,
            generation: state.generation,
            op_count: 0,
            flags: RECORD_FLAG_GROUP_END,
        };
        // SAFETY: beyond `tail`, which is guarded by the lock that the state comes from: not given to any writer yet.
        let bytes = unsafe { state.buffer.range_mut(start as usize, RECORD_HEADER_BYTES) };
        header.encode(bytes, self.shape.seed, device_offset);
        state.tail += RECORD_HEADER_BYTES as u64;
        state.group += 1;
        state.group_open = false;
    }

    /// What of the open segment is not written yet, up to `end`, an offset in it.
    fn open_piece(&self, state: &State, end: u64, ends_group: bool) -> Piece {
        Piece {
            buffer: Arc::clone(&state.buffer),
            buffer_start: state.start,
            device_offset: state.segment * self.segments.segment_bytes + state.start,
            lsn: state.base_lsn + state.start,
            len: end - state.start,
            ends_group,
        }
    }

    /// Seals the open segment with its group and opens the next.
    pub(super) fn enter_segment(&self, state: &mut State, Ready { segment, buffer, filled }: Ready) {
        let block = self.shape.block_bytes;
        self.end_group(state);
        let end = round_up(state.tail, block);
        // SAFETY: nothing beyond `tail` has been given to a writer, and the lock that guards `tail` is held.
        unsafe { state.buffer.range_mut(state.tail as usize, (end - state.tail) as usize) }.fill(0);
        if end > state.start {
            let sealed = self.open_piece(state, end, true);
            state.sealed.push_back(sealed);
        }
        self.segments.set_end(state.segment, state.tail);
        let generation = state.generation_max + 1;
        let header = SegmentHeader {
            generation,
            uuid: self.shape.uuid,
            segment,
            previous_end: state.segment * self.segments.segment_bytes + state.tail,
            first_seq: state.seq + 1,
            group: state.group,
            previous_generation: state.generation,
            stream: Stream::Log,
        };
        // SAFETY: the buffer is fresh: no other thread reads or writes it yet.
        let block_bytes = unsafe { buffer.range_mut(0, block as usize) };
        block_bytes.fill(0);
        header.encode(block_bytes);
        if self.shape.threaded {
            let now = Instant::now();
            state.hurried = state.entered.replace(now).is_some_and(|before| now - before < HURRY);
        }
        state.base_lsn += self.segments.segment_bytes;
        self.short_headers.store(are_low(state.seq, state.group), Ordering::Relaxed);
        state.segment = segment;
        state.generation = generation;
        state.generation_max = generation;
        state.buffer = buffer;
        state.start = 0;
        (state.tail, state.opened_at) = (block, 0);
        state.filled = filled;
        self.segments.place(segment, generation, state.base_lsn, state.seq, false);
        self.segments.publish_buffer(segment, Arc::clone(&state.buffer));
    }

    /// Appends what is pending and, with `sync`, makes it durable. Returns once the mark has moved.
    pub fn commit(&self, sync: bool) {
        self.commit_locked(sync, self.committing.lock());
    }

    /// The same, unless another thread has done it meanwhile.
    pub(super) fn commit_if_left(&self, sync: bool) {
        let committing = self.committing.lock();
        if self.is_waited_for() || self.has_rest() {
            self.commit_locked(sync, committing);
        }
    }

    fn commit_locked(&self, sync: bool, committing: MutexGuard<'_, ()>) {
        let prepared = if self.shape.threaded { Ok(()) } else { self.prepare_segment() };
        if let Err(error) = prepared.and_then(|()| self.append_and_sync(sync, |_| ())) {
            self.fail(error);
        }
        drop(committing);
    }

    pub(super) fn fail(&self, error: Error) {
        tracing::error!(%error, "the log stopped");
        self.mark().fail(error);
        self.take_no_more();
        self.room.notify_all();
        self.wanted_segment.notify_all();
    }

    /// Writes and syncs what there is. After a panic it is not known what of the group is written.
    ///
    /// # Errors
    /// [`Error::Stopped`]: the caller stops the log.
    pub(super) fn append_and_sync(&self, sync: bool, at_cut: impl FnOnce(&mut State)) -> Result<()> {
        let append = || self.append_and_sync_once(sync, at_cut);
        catch_unwind(AssertUnwindSafe(append)).unwrap_or_else(|panic| Err(Error::panicked("writing the log", &*panic)))
    }

    fn append_and_sync_once(&self, sync: bool, at_cut: impl FnOnce(&mut State)) -> Result<()> {
        if let Some(failure) = self.mark().failure() {
            return Err(failure);
        }
        let began = Instant::now();
        let (pieces, end) = self.cut(sync, at_cut);
        let arrivals = self.mark().arrivals();
        self.arrived.store(arrivals, Ordering::Relaxed);
        // Writers of this group are between reserving and finishing their copy.
        if !self.segments.filling.wait_below(end) {
            // One of them has panicked: its record must not come to the device.
            return Err(self.mark().failure().unwrap_or(Error::Closed));
        }
        if let Some(failure) = self.mark().failure() {
            return Err(failure);
        }
        for piece in &pieces {
            self.write_piece(piece)?;
            if piece.ends_group {
                self.sync_to(piece.end())?;
            }
        }
        if sync {
            self.device.sync().map_err(|error| stopped("syncing the log", &error))?;
            self.counters.syncs.fetch_add(1, Ordering::Relaxed);
            let mut broken_off = false;
            if self.shape.threaded && self.policy() == CommitPolicy::Adaptive {
                let now = Instant::now();
                let (mut gather, back) = (self.gather.lock(), self.mark().arrivals());
                // Only the commit thread looks at the time meanwhile: put off by another thread, a group would wait
                // until it wakes.
                if self.is_commit_thread() {
                    let to = gather.after_sync(arrivals, back, now - began, now);
                    self.gather_to.store(to, Ordering::Relaxed);
                } else {
                    gather.passed(arrivals, back, now);
                    broken_off = self.gather_to.swap(0, Ordering::SeqCst) > 0;
                }
            }
            self.advance(end);
            // A writer that came meanwhile left the thread asleep, for the wait that was broken off.
            if broken_off && self.is_waited_for() {
                self.nudge();
            }
        }
        // What has a piece has its buffer.
        drop(pieces);
        self.segments.log_is_written(end);
        Ok(())
    }

    fn sync_to(&self, end: Lsn) -> Result<()> {
        self.device.sync().map_err(|error| stopped("syncing the log", &error))?;
        self.counters.syncs.fetch_add(1, Ordering::Relaxed);
        self.advance(end);
        Ok(())
    }

    fn advance(&self, end: Lsn) {
        let began = Instant::now();
        self.mark().advance(end);
        self.counters.wake.add(began.elapsed());
    }

    /// Ends the open group (with `sync`) or only pads it to a block, and takes what has to be written.
    fn cut(&self, sync: bool, at_cut: impl FnOnce(&mut State)) -> (Vec<Piece>, Lsn) {
        let block = self.shape.block_bytes;
        let mut state = self.state.0.lock();
        if sync {
            self.end_group(&mut state);
        }
        let end = round_up(state.tail, block);
        // SAFETY: nothing beyond `tail` has been given to a writer, and the lock that guards `tail` is held.
        unsafe { state.buffer.range_mut(state.tail as usize, (end - state.tail) as usize) }.fill(0);
        state.tail = end;
        let mut pieces: Vec<Piece> = state.sealed.drain(..).collect();
        if end > state.start {
            pieces.push(self.open_piece(&state, end, false));
        }
        state.start = end;
        if sync && let Some(oldest) = state.oldest_unsynced.take() {
            self.counters.queue.add(oldest.elapsed());
        }
        self.unwritten.0.store(0, Ordering::Relaxed);
        self.room.notify_all();
        if sync {
            self.mark().cut(state.base_lsn + end);
        }
        at_cut(&mut state);
        (pieces, state.base_lsn + end)
    }

    fn write_piece(&self, piece: &Piece) -> Result<()> {
        self.fill.wait_for(piece.end(), &self.state.0);
        // SAFETY: the group was cut and all its writers have finished.
        let bytes = unsafe { piece.buffer.range(piece.buffer_start as usize, piece.len as usize) };
        let mut offset = piece.device_offset;
        for part in bytes.chunks(WRITE_BYTES_MAX) {
            self.device.write(offset, part).map_err(|error| stopped("appending to the log", &error))?;
            offset += part.len() as u64;
            self.counters.writes.fetch_add(1, Ordering::Relaxed);
            self.counters.written_bytes.fetch_add(part.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}
