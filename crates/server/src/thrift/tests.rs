//! The codec against messages that are written out by hand from the specifications of Thrift.

use std::result::Result;

use bytes::Bytes;
use esker_kv::{Kind, OwnedKey};
use esker_store::CommitCursor;

use super::call::{Asked, METHODS, Procedure, WriteMode, cursor_behind, cursor_of_commit};
use super::*;

const SHAPES: [Shape; 6] = [
    Shape { dialect: Dialect::Binary, framed: false },
    Shape { dialect: Dialect::Binary, framed: true },
    Shape { dialect: Dialect::OldBinary, framed: false },
    Shape { dialect: Dialect::OldBinary, framed: true },
    Shape { dialect: Dialect::Compact, framed: false },
    Shape { dialect: Dialect::Compact, framed: true },
];

/// A message of this kind, with these fields as the binary and the compact protocol write them.
fn message(shape: Shape, kind: u8, method: &str, sequence: u8, binary: &[u8], compact: &[u8]) -> Vec<u8> {
    let len = method.len() as u8;
    let (head, fields): (Vec<u8>, _) = match shape.dialect {
        Dialect::Binary => {
            let head = [&[0x80, 1, 0, kind, 0, 0, 0, len][..], method.as_bytes(), &[0, 0, 0, sequence]];
            (head.concat(), binary)
        }
        Dialect::OldBinary => ([&[0, 0, 0, len][..], method.as_bytes(), &[kind, 0, 0, 0, sequence]].concat(), binary),
        Dialect::Compact => ([&[0x82, kind << 5 | 1, sequence, len][..], method.as_bytes()].concat(), compact),
    };
    let whole = [&head[..], fields].concat();
    if shape.framed { [&(whole.len() as u32).to_be_bytes()[..], &whole].concat() } else { whole }
}

fn whole(decoder: &mut Decoder, bytes: &[u8]) -> Message {
    loop {
        match decoder.next(bytes).unwrap() {
            Decoded::Message(message) => return message,
            Decoded::Busy => {}
            Decoded::Nothing(len) => panic!("{len} bytes of {bytes:x?} are nothing"),
            Decoded::More(more) => panic!("{more} bytes more of {bytes:x?}"),
        }
    }
}

fn malformed(bytes: &[u8]) -> Unreadable {
    let mut decoder = Decoder::new();
    loop {
        match decoder.next(bytes) {
            Err(malformed) => return malformed,
            Ok(Decoded::Busy) => {}
            Ok(other) => panic!("{other:?} of {bytes:x?}"),
        }
    }
}

/// A message is what it is in all shapes, whole and byte by byte.
fn check(method: &str, binary: &[u8], compact: &[u8], kind: Kind, expected: &Result<Asked, ExceptionKind>) {
    for shape in SHAPES {
        let bytes = message(shape, 1, method, 7, binary, compact);
        let mut decoder = Decoder::new();
        for len in 0..bytes.len() {
            let more = match decoder.next(&bytes[..len]) {
                Ok(Decoded::More(more)) => more,
                other => panic!("{other:?} of {len} bytes of {bytes:x?}"),
            };
            assert!((1..=bytes.len() - len).contains(&more), "{more} more than {len} of {bytes:x?}");
        }
        for decoder in [&mut decoder, &mut Decoder::new()] {
            // What comes behind it is not taken for a part of it.
            let longer = [&bytes[..], b"\x80\x01\0\x01"].concat();
            let message = whole(decoder, &longer);
            assert_eq!((message.shape, message.kind), (shape, MessageKind::Call));
            assert_eq!((message.len, message.sequence), (bytes.len(), 7));
            assert_eq!(message.method(&bytes), method.as_bytes());
            let procedure = Procedure::of(method.as_bytes()).unwrap();
            let asked = Asked::of(procedure, &message, &Bytes::from(bytes.clone()), kind);
            assert_eq!(&asked.map_err(|exception| exception.kind), expected, "{shape:?}");
        }
    }
}

fn text(key: &'static str) -> OwnedKey {
    OwnedKey::from(key)
}

