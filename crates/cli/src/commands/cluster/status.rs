//! `esker cluster status` and `esker cluster chains`: how chains stand.
//!
//! table, what servers have registered, their leases, what is asked for → lines, or JSON → with --watch again
//!
//! Invariant: how far a server is, is what it said at its last renewal; nothing rests on it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::Args;
use esker::kv::{Clock, SystemClock};
use esker_chain::{Incarnation, Member, Place, ServerId, Table, Wishes};
use esker_cluster::{Freshness, LeaseRecord, ServerRecord, Slots};
use serde_json::{Value, json};

use super::chain::{Chain, failure, word};
use crate::commands::{print, tell};
use crate::exit::{Code, Failure};

const EVERY: Duration = Duration::from_secs(1);
/// How often `--wait` looks.
const LOOKS: Duration = Duration::from_millis(200);
/// Puts what follows at the top of an empty screen.
const CLEAR: &str = "\x1b[H\x1b[2J";

#[derive(Args)]
pub(super) struct Status {
    /// As one JSON object; with --watch as one line each time
    #[arg(long)]
    json: bool,
    /// Again each second, until interrupted
    #[arg(long)]
    watch: bool,
    /// First wait until every member serves, but for those that are drained or removed; if that takes longer than
    /// this, such as 60s, fail (1)
    #[arg(long, value_name = "TIME", conflicts_with = "watch")]
    wait: Option<esker::Period>,
}

#[derive(Args)]
pub(super) struct Chains {
    /// As one JSON array
    #[arg(long)]
    json: bool,
}

/// What is known of a chain at one time.
struct Standing {
    table: Table,
    servers: BTreeMap<ServerId, ServerRecord>,
    leases: BTreeMap<ServerId, LeaseRecord>,
    wishes: Wishes,
}

