//! Letters that have come on a stream and that the node has not heard: few batches, and few bytes.
//!
//! [`Sender::send`] waits for room → queue → [`Receiver::next`] → [`Unheard`] is dropped: its room is free
//!
//! Invariant: the batches that wait, and the one that is heard, take no more than the bound of bytes, or are one.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// A batch, with its room.
pub(crate) struct Unheard<T> {
    pub(crate) letters: T,
    _room: OwnedSemaphorePermit,
}

/// Where batches are put.
pub(crate) struct Sender<T> {
    queue: mpsc::Sender<Unheard<T>>,
    room: Arc<Semaphore>,
    bytes_max: u32,
}

/// Where they are heard.
pub(crate) struct Receiver<T>(mpsc::Receiver<Unheard<T>>);

/// At most so many batches, and so many bytes, wait.
pub(crate) fn channel<T>(batches_max: usize, bytes_max: u32) -> (Sender<T>, Receiver<T>) {
    let (queue, receiver) = mpsc::channel(batches_max);
    (Sender { queue, room: Arc::new(Semaphore::new(bytes_max as usize)), bytes_max }, Receiver(receiver))
}

impl<T> Sender<T> {
    /// Puts a batch of so many bytes, once there is room; whether it may still be heard.
    pub(crate) async fn send(&self, letters: T, bytes: usize) -> bool {
        // One that is larger than all the room waits until it is alone.
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.bytes_max);
        let Ok(room) = Arc::clone(&self.room).acquire_many_owned(bytes).await else { return false };
        self.queue.send(Unheard { letters, _room: room }).await.is_ok()
    }
}

impl<T> Receiver<T> {
    /// The next batch; `None`: the stream has ended. To be called by a thread that may wait.
    pub(crate) fn next(&mut self) -> Option<Unheard<T>> {
        self.0.blocking_recv()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_batch_waits_for_room_until_those_before_it_are_heard() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (sender, mut receiver) = channel(64, 100);
        let send = |name, bytes| {
            let sent = async { tokio::time::timeout(Duration::from_millis(50), sender.send(name, bytes)).await };
            runtime.block_on(sent).ok()
        };
        assert_eq!((send("a", 60), send("b", 40)), (Some(true), Some(true)));
        assert_eq!(send("c", 1), None, "there is no room");
        let a = receiver.next().unwrap();
        assert_eq!((a.letters, send("c", 1)), ("a", None), "it is heard still");
        drop(a);
        assert_eq!((send("c", 60), send("d", 1_000)), (Some(true), None));
        assert_eq!((receiver.next().unwrap().letters, receiver.next().unwrap().letters), ("b", "c"));
        assert_eq!((send("d", 1_000), send("e", 0)), (Some(true), Some(true)));
        assert_eq!(receiver.next().unwrap().letters, "d");
        drop(receiver);
        assert_eq!(send("f", 1), Some(false), "no thread hears it");
    }
}
