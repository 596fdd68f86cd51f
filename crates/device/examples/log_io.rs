//! Measures the ways to write and read a log on this machine: the figures of docs/decisions/0001-log-io.md.
//!
//! usage: cargo run --release -p esker-device --example log_io -- [FOLDER] [--runs N] [--only WORD] [--json]
//!
//! for each run: every row once, so that what else the machine does falls on all rows alike → medians, lowest, highest
//!
//! Invariants:
//! 1. At most one file of [`STREAM_BYTES`] exists at a time, in FOLDER (default: the current one), and is removed.
//! 2. Every row writes from, and reads to, memory that is aligned and was touched before the clock starts.
//!
//! io_uring needs unsafe code or another dependency; `scripts/measure-log-io` has its rows, with fio.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, FallocateFlags, OFlags};
use rustix::io::ReadWriteFlags;

const BUFFER_BYTES: usize = 8 << 20;
/// What O_DIRECT asks of memory.
const ALIGNMENT_BYTES: usize = 4096;
const APPEND_BYTES: u64 = 64 << 20;
const STREAM_BYTES: u64 = 512 << 20;
const READ_BYTES: u64 = 256 << 20;
const READ_BLOCK_BYTES: u64 = 4096;
/// A row of appends or reads lasts so long, or until its space is used up.
const ROW_TIME: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Buffered,
    Direct,
    DirectDsync,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    /// Allocated, never written.
    Fresh,
    /// Filled with zeros and synced before.
    Written,
    /// As written, and wholly in the page cache: what buffered streaming costs when its memory is there already.
    Cached,
    /// An empty file that grows.
    Growing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Each write is made durable before the next.
    Append { bytes: usize },
    /// The same past the page cache, with more than one under way.
    Commit { bytes: usize, flight: Flight },
    /// Nothing is synced.
    Stream { bytes: usize },
    /// 4 KiB at random places, one at a time.
    Read { warm: bool },
}

/// How groups of a log are made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flight {
    /// Write, then fdatasync, by so many threads, each at the next place.
    Sync { threads: usize },
    /// One write with RWF_DSYNC, by so many threads, each at the next place.
    Dsync { threads: usize },
    /// One thread writes the next group while another is in fdatasync for the group before.
    WriteBesideSync,
}

struct Row {
    work: Work,
    way: Way,
    space: Space,
    /// Operations per second (MiB per second for streams), one per run.
    rates: Vec<f64>,
    /// Microseconds of this thread's processor time per operation (per MiB for streams), one per run.
    cpu_micros: Vec<f64>,
}

impl Row {
    fn name(&self) -> String {
        let way = match (self.work, self.way) {
            (Work::Append { .. }, Way::Buffered) => "buffered, fdatasync",
            (Work::Append { .. }, Way::Direct) => "O_DIRECT, fdatasync",
            (Work::Append { .. }, Way::DirectDsync) => "O_DIRECT, O_DSYNC",
            (Work::Commit { flight: Flight::Sync { threads: 1 }, .. }, _) => "write, fdatasync",
            (Work::Commit { flight: Flight::Sync { .. }, .. }, _) => "write, fdatasync, two at a time",
            (Work::Commit { flight: Flight::Dsync { threads: 1 }, .. }, _) => "RWF_DSYNC",
            (Work::Commit { flight: Flight::Dsync { .. }, .. }, _) => "RWF_DSYNC, two at a time",
            (Work::Commit { flight: Flight::WriteBesideSync, .. }, _) => "write beside fdatasync",
            (_, Way::Buffered) => "buffered",
            (_, Way::Direct | Way::DirectDsync) => "O_DIRECT",
        };
        match self.work {
            Work::Append { bytes } => format!("append {} KiB: {way}", bytes >> 10),
            Work::Commit { bytes, .. } => format!("commit {} KiB: {way}", bytes >> 10),
            Work::Stream { bytes } => format!("stream {} MiB: {way}", bytes >> 20),
            Work::Read { warm } => {
                let cache = if self.way != Way::Buffered {
                    ""
                } else if warm {
                    ", warm"
                } else {
                    ", cold"
                };
                format!("read 4 KiB at random: {way}{cache}")
            }
        }
    }

