//! Changes of a chain that operators ask for.
//!
//! command → table: can it be? → wishes, compared and set (add: the next table) → waited for
//!
//! Invariant: what cannot be is refused before anything is written.

use clap::Args;
use esker_chain::{Member, Place, ServerId, Table, Wishes};
use esker_cluster::Freshness;

use super::chain::{Chain, SERVERS_MAX, failure, word};
use super::waiting::Waits;
use crate::exit::{Code, Failure};

/// A server's number.
fn number() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..)
}

#[derive(Args)]
pub(super) struct Add {
    /// The server's number
    #[arg(value_name = "SERVER", value_parser = number())]
    server: u32,
    #[command(flatten)]
    waits: Waits,
}

#[derive(Args)]
pub(super) struct Remove {
    /// The server's number
    #[arg(value_name = "SERVER", value_parser = number())]
    server: u32,
    #[command(flatten)]
    waits: Waits,
}

#[derive(Args)]
pub(super) struct Move {
    /// The number of the server that is removed
    #[arg(value_name = "FROM", value_parser = number())]
    from: u32,
    /// The number of the server that is added
    #[arg(value_name = "TO", value_parser = number())]
    to: u32,
    #[command(flatten)]
    waits: Waits,
}

#[derive(Args)]
pub(super) struct Drain {
    /// The server's number
    #[arg(value_name = "SERVER", value_parser = number())]
    server: u32,
    #[command(flatten)]
    waits: Waits,
}

#[derive(Args)]
pub(super) struct Undrain {
    /// The server's number
    #[arg(value_name = "SERVER", value_parser = number())]
    server: u32,
    #[command(flatten)]
    waits: Waits,
}

#[derive(Args)]
pub(super) struct Promote {
    /// The server's number
    #[arg(value_name = "SERVER", value_parser = number())]
    server: u32,
    #[command(flatten)]
    waits: Waits,
}

fn serves(table: &Table, server: ServerId) -> bool {
    table.member(server).is_some_and(|member| member.place == Place::Serving)
}

fn heads(table: &Table, server: ServerId) -> bool {
    table.head().is_some_and(|head| head.server == server)
}

impl Chain {
    async fn table(&self) -> Result<Table, Failure> {
        Ok(self.coordinator.table(&self.name, Freshness::Latest).await.map_err(failure)?.0)
    }

    /// Puts what is asked for in place of what was, whatever others ask meanwhile.
    async fn ask(&self, change: impl Fn(&mut Wishes)) -> Result<(), Failure> {
        loop {
            let (before, stamp) = self.coordinator.wishes(&self.name).await.map_err(failure)?;
            let mut after = before.clone();
            change(&mut after);
            if after == before || self.coordinator.set_wishes(&self.name, stamp, &after).await.map_err(failure)? {
                return Ok(());
            }
        }
    }

    /// The member that this server is.
    fn member(&self, table: &Table, server: ServerId) -> Result<Member, Failure> {
        let none = || Failure::new(Code::NotFound, format!("server {server} is no member of the chain {}", self.name));
        table.member(server).copied().ok_or_else(none)
    }

    /// Refuses what would leave the chain without a member that serves.
    fn can_leave(&self, table: &Table, server: ServerId) -> Result<(), Failure> {
        let member = self.member(table, server)?;
        let serving = table.serving().count();
        let why = match member.place {
            Place::Serving if serving == 1 => "is the only one that serves",
            Place::LastServing => "is the last that served, and what it holds is what the chain holds",
            _ => return Ok(()),
        };
        Err(Failure::new(
            Code::Failure,
            format!("server {server} {why}: the chain {} needs another that serves first", self.name),
        ))
    }

