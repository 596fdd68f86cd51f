//! Parts of copies as messages and back.
//!
//! Invariant: what makes no sense is refused with its field; whether a part's contents are right, its digest tells.

use bytes::Bytes;
use esker_chain::copy::{Content, Page, Span};
use esker_store::{Collection, DataRun, Error, Result};
use esker_wire::proto::chain as proto;
use esker_wire::proto::chain::content_response::What as ContentWhat;
use esker_wire::proto::chain::span::What;
use esker_wire::proto::store::Pair;
use esker_wire::store::{decode_object, encode_object};

fn bad(field: &'static str, why: impl ToString) -> Error {
    Error::Invalid { what: field, why: why.to_string() }
}

pub fn encode_span(span: &Span) -> proto::Span {
    let object = |object| Some(encode_object(object));
    let what = match span {
        Span::Collection(collection) => What::Collection(collection.name().clone()),
        Span::Object { object: of, size } => What::Object(proto::ObjectSpan { object: object(of), size: *size }),
        Span::Bytes { object: of, range } => {
            What::Bytes(proto::BytesSpan { object: object(of), start: range.start, end: range.end })
        }
        Span::Omap { object: of, after, to } => {
            What::Omap(proto::OmapSpan { object: object(of), after: after.clone(), to: to.clone() })
        }
        Span::Slots { object: of, after, to } => {
            What::Slots(proto::SlotSpan { object: object(of), after: *after, to: *to })
        }
    };
    proto::Span { what: Some(what) }
}

pub fn decode_span(span: proto::Span) -> Result<Span> {
    let object = |message| decode_object("Span.object", message).map_err(|error| bad("Span.object", error));
    Ok(match span.what.ok_or_else(|| bad("Span", "it says nothing"))? {
        What::Collection(name) => Span::Collection(Collection::new(name)),
        What::Object(of) => Span::Object { object: object(of.object)?, size: of.size },
        What::Bytes(of) => Span::Bytes { object: object(of.object)?, range: of.start..of.end },
        What::Omap(of) => Span::Omap { object: object(of.object)?, after: of.after, to: of.to },
        What::Slots(of) => Span::Slots { object: object(of.object)?, after: of.after, to: of.to },
    })
}

pub fn encode_page(page: &Page) -> proto::Page {
    let digest = match page.span {
        Span::Collection(_) => Bytes::new(),
        _ => Bytes::copy_from_slice(&page.digest.to_be_bytes()),
    };
    proto::Page { span: Some(encode_span(&page.span)), digest, bytes: page.bytes }
}

pub fn decode_page(page: proto::Page) -> Result<Page> {
    let span = decode_span(page.span.ok_or_else(|| bad("Page.span", "it is absent"))?)?;
    let digest = match (&span, page.digest.as_ref().try_into()) {
        (Span::Collection(_), _) => 0,
        (_, Ok(digest)) => u128::from_be_bytes(digest),
        (_, Err(_)) => return Err(bad("Page.digest", format!("{} bytes instead of 16", page.digest.len()))),
    };
    Ok(Page { span, digest, bytes: page.bytes })
}

fn pairs(entries: Vec<(Bytes, Bytes)>) -> proto::Pairs {
    proto::Pairs { pairs: entries.into_iter().map(|(key, value)| Pair { key, value }).collect() }
}

fn entries(pairs: proto::Pairs) -> Vec<(Bytes, Bytes)> {
    pairs.pairs.into_iter().map(|pair| (pair.key, pair.value)).collect()
}

pub fn encode_content(content: Content) -> proto::ContentResponse {
    let what = match content {
        Content::Xattrs(entries) => ContentWhat::Xattrs(pairs(entries)),
        Content::Bytes { runs, data } => {
            let runs = runs.iter().flat_map(|run| [run.offset, run.len]).collect();
            ContentWhat::Bytes(proto::Data { runs, data })
        }
        Content::Omap(entries) => ContentWhat::Omap(pairs(entries)),
        Content::Slots(slots) => {
            let (indexes, values) = slots.into_iter().unzip();
            ContentWhat::Slots(proto::Slots { indexes, values })
        }
    };
    proto::ContentResponse { what: Some(what) }
}

pub fn decode_content(content: proto::ContentResponse) -> Result<Content> {
    Ok(match content.what.ok_or_else(|| bad("ContentResponse", "it says nothing"))? {
        ContentWhat::Xattrs(pairs) => Content::Xattrs(entries(pairs)),
        ContentWhat::Bytes(proto::Data { runs, data }) => {
            if !runs.len().is_multiple_of(2) {
                return Err(bad("Data.runs", "an offset without a length"));
            }
            let run = |pair: &[u64]| DataRun { offset: pair[0], len: pair[1] };
            Content::Bytes { runs: runs.chunks_exact(2).map(run).collect(), data }
        }
        ContentWhat::Omap(pairs) => Content::Omap(entries(pairs)),
        ContentWhat::Slots(proto::Slots { indexes, values }) => {
            if indexes.len() != values.len() {
                return Err(bad("Slots.values", format!("{} of {} slots", values.len(), indexes.len())));
            }
            Content::Slots(indexes.into_iter().zip(values).collect())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_store::ObjectId;

    #[test]
    fn parts_come_back_as_they_were() {
        let object = ObjectId::new("c".into(), "o");
        let spans = [
            Span::Collection("c".into()),
            Span::Object { object: object.clone(), size: 7 },
            Span::Bytes { object: object.clone(), range: 3..9 },
            Span::Omap { object: object.clone(), after: None, to: "k".into() },
            Span::Omap { object: object.clone(), after: Some(Bytes::new()), to: "k".into() },
            Span::Slots { object, after: Some(0), to: 9 },
        ];
        for span in spans {
            let digest = if span.object().is_some() { 1 << 100 } else { 0 };
            let page = Page { span, digest, bytes: 5 };
            assert_eq!(decode_page(encode_page(&page)).unwrap(), page);
        }
        let contents = [
            Content::Xattrs(vec![("a".into(), "b".into())]),
            Content::Bytes { runs: vec![DataRun { offset: 3, len: 2 }], data: "xy".into() },
            Content::Omap(vec![("a".into(), Bytes::new())]),
            Content::Slots(vec![(4, "x".into()), (9, "y".into())]),
        ];
        for content in contents {
            assert_eq!(decode_content(encode_content(content.clone())).unwrap(), content);
        }
        let data = proto::Data { runs: vec![1], data: Bytes::new() };
        assert!(decode_content(proto::ContentResponse { what: Some(ContentWhat::Bytes(data)) }).is_err());
        assert!(decode_page(proto::Page::default()).is_err());
    }
}
