//! The parts of `esker bench log` with processes of their own: positions over the network, and taking over from a
//! sequencer that is killed.
//!
//! this binary as `esker serve --grpc-objects` → its store by `grpc://` → this binary as `esker log sequencer`, once or
//! twice → asked, or killed
//!
//! Invariant: processes that were started here end with the part, however it ends, and before the place of their store
//! goes.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use esker::log::{Connect, Log, Sequencer};
use esker::remote;
use hdrhistogram::Histogram;
use serde_json::Value;

use super::{LogBench, row};
use crate::bench::objects::outcome::Table;
use crate::bench::objects::target::{Place, Target};
use crate::commands::builder;
use crate::config::Settings;
use crate::exit::{Code, Failure};

/// Processes answer within this.
const LATE: Duration = Duration::from_secs(60);
/// Callers that wait for one position each, and the connections that they share.
const CALLERS: [(usize, usize); 5] = [(1, 1), (16, 1), (64, 1), (256, 1), (256, 4)];
/// The lease that `esker log sequencer` has by default, and time for one that was begun to stand by.
const LEASE: Duration = Duration::from_millis(500);

/// A process of this binary, and what it prints, with the time.
struct Process {
    child: Child,
    lines: Receiver<(Instant, String)>,
}

impl Process {
    fn start(arguments: &[&str]) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.args(["--log", "error"]).args(arguments).stdout(Stdio::piped()).spawn()?;
        let printed = child.stdout.take().map(BufReader::new);
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in printed.into_iter().flat_map(BufRead::lines).map_while(Result::ok) {
                // Who does not listen any more is not told; the pipe is still read.
                let _ = sender.send((Instant::now(), line));
            }
        });
        Ok(Self { child, lines })
    }

    /// The first word behind `prefix` in the next line that begins so, and when it came.
    fn says(&self, prefix: &str) -> Result<(Instant, String), Failure> {
        let began = Instant::now();
        loop {
            let left = LATE.saturating_sub(began.elapsed());
            let (at, line) = self
                .lines
                .recv_timeout(left)
                .map_err(|_| Failure::new(Code::Failure, format!("a process ended before it said {prefix:?}")))?;
            if let Some(rest) = line.strip_prefix(prefix) {
                return Ok((at, rest.split_whitespace().next().unwrap_or_default().to_owned()));
            }
        }
    }

    fn kill(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A server with a log, and a client of its store. What ends first stands first.
struct Served {
    log: Log,
    _store: esker::Store,
    location: String,
    _server: Process,
    _place: Place,
}

impl LogBench {
    fn serve(&self, target: &Target, name: &str, settings: &Settings) -> Result<Served, Failure> {
        let place = target.place(name)?;
        let served = ["--grpc", "127.0.0.1:0", "--grpc-objects"];
        let arguments = [&["serve", "--listen", "127.0.0.1:0", "--store", &place.location], &served[..]].concat();
        let server = Process::start(&arguments)?;
        let (_, location) = server.says("grpc       ")?;
        let store = builder(settings).open(&location)?;
        let layout = self.layouts.last().copied().unwrap_or_default();
        let log = store.logs()?.create("bench", self.options(layout, 0))?;
        Ok(Served { log, _store: store, location, _server: server, _place: place })
    }

    /// Positions that a sequencer process hands out, to callers of one process that share connections.
    pub(super) fn network(&self, targets: &[Target], settings: &Settings) -> Result<Table, Failure> {
        let mut rows = Vec::new();
        for (number, target) in targets.iter().enumerate() {
            let served = self.serve(target, &self.name("network", number), settings)?;
            let sequencer = sequencer(&served)?;
            let (_, address) = sequencer.says("sequencer  ")?;
            sequencer.says("leading    ")?;
            let (log, epoch) = (served.log.id(), served.log.refresh()?.epoch);
            let connect = remote::Sequencers::new(remote::Options::default(), LATE);
            for (callers, connections) in CALLERS {
                let connected = (0..connections).map(|_| connect.connect(&address)).collect::<Result<Vec<_>, _>>()?;
                let (rate, times) = self.ask(&connected, callers, log, epoch)?;
                let micros = |quantile| Value::from(times.value_at_quantile(quantile) as f64 / 1e3);
                let figures = [rate.round().into(), micros(0.5), micros(0.99)];
                rows.push(row(&target.label, [callers.into(), connections.into()].into_iter().chain(figures)));
            }
        }
        Ok(Table {
            title:
                "positions that a process `esker log sequencer` hands out over loopback, one at a time for each caller"
                    .into(),
            columns: ["backend", "callers", "connections", "positions/s", "p50 µs", "p99 µs"]
                .map(str::to_owned)
                .to_vec(),
            rows,
        })
    }

    /// Positions per second, and the time that each took in nanoseconds.
    fn ask(
        &self,
        connected: &[std::sync::Arc<dyn Sequencer>],
        callers: usize,
        log: u64,
        epoch: u64,
    ) -> Result<(f64, Histogram<u64>), Failure> {
        let histogram = || {
            Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)
                .map_err(|error| Failure::new(Code::Failure, error.to_string()))
        };
        // Connects.
        for sequencer in connected {
            sequencer.next(log, epoch, 1, None)?;
        }
        let began = Instant::now();
        let end = Duration::from_secs_f64(self.seconds);
        let asked: Vec<Result<Histogram<u64>, Failure>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..callers)
                .map(|caller| {
                    scope.spawn(move || {
                        let (sequencer, mut times) = (&connected[caller % connected.len()], histogram()?);
                        while began.elapsed() < end {
                            let asked = Instant::now();
                            sequencer.next(log, epoch, 1, None)?;
                            times.saturating_record(asked.elapsed().as_nanos() as u64);
                        }
                        Ok(times)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("a bench thread does not panic")).collect()
        });
        let ran = began.elapsed().as_secs_f64();
        let mut all = histogram()?;
        for times in asked {
            // Adding histograms of equal bounds cannot fail.
            let _ = all.add(&times?);
        }
        Ok((all.len() as f64 / ran, all))
    }

    /// From the kill of a sequencer to the next one's lead, and to the first append.
    pub(super) fn death(&self, targets: &[Target], settings: &Settings) -> Result<Table, Failure> {
        let mut rows = Vec::new();
        for (number, target) in targets.iter().enumerate() {
            let served = self.serve(target, &self.name("death", number), settings)?;
            let mut leader = sequencer(&served)?;
            leader.says("leading    ")?;
            let (mut led, mut appended) = (Vec::new(), Vec::new());
            for _ in 0..self.deaths {
                let standby = sequencer(&served)?;
                standby.says("sequencer  ")?;
                // So that it has found the other alive.
                std::thread::sleep(LEASE);
                served.log.append("before")?.wait()?;
                let killed = Instant::now();
                leader.kill();
                served.log.append("after")?.wait()?;
                appended.push(killed.elapsed());
                let (at, _) = standby.says("leading    ")?;
                led.push(at.saturating_duration_since(killed));
                leader = standby;
            }
            led.sort_unstable();
            appended.sort_unstable();
            let millis = |times: &[Duration], at: usize| Value::from(times[at].as_secs_f64() * 1e3);
            let (middle, last) = (self.deaths / 2, self.deaths - 1);
            rows.push(row(
                &target.label,
                [
                    self.deaths.into(),
                    millis(&led, middle),
                    millis(&led, last),
                    millis(&appended, middle),
                    millis(&appended, last),
                ],
            ));
        }
        Ok(Table {
            title: format!(
                "a sequencer process is killed while another stands by, lease {} ms: until that leads, and until an append over the network that was begun then is durable",
                LEASE.as_millis()
            ),
            columns: ["backend", "deaths", "leads p50 ms", "longest ms", "append p50 ms", "longest ms"]
                .map(str::to_owned)
                .to_vec(),
            rows,
        })
    }
}

fn sequencer(served: &Served) -> Result<Process, Failure> {
    Process::start(&["log", "sequencer", "--store", &served.location, "--listen", "127.0.0.1:0", "bench"])
}
