//! How a log keeps its entries: layout, shape of its stripes, limits, retention.

use esker_store::limits::OBJECT_BYTES_MAX;
use esker_store::{Capability, Compression};

use crate::{Error, Result};

/// Most objects per stripe.
pub const WIDTH_MAX: u32 = 1_024;
/// Most positions per object.
pub const SLOTS_MAX: u32 = 1 << 24;
/// Largest entry, in bytes of data, that a log can be made for (8 MiB).
pub const ENTRY_BYTES_MAX: u32 = 8 << 20;
/// Most bytes of data that an entry of a byte stream may have to stand in the omap altogether (8 MiB).
pub const INLINE_BYTES_MAX: u32 = 8 << 20;

/// Where the entries of a data object stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Layout {
    /// In the omap (ZLog's first version).
    Omap = 1,
    /// In the bytes, appended one after another, with a small entry in the omap that says where; small ones in the omap
    /// altogether (ZLog's second version).
    Stream = 2,
    /// In slots: a flat index in memory (ZLog's third version).
    #[default]
    Slots = 3,
}

impl Layout {
    /// All of them, with the names that they are written with.
    pub const ALL: [(Self, &'static str); 3] = [(Self::Omap, "omap"), (Self::Stream, "stream"), (Self::Slots, "slots")];

    /// The best for a backend: slots where it has them, else the byte stream.
    pub fn best_for(capability: &Capability) -> Self {
        if capability.native_slots { Self::Slots } else { Self::Stream }
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.iter().map(|(layout, _)| *layout).find(|layout| *layout as u8 == number)
    }

    /// The name that it is written with.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(layout, _)| *layout == self).map_or("", |(_, name)| name)
    }
}

impl std::fmt::Display for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Layout {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|(_, known)| *known == name).map(|(layout, _)| *layout);
        found.ok_or_else(|| Error::invalid("layout", format!("{name:?}: expected omap, stream or slots")))
    }
}

/// What is chosen when a log is made. Width, slots and retention can be changed later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where entries stand. Default: slots.
    pub layout: Layout,
    /// Objects that positions go round, 1 to [`WIDTH_MAX`]. Default: 4.
    pub width: u32,
    /// Positions per object, 1 to [`SLOTS_MAX`]. Space is given back in whole stripes first. Default: 65,536.
    pub slots: u32,
    /// Largest entry in bytes of data, up to [`ENTRY_BYTES_MAX`]. Default: 1 MiB.
    pub entry_bytes_max: u32,
    /// Layout `stream`: entries up to so many bytes stand in the omap. Default: 4 KiB.
    pub inline_bytes_max: u32,
    /// Layout `stream`: a new stripe is begun when an object has so many bytes. Default: 256 MiB.
    pub object_bytes_max: u64,
    /// A hint for the store. Default: none.
    pub compression: Compression,
    /// Retention keeps so many positions; 0: all. Default: 0.
    pub retain_positions: u64,
    /// Retention keeps so many bytes, estimated from samples; 0: all. Default: 0.
    pub retain_bytes: u64,
    /// Retention keeps entries for so many milliseconds; 0: for ever. Default: 0.
    pub retain_ms: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            layout: Layout::default(),
            width: 4,
            slots: 65_536,
            entry_bytes_max: 1 << 20,
            inline_bytes_max: 4_096,
            object_bytes_max: 256 << 20,
            compression: Compression::None,
            retain_positions: 0,
            retain_bytes: 0,
            retain_ms: 0,
        }
    }
}

impl Options {
    /// Checks the shape of stripes.
    pub(crate) fn shape(width: u32, slots: u32) -> Result<()> {
        if width == 0 || width > WIDTH_MAX {
            return Err(Error::invalid("width", format!("{width}: expected 1 to {WIDTH_MAX} (WIDTH_MAX)")));
        }
        if slots == 0 || slots > SLOTS_MAX {
            return Err(Error::invalid("slots", format!("{slots}: expected 1 to {SLOTS_MAX} (SLOTS_MAX)")));
        }
        Ok(())
    }

    /// With objects that a store takes: one goes over the limit by its last entry.
    pub(crate) fn within(self, capability: &Capability) -> Result<Self> {
        let most = capability.object_bytes_max.saturating_sub(u64::from(self.entry_bytes_max));
        if most < u64::from(self.entry_bytes_max) {
            let (bytes, backend, max) = (self.entry_bytes_max, capability.backend, capability.object_bytes_max);
            let why = format!("{bytes}: {backend} takes objects of {max} bytes at most (object_bytes_max)");
            return Err(Error::invalid("entry_bytes_max", why));
        }
        Ok(Self { object_bytes_max: self.object_bytes_max.min(most), ..self })
    }

    pub(crate) fn check(&self) -> Result<()> {
        Self::shape(self.width, self.slots)?;
        let bytes = self.entry_bytes_max;
        if bytes == 0 || bytes > ENTRY_BYTES_MAX {
            return Err(Error::invalid(
                "entry_bytes_max",
                format!("{bytes}: expected 1 to {ENTRY_BYTES_MAX} (ENTRY_BYTES_MAX)"),
            ));
        }
        if self.object_bytes_max < u64::from(bytes) || self.object_bytes_max > OBJECT_BYTES_MAX / 2 {
            let why =
                format!("{}: expected the largest entry ({bytes}) to {}", self.object_bytes_max, OBJECT_BYTES_MAX / 2);
            return Err(Error::invalid("object_bytes_max", why));
        }
        if self.inline_bytes_max > INLINE_BYTES_MAX {
            let why = format!("{}: expected at most {INLINE_BYTES_MAX} (INLINE_BYTES_MAX)", self.inline_bytes_max);
            return Err(Error::invalid("inline_bytes_max", why));
        }
        Ok(())
    }
}