    fn space_name(&self) -> &'static str {
        match self.space {
            Space::Fresh => "fresh",
            Space::Written => "written",
            Space::Cached => "cached",
            Space::Growing => "growing",
        }
    }

    fn unit(&self) -> &'static str {
        if matches!(self.work, Work::Stream { .. }) { "MiB/s" } else { "/s" }
    }
}

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |work, way, space| rows.push(Row { work, way, space, rates: vec![], cpu_micros: vec![] });
    for space in [Space::Fresh, Space::Written, Space::Growing] {
        for bytes in [4 << 10, 16 << 10, 64 << 10] {
            for way in [Way::Buffered, Way::Direct, Way::DirectDsync] {
                add(Work::Append { bytes }, way, space);
            }
        }
        for bytes in [1 << 20, 8 << 20] {
            for way in [Way::Buffered, Way::Direct] {
                add(Work::Stream { bytes }, way, space);
            }
        }
    }
    for bytes in [4 << 10, 16 << 10, 64 << 10] {
        for flight in [
            Flight::Sync { threads: 1 },
            Flight::Sync { threads: 2 },
            Flight::WriteBesideSync,
            Flight::Dsync { threads: 1 },
            Flight::Dsync { threads: 2 },
        ] {
            add(Work::Commit { bytes, flight }, Way::Direct, Space::Written);
        }
    }
    add(Work::Stream { bytes: 1 << 20 }, Way::Buffered, Space::Cached);
    add(Work::Read { warm: true }, Way::Buffered, Space::Written);
    add(Work::Read { warm: false }, Way::Buffered, Space::Written);
    add(Work::Read { warm: false }, Way::Direct, Space::Written);
    rows
}

/// Processor time of this thread.
fn cpu_time() -> io::Result<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanos = text.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Ok(Duration::from_nanos(nanos.unwrap_or(0)))
}

fn open(path: &Path, way: Way) -> io::Result<File> {
    let flags = match way {
        Way::Buffered => OFlags::empty(),
        Way::Direct => OFlags::DIRECT,
        Way::DirectDsync => OFlags::DIRECT | OFlags::DSYNC,
    };
    OpenOptions::new().read(true).write(true).create(true).truncate(false).custom_flags(flags.bits() as i32).open(path)
}

/// Makes the file that a row works on; nothing of it is left to be written out, nothing is in the page cache.
fn lay_out(path: &Path, space: Space, len: u64, buffer: &[u8]) -> io::Result<()> {
    let file = open(path, Way::Direct)?;
    if space != Space::Growing {
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len)?;
    }
    if matches!(space, Space::Written | Space::Cached) {
        for at in (0..len).step_by(BUFFER_BYTES) {
            file.write_all_at(&buffer[..(len - at).min(BUFFER_BYTES as u64) as usize], at)?;
        }
    }
    file.sync_all()
}

fn measure(path: &Path, row: &mut Row, buffer: &mut [u8], rng: &mut fastrand::Rng) -> io::Result<()> {
    let len = match row.work {
        Work::Append { .. } | Work::Commit { .. } => APPEND_BYTES,
        Work::Stream { .. } => STREAM_BYTES,
        Work::Read { .. } => READ_BYTES,
    };
    lay_out(path, row.space, len, buffer)?;
    let file = open(path, row.way)?;
    if row.work == (Work::Read { warm: true }) || row.space == Space::Cached {
        for at in (0..len).step_by(BUFFER_BYTES) {
            file.read_exact_at(buffer, at)?;
        }
    } else if matches!(row.work, Work::Read { .. }) {
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
        rustix::fs::fadvise(&file, 0, None, Advice::Random)?;
    }
    let (began, cpu_began) = (Instant::now(), cpu_time()?);
    let (mut at, mut count, mut others) = (0, 0u64, Duration::ZERO);
    match row.work {
        Work::Append { bytes } => {
            while at < len && began.elapsed() < ROW_TIME {
                file.write_all_at(&buffer[..bytes], at)?;
                if row.way != Way::DirectDsync {
                    file.sync_data()?;
                }
                at += bytes as u64;
                count += 1;
            }
        }
        Work::Commit { bytes, flight } => {
            (count, others) = commit(&file, flight, &buffer[..bytes], len)?;
        }
        Work::Stream { bytes } => {
            while at < len {
                file.write_all_at(&buffer[..bytes], at)?;
                at += bytes as u64;
            }
            count = len >> 20;
        }
        Work::Read { .. } => {
            while began.elapsed() < ROW_TIME {
                let place = rng.u64(0..len / READ_BLOCK_BYTES) * READ_BLOCK_BYTES;
                file.read_exact_at(&mut buffer[..READ_BLOCK_BYTES as usize], place)?;
                count += 1;
            }
        }
    }
    let (took, cpu) = (began.elapsed(), cpu_time()?.saturating_sub(cpu_began) + others);
    row.rates.push(count as f64 / took.as_secs_f64());
    row.cpu_micros.push(cpu.as_secs_f64() * 1e6 / count as f64);
    Ok(())
}

