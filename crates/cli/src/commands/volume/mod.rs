//! `esker volume`: virtual disks of a store that no server has open; `map` and `bench` also reach those of a server.
//!
//! arguments → image or image@snapshot → [`esker::volume`] → lines or JSON on stdout, progress on stderr
//!
//! Invariants:
//! 1. Only `create`, `clone` and `import` make images, and only `create` and `import` make a store.
//! 2. Long work may be interrupted; the same command goes on, and `clean` finishes what was left for the background.
//! 3. The lock that a killed server left keeps no writer out, that of a person keeps out every one.

mod bench;
mod context;
mod inside;
mod map;
mod snap;
mod tool;
mod transfer;

use clap::{Args, Subcommand};
use esker::ByteSize;
use esker::volume::{Error, Image, Info, Layout};
use esker_server::nbd::SERVER_OWNER;
use serde_json::{Value, json};

use self::context::{Context, both};
use super::{StoreArgument, builder, print};
use crate::config::Settings;
use crate::exit::Failure;

/// The arguments of `esker volume`.
#[derive(Args)]
pub struct Volume {
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
    /// Make an empty image; it takes space as it is written
    Create {
        /// Its name
        image: String,
        /// Its size, such as 10g
        size: ByteSize,
        /// Size of a data object: a power of two from 64k to 16m
        #[arg(long, default_value = "4m")]
        object_size: ByteSize,
        /// Bytes that go to one object before the next: a power of two from 4k to the object size; the object size
        /// unless given
        #[arg(long)]
        stripe_unit: Option<ByteSize>,
        /// Objects that a stripe goes over
        #[arg(long, default_value_t = 1)]
        stripe_count: u64,
    },
    /// List the images: size, space that they take themselves, snapshots, parent, lock
    Ls,
    /// Show what an image is
    Info {
        /// The image
        image: String,
    },
    /// Change the size of an image
    Resize {
        /// The image
        image: String,
        /// The new size
        size: ByteSize,
        /// Shrink even if data past the new end is lost
        #[arg(long)]
        allow_shrink: bool,
    },
    /// Give an image another name
    Rename {
        /// The image
        image: String,
        /// Its new name
        to: String,
    },
    /// Remove an image without snapshots
    Rm {
        /// The image
        image: String,
    },
    /// Snapshots of an image
    #[command(subcommand)]
    Snap(snap::Snap),
    /// Make an image that stands on a protected snapshot; it takes no space until it is written
    Clone {
        /// IMAGE@SNAPSHOT
        from: String,
        /// Name of the new image
        image: String,
    },
    /// Copy what a clone still has from its parent, so that it stands alone
    Flatten {
        /// The image
        image: String,
    },
    /// List the extents that changed
    Diff(transfer::Diff),
    /// Write an image or a snapshot to a file or stdout
    Export(transfer::Export),
    /// Make an image from a file or stdin, or apply an increment to one: whole or not at all
    Import(transfer::Import),
    /// The exclusive lock of an image
    #[command(subcommand)]
    Lock(Lock),
    /// Metadata of an image: names and values that belong to its users
    #[command(subcommand)]
    Meta(Meta),
    /// Finish what was left for the background: removed images and snapshots, interrupted shrinking
    Clean,
    /// Write or read an image as fast as it goes, through the library or NBD; writing overwrites what it holds
    Bench(bench::Bench),
    /// Make an image a file or block device of this machine, to be mounted, until Ctrl-C
    Map(map::Map),
    /// End what `map` has begun, and wait until everything is durable
    Unmap(map::Unmap),
}

#[derive(Subcommand)]
enum Lock {
    /// Show who has it
    Ls {
        /// The image
        image: String,
    },
    /// Take it: no other owner writes until it is broken
    Add {
        /// The image
        image: String,
        /// Name of the owner
        owner: String,
    },
    /// Break it: what its owner writes from now on is refused
    Break {
        /// The image
        image: String,
        /// The epoch that `ls` shows, so that no later lock is broken by mistake
        epoch: u64,
    },
}

