//! Calls about keys that several chains keep.
//!
//! call → a part for each chain that keeps some of its keys → memory for what they may find → done here, or by
//! the other chain's head → joined · where slots have gone meanwhile: once more, of what was not done
//!
//! Invariants:
//! 1. A write is sent a second time only where it is known that nothing was done.
//! 2. All or nothing is what one chain does: a call whose keys are of several is so for each by itself.
//! 3. A page has each key of all slots, or is read anew.
//! 4. What other chains answer to a call for several keys is no more than one answer may be: each has its share of it,
//!    and where one needs more they are asked one after the other. Of a page each gives one of its own.
//! 5. What is read has memory before it is: of this chain that of values that are read, of others their share
//!    ([`Shares`]). A chain that does not answer holds up what needs it, and no call about keys of others.
//! 6. What another chain only reads is not waited for longer than [`PATIENCE`].

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_kv::{OwnedKey, SLOTS, VALUE_BYTES_MAX};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout_at;

use super::call::{Asked, cursor_behind, text_of};
use super::carried;
use super::counts::ThriftCounts;
use super::encode::{Effect, Exception, Given};
use super::kept::{Kept, KeptPage, UNKNOWN};
use super::memory::{ANSWER_BYTES_MAX, HeldMemory, MessageMemory, ThriftMemory};
use super::ring::{AskError, Keepers, Sharing, Sight};
use super::service::{KeyService, PAGE_BYTES, too_large};
use super::shares::{Shares, Whose};

/// A call goes on so long while slots of its keys go to other chains, or their heads cannot be asked.
const PATIENCE: Duration = Duration::from_secs(10);
/// It is tried again so much later; the longer it has lasted the more, an eighth of that.
const AGAIN: Duration = Duration::from_millis(20);
const AGAIN_MAX: Duration = Duration::from_millis(250);

/// Of calls that are answered with a number.
const NOTHING_FOUND: PartRoom = PartRoom { bytes: 0, several: true, in_turn: false };

/// A chain; `None`: that of this server.
type Chain = Option<Arc<str>>;

/// What calls are done with.
#[derive(Clone)]
pub(super) struct Means {
    pub(super) service: Arc<KeyService>,
    pub(super) counts: Arc<ThriftCounts>,
    pub(super) memory: Arc<ThriftMemory>,
    pub(super) shares: Arc<Shares>,
    /// Memory for what is read here is waited for so long.
    pub(super) patience: Duration,
    /// The server stops: nothing is tried again.
    pub(super) stopping: watch::Receiver<bool>,
}

impl Means {
    /// Memory for what a call may read here.
    async fn to_read(&self, asked: &Asked) -> Result<HeldMemory, Exception> {
        self.memory.to_read(asked.read_bytes_max(), self.patience).await
    }

    /// Does what goes to no other chain.
    async fn alone(&self, asked: Asked) -> Result<(Given, HeldMemory), Exception> {
        let held = self.to_read(&asked).await?;
        Ok((self.service.run_alone(asked).await?, held))
    }
}

/// Does what is asked for, wherever its keys are, by a message of so many bytes with its memory; what is given is to be
/// kept no longer than the memory beside it.
pub(super) async fn run(
    means: Means,
    asked: Asked,
    message: (usize, &mut MessageMemory),
) -> Result<(Given, HeldMemory), Exception> {
    let Some(sharing) = means.service.sharing().cloned() else { return means.alone(asked).await };
    let spread = Spread { means, sharing, until: Instant::now() + PATIENCE };
    match asked {
        Asked::Mode | Asked::IterateInserted { .. } => spread.means.alone(asked).await,
        Asked::Iterate { after, limit } => spread.page(after, limit).await,
        Asked::Count => spread.count().await.map(|given| (given, HeldMemory::new())),
        Asked::SetMode(_) => spread.set_mode(asked).await.map(|given| (given, HeldMemory::new())),
        asked => spread.keyed(asked, message).await,
    }
}

