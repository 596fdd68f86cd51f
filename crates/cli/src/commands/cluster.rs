//! `esker cluster`: which servers hold which chain, what becomes of it, and what is to.
//!
//! ```text
//! init            → the first table
//! status, chains  → tables, leases, what is asked for → lines, or JSON
//! add             → the next table                               ┐
//! remove, drain, undrain, promote → what is asked of the chain   ┴→ its servers carry it out → waited for
//! ```
//!
//! Invariant: no command changes how a member that takes part stands: that is its own and the manager's.

mod chain;
mod changing;
mod status;
mod waiting;

use std::time::Duration;

use clap::{Args, Subcommand};
use esker_chain::{Incarnation, Member, Place, ServerId, Table};
use esker_cluster::{Coordinator, Location, Options};

use self::chain::{Chain, SERVERS_MAX, failure};
use self::changing::{Add, Drain, Move, Promote, Remove, Undrain};
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

impl ClusterArguments {
    /// Runs the command.
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        let location = self.location.unwrap_or_else(|| settings.cluster.location.clone());
        if location.is_empty() {
            return Err(Failure::usage("no cluster: give --cluster zk://h1,h2,h3/esker, or location in [cluster]"));
        }
        let location: Location = location.parse().map_err(|error| Failure::usage(format!("cluster: {error}")))?;
        let name = self.chain.unwrap_or_else(|| settings.cluster.chain.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let lease = settings.cluster.lease.0.0;
        let options = Options { session: lease, call: lease.max(Duration::from_secs(5)) };
        let chain = Chain { coordinator: Coordinator::new(location, options), name, lease };
        runtime.block_on(async {
            match self.command {
                ClusterCommand::Init(init) => init.run(&chain).await,
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

impl Init {
    async fn run(self, chain: &Chain) -> Result<(), Failure> {
        let servers = &self.servers;
        if servers.len() > SERVERS_MAX {
            return Err(Failure::usage(format!("{} servers: a chain has {SERVERS_MAX} at most", servers.len())));
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
        let stores = std::collections::BTreeMap::new();
        chain.coordinator.init_chain(&chain.name, &table, &stores).await.map_err(failure)?;
        print(&format!("made the chain {}: it begins to serve with what server {} holds\n", chain.name, servers[0]))
    }
}
