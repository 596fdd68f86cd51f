//! The xattrs: named small values.

use super::Harness;
use super::actions::*;
use crate::Change;

/// Set, replace, remove; an empty value and an empty name are kept.
pub fn xattrs_are_set_replaced_and_removed(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    change(store, &object, [xattr_set("a", "1"), xattr_set("b", "2"), xattr_set("", "nameless")]);
    change(store, &object, [xattr_set("a", "a longer value"), xattr_set("b", "")]);
    assert_eq!(got(store.xattr(&object, b"a")), Some(bytes("a longer value")));
    assert_eq!(got(store.xattr(&object, b"b")), Some(bytes("")));
    assert_eq!(got(store.xattr(&object, b"")), Some(bytes("nameless")));
    assert_eq!(got(store.xattr(&object, b"c")), None);
    change(store, &object, [Change::XattrRemove { name: bytes("a") }, Change::XattrRemove { name: bytes("never") }]);
    assert_eq!(got(store.xattr(&object, b"a")), None);
    assert_eq!(got(store.stat(&object)).map(|stat| stat.xattrs), Some(2));
}

/// The list is in name order and complete.
pub fn xattrs_are_listed_by_name(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let object = object("o");
    for number in (0..40).rev() {
        change(store, &object, [xattr_set(&format!("x{}", number * 37 % 100), format!("value {number}"))]);
    }
    let mut expected: Vec<_> =
        (0..40).map(|number| (bytes(format!("x{}", number * 37 % 100)), bytes(format!("value {number}")))).collect();
    expected.sort();
    assert_eq!(got(store.xattrs(&object)), expected);
}
