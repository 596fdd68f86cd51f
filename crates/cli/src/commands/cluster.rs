//! `esker cluster`: which servers hold which chain, what becomes of it, and what is to.
//!
//! ```text
//! init, spread    → the first table; which of several chains keeps which slots of keys
//! status, chains  → tables, leases, what is asked for → lines, or JSON
//! add             → the next table                               ┐
//! remove, drain, undrain, promote → what is asked of the chain   ┴→ its servers carry it out → waited for
//! ```
//!
//! Invariant: no command changes how a member that takes part stands: that is its own and the manager's.

mod chain;
mod changing;
mod ring;
mod status;
mod waiting;

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{Args, Subcommand};
use esker_chain::{Incarnation, Member, Place, ServerId, Table};
use esker_cluster::{Coordinator, Location, Options, Slots};

use self::chain::{Chain, SERVERS_MAX, failure};
use self::changing::{Add, Drain, Move, Promote, Remove, Undrain};
pub use self::ring::RingArguments;
use self::status::{Chains, Status};
use super::print;
use crate::config::Settings;
use crate::exit::Failure;

/// The arguments of `esker cluster`.
#[derive(Args)]
pub struct ClusterArguments {
    /// The coordinator and the cluster's root in it, such as zk://h1,h2,h3/esker; without it the configuration's
    #[arg(long = "cluster", value_name = "URL", global = true)]
    location: Option<String>,
    /// The chain; without it the configuration's
    #[arg(long, value_name = "NAME", global = true)]
    chain: Option<String>,
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Subcommand)]
enum ClusterCommand {
    /// Make a chain of these servers: what the first of them holds is what the chain holds
    Init(Init),
    /// Make chains that share the keys: each keeps an even part of the slots of Redis Cluster
    Spread(Spread),
    /// Show how a chain stands: its servers, how far each is, their leases, what is asked for
    Status(Status),
    /// Show all chains
    Chains(Chains),
    /// Make a server a member of the chain: what the chain holds is put in place of what it holds
    Add(Add),
    /// Make a server no member any more; if it heads the chain, the next one does then
    Remove(Remove),
    /// Put one server in another's place: the second is added and brought up, then the first is removed
    Move(Move),
    /// Have a server hand over and serve nothing, as a member that is kept for later: until `undrain`
    Drain(Drain),
    /// Have a server that was drained serve again, after what it missed is brought to it
    Undrain(Undrain),
    /// Have a server that serves head the chain: those before it leave one after the other, and are brought up anew
    Promote(Promote),
}

#[derive(Args)]
struct Init {
    /// The servers' numbers, such as 1,2,3
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', required = true, value_parser = clap::value_parser!(u32).range(1..))]
    servers: Vec<u32>,
}

#[derive(Args)]
struct Spread {
    /// The chains with their servers, the first of which heads the chain first: users-1=1,2,3 users-2=2,3,1. Of what a
    /// first server holds already, its chain serves the keys of its own slots
    #[arg(value_name = "CHAIN=N,N,…", required = true, value_parser = chain_of)]
    chains: Vec<(String, Vec<u32>)>,
}

impl ClusterArguments {
    /// Runs the command.
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        let (runtime, chain) = connect(self.location, self.chain, settings)?;
        runtime.block_on(async {
            match self.command {
                ClusterCommand::Init(init) => init.run(&chain).await,
                ClusterCommand::Spread(spread) => spread.run(&chain).await,
                ClusterCommand::Status(status) => status.run(&chain).await,
                ClusterCommand::Chains(chains) => chains.run(&chain).await,
                ClusterCommand::Add(add) => add.run(&chain).await,
                ClusterCommand::Remove(remove) => remove.run(&chain).await,
                ClusterCommand::Move(moving) => moving.run(&chain).await,
                ClusterCommand::Drain(drain) => drain.run(&chain).await,
                ClusterCommand::Undrain(undrain) => undrain.run(&chain).await,
                ClusterCommand::Promote(promote) => promote.run(&chain).await,
            }
        })
    }
}