/// A call, as long as it lasts.
#[derive(Clone)]
struct Spread {
    means: Means,
    sharing: Sharing,
    until: Instant,
}

/// What a part of a call came to.
enum Part {
    Done(Given, HeldMemory),
    /// Nothing was done, and why, as far as it is known.
    Again(String),
    /// What it has found is more than it may answer.
    Large,
    Failed(Exception),
    /// It is not known what was done.
    Unknown(Exception),
}

/// How much parts of a call may find.
#[derive(Clone, Copy)]
struct PartRoom {
    bytes: usize,
    /// They are several, or will be: what is found waits for others.
    several: bool,
    /// They are asked one after the other.
    in_turn: bool,
}

impl Spread {
    /// Which chain keeps which slots; `None`: this server's keeps all.
    async fn keepers(&self) -> Result<Option<Arc<Keepers>>, Exception> {
        loop {
            match self.sharing.ring.sight() {
                Sight::Alone => return Ok(None),
                Sight::Shared(keepers) => return Ok(Some(keepers)),
                Sight::Unknown => self.again(UNKNOWN).await?,
            }
        }
    }

    /// All chains that keep some.
    async fn chains(&self) -> Result<Vec<Chain>, Exception> {
        Ok(self.keepers().await?.map_or_else(|| vec![None], |keepers| keepers.chains()))
    }

    /// All chains that keep some, or may soon: slots go there while a call is under way, and afterwards.
    async fn sharers(&self) -> Result<BTreeSet<Chain>, Exception> {
        let beside = self.sharing.ring.beside().into_iter().map(Some);
        Ok(self.chains().await?.into_iter().chain(beside).chain([None]).collect())
    }

