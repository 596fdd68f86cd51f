//! What can go wrong with a device.

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The range is not inside the device. A mistake of the caller, or a device smaller than its store.
    #[error("{len} bytes at offset {offset} reach past the end of {name} ({device_len} bytes)")]
    OutOfRange {
        /// The device.
        name: String,
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Length of the device in bytes.
        device_len: u64,
    },
    /// Offset or length is not a multiple of the block. A mistake of the caller.
    #[error("{len} bytes at offset {offset} of {name} are not whole blocks of {block_bytes} bytes")]
    Unaligned {
        /// The device.
        name: String,
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Block size in bytes.
        block_bytes: u32,
    },
    /// A zoned device refused a write that is not at the write pointer. A mistake of the caller.
    #[error("write at offset {offset} of {name}: the zone's write pointer is at {write_pointer}")]
    NotSequential {
        /// The device.
        name: String,
        /// Where the write should have gone.
        offset: u64,
        /// The zone's write pointer, as an offset on the device.
        write_pointer: u64,
    },
    /// The file system under the file is full. Free space and try again.
    #[error("no space left for {len} bytes at offset {offset} of {name}")]
    NoSpace {
        /// The device.
        name: String,
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Another process has the device open. Stop that process, or open read-only beside nothing.
    #[error("{name} is in use by another process")]
    InUse {
        /// The device.
        name: String,
    },
    /// The device was opened read-only. Open it for writing.
    #[error("{name} is open read-only")]
    ReadOnly {
        /// The device.
        name: String,
    },
    /// Creating over something that exists. Choose another path, or remove it.
    #[error("{name} exists already")]
    Exists {
        /// The device.
        name: String,
    },
    /// The operating system failed. The cause says what to do.
    #[error("{what} of {name} at offset {offset} failed")]
    Io {
        /// The device.
        name: String,
        /// `open`, `read`, `write`, `sync`, `discard`, `lock`, `measure`.
        what: &'static str,
        /// Byte offset, 0 where there is none.
        offset: u64,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}
