//! The server itself: saving, waiting for durability, stopping, time, and what commands there are.

use crate::resp::commands::{
    ADMIN, Call, Command, FAST, NO_AUTH, NO_MULTI, Outcome, READ, Refusal, SYNTAX, WRITE, help, is, shown, subcommand,
};
use crate::resp::engine::EngineInfo;
use crate::resp::number::{parse_i64, push_u64};
use crate::resp::rights::categories_of;

pub(crate) fn time(call: &mut Call<'_>) -> Outcome {
    let now_ms = call.shared.keyspace.kv.clock().now_ms();
    call.reply.array(2);
    for number in [now_ms / 1_000, now_ms % 1_000 * 1_000] {
        let mut text = Vec::new();
        push_u64(&mut text, number);
        call.reply.bulk(&text);
    }
    Ok(())
}

/// SAVE: the reply waits until everything written so far is durable.
pub(crate) fn save(call: &mut Call<'_>) -> Outcome {
    let barrier = call.shared.save()?;
    call.behind(barrier);
    call.reply.ok();
    Ok(())
}

pub(crate) fn bgsave(call: &mut Call<'_>) -> Outcome {
    if call.args.len() > 2 || call.args.len() == 2 && !is(call.arg(1), "schedule") {
        return Err(SYNTAX.into());
    }
    call.shared.save()?;
    call.reply.simple("Background saving started");
    Ok(())
}

pub(crate) fn bgrewriteaof(call: &mut Call<'_>) -> Outcome {
    call.shared.save()?;
    call.reply.simple("Background append only file rewriting started");
    Ok(())
}

/// ESKER.BACKUP: the place is the operator's to choose, so that no client has files written where it likes.
pub(crate) fn backup(call: &mut Call<'_>) -> Outcome {
    call.shared.engine.backup().map_err(|why| Refusal::from(format!("ERR {why}")))?;
    call.reply.simple("Backup started");
    Ok(())
}

/// ESKER.CHECK [QUICK|DEEP|STATUS]: every value without a word, what opening reads with QUICK.
pub(crate) fn check(call: &mut Call<'_>) -> Outcome {
    let deep = match call.args.len() {
        1 => true,
        2 if is(call.arg(1), "status") => {
            let report = call.shared.engine.check_report();
            call.reply.bulk(report.as_bytes());
            return Ok(());
        }
        2 if is(call.arg(1), "deep") => true,
        2 if is(call.arg(1), "quick") => false,
        _ => return Err(SYNTAX.into()),
    };
    call.shared.engine.check(deep).map_err(|why| Refusal::from(format!("ERR {why}")))?;
    call.reply.simple("Check started");
    Ok(())
}

/// A command that starts something in the background, or with STATUS tells what the last one came to.
fn starts(
    call: &mut Call<'_>,
    start: fn(&dyn EngineInfo) -> Result<(), String>,
    report: fn(&dyn EngineInfo) -> String,
    started: &str,
) -> Outcome {
    match call.args.len() {
        1 => {
            start(&*call.shared.engine).map_err(|why| Refusal::from(format!("ERR {why}")))?;
            call.reply.simple(started);
        }
        2 if is(call.arg(1), "status") => {
            let report = report(&*call.shared.engine);
            call.reply.bulk(report.as_bytes());
        }
        _ => return Err(SYNTAX.into()),
    }
    Ok(())
}

/// ESKER.SCRUB [STATUS]: everything on the device, once.
pub(crate) fn scrub(call: &mut Call<'_>) -> Outcome {
    starts(call, |engine| engine.scrub(), |engine| engine.scrub_report(), "Scrub started")
}

/// ESKER.COMPACT [STATUS]: cleans every segment that holds dead data, beside clients.
pub(crate) fn compact(call: &mut Call<'_>) -> Outcome {
    starts(call, |engine| engine.compact(), |engine| engine.compact_report(), "Compaction started")
}

/// ESKER.GROW: takes no length, so that no client makes files longer than their operator has.
pub(crate) fn grow(call: &mut Call<'_>) -> Outcome {
    call.shared.engine.grow().map_err(|why| Refusal::from(format!("ERR {why}")))?;
    call.reply.simple("Growing started");
    Ok(())
}

