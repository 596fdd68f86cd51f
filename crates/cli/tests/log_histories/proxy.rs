//! A network that can be cut: connections go through a port of the test, which stops forwarding one way or both.
//!
//! client → [`Proxy`] → target · cut: what is under way is held, new connections are taken and held too · healed: it
//! goes on, late, or is reset
//!
//! Invariant: bytes of a connection come in order and unchanged, or not at all.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const CONNECT: Duration = Duration::from_secs(1);

/// The way from the client to the target, and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    To,
    From,
}

#[derive(Default)]
struct State {
    target: Option<SocketAddr>,
    cut: [bool; 2],
    open: Vec<TcpStream>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// A port that forwards. It does so until the process ends.
#[derive(Clone)]
pub struct Proxy {
    /// Where it is reached.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

impl Proxy {
    pub fn new(target: Option<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        shared.state.lock().unwrap().target = target;
        let proxy = Self { address, shared };
        let accepting = proxy.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let proxy = accepting.clone();
                std::thread::spawn(move || proxy.forward(client));
            }
        });
        proxy
    }

    /// Where new connections lead to.
    pub fn lead_to(&self, target: SocketAddr) {
        self.shared.state.lock().unwrap().target = Some(target);
    }

    /// Forwards nothing any more on these ways.
    pub fn cut(&self, ways: &[Way]) {
        let mut state = self.shared.state.lock().unwrap();
        for way in ways {
            state.cut[*way as usize] = true;
        }
    }

    /// Forwards again: what was held comes late, or all connections are reset.
    pub fn heal(&self, reset: bool) {
        let mut state = self.shared.state.lock().unwrap();
        if reset {
            for stream in state.open.drain(..) {
                // It may have ended already.
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
        state.cut = [false; 2];
        self.shared.changed.notify_all();
    }

    fn forward(&self, client: TcpStream) {
        let target = self.shared.state.lock().unwrap().target;
        // No server there: the client's connection ends.
        let Some(Ok(server)) = target.map(|target| TcpStream::connect_timeout(&target, CONNECT)) else { return };
        for stream in [&client, &server] {
            stream.set_nodelay(true).unwrap();
        }
        {
            let mut state = self.shared.state.lock().unwrap();
            state.open.retain(|stream| stream.peer_addr().is_ok());
            state.open.extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
        }
        let (proxy, back) = (self.clone(), (server.try_clone().unwrap(), client.try_clone().unwrap()));
        std::thread::spawn(move || proxy.pump(back.0, back.1, Way::From));
        self.pump(client, server, Way::To);
    }

    fn pump(&self, mut from: TcpStream, mut to: TcpStream, way: Way) {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let read = from.read(&mut buffer);
            let mut state = self.shared.state.lock().unwrap();
            while state.cut[way as usize] {
                state = self.shared.changed.wait(state).unwrap();
            }
            drop(state);
            match read {
                Ok(len) if len > 0 && to.write_all(&buffer[..len]).is_ok() => {}
                _ => break,
            }
        }
        for stream in [from, to] {
            // The other pump may have ended it.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
