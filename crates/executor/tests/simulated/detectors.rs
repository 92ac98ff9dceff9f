//! Each detector finds the fault that it is for.

use super::{planted::Planted, random::play};

/// Seeds tried for each fault. A fault shows only where its victim occurs, so a single run may pass.
const TRIED: u64 = 60;

/// Plays runs with a planted fault until it is found by the first of `by`. Any earlier finding must be by one of the
/// others.
#[track_caller]
fn is_found(planted: Planted, by: &[&str]) {
    for found in (0..TRIED).filter_map(|seed| play(seed, Some(planted), 1).err()) {
        assert!(by.iter().any(|words| found.contains(words)), "{planted:?} was found by something else: {found}");
        if found.contains(by[0]) {
            return;
        }
    }
    panic!("{planted:?} was not found in {TRIED} runs");
}

/// Findings that show that rows are not where they should be.
const WRONG_ROWS: [&str; 4] = ["is answered with", "poisoned", "never written", "race"];

#[test]
fn rows_at_the_base_of_the_buffer_are_found() {
    is_found(Planted::RowOffsetZero, &WRONG_ROWS);
}

#[test]
fn a_missing_wait_for_a_writer_is_found_as_a_race() {
    is_found(Planted::NoWaitForWriter, &["race"]);
}

#[test]
fn a_missing_wait_for_a_reader_is_found_as_a_race() {
    is_found(Planted::NoWaitForReader, &["race"]);
}

#[test]
fn swapped_rows_are_found() {
    is_found(Planted::SwappedRows, &["is answered with"]);
}

#[test]
fn swapped_replies_are_found() {
    is_found(Planted::SwappedReplies, &["is answered with"]);
}

#[test]
fn a_read_under_the_lease_of_another_is_found() {
    is_found(Planted::ForeignLease, &["never written", "poisoned", "race", "is answered with"]);
}

#[test]
fn a_credit_that_returns_twice_is_found() {
    is_found(Planted::CreditTwice, &WRONG_ROWS);
}

#[test]
fn a_credit_that_never_returns_is_found_as_a_deadlock() {
    is_found(Planted::LostCredit, &["deadlock"]);
}

#[test]
fn an_end_that_is_never_told_is_found_as_a_deadlock() {
    is_found(Planted::LostCompletion, &["deadlock"]);
}

#[test]
fn older_rows_that_wait_for_cancelled_newcomers_are_found_as_a_deadlock() {
    is_found(Planted::NewcomersForgotten, &["deadlock", "is not drained"]);
}

#[test]
fn an_end_that_is_told_too_early_is_found_as_a_race() {
    is_found(Planted::EarlyCompletion, &["race"]);
}

#[test]
fn outcomes_of_the_wrong_rows_are_found() {
    is_found(Planted::ShiftedOutcomes, &["is answered with", "may not end", "poisoned", "never written"]);
}

#[test]
fn a_request_that_never_ends_is_found() {
    is_found(Planted::LostAnswer, &["deadlock", "are left"]);
}

#[test]
fn a_request_that_ends_twice_is_found() {
    is_found(Planted::TwoAnswers, &["ends twice"]);
}

#[test]
fn requests_that_fail_by_the_fault_of_others_are_found() {
    is_found(Planted::StrangersFail, &["may not end Failed"]);
}
