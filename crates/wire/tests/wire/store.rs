//! Transactions, reads, answers and errors of the store, there and back.

use std::sync::Arc;

use bytes::Bytes;
use esker_store::{
    Capability, Change, Collection, CommitCursor, CommitEntry, CommitSeq, Compare, Compression, Condition, DataRun,
    Durability, Error, Guard, ObjectId, OmapScan, Op, SlotScan, Stat, Transaction, limits,
};
use esker_wire::store::{self as wire, CommitScan};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tonic::{Code, Status};

use crate::{bytes, sent, text};

fn collection() -> impl Strategy<Value = Collection> {
    bytes().prop_map(Collection::new)
}

/// Of few names, so that a transaction names one several times.
fn object() -> impl Strategy<Value = ObjectId> {
    ("[ab]", "[ab]{0,2}").prop_map(|(collection, name)| ObjectId::new(Collection::new(collection), name))
}

fn compare() -> impl Strategy<Value = Compare> {
    use Compare as C;
    prop::sample::select(vec![C::Less, C::LessOrEqual, C::Equal, C::GreaterOrEqual, C::Greater])
}

fn condition() -> impl Strategy<Value = Condition> {
    let pair = || (bytes(), bytes());
    prop_oneof![
        Just(Condition::Exists),
        Just(Condition::Absent),
        pair().prop_map(|(name, value)| Condition::XattrEquals { name, value }),
        bytes().prop_map(|name| Condition::XattrAbsent { name }),
        (bytes(), compare(), any::<u64>(), any::<bool>()).prop_map(|(name, compare, value, absent_holds)| {
            Condition::XattrCompare { name, compare, value, absent_holds }
        }),
        bytes().prop_map(|key| Condition::OmapAbsent { key }),
        bytes().prop_map(|key| Condition::OmapPresent { key }),
        pair().prop_map(|(key, value)| Condition::OmapEquals { key, value }),
        any::<u64>().prop_map(|index| Condition::SlotAbsent { index }),
        any::<u64>().prop_map(|index| Condition::SlotPresent { index }),
        (any::<u64>(), bytes()).prop_map(|(index, value)| Condition::SlotEquals { index, value }),
        any::<u64>().prop_map(|size| Condition::SizeEquals { size }),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    let (pair, two) = (|| (bytes(), bytes()), || (any::<u64>(), any::<u64>()));
    prop_oneof![
        Just(Change::Touch),
        (any::<u64>(), bytes()).prop_map(|(offset, data)| Change::Write { offset, data }),
        two().prop_map(|(offset, len)| Change::Zero { offset, len }),
        any::<u64>().prop_map(|size| Change::Truncate { size }),
        Just(Change::Remove),
        pair().prop_map(|(name, value)| Change::XattrSet { name, value }),
        bytes().prop_map(|name| Change::XattrRemove { name }),
        pair().prop_map(|(key, value)| Change::OmapSet { key, value }),
        bytes().prop_map(|key| Change::OmapRemove { key }),
        (bytes(), option::of(bytes())).prop_map(|(start, end)| Change::OmapRemoveRange { start, end }),
        Just(Change::OmapClear),
        (any::<u64>(), bytes()).prop_map(|(index, value)| Change::SlotSet { index, value }),
        any::<u64>().prop_map(|index| Change::SlotRemove { index }),
        two().prop_map(|(start, end)| Change::SlotRemoveRange { start, end }),
        object().prop_map(|to| Change::CloneTo { to }),
        (object(), any::<u64>(), two()).prop_map(|(to, from_offset, (len, to_offset))| Change::CloneRange {
            to,
            from_offset,
            len,
            to_offset
        }),
        object().prop_map(|to| Change::Rename { to }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        1 => collection().prop_map(Op::CreateCollection),
        1 => collection().prop_map(Op::RemoveCollection),
        8 => (object(), change()).prop_map(|(object, change)| Op::Object(object, change)),
    ]
}

fn durability() -> impl Strategy<Value = Durability> {
    prop::sample::select(vec![Durability::Durable, Durability::Always, Durability::Applied])
}

fn compression() -> impl Strategy<Value = Compression> {
    prop::sample::select(Compression::ALL.map(|(one, _)| one).to_vec())
}

fn transaction() -> impl Strategy<Value = Transaction> {
    let guard = (object(), condition()).prop_map(|(object, condition)| Guard { object, condition });
    (vec(guard, 0..6), vec(op(), 0..12), durability(), compression(), any::<bool>()).prop_map(
        |(guards, ops, durability, compression, gives_back)| Transaction {
            guards: guards.into(),
            ops: ops.into(),
            durability,
            compression,
            gives_back,
            ..Transaction::default()
        },
    )
}

fn cursor() -> impl Strategy<Value = CommitCursor> {
    any::<(u64, u64)>().prop_map(|(high, low)| CommitCursor(high, low))
}

/// Texts of the programs' own, of which there are few.
fn word() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["value", "omap key", "VALUE_BYTES_MAX", "guard", ""])
}

