//! Texts of a server that errors of this process hold for good.
//!
//! Invariant: they are few and short, whatever the server sends.

use std::collections::HashSet;

use parking_lot::Mutex;

/// Most texts that are kept for good, and how long each may be, in bytes.
const TEXTS_MAX: usize = 256;
const TEXT_BYTES_MAX: usize = 256;

/// A text of the server's as one that stays. There are few of them; a server that makes up more is not followed.
pub(crate) fn kept(text: &str) -> &'static str {
    static KEPT: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut kept = KEPT.lock();
    let kept = kept.get_or_insert_default();
    if let Some(text) = kept.get(text) {
        return text;
    }
    if kept.len() >= TEXTS_MAX || text.len() > TEXT_BYTES_MAX {
        return "something that the server tells of";
    }
    let text: &'static str = Box::leak(text.to_owned().into_boxed_str());
    kept.insert(text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_are_kept_are_few_and_short() {
        assert_eq!(kept("value"), "value");
        assert!(std::ptr::eq(kept("value"), kept("value")));
        assert_ne!(kept(&"x".repeat(TEXT_BYTES_MAX + 1)).len(), TEXT_BYTES_MAX + 1);
        for number in 0..2 * TEXTS_MAX {
            kept(&format!("text {number}"));
        }
        assert_eq!(kept("one more"), "something that the server tells of");
    }
}
