//! The parts of `esker bench log` besides appending: positions handed out, taking over, opening, trimming.
//!
//! Invariant: each part has a fresh store per backend, which is removed whatever happens.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use esker::log::{Found, Layout, Log, Logs};
use serde_json::Value;

use super::{LogBench, fill, row};
use crate::bench::objects::load::Contents;
use crate::bench::objects::outcome::Table;
use crate::bench::objects::target::{Opened, Target};
use crate::config::Settings;
use crate::exit::{Code, Failure};

/// Bytes of an entry of the log that is opened.
const OPEN_ENTRY_BYTES: u64 = 100;
/// Bytes of an entry that is trimmed.
const TRIM_ENTRY_BYTES: u64 = 32 << 10;
/// How often the log is taken over.
const TAKEOVERS: usize = 50;
/// Threads that ask for positions.
const TOKEN_THREADS: [u64; 4] = [1, 2, 4, 8];

impl LogBench {
    /// The layout that parts beside appending use: the last of those asked for that the backend is best at, or the
    /// last.
    fn layout(&self, opened: &Opened) -> Layout {
        let best = Layout::best_for(&opened.objects.capability());
        if self.layouts.contains(&best) { best } else { self.layouts.last().copied().unwrap_or(best) }
    }

    /// Runs `part` on a fresh store of each target.
    fn each(
        &self,
        targets: &[Target],
        settings: &Settings,
        name: &str,
        mut part: impl FnMut(&Target, Opened) -> Result<(Opened, Vec<Vec<Value>>), (Option<Opened>, Failure)>,
    ) -> Result<Vec<Vec<Value>>, Failure> {
        let mut rows = Vec::new();
        for (number, target) in targets.iter().enumerate() {
            let opened = target.fresh(&self.name(name, number), settings)?;
            match part(target, opened) {
                Ok((opened, found)) => {
                    rows.extend(found);
                    opened.remove()?;
                }
                Err((opened, failure)) => {
                    // The first failure is the one to tell.
                    let _ = opened.map(Opened::remove);
                    return Err(failure);
                }
            }
        }
        Ok(rows)
    }

    /// As [`LogBench::each`], for parts that keep the store open.
    fn each_open(
        &self,
        targets: &[Target],
        settings: &Settings,
        name: &str,
        mut part: impl FnMut(&Target, &Opened) -> Result<Vec<Vec<Value>>, Failure>,
    ) -> Result<Vec<Vec<Value>>, Failure> {
        self.each(targets, settings, name, |target, opened| match part(target, &opened) {
            Ok(rows) => Ok((opened, rows)),
            Err(failure) => Err((Some(opened), failure)),
        })
    }

    pub(super) fn tokens(&self, targets: &[Target], settings: &Settings) -> Result<Table, Failure> {
        let rows = self.each_open(targets, settings, "tokens", |target, opened| {
            let log = opened.store.logs()?.create("bench", self.options(self.layout(opened), 0))?;
            let leader = log.lead("")?;
            let mut rows = Vec::new();
            for threads in TOKEN_THREADS {
                let end = Duration::from_secs_f64(self.seconds);
                let began = Instant::now();
                let handed: u64 = std::thread::scope(|scope| {
                    let ask = || -> Result<u64, Failure> {
                        let mut handed = 0;
                        while began.elapsed() < end {
                            // The clock is looked at for every thousandth.
                            for _ in 0..1_000 {
                                std::hint::black_box(leader.next(1, None)?);
                            }
                            handed += 1_000;
                        }
                        Ok(handed)
                    };
                    let threads: Vec<_> = (0..threads).map(|_| scope.spawn(ask)).collect();
                    let done = threads.into_iter().map(|thread| thread.join().expect("a bench thread does not panic"));
                    done.sum::<Result<u64, Failure>>()
                })?;
                let rate = handed as f64 / began.elapsed().as_secs_f64();
                rows.push(row(&target.label, [threads.into(), rate.round().into()]));
            }
            Ok(rows)
        })?;
        Ok(Table {
            title: "positions that the sequencer hands out in this process, one at a time".into(),
            columns: ["backend", "threads", "positions/s"].map(str::to_owned).to_vec(),
            rows,
        })
    }

