//! What all lines of a run share: the server behind them, requests that are late, and what the server has gone through.
//!
//! Invariant: a request that is late was answered as unknown.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use esker_store::{CommitSeq, Completion, Error, ObjectId, ObjectStore, Transaction};
use parking_lot::Mutex;

use crate::shared::baton::Baton;
use crate::shared::breakage::Sabotage;
use crate::shared::server::{End, Server};

/// An object and a key in it.
type Place = (ObjectId, Vec<u8>);

/// How rough the lines are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    /// The server is a process of its own: its answers may be shown when they come, and may not come. Else calls answer
    /// when they are applied, and are waited for above.
    pub far: bool,
    /// Of 10,000 calls, so many are left without an answer.
    pub fails: u64,
    /// At so many of 10,000 calls the server is restarted.
    pub restarts: u64,
    /// At so many of 10,000 calls something is maintained.
    pub maintains: u64,
}

/// A time, and what ended then.
pub(crate) type Ended = (u64, u64, End);

/// What lines share.
pub(crate) struct Net {
    pub baton: Arc<Baton>,
    pub server: Server,
    pub weather: Weather,
    pub breakage: Option<Sabotage>,
    /// Requests that are under way still, with the calls that come before them.
    late: Mutex<Vec<(u64, Transaction)>>,
    ends: Mutex<Vec<Ended>>,
    broken: Mutex<Option<String>>,
    clients: Mutex<u64>,
    /// Answers of before, for [`Sabotage::OldAnswers`].
    pub old: Mutex<HashMap<Place, Option<Bytes>>>,
}

impl Net {
    pub(crate) fn new(baton: Arc<Baton>, server: Server, weather: Weather, breakage: Option<Sabotage>) -> Arc<Self> {
        let (late, ends, broken) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (clients, old) = (Mutex::default(), Mutex::default());
        Arc::new(Self { baton, server, weather, breakage, late, ends, broken, clients, old })
    }

    pub(crate) fn broken_by(&self, breakage: Sabotage) -> bool {
        self.breakage == Some(breakage)
    }

    /// A number that no client had before.
    pub(crate) fn client(&self) -> u64 {
        let mut clients = self.clients.lock();
        *clients += 1;
        *clients
    }

    /// Sends a request on its way; it arrives after some more calls.
    pub(crate) fn delay(&self, txn: Transaction) {
        let calls = 1 + self.baton.draw(60);
        self.late.lock().push((calls, txn));
    }

    /// What happens beside a call: late requests arrive, the server restarts, and maintains its store.
    pub(crate) fn happen(&self) {
        self.revive();
        let mut late = self.late.lock();
        late.iter_mut().for_each(|(calls, _)| *calls -= 1);
        let due: Vec<Transaction> = late.extract_if(.., |(calls, _)| *calls == 0).map(|(_, txn)| txn).collect();
        drop(late);
        for txn in due {
            // Too late even for an answer.
            drop(self.server.engine().submit(txn).into_parts());
        }
        if self.baton.draw(10_000) < self.weather.restarts {
            let end = if self.baton.draw(3) == 0 { End::Stop } else { End::PowerLoss };
            self.restart(end);
        } else if self.baton.draw(10_000) < self.weather.maintains
            && let Err(broken) = self.server.maintain()
        {
            self.breaks(broken);
        }
        self.revive();
    }

    /// Begins another life of the server if the last has ended.
    pub(crate) fn revive(&self) {
        if self.server.is_down() {
            self.restart(End::PowerLoss);
        }
    }

    /// Ends this life of the server, and begins another.
    pub(crate) fn restart(&self, end: End) {
        let begin = self.baton.time();
        // Connections end with the server, and what is on its way with them.
        self.late.lock().clear();
        match self.server.restart(end) {
            Ok(end) => {
                self.ends.lock().push((begin, self.baton.time(), end));
                self.server.endanger();
            }
            Err(broken) => self.breaks(broken),
        }
    }

    fn breaks(&self, broken: String) {
        self.broken.lock().get_or_insert(broken);
        self.baton.stop();
    }

    /// Submits, and waits if the server is far.
    pub(crate) fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        self.answer(self.server.engine().submit(txn))
    }

    /// What a client is told: of a server that is far, what may be shown.
    pub(crate) fn answer<T>(&self, answer: Completion<T>) -> Completion<T> {
        if !self.weather.far {
            return answer;
        }
        // What failed at the server is a connection that broke, for its client.
        Completion::ready(match answer.wait() {
            Err(error) if error.is_unknown() => Err(Error::Unknown { cause: error.to_string() }),
            told => told,
        })
    }

    /// What the server has gone through, and when.
    ///
    /// # Errors
    /// It did not open any more, or its maintenance failed.
    pub(crate) fn told(&self) -> Result<Vec<Ended>, String> {
        match self.broken.lock().take() {
            Some(broken) => Err(format!("the server: {broken}")),
            None => Ok(std::mem::take(&mut *self.ends.lock())),
        }
    }
}
