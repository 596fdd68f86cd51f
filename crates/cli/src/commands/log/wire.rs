//! Entries as bytes of stdin and stdout: lines, frames with their length in front, JSON.
//!
//! stdin → [`Records`] → records of bounded size · entries and gaps → [`Sink`] → stdout, gaps on stderr where the
//! format has no place for them
//!
//! Invariants:
//! 1. Nothing is read into memory beyond the log's largest entry and what its format adds to it.
//! 2. What [`Sink`] writes as frames or JSON, [`Records`] reads as the same entries; lines too, as long as no entry
//!    holds a line break.

use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::ValueEnum;
use esker::Bytes;
use esker::log::{Entry, GapKind, Record, STREAM_BYTES_MAX, STREAMS_MAX};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::commands::quiet_pipe;
use crate::exit::Failure;

/// How entries stand in a stream of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// One entry per line, without its line feed
    #[default]
    Lines,
    /// Each entry behind its length, 4 bytes big-endian
    Frames,
    /// One object per line: {"data": TEXT} or {"data_base64": BYTES}, and "streams": [NAME…]
    Json,
}

/// What `esker log append` reads of a JSON line; what it does not know is a mistake.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    data: Option<String>,
    data_base64: Option<String>,
    #[serde(default)]
    streams: Vec<String>,
    // What `cat` adds, so that its output can be appended elsewhere.
    #[serde(default, rename = "position")]
    _position: Option<u64>,
    #[serde(default, rename = "time_ms")]
    _time_ms: Option<u64>,
    #[serde(default, rename = "writer")]
    _writer: Option<String>,
    #[serde(default, rename = "number")]
    _number: Option<u64>,
}

/// Reads entries.
pub struct Records<R> {
    input: BufReader<R>,
    format: Format,
    entry_bytes_max: usize,
    /// Entries read so far.
    number: u64,
    streams: Vec<Bytes>,
}

impl<R: Read> Records<R> {
    /// Reads `input`, entries of up to `entry_bytes_max` bytes; each belongs to `streams`, besides those that it names
    /// itself.
    pub fn new(input: R, format: Format, entry_bytes_max: u32, streams: Vec<Bytes>) -> Self {
        let input = BufReader::with_capacity(256 << 10, input);
        Self { input, format, entry_bytes_max: entry_bytes_max as usize, number: 0, streams }
    }

    /// Whether more can be had without waiting for it.
    pub fn at_hand(&self) -> bool {
        !self.input.buffer().is_empty()
    }

    /// The next entry; `None` at the end.
    pub fn next(&mut self) -> Result<Option<Record>, Failure> {
        self.number += 1;
        let record = match self.format {
            Format::Lines => self.line(self.entry_bytes_max)?.map(Record::from),
            Format::Frames => self.frame()?.map(Record::from),
            Format::Json => self.json()?,
        };
        Ok(record.map(|mut record| {
            record.streams.extend(self.streams.iter().cloned());
            record
        }))
    }

    fn bad(&self, why: impl std::fmt::Display) -> Failure {
        Failure::usage(format!("entry {} of stdin: {why}", self.number))
    }

    fn too_long(&self, len: impl std::fmt::Display) -> Failure {
        self.bad(format!("{len} bytes exceed the log's entry_bytes_max = {}", self.entry_bytes_max))
    }

    fn line(&mut self, max: usize) -> Result<Option<Vec<u8>>, Failure> {
        let mut line = Vec::new();
        let read = (&mut self.input).take(max as u64 + 1).read_until(b'\n', &mut line)?;
        if line.last() == Some(&b'\n') {
            line.pop();
        } else if line.len() > max {
            return Err(self.too_long(format!("more than {max}")));
        }
        Ok((read > 0).then_some(line))
    }

    fn frame(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        if self.input.fill_buf()?.is_empty() {
            return Ok(None);
        }
        let mut len = [0; 4];
        self.input.read_exact(&mut len).map_err(|_| self.bad("the input ends inside its length"))?;
        let len = u32::from_be_bytes(len) as usize;
        if len > self.entry_bytes_max {
            return Err(self.too_long(len));
        }
        let mut data = vec![0; len];
        self.input.read_exact(&mut data).map_err(|_| self.bad(format!("the input ends inside its {len} bytes")))?;
        Ok(Some(data))
    }

