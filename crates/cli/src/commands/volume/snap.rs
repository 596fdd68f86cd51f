//! `esker volume snap`: snapshots of an image.

use clap::Subcommand;
use esker::ByteSize;
use serde_json::{Value, json};

use super::context::{Context, both, split};
use crate::exit::Failure;

/// The actions on snapshots.
#[derive(Subcommand)]
pub enum Snap {
    /// Make a snapshot of the image as it is now
    Create {
        /// IMAGE@SNAPSHOT
        snapshot: String,
    },
    /// List the snapshots of an image, oldest first
    Ls {
        /// The image
        image: String,
    },
    /// Remove a snapshot that is not protected
    Rm {
        /// IMAGE@SNAPSHOT
        snapshot: String,
    },
    /// Protect a snapshot from removal, so that it may be cloned
    Protect {
        /// IMAGE@SNAPSHOT
        snapshot: String,
    },
    /// Take the protection of a snapshot without clones away
    Unprotect {
        /// IMAGE@SNAPSHOT
        snapshot: String,
    },
    /// List the images that are clones of a snapshot
    Children {
        /// IMAGE@SNAPSHOT
        snapshot: String,
    },
    /// Make an image what it was at a snapshot; what was written since is lost
    Rollback {
        /// IMAGE@SNAPSHOT
        snapshot: String,
    },
}

impl Snap {
    /// The image that it changes.
    pub(super) fn changes(&self) -> Option<&str> {
        match self {
            Self::Ls { .. } | Self::Children { .. } => None,
            Self::Create { snapshot }
            | Self::Rm { snapshot }
            | Self::Protect { snapshot }
            | Self::Unprotect { snapshot }
            | Self::Rollback { snapshot } => Some(split(snapshot).0),
        }
    }

    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        match self {
            Self::Create { snapshot } => {
                let (image, name) = both(&snapshot)?;
                context.image(image)?.snapshot_create(name, context.now_ms())?;
                Ok(())
            }
            Self::Ls { image } => list(context, &image),
            Self::Rm { snapshot } => {
                let (image, name) = both(&snapshot)?;
                context.image(image)?.snapshot_remove(name)?;
                context.clean()
            }
            Self::Protect { snapshot } => {
                let (image, name) = both(&snapshot)?;
                Ok(context.image(image)?.snapshot_protect(name)?)
            }
            Self::Unprotect { snapshot } => {
                let (image, name) = both(&snapshot)?;
                Ok(context.image(image)?.snapshot_unprotect(name)?)
            }
            Self::Children { snapshot } => {
                let (image, name) = both(&snapshot)?;
                let children = context.volumes.children(image, name)?;
                let text: String = children.iter().map(|child| format!("{child}\n")).collect();
                context.tell(json!(children), &text)
            }
            Self::Rollback { snapshot } => {
                let (image, name) = both(&snapshot)?;
                let image = context.image(image)?;
                context.under_bar("rolling back", |progress| image.rollback(name, progress)).map(drop)
            }
        }
    }
}

fn list(context: &Context, image: &str) -> Result<(), Failure> {
    let (mut values, mut text) = (Vec::new(), String::new());
    for snap in context.image(image)?.snapshots()? {
        values.push(json!({
            "id": snap.id, "name": snap.name, "size": snap.size, "created_ms": snap.created_ms,
            "protected": snap.protected, "children": snap.children,
        }));
        let protected = if snap.protected { "protected" } else { "" };
        text += &format!("{}\t{}\t{protected}\n", snap.name, ByteSize(snap.size));
    }
    context.tell(Value::Array(values), &text)
}