pub(crate) fn lastsave(call: &mut Call<'_>) -> Outcome {
    call.reply.int(call.shared.saves.last().saved_s as i64);
    Ok(())
}

fn timeout(call: &Call<'_>, index: usize) -> Result<i64, Refusal> {
    let timeout = parse_i64(call.arg(index)).ok_or("ERR timeout is not an integer or out of range")?;
    if timeout < 0 { Err("ERR timeout is negative".into()) } else { Ok(timeout) }
}

/// WAIT: there are no replicas; the reply waits until this machine has it.
pub(crate) fn wait(call: &mut Call<'_>) -> Outcome {
    not_of_replicas(call, "WAIT")?;
    timeout(call, 2)?;
    call.int_arg(1)?;
    let barrier = call.shared.save()?;
    call.behind(barrier);
    call.reply.int(0);
    Ok(())
}

/// WAITAOF: one local sync, no replica.
/// A replica writes nothing that could be waited for.
fn not_of_replicas(call: &Call<'_>, name: &str) -> Outcome {
    match &call.shared.config.reading {
        Some(_) => Err(format!("ERR {name} cannot be used with replica instances.").into()),
        None => Ok(()),
    }
}

pub(crate) fn waitaof(call: &mut Call<'_>) -> Outcome {
    not_of_replicas(call, "WAITAOF")?;
    let local = call.int_arg(1)?;
    if !(0..=1).contains(&local) {
        return Err("ERR value is out of range, value must between 0 and 1".into());
    }
    call.int_arg(2)?;
    timeout(call, 3)?;
    let barrier = call.shared.save()?;
    call.behind(barrier);
    call.reply.array(2);
    call.reply.int(1);
    call.reply.int(0);
    Ok(())
}

pub(crate) fn shutdown(call: &mut Call<'_>) -> Outcome {
    for word in call.args.from(1) {
        if is(word, "abort") {
            return Err("ERR No shutdown in progress.".into());
        }
        if !["save", "nosave", "now", "force"].iter().any(|known| is(word, known)) {
            return Err(SYNTAX.into());
        }
    }
    // What is not saved is so when the store is closed.
    if !call.args.from(1).any(|word| is(word, "nosave")) {
        call.shared.save()?;
    }
    tracing::info!(client = %call.session.client.address, "stopping: SHUTDOWN");
    call.session.closing = true;
    call.shared.stop();
    Ok(())
}

pub(crate) fn role(call: &mut Call<'_>) -> Outcome {
    let view = call.shared.config.cluster.as_ref().map(|cluster| cluster.view());
    if let Some(view) = view.filter(|view| !view.heads_any()) {
        let head = view.head();
        call.reply.array(5);
        call.reply.bulk(b"slave");
        call.reply.bulk(head.map_or(&b""[..], |head| head.host.as_bytes()));
        call.reply.int(head.map_or(0, |head| head.port_for(call.session.client.is_tls)).into());
        call.reply.bulk(if head.is_some_and(|head| head.is_up) { b"connected" } else { b"connect" });
        call.reply.int(0);
        return Ok(());
    }
    call.reply.array(3);
    call.reply.bulk(b"master");
    call.reply.int(0);
    call.reply.array(0);
    Ok(())
}

pub(crate) fn command(call: &mut Call<'_>) -> Outcome {
    if call.args.len() == 1 {
        let commands = call.commands;
        call.reply.array(commands.len());
        for command in commands {
            describe(call, command);
        }
        return Ok(());
    }
    subcommand(
        call,
        "command",
        &[
            ("count", 2, count),
            ("docs", -2, docs),
            ("getkeys", -4, get_keys),
            ("help", 2, show_help),
            ("info", -2, command_info),
            ("list", 2, list),
        ],
    )
}

