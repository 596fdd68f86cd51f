//! How a server of a pair stands, for operators and those who watch.

use esker_wire::proto::chain as proto;

use crate::pair::record::{Record, Role};

/// How it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stand {
    /// What its store keeps; of a standby with the last operation of the primary that it has heard of.
    pub record: Record,
    /// The primary is synchronous.
    pub sync: bool,
    /// The last operation that it has applied; 0 while a copy is under way.
    pub applied: u64,
    /// The last that it knows to be acknowledged.
    pub committed: u64,
    /// Of a primary: up to where the standby has everything, durably; `None`: not known at the moment.
    pub acked: Option<u64>,
    /// When the other was last heard of, in milliseconds ago; `None`: not since this process began.
    pub heard_ms_ago: Option<u64>,
    /// Bytes of operations that are kept for the standby; `None`: not known at the moment.
    pub kept_bytes: Option<u64>,
    /// Bytes that the copy for the standby has gone through, while one is under way.
    pub copied_bytes: Option<u64>,
    /// What it holds is part of a copy, or it has not said yet that it is not.
    pub part: bool,
    /// What went wrong last; empty: nothing.
    pub trouble: String,
    /// Letters reach the other.
    pub reaches: bool,
}

impl Stand {
    /// As it was answered; `None`: it says no role.
    pub(crate) fn decoded(answer: proto::StandResponse) -> Option<Self> {
        let proto::StandResponse { sync, applied, committed, acked, heard_ms_ago, kept_bytes, copied_bytes, .. } =
            answer;
        let proto::StandResponse { record, part, trouble, reaches, .. } = answer;
        let record = Record::decoded(record?)?;
        Some(Self {
            record,
            sync,
            applied,
            committed,
            acked,
            heard_ms_ago,
            kept_bytes,
            copied_bytes,
            part,
            trouble,
            reaches,
        })
    }

    /// How many operations the standby lacks, as far as this server knows; `None`: that is not known.
    pub fn lag(&self) -> Option<u64> {
        match self.record.role {
            Role::Primary if self.record.peer.is_empty() || self.heard_ms_ago.is_none() => None,
            Role::Primary => self.acked.map(|acked| self.applied.saturating_sub(acked)),
            Role::Standby if self.part => None,
            Role::Standby => Some(self.record.heard.saturating_sub(self.applied)),
            Role::Deposed => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lag_is_told_only_where_it_is_known() {
        let stand = |role, heard_ms_ago, part| Stand {
            record: Record { peer: "h:1".into(), heard: 12, ..Record::new(role) },
            sync: false,
            applied: 9,
            committed: 9,
            acked: Some(4),
            heard_ms_ago,
            kept_bytes: None,
            copied_bytes: None,
            part,
            trouble: String::new(),
            reaches: true,
        };
        assert_eq!(stand(Role::Primary, Some(1), false).lag(), Some(5));
        assert_eq!(stand(Role::Primary, None, false).lag(), None);
        let busy = Stand { acked: None, ..stand(Role::Primary, Some(1), false) };
        assert_eq!(busy.lag(), None, "a store that keeps its node is not a lag of everything");
        assert_eq!(stand(Role::Standby, Some(1), false).lag(), Some(3));
        assert_eq!(stand(Role::Standby, Some(1), true).lag(), None);
        assert_eq!(stand(Role::Deposed, Some(1), false).lag(), None);
    }
}
