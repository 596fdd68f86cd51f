//! The nodes in ZooKeeper: which there are, and how each is read and changed.
//!
//! ```text
//! servers/NAME/ID         where a server is reached for a chain, which start of it there, which store; its last start
//!                         writes it, before there is a chain as well
//! slots                   which chain keeps which slots of keys, and which is to, where several share them; made with
//!                         those chains, compared and set
//! chains/NAME/table       the table                      compared and set, with the renewals that it counts upon
//! chains/NAME/leases/ID   the last renewal of a server   set while the table is the one that it goes by
//! chains/NAME/stores/ID   which store the server had when it was last made part of the line
//! chains/NAME/wishes      what operators have asked for, once they have asked for something
//! chains/NAME/in_step     who is in step with the tail, in which version of the table
//! manager                 who manages: gone with its session
//! ```
//!
//! Invariant: what has to hold together is written in one multi, with the versions of all nodes that it rests on.

use std::collections::BTreeMap;
use std::sync::Arc;

use esker_chain::{Incarnation, Place, ServerId, Table, Wishes};
use parking_lot::Mutex;
use tokio::time::Instant;
use zookeeper_client as zk;

use crate::changes::Changes;
use crate::error::{Error, Result};
use crate::location::Location;
use crate::records::{
    InStepJson, LeaseJson, LeaseRecord, Progress, Served, ServerJson, ServerRecord, TableStamp, WishesJson,
    WishesStamp, decoded, encoded, fault, table_decoded, table_encoded,
};
use crate::session::{Call, Options, Refusal, Session, persistent, unsent};
use crate::slots::Slots;

const NAME_BYTES_MAX: usize = 100;

/// What servers and managers agree upon. Clones share one session, which is made by the first call, in the runtime that
/// makes it, and anew after it has ended.
#[derive(Clone)]
pub struct Coordinator {
    session: Session,
    registrations: Arc<Mutex<BTreeMap<(String, ServerId), Registration>>>,
}

/// A start of a server, and how often its node had been written when it registered.
#[derive(Clone, Copy)]
struct Registration {
    incarnation: Incarnation,
    node: i32,
}

/// How new has what is read to be?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// As the ZooKeeper server has it that the session is connected to: it may lag behind.
    Any,
    /// What was acknowledged before the call began is in it.
    Latest,
}

/// What became of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// It stands: the lease counts from when the call began.
    Taken,
    /// There is a newer table; nothing was renewed.
    TableChanged,
    /// This start has not registered, or another has since: it will never hold a lease again.
    Superseded,
}

/// A chain that is to be made: its name, its first table, the stores of its servers.
pub type First<'f> = (&'f str, &'f Table, &'f BTreeMap<ServerId, String>);

/// A renewal that a change of the table counts upon: the last of its server; `None`: the server has never renewed.
pub type Standing = (ServerId, Option<u64>);

impl Coordinator {
    /// The coordinator at this location. Nothing is connected yet.
    pub fn new(location: Location, options: Options) -> Self {
        Self { session: Session::new(location, options), registrations: Arc::default() }
    }

    /// Has all that is read after it be as new as what was acknowledged before it.
    ///
    /// # Errors
    /// [`Error::Unreachable`].
    pub async fn sync(&self) -> Result<()> {
        sync(&self.session.call().await?, self.root()).await
    }

    /// The names of all chains.
    ///
    /// # Errors
    /// [`Error::Unreachable`].
    pub async fn chains(&self) -> Result<Vec<String>> {
        let call = self.session.call().await?;
        let node = format!("{}/chains", self.root());
        let mut names = call.read(&node, call.client.list_children(&node)).await?.unwrap_or_default();
        names.sort();
        Ok(names)
    }

