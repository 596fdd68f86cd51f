//! Numbers as the Redis protocol writes them: strict integers, floats for people, sums of decimals.
//!
//! Invariant: what is accepted as an integer has one spelling only, so that `int` keys and counters are canonical.

/// Longest text of an `i64`.
pub(crate) const I64_DIGITS_MAX: usize = 20;

/// The integer that `text` spells: no sign but `-`, no leading zero, no blanks; `None` for anything else.
pub(crate) fn parse_i64(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text.split_first() {
        Some((b'-', rest)) => (true, rest),
        _ => (false, text),
    };
    if negative && digits == b"0" {
        return None;
    }
    let magnitude = parse_u64(digits)?;
    if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

/// The unsigned integer that `text` spells, canonically.
pub(crate) fn parse_u64(text: &[u8]) -> Option<u64> {
    match text {
        [] => None,
        [b'0'] => Some(0),
        [b'0', ..] => None,
        _ if text.len() > I64_DIGITS_MAX => None,
        _ => text.iter().try_fold(0u64, |sum, digit| {
            let digit = digit.wrapping_sub(b'0');
            if digit > 9 {
                return None;
            }
            sum.checked_mul(10)?.checked_add(u64::from(digit))
        }),
    }
}

/// Appends the decimal digits of `value`.
pub(crate) fn push_u64(out: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0u8; I64_DIGITS_MAX];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends `value` in decimal.
pub(crate) fn push_i64(out: &mut Vec<u8>, value: i64) {
    if value < 0 {
        out.push(b'-');
    }
    push_u64(out, value.unsigned_abs());
}

/// The decimal text of `value`, in `digits`.
pub(crate) fn i64_in(digits: &mut [u8; I64_DIGITS_MAX], value: i64) -> &[u8] {
    let (mut at, mut rest) = (digits.len(), value.unsigned_abs());
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        at -= 1;
        digits[at] = b'-';
    }
    &digits[at..]
}

/// The decimal text of `value`.
pub(crate) fn i64_text(value: i64) -> Vec<u8> {
    let mut text = Vec::with_capacity(I64_DIGITS_MAX);
    push_i64(&mut text, value);
    text
}

/// A decimal number: exact while it fits, a float beyond.
///
/// Redis adds in 80-bit floats and prints 17 decimals. Exact decimals print the same for everyday numbers (0.1 + 0.2
/// is 0.3 in both); beyond ±10^20 or 17 decimals a 64-bit float takes over, and last digits may differ from Redis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Decimal {
    /// In units of 10^-17.
    Exact(i128),
    /// Any other finite number.
    Float(f64),
}

const DECIMALS: usize = 17;
const UNIT: i128 = 10i128.pow(DECIMALS as u32);
const EXACT_MAX: i128 = UNIT * 10i128.pow(20);

impl Decimal {
    /// The number that `text` spells; `None` for blanks, rest, or not a number. Infinity is a number here, as in Redis.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        if let Some(exact) = parse_exact(text) {
            return Some(Self::Exact(exact));
        }
        let text = std::str::from_utf8(text).ok()?;
        let bare = text.trim_start_matches(['+', '-']);
        if bare.len() + 1 < text.len() {
            return None;
        }
        let known = bare.starts_with(|c: char| c.is_ascii_digit() || c == '.')
            || ["inf", "infinity"].iter().any(|word| bare.eq_ignore_ascii_case(word));
        if !known {
            return None;
        }
        text.parse::<f64>().ok().filter(|float| !float.is_nan()).map(Self::Float)
    }

    /// The sum; `None` if it is not finite.
    pub(crate) fn sum(self, other: Self) -> Option<Self> {
        if let (Self::Exact(a), Self::Exact(b)) = (self, other)
            && let Some(sum) = a.checked_add(b)
            && sum.abs() <= EXACT_MAX
        {
            return Some(Self::Exact(sum));
        }
        let sum = self.float() + other.float();
        sum.is_finite().then_some(Self::Float(sum))
    }

    /// Whether it is not infinite.
    pub(crate) fn is_finite(self) -> bool {
        self.float().is_finite()
    }

    fn float(self) -> f64 {
        match self {
            Self::Exact(exact) => exact as f64 / UNIT as f64,
            Self::Float(float) => float,
        }
    }

    /// Without exponent, at most 17 decimals, no trailing zeros.
    pub(crate) fn text(self) -> String {
        let text = match self {
            Self::Exact(exact) => {
                let sign = if exact < 0 { "-" } else { "" };
                let (whole, part) = (exact.unsigned_abs() / UNIT as u128, exact.unsigned_abs() % UNIT as u128);
                format!("{sign}{whole}.{part:017}")
            }
            Self::Float(float) => format!("{float:.17}"),
        };
        let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
        if text == "-0" { "0".into() } else { text.into() }
    }
}