    pub(super) fn takeover(&self, targets: &[Target], settings: &Settings) -> Result<Table, Failure> {
        let rows = self.each_open(targets, settings, "takeover", |target, opened| {
            let (layout, mut rows) = (self.layout(opened), Vec::new());
            for full in [false, true] {
                let name = format!("bench-{full}");
                let log = opened.store.logs()?.create(&name, self.options(layout, 0))?;
                if full {
                    let entries = u64::from(self.slots) * u64::from(self.width) * 3;
                    fill(&log, opened, &"x".into(), entries, "filling stripes")?;
                }
                log.append("one")?.wait()?;
                let (mut sealed, mut written) = (Vec::new(), Vec::new());
                for _ in 0..TAKEOVERS {
                    // A session of its own: another process, as far as the log can tell.
                    let logs = Logs::open(opened.store.objects(), opened.store.log_session(None))?;
                    let other = logs.log(&name)?;
                    let began = Instant::now();
                    other.lead("")?;
                    sealed.push(began.elapsed());
                    other.append("after")?.wait()?;
                    written.push(began.elapsed());
                }
                let state = if full { "3 stripes full" } else { "nearly empty" };
                rows.push(row(
                    &target.label,
                    [
                        state.into(),
                        micros(&mut sealed, 50),
                        micros(&mut sealed, 99),
                        micros(&mut written, 50),
                        micros(&mut written, 99),
                    ],
                ));
            }
            Ok(rows)
        })?;
        Ok(Table {
            title: format!(
                "taking over from another session {TAKEOVERS} times: epoch raised, stripes sealed, tail known; and until the first append is durable"
            ),
            columns: ["backend", "log", "p50 µs", "p99 µs", "append p50 µs", "append p99 µs"]
                .map(str::to_owned)
                .to_vec(),
            rows,
        })
    }

    pub(super) fn opening(&self, targets: &[Target], settings: &Settings) -> Result<Table, Failure> {
        let on_disk: Vec<Target> = targets.iter().filter(|target| target.on_disk()).cloned().collect();
        let count = self.open.0;
        let rows = self.each(&on_disk, settings, "open", |target, opened| {
            let fail = |failure: Failure| (None, failure);
            let filled = (|| -> Result<f64, Failure> {
                let log = opened.store.logs()?.create("bench", self.options(self.layout(&opened), 0))?;
                let data = Contents::new(OPEN_ENTRY_BYTES, self.seed).part(0, OPEN_ENTRY_BYTES);
                let began = Instant::now();
                fill(&log, &opened, &data, count, "filling the log")?;
                Ok(count as f64 / began.elapsed().as_secs_f64())
            })();
            let rate = match filled {
                Ok(rate) => rate,
                Err(failure) => return Err((Some(opened), failure)),
            };
            let began = Instant::now();
            let closed = opened.close().map_err(fail)?;
            let close = began.elapsed();
            let began = Instant::now();
            let opened = target.again(closed, settings).map_err(fail)?;
            let open_store = began.elapsed();
            let found = (|| -> Result<Duration, Failure> {
                let began = Instant::now();
                let log = opened.store.logs()?.log("bench")?;
                let tail = log.tail()?.position;
                let opened_log = began.elapsed();
                if tail != count || !matches!(log.read(count - 1)?.wait()?, Found::Entry(_)) {
                    return Err(Failure::new(Code::Damage, format!("the tail is at {tail}, not at {count}")));
                }
                Ok(opened_log)
            })();
            match found {
                Ok(open_log) => {
                    let ms = |time: Duration| Value::from(time.as_secs_f64() * 1e3);
                    let both = open_store + open_log;
                    let figures =
                        [count.into(), rate.round().into(), ms(close), ms(open_store), ms(open_log), ms(both)];
                    Ok((opened, vec![row(&target.label, figures)]))
                }
                Err(failure) => Err((Some(opened), failure)),
            }
        })?;
        let columns =
            ["backend", "entries", "appended/s", "close ms", "open store ms", "open log and tail ms", "open ms"];
        Ok(Table {
            title: format!(
                "opening a store with a log of entries of {OPEN_ENTRY_BYTES} bytes, appended without waiting and then synced"
            ),
            columns: columns.map(str::to_owned).to_vec(),
            rows,
        })
    }

