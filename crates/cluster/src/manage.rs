//! The manager: every server has one, and the one that holds the office changes the tables.
//!
//! a timer, or a change of a chain → office? → sync → each chain: view → next table → compare and set → …
//! → what was seen, for those who tell clients
//!
//! Invariant: a table is changed by what was seen since the manager's last look, with all that it counts upon checked
//! where the table is set. So two managers at once do no harm.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_chain::{ServerId, Table, Wishes};
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinSet};
use tracing::{info, warn};

use crate::coordinator::{Coordinator, Freshness};
use crate::error::{Error, Result};
use crate::records::ServerRecord;
use crate::sight::{Sight, View};
use crate::slots::Slots;

/// How many changes of a chain's table are made in a row before the other chains are looked at.
const CHANGES_IN_A_ROW_MAX: usize = 16;

/// Who does not hold the office changes a table that was due for this part of a period: the office may have gone with
/// the very server whose end is to be told.
const DEPUTY: u32 = 4;

/// A chain as a manager saw it last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenChain {
    /// Its table.
    pub table: Table,
    /// Its servers, as they have registered last.
    pub servers: BTreeMap<ServerId, ServerRecord>,
}

/// The chains of a cluster as a manager saw them last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Which chain keeps which slots of keys: as new as the tables, or newer. `None`: each of [`Seen::chains`] keeps
    /// all of its own; of another nothing is known.
    pub slots: Option<Slots>,
    /// By name.
    pub chains: BTreeMap<String, SeenChain>,
}

/// The manager in one server.
pub struct Manager {
    coordinator: Coordinator,
    server: ServerId,
    period: Duration,
    began: Instant,
    /// Of each chain what was seen, and since when which table is due to be changed.
    sights: BTreeMap<String, (Sight, Option<(u64, Duration)>)>,
    /// Tasks that wait for changes, one for each chain.
    waiting: JoinSet<()>,
    waits: BTreeMap<String, AbortHandle>,
    changed: Arc<Notify>,
    in_office: bool,
    /// What was seen; `None` until all was once.
    seen: watch::Sender<Option<Arc<Seen>>>,
}

impl Manager {
    /// The manager in this server. Leases last `period`, for all servers and managers the same.
    pub fn new(coordinator: Coordinator, server: ServerId, period: Duration) -> Self {
        Self {
            coordinator,
            server,
            period,
            began: Instant::now(),
            sights: BTreeMap::new(),
            waiting: JoinSet::new(),
            waits: BTreeMap::new(),
            changed: Arc::new(Notify::new()),
            in_office: false,
            seen: watch::Sender::new(None),
        }
    }

    /// What this manager sees, once it runs: `None` until it has seen all once.
    pub fn seen(&self) -> watch::Receiver<Option<Arc<Seen>>> {
        self.seen.subscribe()
    }