#[test]
fn calls_are_read_in_every_protocol_whole_and_in_pieces() {
    let ok = |method, binary: &[u8], compact: &[u8], asked| check(method, binary, compact, Kind::Bytes, &Ok(asked));
    ok("get", b"\x0b\0\x01\0\0\0\x01a\0", b"\x18\x01a\0", Asked::Get(text("a")));
    ok("has", b"\x0b\0\x01\0\0\0\0\0", b"\x18\0\0", Asked::Has(text("")));
    ok(
        "put",
        b"\x0b\0\x01\0\0\0\x01a\x0b\0\x02\0\0\0\x02vw\0",
        b"\x18\x01a\x18\x02vw\0",
        Asked::Put(text("a"), "vw".into()),
    );
    ok(
        "multiGet",
        b"\x0f\0\x01\x0b\0\0\0\x02\0\0\0\x01a\0\0\0\x02bc\0",
        b"\x19\x28\x01a\x02bc\0",
        Asked::MultiGet(vec![text("a"), text("bc")]),
    );
    // An empty list, of elements of no kind.
    ok("removeMany", b"\x0f\0\x01\0\0\0\0\0\0", b"\x19\0\0", Asked::RemoveMany(Vec::new()));
    ok(
        "multiPut",
        b"\x0f\0\x01\x0c\0\0\0\x02\x0b\0\x01\0\0\0\x01a\x0b\0\x02\0\0\0\x01v\0\x0b\0\x02\0\0\0\0\x0b\0\x01\0\0\0\x01b\0\0",
        // The second with its fields in the other order: ids 2 and then 1, written out.
        b"\x19\x2c\x18\x01a\x18\x01v\0\x28\0\x08\x02\x01b\0\0",
        Asked::MultiPut(vec![(text("a"), "v".into()), (text("b"), Bytes::new())]),
    );
    ok(
        "compareAndSet",
        b"\x0b\0\x01\0\0\0\x01a\x0b\0\x03\0\0\0\x01n\0",
        b"\x18\x01a\x28\x01n\0",
        Asked::CompareAndSet(text("a"), None, "n".into()),
    );
    ok("setMode", b"\x08\0\x01\0\0\0\x02\0", b"\x15\x04\0", Asked::SetMode(WriteMode::Asynchronous));
    ok("count", b"\0", b"\0", Asked::Count);
    ok(
        "iterate",
        b"\x0b\0\x01\0\0\0\0\x08\0\x02\0\0\0\x0a\0",
        b"\x18\0\x15\x14\0",
        Asked::Iterate { after: None, limit: 10 },
    );
}

#[test]
fn fields_that_no_method_has_are_passed_over_whatever_they_hold() {
    // A bool, a byte, a double, numbers, a set of strings, a map of strings to lists of structs, a struct, a uuid.
    let binary = [
        &b"\x02\0\x09\x01\x03\0\x0a\x05\x04\0\x0b12345678\x06\0\x0c\0\x01\x08\0\x0d\0\0\0\x01\x0a\0\x0e\0\0\0\0\0\0\0\x01"[..],
        b"\x0e\0\x0f\x0b\0\0\0\x01\0\0\0\x01x",
        b"\x0d\0\x10\x0b\x0f\0\0\0\x01\0\0\0\x01k\x0c\0\0\0\x01\x0b\0\x01\0\0\0\x01z\0",
        b"\x0c\0\x11\x0b\0\x01\0\0\0\x01y\0\x10\0\x12UUIDUUIDUUIDUUID",
        // Lists of numbers and of bools, and an empty map.
        b"\x0f\0\x13\x08\0\0\0\x02\0\0\0\x01\0\0\0\x02\x0f\0\x14\x02\0\0\0\x03\x01\0\x01\x0d\0\x15\0\0\0\0\0\0",
        b"\x0b\0\x01\0\0\0\x01a\0",
    ]
    .concat();
    let compact = [
        // Field 9 by its distance, a true; 10 by its id, a false; a byte, a double, numbers of several bytes.
        &b"\x91\x02\x14\x13\x05\x1712345678\x14\x80\x01\x15\x80\x01\x16\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"[..],
        b"\x1a\x18\x01x",
        b"\x1b\x01\x89\x01k\x1c\x18\x01z\0",
        b"\x1c\x18\x01y\0\x1dUUIDUUIDUUIDUUID",
        // A list of 16 bools, of which the count stands by itself; a list of numbers; an empty map.
        b"\x19\xf1\x10\x01\x02\x01\x02\x01\x02\x01\x02\x01\x02\x01\x02\x01\x02\x01\x02\x19\x25\x02\x04\x1b\0",
        b"\x08\x02\x01a\0",
    ]
    .concat();
    check("get", &binary, &compact, Kind::Bytes, &Ok(Asked::Get(text("a"))));
}

