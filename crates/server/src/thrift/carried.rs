//! Calls, and what they come to, as the heads of chains tell them each other.
//!
//! [`Asked`] → request → [`asked`] → done by the other chain → response → [`given`]
//!
//! Invariants:
//! 1. What is carried is looked at as what a client sends is: a key that is none is refused by name.
//! 2. What another chain says and makes no sense is an error that says so.

use bytes::Bytes;
use esker_kv::{Kind, OwnedKey};
use esker_wire::proto::chain::{AskKeysRequest, AskKeysResponse, KeptSlots, KeyError, KeyMethod};
use esker_wire::proto::store::Pair;

use super::arguments::BATCH_MAX;
use super::call::{Asked, PAGE_MAX, WriteMode, key, text_of};
use super::encode::{Effect, Exception, ExceptionKind, Given};
use super::kept::{Kept, KeptPage};

fn strange(what: &str) -> Exception {
    Exception::internal(format!("a server of another chain sent what makes no sense: {what}"))
}

/// What another chain is asked for; `namespace`: its name and the kind of its keys; `bytes_max`: of what it answers.
pub(super) fn request(
    asked: &Asked,
    namespace: &str,
    mode: WriteMode,
    bytes_max: usize,
) -> Result<AskKeysRequest, Exception> {
    let (mut keys, mut values, mut expected) = (Vec::new(), Vec::new(), None);
    let (mut behind, mut page, mut asynchronous) = (None, 0, mode == WriteMode::Asynchronous);
    let method = match asked {
        Asked::Get(_) => KeyMethod::Get,
        Asked::MultiGet(_) => KeyMethod::MultiGet,
        Asked::Remove(_) => KeyMethod::Remove,
        Asked::Has(_) => KeyMethod::Has,
        Asked::RemoveMany(_) => KeyMethod::RemoveMany,
        Asked::Put(_, value) => {
            values.push(value.clone());
            KeyMethod::Put
        }
        Asked::MultiPut(pairs) => {
            values.extend(pairs.iter().map(|(_, value)| value.clone()));
            KeyMethod::MultiPut
        }
        Asked::Add(_, value) => {
            values.push(value.clone());
            KeyMethod::Add
        }
        Asked::Update(_, value) => {
            values.push(value.clone());
            KeyMethod::Update
        }
        Asked::CompareAndSet(_, known, value) => {
            values.push(value.clone());
            expected.clone_from(known);
            KeyMethod::CompareAndSet
        }
        Asked::Iterate { after, limit } => {
            behind = after.clone().map(text_of);
            page = *limit as u32;
            KeyMethod::Iterate
        }
        Asked::Count => KeyMethod::Count,
        Asked::SetMode(mode) => {
            asynchronous = *mode == WriteMode::Asynchronous;
            KeyMethod::SetMode
        }
        Asked::Mode | Asked::IterateInserted { .. } => return Err(strange("a call of one chain")),
    };
    asked.each_key(|key| {
        keys.push(text_of(key.clone()));
        true
    });
    Ok(AskKeysRequest {
        chain: String::new(),
        cluster: String::new(),
        namespace: namespace.to_owned(),
        method: method.into(),
        asynchronous,
        keys,
        values,
        expected,
        after: behind,
        limit: page,
        bytes_max: bytes_max as u64,
    })
}

