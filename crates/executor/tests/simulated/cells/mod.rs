//! Cellular batching in virtual time. The production core gives lanes tasks of nodes. A node's value is a hash of what
//! it reads when its task begins, and is written to its request's state when the task ends. Every request is compared
//! with the same graph evaluated alone.
//!
//! A `world` (models, lanes, requests, faults) is drawn from a seed, and a `run` plays it.

mod again;
mod run;
mod sequences;
mod slots;
mod world;

use std::{num::NonZero, ops::AddAssign, thread, time::Instant};

use super::{random::number, rng::Rng};
use run::Run;
use slots::Planted;
use world::World;

/// Number of worlds in every test run.
const SHARE: u64 = if cfg!(debug_assertions) { 300 } else { 3_000 };

/// Counts of rare events.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rare {
    pub requests: u64,
    pub tasks: u64,
    pub failed_tasks: u64,
    /// Nodes of a subgraph continued on another lane.
    pub moved_lane: u64,
    /// Rows ran past the end of their loop, and were dropped.
    pub ran_past_the_end: u64,
    /// Requests were cancelled while rows of them ran.
    pub cancelled_aboard: u64,
    /// All rows of a task were cancelled while it ran.
    pub task_of_nobody: u64,
    /// Lanes were lost while tasks were on them.
    pub lanes_lost: u64,
    /// Requests whose state can never fit.
    pub never_fits: u64,
    /// Requests waited for room for their state while a lane was idle.
    pub waited_for_room: u64,
    /// A task had several nodes of one request.
    pub same_request_twice: u64,
    /// A task had nodes of several versions, or of several cells of one.
    pub shared_tasks: u64,
    /// Requests arrived while others were merged, and waited for all of them.
    pub waited_for_merged: u64,
    /// Tasks retried nodes that had failed before.
    pub retries: u64,
    /// Requests ended for another reason while nodes of theirs had yet to run again.
    pub ended_before_retry: u64,
    /// Rows were launched ahead of one that failed.
    pub void_rows: u64,
    /// Requests with a node that fails every task were isolated.
    pub bad_nodes: u64,
    /// A task failed while another one of its requests was in flight.
    pub failed_with_more_in_flight: u64,
    /// Tasks were refused, and failed before the tasks ahead of them.
    pub refused_behind_others: u64,
    /// Tasks failed while a node that depends on them and was refused had yet to run again.
    pub refused_ahead_of_a_failure: u64,
    /// Loops ended while a step beyond their end had yet to run again.
    pub ended_before_step_ran_again: u64,
    /// Sequences ended because no request arrived in time.
    pub sequences_reclaimed: u64,
    /// Sequences started again before their end.
    pub sequences_superseded: u64,
    /// Sequences started while all slots were held.
    pub sequences_waited: u64,
    /// Requests waited behind a first one that did not complete.
    pub requests_orphaned: u64,
    /// Requests left for another device before they boarded.
    pub requests_moved: u64,
}

impl AddAssign for Rare {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.tasks += other.tasks;
        self.failed_tasks += other.failed_tasks;
        self.moved_lane += other.moved_lane;
        self.ran_past_the_end += other.ran_past_the_end;
        self.cancelled_aboard += other.cancelled_aboard;
        self.task_of_nobody += other.task_of_nobody;
        self.lanes_lost += other.lanes_lost;
        self.never_fits += other.never_fits;
        self.waited_for_room += other.waited_for_room;
        self.same_request_twice += other.same_request_twice;
        self.shared_tasks += other.shared_tasks;
        self.waited_for_merged += other.waited_for_merged;
        self.retries += other.retries;
        self.ended_before_retry += other.ended_before_retry;
        self.void_rows += other.void_rows;
        self.bad_nodes += other.bad_nodes;
        self.failed_with_more_in_flight += other.failed_with_more_in_flight;
        self.refused_behind_others += other.refused_behind_others;
        self.refused_ahead_of_a_failure += other.refused_ahead_of_a_failure;
        self.ended_before_step_ran_again += other.ended_before_step_ran_again;
        self.sequences_reclaimed += other.sequences_reclaimed;
        self.sequences_superseded += other.sequences_superseded;
        self.sequences_waited += other.sequences_waited;
        self.requests_orphaned += other.requests_orphaned;
        self.requests_moved += other.requests_moved;
    }
}

