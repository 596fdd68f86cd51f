//! SLOWLOG: the commands that took longest, newest first.

use crate::resp::commands::{Call, Outcome, help, shown, subcommand};
use crate::resp::number::parse_i64;

/// How many SLOWLOG GET shows without a number.
const SHOWN: usize = 10;

pub(crate) fn slowlog(call: &mut Call<'_>) -> Outcome {
    subcommand(call, "slowlog", &[("get", -2, get), ("len", 2, len), ("reset", 2, reset), ("help", 2, show_help)])
}

fn show_help(call: &mut Call<'_>) -> Outcome {
    let lines = [
        "GET [<count>]",
        "    Return top <count> entries from the slowlog (default: 10, -1 mean all).",
        "    Entries are made of:",
        "    id, timestamp, time in microseconds, arguments array, client IP and port,",
        "    client name",
        "LEN",
        "    Return the length of the slowlog.",
        "RESET",
        "    Reset the slowlog.",
    ];
    help(call, "SLOWLOG", &lines)
}

fn get(call: &mut Call<'_>) -> Outcome {
    let count = match call.args.len() {
        2 => SHOWN,
        3 => match parse_i64(call.arg(2)).filter(|count| *count >= -1) {
            Some(count) => usize::try_from(count).unwrap_or(usize::MAX),
            None => return Err("ERR count should be greater than or equal to -1".into()),
        },
        _ => {
            let name = shown(call.arg(1));
            return Err(
                format!("ERR unknown subcommand or wrong number of arguments for '{name}'. Try SLOWLOG HELP.").into()
            );
        }
    };
    let newest = call.shared.slowlog.newest(count);
    call.reply.array(newest.len());
    for slow in newest {
        call.reply.array(6);
        call.reply.int(slow.id as i64);
        call.reply.int(slow.at_s as i64);
        call.reply.int(i64::try_from(slow.took.as_micros()).unwrap_or(i64::MAX));
        call.reply.array(slow.args.len());
        for arg in slow.args.iter() {
            call.reply.bulk(arg);
        }
        call.reply.bulk(slow.address.as_bytes());
        call.reply.bulk(slow.client.as_bytes());
    }
    call.check_output()
}

fn len(call: &mut Call<'_>) -> Outcome {
    call.reply.int(call.shared.slowlog.len() as i64);
    Ok(())
}

fn reset(call: &mut Call<'_>) -> Outcome {
    call.shared.slowlog.reset();
    call.reply.ok();
    Ok(())
}
