//! Which arguments of a command are secrets, for everything that shows commands to people: SLOWLOG and MONITOR.
//!
//! Invariant: nothing that shows a command's arguments takes them from anywhere but [`shown_args`].

use crate::resp::parse::Args;

/// What is shown in place of a secret, as in Redis.
const REDACTED: &[u8] = b"(redacted)";
/// Settings whose values are secrets.
const SECRET_SETTINGS: &[&str] =
    &["requirepass", "masterauth", "masteruser", "tls-key-file-pass", "tls-client-key-file-pass"];

fn is(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

/// The arguments of the command `name`, secrets replaced.
pub(crate) fn shown_args<'a>(name: &str, args: Args<'a>) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
    let secret_from = match name {
        "auth" => 1,
        // Whatever an ACL command is given may be a rule with a password, or the name of a user.
        "acl" => 2,
        _ => usize::MAX,
    };
    let of_hello = if name == "hello" { secrets_of_hello(args) } else { Vec::new() };
    let sets = name == "config" && is(args.get(1), "set");
    let mut index = 0;
    args.from(0).map(move |arg| {
        let at = index;
        index += 1;
        let is_value = sets && at >= 3 && at % 2 == 1;
        let is_secret_value = is_value && SECRET_SETTINGS.iter().any(|setting| is(args.get(at - 1), setting));
        if at >= secret_from || of_hello.contains(&at) || is_secret_value { REDACTED } else { arg }
    })
}

/// The places of users and passwords in HELLO: its options are walked over as the command does it.
fn secrets_of_hello(args: Args<'_>) -> Vec<usize> {
    let (mut at, mut secrets) = (2, Vec::new());
    while at < args.len() {
        if is(args.get(at), "auth") {
            secrets.extend([at + 1, at + 2]);
            at += 3;
        } else {
            at += if is(args.get(at), "setname") { 2 } else { 1 };
        }
    }
    secrets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::parse::{Limits, Parser};

    #[test]
    fn secrets_are_not_shown_and_all_else_is() {
        for (line, expected) in [
            ("AUTH pw", "AUTH (redacted)"),
            ("auth default pw", "auth (redacted) (redacted)"),
            ("auth default pw more", "auth (redacted) (redacted) (redacted)"),
            ("HELLO 3 AUTH u pw SETNAME me", "HELLO 3 AUTH (redacted) (redacted) SETNAME me"),
            ("HELLO 3 SETNAME me auth u pw", "HELLO 3 SETNAME me auth (redacted) (redacted)"),
            ("HELLO 3 SETNAME auth AUTH u pw", "HELLO 3 SETNAME auth AUTH (redacted) (redacted)"),
            ("HELLO 3 AUTH u p1 AUTH u p2", "HELLO 3 AUTH (redacted) (redacted) AUTH (redacted) (redacted)"),
            ("HELLO 3", "HELLO 3"),
            ("CONFIG SET timeout 1 RequirePass pw", "CONFIG SET timeout 1 RequirePass (redacted)"),
            ("CONFIG SET requirepass pw timeout 1", "CONFIG SET requirepass (redacted) timeout 1"),
            ("CONFIG GET requirepass", "CONFIG GET requirepass"),
            ("ACL SETUSER bob on >pw", "ACL SETUSER (redacted) (redacted) (redacted)"),
            ("SET auth pw", "SET auth pw"),
        ] {
            let bytes = format!("{line}\r\n").into_bytes();
            let mut parser = Parser::new();
            let limits = Limits { arg_bytes_max: 100, command_bytes_max: 1_000, unauthenticated: false };
            parser.next(&bytes, &limits).unwrap();
            let name = line.split(' ').next().unwrap().to_ascii_lowercase();
            let shown: Vec<&[u8]> = shown_args(&name, parser.args(&bytes)).collect();
            assert_eq!(String::from_utf8(shown.join(&b' ')).unwrap(), expected);
        }
    }
}