    /// Manages until `stop` holds `true` or has no sender; then gives the office up. Errors are logged and outlasted.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut failing = false;
        while !*stop.borrow_and_update() {
            // A look is not cut short: each of its calls ends by itself.
            match self.look().await {
                Ok(()) => failing = false,
                Err(error) if failing => tracing::debug!("no look at the chains: {error}"),
                Err(error) => {
                    warn!("no look at the chains: {error}");
                    failing = true;
                }
            }
            tokio::select! {
                ended = stop.changed() => if ended.is_err() { break },
                () = self.changed.notified() => {}
                () = tokio::time::sleep(self.period / 8) => {}
            }
        }
        if self.in_office
            && let Err(error) = self.coordinator.resign().await
        {
            info!("the office of the manager ends with its session: {error}");
        }
    }

    /// Looks at every chain once. Who does not hold the office looks as well, and acts where the office does not.
    async fn look(&mut self) -> Result<()> {
        let in_office = self.coordinator.stand_for_manager(self.server).await?;
        if in_office != self.in_office {
            info!("server {} {} the manager", self.server, if in_office { "is" } else { "is no longer" });
            self.in_office = in_office;
        }
        self.coordinator.sync().await?;
        let chains: BTreeSet<_> = self.coordinator.chains().await?.into_iter().collect();
        self.sights.retain(|chain, _| chains.contains(chain));
        self.keep_waiting(&chains);
        let mut first_error = None;
        let before = self.seen.borrow().clone();
        let mut seen = Seen::default();
        for chain in &chains {
            // One that is damaged keeps no other from being looked at.
            match self.look_at(chain).await {
                Ok(found) => {
                    seen.chains.insert(chain.clone(), found);
                }
                Err(error @ (Error::Unreachable { .. } | Error::Unknown { .. })) => return Err(error),
                Err(error) => {
                    let known = before.as_ref().and_then(|before| before.chains.get(chain));
                    seen.chains.extend(known.map(|known| (chain.clone(), known.clone())));
                    first_error = first_error.or(Some(error));
                }
            }
        }
        // After the tables: chains that share slots are made together with that, and go on to share them.
        let known = before.as_ref().and_then(|before| before.slots.clone());
        seen.slots = match (self.coordinator.slots().await, known) {
            (Ok(slots), known) => slots.or(known),
            (Err(error @ Error::Damaged { .. }), Some(known)) => {
                first_error = first_error.or(Some(error));
                Some(known)
            }
            (Err(error), _) => return Err(error),
        };
        if before.is_none_or(|before| *before != seen) {
            self.seen.send_replace(Some(Arc::new(seen)));
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Looks at a chain, and changes its table where that is due; how it stands then.
    async fn look_at(&mut self, chain: &str) -> Result<SeenChain> {
        let (sight, due) = self.sights.entry(chain.to_string()).or_default();
        let mut changes = 0;
        loop {
            // Before the table: what has come true by that was not wished for since.
            let (wishes, wished) = match self.coordinator.wishes(chain).await {
                // A chain outlives a wish that makes no sense.
                Err(error @ Error::Damaged { .. }) => {
                    tracing::debug!("what operators have asked for is not heeded: {error}");
                    (Wishes::default(), None)
                }
                wishes => wishes.map(|(wishes, stamp)| (wishes, Some(stamp)))?,
            };
            let (table, stamp) = self.coordinator.table(chain, Freshness::Any).await?;
            let open = wishes.open(&table);
            if let Some(wished) = wished.filter(|_| self.in_office && open != wishes) {
                // Where they are others by now, the next look sees them.
                self.coordinator.set_wishes(chain, wished, &open).await?;
            }
            let view = View {
                table,
                leases: self.coordinator.leases(chain).await?,
                in_step: self.coordinator.in_step(chain).await?,
                servers: self.coordinator.servers(chain).await?,
                stores: self.coordinator.stores(chain).await?,
                wishes,
            };
            let now = self.began.elapsed();
            sight.see(&view.leases, now, self.period);
            let Some(next) = sight.next(&view, now, self.period) else {
                *due = None;
                return Ok(SeenChain { table: view.table, servers: view.servers });
            };
            let (version, since) = *due.get_or_insert((view.table.version, now));
            let waited = if version == view.table.version { now.saturating_sub(since) } else { Duration::ZERO };
            if waited.is_zero() {
                *due = Some((view.table.version, now));
            }
            let is_early = !self.in_office && waited < self.period / DEPUTY;
            // Where it is not taken, a renewal came, or another manager was first: the next look sees it.
            if is_early
                || changes == CHANGES_IN_A_ROW_MAX
                || !self.coordinator.change(chain, stamp, &next.table, &next.standing, &next.stores).await?
            {
                return Ok(SeenChain { table: view.table, servers: view.servers });
            }
            changes += 1;
            info!("chain {chain}: {}", shown(&next.table));
        }
    }

    /// Has one task for each of these chains, and none for others.
    fn keep_waiting(&mut self, chains: &BTreeSet<String>) {
        self.waits.retain(|chain, task| {
            let keep = chains.contains(chain) && !task.is_finished();
            if !keep {
                task.abort();
            }
            keep
        });
        while self.waiting.try_join_next().is_some() {}
        for chain in chains {
            if self.waits.contains_key(chain) {
                continue;
            }
            let Ok(mut changes) = self.coordinator.changes(chain) else {
                continue;
            };
            let (changed, pause) = (self.changed.clone(), self.period / 8);
            let wait = async move {
                loop {
                    match changes.next().await {
                        Ok(()) => changed.notify_one(),
                        Err(_) => tokio::time::sleep(pause).await,
                    }
                }
            };
            self.waits.insert(chain.clone(), self.waiting.spawn(wait));
        }
    }
}

/// A table, for the log.
fn shown(table: &Table) -> String {
    let member = |member: &esker_chain::Member| format!("{} {:?}", member.server, member.place);
    let members: Vec<_> = table.members.iter().map(member).collect();
    format!("table {}: {}", table.version, members.join(", "))
}