#[test]
fn what_is_missing_or_of_another_type_is_an_error_and_no_guess() {
    let bad = |method, binary: &[u8], compact: &[u8], kind| check(method, binary, compact, Kind::Bytes, &Err(kind));
    bad("get", b"\0", b"\0", ExceptionKind::ProtocolError);
    bad("get", b"\x08\0\x01\0\0\0\x01\0", b"\x15\x02\0", ExceptionKind::ProtocolError);
    bad("put", b"\x0b\0\x01\0\0\0\x01a\0", b"\x18\x01a\0", ExceptionKind::ProtocolError);
    // Pairs where keys are expected, and a pair without a value.
    let pair: (&[u8], &[u8]) = (b"\x0f\0\x01\x0c\0\0\0\x01\x0b\0\x01\0\0\0\x01a\0\0", b"\x19\x1c\x18\x01a\0\0");
    bad("multiGet", pair.0, pair.1, ExceptionKind::ProtocolError);
    bad("multiPut", pair.0, pair.1, ExceptionKind::ProtocolError);
    let others: [(&[u8], &[u8]); 7] = [
        // Lists of an i64, of a list of a string, of a map; a set and a map of strings, an empty map.
        (b"\x0f\0\x01\x0a\0\0\0\x01\0\0\0\0\0\0\0\x07\0", b"\x19\x16\x0e\0"),
        (b"\x0f\0\x01\x0f\0\0\0\x01\x0b\0\0\0\x01\0\0\0\x01a\0", b"\x19\x19\x18\x01a\0"),
        (b"\x0f\0\x01\x0d\0\0\0\x01\x0b\x0b\0\0\0\0\0", b"\x19\x1b\0\0"),
        (b"\x0e\0\x01\x0b\0\0\0\x01\0\0\0\x01a\0", b"\x1a\x18\x01a\0"),
        (b"\x0d\0\x01\x0b\x0b\0\0\0\x01\0\0\0\x01k\0\0\0\x01v\0", b"\x1b\x01\x88\x01k\x01v\0"),
        (b"\x0d\0\x01\x0b\x0b\0\0\0\0\0", b"\x1b\0\0"),
        // A list, and the same field again as a map: the last counts.
        (
            b"\x0f\0\x01\x0b\0\0\0\x01\0\0\0\x01a\x0d\0\x01\x0b\x0b\0\0\0\x01\0\0\0\x01k\0\0\0\x01v\0",
            b"\x19\x18\x01a\x0b\x02\x01\x88\x01k\x01v\0",
        ),
    ];
    for (binary, compact) in others {
        for method in ["multiGet", "removeMany", "multiPut"] {
            bad(method, binary, compact, ExceptionKind::ProtocolError);
        }
    }
    bad("multiPut", b"\x0f\0\x01\x0b\0\0\0\x01\0\0\0\x01a\0", b"\x19\x18\x01a\0", ExceptionKind::ProtocolError);
    bad("setMode", b"\x08\0\x01\0\0\0\x03\0", b"\x15\x06\0", ExceptionKind::Unknown);
    bad("iterate", b"\x08\0\x02\0\0\x03\xe9\0", b"\x25\xd2\x0f\0", ExceptionKind::Unknown);
    bad("iterate", b"\x08\0\x02\xff\xff\xff\xff\0", b"\x25\x01\0", ExceptionKind::Unknown);
    // A cursor of the other order.
    bad("iterateInserted", b"\x0b\0\x01\0\0\0\x02kx\0", b"\x18\x02kx\0", ExceptionKind::Unknown);
    bad("iterateInserted", b"\x0b\0\x01\0\0\0\x02ix\0", b"\x18\x02ix\0", ExceptionKind::Unknown);
}

#[test]
fn fields_of_any_id_are_passed_over() {
    let expected = Ok(Asked::Get(text("a")));
    for id in [i16::MIN, -1, 0, 4, i16::MAX] {
        let [high, low] = id.to_be_bytes();
        let binary = [&[0x0b, high, low, 0, 0, 0, 1, b'z'][..], b"\x0b\0\x01\0\0\0\x01a\0"].concat();
        // Written out, with the sign in the lowest bit, 7 bits in each byte.
        let mut number = ((i32::from(id) << 1) ^ (i32::from(id) >> 31)) as u32;
        let mut compact = vec![0x08];
        while number >= 0x80 {
            compact.push(number as u8 | 0x80);
            number >>= 7;
        }
        compact.extend([number as u8, 1, b'z', 0x08, 2, 1, b'a', 0]);
        check("get", &binary, &compact, Kind::Bytes, &expected);
    }
}

