//! A standby: it is brought up to its primary, and takes everything that it is sent.
//!
//! [`Follower::request`] → the primary → [`Follower::hear`]: its table → a node goes by it → copied, sent to
//!
//! Invariants:
//! 1. Where what the store holds is not to be built on, it says durably that it is part of a copy before it says whose
//!    standby it is: it is never taken for a state of a pair that it is not of.
//! 2. What it holds is built on only where all of it came from the present start of the primary.

use std::time::{Duration, Instant};

use esker_chain::{Incarnation, Member, Node, Place, ServerId, Standing, Table};
use esker_wire::proto::chain as proto;

use crate::error::{Error, Result};
use crate::pair::fencing::refusal;
use crate::pair::ground::{CHAIN, Ground, Running};
use crate::pair::record::{Record, Role};

/// How far the primary is, is noted in the store so often at most.
const NOTE: Duration = Duration::from_secs(1);

/// A start of the standby's replica, which goes by one start of the primary.
struct Following {
    running: Running,
    /// Of the primary: its number, its start, and the change of its table by which this start came in.
    of: (u32, u64, u64),
    version: u64,
}

/// A standby that runs.
pub(crate) struct Follower {
    pub record: Record,
    /// Which start of the replica it is, or is to be.
    pub start: u64,
    pub trouble: Option<String>,
    pub primary: Option<proto::FollowResponse>,
    /// The identity of its store.
    pub store: String,
    life: Option<Following>,
    heard: Option<Instant>,
    noted: Instant,
}

impl Follower {
    pub(crate) fn new(ground: &Ground, record: Record, standing: &Standing) -> Self {
        let store = String::from_utf8_lossy(&standing.identity).into_owned();
        let (start, noted) = (ground.number(), Instant::now());
        Self { record, start, trouble: None, primary: None, store, life: None, heard: None, noted }
    }

    /// Its node, if it goes by a table.
    pub(crate) fn node(&self) -> Option<&std::sync::Arc<Node>> {
        self.life.as_ref().map(|life| &life.running.node)
    }

    /// The last operation that it has; `None`: what it holds is part of a copy.
    pub(crate) fn applied(&self, ground: &Ground) -> Result<Option<u64>> {
        Ok(Standing::read(&*ground.store, &ground.config.fresh)?.applied)
    }

    /// The last operation that it has, where it runs also of what is not durable yet; `None`: part of a copy.
    pub(crate) fn has(&self, ground: &Ground) -> Result<Option<u64>> {
        self.node().map_or_else(|| self.applied(ground), |node| Ok(Some(node.progress().0)))
    }

    /// What it tells its primary.
    pub(crate) fn request(&self, ground: &Ground) -> Result<proto::FollowRequest> {
        let applied = self.has(ground)?;
        let replaces = ground.config.replaces && self.life.is_none();
        Ok(proto::FollowRequest {
            pair: if replaces { bytes::Bytes::new() } else { self.record.pair.clone() },
            epoch: if replaces { 0 } else { self.record.epoch },
            server: ground.me.0,
            start: self.start,
            store: self.store.clone(),
            peer: ground.config.served.peer.clone(),
            life: self.record.life.clone(),
            applied,
            copied_bytes: ground.peers.copied_bytes(CHAIN),
        })
    }

    /// What the primary has answered to the start that it was asked for.
    pub(crate) fn hear(&mut self, ground: &Ground, address: &str, answer: proto::FollowResponse) -> Result<()> {
        let is_ours = self.record.pair.is_empty() || self.record.pair == answer.pair || ground.config.replaces;
        if !is_ours {
            return Err(Error::OtherPair { address: address.to_owned() });
        }
        (self.trouble, self.heard) = (None, Some(Instant::now()));
        let of = (answer.server, answer.start, answer.since);
        if self.life.as_ref().is_some_and(|life| life.of != of || life.running.node.failure().is_some()) {
            tracing::info!("the primary has begun anew, or this replica has failed: it is brought up again");
            self.end_life(ground);
            // Asked for anew: what was answered is of the start that has ended.
            return Ok(());
        }
        if self.life.is_none() {
            self.begin_life(ground, address, &answer)?;
        }
        self.note(ground, &answer)?;
        self.primary = Some(answer);
        Ok(())
    }

