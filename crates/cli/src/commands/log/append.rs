//! `esker log append`: stdin into the log.
//!
//! thread: stdin → chunks of what is at hand → appends, many under way at once → durable, in order → positions
//!
//! Invariants:
//! 1. An entry that was read is appended at once: what waits is its durability, so that one sync serves many.
//! 2. The command succeeds only when every entry is durable; else it says how many are.

use std::collections::VecDeque;
use std::io::{BufWriter, Write};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

use clap::Args;
use esker::log::{BATCH_MAX, Completion, Log, Record, Writer};
use esker::{Bytes, Durability};
use serde_json::json;

use super::context::Context;
use super::wire::{Format, Records};
use crate::commands::quiet_pipe;
use crate::exit::{Code, Failure};
use crate::progress;

/// Bytes of entries that are under way at once, at most.
const UNDER_WAY_BYTES_MAX: usize = 64 << 20;
/// Bytes of a chunk of input, but for an entry that is larger by itself.
const CHUNK_BYTES: usize = 1 << 20;

/// The arguments of `esker log append`.
#[derive(Args)]
#[command(after_help = "Without --format json every line is an entry. Entries are durable when the command ends; \
with --positions each is when its position is printed.")]
pub struct Append {
    /// The log
    #[arg(value_name = "LOG")]
    name: String,
    /// How entries stand in stdin
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// A stream that all entries belong to; may be given more than once
    #[arg(long, value_name = "NAME")]
    stream: Vec<String>,
    /// Append only if the tail is here: the entries then stand at this position and those after it
    #[arg(long, value_name = "POSITION", conflicts_with = "writer")]
    expected: Option<u64>,
    /// Append as this writer, whose entries are numbered: each number is in the log once, whatever is repeated
    #[arg(long, value_name = "NAME")]
    writer: Option<String>,
    /// Number of the first entry of stdin; what is in the log already is not written again. The writer's next unless
    /// given
    #[arg(long, requires = "writer")]
    number: Option<u64>,
    /// Print the position of every entry, in order, each when it is durable
    #[arg(long)]
    positions: bool,
    /// Entries that go into one transaction, if that many are at hand: all of them or none
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=BATCH_MAX as u64))]
    batch: u64,
    /// Entries under way at once
    #[arg(long, default_value_t = 4_096, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    in_flight: u64,
}

/// Entries that are applied and wait to be durable: the first position, and whether they were written now.
struct UnderWay {
    done: Completion<(u64, bool)>,
    count: u64,
    bytes: usize,
}

#[derive(Default)]
struct Told {
    entries: u64,
    bytes: u64,
    /// In the log already, by writer and number.
    repeated: u64,
    first: Option<u64>,
    last: Option<u64>,
}

struct Pipeline<'a, W: Write> {
    append: &'a Append,
    log: &'a Log,
    writer: Option<Writer>,
    number: u64,
    expected: Option<u64>,
    under_way: VecDeque<UnderWay>,
    entries: u64,
    bytes: usize,
    told: Told,
    out: W,
    json: bool,
}

impl Append {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let log = context.log(&self.name)?;
        let writer = self.writer.as_deref().map(|name| log.writer(name)).transpose()?;
        let next = writer.as_ref().map_or(0, Writer::next_number);
        let number = self.number.unwrap_or(next);
        if number > next {
            return Err(Failure::usage(format!("--number {number}: the writer's next number is {next}")));
        }
        let alone = self.writer.is_some()
            || log.options().width > 1 && !context.store.objects().capability().atomic_across_objects;
        let batch = if alone { 1 } else { self.batch as usize };
        let streams = self.stream.iter().map(|name| Bytes::from(name.clone())).collect();
        let records = Records::new(std::io::stdin(), self.format, log.options().entry_bytes_max, streams);
        let (sender, chunks) = sync_channel(2);
        // Not waited for: it may be inside a read of stdin that never returns.
        std::thread::Builder::new().name("esker-stdin".into()).spawn(move || {
            read(records, batch, |chunk| sender.send(chunk).is_ok());
        })?;
        let mut pipeline = Pipeline {
            append: &self,
            log: &log,
            writer,
            number,
            expected: self.expected,
            under_way: VecDeque::new(),
            entries: 0,
            bytes: 0,
            told: Told::default(),
            out: BufWriter::new(std::io::stdout().lock()),
            json: context.json,
        };
        let bar = progress::spinner("appending");
        let result = pipeline.run(&chunks, &bar);
        bar.finish_and_clear();
        let Pipeline { told, mut out, .. } = pipeline;
        quiet_pipe(out.flush())?;
        drop(out);
        let Told { entries, bytes, repeated, first, last } = told;
        if let Err(failure) = result {
            return Err(Failure::new(
                failure.code(),
                format!("{failure} ({entries} entries before it are in the log)"),
            ));
        }
        let value = json!({"entries": entries, "bytes": bytes, "repeated": repeated, "first": first, "last": last});
        let mut text = format!("{entries} entries");
        if let (Some(first), Some(last)) = (first, last) {
            text += &format!(" at positions {first} to {last}");
        }
        if repeated > 0 {
            text += &format!(", {repeated} of them before");
        }
        if context.json {
            return crate::commands::print(&format!("{value}\n"));
        }
        eprintln!("{text}");
        Ok(())
    }
}