#[test]
fn int_keys_are_decimal_numbers_in_one_spelling() {
    let get = |key: &str| {
        let len = key.len() as u8;
        let binary = [&[0x0b, 0, 1, 0, 0, 0, len][..], key.as_bytes(), &[0]].concat();
        let compact = [&[0x18, len][..], key.as_bytes(), &[0]].concat();
        (binary, compact)
    };
    for (key, number) in [("0", 0), ("7", 7), ("18446744073709551615", u64::MAX)] {
        let (binary, compact) = get(key);
        check("get", &binary, &compact, Kind::Int, &Ok(Asked::Get(OwnedKey::Int(number))));
    }
    for key in ["", "-1", "+1", "07", "1.0", "0x1", "18446744073709551616", "ada", "\u{661}"] {
        let (binary, compact) = get(key);
        check("get", &binary, &compact, Kind::Int, &Err(ExceptionKind::Unknown));
        let bytes = message(SHAPES[0], 1, "get", 1, &binary, &compact);
        let message = whole(&mut Decoder::new(), &bytes);
        let refused = Asked::of(Procedure::Get, &message, &bytes.into(), Kind::Int).unwrap_err();
        assert!(refused.message.contains(key), "{refused:?} does not name {key}");
    }
}

#[test]
fn cursors_lead_to_where_they_were_made() {
    let of = |method, cursor: &Bytes, kind| {
        let len = cursor.len() as u8;
        let binary = [&[0x0b, 0, 1, 0, 0, 0, len][..], cursor, &[0]].concat();
        let bytes = message(SHAPES[0], 1, method, 1, &binary, &[]);
        let message = whole(&mut Decoder::new(), &bytes);
        Asked::of(Procedure::of(method.as_bytes()).unwrap(), &message, &bytes.into(), kind).unwrap()
    };
    for key in [text(""), text("a"), OwnedKey::Int(0), OwnedKey::Int(u64::MAX)] {
        let (kind, cursor) = (key.as_key().kind(), cursor_behind(&key));
        assert_eq!(of("iterate", &cursor, kind), Asked::Iterate { after: Some(key), limit: 100 });
    }
    let after = CommitCursor(3, u64::MAX);
    let asked = of("iterateInserted", &cursor_of_commit(after), Kind::Int);
    assert_eq!(asked, Asked::IterateInserted { after, limit: 100 });
}

#[test]
fn answers_are_as_the_specification_has_them() {
    let exception = Exception::new(ExceptionKind::UnknownMethod, "no");
    let pairs = vec![(Bytes::from("a"), Bytes::from("v"))];
    for (answer, binary, compact) in [
        (Ok(Given::Nothing), &b"\0"[..], &b"\0"[..]),
        (Ok(Given::Text("v".into())), b"\x0b\0\0\0\0\0\x01v\0", b"\x08\0\x01v\0"),
        (Ok(Given::Bool(true)), b"\x02\0\0\x01\0", b"\x01\0\0"),
        (Ok(Given::Bool(false)), b"\x02\0\0\0\0", b"\x02\0\0"),
        (Ok(Given::I32(-1)), b"\x08\0\0\xff\xff\xff\xff\0", b"\x05\0\x01\0"),
        (Ok(Given::I64(300)), b"\x0a\0\0\0\0\0\0\0\0\x01\x2c\0", b"\x06\0\xd8\x04\0"),
        (
            Ok(Given::Pairs(pairs.clone())),
            b"\x0f\0\0\x0c\0\0\0\x01\x0b\0\x01\0\0\0\x01a\x0b\0\x02\0\0\0\x01v\0\0",
            b"\x09\0\x1c\x18\x01a\x18\x01v\0\0",
        ),
        (
            Ok(Given::Page(Vec::new(), Some("k".into()))),
            b"\x0c\0\0\x0f\0\x01\x0c\0\0\0\0\x0b\0\x02\0\0\0\x01k\0\0",
            b"\x0c\0\x19\x0c\x18\x01k\0\0",
        ),
        (Ok(Given::Page(Vec::new(), None)), b"\x0c\0\0\x0f\0\x01\x0c\0\0\0\0\0\0", b"\x0c\0\x19\x0c\0\0"),
        (Err(exception), b"\x0b\0\x01\0\0\0\x02no\x08\0\x02\0\0\0\x01\0", b"\x18\x02no\x15\x02\0"),
    ] {
        for shape in SHAPES {
            let kind = if answer.is_ok() { 2 } else { 3 };
            let expected = message(shape, kind, "get", 7, binary, compact);
            assert_eq!(encode(shape, b"get", 7, &answer), expected, "{answer:?} as {shape:?}");
        }
    }
    // Fifteen and more have their count by itself.
    let many = Given::Pairs(vec![(Bytes::new(), Bytes::new()); 15]);
    let compact = encode(SHAPES[4], b"get", 7, &Ok(many));
    let expected = [&b"\x82\x41\x07\x03get\x09\0\xfc\x0f"[..], &b"\x18\0\x18\0\0".repeat(15), b"\0"].concat();
    assert_eq!(compact, expected);
}

