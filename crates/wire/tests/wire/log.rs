//! Options, records and what readers find in a log, there and back.

use esker_log::{Compression, Delivery, Durability, Entry, Error, Found, GapKind, Layout, Nonce, Options, Record};
use esker_wire::log as wire;
use proptest::collection::vec;
use proptest::prelude::*;
use tonic::Code;

use crate::{bytes, sent, text};

fn options() -> impl Strategy<Value = Options> {
    let layout = prop::sample::select(Layout::ALL.map(|(one, _)| one).to_vec());
    let compression = prop::sample::select(Compression::ALL.map(|(one, _)| one).to_vec());
    (layout, compression, any::<[u32; 4]>(), any::<[u64; 4]>()).prop_map(
        |(layout, compression, [width, slots, entry_bytes_max, inline_bytes_max], [object_bytes_max, a, b, c])| {
            Options {
                layout,
                width,
                slots,
                entry_bytes_max,
                inline_bytes_max,
                object_bytes_max,
                compression,
                retain_positions: a,
                retain_bytes: b,
                retain_ms: c,
            }
        },
    )
}

fn entry() -> impl Strategy<Value = Entry> {
    (any::<[u64; 4]>(), bytes(), vec(bytes(), 0..3)).prop_map(|([position, writer, number, time_ms], data, streams)| {
        let streams = streams.into_iter().collect();
        Entry { position, data, streams, nonce: Nonce { writer, number }, time_ms }
    })
}

fn found() -> impl Strategy<Value = Found> {
    prop_oneof![
        entry().prop_map(Found::Entry),
        Just(Found::Hole),
        Just(Found::Filled),
        Just(Found::Trimmed),
        Just(Found::BeyondTail),
        text().prop_map(Found::Lost),
    ]
}

fn delivery() -> impl Strategy<Value = Delivery> {
    let kind = prop_oneof![Just(GapKind::Filled), Just(GapKind::Trimmed), text().prop_map(GapKind::Lost)];
    prop_oneof![
        entry().prop_map(Delivery::Entry),
        (any::<(u64, u64)>(), kind).prop_map(|((start, end), kind)| Delivery::Gap { positions: start..end, kind }),
        any::<u64>().prop_map(|tail| Delivery::End { tail }),
    ]
}

proptest! {
    #[test]
    fn options_come_back(options in options()) {
        let message = sent(&wire::encode_options(&options));
        prop_assert_eq!(wire::decode_options(Some(message), Layout::Omap), Ok(options));
    }

    #[test]
    fn records_come_back(data in bytes(), streams in vec(bytes(), 0..3)) {
        let record = Record { data, streams: streams.into_iter().collect() };
        prop_assert_eq!(wire::decode_record(Some(sent(&wire::encode_record(record.clone())))), record);
    }

    #[test]
    fn what_stands_at_positions_comes_back(found in found()) {
        prop_assert_eq!(wire::decode_found(sent(&wire::encode_found(found.clone()))), Ok(found));
    }

    #[test]
    fn deliveries_come_back(delivery in delivery()) {
        prop_assert_eq!(wire::decode_delivery(sent(&wire::encode_delivery(delivery.clone()))), Ok(delivery));
    }
}

#[test]
fn what_is_left_out_has_its_default() {
    let plain = Options { layout: Layout::Stream, ..Options::default() };
    assert_eq!(wire::decode_options(None, Layout::Stream).as_ref(), Ok(&plain));
    assert_eq!(wire::decode_options(Some(Default::default()), Layout::Stream), Ok(plain));
    assert_eq!(wire::decode_record(None), Record::default());
    for durability in [Durability::Durable, Durability::Applied] {
        assert_eq!(wire::decode_durability(wire::encode_durability(durability)), durability);
    }
    assert_eq!(wire::decode_durability(wire::encode_durability(Durability::Always)), Durability::Durable);
}

#[test]
fn errors_name_their_position() {
    let named = wire::name_error(&Error::Taken { position: 7 });
    assert_eq!((named.code, named.name, named.position), (Code::AlreadyExists, "taken", Some(7)));
    let store = wire::name_error(&Error::Store(esker_store::Error::ReadOnly));
    assert_eq!((store.name, store.position), ("read-only", None));
}
