//! Cellular batching in virtual time. The production core gives lanes tasks of nodes. A node's value is a hash of what
//! it reads when its task begins, and is written to its request's state when the task ends. Every request is compared
//! with the same graph evaluated alone.
//!
//! A `world` (models, lanes, requests, faults) is drawn from a seed, and a `run` plays it. `PATERNOSTER_SEED=…
//! cargo test -p paternoster-executor --test cells` replays a run. Only the core runs here: it says which requests join
//! a sequence and when it ends, which requests board and end together, and which nodes run again, while the pool
//! (`src/sim`) shows no more than responses.

mod again;
#[path = "../../src/sim/buckets.rs"]
mod buckets;
mod run;
mod sequences;
mod slots;
mod world;

use paternoster_testing::{counts, rng::Rng, runs};

use run::Run;
use slots::Planted;
use world::World;

/// Number of worlds in every test run.
const SHARE: u64 = if cfg!(debug_assertions) { 300 } else { 3_000 };

counts! {
    /// Counts of rare events.
    struct Rare {
        requests: "requests",
        tasks: "tasks",
        failed_tasks: "tasks that failed",
        moved_lane: "subgraphs that went on on another lane",
        ran_past_the_end: "rows that ran past the end of their loop",
        cancelled_aboard: "requests cancelled while rows of them ran",
        task_of_nobody: "tasks whose rows were all cancelled",
        lanes_lost: "lanes lost with tasks on them",
        never_fits: "requests whose state can never fit",
        waited_for_room: "requests that waited for room for their state while a lane was idle",
        same_request_twice: "tasks with several nodes of one request",
        shared_tasks: "tasks with nodes of several versions, or of several cells of one",
        waited_for_merged: "requests that waited for all of others that were merged",
        chunks: "tasks that ran several steps of a row",
        ragged_chunks: "tasks that ran several steps of a row, and fewer of another",
        retries: "tasks of nodes that had failed before",
        ended_before_retry: "requests that ended otherwise while nodes of theirs had yet to run again",
        void_rows: "rows launched ahead of one that failed",
        bad_nodes: "requests isolated because a node of theirs fails every task",
        failed_with_more_in_flight: "tasks that failed with another of their requests in flight",
        refused_behind_others: "tasks that were refused, and failed before the tasks ahead of them",
        refused_ahead_of_a_failure: "tasks that failed while a refused node that depends on them had yet to run again",
        ended_before_step_ran_again: "loops that ended while a step beyond their end had yet to run again",
        sequences_reclaimed: "sequences that ended because no request came in time",
        sequences_superseded: "sequences that started again before their end",
        sequences_waited: "sequences that started while all slots were held",
        requests_orphaned: "requests behind a first one that did not complete",
        requests_moved: "requests that left for another device before they boarded",
    }
}

/// Plays the world of a seed, with or without a planted fault.
///
/// # Errors
/// The first violation that is found.
fn run(seed: u64, planted: Option<Planted>) -> Result<Rare, String> {
    Run::new(World::draw(&mut Rng::new(seed)), seed, planted).play()
}

#[test]
fn requests_through_cells_are_what_they_are_alone() {
    runs::some(SHARE, 1, |seed| run(seed, None));
}

#[test]
#[ignore = "minutes: the long run by hand, in release"]
fn many_requests_through_cells_are_what_they_are_alone() {
    runs::many(|seed| run(seed, None));
}

#[test]
fn slots_that_a_device_cannot_use_are_found() {
    let of_others = ["names a slot of request", "names the slot of node"];
    let moved = ["goes on in another slot", of_others[0], of_others[1]];
    let faults: &[(Planted, &[&str])] = &[
        (Planted::OneForAll, &of_others),
        (Planted::ReturnedEarly, &of_others),
        (Planted::Beyond, &["names a slot beyond"]),
        (Planted::Moved, &moved),
        (Planted::Swapped, &moved),
        (Planted::OneForATree, &["names the slot of node", "goes on in another slot"]),
    ];
    runs::find(faults, |seed, planted| run(seed, Some(planted)));
}
