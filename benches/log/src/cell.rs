//! One peer with so many writers: they append in a closed loop, one follower reads along.
//!
//! writers connect → warm up → measured → stop → the follower has everything → [`Figures`]
//!
//! An entry begins with the time of its append's call, its writer and its number there, so that the follower knows how
//! long it was on its way. What ends in the measured time counts: appends by their acknowledgement, the follower's
//! entries by their coming.
//!
//! Invariant: the follower is handed each acknowledged entry once, those of a writer in their order, or the cell fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::sync::oneshot;

use crate::servers::{self, Running};
use crate::target::{Follower, Log, Peer, Writer};

/// The follower has everything within this, after the last append.
const LATE: Duration = Duration::from_secs(30);
/// Bytes of noise that entries are cut from.
const NOISE_BYTES: usize = 4 << 20;
/// Time of the call, writer, number.
const HEADER_BYTES: usize = 20;
/// Shortest entry in bytes: its header, and something behind it.
pub const ENTRY_BYTES_MIN: u64 = HEADER_BYTES as u64 + 4;

/// What is done.
#[derive(Clone, Copy)]
pub struct Work {
    /// Writers.
    pub writers: u32,
    /// Connections that they share, at most.
    pub connections: u32,
    /// Bytes of an entry, at least [`ENTRY_BYTES_MIN`].
    pub entry_bytes: usize,
    /// Before it is measured.
    pub warm_up: Duration,
    /// While it is.
    pub time: Duration,
}

/// What was measured. Times in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figures {
    /// Appends acknowledged per second.
    pub rate: f64,
    /// Call to acknowledgement.
    pub append_p50_us: f64,
    /// 99 of 100 are no longer.
    pub append_p99_us: f64,
    /// Call to the follower's having it.
    pub follow_p50_us: f64,
    /// 99 of 100 are no longer.
    pub follow_p99_us: f64,
    /// Processor time of the server per append.
    pub server_us: f64,
    /// Processor time of all clients, the follower included, per append.
    pub client_us: f64,
}

fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 600_000_000_000, 3)?)
}

/// When everything began, and which part of it counts.
#[derive(Clone, Copy)]
struct Clock {
    began: Instant,
    from: u64,
    to: u64,
}

