//! A store: it applies at once, is durable later, and loses what is not durable.
//!
//! write → applied → a sync that began after it → durable; a crash → what was durable, and perhaps some more
//!
//! Invariant: what is durable is a prefix of what is applied.

use fastrand::Rng;

/// Most keys of a chain.
pub const KEYS_MAX: usize = 4;

/// The last write of each key, and how many there were.
pub type State = [(u32, u32); KEYS_MAX];

/// A store.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    /// The writes that it has applied, in order.
    content: Vec<u32>,
    durable: usize,
    state: State,
    /// A copy is under way: what is here counts for nothing.
    part: bool,
    /// How often what is here was put in place of what was: a sync from before says nothing.
    round: u64,
    /// It takes nothing.
    pub full: bool,
    /// The next sync fails, and everything after it.
    pub failing: bool,
    /// A sync has failed: nothing works before it is opened anew.
    pub poisoned: bool,
    /// Syncs take so many times longer.
    pub slow: u64,
}

impl Disk {
    /// The writes that it has applied.
    pub fn content(&self) -> &[u32] {
        &self.content
    }

    /// Those that a crash leaves.
    pub fn lasting(&self) -> &[u32] {
        &self.content[..self.durable]
    }

    /// Whether a copy is under way.
    pub fn is_part(&self) -> bool {
        self.part
    }

    /// The last write of a key, and how many there were.
    pub fn key(&self, key: usize) -> (u32, u32) {
        self.state[key]
    }

    /// The number of a write that it has applied.
    pub fn number_of(&self, id: u32) -> Option<u64> {
        self.content.iter().rposition(|one| *one == id).map(|at| at as u64 + 1)
    }

    /// Applies a write of this key.
    pub fn apply(&mut self, id: u32, key: usize) {
        self.content.push(id);
        let (last, count) = &mut self.state[key];
        (*last, *count) = (id, *count + 1);
    }

    /// How far a sync that begins now will have everything durable.
    pub fn sync(&self) -> (u64, usize) {
        (self.round, self.content.len())
    }

    /// That sync has ended.
    pub fn synced(&mut self, (round, applied): (u64, usize)) {
        if round == self.round {
            self.durable = self.durable.max(applied);
        }
    }

    /// From now on, and after a crash, what is here counts for nothing.
    pub fn distrust(&mut self) {
        self.put(Vec::new(), |_| 0);
        self.part = true;
    }

    /// A copy is here, whole and durable.
    pub fn put_whole(&mut self, content: Vec<u32>, key_of: impl Fn(u32) -> usize) {
        self.put(content, key_of);
        (self.durable, self.part) = (self.content.len(), false);
    }

    fn put(&mut self, content: Vec<u32>, key_of: impl Fn(u32) -> usize) {
        self.round += 1;
        (self.content, self.durable, self.state) = (Vec::new(), 0, State::default());
        for id in content {
            self.apply(id, key_of(id));
        }
    }

    /// The process or the machine is gone, or the store is opened anew; how many writes are.
    pub fn crash(&mut self, rng: &mut Rng, key_of: impl Fn(u32) -> usize) -> usize {
        let open = self.content.len() - self.durable;
        let keep = if rng.bool() { 0 } else { rng.usize(0..=open) };
        let mut content = std::mem::take(&mut self.content);
        content.truncate(self.durable + keep);
        let (durable, part) = (self.durable, self.part);
        self.put(content, key_of);
        (self.durable, self.part, self.poisoned) = (durable, part, false);
        open - keep
    }
}
