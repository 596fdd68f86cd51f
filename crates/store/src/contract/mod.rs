//! The contract: what every [`ObjectStore`] promises, as tests that every backend passes unchanged.
//!
//! backend's `tests/contract.rs` → [`contract_suite!`](crate::contract_suite) → one `#[test]` per promise → [`Harness`]
//!
//! A backend implements [`Harness`] (make a store) and [`Opened`] (look at it, reopen it), and writes:
//!
//! ```ignore
//! esker_store::contract_suite!(MyHarness);
//! ```
//!
//! Tests of what a backend lacks by its own [`Capability`](crate::Capability) print that they are skipped; where a
//! missing ability has to be refused, that is tested instead.
//!
//! Invariants:
//! 1. Each test makes its own store and needs at most [`ROOM_BYTES`] of room.
//! 2. Every test of these files is in the macro's list (a test here holds this).

mod actions;
pub mod atomicity;
pub mod bytes;
pub mod commit_order;
pub mod concurrency;
pub mod copies;
pub mod deaf;
pub mod durability;
pub mod guards;
mod lacking;
pub mod limits;
pub mod names;
pub mod omap;
mod sessions;
pub mod slots;
pub mod snapshots;
mod watched;
pub mod watching;
pub mod xattrs;

pub use lacking::PerObject;
pub use sessions::Sessions;
pub use watched::{Call, Watch, Watched};

use crate::ObjectStore;

/// Room that a harness's store must have for payload and for what it keeps beside it, in bytes (256 MiB).
pub const ROOM_BYTES: u64 = 256 << 20;

/// Makes stores to test.
pub trait Harness: Send + Sync {
    /// A new, empty store with at least [`ROOM_BYTES`] of room (less is enough for the model test with small options).
    fn fresh(&self) -> Box<dyn Opened>;
}

/// A store that is open, and what it is kept on.
pub trait Opened: Send {
    /// The store.
    fn store(&self) -> &dyn ObjectStore;

    /// Closes the store and opens it again on the same data. Only called where
    /// [`Capability::persistent`](crate::Capability::persistent) is true; others need not implement it.
    fn reopen(&mut self) {
        unreachable!("{} is not persistent and is not reopened", self.store().capability().backend)
    }
}

