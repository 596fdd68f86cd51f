//! Guarded writes of librados that do nothing else: what a log on Ceph is measured beside.
//!
//! `guarded LAYOUT BYTES IN_FLIGHT SECONDS [OBJECTS]`: each operation says that the object's epoch is no newer and that
//! the position is unwritten, and then writes the position: `omap` its bytes under its key, `stream` its bytes behind
//! those before and where they stand under its key. Positions go round OBJECTS objects (default 4). Prints operations
//! per second. CEPH_CONF names the configuration of a cluster with a pool `bench`.

use std::error::Error;
use std::ffi::CString;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use esker_rados::{Cluster, Compare, Pool, Write};

const USAGE: &str = "guarded omap|stream BYTES IN_FLIGHT SECONDS [OBJECTS]";

struct Load {
    pool: Pool,
    in_stream: bool,
    data: Vec<u8>,
    objects: Vec<CString>,
}

impl Load {
    fn operation(&self, position: u64) -> Write {
        let mut write = Write::new();
        write.assert_exists();
        // The argument is on the left.
        write.compare_xattr(c"epoch", Compare::AtLeast, &1u64.to_be_bytes());
        let key = format!("s{:016x}", u64::MAX - position);
        write.compare_omap(key.as_bytes(), Compare::Equal, b"");
        if self.in_stream {
            let offset = position / self.objects.len() as u64 * self.data.len() as u64;
            write.write(offset, &self.data);
            let place = [&offset.to_le_bytes()[..], &(self.data.len() as u32).to_le_bytes(), &[0; 24]].concat();
            write.set_omap(&[(key.as_bytes(), &place)]);
        } else {
            write.set_omap(&[(key.as_bytes(), &self.data)]);
        }
        write
    }

    /// Operations that were done within a time, so many under way.
    fn run(&self, in_flight: u64, time: Duration) -> Result<u64, Box<dyn Error>> {
        let (tell, told) = channel();
        let begin = |position: u64| {
            let tell = tell.clone();
            let object = &self.objects[(position % self.objects.len() as u64) as usize];
            self.pool.write(object, self.operation(position), 0, move |outcome| {
                // The loop below may have failed.
                let _ = tell.send(outcome);
            });
        };
        (0..in_flight).for_each(begin);
        let (began, mut next, mut done) = (Instant::now(), in_flight, 0);
        let mut under_way = in_flight;
        while under_way > 0 {
            told.recv()??;
            if began.elapsed() < time {
                done += 1;
                begin(next);
                next += 1;
            } else {
                under_way -= 1;
            }
        }
        Ok(done)
    }
}

fn wait(pool: &Pool, object: &CString, write: Write) -> Result<(), Box<dyn Error>> {
    let (tell, told) = channel();
    pool.write(object, write, 0, move |outcome| {
        let _ = tell.send(outcome);
    });
    told.recv()??;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (layout, numbers) = arguments.split_first().ok_or(USAGE)?;
    let numbers = numbers.iter().map(|number| number.parse()).collect::<Result<Vec<u64>, _>>()?;
    let (bytes, in_flight, seconds, count) = match numbers[..] {
        [bytes, in_flight, seconds] => (bytes, in_flight, seconds, 4),
        [bytes, in_flight, seconds, count] if count > 0 => (bytes, in_flight, seconds, count),
        _ => return Err(USAGE.into()),
    };
    let in_stream = match layout.as_str() {
        "omap" => false,
        "stream" => true,
        _ => return Err(USAGE.into()),
    };
    let conf = std::env::var_os("CEPH_CONF").ok_or("CEPH_CONF names no cluster")?;
    let cluster = Cluster::connect(None, Some(&PathBuf::from(conf)), &[("rados_osd_op_timeout", "30")])?;
    let pool = cluster.pool("bench", &format!("guarded-{}", std::process::id()))?;
    let objects = (0..count).map(|number| CString::new(format!("object {number}"))).collect::<Result<Vec<_>, _>>()?;
    let load = Load { pool, in_stream, data: vec![7; bytes as usize], objects };
    for object in &load.objects {
        let mut write = Write::new();
        write.create(true);
        write.set_xattr(c"epoch", &1u64.to_be_bytes());
        wait(&load.pool, object, write)?;
    }
    let done = load.run(in_flight, Duration::from_secs(seconds))?;
    println!("{:.1}", done as f64 / seconds as f64);
    for object in &load.objects {
        let mut write = Write::new();
        write.remove();
        wait(&load.pool, object, write)?;
    }
    Ok(())
}
