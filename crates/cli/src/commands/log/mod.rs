//! `esker log`: shared logs of a store that no server has open.
//!
//! arguments → log by name → [`esker::log`] → entries, lines or JSON on stdout, progress on stderr
//!
//! Invariants:
//! 1. Only `create` makes a log, or a store.
//! 2. Long work may be interrupted; the same command goes on, and `clean` finishes what was left half made or half
//!    deleted.

mod append;
mod context;
mod read;
mod wire;

use clap::{Args, Subcommand};
use esker::ByteSize;
use esker::Period;
use esker::log::{Compression, ENTRY_BYTES_MAX, INLINE_BYTES_MAX, Layout, Log, Options};
use serde_json::{Value, json};

use self::context::Context;
use super::log_sequencer::LogSequencer;
use super::{StoreArgument, builder, print};
use crate::config::Settings;
use crate::exit::{Code, Failure};
use crate::progress;

/// The arguments of `esker log`.
#[derive(Args)]
pub struct LogArguments {
    #[command(flatten)]
    store: StoreArgument,

    /// Print results as JSON
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make a log
    Create {
        /// Its name
        #[arg(value_name = "LOG")]
        name: String,
        /// Where entries stand: omap, stream or slots; by default slots where the backend has them, else stream
        #[arg(long)]
        layout: Option<Layout>,
        #[command(flatten)]
        shape: Shape,
        #[command(flatten)]
        limits: Limits,
    },
    /// Hand out the positions of logs to many writers, or stand by for the sequencer that does
    Sequencer(LogSequencer),
    /// Append what stdin has
    Append(append::Append),
    /// Print entries
    Cat(read::Cat),
    /// Print the last entries, and with -f those that come
    Tail(read::Tail),
    /// Give up one entry, or with --to all entries below a position; the space comes back
    Trim {
        /// The log
        #[arg(value_name = "LOG")]
        name: String,
        /// The position
        #[arg(required_unless_present = "to")]
        position: Option<u64>,
        /// All positions below this one
        #[arg(long, value_name = "POSITION", conflicts_with = "position")]
        to: Option<u64>,
    },
    /// Give up a position at which nothing stands, so that readers need not wait for it
    Fill {
        /// The log
        #[arg(value_name = "LOG")]
        name: String,
        /// The position
        position: u64,
    },
    /// Close a log for good: it takes no more entries
    Seal {
        /// The log
        #[arg(value_name = "LOG")]
        name: String,
    },
    /// Show what a log is
    Info {
        /// The log
        #[arg(value_name = "LOG")]
        name: String,
    },
    /// List the logs
    Ls,
    /// Delete a log with everything in it
    Rm {
        /// The log
        #[arg(value_name = "LOG")]
        name: String,
    },
    /// Give a log another name; processes that have it open go on
    Rename {
        /// The log
        #[arg(value_name = "LOG")]
        name: String,
        /// Its new name
        to: String,
    },
    /// Change the shape of stripes from the tail on, while the log is in use
    Reshape {
        /// The log
        #[arg(value_name = "LOG")]
        name: String,
        #[command(flatten)]
        shape: Shape,
    },
    /// Change limits and retention
    Set {
        /// The log
        #[arg(value_name = "LOG")]
        name: String,
        #[command(flatten)]
        limits: Limits,
    },
    /// Prove the log's invariants by its objects; exit code 4 if one does not hold
    Check {
        /// The log; all of them unless given
        #[arg(value_name = "LOG")]
        name: Option<String>,
        /// Read also the data that stands apart from its entry (layout stream)
        #[arg(long)]
        deep: bool,
    },
    /// Trim what retention no longer keeps
    Retain {
        /// The log; all of them unless given
        #[arg(value_name = "LOG")]
        name: Option<String>,
    },
    /// Where consumers go on
    #[command(subcommand)]
    Consumer(Consumer),
    /// Finish what was left half made or half deleted an hour ago or longer, and deletions
    Clean,
}

#[derive(Subcommand)]
enum Consumer {
    /// List consumers with their positions
    Ls {
        /// The log
        #[arg(value_name = "LOG")]
        name: String,
    },
    /// Show where one goes on
    Get {
        /// The log
        #[arg(value_name = "LOG")]
        name: String,
        /// The consumer
        consumer: String,
    },
    /// Say where one goes on
    Set {
        /// The log
        #[arg(value_name = "LOG")]
        name: String,
        /// The consumer
        consumer: String,
        /// The position
        position: u64,
    },
    /// Forget one
    Rm {
        /// The log
        #[arg(value_name = "LOG")]
        name: String,
        /// The consumer
        consumer: String,
    },
}

#[derive(Args)]
struct Shape {
    /// Objects that positions go round [default: 4, or as it is]
    #[arg(long)]
    width: Option<u32>,
    /// Positions per object; space comes back in whole stripes first [default: 65536, or as it is]
    #[arg(long)]
    slots: Option<u32>,
}

