//! Waits until a chain stands as it was asked to.
//!
//! table, leases → so? → done · not so: a line that tells how far it is → a change, or a while → again
//!
//! Invariant: it ends once nothing has changed for as long as [`Waits::patience`]; what was asked for stays so.

use std::time::{Duration, Instant};

use clap::Args;
use esker_chain::{Place, ServerId, Table};
use esker_cluster::Freshness;
use serde_json::json;

use super::chain::{Chain, failure, word};
use crate::commands::tell;
use crate::exit::{Code, Failure};
use crate::progress;

/// Without a change it is looked so often.
const LOOK: Duration = Duration::from_millis(200);

#[derive(Args)]
pub(super) struct Waits {
    /// Do not wait until it is so
    #[arg(long)]
    no_wait: bool,
    /// Give up waiting once nothing has changed for so long, such as 90s: what was asked for stays asked for
    #[arg(long, value_name = "TIME", default_value = "1m")]
    patience: esker::Period,
    /// Say what was done as one JSON object
    #[arg(long)]
    json: bool,
}

impl Waits {
    /// Whether it is waited at all.
    pub(super) fn is_on(&self) -> bool {
        !self.no_wait
    }

    /// Waits until the table is so, and says that it is. `what` is the end of "waiting until …".
    pub(super) async fn end(
        &self,
        chain: &Chain,
        server: ServerId,
        (what, done): (&'static str, &str),
        is_so: impl Fn(&Table) -> bool,
    ) -> Result<(), Failure> {
        let table = if self.no_wait {
            chain.coordinator.table(&chain.name, Freshness::Latest).await.map_err(failure)?.0
        } else {
            self.wait(chain, server, what, &is_so).await?
        };
        let so = is_so(&table);
        let head = table.head().map(|head| head.server.0);
        let value = json!({
            "chain": chain.name, "server": server.0, "done": so, "version": table.version, "head": head,
            "place": word(table.member(server).map(|member| member.place)),
        });
        let text = if so {
            format!("server {server} {done} the chain {}\n", chain.name)
        } else {
            format!("asked for; it is waited until {what}: esker cluster status tells\n")
        };
        tell(self.json, &value, &text)
    }

    /// Waits until the table is so.
    pub(super) async fn wait(
        &self,
        chain: &Chain,
        server: ServerId,
        what: &'static str,
        is_so: &impl Fn(&Table) -> bool,
    ) -> Result<Table, Failure> {
        let bar = progress::spinner(what);
        let mut changes = chain.coordinator.changes(&chain.name).map_err(failure)?;
        let (mut seen, mut since) = (None, Instant::now());
        loop {
            let trouble = match self.look(chain).await {
                Ok((table, _)) if is_so(&table) => {
                    bar.finish_and_clear();
                    return Ok(table);
                }
                Ok((table, copied)) => {
                    let place = word(table.member(server).map(|member| member.place));
                    bar.set_message(format!("waiting until {what}: it is {place}, bytes of copies looked at:"));
                    bar.set_position(copied.iter().sum());
                    let now = Some((table, copied));
                    if seen != now {
                        (seen, since) = (now, Instant::now());
                    }
                    None
                }
                // It is asked again.
                Err(error) => Some(error),
            };
            if since.elapsed() >= self.patience.0 {
                bar.finish_and_clear();
                return Err(trouble.map_or_else(|| self.given_up(chain, server, what, seen.as_ref()), failure));
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                told = changes.next() => if told.is_err() {
                    tokio::time::sleep(LOOK).await;
                },
            }
            bar.tick();
        }
    }

    /// The table, and what copies have gone through.
    async fn look(&self, chain: &Chain) -> esker_cluster::Result<(Table, Vec<u64>)> {
        let (table, _) = chain.coordinator.table(&chain.name, Freshness::Latest).await?;
        let leases = chain.coordinator.leases(&chain.name).await?;
        let copied = leases.values().filter_map(|lease| lease.progress.copied_bytes).collect();
        Ok((table, copied))
    }

    fn given_up(&self, chain: &Chain, server: ServerId, what: &str, seen: Option<&(Table, Vec<u64>)>) -> Failure {
        let place = seen.and_then(|(table, _)| table.member(server)).map(|member| member.place);
        let hint = match place {
            Some(Place::Offline) => ": is it running?",
            _ => ".",
        };
        Failure::new(
            Code::Failure,
            format!(
                "waited until {what}: nothing of the chain {} has changed for {}, and server {server} is {}{hint} What \
                 was asked for stays asked for.",
                chain.name,
                self.patience,
                word(place)
            ),
        )
    }
}
