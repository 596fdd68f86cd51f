//! A primary: it decides and answers, and keeps the table of its pair itself.
//!
//! ```text
//! store → [`Primary::begin`]: a table of its own, a lease without end → writes
//! standby → [`Primary::follow`]: a table with it → brought up, sent everything
//! synchronous: in step → kept durably → nothing is acknowledged without it, until [`Primary::release`]
//! a higher epoch → [`Primary::depose`]: answers nothing, keeps that durably, and sends what it still has
//! ```
//!
//! Invariants:
//! 1. Versions of its table grow over all its starts: each is durable before it is gone by.
//! 2. That nothing is acknowledged without the standby is durable before the operator is told so, and holds for each
//!    start of the primary and of the standby, until it is released.
//! 3. Its lease ends with a fence, before that is kept or answered, and is never renewed after it.

use std::time::{Duration, Instant};

use esker_chain::{ChainStore, Incarnation, Member, Place, Regard, ServerId, Standing, Table};
use esker_cluster::Served;
use esker_wire::proto::chain as proto;

use crate::error::{Error, Result};
use crate::pair::ground::{CHAIN, Ground, Mode, Running};
use crate::pair::record::Record;

/// A lease that only a fence ends.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);
/// A standby that was not heard of for so long is gone, and another may take its place.
const GONE: Duration = Duration::from_secs(10);

/// A standby as its primary has heard of it.
struct Heard {
    at: Instant,
    store: String,
    copied_bytes: Option<u64>,
}

/// A primary that runs.
pub(crate) struct Primary {
    pub record: Record,
    pub start: Incarnation,
    pub running: Running,
    /// The identity of its store.
    pub store: String,
    table: Table,
    heard: Option<Heard>,
}

fn regard(mode: Mode, in_step: bool) -> Regard {
    match (mode, in_step) {
        (Mode::Async, _) => Regard::Never,
        (Mode::Sync, false) => Regard::InStep,
        (Mode::Sync, true) => Regard::Always,
    }
}

impl Primary {
    /// Begins to answer. The record is that of this store, whose role is checked.
    pub(crate) fn begin(ground: &Ground, mut record: Record, standing: &Standing) -> Result<Self> {
        if standing.applied.is_none() {
            return Err(Error::Part { peer: record.peer });
        }
        if record.epoch == 0 {
            (record.epoch, record.pair) = (1, standing.identity.clone());
        }
        if ground.config.mode == Mode::Async && std::mem::take(&mut record.in_step) {
            tracing::warn!("writes are acknowledged without the standby from now on: this server is asynchronous");
        }
        // What is not acknowledged to a standby may have been lost or changed, but for an end as planned.
        if !record.goes_on(&*ground.store)? {
            record.life = [ground.number(), ground.number()].map(u64::to_be_bytes).concat().into();
        }
        record.ended = 0;
        record.version += 1;
        record.write(&*ground.store)?;
        let version = record.version;
        let start = Incarnation(version);
        let mut members = vec![Member { server: ground.me, incarnation: start, place: Place::Serving, since: version }];
        if !record.store.is_empty() {
            // It is not there yet: what is to be sent to it is kept.
            let (server, incarnation) = (ServerId(0), Incarnation(0));
            members.push(Member { server, incarnation, place: Place::Syncing, since: version });
        }
        let table = Table { version, members };
        let running = Running::begin(ground, standing, start)?;
        running.node.regard(regard(ground.config.mode, record.in_step));
        running.node.go_by_renewed(table.clone(), running.node.now(), FOREVER);
        tracing::info!(epoch = record.epoch, version, applied = standing.applied, "this server is the primary");
        let store = String::from_utf8_lossy(&standing.identity).into_owned();
        Ok(Self { record, start, running, store, table, heard: None })
    }

    /// The store that is served.
    pub(crate) fn served(&self) -> ChainStore {
        ChainStore::new(std::sync::Arc::clone(&self.running.node))
    }

    /// The standby, as the table has it.
    fn standby(&self) -> Option<&Member> {
        self.table.members.iter().find(|member| member.place == Place::Syncing)
    }