/// What a server of another chain asks for, of keys of this kind.
pub(super) fn asked(request: AskKeysRequest, kind: Kind) -> Result<(Asked, WriteMode), Exception> {
    let mode = if request.asynchronous { WriteMode::Asynchronous } else { WriteMode::Safe };
    let method = request.method();
    let AskKeysRequest { keys, values, expected, after, limit, .. } = request;
    if keys.len() > BATCH_MAX {
        return Err(strange("more keys than a call has"));
    }
    let keys: Vec<OwnedKey> = keys.into_iter().map(|text| key(text, kind)).collect::<Result<_, _>>()?;
    let first = || keys.first().cloned().ok_or_else(|| strange("no key"));
    let value = || values.first().cloned().ok_or_else(|| strange("no value"));
    let asked = match method {
        KeyMethod::Unspecified => return Err(strange("no method")),
        KeyMethod::Get => Asked::Get(first()?),
        KeyMethod::MultiGet => Asked::MultiGet(keys),
        KeyMethod::Remove => Asked::Remove(first()?),
        KeyMethod::Put => Asked::Put(first()?, value()?),
        KeyMethod::MultiPut if keys.len() != values.len() => return Err(strange("keys without values")),
        KeyMethod::MultiPut => Asked::MultiPut(keys.into_iter().zip(values).collect()),
        KeyMethod::Has => Asked::Has(first()?),
        KeyMethod::Add => Asked::Add(first()?, value()?),
        KeyMethod::Update => Asked::Update(first()?, value()?),
        KeyMethod::CompareAndSet => Asked::CompareAndSet(first()?, expected, value()?),
        KeyMethod::RemoveMany => Asked::RemoveMany(keys),
        KeyMethod::Iterate => {
            let limit = usize::try_from(limit).ok().filter(|limit| (1..=PAGE_MAX).contains(limit));
            let after = after.map(|text| key(text, kind)).transpose()?;
            Asked::Iterate { after, limit: limit.ok_or_else(|| strange("a page of no size"))? }
        }
        KeyMethod::Count => Asked::Count,
        KeyMethod::SetMode => Asked::SetMode(mode),
    };
    Ok((asked, mode))
}

/// What a call came to here.
pub(super) fn response(answer: Result<Kept<Given>, Exception>) -> AskKeysResponse {
    let mut response = AskKeysResponse::default();
    match answer {
        Ok(Kept::Elsewhere) => response.elsewhere = true,
        Ok(Kept::Done(Given::Nothing)) => {}
        Ok(Kept::Done(Given::Text(value))) => response.value = Some(value),
        Ok(Kept::Done(Given::Pairs(pairs) | Given::Page(pairs, _))) => {
            response.pairs = pairs.into_iter().map(|(key, value)| Pair { key, value }).collect();
        }
        Ok(Kept::Done(Given::I32(number))) => response.number = number.into(),
        Ok(Kept::Done(Given::I64(number))) => response.number = number,
        Ok(Kept::Done(Given::Bool(holds))) => response.number = holds.into(),
        Err(Exception { kind, message, effect }) => {
            let (unknown, undone) = (effect == Effect::Unknown, effect == Effect::None);
            response.error = Some(KeyError { kind: kind as u32, message, unknown, undone });
        }
    }
    response
}

/// The same; no more than so many bytes of keys and values.
pub(super) fn bounded(answer: Result<Kept<Given>, Exception>, bytes_max: usize) -> AskKeysResponse {
    match &answer {
        Ok(Kept::Done(given @ (Given::Pairs(_) | Given::Text(_)))) if given.payload_bytes() > bytes_max => {
            AskKeysResponse { too_large: true, ..AskKeysResponse::default() }
        }
        _ => response(answer),
    }
}

/// A page of what is kept here.
pub(super) fn page_response(page: KeptPage) -> AskKeysResponse {
    let KeptPage { pairs, last, spans } = page;
    let span = |(first, last): (u16, u16)| KeptSlots { first: first.into(), last: last.into() };
    AskKeysResponse {
        pairs: pairs.into_iter().map(|(key, value)| Pair { key: text_of(key), value }).collect(),
        last: last.map(text_of),
        kept: spans.into_iter().map(span).collect(),
        ..AskKeysResponse::default()
    }
}