fn show_help(call: &mut Call<'_>) -> Outcome {
    let lines = [
        "(no subcommand)",
        "    Return details about all commands.",
        "COUNT",
        "    Return the total number of commands in this server.",
        "DOCS [<command-name> ...]",
        "    Return documentation details about multiple commands.",
        "GETKEYS <full-command>",
        "    Return the keys from a full command.",
        "INFO [<command-name> ...]",
        "    Return details about multiple commands.",
        "LIST",
        "    Return a list of all commands in this server.",
    ];
    help(call, "COMMAND", &lines)
}

fn count(call: &mut Call<'_>) -> Outcome {
    call.reply.int(call.commands.len() as i64);
    Ok(())
}

fn list(call: &mut Call<'_>) -> Outcome {
    let commands = call.commands;
    call.reply.array(commands.len());
    for command in commands {
        call.reply.bulk(command.name.as_bytes());
    }
    Ok(())
}

fn get_keys(call: &mut Call<'_>) -> Outcome {
    let name = call.arg(2);
    let command = call.commands.iter().find(|command| is(name, command.name));
    let command = command.ok_or("ERR Invalid command specified")?;
    let args: Vec<&[u8]> = call.args.from(2).collect();
    if command.keys.0 == 0 {
        return Err("ERR The command has no key arguments".into());
    }
    let arity = i64::from(command.arity);
    let len = args.len() as i64;
    if if arity >= 0 { len != arity } else { len < -arity } {
        return Err("ERR Invalid number of arguments specified for command".into());
    }
    let (first, last, step) = command.keys;
    let last = if last < 0 { len + i64::from(last) } else { i64::from(last) };
    let keys: Vec<&[u8]> = (i64::from(first)..=last)
        .step_by(step.max(1) as usize)
        .filter_map(|at| args.get(at as usize).copied())
        .collect();
    call.reply.array(keys.len());
    for key in keys {
        call.reply.bulk(key);
    }
    Ok(())
}

fn command_info(call: &mut Call<'_>) -> Outcome {
    let names: Vec<&[u8]> = call.args.from(2).collect();
    if names.is_empty() {
        call.reply.array(call.commands.len());
        for command in call.commands {
            describe(call, command);
        }
        return Ok(());
    }
    call.reply.array(names.len());
    for name in names {
        match call.commands.iter().find(|command| is(name, command.name)) {
            Some(command) => describe(call, command),
            None => call.reply.null(),
        }
    }
    Ok(())
}

/// What COMMAND says of one: ten fields, of which the last four are empty here.
fn describe(call: &mut Call<'_>, command: &Command) {
    let flags = [
        (WRITE, "write"),
        (READ, "readonly"),
        (FAST, "fast"),
        (ADMIN, "admin"),
        (NO_AUTH, "no_auth"),
        (NO_MULTI, "no_multi"),
    ];
    let index = call.commands.iter().position(|known| known.name == command.name);
    let categories = index.map(categories_of).unwrap_or_default();
    let reply = &mut call.reply;
    reply.array(10);
    reply.bulk(command.name.as_bytes());
    reply.int(i64::from(command.arity));
    let held = flags.iter().filter(|(flag, _)| command.flags & flag != 0);
    reply.set(held.clone().count());
    for (_, name) in held {
        reply.simple(name);
    }
    reply.int(i64::from(command.keys.0));
    reply.int(i64::from(command.keys.1));
    reply.int(i64::from(command.keys.2));
    reply.set(categories.len());
    categories.iter().for_each(|category| reply.simple(category));
    reply.set(0);
    reply.set(0);
    reply.array(0);
}

fn docs(call: &mut Call<'_>) -> Outcome {
    let wanted: Vec<String> = call.args.from(2).map(shown).collect();
    let found: Vec<&Command> = call
        .commands
        .iter()
        .filter(|command| wanted.is_empty() || wanted.iter().any(|name| name.eq_ignore_ascii_case(command.name)))
        .collect();
    call.reply.map(found.len());
    for command in found {
        call.reply.bulk(command.name.as_bytes());
        call.reply.map(2);
        call.reply.bulk(b"group");
        call.reply.bulk(command.group.as_bytes());
        call.reply.bulk(b"arity");
        call.reply.int(i64::from(command.arity));
    }
    Ok(())
}