#[derive(Args)]
struct Limits {
    /// Largest entry, up to 8m [default: 1m, or as it is]
    #[arg(long, value_name = "SIZE")]
    entry_bytes: Option<ByteSize>,
    /// Layout stream: entries up to this stand in the omap [default: 4k, or as it is]
    #[arg(long, value_name = "SIZE")]
    inline_bytes: Option<ByteSize>,
    /// Layout stream: a new stripe is begun when an object has so many bytes [default: 256m, or as it is]
    #[arg(long, value_name = "SIZE")]
    object_bytes: Option<ByteSize>,
    /// Compression: none, lz4 or zstd [default: none, or as it is]
    #[arg(long)]
    compress: Option<Compression>,
    /// Retention keeps so many positions; 0: all
    #[arg(long, value_name = "NUMBER")]
    retain_positions: Option<u64>,
    /// Retention keeps about so many bytes; 0: all
    #[arg(long, value_name = "SIZE")]
    retain_bytes: Option<ByteSize>,
    /// Retention keeps entries so long; 0: for ever
    #[arg(long, value_name = "PERIOD")]
    retain_age: Option<Period>,
}

impl Limits {
    fn change(&self, options: &mut Options) -> Result<(), Failure> {
        let small = |flag: &str, size: ByteSize, max: u64| match u32::try_from(size.0) {
            Ok(bytes) => Ok(bytes),
            Err(_) => Err(Failure::usage(format!("{flag} {size}: at most {}", ByteSize(max)))),
        };
        if let Some(size) = self.entry_bytes {
            options.entry_bytes_max = small("--entry-bytes", size, ENTRY_BYTES_MAX.into())?;
        }
        if let Some(size) = self.inline_bytes {
            options.inline_bytes_max = small("--inline-bytes", size, INLINE_BYTES_MAX.into())?;
        }
        if let Some(size) = self.object_bytes {
            options.object_bytes_max = size.0;
        }
        if let Some(compression) = self.compress {
            options.compression = compression;
        }
        if let Some(positions) = self.retain_positions {
            options.retain_positions = positions;
        }
        if let Some(size) = self.retain_bytes {
            options.retain_bytes = size.0;
        }
        if let Some(Period(age)) = self.retain_age {
            options.retain_ms = age.as_millis() as u64;
        }
        Ok(())
    }
}

impl LogArguments {
    /// Runs the command.
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        let location = self.store.location(settings);
        if let Action::Sequencer(sequencer) = self.action {
            return sequencer.run(settings, &location);
        }
        let makes = matches!(self.action, Action::Create { .. });
        let store = builder(settings).create(makes).open(&location)?;
        let result = store.logs().map_err(Failure::from).and_then(|logs| {
            let context = Context { logs, store: store.clone(), json: self.json };
            act(&context, self.action)
        });
        let closed = store.close();
        result?;
        Ok(closed?)
    }
}

fn act(context: &Context, action: Action) -> Result<(), Failure> {
    let logs = &context.logs;
    match action {
        Action::Create { name, layout, shape, limits } => {
            let layout = layout.unwrap_or_else(|| Layout::best_for(&context.store.objects().capability()));
            let mut options = Options { layout, ..Options::default() };
            options.width = shape.width.unwrap_or(options.width);
            options.slots = shape.slots.unwrap_or(options.slots);
            limits.change(&mut options)?;
            let log = logs.create(&name, options)?;
            if context.json { print(&format!("{:#}\n", shown(&log, &name)?)) } else { Ok(()) }
        }
        Action::Sequencer(_) => unreachable!("it was run before, by itself"),
        Action::Append(append) => append.run(context),
        Action::Cat(cat) => cat.run(context),
        Action::Tail(tail) => tail.run(context),
        Action::Trim { name, position, to } => {
            let log = context.log(&name)?;
            match (position, to) {
                (_, Some(to)) => {
                    let objects = log.trim_to(to)?;
                    let text = format!("trimmed to {}, {objects} objects removed\n", log.view().trimmed);
                    context.tell(json!({"trimmed": log.view().trimmed, "objects_removed": objects}), &text)
                }
                (Some(position), None) => Ok(log.trim(position)?),
                (None, None) => Err(Failure::usage("expected a position or --to")),
            }
        }
        Action::Fill { name, position } => Ok(context.log(&name)?.fill(position)?),
        Action::Seal { name } => {
            let tail = context.log(&name)?.seal()?;
            context.tell(json!({"tail": tail}), &format!("sealed at position {tail}\n"))
        }
        Action::Info { name } => info(context, &name),
        Action::Ls => list(context),
        Action::Rm { name } => Ok(logs.delete(&name)?),
        Action::Rename { name, to } => Ok(logs.rename(&name, &to)?),
        Action::Reshape { name, shape } => {
            let log = context.log(&name)?;
            let now = log.options();
            Ok(log.reshape(shape.width.unwrap_or(now.width), shape.slots.unwrap_or(now.slots))?)
        }
        Action::Set { name, limits } => {
            let log = context.log(&name)?;
            let mut options = log.options();
            limits.change(&mut options)?;
            Ok(log.set_options(&options)?)
        }
        Action::Check { name, deep } => check(context, name, deep),
        Action::Retain { name } => {
            let (mut values, mut text) = (Vec::new(), String::new());
            for name in context.names_or(name)? {
                let to = context.log(&name)?.retain()?;
                values.push(json!({"name": name, "trimmed": to}));
                text += &format!("{name}\ttrimmed to {to}\n");
            }
            context.tell(Value::Array(values), &text)
        }
        Action::Consumer(consumer) => consumer.run(context),
        Action::Clean => {
            let done = logs.work()?;
            context.tell(json!({"removed": done}), &format!("{done} logs removed\n"))
        }
    }
}

