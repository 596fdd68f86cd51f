//! The `esker` binary: formats, serves, watches, checks, repairs, compacts, grows, backs up, dumps, loads and measures
//! stores.
//!
//! arguments → [`config::Settings`] (file under flags) → one file of [`commands`] each, and [`bench`] → exit code
//!
//! Invariants:
//! 1. What programs read (`--json`, values, the configuration) goes to stdout; all else goes to stderr.
//! 2. The exit codes of [`exit`] are kept.

#![forbid(unsafe_code)]

mod bench;
mod commands;
mod config;
mod exit;
mod logging;
mod otlp;
mod progress;
mod resp;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::commands::serve::Sockets;
use crate::config::Settings;
use crate::exit::Failure;
use crate::logging::LogFormat;
use crate::otlp::Exporting;

/// A storage engine and server that writes every byte once, in order.
#[derive(Parser)]
#[command(name = "esker", version, after_help = exit::HELP)]
struct Arguments {
    /// Configuration file (TOML); `esker config` prints one with all keys, their defaults and what they mean
    #[arg(long, short, global = true, value_name = "FILE", env = "ESKER_CONFIG")]
    config: Option<PathBuf>,

    /// What is logged to stderr: error, warn, info, debug, trace, or a filter; goes before RUST_LOG and the file
    #[arg(long, global = true, value_name = "FILTER")]
    log: Option<String>,

    /// How it is logged: text, or json for one object a line; goes before the file
    #[arg(long, global = true, value_name = "FORMAT")]
    log_format: Option<LogFormat>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a new store on a file or a block device
    Format(commands::format::Format),
    /// Serve a store over the Redis protocol
    Serve(Box<commands::serve::Serve>),
    /// Walk a store without changing it and report every damage
    Check(commands::check::Check),
    /// Read and verify everything on a store's device
    Scrub(commands::scrub::Scrub),
    /// Show what stands on the device: superblocks, segments, records
    Dump(commands::dump::Dump),
    /// Clean segments that hold dead data and give their space back
    Compact(commands::compact::Compact),
    /// Copy a store into a folder; later backups into it copy only what is new
    Backup(commands::backup::Backup),
    /// Copy what can be read of a damaged store into a new one, and list what cannot
    Repair(commands::repair::Repair),
    /// Take in the space that a store's file or block device has gained
    Grow(commands::grow::Grow),
    /// Make a store from a backup
    Restore(commands::backup::Restore),
    /// Copy a whole store to another of any backend, and compare them
    Copy(commands::copy::Copy),
    /// Show the figures of a running server, once or again and again
    Stat(commands::stat::Stat),
    /// Have a running server take its certificates, passwords, tokens, users and the mode of Thrift anew
    Reload(commands::reload::Reload),
    /// Print the hash of a password, for the users file
    Password(commands::secrets::Password),
    /// Make a token for clients of gRPC, and its hash for the users file
    Token(commands::secrets::Token),
    /// Chains of servers that hold the same: make one, show how it stands, change who its servers are
    Cluster(Box<commands::cluster::ClusterArguments>),
    /// Chains that share the keys of one cluster: show which keeps which slots, have slots go from one to another
    Ring(commands::cluster::RingArguments),
    /// A primary and its warm copy: show how they stand, promote the copy, go on without it
    Standby(commands::standby::StandbyArguments),
    /// Read and write keys of a store that no server has open
    Kv(commands::kv::KvArguments),
    /// Virtual disks of a store that no server has open: images, snapshots, clones, exports
    Volume(commands::volume::Volume),
    /// Shared logs: append, read, follow, trim, check, hand out positions
    Log(Box<commands::log::LogArguments>),
    /// Tables of records: create, put, get, scan, delete, import, export
    Map(Box<commands::map::MapArguments>),
    /// Measure the engine inside this process
    Bench(bench::Bench),
    /// Turn files of `bench objects --json`, and of `log`, `map` and `commit`, into one page with plots
    Report(bench::report::Report),
    /// Print the default configuration file, every key explained
    Config,
    /// Print a completion script for a shell
    Completions(commands::completions::Completions),
    /// Write the manual pages of all commands into a folder
    Man(commands::man::Man),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("esker: {failure}");
            failure.exit_code()
        }
    }
}

fn run(arguments: Arguments) -> Result<(), Failure> {
    // Before there are threads: taking them changes the environment.
    let sockets = match &arguments.command {
        Command::Serve(_) => Sockets::take()?,
        _ => Sockets::default(),
    };
    let mut settings = Settings::load(arguments.config.as_deref())?;
    if let Command::Serve(command) = &arguments.command {
        esker::heed_memory_limit(command.memory_bytes(&settings));
    }
    let exporting = match &arguments.command {
        Command::Serve(command) => Exporting::start(command.otlp(&mut settings))?,
        _ => Exporting::default(),
    };
    // Only a server has a life to tell of; for the others the result is enough.
    let level = if matches!(arguments.command, Command::Serve(_)) { &settings.log.level } else { "warn" };
    logging::start(
        arguments.log.as_deref(),
        level,
        arguments.log_format.unwrap_or(settings.log.format.0),
        exporting.layer(),
    )?;
    match arguments.command {
        Command::Format(command) => command.run(&settings),
        Command::Serve(command) => command.run(settings, exporting, sockets),
        Command::Check(command) => command.run(&settings),
        Command::Scrub(command) => command.run(&settings),
        Command::Dump(command) => command.run(&settings),
        Command::Compact(command) => command.run(&settings),
        Command::Backup(command) => command.run(&settings),
        Command::Restore(command) => command.run(&settings),
        Command::Repair(command) => command.run(&settings),
        Command::Grow(command) => command.run(&settings),
        Command::Copy(command) => command.run(&settings),
        Command::Stat(command) => command.run(settings),
        Command::Reload(command) => command.run(&settings),
        Command::Password(command) => command.run(),
        Command::Token(command) => command.run(),
        Command::Cluster(command) => command.run(&settings),
        Command::Ring(command) => command.run(&settings),
        Command::Standby(command) => command.run(&settings),
        Command::Kv(command) => command.run(&settings),
        Command::Volume(command) => command.run(&settings),
        Command::Log(command) => command.run(&settings),
        Command::Map(command) => command.run(&settings),
        Command::Bench(command) => command.run(&settings),
        Command::Report(command) => command.run(),
        Command::Config => commands::print(&Settings::default().print()),
        Command::Completions(command) => command.run(Arguments::command()),
        Command::Man(command) => command.run(Arguments::command()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_has_a_manual_page() {
        let folder = tempfile::tempdir().unwrap();
        let pages = folder.path().join("man");
        let write = |folder: &std::path::Path| {
            let arguments = Arguments::parse_from(["esker", "man", folder.to_str().unwrap()]);
            let Command::Man(command) = arguments.command else { panic!("another command") };
            command.run(Arguments::command())
        };
        write(&pages).unwrap();
        for command in Arguments::command().get_subcommands() {
            let page = std::fs::read_to_string(pages.join(format!("esker-{}.1", command.get_name()))).unwrap();
            assert!(page.contains(".SH SYNOPSIS"), "{}", command.get_name());
        }
        // A file stands where the folder is to be.
        assert_eq!(write(&pages.join("esker.1")).unwrap_err().code(), exit::Code::Failure);
    }
}