    /// Waits a little before what was not done is tried again.
    async fn again(&self, why: &str) -> Result<(), Exception> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let seconds = PATIENCE.as_secs();
            return Err(Exception::internal(format!("{why}, for {seconds} s; nothing was done: try again later")));
        }
        let mut stopping = self.means.stopping.clone();
        tokio::select! {
            // One that is gone stops as well.
            _ = stopping.wait_for(|stopping| *stopping) => {
                Err(Exception::internal(format!("{why}; nothing was done: this server stops")))
            }
            () = tokio::time::sleep((PATIENCE.saturating_sub(left) / 8).clamp(AGAIN, AGAIN_MAX)) => Ok(()),
        }
    }

    /// Does a part of a call, or has another chain do it.
    async fn part(&self, chain: Chain, asked: &Asked, room: PartRoom) -> Part {
        let done = match chain {
            None => return self.own_part(asked, room).await,
            Some(chain) => match self.ask(&chain, asked, room.bytes).await {
                Ok(Ok(response)) if response.too_large => return Part::Large,
                Ok(Ok(response)) => carried::given(asked, response),
                Ok(Err(AskError::NotAsked(why))) => return Part::Again(why),
                Ok(Err(AskError::Unknown(why))) if !asked.writes() => return Part::Again(why),
                Ok(Err(AskError::Unknown(why))) => {
                    let why = format!("{why}; it is not known whether it was done");
                    return Part::Unknown(Exception::unknown(why));
                }
                Err(exception) => Err(exception),
            },
        };
        part_of(asked, done, HeldMemory::new())
    }

    /// A part that is done here, once there is memory for what it reads.
    async fn own_part(&self, asked: &Asked, room: PartRoom) -> Part {
        let held = match self.means.to_read(asked).await {
            Ok(held) => held,
            Err(exception) => return Part::Failed(exception),
        };
        let done = self.means.service.run_kept(asked.clone(), self.until).await;
        if !room.several {
            return part_of(asked, done, held);
        }
        // It is kept in the memory that the call has for all of them.
        match done {
            Ok(Kept::Done(given)) if given.payload_bytes() > room.bytes => Part::Large,
            done => part_of(asked, done, HeldMemory::new()),
        }
    }

    async fn ask(
        &self,
        chain: &Arc<str>,
        asked: &Asked,
        bytes_max: usize,
    ) -> Result<Result<esker_wire::proto::chain::AskKeysResponse, AskError>, Exception> {
        let Means { service, counts, .. } = &self.means;
        let request = carried::request(asked, &service.told(), service.mode(), bytes_max)?;
        counts.passed_on.fetch_add(1, Ordering::Relaxed);
        let asking = self.sharing.ring.ask(chain, request);
        if asked.writes() || matches!(asked, Asked::SetMode(_)) {
            return Ok(asking.await);
        }
        let late = |_| Err(AskError::NotAsked(format!("the chain {chain} does not answer")));
        Ok(timeout_at(self.until.into(), asking).await.unwrap_or_else(late))
    }

    /// A call about keys that it names, by a message of so many bytes.
    async fn keyed(
        &self,
        asked: Asked,
        (message_bytes, message): (usize, &mut MessageMemory),
    ) -> Result<(Given, HeldMemory), Exception> {
        let (mut left, mut done) = (vec![asked.clone()], Vec::new());
        let (mut several, mut in_turn) = (false, false);
        // What its message has, which is not counted as one that comes any more, and what is found.
        let (mut kept, mut held) = (HeldMemory::new(), HeldMemory::new());
        let mut held_for = None;
        loop {
            let keepers = self.keepers().await.map_err(|exception| told_of(&asked, several, exception))?;
            let parts: Vec<(Chain, Asked)> = match &keepers {
                None => left.drain(..).map(|part| (None, part)).collect(),
                Some(keepers) => left.drain(..).flat_map(|part| parts_of(part, keepers)).collect(),
            };
            several |= parts.len() > 1;
            let whose = match parts.first() {
                _ if several => Whose::Several,
                Some((Some(chain), _)) => Whose::Other(Arc::clone(chain)),
                _ => Whose::Own,
            };
            if message.is_held() && kept.is_empty() && keepers.is_some() {
                kept.push(self.means.shares.to_keep(&whose, message_bytes).await?);
                *message = MessageMemory::default();
            }
            let bytes = if whose == Whose::Own { 0 } else { asked.found_bytes_max(!in_turn) };
            if bytes > 0 && held_for.as_ref() != Some(&(whose.clone(), in_turn)) {
                // Of a call that is given something nothing is done that could not be begun anew.
                held.clear();
                held.push(self.means.shares.to_find(&whose, bytes, self.until).await?);
                held_for = Some((whose, in_turn));
            }
            let (mut why, mut failed, mut too_much) = (String::new(), None, false);
            let bytes = if bytes > 0 { bytes } else { ANSWER_BYTES_MAX };
            let bytes = bytes.saturating_sub(done.iter().map(Given::payload_bytes).sum());
            for (part, answer) in self.parts(parts, PartRoom { bytes, several, in_turn }).await {
                match answer {
                    Part::Done(given, read) => {
                        done.push(given);
                        held.extend(read);
                    }
                    Part::Large if in_turn => failed = Some(too_large(ANSWER_BYTES_MAX + 1)),
                    Part::Large => too_much = true,
                    Part::Again(because) => {
                        why = because;
                        left.push(part);
                    }
                    // What may have been done is told before what was not.
                    Part::Failed(exception) => failed = failed.or(Some(exception)),
                    Part::Unknown(exception) => failed = Some(exception),
                }
            }
            if too_much {
                // With memory for all that may be, none of which is held meanwhile.
                (in_turn, left) = (true, vec![asked.clone()]);
                done.clear();
            }
            let again = match failed {
                Some(exception) => Err(exception),
                None if left.is_empty() => {
                    held.extend(kept);
                    return Ok((joined(&asked, done)?, held));
                }
                None if why.is_empty() => Ok(()),
                None => self.again(&why).await,
            };
            again.map_err(|exception| told_of(&asked, several, exception))?;
        }
    }

    /// All parts, with what they came to.
    async fn parts(&self, parts: Vec<(Chain, Asked)>, room: PartRoom) -> Vec<(Asked, Part)> {
        if room.in_turn { self.in_turn(parts, room).await } else { self.all(parts, room).await }
    }

    /// All at once.
    async fn all(&self, mut parts: Vec<(Chain, Asked)>, room: PartRoom) -> Vec<(Asked, Part)> {
        let share = PartRoom { bytes: room.bytes / parts.len().max(1), ..room };
        if parts.len() == 1
            && let Some((chain, part)) = parts.pop()
        {
            let done = self.part(chain, &part, share).await;
            return vec![(part, done)];
        }
        let mut under_way = JoinSet::new();
        for (chain, part) in parts {
            let own = self.clone();
            under_way.spawn(async move {
                let done = own.part(chain, &part, share).await;
                (part, done)
            });
        }
        under_way.join_all().await
    }

    /// One part after the other.
    async fn in_turn(&self, parts: Vec<(Chain, Asked)>, mut room: PartRoom) -> Vec<(Asked, Part)> {
        let mut all = Vec::with_capacity(parts.len());
        for (chain, asked) in parts {
            let part = self.part(chain, &asked, room).await;
            if let Part::Done(given, _) = &part {
                room.bytes = room.bytes.saturating_sub(given.payload_bytes());
            }
            all.push((asked, part));
        }
        all
    }

    /// How many keys all chains have.
    async fn count(&self) -> Result<Given, Exception> {
        loop {
            let parts = self.chains().await?.into_iter().map(|chain| (chain, Asked::Count)).collect();
            let (mut all, mut why) = (0_i64, String::new());
            for (_, answer) in self.all(parts, NOTHING_FOUND).await {
                match answer {
                    Part::Done(Given::I64(count), _) => all = all.saturating_add(count),
                    Part::Done(..) | Part::Large => {}
                    Part::Again(because) => why = because,
                    Part::Failed(exception) | Part::Unknown(exception) => return Err(exception),
                }
            }
            if why.is_empty() {
                return Ok(Given::I64(all));
            }
            self.again(&why).await?;
        }
    }

    /// Has the service of each chain acknowledge writes anew, also of those to which slots may go.
    async fn set_mode(&self, asked: Asked) -> Result<Given, Exception> {
        let mut set = BTreeSet::new();
        loop {
            let all = self.sharers().await.map_err(|exception| match set.len() {
                0 => exception,
                count => {
                    let message = exception.message.replace("nothing was done", "nothing more was done");
                    Exception { message: format!("the mode is set at {count} chains: {message}"), ..exception }
                }
            })?;
            let mut under_way = JoinSet::new();
            for chain in all.difference(&set).cloned() {
                let (own, asked) = (self.clone(), asked.clone());
                under_way.spawn(async move { (chain.clone(), own.part(chain, &asked, NOTHING_FOUND).await) });
            }
            if under_way.is_empty() {
                return Ok(Given::Nothing);
            }
            let (mut why, mut failed) = (String::new(), None);
            for (chain, answer) in under_way.join_all().await {
                match answer {
                    Part::Again(because) => why = because,
                    Part::Failed(exception) | Part::Unknown(exception) => failed = Some(exception),
                    Part::Done(..) | Part::Large => {
                        set.insert(chain);
                    }
                }
            }
            let again = match failed {
                Some(exception) => Err(exception),
                // It is looked whether others have come to share them meanwhile.
                None if why.is_empty() => Ok(()),
                None => self.again(&why).await,
            };
            again.map_err(|exception| {
                if all.len() < 2 && set.is_empty() {
                    return exception;
                }
                let message = exception.message.replace("nothing was done", "nothing was done there");
                let (done, all) = (set.len(), all.union(&set).count());
                Exception { message: format!("the mode is set at {done} of {all} chains: {message}"), ..exception }
            })?;
        }
    }

    /// A page in the order of keys.
    async fn page(&self, after: Option<OwnedKey>, limit: usize) -> Result<(Given, HeldMemory), Exception> {
        let mut whole = None;
        loop {
            let chains = self.chains().await?;
            if whole.is_none() && chains.iter().any(Option::is_some) {
                let bytes = chains.len() * (PAGE_BYTES + VALUE_BYTES_MAX);
                whole = Some(self.means.shares.to_find(&Whose::Several, bytes, self.until).await?);
            }
            let several = whole.is_some();
            let mut under_way = JoinSet::new();
            for chain in chains {
                let (own, after) = (self.clone(), after.clone());
                under_way.spawn(async move { own.page_of(chain, after, limit, several).await });
            }
            let (mut pages, mut why, mut held) = (Vec::new(), String::new(), HeldMemory::new());
            for page in under_way.join_all().await {
                match page? {
                    Ok((page, read)) => {
                        pages.push(page);
                        held.extend(read);
                    }
                    Err(because) => why = because,
                }
            }
            if why.is_empty() {
                if hold_each_slot(&pages) {
                    held.extend(whole);
                    return Ok((merged(pages, limit), held));
                }
                "slots go from chain to chain".clone_into(&mut why);
            }
            self.again(&why).await?;
        }
    }

    /// The page of one chain; in its place why it cannot be had now. `several`: there is memory for those of all.
    async fn page_of(
        &self,
        chain: Chain,
        after: Option<OwnedKey>,
        limit: usize,
        several: bool,
    ) -> Result<Result<(KeptPage, HeldMemory), String>, Exception> {
        let asked = Asked::Iterate { after: after.clone(), limit };
        let Some(chain) = chain else {
            let held = self.means.to_read(&asked).await?;
            return match self.means.service.page_kept(after, limit, self.until).await {
                Ok(page) => Ok(Ok((page, if several { HeldMemory::new() } else { held }))),
                Err(exception) if exception.effect == Effect::None => Ok(Err(why_undone(exception))),
                Err(exception) => Err(exception),
            };
        };
        match self.ask(&chain, &asked, ANSWER_BYTES_MAX).await? {
            Ok(response) => match carried::page_given(response, self.means.service.kind()) {
                Ok(page) => Ok(Ok((page, HeldMemory::new()))),
                Err(exception) if exception.effect == Effect::None => Ok(Err(why_undone(exception))),
                Err(exception) => Err(exception),
            },
            Err(AskError::NotAsked(why) | AskError::Unknown(why)) => Ok(Err(why)),
        }
    }
}