    fn json(&mut self) -> Result<Option<Record>, Failure> {
        // A byte takes six characters at most, as \u00XX; names are a few more.
        let max = self.entry_bytes_max * 6 + STREAMS_MAX * STREAM_BYTES_MAX * 6 + 4_096;
        let Some(line) = self.line(max)? else { return Ok(None) };
        let line: Line = serde_json::from_slice(&line).map_err(|error| self.bad(error))?;
        let data = match (line.data, line.data_base64) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(text)) => BASE64.decode(text).map_err(|error| self.bad(format!("data_base64: {error}")))?,
            _ => return Err(self.bad("expected either data or data_base64")),
        };
        if data.len() > self.entry_bytes_max {
            return Err(self.too_long(data.len()));
        }
        let mut record = Record::from(data);
        record.streams.extend(line.streams.into_iter().map(Bytes::from));
        Ok(Some(record))
    }
}

/// Why positions have no entry, for a reader that does not wait for their writers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gap {
    /// As a follower tells it.
    Kind(GapKind),
    /// Nothing is written there yet, though positions above are.
    Hole,
}

impl Gap {
    fn name(&self) -> &'static str {
        match self {
            Self::Kind(GapKind::Filled) => "filled",
            Self::Kind(GapKind::Trimmed) => "trimmed",
            Self::Kind(GapKind::Lost(_)) => "lost",
            Self::Hole => "hole",
        }
    }
}

/// Writes entries and gaps.
pub(super) struct Sink<W: Write> {
    out: W,
    format: Format,
    gap: Option<(Range<u64>, Gap)>,
    /// Entries written.
    pub entries: u64,
    /// Positions whose entries cannot be read.
    pub lost: u64,
}

impl<W: Write> Sink<W> {
    /// Writes to `out`.
    pub fn new(out: W, format: Format) -> Self {
        Self { out, format, gap: None, entries: 0, lost: 0 }
    }

    /// Writes an entry.
    pub fn entry(&mut self, entry: &Entry) -> Result<(), Failure> {
        self.end_gap()?;
        self.entries += 1;
        quiet_pipe(match self.format {
            Format::Lines => self.out.write_all(&entry.data).and_then(|()| self.out.write_all(b"\n")),
            Format::Frames => {
                let len = entry.data.len() as u32;
                self.out.write_all(&len.to_be_bytes()).and_then(|()| self.out.write_all(&entry.data))
            }
            Format::Json => writeln!(self.out, "{}", shown(entry)),
        })
    }

    /// Notes that positions have no entry; those that follow one another for one reason are told as one.
    pub fn gap(&mut self, positions: Range<u64>, kind: Gap) -> Result<(), Failure> {
        if let Gap::Kind(GapKind::Lost(_)) = kind {
            self.lost += positions.end - positions.start;
        }
        match &mut self.gap {
            Some((last, same)) if last.end == positions.start && *same == kind => last.end = positions.end,
            _ => {
                self.end_gap()?;
                self.gap = Some((positions, kind));
            }
        }
        Ok(())
    }

    fn end_gap(&mut self) -> Result<(), Failure> {
        let Some((Range { start, end }, kind)) = self.gap.take() else { return Ok(()) };
        let why = match &kind {
            Gap::Kind(GapKind::Lost(why)) => Some(why),
            _ => None,
        };
        if self.format == Format::Json {
            let mut value = json!({"gap": kind.name(), "from": start, "to": end});
            if let Some(why) = why {
                value["why"] = Value::from(why.as_str());
            }
            return quiet_pipe(writeln!(self.out, "{value}"));
        }
        let which =
            if end - start == 1 { format!("position {start}") } else { format!("positions {start} to {}", end - 1) };
        match why {
            Some(why) => eprintln!("esker: data loss at {which}: {why}"),
            None => eprintln!("esker: {which}: {}", kind.name()),
        }
        Ok(())
    }

    /// Writes out what is kept back.
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.end_gap()?;
        quiet_pipe(self.out.flush())
    }
}