fn refusal(response: &AskKeysResponse) -> Option<Exception> {
    let KeyError { kind, message, unknown, undone } = response.error.as_ref()?;
    let kinds = [ExceptionKind::Unknown, ExceptionKind::InternalError, ExceptionKind::ProtocolError];
    let kind = kinds.into_iter().find(|known| *known as u32 == *kind).unwrap_or(ExceptionKind::InternalError);
    let effect = match (unknown, undone) {
        (true, _) => Effect::Unknown,
        (false, true) => Effect::None,
        (false, false) => Effect::AsTold,
    };
    Some(Exception { kind, message: message.clone(), effect })
}

/// What a call came to at another chain, whose answer is not too large.
pub(super) fn given(asked: &Asked, response: AskKeysResponse) -> Result<Kept<Given>, Exception> {
    if let Some(exception) = refusal(&response) {
        return Err(exception);
    }
    if response.elsewhere {
        return Ok(Kept::Elsewhere);
    }
    let number = || i32::try_from(response.number).map_err(|_| strange("a status"));
    Ok(Kept::Done(match asked {
        Asked::Get(_) => response.value.map_or(Given::Nothing, Given::Text),
        Asked::MultiGet(_) => Given::Pairs(response.pairs.into_iter().map(|pair| (pair.key, pair.value)).collect()),
        Asked::Put(..) | Asked::Remove(_) => Given::I32(number()?),
        Asked::RemoveMany(_) | Asked::Count => Given::I64(response.number),
        Asked::Has(_) | Asked::Add(..) | Asked::Update(..) | Asked::CompareAndSet(..) => {
            Given::Bool(response.number != 0)
        }
        Asked::MultiPut(_) | Asked::SetMode(_) => Given::Nothing,
        Asked::Mode | Asked::Iterate { .. } | Asked::IterateInserted { .. } => return Err(strange("an answer")),
    }))
}

