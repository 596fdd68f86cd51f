//! What clients asked for and were told, and whether one order explains it.
//!
//! operations, reads → the order in which the chain has them → [`History::judge`]
//!
//! The order of writes is that of the replicas, so that nothing has to be searched for: each write and each read is
//! given the earliest moment that the order leaves it, and that has to lie between its call and its answer.
//!
//! Invariant: an operation that is not answered may have been carried out at any time after its call, or never.

use crate::setting::Micros;

/// A write, from its client's side.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Of which chain.
    pub chain: usize,
    /// Of which key.
    pub key: usize,
    /// The write that has to be the key's last, if that matters.
    pub expects: Option<u32>,
    /// When it was asked for first.
    pub called: Micros,
    /// When it was acknowledged, and which count of the key that was.
    pub told: Option<(Micros, u32)>,
}

/// A read, from its client's side.
#[derive(Clone, Copy, Debug)]
pub struct Looked {
    /// Of which chain.
    pub chain: usize,
    /// Of which key.
    pub key: usize,
    /// The write that it was told to be the key's last; 0: none.
    pub last: u32,
    /// When it was asked for.
    pub called: Micros,
    /// When it was answered.
    pub told: Micros,
    /// At which server.
    pub server: usize,
}

/// All of a run.
#[derive(Debug, Default)]
pub struct History {
    /// By their names, less one.
    pub writes: Vec<Asked>,
    /// In the order of their answers.
    pub reads: Vec<Looked>,
}

impl History {
    /// The write of this name.
    pub fn write(&self, id: u32) -> Option<&Asked> {
        self.writes.get((id as usize).checked_sub(1)?)
    }

    /// Whether this order of a chain's writes explains what its clients were told.
    ///
    /// # Errors
    /// What it does not explain.
    pub fn judge(&self, chain: usize, order: &[u32]) -> Result<(), String> {
        let mut at = vec![None; self.writes.len()];
        let keys = self.writes.iter().map(|write| write.key + 1).max().unwrap_or(0);
        let mut state = vec![(0_u32, 0_u32); keys];
        let mut moment = 0;
        for (place, id) in order.iter().enumerate() {
            let Some(write) = self.write(*id).filter(|write| write.chain == chain) else {
                return Err(format!("operation {} is {id}, which no client asked for", place + 1));
            };
            if at[*id as usize - 1].replace(place).is_some() {
                return Err(format!("write {id} was carried out twice"));
            }
            let (last, count) = &mut state[write.key];
            if write.expects.is_some_and(|expects| expects != *last) {
                return Err(format!("write {id} was to follow {:?}, and follows {last}", write.expects));
            }
            (*last, *count) = (*id, *count + 1);
            moment = moment.max(write.called);
            if let Some((told, as_told)) = write.told {
                if as_told != *count {
                    return Err(format!("write {id} was told to be number {as_told} of its key, and is {count}"));
                }
                if moment > told {
                    return Err(format!("write {id} was told at {told}, before one that was called at {moment}"));
                }
            }
        }
        let all = (1..).zip(&self.writes);
        if let Some((id, write)) = all
            .filter(|(_, write)| write.chain == chain)
            .find(|(id, write)| write.told.is_some() && at[id - 1].is_none())
        {
            return Err(format!("write {id} was acknowledged, and is lost: {write:?}"));
        }
        (0..keys).try_for_each(|key| self.judge_reads(chain, key, order, &at))
    }

    fn judge_reads(&self, chain: usize, key: usize, order: &[u32], at: &[Option<usize>]) -> Result<(), String> {
        let mut reads: Vec<_> = self.reads.iter().filter(|read| (read.chain, read.key) == (chain, key)).collect();
        let place = |id: u32| if id == 0 { Some(0) } else { at[id as usize - 1].map(|place| place + 1) };
        if let Some(read) = reads.iter().find(|read| place(read.last).is_none()) {
            return Err(format!("a read was told of write {}, which is not there: {read:?}", read.last));
        }
        reads.sort_by_key(|read| place(read.last));
        let mut reads = reads.into_iter().peekable();
        let mut moment = 0;
        let of_key = order.iter().filter(|id| self.write(**id).is_some_and(|write| write.key == key));
        for id in std::iter::once(&0).chain(of_key) {
            if let Some(write) = self.write(*id) {
                moment = moment.max(write.called);
                if let Some((told, _)) = write.told.filter(|(told, _)| moment > *told) {
                    return Err(format!(
                        "write {id} was told at {told}, and one before it was read as late as {moment}"
                    ));
                }
            }
            let mut latest = moment;
            while let Some(read) = reads.next_if(|read| read.last == *id) {
                if moment > read.told {
                    let why = format!("a read was told of write {id} at {}, before {moment}", read.told);
                    return Err(format!("{why}: {read:?}"));
                }
                latest = latest.max(read.called);
            }
            moment = latest;
        }
        match reads.next() {
            Some(read) => Err(format!("a read was told of a write of another key: {read:?}")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes 1, 2 and 3 of one key, called at 10, 20, 30 and told 5 later.
    fn history() -> History {
        let write = |number: u32| {
            let called = Micros::from(number * 10);
            Asked { chain: 0, key: 0, expects: Some(number - 1), called, told: Some((called + 5, number)) }
        };
        History { writes: (1..=3).map(write).collect(), reads: Vec::new() }
    }

    fn with_read(last: u32, called: Micros, told: Micros) -> Result<(), String> {
        let mut history = history();
        history.reads.push(Looked { chain: 0, key: 0, last, called, told, server: 0 });
        history.judge(0, &[1, 2, 3])
    }

    #[test]
    fn an_order_has_what_was_acknowledged_once_and_in_time() {
        assert_eq!(history().judge(0, &[1, 2, 3]), Ok(()));
        for (order, why) in
            [(&[1, 2][..], "lost"), (&[1, 2, 3, 3], "twice"), (&[2, 1, 3], "follow"), (&[1, 2, 3, 9], "asked")]
        {
            assert!(history().judge(0, order).is_err_and(|said| said.contains(why)), "{why}");
        }
        let mut free = history();
        free.writes
            .iter_mut()
            .for_each(|write| (write.expects, write.told) = (None, write.told.map(|told| (told.0, 1))));
        free.writes.truncate(2);
        assert!(free.judge(0, &[2, 1]).is_err(), "the second was called after the first was told");
    }

    #[test]
    fn a_read_is_told_the_last_write_of_its_time() {
        for (last, called, told, is_so) in [
            (0, 1, 2, true),
            (0, 16, 17, false),
            (1, 8, 12, true),
            (1, 8, 9, false),
            (1, 16, 19, true),
            (1, 24, 26, true),
            (1, 26, 28, false),
            (3, 29, 31, true),
            (2, 40, 41, false),
        ] {
            assert_eq!(with_read(last, called, told).is_ok(), is_so, "{last} between {called} and {told}");
        }
    }

    #[test]
    fn two_reads_do_not_go_back() {
        let mut history = history();
        let read = |last, called, told| Looked { chain: 0, key: 0, last, called, told, server: 0 };
        history.reads = vec![read(2, 21, 22), read(1, 23, 24)];
        assert!(history.judge(0, &[1, 2, 3]).is_err());
        history.reads = vec![read(1, 21, 22), read(2, 23, 24)];
        assert_eq!(history.judge(0, &[1, 2, 3]), Ok(()));
    }
}