#[derive(Subcommand)]
enum Meta {
    /// List all of it
    Ls {
        /// The image
        image: String,
    },
    /// Set a value
    Set {
        /// The image
        image: String,
        /// Its name
        key: String,
        /// The value
        value: String,
    },
    /// Remove a value
    Rm {
        /// The image
        image: String,
        /// Its name
        key: String,
    },
}

impl Volume {
    /// Runs the command.
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        match self.action {
            Action::Unmap(unmap) => return unmap.run(),
            Action::Map(map) if map.is_elsewhere() => return map.elsewhere(self.json),
            Action::Bench(bench) if bench.is_elsewhere() => return bench.elsewhere(self.json),
            _ => {}
        }
        let makes = matches!(self.action, Action::Create { .. } | Action::Import(_));
        let store = builder(settings).create(makes).open(&self.store.location(settings))?;
        let context = Context { volumes: store.volumes()?, store: store.clone(), json: self.json };
        let result = match self.action.changes() {
            Some(image) => context.release_left(image),
            None => Ok(()),
        };
        let result = result.and_then(|()| act(&context, self.action));
        store.close()?;
        result
    }
}

fn act(context: &Context, action: Action) -> Result<(), Failure> {
    let volumes = &context.volumes;
    match action {
        Action::Create { image, size, object_size, stripe_unit, stripe_count } => {
            let stripe_unit = stripe_unit.unwrap_or(object_size).0;
            let layout = Layout { object_bytes: object_size.0, stripe_unit, stripe_count };
            let made = volumes.create(&image, size.0, layout, context.now_ms())?;
            if context.json { print(&format!("{:#}\n", shown(&made.info()?, &made)?)) } else { Ok(()) }
        }
        Action::Ls => list(context),
        Action::Info { image } => info(context, &image),
        Action::Resize { image, size, allow_shrink } => Ok(context.image(&image)?.resize(size.0, allow_shrink)?),
        Action::Rename { image, to } => Ok(volumes.rename(&image, &to)?),
        Action::Rm { image } => {
            volumes.remove(&image)?;
            context.clean()
        }
        Action::Snap(snap) => snap.run(context),
        Action::Clone { from, image } => {
            let (parent, snapshot) = both(&from)?;
            volumes.clone_image(parent, snapshot, &image, context.now_ms())?;
            Ok(())
        }
        Action::Flatten { image } => {
            let image = context.image(&image)?;
            context.under_bar("flattening", |progress| image.flatten(progress)).map(drop)
        }
        Action::Diff(diff) => diff.run(context),
        Action::Export(export) => export.run(context),
        Action::Import(import) => import.run(context),
        Action::Lock(lock) => lock.run(context),
        Action::Meta(meta) => meta.run(context),
        Action::Clean => context.clean(),
        Action::Bench(bench) => bench.run(context),
        Action::Map(map) => map.run(context),
        Action::Unmap(unmap) => unmap.run(),
    }
}

impl Action {
    /// The image that it changes by itself, if the lock is in its way.
    fn changes(&self) -> Option<&str> {
        match self {
            Self::Resize { image, .. } | Self::Rm { image } | Self::Flatten { image } => Some(image),
            Self::Import(import) => Some(import.image()),
            Self::Snap(snap) => snap.changes(),
            Self::Lock(Lock::Add { image, .. }) => Some(image),
            _ => None,
        }
    }
}

impl Lock {
    fn run(self, context: &Context) -> Result<(), Failure> {
        match self {
            Self::Ls { image } => {
                let lock = context.image(&image)?.lock_info();
                let value = lock.as_ref().map(|lock| json!({"owner": lock.owner, "epoch": lock.epoch}));
                let text = lock.map_or("not locked\n".into(), |lock| format!("epoch {} {}\n", lock.epoch, lock.owner));
                context.tell(value.unwrap_or(Value::Null), &text)
            }
            Self::Add { image, owner } => {
                if owner.starts_with(SERVER_OWNER) {
                    let why = format!("owner {owner:?}: names that begin with {SERVER_OWNER:?} are those of servers");
                    return Err(Failure::usage(why));
                }
                let epoch = context.image(&image)?.lock(&owner)?;
                context.tell(json!({"owner": owner, "epoch": epoch}), &format!("epoch {epoch}\n"))
            }
            Self::Break { image, epoch } => Ok(context.image(&image)?.break_lock(epoch)?),
        }
    }
}