/// Why nothing was done, as text that is followed by that; never empty.
fn why_undone(Exception { message, .. }: Exception) -> String {
    match message.strip_prefix("nothing was done: ").unwrap_or(&message) {
        "" => "its chain does not say why".into(),
        why => why.into(),
    }
}

/// What was done of a part, with memory for what it has read.
fn part_of(asked: &Asked, done: Result<Kept<Given>, Exception>, held: HeldMemory) -> Part {
    match done {
        Err(exception) if exception.effect == Effect::Unknown && asked.writes() => Part::Unknown(exception),
        Ok(Kept::Done(given)) => Part::Done(given, held),
        Ok(Kept::Elsewhere) => Part::Again("slots of its keys go from chain to chain".into()),
        Err(exception) if exception.effect == Effect::None => Part::Again(why_undone(exception)),
        Err(exception) => Part::Failed(exception),
    }
}

/// What a client is told of a part that failed, of a call that was in `several`: others may have been done.
fn told_of(asked: &Asked, several: bool, exception: Exception) -> Exception {
    if !several || !asked.writes() {
        return exception;
    }
    let message = exception.message.replace("nothing was done", "nothing was done of these");
    Exception { message: format!("keys of several chains, of which some may be done: {message}"), ..exception }
}

/// The parts of a call, by the chain that keeps their keys.
fn parts_of(asked: Asked, keepers: &Keepers) -> Vec<(Chain, Asked)> {
    fn by_chain<T>(all: Vec<T>, keepers: &Keepers, key: impl Fn(&T) -> &OwnedKey) -> Vec<(Chain, Vec<T>)> {
        let mut parts: Vec<(Chain, Vec<T>)> = Vec::new();
        for one in all {
            let chain = keepers.of(key(&one).as_key().slot());
            match parts.iter_mut().find(|(of, _)| of.as_ref() == chain) {
                Some((_, part)) => part.push(one),
                None => parts.push((chain.cloned(), vec![one])),
            }
        }
        parts
    }
    let many = |keys: Vec<OwnedKey>, make: fn(Vec<OwnedKey>) -> Asked| {
        by_chain(keys, keepers, |key| key).into_iter().map(|(chain, keys)| (chain, make(keys))).collect()
    };
    match asked {
        Asked::MultiGet(keys) if !keys.is_empty() => many(keys, Asked::MultiGet),
        Asked::RemoveMany(keys) if !keys.is_empty() => many(keys, Asked::RemoveMany),
        Asked::MultiPut(pairs) if !pairs.is_empty() => {
            let parts = by_chain(pairs, keepers, |(key, _)| key).into_iter();
            parts.map(|(chain, pairs)| (chain, Asked::MultiPut(pairs))).collect()
        }
        asked => {
            let chain = asked.slots().first().and_then(|slot| keepers.of(*slot).cloned());
            vec![(chain, asked)]
        }
    }
}

