//! Memory of all connections together: what long messages, values that are read, and long answers may hold.
//!
//! bytes that come → [`MessageMemory::take`];   a call that reads → [`ThriftMemory::to_read`] → its answer →
//! [`ThriftMemory::to_answer`]
//!
//! Invariants:
//! 1. Each of the three has memory of its own: what waits for one of them holds up neither of the others.
//! 2. No messages that have come in part wait for each other: one of them may always be read to its end.
//! 3. A call that waits for memory to read holds none of that; an answer finds its own at once or is refused.

use std::sync::Arc;
use std::time::Duration;

use esker_kv::VALUE_BYTES_MAX;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::encode::Exception;
use super::unreadable::MESSAGE_BYTES_MAX;

/// Most bytes of keys and values in one answer.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Memory is counted in these.
pub(super) const UNIT_BYTES: usize = 1 << 10;
/// What messages have at least beside the one that may always go on.
const POOL_BYTES_MIN: usize = 4 << 20;
/// What answers have at least: one, with what stands beside its keys and values.
const ANSWERS_BYTES_MIN: usize = ANSWER_BYTES_MAX + (1 << 20);
/// Most bytes of values that a call about several keys reads: those of an answer, and the one that is too much.
pub(super) const READ_BYTES_MAX: usize = ANSWER_BYTES_MAX + VALUE_BYTES_MAX;
/// Least memory of a server.
pub(super) const MEMORY_BYTES_MIN: usize = MESSAGE_BYTES_MAX + POOL_BYTES_MIN + ANSWERS_BYTES_MIN + READ_BYTES_MAX;

/// The memory of a server: a quarter for messages, a quarter for answers, the rest for values that are read.
pub(super) struct ThriftMemory {
    bytes_max: usize,
    units: usize,
    messages: Arc<Semaphore>,
    /// That of a message of any length, for one that finds no other.
    whole_message: Arc<Semaphore>,
    reading: Arc<Semaphore>,
    answers: Arc<Semaphore>,
}

/// Memory that is held.
pub(super) type HeldMemory = Vec<OwnedSemaphorePermit>;

/// Memory that a message holds.
#[derive(Default)]
pub(super) struct MessageMemory {
    bytes: usize,
    permits: HeldMemory,
    is_whole: bool,
}

pub(super) fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX)
}

impl ThriftMemory {
    /// So many bytes, at least [`MEMORY_BYTES_MIN`].
    pub(super) fn of(bytes_max: usize) -> Self {
        let messages = (bytes_max / 4).max(MESSAGE_BYTES_MAX + POOL_BYTES_MIN) - MESSAGE_BYTES_MAX;
        let answers = (bytes_max / 4).max(ANSWERS_BYTES_MIN);
        let reading = bytes_max.saturating_sub(messages + MESSAGE_BYTES_MAX + answers).max(READ_BYTES_MAX);
        let parts = [messages, reading, answers].map(|bytes| bytes.div_ceil(UNIT_BYTES).min(Semaphore::MAX_PERMITS));
        let [messages, reading, answers] = parts.map(|units| Arc::new(Semaphore::new(units)));
        let whole_message = Arc::new(Semaphore::new(1));
        Self { bytes_max, units: parts.iter().sum(), messages, whole_message, reading, answers }
    }

    /// Bytes that are held now.
    pub(super) fn held_bytes(&self) -> usize {
        let free: usize =
            [&self.messages, &self.reading, &self.answers].iter().map(|part| part.available_permits()).sum();
        let whole = if self.whole_message.available_permits() == 0 { MESSAGE_BYTES_MAX } else { 0 };
        ((self.units.saturating_sub(free)) * UNIT_BYTES + whole).min(self.bytes_max)
    }

    /// Memory for so many bytes of values, once it is there.
    ///
    /// # Errors
    /// It is not in time.
    pub(super) async fn to_read(&self, bytes: usize, patience: Duration) -> Result<HeldMemory, Exception> {
        if bytes == 0 {
            return Ok(HeldMemory::new());
        }
        let acquired = Arc::clone(&self.reading).acquire_many_owned(units(bytes));
        match timeout(patience, acquired).await {
            Ok(Ok(permit)) => Ok(vec![permit]),
            _ => Err(Exception::internal("other clients hold the memory for what is read (thrift_memory): try again")),
        }
    }

    /// Memory for an answer. It is there now or not at all: what was read would be held meanwhile.
    ///
    /// # Errors
    /// It is not there.
    pub(super) fn to_answer(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Exception> {
        Arc::clone(&self.answers).try_acquire_many_owned(units(bytes)).map_err(|_| {
            let why = format!("other clients hold the memory for an answer of {bytes} bytes (thrift_memory)");
            Exception::internal(format!("{why}: try again later"))
        })
    }
}

impl MessageMemory {
    /// Whether it holds any.
    pub(super) fn is_held(&self) -> bool {
        !self.permits.is_empty()
    }

    /// Whether so many bytes have come, or may.
    pub(super) fn has(&self, bytes: usize) -> bool {
        self.is_whole || bytes <= self.bytes
    }

    /// Waits until so many bytes may come: from what all messages share or, where there is no more, as the one message
    /// that needs nothing else. So those that wait with a part of theirs are never all that there are.
    pub(super) async fn take(&mut self, bytes: usize, memory: &ThriftMemory) {
        if self.has(bytes) {
            return;
        }
        let units = units(bytes - self.bytes);
        tokio::select! {
            biased;
            Ok(permit) = Arc::clone(&memory.messages).acquire_many_owned(units) => {
                self.bytes += units as usize * UNIT_BYTES;
                self.permits.push(permit);
            }
            Ok(permit) = Arc::clone(&memory.whole_message).acquire_owned() => {
                self.is_whole = true;
                self.permits.push(permit);
            }
            // They are never closed.
            else => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_memory_has_room_for_the_longest_of_each() {
        let memory = ThriftMemory::of(MEMORY_BYTES_MIN);
        assert!(memory.answers.available_permits() * UNIT_BYTES > ANSWER_BYTES_MAX);
        assert!(memory.reading.available_permits() * UNIT_BYTES >= READ_BYTES_MAX);
        assert!(memory.messages.available_permits() * UNIT_BYTES >= POOL_BYTES_MIN);
        assert_eq!(memory.held_bytes(), 0);
    }

    #[test]
    fn messages_that_have_come_in_part_never_all_wait() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let memory = ThriftMemory::of(MEMORY_BYTES_MIN);
            let (mut first, mut second) = (MessageMemory::default(), MessageMemory::default());
            first.take(POOL_BYTES_MIN / 2, &memory).await;
            second.take(POOL_BYTES_MIN / 2, &memory).await;
            // Both need more, and there is none: the one goes on to its end, the other then.
            first.take(POOL_BYTES_MIN, &memory).await;
            first.take(MESSAGE_BYTES_MAX, &memory).await;
            let waits = timeout(Duration::from_millis(50), second.take(POOL_BYTES_MIN * 3, &memory)).await;
            assert!(waits.is_err());
            drop(first);
            second.take(MESSAGE_BYTES_MAX, &memory).await;
            drop(second);
            assert_eq!(memory.held_bytes(), 0);
        });
    }
}