impl Meta {
    fn run(self, context: &Context) -> Result<(), Failure> {
        match self {
            Self::Ls { image } => {
                let meta = context.image(&image)?.meta()?;
                let text: String = meta.iter().map(|(key, value)| format!("{key}\t{value}\n")).collect();
                let map = meta.into_iter().map(|(key, value)| (key, Value::from(value))).collect();
                context.tell(Value::Object(map), &text)
            }
            Self::Set { image, key, value } => Ok(context.image(&image)?.set_meta(&key, Some(&value))?),
            Self::Rm { image, key } => Ok(context.image(&image)?.set_meta(&key, None)?),
        }
    }
}

fn list(context: &Context) -> Result<(), Failure> {
    let mut values = Vec::new();
    let mut text = String::new();
    for name in context.volumes.list()? {
        let image = match context.volumes.image(&name) {
            Err(Error::Unfinished { .. }) => {
                values.push(json!({"name": name, "unfinished": true}));
                text += &format!("{name}\tunfinished: being imported, or left by an import that was interrupted\n");
                continue;
            }
            // Removed a moment ago.
            Err(Error::NoImage { .. }) => continue,
            image => image?,
        };
        let (info, used, snapshots) = (image.info()?, image.stored_bytes()?, image.snapshots()?.len());
        let parent = info.parent.as_ref().map(|(image, snapshot, _)| format!("{image}@{snapshot}"));
        values.push(json!({
            "name": name, "size": info.size, "used": used, "snapshots": snapshots, "parent": parent, "lock": lock(&info),
        }));
        let owner = info.lock.map_or(String::new(), |lock| format!("locked by {}", lock.owner));
        text += &format!(
            "{name}\t{}\t{} used\t{snapshots} snapshots\t{}\t{owner}\n",
            ByteSize(info.size),
            ByteSize(used),
            parent.unwrap_or_default()
        );
    }
    context.tell(Value::Array(values), &text)
}

fn lock(info: &Info) -> Option<Value> {
    info.lock.as_ref().map(|lock| json!({"owner": lock.owner, "epoch": lock.epoch}))
}

fn shown(info: &Info, image: &Image) -> Result<Value, Failure> {
    Ok(json!({
        "name": info.name,
        "id": info.id,
        "size": info.size,
        "stored": image.stored_bytes()?,
        "object_size": info.layout.object_bytes,
        "stripe_unit": info.layout.stripe_unit,
        "stripe_count": info.layout.stripe_count,
        "created_ms": info.created_ms,
        "snapshots": image.snapshots()?.len(),
        "parent": info.parent.as_ref().map(|(image, snapshot, overlap)| json!({"image": image, "snapshot": snapshot, "overlap": overlap})),
        "depth": info.depth,
        "lock": lock(info),
        "rollback": info.rollback,
    }))
}

fn info(context: &Context, name: &str) -> Result<(), Failure> {
    let image = context.image(name)?;
    let value = shown(&image.info()?, &image)?;
    let abilities = context.volumes.abilities();
    let mut text: String = value
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| format!("{name:<13}{}\n", value.as_str().map_or(value.to_string(), str::to_owned)))
        .collect();
    for (able, lacks) in [
        (abilities.atomic_writes, "writes over several objects are not one transaction"),
        (abilities.locks, "no exclusive lock"),
        (abilities.snapshots, "no snapshots and no clones"),
        (abilities.cheap_snapshots || !abilities.snapshots, "the first write after a snapshot copies its object"),
        (abilities.persistent, "nothing survives the process"),
    ] {
        if !able {
            text += &format!("{:<13}{lacks}\n", "backend");
        }
    }
    context.tell(value, &text)
}
