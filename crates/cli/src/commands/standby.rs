//! `esker standby`: how a primary and its standby stand, and which of them is the primary.
//!
//! ```text
//! status  → both are asked → lines, or JSON
//! promote → a standby that runs, or its store → the primary is fenced → the standby is the primary
//! release → a synchronous primary that waits for its standby → it goes on alone
//!         → the store of a primary that does not run → its pair is dissolved
//! ```

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use esker_member::pair::{Calls, Promotion, Role, Stand, dissolve, promote};
use esker_peers::TlsFiles;
use serde_json::json;

use super::serve::pair_address;
use super::{builder, tell};
use crate::config::Settings;
use crate::exit::{Code, Failure};

/// The arguments of `esker standby`.
#[derive(Args)]
pub struct StandbyArguments {
    #[command(subcommand)]
    command: StandbyCommand,
}

#[derive(Subcommand)]
enum StandbyCommand {
    /// Show how a server of a pair stands, and how far its standby is
    Status(Status),
    /// Make a standby the primary: the other is told to answer no more
    Promote(Promote),
    /// Have a synchronous primary whose standby is away go on alone, until a standby is in step again; or end the pair
    /// of a primary's store, so that a lone server may serve it
    Release(Release),
}

#[derive(Args)]
struct Status {
    /// The server, by its --peer-listen; without it peer_listen of the configuration
    #[arg(long, value_name = "URL")]
    at: Option<String>,
    /// As one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Promote {
    /// The standby's store, where no server has it open
    #[arg(long, short, value_name = "PATH", conflicts_with = "at", required_unless_present = "at")]
    store: Option<String>,
    /// The standby, while it runs, by its --peer-listen: it first takes what its primary has still to send
    #[arg(long, value_name = "URL")]
    at: Option<String>,
    /// With --store: where the primary is told to answer no more, instead of where the standby followed it
    #[arg(long, value_name = "URL", conflicts_with = "at")]
    fence: Option<String>,
    /// Also where the primary cannot be told, or has what the standby lacks
    #[arg(long)]
    force: bool,
    /// As one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Release {
    /// The primary, by its --peer-listen; without it peer_listen of the configuration
    #[arg(long, value_name = "URL")]
    at: Option<String>,
    /// A primary's store, where no server has it open: its pair is dissolved, and its standby is not to be promoted
    #[arg(long, short, value_name = "PATH", conflicts_with = "at")]
    store: Option<String>,
    /// As one JSON object
    #[arg(long)]
    json: bool,
}

/// The certificates by which servers are reached.
fn tls(settings: &Settings) -> Option<TlsFiles> {
    let cluster = &settings.cluster;
    let is_given = !cluster.peer_tls_cert.is_empty();
    is_given.then(|| TlsFiles {
        certificate: cluster.peer_tls_cert.clone().into(),
        key: cluster.peer_tls_key.clone().into(),
        authorities: cluster.peer_tls_ca.clone().into(),
    })
}

fn failed(why: impl Into<String>) -> Failure {
    Failure::new(Code::Failure, why)
}

/// The server, and its address.
async fn reach(settings: &Settings, at: Option<&str>) -> Result<(Calls, String), Failure> {
    let address = pair_address(at.unwrap_or(&settings.cluster.peer_listen))?;
    let calls = Calls::connect(&address, tls(settings).as_ref()).await;
    Ok((calls.map_err(|why| failed(format!("grpc://{address}: {why}")))?, address))
}

impl StandbyArguments {
    /// Runs the command.
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        match self.command {
            StandbyCommand::Status(status) => runtime.block_on(status.run(settings)),
            StandbyCommand::Promote(promote) => promote.run(settings, &runtime),
            StandbyCommand::Release(Release { store: Some(location), json, .. }) => released(settings, &location, json),
            StandbyCommand::Release(release) => runtime.block_on(release.run(settings)),
        }
    }
}

impl Status {
    async fn run(self, settings: &Settings) -> Result<(), Failure> {
        let (mut calls, address) = reach(settings, self.at.as_deref()).await?;
        let stand = calls.stand().await.map_err(|why| failed(format!("grpc://{address}: {why}")))?;
        let record = &stand.record;
        let lag = stand.lag();
        let value = json!({
            "role": record.role.word(), "epoch": record.epoch, "mode": mode(&stand), "in_step": record.in_step,
            "applied": stand.applied, "committed": stand.committed, "lag": lag,
            "peer": record.peer, "connected": stand.reaches, "heard_ms_ago": stand.heard_ms_ago,
            "whole": !stand.part, "kept_bytes": stand.kept_bytes, "copied_bytes": stand.copied_bytes,
            "trouble": stand.trouble,
        });
        tell(self.json, &value, &lines(&stand))
    }
}