impl Rare {
    fn each(&self) -> [(&'static str, u64); 23] {
        [
            ("moved to another lane", self.moved_lane),
            ("ran past the end of a loop", self.ran_past_the_end),
            ("cancelled while it ran", self.cancelled_aboard),
            ("all rows of a task cancelled", self.task_of_nobody),
            ("lane lost with tasks on it", self.lanes_lost),
            ("never fits", self.never_fits),
            ("waited for room", self.waited_for_room),
            ("two nodes of one request in a task", self.same_request_twice),
            ("shared by versions", self.shared_tasks),
            ("waited for merged requests", self.waited_for_merged),
            ("ran again", self.retries),
            ("ended before it ran again", self.ended_before_retry),
            ("launched ahead of a node that failed", self.void_rows),
            ("bad node found", self.bad_nodes),
            ("failed with more in flight", self.failed_with_more_in_flight),
            ("refused behind others", self.refused_behind_others),
            ("refused ahead of a failure", self.refused_ahead_of_a_failure),
            ("loop ended before a step beyond it ran again", self.ended_before_step_ran_again),
            ("sequence reclaimed", self.sequences_reclaimed),
            ("sequence begun anew", self.sequences_superseded),
            ("sequence waited for a slot", self.sequences_waited),
            ("refused behind a first one", self.requests_orphaned),
            ("left for another device", self.requests_moved),
        ]
    }
}

/// Plays the world of a seed, with or without a planted fault.
///
/// # Errors
/// The first violation that is found.
fn run(seed: u64, planted: Option<Planted>) -> Result<Rare, String> {
    Run::new(World::draw(&mut Rng::new(seed)), seed, planted).play()
}

/// Plays the world of a seed.
///
/// # Panics
/// If any violation is found; the message has the seed.
fn play(seed: u64) -> Rare {
    match run(seed, None) {
        Ok(rare) => rare,
        Err(broken) => panic!("seed {seed}: {broken} (PATERNOSTER_SEED={seed} cargo test --test simulated cells)"),
    }
}

/// Plays `runs` worlds, on all cores.
fn play_all(runs: u64) -> Rare {
    let cores = thread::available_parallelism().map_or(1, NonZero::get) as u64;
    thread::scope(|scope| {
        let shares = (0..cores).map(|core| {
            scope.spawn(move || {
                let mut own = Rare::default();
                (core..runs).step_by(cores as usize).for_each(|seed| own += play(seed));
                own
            })
        });
        let shares: Vec<_> = shares.collect();
        let mut all = Rare::default();
        for share in shares {
            match share.join() {
                Ok(own) => all += own,
                Err(panicked) => std::panic::resume_unwind(panicked),
            }
        }
        all
    })
}

#[test]
fn requests_through_cells_are_what_they_are_alone() {
    if let Some(seed) = number("PATERNOSTER_SEED") {
        play(seed);
        return;
    }
    let rare = play_all(SHARE);
    assert!(rare.each().iter().all(|(_, times)| *times > 0), "{rare:?}");
}

#[test]
#[ignore = "minutes: the long run by hand, in release"]
fn many_requests_through_cells_are_what_they_are_alone() {
    let began = Instant::now();
    let rare = play_all(100_000);
    println!("{rare:#?} in {:?}", began.elapsed());
    let rarest = rare.each().into_iter().min_by_key(|(_, times)| *times);
    assert!(rarest.is_some_and(|(_, times)| times >= 1_000), "too rare: {rarest:?}");
}

/// Plays worlds with a planted fault until it is found by the first of `by`. Any earlier finding must be by one of the
/// others.
#[track_caller]
fn is_found(planted: Planted, by: &[&str]) {
    for found in (0..60).filter_map(|seed| run(seed, Some(planted)).err()) {
        assert!(by.iter().any(|words| found.contains(words)), "{planted:?} was found by something else: {found}");
        if found.contains(by[0]) {
            return;
        }
    }
    panic!("{planted:?} was not found in 60 worlds");
}

#[test]
fn a_slot_of_two_requests_is_found() {
    is_found(Planted::OneForAll, &["names a slot of request", "names the slot of node"]);
    is_found(Planted::ReturnedEarly, &["names a slot of request", "names the slot of node"]);
}

#[test]
fn a_slot_that_is_not_there_is_found() {
    is_found(Planted::Beyond, &["names a slot beyond"]);
}

#[test]
fn a_request_that_goes_on_in_another_slot_is_found() {
    let others = ["names a slot of request", "names the slot of node"];
    is_found(Planted::Moved, &["goes on in another slot", others[0], others[1]]);
    is_found(Planted::Swapped, &["goes on in another slot", others[0], others[1]]);
}

#[test]
fn nodes_of_a_tree_in_one_slot_are_found() {
    is_found(Planted::OneForATree, &["names the slot of node", "goes on in another slot"]);
}
