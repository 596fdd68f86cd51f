//! Glob patterns as KEYS, SCAN, CONFIG GET and the names of users take them: `*`, `?`, `[a-z]`, `[^a]`, `\x`.
//!
//! Invariant: time is at most pattern × text: one place to return to is kept, the last star, which is enough
//! because a later star takes over from an earlier one.

/// Whether `text` matches `pattern`; `fold_case` ignores ASCII case.
pub(crate) fn matches(pattern: &[u8], text: &[u8], fold_case: bool) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    loop {
        if p < pattern.len() && pattern[p] == b'*' {
            star = Some((p + 1, t));
            p += 1;
            continue;
        }
        if t == text.len() {
            return pattern[p..].iter().all(|byte| *byte == b'*');
        }
        match step(&pattern[p..], text[t], fold_case) {
            Some(used) => {
                p += used;
                t += 1;
            }
            None => {
                let Some((after, from)) = star else { return false };
                star = Some((after, from + 1));
                (p, t) = (after, from + 1);
            }
        }
    }
}

/// How many bytes of the pattern match this byte of the text, if they do.
fn step(pattern: &[u8], byte: u8, fold_case: bool) -> Option<usize> {
    let same = |a: u8, b: u8| if fold_case { a.eq_ignore_ascii_case(&b) } else { a == b };
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', class @ ..] => {
            let (found, used) = in_class(class, byte, fold_case);
            found.then_some(1 + used)
        }
        [b'\\', literal, ..] => same(*literal, byte).then_some(2),
        [literal, ..] => same(*literal, byte).then_some(1),
    }
}

/// Whether the class (after its bracket) holds the byte, and how long it is. An unclosed class ends with the pattern.
fn in_class(class: &[u8], byte: u8, fold_case: bool) -> (bool, usize) {
    let fold = |byte: u8| if fold_case { byte.to_ascii_lowercase() } else { byte };
    let byte = fold(byte);
    let negated = class.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut found = false;
    loop {
        match &class[at.min(class.len())..] {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', literal, ..] => {
                found |= fold(*literal) == byte;
                at += 2;
            }
            [low, b'-', high, ..] => {
                let (low, high) = (fold(*low.min(high)), fold(*low.max(high)));
                found |= (low..=high).contains(&byte);
                at += 3;
            }
            [literal, ..] => {
                found |= fold(*literal) == byte;
                at += 1;
            }
        }
    }
    (found != negated, at)
}

/// The bytes that every match starts with.
pub(crate) fn literal_prefix(pattern: &[u8]) -> &[u8] {
    let end = pattern.iter().position(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\')).unwrap_or(pattern.len());
    &pattern[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_redis() {
        let check = |pattern: &str, text: &str, expected: bool| {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes(), false), expected, "{pattern} on {text}");
        };
        check("*", "", true);
        check("h?llo", "hello", true);
        check("h*llo", "heeeello", true);
        check("h*llo", "heeeell", false);
        check("h[ae]llo", "hallo", true);
        check("h[ae]llo", "hillo", false);
        check("h[^e]llo", "hallo", true);
        check("h[^e]llo", "hello", false);
        check("h[a-b]llo", "hbllo", true);
        check("h[b-a]llo", "hbllo", true);
        check("\\*", "*", true);
        check("\\*", "x", false);
        check("a*b*c", "aXbXbc", true);
        check("a*b*c", "aXbXb", false);
        check("a[", "a", false);
        check("[a", "a", true);
        check("", "", true);
        check("", "a", false);
        assert!(matches(b"MAX*", b"maxmemory", true));
        assert_eq!(literal_prefix(b"user:*"), b"user:");
    }

    #[test]
    fn hostile_patterns_take_bounded_time() {
        let pattern = "a*".repeat(2_000) + "b";
        assert!(!matches(pattern.as_bytes(), "a".repeat(20_000).as_bytes(), false));
    }
}