    pub(super) fn trimming(&self, targets: &[Target], settings: &Settings) -> Result<Table, Failure> {
        let rows = self.each_open(targets, settings, "trim", |target, opened| {
            let log = opened.store.logs()?.create("bench", self.options(self.layout(opened), TRIM_ENTRY_BYTES))?;
            let data = Contents::new(TRIM_ENTRY_BYTES, self.seed).part(0, TRIM_ENTRY_BYTES);
            let to = (self.trim.0 / TRIM_ENTRY_BYTES).max(1);
            fill(&log, opened, &data, to, "filling the log")?;
            let folder = opened.folder();
            let before = Space::of(opened, folder)?;
            let (stop, appended, longest) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
            let (took, rate) = std::thread::scope(|scope| {
                let writers: Vec<_> = (0..self.threads)
                    .map(|_| scope.spawn(|| write_on(&log, &data, &stop, &appended, &longest)))
                    .collect();
                let began = Instant::now();
                let trimmed = log.trim_to(to);
                let took = began.elapsed();
                // Cleaning goes on behind it for a while.
                std::thread::sleep(Duration::from_secs_f64(self.seconds));
                stop.store(true, Ordering::Relaxed);
                let ran = began.elapsed();
                for writer in writers {
                    writer.join().expect("a bench thread does not panic")?;
                }
                trimmed?;
                Ok::<_, Failure>((took, appended.load(Ordering::Relaxed) as f64 / ran.as_secs_f64()))
            })?;
            if opened.store.engine().is_some() {
                opened.store.compact(&mut |_, _| true)?;
            }
            let after = Space::of(opened, folder)?;
            let [before_disk, before_used] = before.megabytes();
            let [after_disk, after_used] = after.megabytes();
            Ok(vec![row(
                &target.label,
                [
                    Value::from(to),
                    (took.as_secs_f64() * 1e3).into(),
                    before_disk,
                    after_disk,
                    before_used,
                    after_used,
                    rate.round().into(),
                    (longest.load(Ordering::Relaxed) as f64 / 1e3).into(),
                ],
            )])
        })?;
        let columns = [
            "backend",
            "positions",
            "trim ms",
            "disk MB before",
            "after",
            "segments in use MB before",
            "after",
            "appends/s meanwhile",
            "longest append ms",
        ];
        Ok(Table {
            title: format!(
                "trimming {} of entries of {TRIM_ENTRY_BYTES} bytes away while {} threads append; space after compacting",
                self.trim, self.threads
            ),
            columns: columns.map(str::to_owned).to_vec(),
            rows,
        })
    }
}

/// Appends until told to stop; counts, and keeps the longest time in microseconds.
fn write_on(
    log: &Log,
    data: &esker::Bytes,
    stop: &AtomicBool,
    appended: &AtomicU64,
    longest: &AtomicU64,
) -> Result<(), Failure> {
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        log.append(data.clone())?.wait()?;
        longest.fetch_max(began.elapsed().as_micros() as u64, Ordering::Relaxed);
        appended.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

fn micros(times: &mut [Duration], percent: usize) -> Value {
    times.sort_unstable();
    let at = (times.len() * percent / 100).min(times.len().saturating_sub(1));
    times.get(at).map_or(Value::Null, |time| Value::from(time.as_secs_f64() * 1e6))
}

/// What a store takes.
struct Space {
    /// Blocks of its files, in bytes.
    disk: Option<u64>,
    /// Segments of the engine that are not free, in bytes.
    used: Option<u64>,
}

impl Space {
    fn of(opened: &Opened, folder: Option<&Path>) -> Result<Self, Failure> {
        let used = opened.store.engine().map(|engine| {
            let stats = engine.stats();
            stats.segments.saturating_sub(stats.free_segments) * stats.segment_bytes
        });
        Ok(Self { disk: folder.map(blocks).transpose()?, used })
    }

    fn megabytes(&self) -> [Value; 2] {
        [self.disk, self.used].map(|bytes| bytes.map_or(Value::Null, |bytes| Value::from(bytes as f64 / 1e6)))
    }
}

/// Bytes that the files below a folder take.
fn blocks(folder: &Path) -> Result<u64, Failure> {
    let mut sum = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => sum += blocks(&entry.path())?,
            Ok(metadata) => sum += metadata.blocks() * 512,
            // Removed since it was listed.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(sum)
}
