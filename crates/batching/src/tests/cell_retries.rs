//! Rows of failed cell tasks run again, in halves, until the rows that fail on their own are found.

use paternoster_model::{CellId, Next, RowOutcome, unfold::Unfolded};

use super::cellular::{cell, cellular, chain, core, done, failed, merging, paper, request, said, tree};
use crate::{
    Arrival, CellKind, CellKnobs, Core, CostPoint, CostTable, Event, Instant, Knobs, LaneId, LaneKnobs, LazyCellKnobs,
    ModelId, Policy, ReqId, SegmentKnobs, StageKnobs, TaskId,
};

/// A core on one lane whose actions are returned as text and whose invariants are checked.
struct TextCore(Core);

impl TextCore {
    fn new(knobs: Knobs) -> Self {
        Self(core(knobs, 1, LaneKnobs::default()))
    }

    /// Creates a core on a lane that takes `depth` tasks at once.
    fn ahead(mut knobs: Knobs, types: u16, depth: u16) -> Self {
        let takes = |took_ns| vec![CostPoint { rows: 1, length: 0, took_ns }];
        knobs.latencies = Some(CostTable { stages: (0..types).map(|_| takes(10)).collect() });
        knobs.stages = StageKnobs::chain(types);
        Self(core(knobs, 1, LaneKnobs { horizon_ns: 1_000, depth }))
    }

    fn step(&mut self, event: Event<'_>) -> String {
        let said = said(&self.0.step(Instant::ZERO, event));
        assert_eq!(self.0.check(), Ok(()));
        said
    }

    fn arrives(&mut self, req: u64, steps: &[u32]) -> String {
        let graph = steps.iter().map(|steps| Unfolded::Steps(*steps)).collect();
        self.step(Event::Arrived(request(req, graph)))
    }
}

/// Starts the first cell of request 0; the other requests, with these numbers of steps, wait.
fn waiting(mut traced: TextCore, others: &[u32]) -> TextCore {
    assert_eq!(traced.arrives(0, &[1]), "#0 cell 0: 0.0");
    for (req, steps) in (1..).zip(others) {
        assert_eq!(traced.arrives(req, &[*steps]), "");
    }
    traced
}

#[test]
fn one_that_fails_alone_is_found_by_halves_and_the_others_go_on_together() {
    let mut traced = waiting(TextCore::new(chain(4, 9)), &[2, 2, 2, 2]);
    assert_eq!(traced.step(done(0)), "0 Completed; #1 cell 0: 1.0 2.0 3.0 4.0");
    assert_eq!(traced.arrives(5, &[1]), "");
    assert_eq!(traced.step(failed(1)), "#2 cell 0: 1.0 2.0", "nobody joins them");
    assert_eq!(traced.step(done(2)), "#3 cell 0: 3.0 4.0", "before what they made ready, which is younger");
    assert_eq!(traced.step(failed(3)), "#4 cell 0: 3.0");
    assert_eq!(traced.step(failed(4)), "3 Failed; #5 cell 0: 4.0");
    assert_eq!(traced.step(done(5)), "#6 cell 0: 1.1 2.1 4.1 5.0", "as before, and others board");
    assert_eq!(traced.step(done(6)), "1 Completed; 2 Completed; 4 Completed; 5 Completed");
    let counters = traced.0.counters()[0].1;
    assert_eq!((counters.tasks_failed, counters.retries, counters.failed), (3, 4, 1));
    assert_eq!((counters.tasks_launched, counters.rows_launched), (7, 1 + 4 + 2 + 2 + 1 + 1 + 4));
}

#[test]
fn one_bad_request_of_64_costs_twelve_further_tasks() {
    for bad in 1..=64 {
        let mut traced = waiting(TextCore::new(chain(64, 99)), &[1; 64]);
        let mut said = traced.step(done(0));
        let mut tasks = 1;
        while let Some(task) = said.split("; ").last().filter(|last| last.starts_with('#')) {
            let is_bad = task.split(' ').any(|row| row == format!("{bad}.0"));
            said = traced.step(if is_bad { failed(tasks) } else { done(tasks) });
            tasks += 1;
        }
        let counters = traced.0.counters()[0].1;
        assert_eq!((counters.completed, counters.failed), (64, 1), "only {bad} is bad");
        assert_eq!(tasks, 2 + 2 * 6, "one for the request before, one that fails, and two for each halving");
    }
}