/// Makes one `#[test]` per promise of the contract, run with the [`Harness`](crate::contract::Harness) that the
/// expression gives.
///
/// ```ignore
/// esker_store::contract_suite!(MyHarness::new());
/// ```
#[macro_export]
macro_rules! contract_suite {
    ($harness:expr) => {
        $crate::contract_suite! { @tests ($harness)
            names: collections_are_created_once_and_listed_in_name_order;
            names: a_collection_is_removed_only_when_it_is_empty;
            names: removing_a_missing_collection_does_nothing;
            names: whatever_adds_creates_the_object;
            names: whatever_takes_away_from_a_missing_object_does_nothing;
            names: an_object_needs_its_collection;
            names: a_missing_object_reads_like_an_empty_one;
            names: stat_counts_all_four_spaces;
            names: list_pages_in_name_order;
            names: names_may_hold_any_bytes;
            names: the_same_name_in_two_collections_is_two_objects;
            names: remove_takes_all_four_spaces;
            names: remove_and_recreate_in_one_transaction_leaves_a_new_object;
            names: an_object_created_and_removed_in_one_transaction_leaves_nothing;
            bytes: a_write_is_read_back_at_any_offset;
            bytes: overlapping_writes_leave_the_newest_bytes;
            bytes: a_gap_before_a_write_is_a_hole;
            bytes: reading_past_the_end_is_short;
            bytes: an_empty_write_only_creates;
            bytes: zero_punches_a_hole_and_grows;
            bytes: truncate_cuts_and_what_comes_back_is_zeros;
            bytes: truncate_up_adds_a_hole;
            bytes: extents_are_joined_and_cut_to_the_range;
            bytes: written_zeros_are_data;
            bytes: random_overlaps_match_a_plain_buffer;
            bytes: objects_are_sparse_up_to_the_largest_offset;
            bytes: a_reversed_read_is_no_panic;
            xattrs: xattrs_are_set_replaced_and_removed;
            xattrs: xattrs_are_listed_by_name;
            omap: omap_keys_are_set_replaced_and_removed;
            omap: empty_keys_and_values_are_kept;
            omap: omap_keys_are_ordered_as_bytes;
            omap: omap_scan_keeps_bounds_in_both_directions;
            omap: omap_scan_honours_limit_and_keys_only;
            omap: omap_scan_of_an_empty_range_is_empty;
            omap: omap_remove_range_keeps_its_bounds;
            omap: omap_clear_takes_all_keys_and_nothing_else;
            omap: omap_get_many_answers_in_the_order_asked;
            omap: omap_get_many_refuses_what_is_too_much_together;
            omap: a_short_omap_scan_goes_on_to_the_end;
            slots: slots_are_set_replaced_and_removed;
            slots: any_slot_number_can_be_filled;
            slots: slot_scan_keeps_bounds_in_both_directions;
            slots: slot_scan_honours_limit_and_keys_only;
            slots: slot_remove_range_keeps_its_bounds;
            slots: the_last_slot_is_in_ranges_that_end_at_the_maximum;
            slots: slot_get_many_answers_in_the_order_asked;
            slots: slots_and_omap_do_not_mix;
            slots: a_slot_scan_returns_at_most_scan_entries_max;
            slots: a_short_slot_scan_goes_on_to_the_end;
            guards: existence_guards_hold_and_fail;
            guards: size_guards_need_the_object;
            guards: xattr_guards_hold_and_fail;
            guards: xattr_compare_knows_all_five_comparisons;
            guards: xattr_compare_of_an_absent_value_does_as_told;
            guards: xattr_compare_of_another_length_fails;
            guards: omap_guards_hold_and_fail;
            guards: slot_guards_hold_and_fail;
            guards: the_first_guard_that_fails_is_named;
            guards: guards_see_the_state_before_the_transaction;
            guards: guards_may_look_at_other_objects;
            guards: guards_alone_are_a_check;
            guards: guards_on_a_missing_collection_see_no_object;
            guards: guards_are_decided_before_operations;
            atomicity: operations_see_the_operations_before_them_in_bytes;
            atomicity: operations_see_the_operations_before_them_in_xattrs;
            atomicity: operations_see_the_operations_before_them_in_omap;
            atomicity: operations_see_the_operations_before_them_in_slots;
            atomicity: operations_see_the_operations_before_them_in_names;
            atomicity: a_transaction_over_objects_and_collections_is_applied_whole;
            atomicity: a_failed_guard_changes_nothing;
            atomicity: a_transaction_that_does_not_wait_for_room_is_applied_where_there_is_some;
            atomicity: a_missing_collection_changes_nothing;
            atomicity: a_collection_that_is_not_empty_changes_nothing;
            atomicity: an_exceeded_limit_changes_nothing;
            atomicity: an_invalid_operation_changes_nothing;
            atomicity: an_empty_transaction_is_accepted;
            limits: collection_names_are_limited;
            limits: object_names_are_limited;
            limits: omap_keys_are_limited;
            limits: xattr_names_are_limited;
            limits: xattr_values_are_limited;
            limits: values_and_writes_are_limited;
            limits: a_value_at_the_limit_is_stored;
            limits: object_offsets_are_limited;
            limits: transactions_are_limited_in_bytes;
            limits: transactions_are_limited_in_operations;
            limits: reads_are_limited;
            limits: guards_are_limited_too;
            copies: clone_copies_all_four_spaces;
            copies: a_clone_and_its_source_live_apart;
            copies: clone_replaces_what_the_target_held;
            copies: clone_goes_to_another_collection;
            copies: an_object_cloned_onto_itself_stays;
            copies: clone_range_copies_data_and_holes;
            copies: clone_range_past_the_end_reads_as_zeros;
            copies: clone_range_creates_and_grows_its_target;
            copies: clone_range_may_overlap_itself;
            copies: clone_of_a_clone_outlives_both;
            copies: rename_keeps_everything;
            copies: rename_goes_to_another_collection;
            copies: rename_onto_an_object_is_refused;
            copies: a_missing_source_refuses_the_transaction;
            copies: a_missing_target_collection_refuses_the_transaction;
            copies: copies_see_the_operations_before_them;
            copies: random_clones_match_plain_buffers;
            copies: copies_that_cannot_be_made_are_refused;
            commit_order: commit_scan_gives_entries_in_commit_order;
            commit_order: overwritten_entries_come_later;
            commit_order: removed_entries_do_not_come;
            commit_order: commit_scan_pages_with_its_cursor;
            commit_order: commit_scan_sees_what_was_overwritten_between_pages_again;
            commit_order: commit_scan_keeps_to_its_collection_and_prefix;
            commit_order: commit_scan_of_large_transactions_keeps_its_limit;
            commit_order: commit_scan_is_refused_where_it_is_missing;
            durability: commit_sequence_grows;
            durability: an_applied_write_is_readable_at_once;
            durability: a_durable_write_is_readable_by_its_writer_before_it_is_durable;
            durability: sync_covers_everything_before_it;
            durability: completions_are_futures;
            durability: readers_wait_for_durable_writes;
            durability: readers_of_an_applied_copy_wait_for_what_was_copied;
            durability: everything_durable_is_there_after_reopening;
            durability: removed_things_stay_removed_after_reopening;
            durability: synced_asynchronous_writes_are_there_after_reopening;
            durability: commit_sequence_grows_across_reopening;
            durability: many_reopenings_lose_nothing;
            snapshots: a_snapshot_stays_as_it_was;
            snapshots: a_snapshot_is_read_only;
            snapshots: a_snapshot_shows_one_moment;
            watching: who_watches_is_called_after_a_notify;
            watching: of_many_notifies_the_last_is_heard;
            watching: several_watch_one_object_and_each_its_own;
            watching: a_watching_that_was_dropped_is_called_no_more;
            watching: an_object_that_is_missing_is_not_watched;
            watching: an_object_that_goes_and_comes_again_is_watched_again;
            watching: watching_is_refused_where_it_is_missing;
            concurrency: one_of_many_creators_wins;
            concurrency: one_of_many_compare_and_set_writers_wins;
            concurrency: guarded_counters_lose_no_update;
            concurrency: amounts_moved_between_objects_keep_their_sum;
            concurrency: readers_never_see_half_a_transaction;
            concurrency: scans_show_one_moment;
            concurrency: commit_sequence_is_unique_across_threads;
            concurrency: objects_come_and_go_under_readers;
            concurrency: objects_come_and_go_under_writers;
        }
    };
    (@tests ($harness:expr) $($module:ident: $name:ident;)*) => {
        $(
            #[test]
            fn $name() {
                $crate::contract::$module::$name(&$harness);
            }
        )*
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_promise_is_in_the_suite() {
        let list = include_str!("mod.rs");
        let files = [
            ("names", include_str!("names.rs")),
            ("bytes", include_str!("bytes.rs")),
            ("xattrs", include_str!("xattrs.rs")),
            ("omap", include_str!("omap.rs")),
            ("slots", include_str!("slots.rs")),
            ("guards", include_str!("guards.rs")),
            ("atomicity", include_str!("atomicity.rs")),
            ("limits", include_str!("limits.rs")),
            ("copies", include_str!("copies.rs")),
            ("commit_order", include_str!("commit_order.rs")),
            ("durability", include_str!("durability.rs")),
            ("snapshots", include_str!("snapshots.rs")),
            ("concurrency", include_str!("concurrency.rs")),
            ("watching", include_str!("watching.rs")),
        ];
        let mut found = 0;
        for (module, text) in files {
            for line in text.lines().filter_map(|line| line.strip_prefix("pub fn ")) {
                let name = line.split('(').next().unwrap();
                assert!(list.contains(&format!(" {module}: {name};")), "{module}::{name} is not in contract_suite!");
                found += 1;
            }
        }
        let listed = list.lines().filter(|line| line.ends_with(';') && line.starts_with("            ")).count();
        assert!(found > 100 && listed >= found, "{found} promises, {listed} in the list");
    }
}
