//! What is compared: devices, and loads on them.
//!
//! Invariant: what is printed of a device or a load is what is read of it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use esker::Period;
use esker::device::Pace;

/// Time of a sync of a device whose syncs per second are limited, if they are few enough.
const LIMITED_SYNC: Duration = Duration::from_millis(1);

/// A device by how long its syncs take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk(pub Pace);

impl Disk {
    /// The disk as it is.
    pub const OWN: Self = Self(Pace::Own);
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Pace::Own => f.write_str("own"),
            Pace::Takes(takes) => write!(f, "{}", Period(takes)),
            Pace::Limited { per_second, .. } => write!(f, "{per_second}/s"),
        }
    }
}

impl FromStr for Disk {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?}: expected own, a number of syncs a second such as 200/s, or a time such as 5ms");
        if text == "own" {
            return Ok(Self::OWN);
        }
        if let Some(number) = text.strip_suffix("/s") {
            let number = number.parse().ok().filter(|number| (1..=1_000_000).contains(number));
            let per_second: u64 = number.ok_or_else(bad)?;
            let takes = LIMITED_SYNC.min(Duration::from_micros(1_000_000 / per_second));
            return Ok(Self(Pace::Limited { per_second, takes }));
        }
        let takes = text.parse::<Period>().ok().filter(|takes| takes.0 <= Duration::from_secs(10));
        Ok(Self(Pace::Takes(takes.ok_or_else(bad)?.0)))
    }
}

/// What the clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// So many, each with one update after another.
    Closed(u64),
    /// So many updates a second in all, at random moments.
    Rate(u64),
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(1) => f.write_str("1 client"),
            Self::Closed(clients) => write!(f, "{clients} clients"),
            Self::Rate(per_second) => write!(f, "{per_second}/s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_printed_as_they_are_read() {
        for text in ["own", "200/s", "5ms", "100us"] {
            assert_eq!(text.parse::<Disk>().unwrap().to_string(), text);
        }
        let Disk(Pace::Limited { per_second: 5_000, takes }) = "5000/s".parse().unwrap() else { panic!() };
        assert_eq!(takes, Duration::from_micros(200), "a sync takes no longer than there is time for it");
        for text in ["", "0/s", "x/s", "5", "11s", "2000000/s"] {
            assert!(text.parse::<Disk>().unwrap_err().contains("200/s"), "{text}");
        }
    }
}