#[test]
fn a_request_that_ends_meanwhile_is_passed_over() {
    let mut traced = waiting(TextCore::new(chain(4, 9)), &[1, 1, 1, 1]);
    traced.step(done(0));
    assert_eq!(traced.step(failed(1)), "#2 cell 0: 1.0 2.0");
    assert_eq!(traced.step(Event::Cancelled(ReqId(1))), "1 Cancelled", "its node runs");
    assert_eq!(traced.step(Event::Cancelled(ReqId(3))), "3 Cancelled", "its node waits");
    assert_eq!(traced.step(failed(2)), "#3 cell 0: 4.0");
    assert_eq!(
        traced.step(done(3)),
        "4 Completed; #4 cell 0: 2.0",
        "alone, though it was not known whose fault it was"
    );
    assert_eq!(traced.step(Event::Cancelled(ReqId(2))), "2 Cancelled");
    assert_eq!(traced.step(failed(4)), "");
}

#[test]
fn a_node_that_says_that_it_failed_ends_its_request_in_a_second_run_too() {
    let mut traced = waiting(TextCore::new(chain(4, 9)), &[2, 2, 2]);
    traced.step(done(0));
    assert_eq!(traced.step(failed(1)), "#2 cell 0: 1.0 2.0");
    let rows = [Next::Done, Next::Failed].map(|next| RowOutcome { next, emitted: false });
    let said = traced.step(Event::Completed { task: TaskId(2), rows: &rows });
    assert_eq!(said, "2 Failed; 1 Completed; #3 cell 0: 3.0");
    assert_eq!(traced.step(done(3)), "#4 cell 0: 3.1");
}

#[test]
fn what_was_launched_ahead_of_a_failed_task_is_void_and_runs_again() {
    let mut traced = TextCore::ahead(chain(4, 9), 1, 3);
    assert_eq!(traced.arrives(0, &[9]), "#0 cell 0: 0.0; #1 cell 0: 0.1; #2 cell 0: 0.2");
    assert_eq!(traced.arrives(1, &[3]), "");
    assert_eq!(traced.step(done(0)), "#3 cell 0: 0.3 1.0");
    assert_eq!(traced.step(done(1)), "#4 cell 0: 0.4 1.1");
    assert_eq!(traced.step(done(2)), "#5 cell 0: 0.5 1.2");
    assert_eq!(traced.step(failed(3)), "#6 cell 0: 0.3", "behind the two that are void");
    assert_eq!(traced.step(done(4)), "#7 cell 0: 1.0");
    let ends = [Next::Done, Next::Done].map(|next| RowOutcome { next, emitted: true });
    assert_eq!(traced.step(Event::Completed { task: TaskId(5), rows: &ends }), "", "whatever they say");
    assert_eq!(traced.step(done(6)), "#8 cell 0: 0.4; #9 cell 0: 0.5");
    assert_eq!(traced.step(failed(7)), "1 Failed; #10 cell 0: 0.6");
}

#[test]
fn void_rows_that_fail_once_more_fail_nobody() {
    let mut traced = TextCore::ahead(chain(4, 9), 1, 2);
    assert_eq!(traced.arrives(0, &[2]), "#0 cell 0: 0.0; #1 cell 0: 0.1");
    traced.arrives(1, &[2]);
    traced.arrives(2, &[2]);
    assert_eq!(traced.step(done(0)), "#2 cell 0: 1.0 2.0");
    assert_eq!(traced.step(done(1)), "0 Completed; #3 cell 0: 1.1 2.1");
    assert_eq!(traced.step(failed(2)), "#4 cell 0: 1.0");
    assert_eq!(traced.step(failed(3)), "#5 cell 0: 2.0", "both of its rows were void");
    assert_eq!(traced.step(failed(4)), "1 Failed");
    assert_eq!(traced.step(done(5)), "#6 cell 0: 2.1");
    assert_eq!(traced.step(done(6)), "2 Completed");
}

#[test]
fn nodes_of_a_tree_wait_for_those_that_run_again() {
    let segments = [SegmentKnobs::Tree { leaf: CellId(0), inner: CellId(1) }];
    let mut knobs = cellular(&[cell(8, 2), cell(8, 1)], &segments, 99);
    if let Policy::Cellular(cellular) = &mut knobs.policy {
        cellular.frontier = false;
    }
    let mut traced = TextCore::ahead(knobs, 2, 2);
    assert_eq!(traced.step(Event::Arrived(request(0, vec![tree(4)]))), "#0 cell 0: 0.0 0.1 0.2 0.3");
    assert_eq!(traced.step(failed(0)), "#1 cell 0: 0.0 0.1; #2 cell 0: 0.2 0.3");
    assert_eq!(traced.step(done(1)), "");
    assert_eq!(traced.step(done(2)), "#3 cell 1: 0.4 0.5; #4 cell 1: 0.6");
    assert_eq!(traced.step(failed(3)), "#5 cell 1: 0.4", "behind their parent, which is void");
    assert_eq!(traced.step(done(4)), "#6 cell 1: 0.5");
    assert_eq!(traced.step(done(5)), "", "the parent waits for both");
    assert_eq!(traced.step(done(6)), "#7 cell 1: 0.6");
    assert_eq!(traced.step(done(7)), "0 Completed");
}