fn shown(entry: &Entry) -> Value {
    let mut value = json!({
        "position": entry.position,
        "time_ms": entry.time_ms,
        "writer": format!("{:016x}", entry.nonce.writer),
        "number": entry.nonce.number,
        "streams": entry.streams.iter().map(|name| String::from_utf8_lossy(name)).collect::<Vec<_>>(),
    });
    match std::str::from_utf8(&entry.data) {
        Ok(text) => value["data"] = text.into(),
        Err(_) => value["data_base64"] = BASE64.encode(&entry.data).into(),
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(input: &[u8], format: Format) -> Result<Vec<Record>, String> {
        let mut records = Records::new(input, format, 8, vec!["all".into()]);
        let mut found = Vec::new();
        while let Some(record) = records.next().map_err(|failure| failure.to_string())? {
            found.push(record);
        }
        Ok(found)
    }

    #[test]
    fn what_is_written_as_frames_or_json_is_read_as_the_same() {
        let datas: [&[u8]; 4] = [b"", b"a\nb", &[0xff, 0, 0x80], b"12345678"];
        for format in [Format::Frames, Format::Json] {
            let mut out = Vec::new();
            let mut sink = Sink::new(&mut out, format);
            for (position, data) in datas.iter().enumerate() {
                let streams = [Bytes::from("s")].into_iter().collect();
                let (nonce, data) = (Default::default(), Bytes::copy_from_slice(data));
                sink.entry(&Entry { position: position as u64, data, streams, nonce, time_ms: 1 }).unwrap();
            }
            sink.flush().unwrap();
            let found = all(&out, format).unwrap();
            assert_eq!(found.iter().map(|record| &record.data[..]).collect::<Vec<_>>(), datas, "{format:?}");
            let streams: &[Bytes] = if format == Format::Json { &["s".into(), "all".into()] } else { &["all".into()] };
            assert!(found.iter().all(|record| record.streams[..] == *streams), "{format:?}");
        }
    }

    #[test]
    fn input_that_makes_no_sense_is_refused_by_its_number_and_limit() {
        for (input, format, expected) in [
            (
                &b"ok\n123456789\n"[..],
                Format::Lines,
                "entry 2 of stdin: more than 8 bytes exceed the log's entry_bytes_max = 8",
            ),
            (b"123456789", Format::Lines, "entry_bytes_max = 8"),
            (&[0, 0, 0, 9], Format::Frames, "9 bytes exceed the log's entry_bytes_max = 8"),
            (&[0xff; 4], Format::Frames, "4294967295 bytes exceed"),
            (&[0, 0, 0, 2, 7], Format::Frames, "the input ends inside its 2 bytes"),
            (&[0, 0], Format::Frames, "the input ends inside its length"),
            (b"{}", Format::Json, "either data or data_base64"),
            (br#"{"data":"a","data_base64":"YQ=="}"#, Format::Json, "either data or data_base64"),
            (br#"{"data":"123456789"}"#, Format::Json, "9 bytes exceed"),
            (br#"{"data_base64":"?"}"#, Format::Json, "data_base64: "),
            (br#"{"date":"a"}"#, Format::Json, "unknown field `date`"),
            (b"\n", Format::Json, "entry 1 of stdin: EOF"),
        ] {
            let error = all(input, format).unwrap_err();
            assert!(error.contains(expected), "{input:?}: {error}");
        }
        assert_eq!(all(b"12345678\n\nlast", Format::Lines).unwrap().len(), 3);
    }

    #[test]
    fn gaps_that_follow_one_another_are_one() {
        let mut out = Vec::new();
        let mut sink = Sink::new(&mut out, Format::Json);
        let trimmed = || Gap::Kind(GapKind::Trimmed);
        sink.gap(0..4, trimmed()).unwrap();
        sink.gap(4..5, trimmed()).unwrap();
        sink.gap(5..6, Gap::Kind(GapKind::Lost("bits".into()))).unwrap();
        sink.flush().unwrap();
        assert_eq!(sink.lost, 1);
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let expected =
            [json!({"gap": "trimmed", "from": 0, "to": 5}), json!({"gap": "lost", "from": 5, "to": 6, "why": "bits"})];
        assert_eq!(lines, expected);
    }
}
