//! Room for callers that must not wait for it: a thread waits in their place.
//!
//! submit refused as busy → [`Rooms::room`] → the thread waits for the cleaner, the log or memory → completion → submitted again
//!
//! Invariants:
//! 1. Who waits is answered, also when the store stops or the thread ends.
//! 2. The thread holds nothing while it waits, and no call of the store waits for it.

use std::sync::Arc;
use std::time::Instant;

use esker_store::{Completion, Promise, promised};
use parking_lot::{Condvar, Mutex};

use crate::commit::Log;
use crate::keeper::Keeper;

#[derive(Default)]
struct Waiting {
    promises: Vec<Promise<()>>,
    /// Something was refused because the store is full: the cleaner is to look once more.
    looks: bool,
    /// Nobody waits for them any more.
    over: bool,
}

/// See the module.
pub struct Rooms {
    log: Arc<Log>,
    keeper: Arc<Keeper>,
    waiting: Mutex<Waiting>,
    asked: Condvar,
}

/// Answers those who wait when the thread ends, however it does.
struct Ends<'a>(&'a Rooms);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.stop();
        answer(std::mem::take(&mut self.0.waiting.lock().promises));
    }
}

/// What is wrong, if anything, the next submit says.
fn answer(promises: Vec<Promise<()>>) {
    promises.into_iter().for_each(|promise| promise.fulfil((Ok(()), None)));
}

impl Rooms {
    /// For this log and its keeper.
    pub fn new(log: &Arc<Log>, keeper: &Arc<Keeper>) -> Arc<Self> {
        let (waiting, asked) = (Mutex::default(), Condvar::new());
        Arc::new(Self { log: Arc::clone(log), keeper: Arc::clone(keeper), waiting, asked })
    }

    /// The store is full to somebody who does not wait: the cleaner looks once more before there is room.
    pub fn look_again(&self) {
        self.waiting.lock().looks = true;
    }

    /// Ready when there may be room.
    pub fn room(&self) -> Completion<()> {
        let mut waiting = self.waiting.lock();
        let is_there = !waiting.looks && self.log.has_room() && !self.keeper.is_crowded();
        if is_there || waiting.over {
            return Completion::ready(Ok(()));
        }
        let (promise, completion) = promised("the thread that waits for room");
        waiting.promises.push(promise);
        drop(waiting);
        self.asked.notify_one();
        completion
    }

    /// Ends the thread, once the log has stopped or has room.
    pub fn stop(&self) {
        self.waiting.lock().over = true;
        self.asked.notify_one();
    }

    /// The thread's life.
    pub fn run(&self) {
        let _ends = Ends(self);
        loop {
            let looks = {
                let mut waiting = self.waiting.lock();
                while waiting.promises.is_empty() && !waiting.over {
                    self.asked.wait(&mut waiting);
                }
                if waiting.over {
                    return;
                }
                std::mem::take(&mut waiting.looks)
            };
            if looks {
                self.log.look_again(Instant::now());
            }
            self.keeper.wait_for_index_room();
            // A log that has stopped has no room, and nobody is to wait for it.
            let _ = self.log.wait_for_room();
            // Who came meanwhile found no room either, and looks as the others do.
            answer(std::mem::take(&mut self.waiting.lock().promises));
        }
    }
}