fn parse_exact(text: &[u8]) -> Option<i128> {
    let (negative, rest) = match text.split_first()? {
        (b'-', rest) => (true, rest),
        (b'+', rest) => (false, rest),
        _ => (false, text),
    };
    let (mantissa, exponent) = match rest.iter().position(|byte| byte.eq_ignore_ascii_case(&b'e')) {
        Some(at) => {
            let exponent = rest[at + 1..].strip_prefix(b"+").unwrap_or(&rest[at + 1..]);
            (&rest[..at], std::str::from_utf8(exponent).ok()?.parse::<i32>().ok()?)
        }
        None => (rest, 0),
    };
    let (mut value, mut decimals, mut point, mut digits) = (0i128, 0i32, false, 0);
    for byte in mantissa {
        match byte {
            b'0'..=b'9' => {
                value = value.checked_mul(10)?.checked_add(i128::from(byte - b'0'))?;
                decimals += i32::from(point);
                digits += 1;
            }
            b'.' if !point => point = true,
            _ => return None,
        }
    }
    let shift = (DECIMALS as i32).checked_add(exponent)?.checked_sub(decimals)?;
    if digits == 0 || value == 0 && digits > 0 && shift < -64 {
        return None;
    }
    let value = match shift {
        0..=37 => value.checked_mul(10i128.checked_pow(shift as u32)?)?,
        -37..0 => {
            let unit = 10i128.checked_pow(shift.unsigned_abs())?;
            if value % unit != 0 {
                return None;
            }
            value / unit
        }
        _ => return None,
    };
    if value > EXACT_MAX {
        return None;
    }
    Some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_one_spelling() {
        let check = |text: &str, value: Option<i64>| assert_eq!(parse_i64(text.as_bytes()), value, "{text}");
        check("0", Some(0));
        check("-1", Some(-1));
        check("9223372036854775807", Some(i64::MAX));
        check("-9223372036854775808", Some(i64::MIN));
        for bad in ["", "-", "+1", "01", "-0", " 1", "1 ", "9223372036854775808", "-9223372036854775809", "1a"] {
            check(bad, None);
        }
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_u64(b"18446744073709551616"), None);
    }

    #[test]
    fn integers_print_as_std_prints_them() {
        for value in [0, 7, -7, 10, 99, i64::MAX, i64::MIN] {
            assert_eq!(i64_text(value), value.to_string().into_bytes());
        }
    }

    #[test]
    fn decimals_add_as_people_do() {
        let check = |a: &str, b: &str, sum: &str| {
            let sum_of = Decimal::parse(a.as_bytes()).unwrap().sum(Decimal::parse(b.as_bytes()).unwrap()).unwrap();
            assert_eq!(sum_of.text(), sum, "{a} + {b}");
        };
        check("0.1", "0.2", "0.3");
        check("10.50", "0.1", "10.6");
        check("5.0e3", "2.0e2", "5200");
        check("3", "-1.5", "1.5");
        check("-1", "1.0", "0");
        check("1e30", "0", "1000000000000000019884624838656");
        for bad in ["", " 1", "1 ", "abc", "1.2.3", "nan", "--1", "1e", "e5"] {
            assert_eq!(Decimal::parse(bad.as_bytes()), None, "{bad}");
        }
        assert!(Decimal::parse(b"inf").unwrap().sum(Decimal::Exact(0)).is_none());
    }
}
