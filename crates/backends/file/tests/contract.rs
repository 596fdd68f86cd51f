//! The contract suite on the file backend, on a real folder.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod support;

use support::OnFolder;

esker_store::contract_suite!(OnFolder);
