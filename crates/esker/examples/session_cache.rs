//! A session cache: entries that end by themselves, written without waiting for the disk.
//!
//! `cargo run --example session_cache`
//!
//! Losing the last second of sessions in a power cut costs a few users a login, so the cache asks for
//! `Durability::Applied`. Logging out is different: that write is durable before the user is told.

use std::time::Duration;

use esker::kv::{Entry, Kind, Namespace};
use esker::{Bytes, Durability, Kv, Store};

struct Sessions {
    kv: Kv,
    sessions: Namespace,
    lifetime: Duration,
}

impl Sessions {
    fn open(store: &Store, lifetime: Duration) -> Result<Self, Box<dyn std::error::Error>> {
        let kv = store.kv()?;
        let sessions = kv.namespace("sessions", Kind::Bytes)?;
        Ok(Self { kv, sessions, lifetime })
    }

    fn expires_ms(&self) -> Option<u64> {
        Some(self.kv.clock().now_ms() + self.lifetime.as_millis() as u64)
    }

    fn log_in(&self, token: &str, user: &str) -> Result<(), Box<dyn std::error::Error>> {
        let entry = Entry { value: Bytes::copy_from_slice(user.as_bytes()), expires_ms: self.expires_ms(), tag: 0 };
        Ok(self.sessions.put_with(token, entry, Durability::Applied).wait()?)
    }

    /// The session's user; being asked for keeps the session alive.
    fn user(&self, token: &str) -> Result<Option<Bytes>, Box<dyn std::error::Error>> {
        let user = self.sessions.get(token).wait()?;
        if user.is_some() {
            self.sessions.expire_at(token, self.expires_ms()).wait()?;
        }
        Ok(user)
    }

    fn log_out(&self, token: &str) -> Result<bool, Box<dyn std::error::Error>> {
        Ok(self.sessions.remove(token).wait()?)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let store = Store::open(&path)?;
    let sessions = Sessions::open(&store, Duration::from_millis(200))?;

    sessions.log_in("token-1", "ada")?;
    sessions.log_in("token-2", "grace")?;
    println!("token-1 is {:?}", sessions.user("token-1")?);

    println!("token-2 logs out: {}", sessions.log_out("token-2")?);
    println!("token-2 is {:?}", sessions.user("token-2")?);

    std::thread::sleep(Duration::from_millis(250));
    println!("token-1 after its time is {:?}", sessions.user("token-1")?);

    store.close()?;
    Ok(())
}
