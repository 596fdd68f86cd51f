//! `esker serve` for one test, and a client that speaks RESP to it.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A server of its own for one test.
pub struct Running {
    pub child: Child,
    pub address: SocketAddr,
    pub printed: Vec<String>,
}

impl Running {
    pub fn start(folder: &Path, arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_esker"))
            .args(["serve", "--listen", "127.0.0.1:0", "--log", "warn"])
            .args(arguments)
            .current_dir(folder)
            .env_remove("ESKER_CONFIG")
            .env_remove("ESKER_PASSWORD")
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is a pipe")).lines();
        let mut printed = Vec::new();
        while !printed.last().is_some_and(|line: &String| line.starts_with("try ")) {
            match lines.next() {
                Some(Ok(line)) => printed.push(line),
                _ => panic!("the server ended after printing {printed:?}"),
            }
        }
        let address = printed.iter().find_map(|line| line.strip_prefix("listening")).expect("an address is printed");
        let address = address.trim().parse().expect("an address");
        Self { child, address, printed }
    }

    pub fn client(&self) -> Client {
        let stream = TcpStream::connect(self.address).expect("the server accepts");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time limit");
        Client(BufReader::new(stream))
    }

    pub fn signal(&mut self, name: &str) -> i32 {
        let sent = Command::new("kill").args([name, &self.child.id().to_string()]).status().expect("kill runs");
        assert!(sent.success());
        self.child.wait().expect("the server ends").code().unwrap_or(-1)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client of it.
pub struct Client(BufReader<TcpStream>);

impl Client {
    pub fn send(&mut self, words: &[&str]) {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.0.get_mut().write_all(request.as_bytes()).expect("the server reads");
    }

    /// One reply: a line, or the content of a bulk string.
    pub fn reply(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("the server answers");
        let line = line.trim_end().to_string();
        match line.strip_prefix('$').and_then(|len| len.parse::<usize>().ok()) {
            Some(len) => {
                let mut content = vec![0; len + 2];
                self.0.read_exact(&mut content).expect("the whole reply");
                String::from_utf8(content[..len].to_vec()).expect("text")
            }
            None => line,
        }
    }

    pub fn call(&mut self, words: &[&str]) -> String {
        self.send(words);
        self.reply()
    }
}
