//! CONFIG: settings of the server and, by way of [`EngineInfo`](crate::resp::EngineInfo), of the engine.
//!
//! `appendfsync` says what a reply means: `always`, it survives power loss; `everysec` and `no`, it is applied.

use std::sync::atomic::Ordering;

use crate::front::pattern::matches;
use crate::resp::commands::{Call, Outcome, help, is, shown, subcommand};
use crate::resp::config::DATABASES;
use crate::resp::number::parse_i64;
use crate::resp::shared::{Fsync, Shared};

pub(crate) fn config(call: &mut Call<'_>) -> Outcome {
    subcommand(
        call,
        "config",
        &[
            ("get", -3, get),
            ("set", -4, set),
            ("resetstat", 2, reset_statistics),
            ("rewrite", 2, rewrite),
            ("help", 2, show_help),
        ],
    )
}

fn show_help(call: &mut Call<'_>) -> Outcome {
    let lines = [
        "GET <pattern>",
        "    Return parameters matching the glob-like <pattern> and their values.",
        "SET <directive> <value>",
        "    Set the configuration <directive> to <value>.",
    ];
    help(call, "CONFIG", &lines)
}

/// Settings and their values.
fn settings(shared: &Shared) -> Vec<(String, String)> {
    let settings = &shared.settings;
    let own = [
        ("appendfsync", shared.fsync().name().to_owned()),
        ("appendonly", "yes".into()),
        ("client-query-buffer-limit", settings.command_bytes_max.load(Ordering::Relaxed).to_string()),
        ("databases", DATABASES.to_string()),
        ("io-threads", shared.loops.len().to_string()),
        ("latency-monitor-threshold", shared.spikes.threshold_ms().to_string()),
        ("maxclients", settings.clients_max.load(Ordering::Relaxed).to_string()),
        ("maxmemory", "0".into()),
        ("maxmemory-clients", settings.clients_bytes_max.load(Ordering::Relaxed).to_string()),
        ("maxmemory-policy", "noeviction".into()),
        ("port", shared.port.to_string()),
        ("proto-max-bulk-len", settings.arg_bytes_max.load(Ordering::Relaxed).to_string()),
        ("requirepass", shared.users.password().unwrap_or_default()),
        ("save", String::new()),
        ("slowlog-log-slower-than", shared.slowlog.slower_than_us().to_string()),
        ("slowlog-max-len", shared.slowlog.len_max().to_string()),
        ("timeout", settings.idle_seconds.load(Ordering::Relaxed).to_string()),
    ];
    let mut all: Vec<(String, String)> = own.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    all.extend(shared.engine.settings());
    all
}

fn get(call: &mut Call<'_>) -> Outcome {
    let mut found = settings(call.shared);
    found.retain(|(name, _)| call.args.from(2).any(|pattern| matches(pattern, name.as_bytes(), true)));
    call.reply.map(found.len());
    for (name, value) in found {
        call.reply.bulk(name.as_bytes());
        call.reply.bulk(value.as_bytes());
    }
    Ok(())
}

fn set(call: &mut Call<'_>) -> Outcome {
    if !call.args.len().is_multiple_of(2) {
        return Err(call.wrong_args("config|set"));
    }
    for at in (2..call.args.len()).step_by(2) {
        let name = call.arg(at);
        let value = String::from_utf8_lossy(call.arg(at + 1)).into_owned();
        match set_one(call.shared, &shown(name).to_ascii_lowercase(), &value) {
            Ok(true) => {}
            Ok(false) => {
                return Err(
                    format!("ERR Unknown option or number of arguments for CONFIG SET - '{}'", shown(name)).into()
                );
            }
            Err(why) => {
                let name = shown(name);
                return Err(format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}").into());
            }
        }
    }
    call.reply.ok();
    Ok(())
}