/// Groups that were made durable in [`ROW_TIME`], or until `len` bytes are used up, and the processor time of threads
/// beside the caller's.
fn commit(file: &File, flight: Flight, group: &[u8], len: u64) -> io::Result<(u64, Duration)> {
    let bytes = group.len() as u64;
    let (began, given) = (Instant::now(), AtomicU64::new(0));
    let next = || {
        let at = given.fetch_add(bytes, Ordering::Relaxed);
        (at + bytes <= len && began.elapsed() < ROW_TIME).then_some(at)
    };
    let one_after_the_other = || -> io::Result<(u64, Duration)> {
        let (cpu_began, mut count) = (cpu_time()?, 0);
        while let Some(at) = next() {
            if matches!(flight, Flight::Dsync { .. }) {
                let written = rustix::io::pwritev2(file, &[io::IoSlice::new(group)], at, ReadWriteFlags::DSYNC)?;
                if written < group.len() {
                    return Err(io::ErrorKind::WriteZero.into());
                }
            } else {
                file.write_all_at(group, at)?;
                file.sync_data()?;
            }
            count += 1;
        }
        Ok((count, cpu_time()?.saturating_sub(cpu_began)))
    };
    let ended = |thread: std::thread::ScopedJoinHandle<'_, io::Result<(u64, Duration)>>| {
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
    };
    std::thread::scope(|scope| match flight {
        Flight::Sync { threads } | Flight::Dsync { threads } => {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(one_after_the_other)).collect();
            let (mut count, mut cpu) = (one_after_the_other()?.0, Duration::ZERO);
            for other in others {
                let (its_count, its_cpu) = ended(other)?;
                (count, cpu) = (count + its_count, cpu + its_cpu);
            }
            Ok((count, cpu))
        }
        Flight::WriteBesideSync => {
            let (written, to_sync) = mpsc::channel();
            let (synced, is_synced) = mpsc::channel();
            let syncing = scope.spawn(move || {
                let cpu_began = cpu_time()?;
                while to_sync.recv().is_ok() {
                    file.sync_data()?;
                    // The writer may have failed.
                    let _ = synced.send(());
                }
                Ok((0, cpu_time()?.saturating_sub(cpu_began)))
            });
            let (mut count, mut under_way) = (0, false);
            while let Some(at) = next() {
                file.write_all_at(group, at)?;
                if under_way && is_synced.recv().is_err() {
                    break;
                }
                under_way = written.send(()).is_ok();
                count += 1;
            }
            // The last sync ends with its thread.
            drop(written);
            Ok((count, ended(syncing)?.1))
        }
    })
}

/// Lowest, median and highest.
fn spread(values: &[f64]) -> (f64, f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    (sorted[0], sorted[sorted.len() / 2], sorted[sorted.len() - 1])
}

fn print_json(rows: &[Row]) {
    println!("[");
    for (number, row) in rows.iter().enumerate() {
        let ((lowest, median, highest), (_, cpu, _)) = (spread(&row.rates), spread(&row.cpu_micros));
        println!(
            "  {{\"name\": \"{}\", \"space\": \"{}\", \"unit\": \"{}\", \"median\": {median:.1}, \"lowest\": {lowest:.1}, \
             \"highest\": {highest:.1}, \"cpu_micros\": {cpu:.2}, \"runs\": {}}}{}",
            row.name(),
            row.space_name(),
            row.unit(),
            row.rates.len(),
            if number + 1 < rows.len() { "," } else { "" }
        );
    }
    println!("]");
}

fn print_table(rows: &[Row]) {
    println!("{:<42} {:<8} {:>9} {:>9} {:>9} {:<6} {:>8}", "", "space", "median", "lowest", "highest", "", "cpu µs");
    for row in rows {
        let ((lowest, median, highest), (_, cpu, _)) = (spread(&row.rates), spread(&row.cpu_micros));
        let (name, space, unit) = (row.name(), row.space_name(), row.unit());
        println!("{name:<42} {space:<8} {median:>9.0} {lowest:>9.0} {highest:>9.0} {unit:<6} {cpu:>8.1}");
    }
    println!("cpu µs: processor time of the writing or reading thread per operation, per MiB for streams.");
}

/// Removes the file whatever happens.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let (mut folder, mut runs, mut only, mut json) = (PathBuf::from("."), 5usize, String::new(), false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--json" => json = true,
            "--runs" => runs = arguments.next().ok_or("--runs needs a number")?.parse()?,
            "--only" => only = arguments.next().ok_or("--only needs a word of the rows' names")?,
            option if option.starts_with('-') => return Err(format!("unknown option {option}").into()),
            path => folder = path.into(),
        }
    }
    if runs == 0 {
        return Err("--runs must be at least 1".into());
    }
    let mut rng = fastrand::Rng::with_seed(1);
    let mut memory = vec![0; BUFFER_BYTES + ALIGNMENT_BYTES];
    let start = memory.as_ptr().align_offset(ALIGNMENT_BYTES);
    let buffer = &mut memory[start..start + BUFFER_BYTES];
    rng.fill(buffer);
    let path = folder.join(format!("log_io.{}.tmp", std::process::id()));
    let mut rows = rows();
    rows.retain(|row| row.name().contains(&only));
    for run in 0..runs {
        for row in &mut rows {
            let removed = Removed(path.clone());
            measure(&path, row, buffer, &mut rng).map_err(|error| format!("{}: {error}", row.name()))?;
            drop(removed);
        }
        eprintln!("run {} of {runs}", run + 1);
    }
    if json {
        print_json(&rows)
    } else {
        print_table(&rows)
    }
    Ok(())
}
