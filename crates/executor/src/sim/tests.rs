use paternoster_testing::runs;

use super::{planted::Planted, run::play, scenario::REQUESTS};

/// Number of runs in a normal test run.
const SHARE: u64 = if cfg!(debug_assertions) { 140 } else { 2_000 };

#[test]
fn pools_over_simulated_devices_answer_every_request_once_and_with_its_own_rows() {
    let Some(sum) = runs::some(SHARE, 3, |seed| play(seed, None)) else { return };
    assert!(sum.requests * 10 >= SHARE * REQUESTS * 9, "a run has {REQUESTS} requests");
    assert!(sum.cancelled * 10 >= sum.requests, "a tenth of the requests is cancelled");
    assert!(sum.failed_tasks * 100 >= sum.tasks, "a hundredth of the tasks fails");
}

#[test]
fn a_seed_replays_its_run() {
    let once = play(11, None).expect("nothing is wrong with it");
    assert_eq!(play(11, None), Ok(once));
    assert_ne!(play(12, None), Ok(once), "another seed is another run");
}

/// The long run; see [`runs::many`].
#[test]
#[ignore = "minutes in a release build"]
fn long() {
    runs::many(|seed| play(seed, None));
}

/// Findings that show that rows are not where they should be.
const WRONG_ROWS: [&str; 4] = ["may not be answered", "poison", "never written", "race"];

/// Each fault, and the findings that it may cause. The first of them must occur.
const FAULTS: &[(Planted, &[&str])] = &[
    (Planted::RowOffsetZero, &WRONG_ROWS),
    (Planted::NoWaitForWriter, &["race"]),
    (Planted::NoWaitForReader, &["race"]),
    (Planted::SwappedRows, &["may not be answered"]),
    (Planted::SwappedReplies, &["may not be answered"]),
    (Planted::ForeignLease, &["never written", "poison", "race", "may not be answered"]),
    (Planted::CreditTwice, &WRONG_ROWS),
    (Planted::LostCredit, &["deadlock"]),
    (Planted::LostCompletion, &["deadlock"]),
    (Planted::NewcomersForgotten, &["is not idle", "deadlock"]),
    (Planted::EarlyCompletion, &["race"]),
    (Planted::ShiftedOutcomes, &["may not be answered", "poison", "never written"]),
    (Planted::StrangersFail, &["may not be answered Err(Engine"]),
    (Planted::LostAnswer, &["deadlock", "before one that came before it"]),
    (Planted::TwoAnswers, &["ends twice"]),
    (Planted::Backwards, &["was poisoned"]),
    (Planted::NextSlot, &["accessed twice", "never written"]),
    (Planted::StepTooMany, &["may not be answered"]),
    (Planted::StepsForgotten, &["may not be answered"]),
    (Planted::StepsOfOthers, &["may not be answered"]),
    (Planted::OutputsReused, &["the host reads them"]),
    (Planted::NeverTaken, &["deadlock"]),
    (Planted::FailureUnnoticed, &["fails for no reason"]),
    (Planted::NeverFreed, &["are reserved without a request"]),
    (Planted::TakenOutOfOrder, &["may not be answered"]),
];

#[test]
fn every_planted_fault_is_found_for_what_it_is() {
    runs::find(FAULTS, |seed, planted| play(seed, Some(planted)));
}