    /// All servers that have ever registered for a chain, by number; there may be no such chain yet.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::Unreachable`], [`Error::Damaged`].
    pub async fn servers(&self, chain: &str) -> Result<BTreeMap<ServerId, ServerRecord>> {
        let servers = self.chain(chain)?.servers();
        let call = self.session.call().await?;
        let found = by_server(&call, &servers).await?.unwrap_or_default();
        // One that makes no sense keeps no other from being reached.
        let record = |(server, (node, data, _)): (ServerId, Found)| match record(&node, &data) {
            Ok(record) => Some((server, record)),
            Err(error) => {
                tracing::warn!(%error, "a server is not known");
                None
            }
        };
        Ok(found.into_iter().filter_map(record).collect())
    }

    /// Makes a chain of this first table, whose servers have these stores: [`Coordinator::init_chains`], for one.
    ///
    /// # Errors
    /// Those of [`Coordinator::init_chains`].
    pub async fn init_chain(&self, name: &str, first: &Table, stores: &BTreeMap<ServerId, String>) -> Result<()> {
        self.init_chains(&[(name, first, stores)], None).await
    }

    /// Makes chains of these first tables, whose servers have these stores; all of them, and with them which of them
    /// keeps which slots of keys, or nothing. Each member that serves, or is brought up,
    /// holds a lease from then on, as far as a manager knows. Where one is the last that served and its store is not
    /// given, it comes with whatever store it has.
    ///
    /// # Errors
    /// [`Error::Exists`] where one of the chains is there, [`Error::SlotsExist`], [`Error::Name`], [`Error::NotNext`]
    /// where a table's version is not 1, [`Error::Damaged`] where it makes no sense or the store of a member that
    /// serves is not given, [`Error::Unknown`], [`Error::Unreachable`].
    pub async fn init_chains(&self, chains: &[First<'_>], slots: Option<&Slots>) -> Result<()> {
        let mut nodes = Vec::new();
        for (name, first, stores) in chains {
            let chain = self.chain(name)?;
            let made = chain.made(first, stores)?;
            nodes.extend(made.into_iter().map(|(node, data)| (node, data, Error::Exists((*name).to_string()))));
        }
        if let Some(slots) = slots {
            let node = self.slots_node();
            nodes.push((node.clone(), slots.encoded(&node)?, Error::SlotsExist));
        }
        let call = self.session.call().await?;
        call.ensure(&format!("{}/chains", self.root())).await?;
        let mut writer = call.client.new_multi_writer();
        for (node, data, _) in &nodes {
            writer.add_create(node, data, &persistent()).map_err(|error| unsent(node, &error))?;
        }
        let Some((first, ..)) = nodes.first() else { return Ok(()) };
        match call.multi(first, &mut writer).await? {
            Ok(()) => Ok(()),
            Err((at, _)) => Err(nodes.swap_remove(at).2),
        }
    }

    /// Which chain keeps which slots of keys; `None`: each chain that there is keeps all keys of its own clients.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Damaged`].
    pub async fn slots(&self) -> Result<Option<Slots>> {
        let call = self.session.call().await?;
        Ok(self.slots_of(&call).await?.map(|(slots, _)| slots))
    }

    async fn slots_of(&self, call: &Call) -> Result<Option<(Slots, i32)>> {
        let node = self.slots_node();
        let found = read(call, &node).await?;
        found.map(|(data, stat)| Ok((Slots::decoded(&node, &data)?, stat.version))).transpose()
    }

    /// Puts in place of the slots what `change` makes of the last ones, whatever others change meanwhile; `None` of it:
    /// they stay. What stands in the end.
    ///
    /// # Errors
    /// [`Error::NoSlots`], [`Error::Unreachable`], [`Error::Damaged`], [`Error::Refused`] where they have too many
    /// parts; [`Error::Unknown`]: it may have been changed.
    pub async fn change_slots(&self, change: impl Fn(&Slots) -> Option<Slots>) -> Result<Slots> {
        let (call, node) = (self.session.call().await?, self.slots_node());
        loop {
            sync(&call, &node).await?;
            let (slots, version) = self.slots_of(&call).await?.ok_or(Error::NoSlots)?;
            let Some(next) = change(&slots).filter(|next| *next != slots) else { return Ok(slots) };
            let data = next.encoded(&node)?;
            if call.write(&node, call.client.set_data(&node, &data, Some(version))).await?.is_ok() {
                return Ok(next);
            }
        }
    }

    /// Registers a start of a server for a chain, which is what it and no other start of it goes by there from now on.
    /// An answer that is lost costs a number, no more: the next is higher still.
    ///
    /// # Errors
    /// [`Error::Name`]; [`Error::Unreachable`], [`Error::Unknown`], [`Error::Damaged`]: register again.
    pub async fn register(&self, chain: &str, server: ServerId, served: &Served) -> Result<Incarnation> {
        let deadline = self.session.deadline();
        loop {
            match self.register_until(deadline, chain, server, served).await {
                Ok(Some(incarnation)) => return Ok(incarnation),
                // Another start registers at the same time.
                Ok(None) => {}
                Err(Error::Unknown { .. }) if Instant::now() < deadline => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn register_until(
        &self,
        end: Instant,
        chain: &str,
        server: ServerId,
        served: &Served,
    ) -> Result<Option<Incarnation>> {
        let nodes = self.chain(chain)?;
        let call = self.session.call_until(end).await?;
        let (servers, node) = (nodes.servers(), nodes.server(server));
        sync(&call, &node).await?;
        let last = read(&call, &node).await?;
        let before = match &last {
            Some((data, _)) => record(&node, data)?.incarnation.0,
            None => 0,
        };
        let incarnation = Incarnation(before + 1);
        let data = encoded(&node, &ServerJson::of(incarnation, served))?;
        let written = match last {
            Some((_, stat)) => {
                let set = call.client.set_data(&node, &data, Some(stat.version));
                call.write(&node, set).await?.map(|stat| stat.version)
            }
            None => {
                call.ensure(&servers).await?;
                call.write(&node, call.client.create(&node, &data, &persistent())).await?.map(|_| 0)
            }
        };
        Ok(written.ok().map(|node| {
            self.registrations.lock().insert((chain.to_owned(), server), Registration { incarnation, node });
            incarnation
        }))
    }

    /// The table of a chain, and what the next one is compared with.
    ///
    /// # Errors
    /// [`Error::NoChain`], [`Error::Unreachable`], [`Error::Damaged`].
    pub async fn table(&self, chain: &str, freshness: Freshness) -> Result<(Table, TableStamp)> {
        let nodes = self.chain(chain)?;
        let node = nodes.table();
        let call = self.session.call().await?;
        if freshness == Freshness::Latest {
            sync(&call, &node).await?;
        }
        let (data, stat) = read(&call, &node).await?.ok_or_else(|| no_chain(chain))?;
        let table = table_decoded(&node, &data)?;
        let stamp = TableStamp { version: table.version, node: stat.version };
        Ok((table, stamp))
    }

    /// Puts `next` in place of the table with this stamp, while each of `standing` is the last renewal of its server,
    /// and notes the stores of those that are made part of the line. `false`: the table or a renewal is another by now,
    /// and nothing was changed.
    ///
    /// # Errors
    /// [`Error::NotNext`], [`Error::NoChain`], [`Error::Unknown`], [`Error::Unreachable`], [`Error::Damaged`] where the
    /// table makes no sense.
    pub async fn change(
        &self,
        chain: &str,
        stamp: TableStamp,
        next: &Table,
        standing: &[Standing],
        stores: &[(ServerId, String)],
    ) -> Result<bool> {
        let nodes = self.chain(chain)?;
        let table = nodes.table();
        follows(&table, stamp.version, next)?;
        let data = table_encoded(&table, next)?;
        let call = self.session.call().await?;
        let mut writer = call.client.new_multi_writer();
        let add = |error| unsent(&table, &error);
        writer.add_set_data(&table, &data, Some(stamp.node)).map_err(add)?;
        for (server, renewal) in standing {
            let lease = nodes.lease(*server);
            match renewal {
                Some(renewal) => match i32::try_from(*renewal) {
                    Ok(version) => writer.add_check_version(&lease, version).map_err(add)?,
                    // None has that number.
                    Err(_) => return Ok(false),
                },
                None => {
                    // There is no check for absence: what can be created is not there.
                    writer.add_create(&lease, b"", &persistent()).map_err(add)?;
                    writer.add_delete(&lease, None).map_err(add)?;
                }
            }
        }
        for (server, store) in stores {
            let node = nodes.store(*server);
            // It only ever comes to be, with a change of the table.
            if read(&call, &node).await?.is_some() {
                writer.add_set_data(&node, store.as_bytes(), None).map_err(add)?;
            } else {
                writer.add_create(&node, store.as_bytes(), &persistent()).map_err(add)?;
            }
        }
        match call.multi(&table, &mut writer).await? {
            Ok(()) => Ok(true),
            Err((0, Refusal::Absent)) => Err(no_chain(chain)),
            Err(_) => Ok(false),
        }
    }

    /// Renews the lease of a server, if the table is still the one with this stamp, and no other start of the server
    /// has registered since this one. A server that is no member renews as well: so it is heard of. The lease counts
    /// from before this was called.
    ///
    /// # Errors
    /// [`Error::NoChain`], [`Error::Unreachable`], [`Error::Damaged`]; [`Error::Unknown`], which gives the server
    /// nothing, but a manager may see the renewal.
    pub async fn renew(
        &self,
        chain: &str,
        server: ServerId,
        incarnation: Incarnation,
        stamp: TableStamp,
        progress: Progress,
    ) -> Result<Renewed> {
        let nodes = self.chain(chain)?;
        let (table, lease, registered) = (nodes.table(), nodes.lease(server), nodes.server(server));
        let (incarnation_number, table_version) = (incarnation.0, stamp.version);
        let record = LeaseJson { incarnation: incarnation_number, gave_up: false, table_version, progress };
        let data = encoded(&lease, &record)?;
        let call = self.session.call().await?;
        let mut absent = false;
        loop {
            let Some(registration) = self.registration(&call, chain, server, incarnation).await? else {
                return Ok(Renewed::Superseded);
            };
            let mut writer = call.client.new_multi_writer();
            let add = |error| unsent(&lease, &error);
            writer.add_check_version(&table, stamp.node).map_err(add)?;
            writer.add_check_version(&registered, registration.node).map_err(add)?;
            if absent {
                writer.add_create(&lease, &data, &persistent()).map_err(add)?;
            } else {
                writer.add_set_data(&lease, &data, None).map_err(add)?;
            }
            match call.multi(&lease, &mut writer).await? {
                Ok(()) => return Ok(Renewed::Taken),
                Err((0, Refusal::Absent)) => return Err(no_chain(chain)),
                Err((0, _)) => return Ok(Renewed::TableChanged),
                // By another start, or by hand: the next round reads it.
                Err((1, _)) => drop(self.registrations.lock().remove(&(chain.to_owned(), server))),
                Err((_, refusal)) => absent = refusal == Refusal::Absent,
            }
        }
    }

    /// The registration of this start of a server for a chain; `None`: there is none, or one of another start.
    async fn registration(
        &self,
        call: &Call,
        chain: &str,
        server: ServerId,
        incarnation: Incarnation,
    ) -> Result<Option<Registration>> {
        let key = (chain.to_owned(), server);
        let known = self.registrations.lock().get(&key).copied();
        if let Some(known) = known.filter(|known| known.incarnation == incarnation) {
            return Ok(Some(known));
        }
        let node = self.chain(chain)?.server(server);
        sync(call, &node).await?;
        let Some((data, stat)) = read(call, &node).await? else {
            return Ok(None);
        };
        if record(&node, &data)?.incarnation != incarnation {
            return Ok(None);
        }
        let read = Registration { incarnation, node: stat.version };
        self.registrations.lock().insert(key, read);
        Ok(Some(read))
    }

    /// Gives up the lease of this start of a server, so that no time has to pass before it is taken out; nothing where
    /// it has none. The server must not answer under it any more, and not have a renewal under way.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Unknown`], [`Error::Damaged`].
    pub async fn give_up(&self, chain: &str, server: ServerId, incarnation: Incarnation) -> Result<()> {
        let node = self.chain(chain)?.lease(server);
        let call = self.session.call().await?;
        sync(&call, &node).await?;
        loop {
            let Some((data, stat)) = read(&call, &node).await? else {
                return Ok(());
            };
            let mut record: LeaseJson = decoded(&node, &data)?;
            if record.incarnation != incarnation.0 || record.gave_up {
                return Ok(());
            }
            record.gave_up = true;
            let data = encoded(&node, &record)?;
            if call.write(&node, call.client.set_data(&node, &data, Some(stat.version))).await?.is_ok() {
                return Ok(());
            }
        }
    }

    /// The last renewal of each server that has ever renewed a lease of this chain.
    ///
    /// # Errors
    /// [`Error::NoChain`], [`Error::Unreachable`], [`Error::Damaged`].
    pub async fn leases(&self, chain: &str) -> Result<BTreeMap<ServerId, LeaseRecord>> {
        let nodes = self.chain(chain)?;
        let call = self.session.call().await?;
        let found = by_server(&call, &nodes.leases()).await?.ok_or_else(|| no_chain(chain))?;
        let lease = |(server, (node, data, stat)): (ServerId, Found)| {
            let LeaseJson { incarnation, gave_up, table_version, progress } = decoded(&node, &data)?;
            let (incarnation, renewal, at_ms) = (Incarnation(incarnation), stat.version as u64, stat.mtime as u64);
            Ok((server, LeaseRecord { incarnation, gave_up, table_version, renewal, at_ms, progress }))
        };
        found.into_iter().map(lease).collect()
    }

    /// Which store each server had when it was last made part of the chain's line.
    ///
    /// # Errors
    /// [`Error::NoChain`], [`Error::Unreachable`].
    pub async fn stores(&self, chain: &str) -> Result<BTreeMap<ServerId, String>> {
        let nodes = self.chain(chain)?;
        let call = self.session.call().await?;
        let found = by_server(&call, &nodes.stores()).await?.ok_or_else(|| no_chain(chain))?;
        let store = |(server, (_, data, _)): (ServerId, Found)| (server, String::from_utf8_lossy(&data).into_owned());
        Ok(found.into_iter().map(store).collect())
    }

    /// What operators have asked of a chain and has not come true, and what other wishes are compared with.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::Unreachable`], [`Error::Damaged`].
    pub async fn wishes(&self, chain: &str) -> Result<(Wishes, WishesStamp)> {
        let node = self.chain(chain)?.wishes();
        let call = self.session.call().await?;
        match read(&call, &node).await? {
            Some((data, stat)) => Ok((decoded::<WishesJson>(&node, &data)?.wishes(), WishesStamp(Some(stat.version)))),
            None => Ok((Wishes::default(), WishesStamp(None))),
        }
    }

    /// Puts these wishes in place of those with this stamp. `false`: they are others by now, and nothing was changed.
    ///
    /// # Errors
    /// [`Error::NoChain`], [`Error::Name`], [`Error::Unreachable`], [`Error::Unknown`].
    pub async fn set_wishes(&self, chain: &str, stamp: WishesStamp, wishes: &Wishes) -> Result<bool> {
        let node = self.chain(chain)?.wishes();
        let data = encoded(&node, &WishesJson::of(wishes))?;
        let call = self.session.call().await?;
        let refused = match stamp.0 {
            Some(version) => {
                call.write(&node, call.client.set_data(&node, &data, Some(version))).await?.map(drop).err()
            }
            None => call.write(&node, call.client.create(&node, &data, &persistent())).await?.map(drop).err(),
        };
        match refused {
            None => Ok(true),
            Some(Refusal::Absent) => Err(no_chain(chain)),
            Some(_) => Ok(false),
        }
    }

    /// Tells that a server which is brought up is in step with the tail, in this version of the table. What was told of
    /// a newer version stays.
    ///
    /// # Errors
    /// [`Error::NoChain`], [`Error::Unreachable`], [`Error::Unknown`], [`Error::Damaged`].
    pub async fn tell_in_step(&self, chain: &str, server: ServerId, version: u64) -> Result<()> {
        let node = self.chain(chain)?.in_step();
        let call = self.session.call().await?;
        loop {
            let (data, stat) = read(&call, &node).await?.ok_or_else(|| no_chain(chain))?;
            let last: InStepJson = decoded(&node, &data)?;
            if last.version > version || (last.version, last.server) == (version, server.0) {
                return Ok(());
            }
            let data = encoded(&node, &InStepJson { server: server.0, version })?;
            if call.write(&node, call.client.set_data(&node, &data, Some(stat.version))).await?.is_ok() {
                return Ok(());
            }
        }
    }

    /// Who was last told to be in step, in which version of the table.
    ///
    /// # Errors
    /// [`Error::NoChain`], [`Error::Unreachable`], [`Error::Damaged`].
    pub async fn in_step(&self, chain: &str) -> Result<Option<(ServerId, u64)>> {
        let node = self.chain(chain)?.in_step();
        let call = self.session.call().await?;
        let (data, _) = read(&call, &node).await?.ok_or_else(|| no_chain(chain))?;
        let InStepJson { server, version } = decoded(&node, &data)?;
        Ok((version > 0).then_some((ServerId(server), version)))
    }

    /// Stands for manager: whether this session holds the office. It ends with the session, but nothing may rest on
    /// that: it saves work, no more.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Unknown`].
    pub async fn stand_for_manager(&self, server: ServerId) -> Result<bool> {
        let call = self.session.call().await?;
        let node = self.manager();
        if let Some((_, stat)) = read(&call, &node).await? {
            return Ok(stat.ephemeral_owner == call.client.session_id().0);
        }
        call.ensure(self.root()).await?;
        let ephemeral = zk::CreateMode::Ephemeral.with_acls(zk::Acls::anyone_all());
        let data = server.to_string().into_bytes();
        Ok(call.write(&node, call.client.create(&node, &data, &ephemeral)).await?.is_ok())
    }

    /// Gives the office of the manager up, if this session holds it.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Unknown`].
    pub async fn resign(&self) -> Result<()> {
        let call = self.session.call().await?;
        let node = self.manager();
        if let Some((_, stat)) = read(&call, &node).await?
            && stat.ephemeral_owner == call.client.session_id().0
        {
            // Whether it is gone already does not matter.
            let _ = call.write(&node, call.client.delete(&node, Some(stat.version))).await?;
        }
        Ok(())
    }

    /// The changes of a chain from now on.
    ///
    /// # Errors
    /// [`Error::Name`].
    pub fn changes(&self, chain: &str) -> Result<Changes> {
        let nodes = self.chain(chain)?;
        Ok(Changes::new(self.session.clone(), [nodes.table(), nodes.in_step(), nodes.wishes()]))
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) async fn call(&self) -> Result<Call> {
        self.session.call().await
    }

    fn root(&self) -> &str {
        self.session.location().root()
    }

    fn slots_node(&self) -> String {
        format!("{}/slots", self.root())
    }

    fn manager(&self) -> String {
        format!("{}/manager", self.root())
    }

    fn chain(&self, name: &str) -> Result<Nodes> {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.starts_with('.') || !name.bytes().all(good) {
            return Err(Error::Name(name.to_string()));
        }
        let root = self.root();
        Ok(Nodes(format!("{root}/chains/{name}"), format!("{root}/servers/{name}")))
    }
}

/// The nodes of one chain, by the path of their parent, and that of those of its servers.
struct Nodes(String, String);

impl Nodes {
    /// What stands in the nodes of a chain that begins with this table.
    fn made(&self, first: &Table, stores: &BTreeMap<ServerId, String>) -> Result<Vec<(String, Vec<u8>)>> {
        follows(&self.table(), 0, first)?;
        let mut nodes = vec![
            (self.0.clone(), Vec::new()),
            (self.table(), table_encoded(&self.table(), first)?),
            (self.in_step(), encoded(&self.in_step(), &InStepJson { server: 0, version: 0 })?),
            (self.leases(), Vec::new()),
            (self.stores(), Vec::new()),
        ];
        for member in &first.members {
            let (lease, store) = (self.lease(member.server), self.store(member.server));
            let Some(identity) = stores.get(&member.server) else {
                if !in_line(member.place) {
                    continue;
                }
                return Err(Error::Damaged { node: store, reason: "the member's store is not given".into() });
            };
            nodes.push((store, identity.clone().into_bytes()));
            let (incarnation, progress) = (member.incarnation.0, Progress::default());
            let record = LeaseJson { incarnation, gave_up: false, table_version: 1, progress };
            let data = encoded(&lease, &record)?;
            nodes.push((lease, data));
        }
        Ok(nodes)
    }

    fn servers(&self) -> String {
        self.1.clone()
    }

    fn server(&self, server: ServerId) -> String {
        format!("{}/{server}", self.1)
    }

    fn table(&self) -> String {
        format!("{}/table", self.0)
    }

    fn in_step(&self) -> String {
        format!("{}/in_step", self.0)
    }

    fn wishes(&self) -> String {
        format!("{}/wishes", self.0)
    }

    fn leases(&self) -> String {
        format!("{}/leases", self.0)
    }

    fn lease(&self, server: ServerId) -> String {
        format!("{}/leases/{server}", self.0)
    }

    fn stores(&self) -> String {
        format!("{}/stores", self.0)
    }

    fn store(&self, server: ServerId) -> String {
        format!("{}/stores/{server}", self.0)
    }
}

/// A node's path, what stands in it, and its versions.
type Found = (String, Vec<u8>, zk::Stat);

fn no_chain(name: &str) -> Error {
    Error::NoChain(name.to_string())
}

/// Refuses a table that does not come next, or makes no sense.
fn follows(node: &str, last: u64, next: &Table) -> Result<()> {
    if next.version != last + 1 {
        return Err(Error::NotNext { last, given: next.version });
    }
    match fault(next) {
        Some(reason) => Err(Error::Damaged { node: node.to_string(), reason: reason.to_string() }),
        None => Ok(()),
    }
}

fn record(node: &str, data: &[u8]) -> Result<ServerRecord> {
    Ok(decoded::<ServerJson>(node, data)?.record())
}

async fn sync(call: &Call, node: &str) -> Result<()> {
    call.read(node, call.client.sync(node)).await.map(|_| ())
}

/// What stands in a node; `None`: there is none.
async fn read(call: &Call, node: &str) -> Result<Option<(Vec<u8>, zk::Stat)>> {
    Ok(call.read(node, call.client.get_data(node)).await?.ok())
}

/// What stands in the nodes below this one that have a server's number for a name; `None`: it is absent itself.
async fn by_server(call: &Call, node: &str) -> Result<Option<BTreeMap<ServerId, Found>>> {
    let Ok(names) = call.read(node, call.client.list_children(node)).await? else {
        return Ok(None);
    };
    let servers = names.iter().filter_map(|name| name.parse().ok().map(ServerId));
    let nodes: Vec<_> = servers.map(|server| (server, format!("{node}/{server}"))).collect();
    let mut reader = call.client.new_multi_reader();
    for (_, path) in &nodes {
        reader.add_get_data(path).map_err(|error| unsent(path, &error))?;
    }
    let answers = call.read(node, reader.commit()).await?.unwrap_or_default();
    let mut found = BTreeMap::new();
    for ((server, path), answer) in nodes.into_iter().zip(answers) {
        match answer {
            zk::MultiReadResult::Data { data, stat } => {
                found.insert(server, (path, data, stat));
            }
            // It is gone since its parent was read.
            zk::MultiReadResult::Error { err: zk::Error::NoNode } => {}
            answer => return Err(Error::Refused { node: path, reason: format!("{answer:?}") }),
        }
    }
    Ok(Some(found))
}

/// Whether a member that stands so takes part in what is written.
pub(crate) fn in_line(place: Place) -> bool {
    matches!(place, Place::Serving | Place::Syncing)
}