/// A chain, and the coordinator that knows of it, where arguments or else settings say.
fn connect(
    location: Option<String>,
    chain: Option<String>,
    settings: &Settings,
) -> Result<(tokio::runtime::Runtime, Chain), Failure> {
    let location = location.unwrap_or_else(|| settings.cluster.location.clone());
    if location.is_empty() {
        return Err(Failure::usage("no cluster: give --cluster zk://h1,h2,h3/esker, or location in [cluster]"));
    }
    let location: Location = location.parse().map_err(|error| Failure::usage(format!("cluster: {error}")))?;
    let name = chain.unwrap_or_else(|| settings.cluster.chain.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let lease = settings.cluster.lease.0.0;
    let options = Options { session: lease, call: lease.max(Duration::from_secs(5)) };
    Ok((runtime, Chain { coordinator: Coordinator::new(location, options), name, lease }))
}

/// The first table of a chain of these servers.
fn first(servers: &[u32]) -> Result<Table, Failure> {
    if servers.is_empty() || servers.len() > SERVERS_MAX {
        let count = servers.len();
        return Err(Failure::usage(format!("{count} servers: a chain has 1 at least, and {SERVERS_MAX} at most")));
    }
    if let Some(twice) = servers.iter().enumerate().find(|(at, server)| servers[..*at].contains(server)) {
        return Err(Failure::usage(format!("server {} is named twice", twice.1)));
    }
    let member = |(at, server): (usize, &u32)| Member {
        server: ServerId(*server),
        incarnation: Incarnation(0),
        // The first is waited for; the others are brought up to it.
        place: if at == 0 { Place::LastServing } else { Place::Offline },
        since: 1,
    };
    let mut table = Table { version: 1, members: servers.iter().enumerate().map(member).collect() };
    table.arrange();
    Ok(table)
}

impl Init {
    async fn run(self, chain: &Chain) -> Result<(), Failure> {
        let (table, stores) = (first(&self.servers)?, BTreeMap::new());
        chain.coordinator.init_chain(&chain.name, &table, &stores).await.map_err(failure)?;
        let first = self.servers[0];
        print(&format!("made the chain {}: it begins to serve with what server {first} holds\n", chain.name))
    }
}

/// A chain and its servers, as an argument.
fn chain_of(text: &str) -> Result<(String, Vec<u32>), String> {
    let expected = || format!("{text:?}: expected CHAIN=SERVER,SERVER,… such as users-1=1,2,3");
    let (name, servers) = text.split_once('=').ok_or_else(expected)?;
    let servers: Result<Vec<u32>, _> = servers.split(',').map(str::parse).collect();
    let servers = servers.ok().filter(|servers| !servers.contains(&0)).ok_or_else(expected)?;
    Ok((name.to_owned(), servers))
}

impl Spread {
    async fn run(self, chain: &Chain) -> Result<(), Failure> {
        let stores = BTreeMap::new();
        let mut tables = Vec::new();
        for (name, servers) in &self.chains {
            if tables.iter().any(|(other, _)| other == name) {
                return Err(Failure::usage(format!("the chain {name} is named twice")));
            }
            tables.push((name.clone(), first(servers)?));
        }
        let names: Vec<_> = tables.iter().map(|(name, _)| name.as_str()).collect();
        let slots = Slots::even(&names).ok_or_else(|| Failure::usage("more chains than there are slots"))?;
        let chains: Vec<_> = tables.iter().map(|(name, table)| (name.as_str(), table, &stores)).collect();
        chain.coordinator.init_chains(&chains, Some(&slots)).await.map_err(failure)?;
        let mut text = String::new();
        for part in slots.parts() {
            text.push_str(&format!(
                "made the chain {}: it keeps the slots {} to {}\n",
                part.chain, part.first, part.last
            ));
        }
        print(&text)
    }
}