#[test]
fn versions_that_share_a_task_run_their_rows_again_apart() {
    let kind = Some(CellKind(7));
    let knobs = || {
        let segments = [SegmentKnobs::Steps { cell: CellId(0) }];
        cellular(&[CellKnobs { kind, ..cell(4, 1) }], &segments, 9)
    };
    let mut traced = TextCore::new(knobs());
    traced.step(Event::ModelUp(ModelId(1), Box::new(knobs())));
    traced.arrives(0, &[1]);
    for (req, model) in [(1, 0), (2, 0), (3, 1), (4, 1), (5, 0)] {
        let arrival = request(req, vec![Unfolded::Steps(1)]);
        traced.step(Event::Arrived(Arrival { model: ModelId(model), ..arrival }));
    }
    assert_eq!(traced.step(done(0)), "0 Completed; #1 cell 0: 1.0 2.0 5.0 3.0");
    assert_eq!(traced.step(failed(1)), "#2 cell 0: 3.0", "the one of version 1, and nobody beside it");
    assert_eq!(traced.step(failed(2)), "3 Failed; #3 cell 0: 1.0 2.0", "two of version 0, and nobody of version 1");
    assert_eq!(traced.step(done(3)), "1 Completed; 2 Completed; #4 cell 0: 4.0");
    assert_eq!(traced.step(done(4)), "4 Completed; #5 cell 0: 5.0");
    assert_eq!(traced.step(done(5)), "5 Completed");
}

#[test]
fn by_algorithm_1_rows_that_run_again_go_before_full_ones_of_their_priority_and_behind_those_of_a_higher() {
    for (priority, expected) in [(2, "#3 cell 0: 4.0 5.0"), (1, "#3 cell 1: 1.1 2.1")] {
        let segments = [SegmentKnobs::Steps { cell: CellId(0) }, SegmentKnobs::Steps { cell: CellId(1) }];
        let mut traced = TextCore::new(paper(cellular(&[cell(4, 2), cell(2, priority)], &segments, 99)));
        assert_eq!(traced.arrives(1, &[1, 1]), "#0 cell 0: 1.0");
        (2..6).for_each(|req| assert_eq!(traced.arrives(req, &[1, 1]), ""));
        assert_eq!(traced.step(done(0)), "#1 cell 0: 2.0 3.0 4.0 5.0");
        assert_eq!(traced.step(failed(1)), "#2 cell 0: 2.0 3.0");
        assert_eq!(traced.step(done(2)), expected, "cell 1 is full");
    }
}

#[test]
fn merged_and_lazy_requests_run_again_in_halves_too() {
    let mut lazy = chain(4, 9);
    if let Policy::Cellular(cellular) = &mut lazy.policy {
        cellular.lazy = Some(LazyCellKnobs::default());
    }
    for knobs in [lazy, merging(chain(4, 9), 4)] {
        let mut traced = waiting(TextCore::new(knobs), &[1, 1, 1]);
        traced.step(done(0));
        assert_eq!(traced.step(failed(1)), "#2 cell 0: 1.0 2.0");
        assert_eq!(traced.step(failed(2)), "#3 cell 0: 3.0");
        traced.step(done(3));
        traced.step(failed(4));
        let said = traced.step(done(5));
        assert!(said.contains("2 Completed"), "{said}");
        let counters = traced.0.counters()[0].1;
        assert_eq!((counters.completed, counters.failed, counters.live_requests), (3, 1, 0));
    }
}

#[test]
fn rows_that_run_again_fail_with_their_lane() {
    let mut traced = waiting(TextCore::new(chain(4, 9)), &[1, 1, 1, 1]);
    traced.step(done(0));
    assert_eq!(traced.step(failed(1)), "#2 cell 0: 1.0 2.0");
    assert_eq!(traced.step(Event::LaneLost(LaneId(0))), "1 Failed; 2 Failed");
    assert_eq!(traced.step(Event::LaneUp(LaneId(0), LaneKnobs::default())), "#3 cell 0: 3.0 4.0");
    assert_eq!(traced.step(done(3)), "3 Completed; 4 Completed");
}