impl Clock {
    fn new(work: Work) -> Self {
        let (from, to) = (work.warm_up.as_nanos() as u64, (work.warm_up + work.time).as_nanos() as u64);
        Self { began: Instant::now(), from, to }
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Notes what took from `called` until `ended`, if it counts.
    fn note(&self, times: &mut Histogram<u64>, called: u64, ended: u64) {
        if (self.from..self.to).contains(&ended) {
            times.saturating_record(ended.saturating_sub(called));
        }
    }
}

/// Entry `number` of a writer: its header, then what does not compress.
fn entry(noise: &[u8], bytes: usize, called: u64, writer: u32, number: u64) -> Bytes {
    let mut data = Vec::with_capacity(bytes);
    data.extend_from_slice(&called.to_le_bytes());
    data.extend_from_slice(&writer.to_le_bytes());
    data.extend_from_slice(&number.to_le_bytes());
    let left = bytes - data.len();
    let spread = (number ^ u64::from(writer) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    let at = spread as usize % (noise.len() - left);
    data.extend_from_slice(&noise[at..at + left]);
    data.into()
}

/// Time of the call, writer and number of an entry.
fn header(data: &[u8]) -> Option<(u64, u32, u64)> {
    let called = u64::from_le_bytes(*data.first_chunk()?);
    let writer = u32::from_le_bytes(*data.get(8..)?.first_chunk()?);
    let number = u64::from_le_bytes(*data.get(12..)?.first_chunk()?);
    Some((called, writer, number))
}

/// Measures a peer whose server has just begun.
///
/// # Errors
/// What the peer says; that the follower was not handed everything, or something twice.
pub async fn measure(peer: Peer, server: &Running, work: Work) -> Result<Figures> {
    let log = Log::open(peer, server.address, work.connections.min(work.writers)).await?;
    let follower = log.follower().await?;
    let mut writers = Vec::with_capacity(work.writers as usize);
    for number in 0..work.writers {
        writers.push(log.writer(number).await?);
    }
    let mut noise = vec![0; NOISE_BYTES + work.entry_bytes];
    fastrand::Rng::with_seed(1).fill(&mut noise);
    let noise: Arc<[u8]> = noise.into();
    let (stop, clock) = (Arc::new(AtomicBool::new(false)), Clock::new(work));
    let (total, told) = oneshot::channel();
    let following = tokio::spawn(follow(follower, clock, work.writers, told));
    let mut appending = tokio::task::JoinSet::new();
    for (number, writer) in writers.into_iter().enumerate() {
        appending.spawn(append(writer, number as u32, clock, work, Arc::clone(&noise), Arc::clone(&stop)));
    }
    tokio::time::sleep_until((clock.began + work.warm_up).into()).await;
    let before = (server.processor_time()?, servers::own_processor_time()?);
    tokio::time::sleep_until((clock.began + work.warm_up + work.time).into()).await;
    let spent = server.processor_time()?.saturating_sub(before.0);
    let spent_here = servers::own_processor_time()?.saturating_sub(before.1);
    stop.store(true, Ordering::SeqCst);
    let (mut appends, mut acknowledged) = (histogram()?, 0);
    while let Some(done) = appending.join_next().await {
        let (times, count) = done??;
        appends.add(times)?;
        acknowledged += count;
    }
    // Where the follower failed, that is what is told below.
    let _ = total.send(acknowledged);
    let follows = following.await??;
    ensure!(!appends.is_empty(), "nothing was acknowledged in {:?}", work.time);
    let micros = |times: &Histogram<u64>, quantile| times.value_at_quantile(quantile) as f64 / 1e3;
    Ok(Figures {
        rate: appends.len() as f64 / work.time.as_secs_f64(),
        append_p50_us: micros(&appends, 0.5),
        append_p99_us: micros(&appends, 0.99),
        follow_p50_us: micros(&follows, 0.5),
        follow_p99_us: micros(&follows, 0.99),
        server_us: spent.as_secs_f64() * 1e6 / appends.len() as f64,
        client_us: spent_here.as_secs_f64() * 1e6 / appends.len() as f64,
    })
}

/// Appends until told to stop; the times that count, and the number of all entries.
async fn append(
    mut writer: Writer,
    number: u32,
    clock: Clock,
    work: Work,
    noise: Arc<[u8]>,
    stop: Arc<AtomicBool>,
) -> Result<(Histogram<u64>, u64)> {
    let (mut times, mut count) = (histogram()?, 0);
    while !stop.load(Ordering::Relaxed) {
        let called = clock.now();
        writer.append(entry(&noise, work.entry_bytes, called, number, count)).await?;
        clock.note(&mut times, called, clock.now());
        count += 1;
    }
    Ok((times, count))
}

/// Follows until everything has come, once `told` how much that is.
async fn follow(
    mut follower: Follower,
    clock: Clock,
    writers: u32,
    mut told: oneshot::Receiver<u64>,
) -> Result<Histogram<u64>> {
    let (mut times, mut entries) = (histogram()?, Vec::new());
    let mut next = vec![0u64; writers as usize];
    let (mut handed, mut total) = (0u64, None);
    let mut until = tokio::time::Instant::now();
    while total != Some(handed) {
        // Dropping a call in favour of the total loses nothing: what it would have brought the next one brings.
        tokio::select! {
            came = follower.next(&mut entries) => came?,
            all = &mut told, if total.is_none() => {
                total = Some(all.context("the writers failed")?);
                until = tokio::time::Instant::now() + LATE;
            }
            () = tokio::time::sleep_until(until), if total.is_some() => {
                bail!("the follower was handed {handed} entries of {}", total.unwrap_or(0));
            }
        }
        let now = clock.now();
        for data in entries.drain(..) {
            let (called, writer, number) = header(&data).context("a short entry")?;
            let expected = next.get_mut(writer as usize).context("an entry of no known writer")?;
            ensure!(
                number == *expected,
                "the follower was handed entry {number} of writer {writer}, expected {expected}"
            );
            *expected += 1;
            handed += 1;
            clock.note(&mut times, called, now);
        }
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_says_who_wrote_it_and_when() {
        let noise = vec![7; 4_096];
        let data = entry(&noise, 1_024, 123, 9, u64::MAX);
        assert_eq!((data.len(), header(&data)), (1_024, Some((123, 9, u64::MAX))));
        assert_eq!(entry(&noise, ENTRY_BYTES_MIN as usize, 1, 2, 3).len(), ENTRY_BYTES_MIN as usize);
        assert_eq!(header(&data[..19]), None);
    }
}