/// Hands on what is read, in chunks that never wait for input.
fn read<R: std::io::Read>(
    mut records: Records<R>,
    batch: usize,
    mut hand_on: impl FnMut(Result<Vec<Record>, Failure>) -> bool,
) {
    let (mut chunk, mut bytes): (Vec<Record>, usize) = (Vec::new(), 0);
    loop {
        let next = records.next();
        // A large entry goes alone: the store may have no room for others beside it in one transaction.
        let more = matches!(&next, Ok(Some(record)) if chunk.len() < batch && bytes + record.data.len() <= CHUNK_BYTES);
        if !chunk.is_empty() && !more {
            bytes = 0;
            if !hand_on(Ok(std::mem::take(&mut chunk))) {
                return;
            }
        }
        match next {
            Ok(Some(record)) => {
                bytes += record.data.len();
                chunk.push(record);
            }
            Ok(None) => return,
            Err(failure) => {
                hand_on(Err(failure));
                return;
            }
        }
        if !records.at_hand() {
            bytes = 0;
            if !hand_on(Ok(std::mem::take(&mut chunk))) {
                return;
            }
        }
    }
}

impl<W: Write> Pipeline<'_, W> {
    fn run(
        &mut self,
        chunks: &Receiver<Result<Vec<Record>, Failure>>,
        bar: &indicatif::ProgressBar,
    ) -> Result<(), Failure> {
        let result = self.feed(chunks, bar);
        // What is under way counts whatever came after it.
        while !self.under_way.is_empty() {
            self.settle()?;
        }
        result
    }

    fn feed(
        &mut self,
        chunks: &Receiver<Result<Vec<Record>, Failure>>,
        bar: &indicatif::ProgressBar,
    ) -> Result<(), Failure> {
        loop {
            let chunk = match chunks.try_recv() {
                Ok(chunk) => chunk?,
                Err(TryRecvError::Disconnected) => return Ok(()),
                Err(TryRecvError::Empty) if !self.under_way.is_empty() => {
                    self.settle()?;
                    continue;
                }
                Err(TryRecvError::Empty) => {
                    quiet_pipe(self.out.flush())?;
                    match chunks.recv() {
                        Ok(chunk) => chunk?,
                        Err(_) => return Ok(()),
                    }
                }
            };
            bar.inc(chunk.len() as u64);
            self.append(chunk)?;
            while self.entries >= self.append.in_flight || self.bytes >= UNDER_WAY_BYTES_MAX {
                self.settle()?;
            }
        }
    }

    fn append(&mut self, chunk: Vec<Record>) -> Result<(), Failure> {
        let count = chunk.len() as u64;
        let bytes = chunk.iter().map(|record| record.data.len()).sum();
        let done = match (&self.writer, self.expected) {
            (Some(writer), _) => {
                let record = chunk.into_iter().next().ok_or_else(|| Failure::new(Code::Failure, "an empty chunk"))?;
                self.number += 1;
                writer.append(self.number - 1, record)?
            }
            (None, Some(expected)) => {
                self.expected = Some(expected + count);
                self.log.append_at(expected, &chunk)?.map(|position| (position, true))
            }
            (None, None) => self.log.append_with(&chunk, Durability::Durable)?.map(|position| (position, true)),
        };
        self.entries += count;
        self.bytes += bytes;
        self.under_way.push_back(UnderWay { done, count, bytes });
        Ok(())
    }

    /// Waits for the oldest.
    fn settle(&mut self) -> Result<(), Failure> {
        let Some(UnderWay { done, count, bytes }) = self.under_way.pop_front() else { return Ok(()) };
        self.entries -= count;
        self.bytes -= bytes;
        let (position, now) = done.wait()?;
        let told = &mut self.told;
        told.entries += count;
        told.bytes += bytes as u64;
        told.repeated += if now { 0 } else { count };
        told.first.get_or_insert(position);
        told.last = Some(position + count - 1);
        if self.append.positions {
            for position in position..position + count {
                quiet_pipe(match self.json {
                    true => writeln!(self.out, "{}", json!({"position": position, "written": now})),
                    false => writeln!(self.out, "{position}"),
                })?;
            }
        }
        Ok(())
    }
}
