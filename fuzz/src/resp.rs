//! Target `resp`: the parser of the Redis protocol, on streams of damaged commands.
//!
//! Invariant: a stream gives the same commands and the same error, whole or in pieces of any length.

use esker_server::resp::{Limits, Parser, Step};

use crate::Target;
use crate::mutate::mutate;

/// Limits as tight as they go, so that they are met.
const LIMITS: Limits = Limits { arg_bytes_max: 4_096, command_bytes_max: 16_384, unauthenticated: false };

const WORDS: &[&str] = &[
    "GET",
    "SET",
    "HSET",
    "MSET",
    "INCR",
    "PING",
    "EX",
    "10",
    "-1",
    "key",
    "\"quoted \\x41 text\"",
    "'single'",
    "",
    "18446744073709551616",
];

pub struct Resp;

impl Resp {
    pub fn new() -> Self {
        Self
    }
}

impl Target for Resp {
    fn input(&mut self, random: &mut fastrand::Rng) -> Vec<u8> {
        let mut stream = Vec::new();
        for _ in 0..1 + random.usize(0..6) {
            let words: Vec<&str> = (0..1 + random.usize(0..5)).map(|_| WORDS[random.usize(0..WORDS.len())]).collect();
            if random.u8(0..4) == 0 {
                stream.extend_from_slice(words.join(" ").as_bytes());
            } else {
                stream.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
                for word in &words {
                    stream.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
                }
            }
            stream.extend_from_slice(if random.u8(0..8) == 0 { b"\n" } else { b"\r\n" });
        }
        // The first byte decides the lengths of the pieces, and whether the client has authenticated.
        stream.insert(0, random.u8(..));
        if random.u8(0..8) != 0 {
            mutate(&mut stream, random);
        }
        stream
    }

    fn run(&mut self, input: &[u8]) -> bool {
        let Some((how, stream)) = input.split_first() else { return false };
        let limits = Limits { unauthenticated: how & 1 == 1, ..LIMITS };
        let whole = commands(stream, stream.len().max(1), &limits);
        let pieces = commands(stream, 1 + usize::from(how >> 1) % 17, &limits);
        assert_eq!(whole, pieces, "a stream in pieces is not the stream as a whole");
        whole.1.is_none()
    }
}

/// What the parser makes of a stream that arrives in pieces: the commands, and the error that ended it.
fn commands(stream: &[u8], piece: usize, limits: &Limits) -> (Vec<Vec<Vec<u8>>>, Option<String>) {
    let mut parser = Parser::new();
    let (mut found, mut start, mut end) = (Vec::new(), 0, 0);
    loop {
        match parser.next(&stream[start..end], limits) {
            Err(error) => return (found, Some(error.to_string())),
            Ok(Step::Incomplete) if end == stream.len() => return (found, None),
            Ok(Step::Incomplete) => end = (end + piece).min(stream.len()),
            Ok(Step::Nothing(len)) => {
                assert!(len > 0, "a step that takes nothing would never end");
                start += len;
            }
            Ok(Step::Command(len)) => {
                assert!(len > 0 && start + len <= end, "a command longer than what was given");
                found.push(parser.args(&stream[start..]).from(0).map(<[u8]>::to_vec).collect());
                start += len;
            }
        }
    }
}