impl Status {
    pub(super) async fn run(self, chain: &Chain) -> Result<(), Failure> {
        if let Some(patience) = self.wait {
            return self.wait(chain, patience).await;
        }
        let mut first = true;
        loop {
            match Standing::read(chain).await {
                Ok(standing) => self.tell(chain, &standing)?,
                // Who watches wants to see it come back.
                Err(failure) if !first => tracing::warn!(%failure, "how the chain stands is not known"),
                Err(failure) => return Err(failure),
            }
            if !self.watch {
                return Ok(());
            }
            first = false;
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Looks until all serve that are to, tells how the chain stands then, and fails if that is not so in time. The
    /// table stays as it is while no server runs: one serves only if it has renewed its lease since the first look.
    async fn wait(&self, chain: &Chain, patience: esker::Period) -> Result<(), Failure> {
        let began = Instant::now();
        let mut first = BTreeMap::new();
        loop {
            let left = patience.0.saturating_sub(began.elapsed());
            let looked = tokio::time::timeout(left.max(LOOKS), Standing::read(chain)).await;
            let late = began.elapsed() + LOOKS > patience.0;
            match looked {
                Ok(Ok(standing)) => {
                    let missing = standing.missing(&mut first);
                    if missing.is_none() || late {
                        self.tell(chain, &standing)?;
                        let failure = |missing| Failure::new(Code::Failure, format!("after {patience} {missing}"));
                        return missing.map_or(Ok(()), |missing| Err(failure(missing)));
                    }
                }
                Ok(Err(failure)) if late || failure.code() == Code::NotFound => return Err(failure),
                Ok(Err(failure)) => tracing::warn!(%failure, "how the chain stands is not known"),
                Err(_) => {
                    let text = format!("after {patience} the coordinator has not answered");
                    return Err(Failure::new(Code::Failure, text));
                }
            }
            tokio::time::sleep(LOOKS).await;
        }
    }

    fn tell(&self, chain: &Chain, standing: &Standing) -> Result<(), Failure> {
        let (value, text) = standing.shown(chain);
        match (self.watch, self.json) {
            (true, true) => print(&format!("{value}\n")),
            (true, false) if std::io::stdout().is_terminal() => print(&format!("{CLEAR}{text}")),
            (true, false) => print(&format!("{text}\n")),
            (false, json) => tell(json, &value, &text),
        }
    }
}

impl Standing {
    async fn read(chain: &Chain) -> Result<Self, Failure> {
        let (coordinator, name) = (&chain.coordinator, &chain.name);
        let (table, _) = coordinator.table(name, Freshness::Latest).await.map_err(failure)?;
        Ok(Self {
            table,
            servers: coordinator.servers(name).await.map_err(failure)?,
            leases: coordinator.leases(name).await.map_err(failure)?,
            wishes: coordinator.wishes(name).await.map_err(failure)?.0,
        })
    }

    /// What is missing until all members serve that are to, and nothing if they do. `first` has, and is given, which
    /// renewal of which start of each server was seen first.
    fn missing(&self, first: &mut BTreeMap<ServerId, (Incarnation, u64)>) -> Option<String> {
        let leaves = |server| self.wishes.drain.contains(server) || self.wishes.remove.contains(server);
        let mut missing = Vec::new();
        for member in self.table.members.iter().filter(|member| !leaves(&member.server)) {
            let renewed = self.leases.get(&member.server).is_some_and(|lease| {
                let seen = first.entry(member.server).or_insert((lease.incarnation, lease.renewal));
                if seen.0 != lease.incarnation {
                    *seen = (lease.incarnation, lease.renewal);
                }
                lease.incarnation == member.incarnation && !lease.gave_up && lease.renewal > seen.1
            });
            match member.place {
                Place::Serving if renewed => {}
                Place::Serving => missing.push(format!("server {} (its lease is not renewed)", member.server.0)),
                place => missing.push(format!("server {} ({})", member.server.0, word(Some(place)))),
            }
        }
        match self.table.head() {
            _ if !missing.is_empty() => Some(format!("these do not serve: {}", missing.join(", "))),
            None => Some("no server heads the chain".to_owned()),
            Some(_) => None,
        }
    }

    fn shown(&self, chain: &Chain) -> (Value, String) {
        let table = &self.table;
        let head = table.head().map(|head| head.server);
        let mut text = format!("chain {}, table {}\n", chain.name, table.version);
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{:<7}{:<14}{:<9}{:>12}{:>8}  {:<20}{:>6}  {:<23}peers",
            "server", "stands", "role", "applied", "lag", "lease", "start", "clients"
        );
        let mut rows = Vec::new();
        let members = table.members.iter().map(|member| (member.server, Some(*member)));
        let others = self.servers.keys().filter(|server| table.member(**server).is_none());
        for (server, member) in members.chain(others.map(|server| (*server, None))) {
            let row = self.row(server, member, head, chain.lease);
            let _ = writeln!(text, "{}", row.1);
            rows.push(row.0);
        }
        let asked = asked(&self.wishes);
        if !asked.is_empty() {
            let _ = writeln!(text, "asked for: {}", asked.join(", "));
        }
        let numbers = |servers: &std::collections::BTreeSet<ServerId>| -> Vec<u32> {
            servers.iter().map(|server| server.0).collect()
        };
        let value = json!({
            "chain": chain.name, "version": table.version, "head": head.map(|head| head.0), "servers": rows,
            "asked": {
                "remove": numbers(&self.wishes.remove), "drain": numbers(&self.wishes.drain),
                "promote": self.wishes.promote.map(|server| server.0),
            },
        });
        (value, text)
    }

    fn row(
        &self,
        server: ServerId,
        member: Option<Member>,
        head: Option<ServerId>,
        period: Duration,
    ) -> (Value, String) {
        let place = word(member.map(|member| member.place));
        let role = match (head == Some(server), member.map(|member| member.place)) {
            (true, _) => "head",
            (false, Some(Place::Serving)) => "replica",
            _ => "",
        };
        let record = self.servers.get(&server);
        let served = record.map(|record| &record.served);
        let start = record.map_or(0, |record| record.incarnation.0);
        let (resp, peer) = (served.and_then(|served| served.resp.as_deref()), served.map_or("", |served| &served.peer));
        let lease = self.leases.get(&server);
        let age = lease.map(age);
        let stands = stands(lease, age, period);
        let left = match stands {
            // It answers for half of it.
            "held" => age.map_or(Duration::ZERO, |age| (period / 2).saturating_sub(age)),
            _ => Duration::ZERO,
        };
        let progress = lease.map(|lease| lease.progress);
        let decided = head.and_then(|head| self.leases.get(&head)).map(|lease| lease.progress.applied);
        let applied = progress.map(|progress| progress.applied);
        let lag = decided.zip(applied).filter(|_| member.is_some());
        let lag = lag.map(|(decided, applied)| decided.saturating_sub(applied));
        let copied = progress.and_then(|progress| progress.copied_bytes);
        let shown = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        let shown_lease = match age {
            Some(age) => format!("{stands}, {}", ago(age)),
            None => stands.to_owned(),
        };
        let mut text = format!(
            "{:<7}{place:<14}{role:<9}{:>12}{:>8}  {shown_lease:<20}{start:>6}  {:<23}{peer}",
            server.0,
            shown(applied),
            shown(lag),
            resp.unwrap_or("")
        );
        if let Some(copied) = copied {
            let _ = write!(text, "  copy: looked at {}", esker::ByteSize(copied));
        }
        let value = json!({
            "server": server.0, "place": place, "role": role, "start": start,
            "since": member.map(|member| member.since),
            "applied": applied, "committed": progress.map(|progress| progress.committed), "lag": lag,
            "copied_bytes": copied, "lease": stands, "lease_left_ms": left.as_millis() as u64,
            "renewed_ms_ago": age.map(|age| age.as_millis() as u64),
            "resp": resp.unwrap_or(""), "peer": peer,
            "grpc": served.and_then(|served| served.grpc.clone()),
            "nbd": served.and_then(|served| served.nbd.clone()),
            "thrift": served.and_then(|served| served.thrift.clone()),
        });
        (value, text)
    }
}

/// Since when a lease stands so, by the clocks of this machine and of the coordinator.
fn age(lease: &LeaseRecord) -> Duration {
    Duration::from_millis(SystemClock.now_ms().saturating_sub(lease.at_ms))
}

/// The word for a lease.
fn stands(lease: Option<&LeaseRecord>, age: Option<Duration>, period: Duration) -> &'static str {
    match (lease, age) {
        (None, _) | (_, None) => "none",
        (Some(lease), _) if lease.gave_up => "given up",
        (_, Some(age)) if age >= period => "run out",
        _ => "held",
    }
}