fn number(value: &str, min: u64, max: u64) -> Result<u64, String> {
    let number = parse_i64(value.as_bytes()).ok_or("argument couldn't be parsed into an integer")?;
    let number = u64::try_from(number).ok().filter(|number| (min..=max).contains(number));
    number.ok_or_else(|| format!("argument must be between {min} and {max} inclusive"))
}

/// A number, or -1 for none.
fn number_or_none(value: &str) -> Result<i64, String> {
    let number = parse_i64(value.as_bytes()).ok_or("argument couldn't be parsed into an integer")?;
    if number >= -1 { Ok(number) } else { Err(format!("argument must be between -1 and {} inclusive", i64::MAX)) }
}

/// Changes a setting; false if there is none of this name.
fn set_one(shared: &Shared, name: &str, value: &str) -> Result<bool, String> {
    let settings = &shared.settings;
    match name {
        "appendfsync" => {
            let known = [Fsync::Always, Fsync::EverySecond, Fsync::No];
            let fsync = known.into_iter().find(|known| is(value.as_bytes(), known.name()));
            shared.set_fsync(fsync.ok_or("argument(s) must be one of the following: everysec, always, no")?);
            shared.engine.set(name, value)?;
        }
        "maxclients" => {
            settings.clients_max.store(number(value, 1, u64::from(u32::MAX))? as usize, Ordering::Relaxed);
        }
        "maxmemory-clients" => {
            settings.clients_bytes_max.store(number(value, 1 << 20, 1 << 40)? as usize, Ordering::Relaxed);
        }
        "timeout" => {
            settings.idle_seconds.store(number(value, 0, i32::MAX as u64)?, Ordering::Relaxed);
            shared.wake_all();
        }
        "proto-max-bulk-len" => {
            let max = esker_kv::VALUE_BYTES_MAX as u64;
            settings.arg_bytes_max.store(number(value, 1, max)? as usize, Ordering::Relaxed);
        }
        "client-query-buffer-limit" => {
            settings.command_bytes_max.store(number(value, 1 << 20, 1 << 30)? as usize, Ordering::Relaxed);
        }
        "requirepass" => {
            let open = shared.config.listen.iter().chain(&shared.config.tls_listen).find(|at| !at.ip().is_loopback());
            if let (true, Some(address)) = (value.is_empty(), open) {
                return Err(format!("the server listens on {address}, which needs a password"));
            }
            let password = Some(value).filter(|password| !password.is_empty());
            shared.users.set_password(password)?;
            shared.wake_all();
        }
        "slowlog-log-slower-than" => shared.slowlog.set_slower_than_us(number_or_none(value)?),
        "slowlog-max-len" => shared.slowlog.set_len_max(number(value, 0, i64::MAX as u64)?),
        "latency-monitor-threshold" => shared.spikes.set_threshold_ms(number(value, 0, i64::MAX as u64)?),
        "save" if value.is_empty() => {}
        "appendonly" if is(value.as_bytes(), "yes") => {}
        "maxmemory" if value == "0" => {}
        "maxmemory-policy" if is(value.as_bytes(), "noeviction") => {}
        "save" | "appendonly" | "maxmemory" | "maxmemory-policy" => {
            return Err("every write is in the log; there is nothing to choose".into());
        }
        "databases" | "io-threads" | "port" => return Err("can't set immutable config".into()),
        _ => return shared.engine.set(name, value),
    }
    Ok(true)
}

fn reset_statistics(call: &mut Call<'_>) -> Outcome {
    for counters in &call.shared.loops {
        for counter in [&counters.hits, &counters.misses, &counters.errors, &counters.commands] {
            counter.store(0, Ordering::Relaxed);
        }
    }
    call.shared.command_stats.reset();
    call.shared.connections.store(0, Ordering::Relaxed);
    call.shared.rejected.store(0, Ordering::Relaxed);
    call.shared.expired.store(0, Ordering::Relaxed);
    call.reply.ok();
    Ok(())
}

fn rewrite(_call: &mut Call<'_>) -> Outcome {
    Err("ERR The server is running without a config file".into())
}
