//! Sizes and times as people write them: `64m`, `1g`, `500ms`, `1s`.
//!
//! Invariant: what [`ByteSize`] and [`Period`] print, they also read, and it means the same.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A number of bytes. Written as digits and an optional `k`, `m`, `g` or `t` (powers of 1,024; `ib` or `b` may follow).
///
/// ```
/// use esker::ByteSize;
/// assert_eq!("64m".parse::<ByteSize>().unwrap(), ByteSize(64 << 20));
/// assert_eq!("2GiB".parse::<ByteSize>().unwrap().to_string(), "2g");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// A length of time. Written as digits and `us`, `ms`, `s`, `m` or `h`; a plain `0` is allowed.
///
/// ```
/// use std::time::Duration;
/// use esker::Period;
/// assert_eq!("250ms".parse::<Period>().unwrap(), Period(Duration::from_millis(250)));
/// assert_eq!(Period(Duration::from_secs(60)).to_string(), "1m");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Period(pub Duration);

/// A text is neither a size nor a time. Fix the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not {expected}")]
pub struct UnitError {
    found: String,
    expected: &'static str,
}

const SIZES: &[(&str, u64)] = &[("p", 1 << 50), ("t", 1 << 40), ("g", 1 << 30), ("m", 1 << 20), ("k", 1 << 10)];
const TIMES: &[(&str, u64)] = &[("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1)];

fn split(text: &str) -> Option<(u64, String)> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    Some((text[..digits].parse().ok()?, text[digits..].trim().to_ascii_lowercase()))
}

impl FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let parse = || {
            let (number, rest) = split(text)?;
            let (fraction, unit) = match rest.strip_prefix('.') {
                None => ("", rest.as_str()),
                Some(rest) => rest.split_at(rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len()),
            };
            let unit = unit.trim();
            let unit = unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(unit);
            let factor = if unit.is_empty() { 1 } else { SIZES.iter().find(|(name, _)| *name == unit)?.1 };
            if rest.starts_with('.') && (fraction.is_empty() || fraction.len() > 9 || factor == 1) {
                return None;
            }
            // Whole bytes: what is less than one is left out.
            let digits = if fraction.is_empty() { 0 } else { fraction.parse::<u128>().ok()? };
            let part = digits * u128::from(factor) / 10u128.pow(fraction.len() as u32);
            number.checked_mul(factor)?.checked_add(u64::try_from(part).ok()?)
        };
        parse().map(Self).ok_or_else(|| UnitError {
            found: text.to_string(),
            expected: "a size such as 4096, 64m or 1.5g (k, m, g, t, p: powers of 1,024)",
        })
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = SIZES.iter().find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor));
        match unit {
            Some((name, factor)) => write!(f, "{}{name}", self.0 / factor),
            None => write!(f, "{}", self.0),
        }
    }
}

impl FromStr for Period {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let parse = || {
            let (number, unit) = split(text)?;
            if number == 0 && unit.is_empty() {
                return Some(0);
            }
            number.checked_mul(TIMES.iter().find(|(name, _)| *name == unit)?.1)
        };
        parse()
            .map(|micros| Self(Duration::from_micros(micros)))
            .ok_or_else(|| UnitError { found: text.to_string(), expected: "a time such as 500us, 10ms, 1s, 5m or 1h" })
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros() as u64;
        if micros == 0 {
            return f.write_str("0");
        }
        let unit = TIMES.iter().find(|(_, factor)| micros.is_multiple_of(*factor));
        unit.map_or(Ok(()), |(name, factor)| write!(f, "{}{name}", micros / factor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_may_have_a_fraction_of_a_unit() {
        for (text, bytes) in [
            ("1.5g", 3 << 29),
            ("0.5k", 512),
            ("2.25 MiB", 9 << 18),
            ("1p", 1 << 50),
            ("1.0005k", 1_024),
            ("16383.999999999p", u64::MAX - (1 << 50) + 1 + ((999_999_999u128 << 50) / 1_000_000_000) as u64),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["1.5", "1.g", ".5g", "1.5.5g", "1.1234567890g", "16384p", "1,5g", "-1g", "1.-5g"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_printed_is_read_back_as_the_same() {
        for bytes in [0, 1, 1023, 1024, 1025, 64 << 20, 3 << 30, 1 << 40, (1 << 40) + 1, u64::MAX] {
            assert_eq!(ByteSize(bytes).to_string().parse(), Ok(ByteSize(bytes)));
        }
        for micros in [0, 1, 999, 1_000, 1_500, 1_000_000, 60_000_000, 3_600_000_000, 90_000_000] {
            let period = Period(Duration::from_micros(micros));
            assert_eq!(period.to_string().parse(), Ok(period));
        }
    }

    #[test]
    fn nonsense_is_an_error_that_shows_what_is_expected() {
        for text in ["", "m", "-1", "1,5g", "12q", "18446744073709551615t", "１k"] {
            let error = text.parse::<ByteSize>().unwrap_err().to_string();
            assert!(error.contains("64m"), "{error}");
        }
        for text in ["", "s", "5", "1 day", "-1s", "18446744073709551615h"] {
            let error = text.parse::<Period>().unwrap_err().to_string();
            assert!(error.contains("10ms"), "{error}");
        }
    }
}