    /// A standby says that it is there.
    ///
    /// # Errors
    /// Why it is none.
    pub(crate) fn follow(
        &mut self,
        ground: &Ground,
        request: &proto::FollowRequest,
    ) -> std::result::Result<proto::FollowResponse, String> {
        if !request.pair.is_empty() && request.pair != self.record.pair {
            return Err("this primary is of another pair than that store".into());
        }
        if request.server == ground.me.0 || request.server == 0 {
            return Err("both servers have chosen the same number: start one of them again".into());
        }
        let (server, start) = (ServerId(request.server), Incarnation(request.start));
        let is_known = self.standby().is_some_and(|member| (member.server, member.incarnation) == (server, start));
        if !is_known {
            self.admit(ground, request)?;
        }
        if self.record.peer != request.peer {
            let next = Record { peer: request.peer.clone(), ..self.record.clone() };
            next.write(&*ground.store).map_err(|error| error.to_string())?;
            self.record = next;
        }
        ground.face(None, server, &request.peer);
        let (store, copied_bytes) = (request.store.clone(), request.copied_bytes);
        self.heard = Some(Heard { at: Instant::now(), store, copied_bytes });
        let served = ground.config.served.clone();
        Ok(proto::FollowResponse {
            pair: self.record.pair.clone(),
            epoch: self.record.epoch,
            server: ground.me.0,
            start: self.start.0,
            version: self.table.version,
            since: self.standby().map_or(0, |member| member.since),
            resumes: request.life == self.record.life && request.applied.is_some(),
            life: self.record.life.clone(),
            applied: self.running.node.progress().0,
            sync: ground.config.mode == Mode::Sync,
            in_step: self.record.in_step,
            resp: served.resp,
            nbd: served.nbd,
            grpc: served.grpc,
            thrift: served.thrift,
        })
    }

    /// Takes it into the table, in the place of the one before.
    fn admit(&mut self, ground: &Ground, request: &proto::FollowRequest) -> std::result::Result<(), String> {
        let there = self.heard.as_ref().filter(|heard| heard.at.elapsed() < GONE);
        if there.is_some_and(|heard| heard.store != request.store) {
            return Err(format!("this primary has a standby already, at {}: a pair has one", self.record.peer));
        }
        if self.record.in_step && self.record.store != request.store {
            return Err(format!(
                "this primary acknowledges nothing without the standby that was at {}: `esker standby release` ends \
                 that, and then another may follow",
                self.record.peer
            ));
        }
        let (peer, store) = (request.peer.clone(), request.store.clone());
        let version = self.record.version + 1;
        let next = Record { version, peer, store, ..self.record.clone() };
        next.write(&*ground.store).map_err(|error| error.to_string())?;
        self.record = next;
        let before = self.standby().map(|member| member.server);
        let (server, incarnation) = (ServerId(request.server), Incarnation(request.start));
        let mut members = vec![self.table.members[0]];
        members.push(Member { server, incarnation, place: Place::Syncing, since: version });
        self.table = Table { version, members };
        ground.face(before, server, &request.peer);
        let node = &self.running.node;
        node.go_by_renewed(self.table.clone(), node.now(), FOREVER);
        tracing::info!(peer = request.peer, version, applied = request.applied, "a standby follows");
        Ok(())
    }

    /// Looks whether the standby has come to be in step, where that changes what is acknowledged.
    pub(crate) fn look(&mut self, ground: &Ground) -> Result<()> {
        let is_news = ground.config.mode == Mode::Sync && !self.record.in_step;
        if is_news && self.running.node.in_step().is_some_and(|(_, version)| version == self.table.version) {
            let next = Record { in_step: true, ..self.record.clone() };
            next.write(&*ground.store)?;
            self.record = next;
            self.running.node.regard(Regard::Always);
            tracing::info!(peer = self.record.peer, "the standby is in step: nothing is acknowledged without it");
        }
        ground.peers.tidy(CHAIN, self.table.version);
        Ok(())
    }

