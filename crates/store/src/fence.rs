//! The fence of what one writer at a time may own: an epoch that only rises, and who owns it.
//!
//! taken, taken over or broken → the epoch rises → what was begun under an older one is refused where it arrives
//!
//! A writer keeps the epoch at which it became the owner. It needs no message and no clock to learn that it is the
//! owner no more.
//!
//! Invariants:
//! 1. An epoch is held by one writer at most, and never given twice.
//! 2. Where there is an owner, only the owner writes; where there is none, only writers that never owned it.

/// Who may write, as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence<'a> {
    /// Rises each time that it is taken.
    pub epoch: u64,
    /// Who owns it; empty: it has no owner.
    pub owner: &'a str,
}

/// What a fence says to a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may write.
    Open,
    /// Another owns it.
    Owned,
    /// This writer owned it, and does not any more.
    Lost,
}

impl Fence<'_> {
    /// What it says to a writer that took it at the epoch `held`; 0 for one that never did.
    pub fn verdict(self, held: u64) -> Verdict {
        match held {
            0 if self.owner.is_empty() => Verdict::Open,
            0 => Verdict::Owned,
            held if held == self.epoch && !self.owner.is_empty() => Verdict::Open,
            _ => Verdict::Lost,
        }
    }

    /// Whether a writer that took it at the epoch `held` owns it still.
    pub fn is_held(self, held: u64) -> bool {
        held != 0 && self.verdict(held) == Verdict::Open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_of_the_epoch_passes_where_there_is_one() {
        let check = |owner, held, verdict, is_held| {
            let fence = Fence { epoch: 7, owner };
            assert_eq!((fence.verdict(held), fence.is_held(held)), (verdict, is_held), "{owner} {held}");
        };
        check("", 0, Verdict::Open, false);
        check("ada", 0, Verdict::Owned, false);
        check("ada", 7, Verdict::Open, true);
        check("ada", 6, Verdict::Lost, false);
        check("", 7, Verdict::Lost, false);
        check("", 6, Verdict::Lost, false);
    }
}
