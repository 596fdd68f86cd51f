//! Any bytes: the parser never panics, agrees with itself however bytes are cut, and keeps its memory bounded.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::io::Write;

use esker_server::resp::{Limits, Parser, ProtocolError, Step, parse};
use proptest::prelude::*;
use support::{Running, config, encode};

const LIMITS: Limits = Limits { arg_bytes_max: 4_096, command_bytes_max: 16_384, unauthenticated: false };

type Parsed = (Vec<Vec<Vec<u8>>>, Option<ProtocolError>);

/// All at once.
fn whole(bytes: &[u8]) -> Parsed {
    let (mut parser, mut at, mut commands) = (Parser::new(), 0, Vec::new());
    loop {
        match parser.next(&bytes[at..], &LIMITS) {
            Ok(Step::Incomplete) => return (commands, None),
            Ok(Step::Nothing(len)) => at += len,
            Ok(Step::Command(len)) => {
                assert!(len > 0 && at + len <= bytes.len());
                commands.push(parser.args(&bytes[at..]).from(0).map(<[u8]>::to_vec).collect());
                at += len;
            }
            Err(error) => return (commands, Some(error)),
        }
    }
}

/// As they come from a socket, in pieces of these sizes.
fn in_pieces(bytes: &[u8], sizes: &[usize]) -> Parsed {
    let (mut parser, mut from, mut to, mut commands) = (Parser::new(), 0, 0, Vec::new());
    let mut sizes = sizes.iter().cycle();
    loop {
        match parser.next(&bytes[from..to], &LIMITS) {
            Ok(Step::Incomplete) if to == bytes.len() => return (commands, None),
            Ok(Step::Incomplete) => to = (to + sizes.next().copied().unwrap_or(1).max(1)).min(bytes.len()),
            Ok(Step::Nothing(len)) => from += len,
            Ok(Step::Command(len)) => {
                commands.push(parser.args(&bytes[from..to]).from(0).map(<[u8]>::to_vec).collect());
                from += len;
            }
            Err(error) => return (commands, Some(error)),
        }
    }
}

fn requests() -> impl Strategy<Value = Vec<u8>> {
    let arg = prop::collection::vec(any::<u8>(), 0..40);
    let command = prop::collection::vec(arg, 1..6).prop_map(|args| encode(&args));
    let inline = "[a-z \"'\\\\]{0,20}\r\n".prop_map(String::into_bytes);
    let piece = prop_oneof![4 => command, 1 => inline, 1 => Just(b"*0\r\n".to_vec())];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let syntax = prop::sample::select(b"*$\r\n0123456789-\"' x\0\xff".to_vec());
    let changes = prop::collection::vec((any::<prop::sample::Index>(), syntax, 0..3u8), 0..6);
    (requests(), changes).prop_map(|(mut bytes, changes)| {
        for (at, byte, kind) in changes {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => {
                    bytes.remove(at);
                }
            }
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn valid_requests_are_parsed_as_they_were_written(
        commands in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 1..8), 0..8)
    ) {
        let bytes: Vec<u8> = commands.iter().flat_map(|args| encode(args)).collect();
        prop_assert_eq!(parse(&bytes, &LIMITS), Ok((commands, bytes.len())));
    }

    #[test]
    fn mutated_requests_parse_the_same_however_they_are_cut(
        bytes in mutated(),
        sizes in prop::collection::vec(1..30usize, 1..5),
    ) {
        prop_assert_eq!(in_pieces(&bytes, &sizes), whole(&bytes));
    }

    #[test]
    fn random_bytes_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        sizes in prop::collection::vec(1..30usize, 1..5),
    ) {
        prop_assert_eq!(in_pieces(&bytes, &sizes), whole(&bytes));
    }
}

#[test]
fn a_server_outlives_any_bytes() {
    let seed = std::env::var("ESKER_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_260_101);
    println!("ESKER_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let server = Running::start(config());
    let names = [
        "SET", "GET", "HSET", "MULTI", "EXEC", "SCAN", "EXPIRE", "HELLO", "CLIENT", "CONFIG", "COMMAND", "MSET", "COPY",
    ];
    for _ in 0..300 {
        let mut bytes = Vec::new();
        for _ in 0..random.usize(1..20) {
            let mut args = vec![names[random.usize(..names.len())].as_bytes().to_vec()];
            for _ in 0..random.usize(..5) {
                args.push(match random.u8(..4) {
                    0 => (0..random.usize(..20)).map(|_| random.u8(..)).collect(),
                    1 => random.i64(..).to_string().into_bytes(),
                    2 => b"k".to_vec(),
                    _ => names[random.usize(..names.len())].as_bytes().to_vec(),
                });
            }
            bytes.extend(encode(&args));
        }
        for _ in 0..random.usize(..4) {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
        }
        let mut client = server.client();
        // The server may close before it has read all.
        let _ = client.stream.write_all(&bytes);
    }
    server.client().check("PING", "+PONG\r\n");
}
