//! `esker serve --standby` and `--follow`: one of two servers without a coordinator.
//!
//! ```text
//! the store is open → its record: a primary → the faces over its chain of two, until another is promoted
//!                               : a standby → clients are told where the primary is, until this one is promoted
//!                               : deposed, part of a copy → refused
//! ```
//!
//! Invariant: a store of a pair is served only as what its record says, also by a server that stands alone.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use esker_chain::{ChainStore, ServerId};
use esker_member::View;
use esker_member::pair::{Mode, Pair, PairConfig, Role, Stand};
use esker_server::http::{Figure, Value};
use esker_server::resp::Cluster;
use signal_hook::iterator::Signals;

use super::clustered::{fresh, kept, peers, served};
use super::nodes::Nodes;
use super::plan::{BesideServing, Plan, Served, Whole};
use super::terms::{Doors, Heads, Terms};
use crate::config::StandbySettings;
use crate::exit::{Code, Failure};

/// The flags of `esker serve` about a standby.
#[derive(Args, Default)]
pub struct PairFlags {
    /// Take a standby, at --peer-listen: async (writes never wait for it) or sync (once it is in step, a write is
    /// acknowledged only when it is durable on both)
    #[arg(long = "standby", value_name = "MODE", conflicts_with = "cluster")]
    standby: Option<String>,
    /// Be the standby of the primary that listens for it there, such as grpc://HOST:7600
    #[arg(long, value_name = "URL", conflicts_with = "cluster")]
    follow: Option<String>,
    /// With --follow: put what the primary holds in the place of what this store holds, though it was never its standby
    #[arg(long, requires = "follow")]
    replace: bool,
}

impl PairFlags {
    /// Puts the flags over the configuration.
    pub fn apply(self, standby: &mut StandbySettings) {
        standby.mode = self.standby.unwrap_or_else(|| standby.mode.clone());
        standby.follow = self.follow.unwrap_or_else(|| standby.follow.clone());
    }

    /// Whether what the store holds may be replaced.
    pub fn replaces(&self) -> bool {
        self.replace
    }
}

/// `HOST:PORT` of a URL of a server of a pair.
///
/// # Errors
/// [`Failure::usage`], with what was expected.
pub fn address(url: &str) -> Result<String, Failure> {
    let address = url.strip_prefix("grpc://").unwrap_or(url).trim_end_matches('/');
    let is_one = address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if is_one && !address.contains('/') {
        return Ok(address.to_owned());
    }
    Err(Failure::usage(format!("{url:?}: expected the other server's peer_listen, such as grpc://HOST:7600")))
}

/// What this server is of a pair, and what it listens on; `None`: of none.
pub fn config(plan: &mut Plan, replaces: bool) -> Result<Option<(PairConfig, Doors)>, Failure> {
    let settings = &plan.settings;
    let StandbySettings { mode, follow } = &settings.standby;
    if mode.is_empty() && follow.is_empty() {
        return Ok(None);
    }
    if !settings.cluster.location.is_empty() {
        let why = "a server of a cluster has no standby: its chain has replicas (location in [cluster], and [standby])";
        return Err(Failure::usage(why));
    }
    let mode = match mode.as_str() {
        "" | "async" => Mode::Async,
        "sync" => Mode::Sync,
        other => return Err(Failure::usage(format!("standby = {other:?}: expected async or sync"))),
    };
    let follow = if follow.is_empty() { None } else { Some(address(follow)?) };
    // Its number and its cluster are those of the pair.
    let peers = peers(&settings.cluster, ServerId(0), "")?;
    let served = served(plan)?;
    if served.peer.is_empty() && peers.listen.ip().is_unspecified() {
        return Err(Failure::usage(format!(
            "peer_listen = {}: the other server cannot reach this one there. Say where it can: peer_announce = \
             HOST:PORT, in the section [cluster]",
            peers.listen
        )));
    }
    let seed = getrandom::u64().map_err(|error| Failure::new(Code::Failure, format!("random bytes: {error}")))?;
    let kept_bytes_max = kept(&settings.cluster);
    let config = PairConfig { mode, follow, replaces, peers, served, fresh: fresh()?, kept_bytes_max, seed };
    // What is acknowledged may be lost with an asynchronous primary.
    let doors = Doors::open(plan, mode == Mode::Async)?;
    Ok(Some((config, doors)))
}

/// The number by which clients are told of this server: those that are told of it are told that it heads nothing.
const ME: ServerId = ServerId(0);

