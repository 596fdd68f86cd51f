//! Waits for changes of a chain's table, of who is in step, and of what operators ask for.
//!
//! look, with one-time watches → other than at the last look: tell → the same: wait for a watch, look again
//!
//! Invariant: what changes after a look that told is told by the next, even where the connection was lost between them.

use zookeeper_client::EventType;

use crate::error::Result;
use crate::session::Session;

/// The changes of one chain.
pub struct Changes {
    session: Session,
    nodes: [String; 3],
    /// The last change of each node, as it was told.
    seen: Option<[i64; 3]>,
}

impl Changes {
    pub(crate) fn new(session: Session, nodes: [String; 3]) -> Self {
        Self { session, nodes, seen: None }
    }

    /// Waits until the table, who is in step, or what is wished for may have changed since this last returned; the
    /// first time, and where the session has ended, it returns at once. To be used beside a timer: it may wait for
    /// ever. Dropping it while it waits loses nothing.
    ///
    /// # Errors
    /// [`crate::Error::Unreachable`]; then what changed meanwhile is told later.
    pub async fn next(&mut self) -> Result<()> {
        loop {
            let call = self.session.call().await?;
            let [table, in_step, wishes] = &self.nodes;
            // One that is absent is watched as well, and not refused.
            let absent = |_| None;
            let table = call.read(table, call.client.check_and_watch_stat(table)).await?.map_or_else(absent, Some);
            let in_step =
                call.read(in_step, call.client.check_and_watch_stat(in_step)).await?.map_or_else(absent, Some);
            let wishes = call.read(wishes, call.client.check_and_watch_stat(wishes)).await?.map_or_else(absent, Some);
            let (Some((table, of_table)), Some((in_step, of_in_step)), Some((wishes, of_wishes))) =
                (table, in_step, wishes)
            else {
                return Ok(());
            };
            let now = [table, in_step, wishes].map(|stat| stat.map_or(0, |stat| stat.mzxid));
            if self.seen.replace(now) != Some(now) {
                return Ok(());
            }
            let event = tokio::select! {
                event = of_table.changed() => event,
                event = of_in_step.changed() => event,
                event = of_wishes.changed() => event,
            };
            if event.event_type == EventType::Session {
                return Ok(());
            }
        }
    }
}