/// All errors that a store tells, but for those of input and output, whose cause is not compared.
fn error() -> impl Strategy<Value = Error> {
    prop_oneof![
        any::<usize>().prop_map(|index| Error::GuardFailed { index }),
        text().prop_map(|object| Error::NoObject { object }),
        text().prop_map(|collection| Error::NoCollection { collection }),
        text().prop_map(|collection| Error::NotEmpty { collection }),
        (word(), any::<u64>(), word(), any::<u64>()).prop_map(|(what, len, limit, max)| Error::TooLarge {
            what,
            len,
            limit,
            max
        }),
        (word(), text()).prop_map(|(what, why)| Error::Invalid { what, why }),
        word().prop_map(|what| Error::Unsupported { backend: "the server's store", what }),
        any::<(u64, u64)>().prop_map(|(needed, free)| Error::Full { needed, free }),
        Just(Error::ReadOnly),
        (any::<u64>(), text()).prop_map(|(offset, what)| Error::Corrupt { offset, what }),
        (text(), text()).prop_map(|(what, why)| Error::io(what, std::io::Error::other(why))),
        text().prop_map(|cause| Error::Stopped { cause: Arc::from(cause) }),
        text().prop_map(|cause| Error::NotServing { cause: Arc::from(cause) }),
        text().prop_map(|cause| Error::Unknown { cause }),
        Just(Error::Restarted),
        (text(), any::<u32>()).prop_map(|(what, attempts)| Error::Contended { what, attempts }),
        Just(Error::Closed),
    ]
}

