//! `esker log sequencer`: hands out the positions of logs to many writers, or stands by for the sequencer that does.
//!
//! view names a sequencer → ping it → silent for the lease → take over (`Log::lead`), under a new epoch → serve →
//! deposed → stand by
//!
//! Losing it loses nothing: the writers seal and count on from what stands in the store. Two at once harm nothing: one
//! epoch is over, and the store refuses what is written under it.
//!
//! Invariants:
//! 1. A sequencer takes over only from one that was silent for the lease, and from none that answers.
//! 2. One that was deposed stops handing out as soon as it sees it, says so, and stands by.
//! 3. Who raised the epoch and goes on asking here is left time for what he raised it for: twice as long each time that
//!    he did not get done.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use esker::log::{Connect, Leader, Log, Session};
use esker::remote;
use esker_server::front::TlsFiles;
use esker_server::grpc::{Address, Config, Faces, Sequencers, Server};

use super::builder;
use super::serve::rpc::{self, Rpc};
use crate::config::Settings;
use crate::exit::Failure;

/// The arguments of `esker log sequencer`.
#[derive(Args)]
pub struct LogSequencer {
    /// Address to hand out positions at; port 0 picks a free one
    #[arg(long, value_name = "ADDRESS")]
    listen: String,
    /// Address that writers reach it by, where that is another
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// A sequencer that is silent for so long is taken over from
    #[arg(long, value_name = "TIME", default_value = "500ms")]
    lease: esker::Period,
    /// File whose first line other sequencers and writers send as their token
    #[arg(long, value_name = "FILE", default_value = "")]
    token_file: String,
    /// Certificate chain (PEM), for addresses beyond loopback
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Authorities (PEM) that the certificates of other sequencers are checked with; without it those of the store's
    /// location
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    authorities: Option<PathBuf>,
    /// Logs whose positions are handed out
    #[arg(value_name = "LOG", required = true)]
    logs: Vec<String>,
}

/// Who raises the epoch is left alone for this part of the lease at first.
const GRACES_PER_LEASE: u32 = 20;

/// What this process is for a log.
enum Duty {
    /// Another process hands out positions; silent since then, if it is.
    Standby { silent: Option<Instant> },
    /// This process does.
    Leading(Leading),
}

struct Leading {
    leader: Arc<Leader>,
    since: Instant,
    /// How long who raises the epoch is left alone.
    grace: Duration,
    /// The view's epoch and version when it was first seen to be raised, and when that was.
    raised: Option<(u64, u64, Instant)>,
}

impl Leading {
    /// Whether it is time to take over anew from who raised the epoch: he changed the view again, so that he is done,
    /// or his time is over.
    fn is_due(&mut self, epoch: u64, version: u64) -> bool {
        match self.raised {
            Some((raised, first, since)) if raised == epoch => first != version || since.elapsed() >= self.grace,
            other => {
                let since = other.map_or_else(Instant::now, |(.., since)| since);
                self.raised = Some((epoch, version, since));
                other.is_some() && since.elapsed() >= self.grace
            }
        }
    }
}

struct Watched {
    log: Log,
    duty: Duty,
}

/// What all logs share.
struct Desk {
    sequencers: Sequencers,
    connect: remote::Sequencers,
    /// What the views name this process by.
    address: String,
    lease: Duration,
}

impl LogSequencer {
    /// Runs the command on the store at `location` until a signal.
    pub fn run(self, settings: &Settings, location: &str) -> Result<(), Failure> {
        let lease = self.lease.0;
        if lease < Duration::from_millis(20) || lease > Duration::from_secs(60) {
            return Err(Failure::usage(format!("lease {lease:?}: expected 20ms to 60s")));
        }
        let token = rpc::token(&self.token_file)?;
        let tls = match (self.tls_cert, self.tls_key) {
            (Some(certificate), Some(key)) => Some(TlsFiles { certificate, key, client_authorities: None }),
            _ => None,
        };
        let store = builder(settings).expire_interval(Duration::ZERO).open(location)?;
        // Sequencers are behind TLS all together, as writers find them by one set of options.
        let authorities = match (&tls, self.authorities) {
            (None, _) => None,
            (Some(_), Some(file)) => Some(file),
            (Some(_), None) => {
                let options = store.server_options();
                Some(options.and_then(|options| options.authorities).ok_or_else(|| {
                    Failure::usage(
                        "--tls-cert needs --authorities, or a store at grpc://…?authorities=FILE: without them other sequencers cannot be asked whether they are alive",
                    )
                })?)
            }
        };
        let options = remote::Options { token: token.clone(), authorities, ..remote::Options::default() };
        let connect = remote::Sequencers::new(options, lease);
        let session = Session { lease_ms: lease.as_millis() as u64, ..store.log_session(None) };
        let logs = esker::log::Logs::open(store.objects(), session).map_err(esker::Error::from)?;
        let sequencers = Sequencers::default();
        let listen = super::serve::addresses(std::slice::from_ref(&self.listen))?;
        let config = Config { listen, tls, token, ..Config::default() };
        let faces = Faces { sequencers: Some(sequencers.clone()), ..Faces::default() };
        let server = Server::bind(config, faces).map_err(rpc::failure)?;
        let own = match server.addresses().first() {
            Some(Address::Tcp(address) | Address::Tls(address)) => address.to_string(),
            _ => return Err(Failure::usage(format!("address {:?}: expected HOST:PORT", self.listen))),
        };
        println!("sequencer  {own} (lease {} ms)", lease.as_millis());
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
        }
        let ended = Arc::clone(&stop);
        let server = Rpc::run(server, move || ended.store(true, Ordering::SeqCst))?;
        let desk = Desk { sequencers, connect, address: self.advertise.unwrap_or(own), lease };
        let watched = desk.watch(&logs, &self.logs, &stop);
        let stopped = server.stop();
        watched.and(stopped).and(store.close().map_err(Failure::from))
    }
}