/// Serves until the end of the process.
pub(super) fn serve(
    whole: Whole<'_>,
    signals: Signals,
    (config, doors): (PairConfig, Doors),
    (http, stopping): BesideServing<'_>,
) -> Result<Served, Failure> {
    let Whole { store, builder, loading, mut parts, seat } = whole;
    let nodes = Nodes::new(ME, config.served.resp.clone(), None).map_err(Failure::usage)?;
    parts.resp.cluster = nodes.clone().map(|nodes| nodes as Arc<dyn Cluster>);
    let pair = Pair::start(store.objects(), config).map_err(|error| Failure::of(Code::Failure, &error))?;
    let pair = Arc::new(pair);
    let (figures_of, ready_of) = (Arc::clone(&pair), Arc::clone(&pair));
    seat.beside(
        Box::new(move || figures_of.stand().iter().flat_map(figures).collect()),
        Box::new(move || ready(ready_of.stand().as_ref())),
    );
    say!("peers      {}", pair.peer_address());
    let told = stopping.listen(signals)?;
    let terms = Terms {
        store,
        heads: &pair,
        alone: true,
        nodes: nodes.as_deref(),
        ring: None,
        parts,
        doors,
        builder,
        seat: &seat,
        http,
        stopping,
    };
    let served = terms.run(loading);
    pair.stop();
    Ok((served, told))
}

impl Heads for Pair {
    fn view(&self) -> Arc<View> {
        Pair::view(self)
    }

    fn wait(&self, turn: u64, within: Duration) -> Result<(u64, Arc<View>), Failure> {
        Pair::wait(self, turn, within).map_err(|error| Failure::of(Code::Failure, &*error))
    }

    fn store(&self) -> Option<ChainStore> {
        Pair::store(self)
    }

    fn line(&self, _: &View) -> String {
        let Some(stand) = self.stand() else { return "stopping".into() };
        let record = &stand.record;
        match record.role {
            Role::Primary => format!(
                "primary    this server answers, with epoch {} ({})",
                record.epoch,
                if stand.sync { "sync" } else { "async" }
            ),
            Role::Standby if record.peer.is_empty() => "standby    its primary has not answered yet".into(),
            Role::Standby => format!("standby    of grpc://{}, with epoch {}", record.peer, record.epoch),
            Role::Deposed => format!("deposed    another was promoted, with epoch {}", record.epoch),
        }
    }
}

/// Whether this server answers, or could take the place of the one that does.
fn ready(stand: Option<&Stand>) -> Result<(), String> {
    let Some(stand) = stand else { return Err("this server stops".into()) };
    match stand.record.role {
        Role::Primary if !stand.trouble.is_empty() => Err(stand.trouble.clone()),
        Role::Primary => Ok(()),
        Role::Standby if stand.part => Err("this standby is being brought up: it holds part of a copy".into()),
        Role::Standby => Ok(()),
        Role::Deposed => Err("this server was deposed: another was promoted".into()),
    }
}

/// How the pair stands, for those who watch.
fn figures(stand: &Stand) -> Vec<Figure> {
    let gauge =
        |name: &str, help: &str, value: f64| Figure::new(format!("esker_standby_{name}"), help, Value::Gauge(value));
    let is = |is: bool| f64::from(u8::from(is));
    let roles = [Role::Primary, Role::Standby, Role::Deposed].map(|role| {
        let help = "1 for which part this server has in its pair";
        gauge("role", help, is(stand.record.role == role)).labelled("role", role.word())
    });
    let mut figures = Vec::from(roles);
    figures.extend([
        gauge("epoch", "How many promotions and the first primary make", stand.record.epoch as f64),
        gauge("sync", "1 where the primary is synchronous", is(stand.sync)),
        gauge("in_step", "1 where nothing is acknowledged without the standby", is(stand.record.in_step)),
        gauge("whole", "1 where this server holds a state, and not part of a copy", is(!stand.part)),
        gauge("connected", "1 where what is sent reaches the other server", is(stand.reaches)),
        gauge("applied", "Number of the last operation that is applied here", stand.applied as f64),
        gauge(
            "copied_bytes",
            "Bytes that the copy for the standby has gone through",
            stand.copied_bytes.unwrap_or(0) as f64,
        ),
    ]);
    // What is not known is not told: 0 would be taken for none.
    let kept = stand.kept_bytes;
    figures
        .extend(kept.map(|kept| gauge("kept_bytes", "Bytes of operations that are kept for the standby", kept as f64)));
    figures.extend(stand.lag().map(|lag| {
        gauge("lag", "Operations of the primary that the standby does not have, as far as known here", lag as f64)
    }));
    figures.extend(
        stand
            .heard_ms_ago
            .map(|ms| gauge("heard_seconds", "How long ago the other server was heard of", ms as f64 / 1e3)),
    );
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for url in ["grpc://h:7600", "h:7600", "grpc://h:7600/"] {
            assert_eq!(address(url).unwrap(), "h:7600");
        }
        assert_eq!(address("grpc://[::1]:7600").unwrap(), "[::1]:7600");
        for url in ["grpc://h", "h:", ":7600", "http://h:7600", "h:70000", ""] {
            let refused = address(url).unwrap_err().to_string();
            assert!(refused.contains("grpc://HOST:7600"), "{url}: {refused}");
        }
    }
}
