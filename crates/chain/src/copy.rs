//! Bringing a store to the state of another: only what differs is moved.
//!
//! ```text
//! snapshot → StoreSource: pages (span, digest) → bring_up: the same span here, the same digest? → the next page
//!                                                          ↓ no
//!            Source::content ← asked for, several ahead ←  fetched → what differs is written
//! between two pages → whatever the target has there is removed
//! ```
//!
//! The source cuts its state into [`Page`]s in one canonical order, and pages tell what lies between them: nothing. So
//! the target needs no memory of earlier copies. It may hold an older state, a newer one, half a copy or anything else.
//!
//! Invariants:
//! 1. After [`bring_up`] has returned `Ok` every read of every object outside the collections that were left out gives
//!    what the source gives, and is durable.
//! 2. Memory is bounded by pages, contents in flight and one transaction, whatever the stores hold.
//! 3. What is fetched is written only if it has the digest of its page and stays within the page's span.

mod bring;
mod content;
mod difference;
mod fetch;
mod keyed;
mod line;
mod pace;
mod page;
mod source;
mod write;

pub use bring::{Options, Progress, Report, bring_up};
pub use content::Content;
pub use page::{Page, Span};
pub use source::{Source, StoreSource};