impl Desk {
    /// Looks after the logs until `stop`.
    fn watch(&self, logs: &esker::log::Logs, names: &[String], stop: &AtomicBool) -> Result<(), Failure> {
        let mut watched = BTreeMap::new();
        for name in names {
            let log = logs.log(name).map_err(esker::Error::from)?;
            watched.insert(name, Watched { log, duty: Duty::Standby { silent: None } });
        }
        while !stop.load(Ordering::SeqCst) {
            for (name, one) in &mut watched {
                if let Err(error) = self.look(name, one) {
                    tracing::warn!(log = %name, %error, "cannot look after the log; trying again");
                }
            }
            // Sooner, if a writer knows of a newer epoch than is handed out under.
            self.sequencers.wait_outdated(self.lease / 5);
        }
        Ok(())
    }

    /// One look at a log: whether this process still leads it, or has to.
    fn look(&self, name: &str, watched: &mut Watched) -> esker::log::Result<()> {
        let view = watched.log.refresh()?;
        match &mut watched.duty {
            Duty::Leading(own) if view.epoch == own.leader.epoch() && view.sequencer == self.address => return Ok(()),
            Duty::Leading(own) if view.sequencer == self.address && view.sealed.is_none() => {
                // Raised by a client that goes on asking here: a writer that was opened, a change of shape.
                if !own.is_due(view.epoch, view.version) {
                    return Ok(());
                }
                tracing::info!(
                    log = name,
                    from = own.leader.epoch(),
                    to = view.epoch,
                    "the epoch was raised; taking over anew"
                );
                return self.take_over(name, watched);
            }
            Duty::Leading(own) => {
                self.sequencers.stop(watched.log.id());
                println!("deposed    {name} at epoch {}: {}", own.leader.epoch(), told(&view.sequencer));
                watched.duty = Duty::Standby { silent: None };
            }
            Duty::Standby { .. } => {}
        }
        let Duty::Standby { silent } = &mut watched.duty else { return Ok(()) };
        if view.sealed.is_some() || !view.owner.is_empty() {
            return Ok(());
        }
        if !view.sequencer.is_empty() && view.sequencer != self.address {
            let asking = Instant::now();
            let asked = self.connect.connect(&view.sequencer);
            match asked.and_then(|sequencer| sequencer.tail(watched.log.id(), view.epoch)) {
                Ok(_) => {
                    *silent = None;
                    return Ok(());
                }
                // It was not asked: that says nothing of it.
                Err(error @ esker::log::Error::Invalid { .. }) => return Err(error),
                Err(_) => {}
            }
            let since = *silent.get_or_insert(asking);
            if since.elapsed() < self.lease {
                return Ok(());
            }
            println!("silent     {name}: {} for {} ms", view.sequencer, since.elapsed().as_millis());
        }
        self.take_over(name, watched)
    }

    fn take_over(&self, name: &str, watched: &mut Watched) -> esker::log::Result<()> {
        let began = Instant::now();
        let grace = match &watched.duty {
            Duty::Leading(own) if own.since.elapsed() < 4 * self.lease => (2 * own.grace).min(self.lease),
            _ => self.lease / GRACES_PER_LEASE,
        };
        let leader = watched.log.lead(&self.address)?;
        self.sequencers.lead(watched.log.id(), Arc::clone(&leader));
        let (epoch, tail) = (leader.epoch(), leader.tail().position);
        println!(
            "leading    {name} at epoch {epoch} from position {tail}, taken over in {} ms",
            began.elapsed().as_millis()
        );
        watched.duty = Duty::Leading(Leading { leader, since: Instant::now(), grace, raised: None });
        Ok(())
    }
}

fn told(sequencer: &str) -> String {
    match sequencer {
        "" => "whoever writes hands out positions now".into(),
        address => format!("{address} hands out positions now"),
    }
}

#[cfg(test)]
mod tests {
    use esker::log::{Logs, Options};

    use super::*;

    #[test]
    fn who_raises_the_epoch_is_left_alone_until_he_is_done_or_his_time_is_over() {
        let store = esker::Store::open("memory:").unwrap();
        let logs = Logs::open(store.objects(), store.log_session(None)).unwrap();
        let leader = logs.create("log", Options::default()).unwrap().lead("here").unwrap();
        let leading = |grace| Leading { leader: Arc::clone(&leader), since: Instant::now(), grace, raised: None };
        let mut patient = leading(Duration::from_secs(600));
        assert!(!patient.is_due(3, 10) && !patient.is_due(3, 10), "just raised");
        assert!(patient.is_due(3, 11), "he changed the view again");
        let mut patient = leading(Duration::from_secs(600));
        assert!(!patient.is_due(3, 10) && !patient.is_due(4, 11), "raised again, by another");
        assert!(patient.is_due(4, 12));
        let mut hasty = leading(Duration::ZERO);
        assert!(!hasty.is_due(3, 10), "he is left one look");
        assert!(hasty.is_due(3, 10), "his time is over");
    }
}
