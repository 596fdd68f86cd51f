//! One peer with so many writers: they append in a closed loop, one follower reads along.
//!
//! writers connect → warm up → measured → stop → the follower has everything → [`Figures`]
//!
//! An entry begins with the time of its append's call, so that the follower knows how long it was on its way. Only entries whose call came in
//! the measured time count.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::target::{Log, Peer};

/// The follower has everything within this, after the last append.
const LATE: Duration = Duration::from_secs(30);

/// What is done.
#[derive(Clone, Copy)]
pub struct Work {
    /// Writers.
    pub writers: u64,
    /// Bytes of an entry.
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
}

fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 600_000_000_000, 3)?)
}

/// The entry of one append: the time of the call in nanoseconds since `began`, then what does not compress.
fn entry(noise: &Bytes, began: Instant, bytes: usize, number: u64) -> Bytes {
    let mut data = Vec::with_capacity(bytes);
    data.extend_from_slice(&(began.elapsed().as_nanos() as u64).to_le_bytes());
    let left = bytes - data.len();
    let at = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as usize % (noise.len() - left);
    data.extend_from_slice(&noise[at..at + left]);
    data.into()
}

/// Measures a peer whose server has just begun.
///
/// # Errors
/// What the peer says; that the follower was not handed everything.
pub async fn measure(peer: Peer, address: SocketAddr, work: Work) -> Result<Figures> {
    let log = Log::open(peer, address, work.writers).await?;
    let mut follower = log.follower().await?;
    let began = Instant::now();
    let mut noise = vec![0; (4 << 20) + work.entry_bytes];
    fastrand::Rng::with_seed(1).fill(&mut noise);
    let noise = Bytes::from(noise);
    let counted = work.warm_up.as_nanos() as u64..(work.warm_up + work.time).as_nanos() as u64;
    let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut writers = tokio::task::JoinSet::new();
    for number in 0..work.writers {
        let mut writer = log.writer(number).await?;
        let (noise, stop, acknowledged) = (noise.clone(), Arc::clone(&stop), Arc::clone(&acknowledged));
        let counted = counted.clone();
        writers.spawn(async move {
            let mut times = histogram()?;
            let mut next = number << 40;
            while !stop.load(Ordering::Relaxed) {
                next += 1;
                let data = entry(&noise, began, work.entry_bytes, next);
                let called = began.elapsed().as_nanos() as u64;
                writer.append(data).await?;
                acknowledged.fetch_add(1, Ordering::SeqCst);
                let ended = began.elapsed().as_nanos() as u64;
                if counted.contains(&called) && counted.contains(&ended) {
                    times.saturating_record(ended - called);
                }
            }
            Ok::<_, anyhow::Error>(times)
        });
    }
    let (all, ended) = (Arc::clone(&acknowledged), Arc::clone(&stop));
    let following = tokio::spawn(async move {
        let (mut times, mut handed, mut entries) = (histogram()?, 0u64, Vec::new());
        let mut over: Option<Instant> = None;
        loop {
            if ended.load(Ordering::SeqCst) && handed >= all.load(Ordering::SeqCst) {
                return Ok::<_, anyhow::Error>(times);
            }
            if ended.load(Ordering::SeqCst) && over.get_or_insert_with(Instant::now).elapsed() > LATE {
                bail!("the follower was handed {handed} entries of {}", all.load(Ordering::SeqCst));
            }
            match tokio::time::timeout(Duration::from_millis(100), follower.next(&mut entries)).await {
                Ok(came) => came?,
                // Nothing more comes, perhaps.
                Err(_) if ended.load(Ordering::SeqCst) => {}
                Err(_) => continue,
            }
            let now = began.elapsed().as_nanos() as u64;
            for data in entries.drain(..) {
                let called = u64::from_le_bytes(*data.first_chunk().context("a short entry")?);
                handed += 1;
                if counted.contains(&called) {
                    times.saturating_record(now - called);
                }
            }
        }
    });
    tokio::time::sleep(work.warm_up + work.time).await;
    stop.store(true, Ordering::SeqCst);
    let mut appends = histogram()?;
    while let Some(times) = writers.join_next().await {
        appends.add(times??)?;
    }
    let follows = following.await??;
    let micros = |times: &Histogram<u64>, quantile| times.value_at_quantile(quantile) as f64 / 1e3;
    Ok(Figures {
        rate: appends.len() as f64 / work.time.as_secs_f64(),
        append_p50_us: micros(&appends, 0.5),
        append_p99_us: micros(&appends, 0.99),
        follow_p50_us: micros(&follows, 0.5),
        follow_p99_us: micros(&follows, 0.99),
    })
}
