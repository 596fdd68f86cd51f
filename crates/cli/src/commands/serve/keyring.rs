//! What Thrift's service asks of the other chains that share the keys of a cluster, and answers them.
//!
//! call of a client → [`KeyRing`] → head of the chain that keeps its keys · asked by such a head → [`Answers`]
//!
//! Invariant: this server answers for its chain for as long as the term lasts in which it heads it.

use std::collections::BTreeSet;
use std::sync::Arc;

use esker::kv::{Kind, RANGE_KEYS};
use esker_cluster::{Instance, SLOTS};
use esker_member::{Answering, AnswersKeys, Host, Unanswered, messages};
use esker_server::thrift::{AskError, Asking, Handle, Ring, Sight};

use super::nodes::Nodes;

/// How clients of Zing Database are told that this service is spoken to.
const PROTOCOL: &str = "thriftbinary";

/// The chains.
pub(super) struct KeyRing {
    pub nodes: Arc<Nodes>,
    pub host: Arc<Host>,
}

impl KeyRing {
    pub(super) fn shared(self) -> Arc<dyn Ring> {
        Arc::new(self)
    }
}

impl Ring for KeyRing {
    fn sight(&self) -> Sight {
        self.nodes.sight()
    }

    fn beside(&self) -> Vec<Arc<str>> {
        self.nodes.beside()
    }

    fn ask(&self, chain: &str, request: messages::AskKeysRequest) -> Asking {
        let asking = self.host.ask_keys(chain, request);
        Box::pin(async move {
            asking.await.map_err(|unanswered| match unanswered {
                Unanswered::NotAsked(why) => AskError::NotAsked(why),
                Unanswered::Unknown(why) => AskError::Unknown(why),
            })
        })
    }
}

/// The instances of the service that this server is, at `HOST:PORT`, of what its chain keeps: one for each run of keys,
/// whose mark is the key behind its last, or, of byte keys, the slot. A chain that shares none, beside others, is found
/// by its own address alone. `is_only`: there are no others.
pub(super) fn instances(address: &str, kind: Kind, sight: &Sight, is_only: bool) -> BTreeSet<Instance> {
    let runs = match sight {
        Sight::Alone if is_only => vec![SLOTS - 1],
        Sight::Shared(keepers) => keepers.own().map(|own| own.last).collect(),
        Sight::Alone | Sight::Unknown => Vec::new(),
    };
    let Some((host, port)) = address.rsplit_once(':') else { return BTreeSet::new() };
    let Ok(port) = port.parse() else { return BTreeSet::new() };
    let instance = |last: u16| {
        let end = u64::from(last) + 1;
        let mark = if kind == Kind::Int { end * RANGE_KEYS } else { end };
        Instance { mark, protocol: PROTOCOL.into(), host: host.into(), port }
    };
    runs.into_iter().map(instance).collect()
}

/// A term in which this server answers for keys of a chain.
pub(super) struct Answers {
    chain: String,
    host: Arc<Host>,
}

struct ByThrift(Handle);

impl AnswersKeys for ByThrift {
    fn answer(&self, request: messages::AskKeysRequest) -> Answering {
        let handle = self.0.clone();
        Box::pin(async move { handle.answer(request).await })
    }
}

impl Answers {
    /// From now on.
    pub(super) fn begin(chain: &str, host: &Arc<Host>, thrift: Handle) -> Self {
        host.set_answers(chain, Some(Arc::new(ByThrift(thrift))));
        Self { chain: chain.to_owned(), host: Arc::clone(host) }
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.host.set_answers(&self.chain, None);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use esker_server::thrift::{Keeper, Keepers};

    use super::*;

    #[test]
    fn each_run_of_keys_has_a_mark_where_it_ends() {
        let keeper = |first, last, chain: Option<&str>| Keeper { first, last, chain: chain.map(Arc::from) };
        let keepers = vec![keeper(0, 9, None), keeper(10, 99, Some("b")), keeper(100, 16_383, None)];
        let shared = Sight::Shared(Arc::new(Keepers::new(keepers).unwrap()));
        let marks = |kind, sight: &Sight| {
            instances("10.0.0.1:9901", kind, sight, true).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            marks(Kind::Int, &shared),
            ["thriftbinary_655360:10.0.0.1:9901", "thriftbinary_1073741824:10.0.0.1:9901"]
        );
        assert_eq!(marks(Kind::Bytes, &shared), ["thriftbinary_10:10.0.0.1:9901", "thriftbinary_16384:10.0.0.1:9901"]);
        assert_eq!(marks(Kind::Bytes, &Sight::Alone), ["thriftbinary_16384:10.0.0.1:9901"]);
        assert_eq!(marks(Kind::Int, &Sight::Unknown), [""; 0]);
        assert!(instances("10.0.0.1:9901", Kind::Int, &Sight::Alone, false).is_empty());
    }
}