/// A page of what another chain keeps, of keys of this kind.
pub(super) fn page_given(response: AskKeysResponse, kind: Kind) -> Result<KeptPage, Exception> {
    if let Some(exception) = refusal(&response) {
        return Err(exception);
    }
    let pair = |pair: Pair| Ok::<(OwnedKey, Bytes), Exception>((key(pair.key, kind)?, pair.value));
    let span = |span: KeptSlots| {
        let slot = |number: u32| u16::try_from(number).map_err(|_| strange("a slot"));
        Ok::<_, Exception>((slot(span.first)?, slot(span.last)?))
    };
    Ok(KeptPage {
        pairs: response.pairs.into_iter().map(pair).collect::<Result<_, _>>()?,
        last: response.last.map(|text| key(text, kind)).transpose()?,
        spans: response.kept.into_iter().map(span).collect::<Result<_, _>>()?,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    fn calls() -> Vec<Asked> {
        let key = |number| OwnedKey::Int(number);
        let value = || Bytes::from_static(b"value");
        vec![
            Asked::Get(key(7)),
            Asked::MultiGet(vec![key(7), key(1 << 60)]),
            Asked::Remove(key(0)),
            Asked::Put(key(7), value()),
            Asked::MultiPut(vec![(key(7), value()), (key(8), Bytes::new())]),
            Asked::Has(key(7)),
            Asked::Add(key(7), value()),
            Asked::Update(key(7), value()),
            Asked::CompareAndSet(key(7), None, value()),
            Asked::CompareAndSet(key(7), Some(Bytes::new()), value()),
            Asked::RemoveMany(vec![key(7), key(9)]),
            Asked::Iterate { after: None, limit: 1 },
            Asked::Iterate { after: Some(key(7)), limit: PAGE_MAX },
            Asked::Count,
            Asked::SetMode(WriteMode::Asynchronous),
        ]
    }

    #[test]
    fn calls_come_over_as_they_were() {
        for call in calls() {
            for mode in [WriteMode::Safe, WriteMode::Asynchronous] {
                let carried = request(&call, "users:int", mode, 1 << 20).unwrap();
                assert_eq!(carried.bytes_max, 1 << 20);
                let (there, mode_there) = asked(carried, Kind::Int).unwrap();
                assert_eq!(there, call);
                assert!(mode_there == mode || matches!(call, Asked::SetMode(_)), "{call:?}");
            }
        }
        let bytes = Asked::Put(OwnedKey::Bytes("\u{0}k".into()), Bytes::new());
        let carried = request(&bytes, "users:bytes", WriteMode::Safe, 0).unwrap();
        assert_eq!(asked(carried, Kind::Bytes).unwrap().0, bytes);
    }

    #[test]
    fn answers_come_back_as_they_were() {
        let pairs = vec![(Bytes::from_static(b"7"), Bytes::from_static(b"v"))];
        let key = OwnedKey::Int(7);
        for (call, answer) in [
            (Asked::Get(key.clone()), Given::Nothing),
            (Asked::Get(key.clone()), Given::Text(Bytes::new())),
            (Asked::MultiGet(vec![key.clone()]), Given::Pairs(pairs)),
            (Asked::Remove(key.clone()), Given::I32(1)),
            (Asked::RemoveMany(vec![key.clone()]), Given::I64(1 << 40)),
            (Asked::Has(key.clone()), Given::Bool(true)),
            (Asked::Has(key), Given::Bool(false)),
            (Asked::MultiPut(Vec::new()), Given::Nothing),
        ] {
            let back = given(&call, response(Ok(Kept::Done(answer.clone()))));
            assert!(matches!(&back, Ok(Kept::Done(given)) if *given == answer), "{back:?}");
        }
        let found = || Ok(Kept::Done(Given::Pairs(vec![("7".into(), "value".into())])));
        assert!(bounded(found(), 21).too_large && !bounded(found(), 22).too_large);
        let value = || Ok(Kept::Done(Given::Text("value".into())));
        assert!(bounded(value(), 4).too_large && !bounded(value(), 5).too_large);
        let elsewhere = given(&Asked::Count, response(Ok(Kept::Elsewhere)));
        assert!(matches!(elsewhere, Ok(Kept::Elsewhere)));
        for exception in [Exception::refused("key \"x\""), Exception::internal("full"), Exception::unknown("gone")] {
            assert_eq!(given(&Asked::Count, response(Err(exception.clone()))).unwrap_err(), exception);
        }
        let page = || KeptPage {
            pairs: vec![(OwnedKey::Int(7), "v".into())],
            last: Some(OwnedKey::Int(9)),
            spans: vec![(0, 5), (7, 16_383)],
        };
        let back = page_given(page_response(page()), Kind::Int).unwrap();
        assert_eq!((back.pairs, back.last, back.spans), (page().pairs, page().last, page().spans));
    }

    #[test]
    fn what_makes_no_sense_is_an_error() {
        let of = |method: KeyMethod| AskKeysRequest { method: method.into(), ..AskKeysRequest::default() };
        let keyed = |method, keys: usize| AskKeysRequest { keys: vec!["7".into(); keys], ..of(method) };
        for request in [
            of(KeyMethod::Unspecified),
            AskKeysRequest { method: 99, ..AskKeysRequest::default() },
            of(KeyMethod::Get),
            keyed(KeyMethod::Put, 1),
            keyed(KeyMethod::MultiPut, 2),
            keyed(KeyMethod::MultiGet, BATCH_MAX + 1),
            of(KeyMethod::Iterate),
            AskKeysRequest { limit: PAGE_MAX as u32 + 1, ..of(KeyMethod::Iterate) },
            AskKeysRequest { keys: vec!["x".into()], ..of(KeyMethod::Get) },
        ] {
            assert!(asked(request.clone(), Kind::Int).is_err(), "{request:?}");
        }
        let large = AskKeysResponse { number: 1 << 40, ..AskKeysResponse::default() };
        assert!(given(&Asked::Remove(OwnedKey::Int(7)), large).is_err());
        let beyond = AskKeysResponse { kept: vec![KeptSlots { first: 0, last: 70_000 }], ..AskKeysResponse::default() };
        assert!(page_given(beyond, Kind::Int).is_err());
    }
}