#[test]
fn several_messages_of_one_buffer_and_of_one_frame_are_read_in_order() {
    let one = |key: &[u8]| [b"\x80\x01\0\x01\0\0\0\x03get\0\0\0\x01\x0b\0\x01\0\0\0\x01", key, b"\0"].concat();
    let both = [one(b"a"), one(b"b")].concat();
    let framed = [&(both.len() as u32).to_be_bytes()[..], &both].concat();
    let ends = [&framed[..], &framed].concat();
    for mut bytes in [&both[..], &framed, &ends] {
        let mut decoder = Decoder::new();
        let mut keys = Vec::new();
        while !bytes.is_empty() {
            let message = whole(&mut decoder, bytes);
            let asked = Asked::of(Procedure::Get, &message, &Bytes::copy_from_slice(bytes), Kind::Bytes).unwrap();
            keys.push(asked);
            bytes = &bytes[message.len..];
        }
        assert!(keys.chunks(2).all(|pair| pair == [Asked::Get(text("a")), Asked::Get(text("b"))]), "{keys:?}");
    }
}

#[test]
fn frames_without_a_message_are_passed_over() {
    let bytes = message(SHAPES[1], 1, "count", 7, b"\0", b"\0");
    let mut decoder = Decoder::new();
    whole(&mut decoder, &bytes);
    assert!(matches!(decoder.next(b"\0\0\0").unwrap(), Decoded::More(1)));
    assert!(matches!(decoder.next(b"\0\0\0\0\0").unwrap(), Decoded::Nothing(4)));
    assert_eq!(whole(&mut decoder, &bytes).len, bytes.len());
    // Also before the first message: what they are followed by says how the connection's messages are written.
    for shape in SHAPES {
        let bytes = message(shape, 1, "count", 7, b"\0", b"\0");
        let mut decoder = Decoder::new();
        for _ in 0..2 {
            assert!(matches!(decoder.next(&[b"\0\0\0\0", &bytes[..]].concat()).unwrap(), Decoded::Nothing(4)));
            assert!(matches!(decoder.next(b"\0\0\0\0").unwrap(), Decoded::Nothing(4)));
        }
        assert_eq!(whole(&mut decoder, &bytes).shape, shape);
    }
}