    /// Makes a server a member.
    async fn add(&self, server: ServerId) -> Result<(), Failure> {
        let mut asked = false;
        loop {
            let (table, stamp) = self.coordinator.table(&self.name, Freshness::Latest).await.map_err(failure)?;
            if let Some(member) = table.member(server) {
                let (place, name) = (word(Some(member.place)), &self.name);
                return Err(Failure::usage(format!(
                    "server {server} is a member of the chain {name} already: {place}"
                )));
            }
            if table.members.len() >= SERVERS_MAX {
                let count = table.members.len();
                return Err(Failure::usage(format!(
                    "the chain {} has {count} servers, and a chain has {SERVERS_MAX} at most: remove one first",
                    self.name
                )));
            }
            let Some(next) = table.with(server) else { continue };
            if !std::mem::replace(&mut asked, true) {
                // What was asked of it before is not asked of it now.
                self.ask(|wishes| {
                    wishes.remove.remove(&server);
                    wishes.drain.remove(&server);
                })
                .await?;
            }
            // Where it is another table by now, that one is looked at.
            if self.coordinator.change(&self.name, stamp, &next, &[], &[]).await.map_err(failure)? {
                return Ok(());
            }
        }
    }

    async fn remove(&self, server: ServerId) -> Result<(), Failure> {
        self.can_leave(&self.table().await?, server)?;
        self.ask(|wishes| {
            wishes.remove.insert(server);
        })
        .await
    }
}

impl Add {
    pub(super) async fn run(self, chain: &Chain) -> Result<(), Failure> {
        let server = ServerId(self.server);
        chain.add(server).await?;
        self.waits.end(chain, server, ("it serves", "serves in"), |table| serves(table, server)).await
    }
}

impl Remove {
    pub(super) async fn run(self, chain: &Chain) -> Result<(), Failure> {
        let server = ServerId(self.server);
        chain.remove(server).await?;
        let is_gone = |table: &Table| table.member(server).is_none();
        self.waits.end(chain, server, ("it is no member", "is no member any more of"), is_gone).await
    }
}

impl Move {
    pub(super) async fn run(self, chain: &Chain) -> Result<(), Failure> {
        let (from, to) = (ServerId(self.from), ServerId(self.to));
        if !self.waits.is_on() {
            return Err(Failure::usage("--no-wait: the first server is removed only once the second serves"));
        }
        let table = chain.table().await?;
        let member = chain.member(&table, from)?;
        if member.place == Place::LastServing {
            // None can be brought up before it is back.
            chain.can_leave(&table, from)?;
        }
        chain.add(to).await?;
        self.waits.wait(chain, to, "it serves", &|table: &Table| serves(table, to)).await?;
        chain.remove(from).await?;
        let is_done = |table: &Table| table.member(from).is_none();
        self.waits.end(chain, from, ("it is no member", "is no member any more of"), is_done).await
    }
}

impl Drain {
    pub(super) async fn run(self, chain: &Chain) -> Result<(), Failure> {
        let server = ServerId(self.server);
        chain.can_leave(&chain.table().await?, server)?;
        chain
            .ask(|wishes| {
                wishes.drain.insert(server);
            })
            .await?;
        let is_drained = |table: &Table| table.member(server).is_none_or(|member| member.place == Place::Offline);
        self.waits.end(chain, server, ("it is offline", "is drained, a member for later of"), is_drained).await
    }
}

impl Undrain {
    pub(super) async fn run(self, chain: &Chain) -> Result<(), Failure> {
        let server = ServerId(self.server);
        chain.member(&chain.table().await?, server)?;
        chain
            .ask(|wishes| {
                wishes.drain.remove(&server);
            })
            .await?;
        self.waits.end(chain, server, ("it serves", "serves in"), |table| serves(table, server)).await
    }
}

impl Promote {
    pub(super) async fn run(self, chain: &Chain) -> Result<(), Failure> {
        let server = ServerId(self.server);
        let table = chain.table().await?;
        let member = chain.member(&table, server)?;
        if member.place != Place::Serving {
            let place = word(Some(member.place));
            let name = &chain.name;
            return Err(Failure::new(
                Code::Failure,
                format!("server {server} is {place}: only one that serves can head the chain {name}"),
            ));
        }
        if !heads(&table, server) {
            chain.ask(|wishes| wishes.promote = Some(server)).await?;
        }
        self.waits.end(chain, server, ("it heads the chain", "heads"), |table| heads(table, server)).await
    }
}