    fn begin_life(&mut self, ground: &Ground, address: &str, answer: &proto::FollowResponse) -> Result<()> {
        let standing = Standing::read(&*ground.store, &ground.config.fresh)?;
        let resumes = answer.resumes && standing.applied.is_some() && self.record.life == answer.life;
        let before = self.primary.as_ref().map(|primary| ServerId(primary.server));
        ground.face(before, ServerId(answer.server), address);
        let running = Running::begin(ground, &standing, Incarnation(self.start))?;
        if resumes {
            running.node.resume();
        }
        let member = |server, incarnation, place, since| Member { server, incarnation, place, since };
        let head = member(ServerId(answer.server), Incarnation(answer.start), Place::Serving, answer.start);
        let own = member(ground.me, Incarnation(self.start), Place::Syncing, answer.since);
        running.node.go_by(Table { version: answer.version, members: vec![head, own] });
        let failure = running.node.failure();
        let of = (answer.server, answer.start, answer.since);
        self.life = Some(Following { running, of, version: answer.version });
        if let Some(error) = failure {
            self.end_life(ground);
            return Err(error.into());
        }
        let next = Record {
            role: Role::Standby,
            epoch: answer.epoch,
            pair: answer.pair.clone(),
            version: answer.version,
            life: answer.life.clone(),
            in_step: answer.in_step,
            peer: address.to_owned(),
            heard: answer.applied,
            ..Record::new(Role::Standby)
        };
        if let Err(error) = next.write(&*ground.store) {
            // Nothing is taken whose origin is not kept.
            self.end_life(ground);
            return Err(error.into());
        }
        self.record = next;
        tracing::info!(primary = address, epoch = answer.epoch, resumes, applied = standing.applied, "following");
        Ok(())
    }

    /// Another server is the primary. A store that was a primary's keeps that; of a standby it changes nothing.
    ///
    /// # Errors
    /// In words, why the fence is not heeded, or cannot be kept.
    pub(crate) fn fence(
        &mut self,
        ground: &Ground,
        fence: &proto::FenceRequest,
    ) -> std::result::Result<proto::FenceResponse, String> {
        let words = |error: Error| error.to_string();
        if fence.pair != self.record.pair {
            return Err("this server is of another pair".into());
        }
        let applied = self.has(ground).map_err(words)?;
        if self.record.role != Role::Standby {
            if !self.record.heeds(fence) {
                let epoch = self.record.epoch;
                return Err(format!("this store has epoch {epoch} already, and not of that promotion"));
            }
            // It runs as a standby, and sends nothing.
            let has = applied.ok_or("this store holds part of a copy")?;
            if let Some(why) = refusal(fence, &self.record.life, has, has + 1) {
                return Err(why);
            }
            let next = self.record.deposed(fence);
            next.write(&*ground.store).map_err(|error| error.to_string())?;
            self.record = next;
            tracing::warn!(epoch = fence.epoch, "another server was promoted over this store");
        }
        let Record { role, epoch, life, .. } = self.record.clone();
        Ok(proto::FenceResponse { role: role.encoded(), epoch, applied: applied.unwrap_or(0), life })
    }

    /// Keeps what was heard.
    fn note(&mut self, ground: &Ground, answer: &proto::FollowResponse) -> Result<()> {
        let next = Record { in_step: answer.in_step, heard: answer.applied, ..self.record.clone() };
        if next.in_step != self.record.in_step {
            next.write(&*ground.store)?;
        } else if next.heard != self.record.heard && self.noted.elapsed() >= NOTE {
            next.note(&*ground.store)?;
        } else {
            return Ok(());
        }
        (self.record, self.noted) = (next, Instant::now());
        Ok(())
    }

    fn end_life(&mut self, ground: &Ground) {
        if let Some(life) = self.life.take() {
            life.running.end(ground);
            self.start = ground.number();
        }
    }

    /// Takes nothing any more.
    pub(crate) fn end(mut self, ground: &Ground) -> Record {
        self.end_life(ground);
        self.record
    }

    /// How it stands.
    pub(crate) fn stand(&self, ground: &Ground) -> proto::StandResponse {
        let kept = || (self.applied(ground).ok().flatten().unwrap_or(0), 0);
        let (applied, committed) = self.node().map_or_else(kept, |node| node.progress());
        let heard = self.primary.as_ref().map_or(self.record.heard, |primary| primary.applied);
        let mut record = self.record.clone();
        record.heard = heard.max(applied);
        let failure = self.node().and_then(|node| node.failure()).map(|error| error.to_string());
        let server = self.primary.as_ref().map(|primary| ServerId(primary.server));
        proto::StandResponse {
            record: Some(record.encoded()),
            sync: self.primary.as_ref().is_some_and(|primary| primary.sync),
            applied,
            committed,
            acked: Some(applied),
            heard_ms_ago: self.heard.map(|at| at.elapsed().as_millis() as u64),
            kept_bytes: Some(0),
            copied_bytes: ground.peers.copied_bytes(CHAIN),
            part: self.node().is_none_or(|node| !node.is_based()),
            trouble: self.trouble.clone().or(failure).unwrap_or_default(),
            reaches: server.is_some_and(|server| ground.peers.reaches(CHAIN, server)),
        }
    }

    /// Of the table that it goes by; 0: none.
    pub(crate) fn version(&self) -> u64 {
        self.life.as_ref().map_or(0, |life| life.version)
    }
}