/// What a call came to, of what its parts did.
fn joined(asked: &Asked, mut done: Vec<Given>) -> Result<Given, Exception> {
    if done.len() == 1
        && let Some(given) = done.pop()
    {
        return Ok(given);
    }
    match asked {
        Asked::MultiGet(keys) => {
            let pairs =
                done.into_iter().flat_map(|given| if let Given::Pairs(pairs) = given { pairs } else { Vec::new() });
            let found: HashMap<Bytes, Bytes> = pairs.collect();
            let pair = |key: &OwnedKey| {
                let key = text_of(key.clone());
                found.get(&key).cloned().map(|value| (key, value))
            };
            let pairs: Vec<(Bytes, Bytes)> = keys.iter().filter_map(pair).collect();
            let bytes = pairs.iter().map(|(key, value)| key.len() + value.len()).sum();
            if bytes > ANSWER_BYTES_MAX {
                return Err(too_large(bytes));
            }
            Ok(Given::Pairs(pairs))
        }
        Asked::RemoveMany(_) => {
            let count = |given: &Given| if let Given::I64(count) = given { *count } else { 0 };
            Ok(Given::I64(done.iter().map(count).sum()))
        }
        _ => Ok(Given::Nothing),
    }
}

/// Whether pages are of each slot, once.
fn hold_each_slot(pages: &[KeptPage]) -> bool {
    let mut spans: Vec<(u16, u16)> = pages.iter().flat_map(|page| page.spans.iter().copied()).collect();
    spans.sort_unstable();
    let mut next = 0;
    for (first, last) in spans {
        if u64::from(first) != next || last < first {
            return false;
        }
        next = u64::from(last) + 1;
    }
    next == SLOTS
}

