//! Numbers as people write and read them: `2m`, `100k`, `1.5 M`.

use anyhow::{Context, Result, bail};

/// A count: digits and `k`, `m` or `g` (thousands).
pub fn count(text: &str) -> Result<u32> {
    u32::try_from(scaled(text, 1_000)?).with_context(|| format!("{text}: keys are 4 bytes, so at most 4,294,967,295"))
}

/// A size in bytes: digits and `k`, `m` or `g` (powers of 1,024).
pub fn bytes(text: &str) -> Result<u64> {
    scaled(text, 1_024)
}

fn scaled(text: &str, step: u64) -> Result<u64> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.trim_end_matches(['k', 'm', 'g']);
    let power = match &text[digits.len()..] {
        "" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        other => bail!("{text}: unknown unit {other}"),
    };
    let number: u64 = digits.parse().with_context(|| format!("{text}: expected a number such as 500k or 2m"))?;
    number.checked_mul(step.pow(power)).with_context(|| format!("{text}: too large"))
}

/// A rate or count for a table: three digits and a unit.
pub fn short(number: f64) -> String {
    let (value, unit) = match number {
        n if n >= 999_500.0 => (n / 1e6, " M"),
        n if n >= 999.5 => (n / 1e3, " K"),
        n => (n, ""),
    };
    let digits = if value >= 99.5 {
        0
    } else if value >= 9.95 {
        1
    } else {
        2
    };
    format!("{value:.digits$}{unit}")
}

/// A size in bytes for a table.
pub fn short_bytes(bytes: usize) -> String {
    match bytes {
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_and_written() {
        assert_eq!(count("2m").unwrap(), 2_000_000);
        assert_eq!(bytes("100k").unwrap(), 102_400);
        assert!(count("5g").is_err() && count("x").is_err() && bytes("1kk").is_err());
        assert_eq!(short(1_234_567.0), "1.23 M");
        assert_eq!(short(99_960.0), "100 K");
        assert_eq!(short(950.0), "950");
        assert_eq!(short_bytes(102_400), "100 KiB");
    }
}
