//! `esker cluster`: which servers hold which chain, and what becomes of it.
//!
//! arguments → coordinator → table of the chain, what its servers have registered → lines, or JSON

use std::fmt::Write as _;
use std::time::Duration;

use clap::{Args, Subcommand};
use esker_chain::{Incarnation, Member, Place, ServerId, Table};
use esker_cluster::{Coordinator, Freshness, Location, Options};
use serde_json::json;

use super::{print, tell};
use crate::config::Settings;
use crate::exit::{Code, Failure};

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
    /// Show how a chain stands
    Status(Status),
}

#[derive(Args)]
struct Init {
    /// The servers' numbers, such as 1,2,3
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', required = true, value_parser = clap::value_parser!(u32).range(1..))]
    servers: Vec<u32>,
}

#[derive(Args)]
struct Status {
    /// As one JSON object
    #[arg(long)]
    json: bool,
}

/// Most servers of a chain.
const SERVERS_MAX: usize = 5;

impl ClusterArguments {
    /// Runs the command.
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        let location = self.location.unwrap_or_else(|| settings.cluster.location.clone());
        if location.is_empty() {
            return Err(Failure::usage("no cluster: give --cluster zk://h1,h2,h3/esker, or location in [cluster]"));
        }
        let location: Location = location.parse().map_err(|error| Failure::usage(format!("cluster: {error}")))?;
        let chain = self.chain.unwrap_or_else(|| settings.cluster.chain.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let lease = settings.cluster.lease.0.0;
        let options = Options { session: lease, call: lease.max(Duration::from_secs(5)) };
        let coordinator = Coordinator::new(location, options);
        runtime.block_on(async {
            match self.command {
                ClusterCommand::Init(init) => init.run(&coordinator, &chain).await,
                ClusterCommand::Status(status) => status.run(&coordinator, &chain).await,
            }
        })
    }
}

fn failure(error: esker_cluster::Error) -> Failure {
    let code = match &error {
        esker_cluster::Error::Exists(_) | esker_cluster::Error::NoChain(_) | esker_cluster::Error::Name(_) => {
            Code::Usage
        }
        _ => Code::Failure,
    };
    Failure::of(code, &error)
}

impl Init {
    async fn run(self, coordinator: &Coordinator, chain: &str) -> Result<(), Failure> {
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
        coordinator.init_chain(chain, &table, &std::collections::BTreeMap::new()).await.map_err(failure)?;
        print(&format!("made the chain {chain}: it begins to serve with what server {} holds\n", servers[0]))
    }
}

/// The word for how a server stands.
fn word(place: Option<Place>) -> &'static str {
    match place {
        Some(Place::Serving) => "serving",
        Some(Place::Syncing) => "syncing",
        Some(Place::Waiting) => "waiting",
        Some(Place::Offline) => "offline",
        Some(Place::LastServing) => "last serving",
        None => "no member",
    }
}

impl Status {
    async fn run(self, coordinator: &Coordinator, chain: &str) -> Result<(), Failure> {
        let (table, _) = coordinator.table(chain, Freshness::Latest).await.map_err(failure)?;
        let servers = coordinator.servers().await.map_err(failure)?;
        let head = table.head().map(|head| head.server);
        let mut text = format!("chain {chain}, table {}\n", table.version);
        let mut rows = Vec::new();
        let members = table.members.iter().map(|member| (member.server, Some(*member)));
        let others = servers.keys().filter(|server| table.member(**server).is_none()).map(|server| (*server, None));
        for (server, member) in members.chain(others) {
            let place = word(member.map(|member| member.place));
            let served = servers.get(&server).map(|record| &record.served);
            let role = match (head == Some(server), member.map(|member| member.place)) {
                (true, _) => "head",
                (false, Some(Place::Serving)) => "replica",
                _ => "",
            };
            let peer = served.map_or("", |served| &served.peer);
            let resp = served.and_then(|served| served.resp.as_deref()).unwrap_or("");
            let start = servers.get(&server).map_or(0, |record| record.incarnation.0);
            // Writing to a string does not fail.
            let _ =
                writeln!(text, "server {:<5} {place:<13} {role:<8} start {start:<6} {resp:<22} peers {peer}", server.0);
            rows.push(json!({
                "server": server.0, "place": place, "role": role, "start": start,
                "since": member.map(|member| member.since), "resp": resp, "peer": peer,
                "grpc": served.and_then(|served| served.grpc.clone()),
                "nbd": served.and_then(|served| served.nbd.clone()),
            }));
        }
        let value = json!({
            "chain": chain, "version": table.version, "head": head.map(|head| head.0), "servers": rows,
        });
        tell(self.json, &value, &text)
    }
}