/// One page of those of all chains: up to the key that the first of them has not looked behind.
fn merged(pages: Vec<KeptPage>, limit: usize) -> Given {
    let end = pages.iter().filter_map(|page| page.last.clone()).min();
    let mut all: Vec<(OwnedKey, Bytes)> = pages.into_iter().flat_map(|page| page.pairs).collect();
    all.retain(|(key, _)| end.as_ref().is_none_or(|end| key <= end));
    all.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    let (mut bytes, mut count) = (0, 0);
    for (key, value) in all.iter().take(limit) {
        if bytes >= PAGE_BYTES {
            break;
        }
        bytes += key.as_bytes().map_or(size_of::<u64>(), Bytes::len) + value.len();
        count += 1;
    }
    let cut = count < all.len();
    all.truncate(count);
    let next = if cut { all.last().map(|(key, _)| key.clone()) } else { end };
    let next = next.map(|key| cursor_behind(&key));
    Given::Page(all.into_iter().map(|(key, value)| (text_of(key), value)).collect(), next)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;
    use crate::thrift::ring::Keeper;

    fn int(key: u64) -> OwnedKey {
        OwnedKey::Int(key)
    }

    /// The first half of the slots is of this chain.
    fn halves() -> Keepers {
        let keeper = |first, last, chain: Option<&str>| Keeper { first, last, chain: chain.map(Arc::from) };
        Keepers::new(vec![keeper(0, 8_191, None), keeper(8_192, 16_383, Some("b"))]).unwrap()
    }

    /// The first key of the other half.
    const FAR: u64 = 8_192 << 16;

    #[test]
    fn parts_are_of_the_chains_that_keep_their_keys() {
        let b: Chain = Some("b".into());
        let parts = parts_of(Asked::MultiGet(vec![int(1), int(FAR), int(2), int(FAR + 1)]), &halves());
        let expected = [(None, vec![int(1), int(2)]), (b.clone(), vec![int(FAR), int(FAR + 1)])];
        assert_eq!(parts, expected.map(|(chain, keys)| (chain, Asked::MultiGet(keys))));
        assert_eq!(parts_of(Asked::Get(int(FAR)), &halves()), [(b, Asked::Get(int(FAR)))]);
        assert_eq!(parts_of(Asked::MultiGet(Vec::new()), &halves()), [(None, Asked::MultiGet(Vec::new()))]);
    }

    #[test]
    fn what_parts_have_found_comes_in_the_order_of_the_call() {
        let asked = Asked::MultiGet(vec![int(FAR), int(1), int(FAR), int(9)]);
        let pairs = |keys: &[&str]| {
            Given::Pairs(keys.iter().map(|key| (Bytes::from((*key).to_owned()), Bytes::from_static(b"v"))).collect())
        };
        let far = FAR.to_string();
        let found = joined(&asked, vec![pairs(&["1"]), pairs(&[&far, &far])]).unwrap();
        assert_eq!(found, pairs(&[&far, "1", &far]));
        let removed = joined(&Asked::RemoveMany(Vec::new()), vec![Given::I64(2), Given::I64(5)]).unwrap();
        assert_eq!(removed, Given::I64(7));
    }

    #[test]
    fn a_page_ends_where_a_chain_has_not_looked_further() {
        let page = |keys: &[u64], last: Option<u64>, spans: &[(u16, u16)]| KeptPage {
            pairs: keys.iter().map(|key| (int(*key), Bytes::from_static(b"v"))).collect(),
            last: last.map(int),
            spans: spans.to_vec(),
        };
        let found = |pages, limit| {
            let Given::Page(pairs, next) = merged(pages, limit) else { panic!("no page") };
            let keys: Vec<String> = pairs.iter().map(|(key, _)| String::from_utf8(key.to_vec()).unwrap()).collect();
            (keys.join(","), next)
        };
        let two = |first, second| vec![page(&[1, 5, 9], first, &[]), page(&[2, 6], second, &[])];
        assert_eq!(found(two(None, None), 10), ("1,2,5,6,9".into(), None));
        assert_eq!(found(two(Some(9), Some(6)), 10), ("1,2,5,6".into(), Some(cursor_behind(&int(6)))));
        assert_eq!(found(two(Some(9), None), 3), ("1,2,5".into(), Some(cursor_behind(&int(5)))));
        assert_eq!(found(two(None, Some(0)), 3), (String::new(), Some(cursor_behind(&int(0)))));
        let hold = |spans: [&[(u16, u16)]; 2]| hold_each_slot(&spans.map(|spans| page(&[], None, spans)));
        assert!(hold([&[(0, 5), (7, 16_383)], &[(6, 6)]]));
        assert!(!hold([&[(0, 5)], &[(7, 16_383)]]) && !hold([&[(0, 5)], &[(5, 16_383)]]) && !hold([&[], &[]]));
    }
}
