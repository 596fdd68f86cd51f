//! Calls about keys that several chains keep.
//!
//! call → a part for each chain that keeps some of its keys → done here, or by the other chain's head → joined
//! · where slots have gone meanwhile: once more, of what was not done
//!
//! Invariants:
//! 1. A write is sent a second time only where it is known that nothing was done.
//! 2. All or nothing is what one chain does: a call whose keys are of several is so for each by itself.
//! 3. A page has each key of all slots, or is read anew.
//! 4. What other chains answer to a call for several keys is no more than one answer may be: each has its share of it,
//!    and where one needs more they are asked one after the other. Of a page each gives one of its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_kv::{OwnedKey, SLOTS};
use tokio::task::JoinSet;

use super::call::{Asked, cursor_behind, text_of};
use super::carried;
use super::counts::ThriftCounts;
use super::encode::{Exception, Given};
use super::kept::{Kept, KeptPage, UNKNOWN};
use super::memory::ANSWER_BYTES_MAX;
use super::ring::{AskError, Keepers, Sharing, Sight};
use super::service::{KeyService, PAGE_BYTES, too_large};

/// A call goes on so long while slots of its keys go to other chains, or their heads cannot be asked.
const PATIENCE: Duration = Duration::from_secs(10);
/// It is tried again so much later.
const AGAIN: Duration = Duration::from_millis(20);

/// A chain; `None`: that of this server.
type Chain = Option<Arc<str>>;

/// Does what is asked for, wherever its keys are.
pub(super) async fn run(
    service: &Arc<KeyService>,
    counts: &Arc<ThriftCounts>,
    asked: Asked,
) -> Result<Given, Exception> {
    let Some(sharing) = service.sharing() else { return service.run_alone(asked).await };
    let (until, sharing) = (Instant::now() + PATIENCE, sharing.clone());
    let spread = Spread { service: Arc::clone(service), counts: Arc::clone(counts), sharing, until };
    match asked {
        Asked::Mode | Asked::IterateInserted { .. } => service.run_alone(asked).await,
        Asked::Iterate { after, limit } => spread.page(after, limit).await,
        Asked::Count => spread.count().await,
        Asked::SetMode(_) => spread.set_mode(asked).await,
        asked => spread.keyed(asked).await,
    }
}

/// A call, as long as it lasts.
#[derive(Clone)]
struct Spread {
    service: Arc<KeyService>,
    counts: Arc<ThriftCounts>,
    sharing: Sharing,
    until: Instant,
}

/// What a part of a call came to.
enum Part {
    Done(Given),
    /// Nothing was done, and why, as far as it is known.
    Again(String),
    /// What it has found is more than it may answer.
    Large,
    Failed(Exception),
    /// It is not known what was done.
    Unknown(Exception),
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

    /// Waits a little before what was not done is tried again.
    async fn again(&self, why: &str) -> Result<(), Exception> {
        if Instant::now() >= self.until {
            let seconds = PATIENCE.as_secs();
            return Err(Exception::internal(format!("{why}, for {seconds} s; nothing was done: try again later")));
        }
        tokio::time::sleep(AGAIN).await;
        Ok(())
    }

    /// Does a part of a call, or has another chain do it.
    async fn part(&self, chain: Chain, asked: &Asked, bytes_max: usize) -> Part {
        let done = match chain {
            None => self.service.run_kept(asked.clone(), self.until).await,
            Some(chain) => match self.ask(&chain, asked, bytes_max).await {
                Ok(Ok(response)) if response.too_large => return Part::Large,
                Ok(Ok(response)) => carried::given(asked, response),
                Ok(Err(AskError::NotAsked(why))) => return Part::Again(why),
                Ok(Err(AskError::Unknown(why))) if !asked.writes() => return Part::Again(why),
                Ok(Err(AskError::Unknown(why))) => {
                    let why = format!("{why}; it is not known whether it was done");
                    return Part::Unknown(Exception::internal(why));
                }
                Err(exception) => Err(exception),
            },
        };
        match done {
            Ok(Kept::Done(given)) => Part::Done(given),
            Ok(Kept::Elsewhere) => Part::Again("slots of its keys go from chain to chain".into()),
            Err(exception) => Part::Failed(exception),
        }
    }

    async fn ask(
        &self,
        chain: &Arc<str>,
        asked: &Asked,
        bytes_max: usize,
    ) -> Result<Result<esker_wire::proto::chain::AskKeysResponse, AskError>, Exception> {
        let request = carried::request(asked, &self.service.told(), self.service.mode(), bytes_max)?;
        self.counts.passed_on.fetch_add(1, Ordering::Relaxed);
        Ok(self.sharing.ring.ask(chain, request).await)
    }