    /// Goes on without the standby, until one is in step again; whether nothing was acknowledged without it.
    pub(crate) fn release(&mut self, ground: &Ground) -> Result<bool> {
        let version = self.record.version + 1;
        let next = Record { version, in_step: false, store: String::new(), ..self.record.clone() };
        next.write(&*ground.store)?;
        let was_in_step = std::mem::replace(&mut self.record, next).in_step;
        let before = self.standby().map(|member| member.server);
        self.table = Table { version, members: vec![self.table.members[0]] };
        self.heard = None;
        let node = &self.running.node;
        node.regard(regard(ground.config.mode, false));
        node.go_by_renewed(self.table.clone(), node.now(), FOREVER);
        before.into_iter().for_each(|before| ground.peers.forget(CHAIN, before));
        tracing::warn!(peer = self.record.peer, "this server goes on without its standby");
        Ok(was_in_step)
    }

    /// Ends as planned: a standby that is there takes what it lacks first, `within` that time.
    pub(crate) fn end(self, ground: &Ground, within: Duration) {
        if self.heard.as_ref().is_some_and(|heard| heard.at.elapsed() < GONE) {
            self.running.settle(within);
        }
        let has_failed = self.running.node.failure().is_some();
        self.running.end(ground);
        if has_failed {
            return;
        }
        let kept = ground.store.sync().wait().and_then(|last| {
            let ended = last.0 + 1;
            Record { ended, ..self.record }.write(&*ground.store)
        });
        if let Err(error) = kept {
            tracing::warn!(%error, "that this server has ended as planned cannot be kept: its standby is copied anew");
        }
    }

    /// Another server is the primary. What is returned answers nothing, also after an error.
    pub(crate) fn depose(mut self, ground: &Ground, fence: &proto::FenceRequest) -> (Deposed, Result<()>) {
        // Before anything else: from here on nothing is answered.
        self.running.node.give_up();
        self.record = self.record.deposed(fence);
        let mut deposed = Deposed { record: self.record, start: self.start, running: self.running, primary: None };
        let kept = deposed.hear(ground, fence);
        tracing::error!(
            epoch = deposed.record.epoch,
            by = deposed.record.peer,
            "this server is not the primary any more: another was promoted"
        );
        (deposed, kept)
    }

    /// It answers again: it was not fenced after all.
    pub(crate) fn renew(&self) {
        let node = &self.running.node;
        node.renewed(self.table.version, node.now(), FOREVER);
    }

    /// How it stands.
    pub(crate) fn stand(&self, ground: &Ground) -> proto::StandResponse {
        let (applied, committed) = self.running.node.progress();
        proto::StandResponse {
            record: Some(self.record.encoded()),
            sync: ground.config.mode == Mode::Sync,
            applied,
            committed,
            acked: self.running.node.acked(),
            heard_ms_ago: self.heard.as_ref().map(|heard| heard.at.elapsed().as_millis() as u64),
            kept_bytes: self.running.node.look().map(|(_, _, _, kept)| kept as u64),
            copied_bytes: self.heard.as_ref().and_then(|heard| heard.copied_bytes),
            part: false,
            trouble: self.running.node.failure().map(|error| error.to_string()).unwrap_or_default(),
            reaches: self.standby().is_some_and(|member| ground.peers.reaches(CHAIN, member.server)),
        }
    }

    /// Version of the table.
    pub(crate) fn version(&self) -> u64 {
        self.table.version
    }
}

/// What was the primary: it answers nothing, and sends the standby what that lacks still.
pub(crate) struct Deposed {
    pub record: Record,
    pub start: Incarnation,
    pub running: Running,
    /// Where the new primary and its faces are, if it has said so.
    pub primary: Option<Served>,
}

impl Deposed {
    /// Keeps which server is the primary.
    pub(crate) fn hear(&mut self, ground: &Ground, fence: &proto::FenceRequest) -> Result<()> {
        self.record = self.record.deposed(fence);
        if !fence.peer.is_empty() {
            self.primary = Some(Served {
                store: String::new(),
                peer: fence.peer.clone(),
                resp: fence.resp.clone(),
                grpc: fence.grpc.clone(),
                nbd: fence.nbd.clone(),
                http: None,
                thrift: fence.thrift.clone(),
            });
        }
        self.record.write(&*ground.store).map_err(Error::from)
    }
}