impl Consumer {
    fn run(self, context: &Context) -> Result<(), Failure> {
        match self {
            Self::Ls { name } => {
                let consumers = context.log(&name)?.consumers()?;
                let text: String = consumers.iter().map(|(name, position)| format!("{name}\t{position}\n")).collect();
                let map = consumers.into_iter().map(|(name, position)| (name, Value::from(position))).collect();
                context.tell(Value::Object(map), &text)
            }
            Self::Get { name, consumer } => match context.log(&name)?.consumer(&consumer)? {
                Some(position) => context.tell(Value::from(position), &format!("{position}\n")),
                None => Err(Failure::new(Code::NotFound, format!("log {name} has no consumer {consumer}"))),
            },
            Self::Set { name, consumer, position } => {
                let log = context.log(&name)?;
                let tail = log.tail()?.position;
                if position > tail {
                    return Err(Failure::usage(format!("position {position} is past the tail at {tail}")));
                }
                Ok(log.set_consumer(&consumer, position)?)
            }
            Self::Rm { name, consumer } => Ok(context.log(&name)?.remove_consumer(&consumer)?),
        }
    }
}

fn list(context: &Context) -> Result<(), Failure> {
    let mut values = Vec::new();
    let mut text = String::new();
    for name in context.names()? {
        let log = context.log(&name)?;
        let (view, tail) = (log.view(), log.tail()?.position);
        let (layout, trimmed) = (view.options.layout, view.trimmed);
        values.push(json!({"name": name, "layout": layout.name(), "trimmed": trimmed, "tail": tail, "sealed": view.sealed.is_some()}));
        let sealed = if view.sealed.is_some() { "\tsealed" } else { "" };
        text += &format!("{name}\t{layout}\t{trimmed}\t{tail}{sealed}\n");
    }
    context.tell(Value::Array(values), &text)
}

fn shown(log: &Log, name: &str) -> Result<Value, Failure> {
    let tail = log.tail()?;
    let view = log.view();
    let options = &view.options;
    let set = |number: u64| Some(number).filter(|number| *number > 0);
    let named = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    Ok(json!({
        "name": name,
        "id": log.id(),
        "layout": options.layout.name(),
        "width": options.width,
        "slots": options.slots,
        "entry_bytes": options.entry_bytes_max,
        "inline_bytes": options.inline_bytes_max,
        "object_bytes": options.object_bytes_max,
        "compress": options.compression.name(),
        "retain_positions": set(options.retain_positions),
        "retain_bytes": set(options.retain_bytes),
        "retain_ms": set(options.retain_ms),
        "created_ms": view.created_ms,
        "trimmed": view.trimmed,
        "tail": tail.position,
        "sealed": view.sealed,
        "epoch": view.epoch,
        "owner": named(&view.owner),
        "sequencer": named(&view.sequencer),
        "runs": view.runs.len(),
        "stripes_end": view.end(),
    }))
}

fn info(context: &Context, name: &str) -> Result<(), Failure> {
    let log = context.log(name)?;
    let value = shown(&log, name)?;
    let text: String = value
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| format!("{name:<17}{}\n", value.as_str().map_or(value.to_string(), str::to_owned)))
        .collect();
    context.tell(value, &text)
}

fn check(context: &Context, name: Option<String>, deep: bool) -> Result<(), Failure> {
    let (mut values, mut text, mut problems) = (Vec::new(), String::new(), 0);
    for name in context.names_or(name)? {
        let log = context.log(&name)?;
        let bar = progress::count("checking", 0);
        let found = log.check(deep, |done, total| {
            bar.set_length(total);
            bar.set_position(done);
            true
        });
        bar.finish_and_clear();
        let found = found?;
        problems += found.problems.len();
        text += &format!(
            "{name}: {} entries, {} bytes, {} filled, {} trimmed, {} holes, {} objects left over\n",
            found.entries, found.bytes, found.filled, found.trimmed, found.holes, found.left_over
        );
        for problem in &found.problems {
            eprintln!("esker: {name}: {problem}");
        }
        values.push(json!({
            "name": name, "entries": found.entries, "bytes": found.bytes, "filled": found.filled, "trimmed": found.trimmed,
            "holes": found.holes, "left_over": found.left_over, "problems": found.problems,
        }));
    }
    context.tell(Value::Array(values), &text)?;
    match problems {
        0 => Ok(()),
        _ => Err(Failure::new(Code::Damage, format!("{problems} places do not hold"))),
    }
}