    /// A call about keys that it names.
    async fn keyed(&self, asked: Asked) -> Result<Given, Exception> {
        let (mut left, mut done) = (vec![asked.clone()], Vec::new());
        let (mut several, mut in_turn) = (false, false);
        loop {
            let keepers = self.keepers().await.map_err(|exception| told_of(&asked, several, exception))?;
            let parts: Vec<(Chain, Asked)> = match &keepers {
                None => left.drain(..).map(|part| (None, part)).collect(),
                Some(keepers) => left.drain(..).flat_map(|part| parts_of(part, keepers)).collect(),
            };
            several |= parts.len() > 1;
            let (mut why, mut failed) = (String::new(), None);
            let room = ANSWER_BYTES_MAX.saturating_sub(done.iter().map(Given::payload_bytes).sum());
            let answers = if in_turn { self.in_turn(parts, room).await } else { self.all(parts, room).await };
            for (part, answer) in answers {
                match answer {
                    Part::Done(given) => done.push(given),
                    Part::Large if in_turn => failed = Some(too_large(ANSWER_BYTES_MAX + 1)),
                    Part::Large => left.push(part),
                    Part::Again(because) => {
                        why = because;
                        left.push(part);
                    }
                    // What may have been done is told before what was not.
                    Part::Failed(exception) => failed = failed.or(Some(exception)),
                    Part::Unknown(exception) => failed = Some(exception),
                }
            }
            let again = match failed {
                Some(exception) => Err(exception),
                None if left.is_empty() => return joined(&asked, done),
                None if why.is_empty() => {
                    in_turn = true;
                    Ok(())
                }
                None => self.again(&why).await,
            };
            again.map_err(|exception| told_of(&asked, several, exception))?;
        }
    }

    /// All parts at once, with what they came to; what is found has so much room.
    async fn all(&self, mut parts: Vec<(Chain, Asked)>, room: usize) -> Vec<(Asked, Part)> {
        let share = room / parts.len().max(1);
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
    async fn in_turn(&self, parts: Vec<(Chain, Asked)>, mut room: usize) -> Vec<(Asked, Part)> {
        let mut all = Vec::with_capacity(parts.len());
        for (chain, asked) in parts {
            let part = self.part(chain, &asked, room).await;
            if let Part::Done(given) = &part {
                room = room.saturating_sub(given.payload_bytes());
            }
            all.push((asked, part));
        }
        all
    }

    /// How many keys all chains have.
    async fn count(&self) -> Result<Given, Exception> {
        let parts = self.chains().await?.into_iter().map(|chain| (chain, Asked::Count)).collect();
        let mut all = 0_i64;
        for (_, answer) in self.all(parts, ANSWER_BYTES_MAX).await {
            match answer {
                Part::Done(Given::I64(count)) => all = all.saturating_add(count),
                Part::Done(_) | Part::Large => {}
                Part::Again(why) => return Err(Exception::internal(why)),
                Part::Failed(exception) | Part::Unknown(exception) => return Err(exception),
            }
        }
        Ok(Given::I64(all))
    }

    /// Has the service of each chain acknowledge writes anew.
    async fn set_mode(&self, asked: Asked) -> Result<Given, Exception> {
        let parts = self.chains().await?.into_iter().map(|chain| (chain, asked.clone())).collect();
        for (_, answer) in self.all(parts, ANSWER_BYTES_MAX).await {
            let why = match answer {
                Part::Done(_) | Part::Large => continue,
                Part::Again(why) => why,
                Part::Failed(exception) | Part::Unknown(exception) => exception.message,
            };
            return Err(Exception::internal(format!("the mode is set, but not at every chain: {why}")));
        }
        Ok(Given::Nothing)
    }

    /// A page in the order of keys.
    async fn page(&self, after: Option<OwnedKey>, limit: usize) -> Result<Given, Exception> {
        loop {
            let mut under_way = JoinSet::new();
            for chain in self.chains().await? {
                let (own, after) = (self.clone(), after.clone());
                under_way.spawn(async move { own.page_of(chain, after, limit).await });
            }
            let (mut pages, mut why) = (Vec::new(), String::new());
            for page in under_way.join_all().await {
                match page? {
                    Ok(page) => pages.push(page),
                    Err(because) => why = because,
                }
            }
            if why.is_empty() {
                if hold_each_slot(&pages) {
                    return Ok(merged(pages, limit));
                }
                "slots go from chain to chain".clone_into(&mut why);
            }
            self.again(&why).await?;
        }
    }

    /// The page of one chain; in its place why it cannot be had now.
    async fn page_of(
        &self,
        chain: Chain,
        after: Option<OwnedKey>,
        limit: usize,
    ) -> Result<Result<KeptPage, String>, Exception> {
        let Some(chain) = chain else { return self.service.page_kept(after, limit, self.until).await.map(Ok) };
        match self.ask(&chain, &Asked::Iterate { after, limit }, ANSWER_BYTES_MAX).await? {
            Ok(response) => carried::page_given(response, self.service.kind()).map(Ok),
            Err(AskError::NotAsked(why) | AskError::Unknown(why)) => Ok(Err(why)),
        }
    }
}

/// What a client is told of a part that failed, of a call that was in `several`: others may have been done.
fn told_of(asked: &Asked, several: bool, exception: Exception) -> Exception {
    if !several || !asked.writes() {
        return exception;
    }
    let Exception { kind, message } = exception;
    let message = message.replace("nothing was done", "nothing was done of these");
    Exception { kind, message: format!("keys of several chains, of which some may be done: {message}") }
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
