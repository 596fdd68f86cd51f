//! What `esker serve` is to serve: for each store of the process its settings, and what its protocols go by.
//!
//! settings by store → [`plans`] → limits that fit the descriptors → stores are opened
//!
//! Invariant: the first plan is that of a server with one store; sockets that a supervisor passes are its alone.

use std::path::PathBuf;
use std::sync::Arc;

use esker_server::http::Running;
use esker_server::resp::Loading;
use esker_server::{grpc, nbd, resp};

use super::passed::Sockets;
use super::seat::Seat;
use super::shared::Front;
use super::started::Parts;
use super::stopping::{Stopping, Told};
use super::{descriptors, disks, keys, rpc, thrift};
use crate::commands::builder;
use crate::config::Settings;
use crate::exit::{Code, Failure};

/// What is to be served of a store.
pub struct Plan {
    /// The settings.
    pub settings: Settings,
    /// The Redis protocol.
    pub resp: resp::Config,
    /// Disks.
    pub disks: Option<nbd::Config>,
    /// Logs and map.
    pub rpc: Option<grpc::Config>,
    /// A namespace of keys.
    pub thrift: Option<esker_server::thrift::Config>,
    /// The store among those of the process.
    pub seat: Arc<Seat>,
}

/// The plans, store by store.
pub fn plans(settings: Settings, front: &Front, sockets: Sockets) -> Result<Vec<Plan>, Failure> {
    let settings = settings.by_store()?;
    let several = settings.len() > 1;
    let mut sockets = Some(sockets);
    let mut plans = Vec::new();
    for settings in settings {
        let sockets = sockets.take().unwrap_or_default();
        let resp = keys::config(&settings, front, &sockets)?;
        let disks = disks::config(&settings.serve, &settings.store.location, front, sockets.nbd)?;
        let rpc = rpc::config(&settings.serve, front, sockets.grpc)?;
        let thrift = thrift::config(&settings.serve, front, sockets.thrift)?;
        let chain = settings.cluster.chain.as_str();
        if resp.off && disks.is_none() && rpc.is_none() && thrift.is_none() {
            let of = if several { format!(" of the chain {chain}") } else { String::new() };
            let why = format!("nothing{of} is served: no address of the Redis protocol, of NBD, gRPC or Thrift");
            return Err(Failure::usage(why));
        }
        let seat = Arc::new(Seat::new(if several { chain } else { "" }));
        plans.push(Plan { settings, resp, disks, rpc, thrift, seat });
    }
    Ok(plans)
}

/// Keeps the limits within the file descriptors that there are, beside peers and so many addresses of HTTP; what of it
/// is to be said.
pub fn fit(plans: &mut [Plan], http_doors: usize) -> Vec<String> {
    let descriptors = descriptors::raise();
    let has_peers = plans.iter().any(|plan| {
        let Settings { cluster, standby, .. } = &plan.settings;
        [&cluster.location, &standby.mode, &standby.follow].iter().any(|given| !given.is_empty())
    });
    let part = descriptors::part(descriptors, plans.len(), has_peers);
    let lines = plans.iter_mut().filter_map(|plan| {
        let Plan { resp, disks, rpc, thrift, .. } = plan;
        let lowered = descriptors::fit(part, resp, disks.as_mut(), rpc.as_mut(), thrift.as_mut(), http_doors)?;
        let of = plan.seat.chain().map(|chain| format!(" of the chain {chain}")).unwrap_or_default();
        Some(format!("{descriptors} file descriptors (ulimit -n) are enough for {lowered}{of}"))
    });
    lines.collect()
}

impl Plan {
    /// How the store is opened.
    pub fn builder(&self) -> Result<esker::Builder, Failure> {
        // Keys are expired by the server itself.
        let builder = builder(&self.settings).expire_interval(std::time::Duration::ZERO);
        let builder = builder.map_sweep(self.settings.serve.map_sweep);
        Ok(match rpc::sequencers(&self.settings.serve)? {
            Some(options) => builder.sequencers(options),
            None => builder,
        })
    }

    /// What is served of it, once it is open.
    pub fn parts(&self) -> Parts {
        let folder = Some(self.settings.serve.backup_folder.as_str()).filter(|folder| !folder.is_empty());
        let (resp, disks, rpc) = (self.resp.clone(), self.disks.clone(), self.rpc.clone());
        let (thrift, registry) = (self.thrift.clone(), self.settings.serve.thrift_registry.clone());
        Parts { resp, disks, rpc, thrift, ring: None, registry, backups: folder.map(PathBuf::from) }
    }
}

/// That this store may be served as a lone server's.
pub fn check_alone(store: &esker::Store) -> Result<(), Failure> {
    if store.is_shared() {
        // Its server has looked.
        return Ok(());
    }
    esker_member::pair::check_alone(&*store.objects()).map_err(|error| Failure::of(Code::Failure, &error))
}

/// A store that is open, and what is to be served of it.
pub struct Whole<'s> {
    /// The store.
    pub store: &'s esker::Store,
    /// How it was opened.
    pub builder: esker::Builder,
    /// What is listened on.
    pub loading: Loading,
    /// What is served of it.
    pub parts: Parts,
    /// The store among those of the process.
    pub seat: Arc<Seat>,
}

impl<'s> Whole<'s> {
    /// What was opened by this plan.
    pub fn new(plan: Plan, builder: esker::Builder, loading: Loading, store: &'s esker::Store) -> Self {
        Self { store, builder, loading, parts: plan.parts(), seat: plan.seat }
    }
}

/// Figures that are told, and the end of it all.
pub type BesideServing<'b> = (Option<&'b Running>, &'b Arc<Stopping>);

/// How serving ended, and who listened to signals meanwhile.
pub type Served = (Result<(), Failure>, Told);