/// An error with its cause: errors do not compare.
fn shown(error: &Error) -> String {
    match error {
        Error::Io { what, source } => format!("Io {what:?} {:?}", source.to_string()),
        other => format!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn transactions_come_back(txn in transaction()) {
        let message = sent(&wire::encode_transaction(txn.clone()));
        let named = message.objects.len();
        prop_assert_eq!(wire::decode_transaction(message), Ok(txn));
        prop_assert!(named <= 14, "objects are listed once: {}", named);
    }

    #[test]
    fn reads_of_objects_come_back(
        object in object(),
        (start, end) in any::<(u64, u64)>(),
        key in bytes(),
        keys in vec(bytes(), 0..5),
        indexes in vec(any::<u64>(), 0..5),
    ) {
        prop_assert_eq!(wire::decode_object_request(sent(&wire::encode_object_request(&object))), Ok(object.clone()));
        let range = sent(&wire::encode_range_request(&object, start..end));
        prop_assert_eq!(wire::decode_range_request(range), Ok((object.clone(), start..end)));
        let xattr = sent(&wire::encode_xattr_request(&object, key.clone()));
        prop_assert_eq!(wire::decode_xattr_request(xattr), Ok((object.clone(), key)));
        let omap = sent(&wire::encode_omap_get(&object, keys.clone()));
        prop_assert_eq!(wire::decode_omap_get(omap), Ok((object.clone(), keys)));
        let slots = sent(&wire::encode_slot_get(&object, indexes.clone()));
        prop_assert_eq!(wire::decode_slot_get(slots), Ok((object, indexes)));
    }

    #[test]
    fn scans_come_back(
        object in object(),
        (low, high) in (option::of(bytes()), option::of(bytes())),
        (start, end) in any::<(u64, u64)>(),
        (reverse, keys_only, limit) in any::<(bool, bool, usize)>(),
        (collection, prefix, after) in (collection(), bytes(), cursor()),
        listed_after in option::of(bytes()),
    ) {
        let scan = OmapScan { start: low, end: high, reverse, limit, keys_only };
        let message = sent(&wire::encode_omap_scan(&object, &scan));
        prop_assert_eq!(wire::decode_omap_scan(message), Ok((object.clone(), scan)));
        let scan = SlotScan { range: start..end, reverse, limit, keys_only };
        let message = sent(&wire::encode_slot_scan(&object, &scan));
        prop_assert_eq!(wire::decode_slot_scan(message), Ok((object, scan)));
        let scan = CommitScan { collection: collection.clone(), name_prefix: prefix, after, limit };
        prop_assert_eq!(wire::decode_commit_scan(sent(&wire::encode_commit_scan(scan.clone()))), scan);
        let message = sent(&wire::encode_list(&collection, listed_after.clone(), limit));
        prop_assert_eq!(wire::decode_list(message), (collection, listed_after, limit));
    }

    #[test]
    fn answers_come_back(
        seq in any::<u64>(),
        stat in option::of(any::<(u64, u64, u64, u64)>()),
        data in bytes(),
        runs in vec(any::<(u64, u64)>(), 0..5),
        values in vec(option::of(bytes()), 0..5),
        one in option::of(bytes()),
        pairs in vec((bytes(), bytes()), 0..5),
        slots in vec((any::<u64>(), bytes()), 0..5),
        names in vec(bytes(), 0..5),
    ) {
        prop_assert_eq!(wire::decode_seq(&sent(&wire::encode_seq(CommitSeq(seq)))), CommitSeq(seq));
        let stat = stat.map(|(size, omap_keys, slots, xattrs)| Stat { size, omap_keys, slots, xattrs });
        prop_assert_eq!(wire::decode_stat(&sent(&wire::encode_stat(stat))), stat);
        let range = 7..7 + data.len() as u64;
        prop_assert_eq!(wire::decode_data(&range, sent(&wire::encode_data(data.clone()))), Ok(data));
        let runs: Vec<_> = runs.into_iter().map(|(offset, len)| DataRun { offset, len }).collect();
        prop_assert_eq!(wire::decode_runs(sent(&wire::encode_runs(runs.clone()))), runs);
        let message = sent(&wire::encode_values(values.clone()));
        prop_assert_eq!(wire::decode_values(values.len(), message), Ok(values));
        prop_assert_eq!(wire::decode_value(sent(&wire::encode_values([one.clone()]))), Ok(one));
        prop_assert_eq!(wire::decode_pairs(sent(&wire::encode_pairs(pairs.clone()))), pairs);
        prop_assert_eq!(wire::decode_slots(sent(&wire::encode_slots(slots.clone()))), slots);
        prop_assert_eq!(wire::decode_names(sent(&wire::encode_names(names.clone()))), names.clone());
        let collections: Vec<_> = names.into_iter().map(Collection::new).collect();
        prop_assert_eq!(wire::decode_collections(sent(&wire::encode_collections(collections.clone()))), collections);
    }

    #[test]
    fn entries_in_commit_order_come_back(
        collection in collection(),
        entries in vec((bytes(), any::<bool>(), any::<u64>(), bytes(), bytes()), 0..5),
        next in option::of(cursor()),
    ) {
        let entry = |(name, slot, index, key, value): (Bytes, bool, u64, Bytes, Bytes)| {
            let object = ObjectId::new(collection.clone(), name);
            if slot { CommitEntry::Slot(object, index, value) } else { CommitEntry::Omap(object, key, value) }
        };
        let part: (Vec<_>, _) = (entries.into_iter().map(entry).collect(), next);
        let message = sent(&wire::encode_commit_part(part.clone()));
        prop_assert_eq!(wire::decode_commit_part(&collection, message), Ok(part));
    }

    #[test]
    fn capabilities_come_back(
        flags in any::<[bool; 10]>(),
        transaction_bytes_max in 0..=limits::TRANSACTION_BYTES_MAX as u64,
        object_bytes_max in 0..=limits::OBJECT_BYTES_MAX,
    ) {
        let [
            atomic_across_objects, atomic_across_collections, native_slots, commit_order, clone, cheap_clone,
            persistent, compresses, exact_extents, reverse_scans,
        ] = flags;
        let able = Capability {
            backend: "some", atomic_across_objects, atomic_across_collections, native_slots, commit_order, clone,
            cheap_clone, persistent, compresses, transaction_bytes_max, object_bytes_max, exact_extents, reverse_scans,
            watches: false, sessions: false, afar: true,
            transaction_ops_max: limits::TRANSACTION_OPS_MAX as u64,
        };
        prop_assert_eq!(wire::decode_capability("some", &sent(&wire::encode_capability(able))), able);
        let watching = Capability { watches: true, sessions: true, afar: false, ..able };
        prop_assert_eq!(wire::decode_capability("some", &wire::encode_capability(watching)), able);
    }

    #[test]
    fn errors_come_back(error in error()) {
        let told = wire::decode_error(sent(&wire::encode_error(&error))).unwrap();
        prop_assert_eq!(shown(&told), shown(&error));
        let status = wire::encode_status(&error);
        prop_assert!(wire::is_told(&status));
        prop_assert_eq!(status.code(), wire::name_error(&error).code);
        prop_assert_eq!(status.message(), error.to_string());
        let told = wire::decode_status(&status).unwrap();
        prop_assert_eq!((shown(&told), told.is_unknown()), (shown(&error), error.is_unknown()));
    }
}

#[test]
fn a_status_of_somebody_else_is_no_error_of_the_store() {
    let status = Status::unavailable("connection reset");
    assert!(!wire::is_told(&status) && wire::decode_status(&status).is_none());
    let mut status = Status::new(Code::Internal, "x");
    let garbled = tonic::metadata::BinaryMetadataValue::from_bytes(&[0xff; 9]);
    status.metadata_mut().insert_bin(wire::ERROR, garbled);
    assert!(wire::is_told(&status) && wire::decode_status(&status).is_none());
}

#[test]
fn limits_of_a_capability_are_at_most_those_of_all_stores() {
    let boundless = esker_wire::proto::store::CapabilityResponse {
        transaction_bytes_max: u64::MAX,
        object_bytes_max: None,
        ..Default::default()
    };
    let able = wire::decode_capability("some", &boundless);
    assert_eq!(able.transaction_bytes_max, limits::TRANSACTION_BYTES_MAX as u64);
    assert_eq!(able.object_bytes_max, limits::OBJECT_BYTES_MAX);
    assert!(able.exact_extents && able.reverse_scans, "what an older server does not say, it does");
}