fn ago(age: Duration) -> String {
    if age < Duration::from_secs(10) {
        format!("{} ms ago", age.as_millis())
    } else {
        format!("{} s ago", age.as_secs())
    }
}

fn asked(wishes: &Wishes) -> Vec<String> {
    let remove = wishes.remove.iter().map(|server| format!("remove {server}"));
    let drain = wishes.drain.iter().map(|server| format!("drain {server}"));
    let promote = wishes.promote.iter().map(|server| format!("promote {server}"));
    remove.chain(drain).chain(promote).collect()
}

impl Chains {
    pub(super) async fn run(self, chain: &Chain) -> Result<(), Failure> {
        let coordinator = &chain.coordinator;
        coordinator.sync().await.map_err(failure)?;
        let mut text = format!("{:<24}{:>8}{:>7}  {:<9}slots\n", "chain", "table", "head", "serving");
        let mut rows = Vec::new();
        let slots = coordinator.slots().await.map_err(failure)?;
        for name in coordinator.chains().await.map_err(failure)? {
            let parts = slots.iter().flat_map(Slots::parts).filter(|part| part.chain == name);
            let parts: Vec<_> = parts.map(|part| (part.first, part.last)).collect();
            let kept: Vec<_> = parts.iter().map(|(first, last)| format!("{first}-{last}")).collect();
            let shares = slots.as_ref().is_some_and(|slots| slots.are_shared_by(&name));
            let kept = match (kept.is_empty(), shares) {
                (false, _) => kept.join(","),
                (true, true) => "none yet".to_owned(),
                // It shares them with no other.
                (true, false) => "all, alone".to_owned(),
            };
            let (table, _) = coordinator.table(&name, Freshness::Any).await.map_err(failure)?;
            let head = table.head().map(|head| head.server.0);
            let (serving, members) = (table.serving().count(), table.members.len());
            let shown = head.map_or_else(|| "none".to_owned(), |head| head.to_string());
            // Writing to a string does not fail.
            let count = format!("{serving} of {members}");
            let _ = writeln!(text, "{name:<24}{:>8}{shown:>7}  {count:<9}{kept}", table.version);
            rows.push(json!({
                "chain": name, "version": table.version, "head": head, "serving": serving, "members": members,
                "slots": if shares { json!(parts) } else { Value::Null },
            }));
        }
        if rows.is_empty() {
            text = "no chains: esker cluster init makes one\n".to_owned();
        }
        tell(self.json, &Value::from(rows), &text)
    }
}

#[cfg(test)]
mod tests {
    use esker_chain::Incarnation;
    use esker_cluster::Progress;

    use super::*;

    #[test]
    fn a_lease_is_told_as_it_is() {
        let period = Duration::from_secs(3);
        let lease = |gave_up| LeaseRecord {
            incarnation: Incarnation(1),
            gave_up,
            table_version: 1,
            renewal: 7,
            at_ms: 0,
            progress: Progress::default(),
        };
        let at = |lease: &LeaseRecord, ms| stands(Some(lease), Some(Duration::from_millis(ms)), period);
        assert_eq!(
            (at(&lease(false), 2_999), at(&lease(false), 3_000), at(&lease(true), 5)),
            ("held", "run out", "given up")
        );
        assert_eq!(stands(None, None, period), "none");
        assert_eq!(
            (ago(Duration::from_millis(7)), ago(Duration::from_secs(75))),
            ("7 ms ago".into(), "75 s ago".into())
        );
    }

    #[test]
    fn what_is_asked_for_is_told() {
        let wishes = Wishes {
            remove: [ServerId(3)].into(),
            drain: [ServerId(4)].into(),
            promote: Some(ServerId(2)),
            ..Wishes::default()
        };
        assert_eq!(asked(&wishes), ["remove 3", "drain 4", "promote 2"]);
        assert!(asked(&Wishes::default()).is_empty());
    }
}
