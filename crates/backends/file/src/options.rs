//! How a file store is opened.

/// How a file store is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Make the store if there is none. True by default.
    pub create: bool,
    /// Bytes of journal after which files are synced and the journal begins anew; from 4 KiB, 64 MiB by default.
    /// Opening after a crash does so much again; one group of transactions may go beyond it.
    pub checkpoint_bytes: u64,
    /// Files in a folder after which it is split into sixteen; from 1, 512 by default.
    pub folder_files_max: u64,
    /// Memory for pages of the table, in bytes. 64 MiB by default.
    pub cache_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { create: true, checkpoint_bytes: 64 << 20, folder_files_max: 512, cache_bytes: 64 << 20 }
    }
}