fn mode(stand: &Stand) -> &'static str {
    if stand.sync { "sync" } else { "async" }
}

/// How a server stands, for people.
fn lines(stand: &Stand) -> String {
    let record = &stand.record;
    let mut text = format!("{:<11}epoch {}, {}\n", record.role.word(), record.epoch, mode(stand));
    let mut line = |name: &str, words: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name:<11}{words}");
    };
    line("applied", stand.applied.to_string());
    let peer = if record.peer.is_empty() { "none yet".to_owned() } else { format!("grpc://{}", record.peer) };
    let heard = match stand.heard_ms_ago {
        Some(ms) => format!("{peer}, heard of {ms} ms ago{}", if stand.reaches { "" } else { ", not connected" }),
        None => format!("{peer}, not heard of since this server began"),
    };
    let lag = match (stand.copied_bytes, stand.lag()) {
        (Some(bytes), _) => format!("a copy is under way: {} looked at", esker::ByteSize(bytes)),
        (None, Some(lag)) => format!("{lag} operations"),
        (None, None) => "not known".to_owned(),
    };
    match record.role {
        Role::Primary => {
            line("standby", heard);
            line("lag", lag);
            let acknowledged = match (stand.sync, record.in_step) {
                (true, true) => "once they are durable on both: the standby is in step",
                (true, false) => "once they are durable here: no standby is in step yet",
                (false, _) => "once they are durable here",
            };
            line("writes", format!("acknowledged {acknowledged}"));
            line("kept", stand.kept_bytes.map_or("not known".into(), |kept| esker::ByteSize(kept).to_string()));
        }
        Role::Standby => {
            line("primary", heard);
            line("lag", lag);
            let holds = if stand.part { "part of a copy: it cannot be promoted" } else { "a state of its primary" };
            line("holds", holds.to_owned());
        }
        Role::Deposed => line("primary", peer),
    }
    if !stand.trouble.is_empty() {
        line("trouble", stand.trouble.clone());
    }
    text
}

impl Promote {
    fn run(self, settings: &Settings, runtime: &tokio::runtime::Runtime) -> Result<(), Failure> {
        let (promotion, next) = match &self.store {
            Some(location) => (self.of_store(settings, runtime, location)?, "start it without --follow"),
            None => {
                let promoted = runtime.block_on(async {
                    let (mut calls, address) = reach(settings, self.at.as_deref()).await?;
                    let promoted = calls.promote(self.force).await;
                    promoted.map_err(|why| failed(format!("grpc://{address}: {why}")))
                });
                (promoted?, "it answers now; start it without --follow the next time")
            }
        };
        let Promotion { epoch, lacks, told } = promotion;
        let value = json!({"epoch": epoch, "lacks": lacks, "told": told});
        tell(self.json, &value, &format!("promoted, with epoch {epoch}: {told}; {next}\n"))
    }

    fn of_store(
        &self,
        settings: &Settings,
        runtime: &tokio::runtime::Runtime,
        location: &str,
    ) -> Result<Promotion, Failure> {
        let fence = self.fence.as_deref().map(pair_address).transpose()?;
        let opened = builder(settings).create(false).open(location).map_err(Failure::from);
        let store = opened.map_err(|failure| match failure.code() {
            Code::InUse => Failure::new(
                Code::InUse,
                format!("{failure}. A standby that runs is promoted with --at and its --peer-listen"),
            ),
            _ => failure,
        })?;
        let promoted =
            runtime.block_on(promote(&*store.objects(), fence.as_deref(), tls(settings).as_ref(), self.force));
        let promoted = promoted.map_err(|error| Failure::of(Code::Failure, &error));
        store.close().map_err(Failure::from)?;
        promoted
    }
}

fn released(settings: &Settings, location: &str, json: bool) -> Result<(), Failure> {
    let store = builder(settings).create(false).open(location).map_err(Failure::from)?;
    let dissolved = dissolve(&*store.objects()).map_err(|error| Failure::of(Code::Failure, &error));
    store.close().map_err(Failure::from)?;
    let was = dissolved?;
    let text = "released: this store is of no pair any more, and a lone server may serve it; do not promote the store \
                that was its standby\n";
    tell(json, &json!({"was_in_step": was}), text)
}

impl Release {
    async fn run(self, settings: &Settings) -> Result<(), Failure> {
        let (mut calls, address) = reach(settings, self.at.as_deref()).await?;
        let was = calls.release().await.map_err(|why| failed(format!("grpc://{address}: {why}")))?;
        let told = if was { "writes waited for its standby" } else { "writes did not wait for a standby" };
        let value = json!({"was_in_step": was});
        let text = format!("released: {told}; the primary goes on alone until a standby is in step\n");
        tell(self.json, &value, &text)
    }
}
