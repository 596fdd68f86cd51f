//! The table of a chain: its members in order, and how each stands.
//!
//! Invariant: serving members come first, in chain order; behind them at most one that is syncing; then the others.

use std::fmt;

/// A server's number, the same for as long as it keeps its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId(pub u32);

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Which start of a server: one more each time. What one start was a member of, the next is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// How a member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// It holds everything that was acknowledged, and takes part in every write.
    Serving,
    /// It is being brought up to the tail.
    Syncing,
    /// It is there, and waits until it is brought up.
    Waiting,
    /// It is not there.
    Offline,
    /// It is not there, and is the last that served: without it nothing is known to be whole.
    LastServing,
}

/// A replica of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// Whose.
    pub server: ServerId,
    /// Of which start.
    pub incarnation: Incarnation,
    /// How it stands.
    pub place: Place,
    /// In which version of the table it came to stand so.
    pub since: u64,
}

/// The members of a chain, as the coordinator holds them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Table {
    /// One more with each change, from 1; 0 is no table.
    pub version: u64,
    /// In order; see [`Table::arrange`].
    pub members: Vec<Member>,
}

impl Table {
    /// The first table of a chain: its members, from head to tail, hold nothing yet.
    pub fn first(members: impl IntoIterator<Item = (ServerId, Incarnation)>) -> Self {
        let member = |(server, incarnation)| Member { server, incarnation, place: Place::Serving, since: 1 };
        Self { version: 1, members: members.into_iter().map(member).collect() }
    }

    /// No table, which a server has before it has read one.
    pub fn none() -> Self {
        Self { version: 0, members: Vec::new() }
    }

    /// The members that serve, from head to tail.
    pub fn serving(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.place == Place::Serving)
    }

    /// The member of this server, of any of its starts.
    pub fn member(&self, server: ServerId) -> Option<&Member> {
        self.members.iter().find(|member| member.server == server)
    }

    /// The member that this start of a server is; `None`: the table does not know it.
    pub fn start(&self, server: ServerId, incarnation: Incarnation) -> Option<&Member> {
        self.member(server).filter(|member| member.incarnation == incarnation)
    }

    /// The head: it decides.
    pub fn head(&self) -> Option<&Member> {
        self.serving().next()
    }

    /// Who sends to this server, if any does: the serving member before it.
    pub fn predecessor(&self, server: ServerId) -> Option<&Member> {
        let at = self.in_line().position(|member| member.server == server)?;
        self.in_line().nth(at.checked_sub(1)?)
    }

    /// The member that this server sends to, if it serves and there is one: the next, which may be syncing.
    pub fn successor(&self, server: ServerId) -> Option<&Member> {
        let mut line = self.in_line().skip_while(|member| member.server != server);
        line.next().filter(|member| member.place == Place::Serving)?;
        line.next()
    }

    /// Who takes part in what is written: those that serve, and the one that is brought up to them.
    fn in_line(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| matches!(member.place, Place::Serving | Place::Syncing))
    }

    /// Puts members in the order of their places; those of one place stay as they stand.
    pub fn arrange(&mut self) {
        self.members.sort_by_key(|member| member.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(places: &[Place]) -> Table {
        let members = places.iter().enumerate().map(|(number, place)| Member {
            server: ServerId(number as u32),
            incarnation: Incarnation(1),
            place: *place,
            since: 1,
        });
        Table { version: 1, members: members.collect() }
    }

    #[test]
    fn a_line_goes_from_the_head_to_the_one_that_is_brought_up() {
        use Place::{Offline, Serving, Syncing, Waiting};
        let table = table(&[Serving, Serving, Syncing, Waiting, Offline]);
        let next = |server| table.successor(ServerId(server)).map(|member| member.server.0);
        let before = |server| table.predecessor(ServerId(server)).map(|member| member.server.0);
        assert_eq!((table.head().map(|head| head.server.0), next(0), next(1)), (Some(0), Some(1), Some(2)));
        // One that is brought up sends nothing on, and who is not in line is sent nothing.
        assert_eq!((next(2), next(3), next(9)), (None, None, None));
        assert_eq!((before(0), before(1), before(2), before(3)), (None, Some(0), Some(1), None));
        assert_eq!(table.start(ServerId(1), Incarnation(2)), None, "another start is not known");
    }
}
