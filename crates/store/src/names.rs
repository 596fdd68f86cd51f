//! Names that users give: of namespaces, images, logs, tables and of those who write to them.
//!
//! Invariant: what is refused here is refused before it is stored; what stands in a store already is read whatever it
//! is called.

/// Longest name of a namespace, an image, a snapshot, a log, a state or a table, in bytes. Shortest: 1.
pub const NAME_BYTES_MAX: usize = 128;

/// Longest name of the owner of a log or of a lock, of a writer or a consumer, in bytes. Shortest: 1.
pub const LABEL_BYTES_MAX: usize = 255;

/// Why something cannot be a name: the reason, with the limit. `limit` is how the limit is called, with its value in
/// bytes; `bad` says which characters are not allowed.
///
/// # Errors
/// The reason.
pub fn check_name(name: &str, (limit, max): (&str, usize), bad: impl Fn(char) -> bool) -> Result<(), String> {
    if name.is_empty() || name.len() > max {
        return Err(format!("{} bytes, expected 1 to {max} ({limit})", name.len()));
    }
    name.chars().find(|c| bad(*c)).map_or(Ok(()), |bad| Err(format!("{name:?} contains {bad:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_refused_with_its_reason() {
        let check = |name: &str| check_name(name, ("NAME_BYTES_MAX", NAME_BYTES_MAX), |c| c == '/');
        assert_eq!(check("disk"), Ok(()));
        assert_eq!(check(&"n".repeat(NAME_BYTES_MAX)), Ok(()));
        assert_eq!(check("a/b").unwrap_err(), "\"a/b\" contains '/'");
        assert_eq!(check("").unwrap_err(), "0 bytes, expected 1 to 128 (NAME_BYTES_MAX)");
        assert_eq!(check(&"n".repeat(129)).unwrap_err(), "129 bytes, expected 1 to 128 (NAME_BYTES_MAX)");
    }
}
