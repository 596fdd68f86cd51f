//! The file `STORE`: what kind of store a folder holds, of which version, and whether its making came to an end.
//!
//! One line of text: `esker-store KIND VERSION STATE`, where STATE is `making` or `whole`.
//!
//! Invariant: the line is replaced as a whole and durably, so that it is always one of those that were written.

use std::io::{Error, ErrorKind, Result};

use crate::files::Files;

/// Name of the file.
pub const MARKER: &str = "STORE";
/// The kind that this crate writes.
pub const KIND: &str = "file";
/// The newest version that this crate knows.
pub const VERSION: u32 = 1;

const MAGIC: &str = "esker-store";
/// Longest line that is read, in bytes.
const LINE_BYTES_MAX: u64 = 256;

/// What the file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// Kind of store: the name of its backend.
    pub kind: String,
    /// Version of its format.
    pub version: u32,
    /// Whether its making came to an end.
    pub whole: bool,
}

impl Marker {
    /// Reads a line. `None` if it is not one of these.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_suffix('\n')?.split(' ');
        let (magic, kind, version, state) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let whole = match state {
            "whole" => true,
            "making" => false,
            _ => return None,
        };
        let version = version.parse().ok()?;
        (magic == MAGIC && words.next().is_none()).then(|| Self { kind: kind.to_string(), version, whole })
    }

    /// The marker of a folder; `None` without one.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`] shows a line that is not understood.
    pub fn read(files: &dyn Files) -> Result<Option<Self>> {
        let Some(file) = files.open(MARKER, false)? else { return Ok(None) };
        let mut line = vec![0; file.len()?.min(LINE_BYTES_MAX) as usize];
        file.read_at(0, &mut line)?;
        let parsed = std::str::from_utf8(&line).ok().and_then(Self::parse);
        let wrong =
            || Error::new(ErrorKind::InvalidData, format!("{:?} is not understood", line.escape_ascii().to_string()));
        parsed.ok_or_else(wrong).map(Some)
    }

    /// Makes it the folder's, durably.
    ///
    /// # Errors
    /// The operating system's.
    pub fn write(&self, files: &dyn Files) -> Result<()> {
        let state = if self.whole { "whole" } else { "making" };
        let line = format!("{MAGIC} {} {} {state}\n", self.kind, self.version);
        let temporary = format!("{MARKER}.new");
        let file = files.open(&temporary, true)?.ok_or(ErrorKind::NotFound)?;
        file.set_len(0)?;
        file.write_at(0, line.as_bytes())?;
        file.sync()?;
        files.rename(&temporary, MARKER)?;
        files.sync_folder("")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_lines_are_understood() {
        let marker = Marker { kind: "file".into(), version: 1, whole: true };
        assert_eq!(Marker::parse("esker-store file 1 whole\n"), Some(marker));
        for line in [
            "",
            "\n",
            "esker-store file 1 whole",
            "esker-store file 1\n",
            "esker-store file x whole\n",
            "other file 1 whole\n",
            "esker-store file 1 whole more\n",
        ] {
            assert_eq!(Marker::parse(line), None, "{line:?}");
        }
    }
}