#[test]
fn lengths_are_within_the_limits_before_anything_is_kept_for_them() {
    let head = b"\x80\x01\0\x01\0\0\0\x03get\0\0\0\x01";
    let after = |fields: &[u8]| malformed(&[&head[..], fields].concat());
    // A string, a list, a map, and a list of strings of the most bytes that 32 bits tell of.
    assert!(matches!(after(b"\x0b\0\x01\x7f\xff\xff\xff"), Unreadable::TooLong { .. }));
    assert!(matches!(after(b"\x0b\0\x01\xff\xff\xff\xff"), Unreadable::Negative { len: -1, .. }));
    assert!(matches!(after(b"\x0f\0\x01\x08\x7f\xff\xff\xff"), Unreadable::Count { .. }));
    assert!(matches!(after(b"\x0f\0\x01\x0b\x7f\xff\xff\xff"), Unreadable::Count { .. }));
    assert!(matches!(after(b"\x0d\0\x01\x0b\x0b\x7f\xff\xff\xff"), Unreadable::Count { .. }));
    assert!(matches!(after(b"\x0f\0\x01\x0b\xff\xff\xff\xff"), Unreadable::Negative { .. }));
    assert_eq!(after(b"\x11\0\x01"), Unreadable::ValueKind { number: 0x11 });
    // Lists in lists, and structs in structs.
    let lists = b"\x0f\0\0\0\x01".repeat(DEPTH_MAX + 1);
    assert_eq!(after(&[b"\x0f\0\x01", &lists[..]].concat()), Unreadable::Depth);
    assert_eq!(after(&b"\x0c\0\x01".repeat(DEPTH_MAX + 1)), Unreadable::Depth);
    // Heads.
    assert_eq!(malformed(b"\x80\x01\0\x01\0\0\0\x81"), Unreadable::Name { len: 129 });
    assert_eq!(malformed(b"\x80\x01\0\x01\xff\xff\xff\xff"), Unreadable::Name { len: -1 });
    assert_eq!(malformed(b"\x80\x02\0\x01\0\0\0\x03"), Unreadable::Version { word: 0x8002_0001 });
    assert_eq!(malformed(b"\x80\x01\0\x05\0\0\0\x03"), Unreadable::MessageKind { number: 5 });
    assert_eq!(malformed(b"\0\x01\0\0get get get get "), Unreadable::NoThrift { first: [0, 1, 0, 0] });
    assert!(matches!(malformed(b"\x82\x22\0\0"), Unreadable::Version { .. }));
    // Frames: too long, and shorter than their messages.
    let long = (MESSAGE_BYTES_MAX as u32 + 1).to_be_bytes();
    assert_eq!(malformed(&[&long[..], b"\x80"].concat()), Unreadable::Frame { len: MESSAGE_BYTES_MAX as u32 + 1 });
    assert!(matches!(malformed(b"\0\0\0\x05\x80\x01\0\x01\0\0\0\x03get"), Unreadable::TooLong { max: 5, .. }));
    // Numbers of compact: more than their bits, and without an end.
    let compact = |fields: &[u8]| malformed(&[&b"\x82\x21\x01\x03get"[..], fields].concat());
    assert_eq!(compact(b"\x15\xff\xff\xff\xff\x1f"), Unreadable::Number);
    assert_eq!(compact(b"\x16\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80"), Unreadable::Number);
    assert!(matches!(compact(b"\x18\xff\xff\xff\xff\x07"), Unreadable::TooLong { .. }));
    assert!(matches!(compact(b"\x19\xf8\xff\xff\xff\xff\x07"), Unreadable::Count { .. }));
    assert_eq!(malformed(b"\x82\x21\x01\x81\x01get"), Unreadable::Name { len: 129 });
}

#[test]
fn keys_of_a_call_are_counted_and_no_more_of_them_kept_than_may_be() {
    let count = BATCH_MAX + 1;
    let mut bytes = b"\x82\x21\x01\x08multiGet\x19\xf8".to_vec();
    let mut left = count;
    while left >= 0x80 {
        bytes.push(left as u8 | 0x80);
        left >>= 7;
    }
    bytes.push(left as u8);
    bytes.extend(b"\x01k".repeat(count));
    bytes.push(0);
    let message = whole(&mut Decoder::new(), &bytes);
    assert_eq!(message.arguments.first_list().unwrap().texts.len(), BATCH_MAX);
    let refused = Asked::of(Procedure::MultiGet, &message, &bytes.into(), Kind::Bytes).unwrap_err();
    assert_eq!(refused.kind, ExceptionKind::Unknown);
    assert!(refused.message.contains(&count.to_string()) && refused.message.contains("BATCH_MAX"), "{refused:?}");
}

#[test]
fn a_message_of_another_protocol_than_the_first_is_refused() {
    let first = message(SHAPES[0], 1, "count", 1, b"\0", b"\0");
    for other in &SHAPES[1..] {
        let mut decoder = Decoder::new();
        whole(&mut decoder, &first);
        let next = message(*other, 1, "count", 2, b"\0", b"\0");
        assert!(decoder.next(&next).is_err(), "{other:?}");
    }
}

#[test]
fn the_published_idl_has_these_methods_and_no_others() {
    let idl = include_str!("../../../../clients/thrift/zdb.thrift");
    let no_comments: String =
        idl.split("/*").map(|part| part.split_once("*/").map_or(part, |(_, code)| code)).collect();
    let services = no_comments.split("service ").skip(1);
    let named: Vec<&str> =
        services.flat_map(str::lines).filter_map(|line| line.split_once('(')?.0.rsplit(' ').next()).collect();
    let known: Vec<&str> = METHODS.iter().map(|(_, name)| *name).collect();
    assert_eq!(named, known);
    let index = METHODS.iter().enumerate().all(|(at, (procedure, _))| *procedure as usize == at);
    assert!(index, "they are counted by their place in the list");
}
