//! Cells of one kind from several versions: shared tasks, and each version's part in them.

use paternoster_model::{CellId, Next, RowOutcome, unfold::Unfolded};

use super::{
    at,
    cellular::{done, failed, request, said},
};
use crate::{
    Arrival, CellKind, CellKnobs, CellularKnobs, Core, Event, Instant, Knobs, LaneId, LaneKnobs, LazyCellKnobs,
    ModelId, Policy, ReqId, SegmentKnobs, TaskId,
};

const KIND: CellKind = CellKind(7);

fn cellular(max_rows: &[u32], kinds: &[Option<CellKind>]) -> CellularKnobs {
    let cell = |(&max_rows, &kind)| CellKnobs {
        max_rows,
        min_followup: 1,
        priority: 1,
        kind,
        buckets: Box::default(),
        chunks: None,
    };
    let cells: Vec<CellKnobs> = max_rows.iter().zip(kinds).map(cell).collect();
    let segments = (0..cells.len() as u16).map(|cell| SegmentKnobs::Steps { cell: CellId(cell) }).collect();
    CellularKnobs { cells, segments, slots: 9, ..CellularKnobs::default() }
}

/// A chain of one cell.
fn chain(max_rows: u32, kind: CellKind) -> CellularKnobs {
    cellular(&[max_rows], &[Some(kind)])
}

/// Versions 0, 1, … on one lane.
struct Shared(Core);

impl Shared {
    fn new(models: Vec<CellularKnobs>) -> Self {
        Self::with(models, 9)
    }

    /// Creates versions with at most `max_in_flight` tasks at a time.
    fn with(models: Vec<CellularKnobs>, max_in_flight: u32) -> Self {
        let mut core = Core::new();
        for (model, cellular) in (0..).map(ModelId).zip(models) {
            let knobs = Knobs { max_in_flight, policy: Policy::Cellular(cellular), ..Knobs::default() };
            core.step(Instant::ZERO, Event::ModelUp(model, Box::new(knobs)));
        }
        core.step(Instant::ZERO, Event::LaneUp(LaneId(0), LaneKnobs::default()));
        Self(core)
    }

    fn step(&mut self, event: Event<'_>) -> String {
        said(&self.0.step(Instant::ZERO, event))
    }

    /// Sends a request to a version, with these numbers of steps by segment.
    fn arrives(&mut self, req: u64, model: u32, steps: &[u32]) -> String {
        self.step(Event::Arrived(of(req, model, steps)))
    }
}

fn of(req: u64, model: u32, steps: &[u32]) -> Arrival {
    let graph = steps.iter().map(|steps| Unfolded::Steps(*steps)).collect();
    Arrival { model: ModelId(model), ..request(req, graph) }
}

#[test]
fn what_room_a_task_has_left_goes_to_other_versions_whose_requests_board_by_it() {
    let mut shared = Shared::new(vec![chain(4, KIND), chain(3, KIND), chain(4, CellKind(8))]);
    assert_eq!(shared.arrives(0, 0, &[3]), "#0 cell 0: 0.0");
    for (req, model, steps) in [(1, 1, 2), (2, 1, 1), (3, 1, 1), (4, 2, 1)] {
        assert_eq!(shared.arrives(req, model, &[steps]), "");
    }
    assert_eq!(shared.step(done(0)), "#1 cell 0: 0.1 1.0 2.0", "no larger than version 1 has them");
    assert_eq!(shared.step(done(1)), "2 Completed; #2 cell 0: 1.1 3.0 0.2", "now version 1 leads");
    assert_eq!(shared.step(done(2)), "1 Completed; 3 Completed; 0 Completed; #3 cell 0: 4.0", "another kind");
    assert_eq!(shared.step(done(3)), "4 Completed");
}

#[test]
fn outcomes_are_those_of_each_versions_own_rows() {
    let mut shared = Shared::new(vec![chain(4, KIND), chain(4, KIND)]);
    shared.arrives(0, 0, &[1]);
    for (req, model) in [(1, 0), (2, 0), (3, 1), (4, 1)] {
        shared.arrives(req, model, &[9]);
    }
    let launched = shared.step(done(0));
    assert_eq!(launched, "0 Completed; #1 cell 0: 1.0 2.0 3.0 4.0");
    let outcome = |next| RowOutcome { next, emitted: false };
    let rows = [Next::On, Next::Done, Next::Failed, Next::On].map(outcome);
    let actions = shared.step(Event::Completed { task: TaskId(1), rows: &rows });
    assert_eq!(actions, "2 Completed; 3 Failed; #2 cell 0: 4.1 1.1");
    assert_eq!(shared.step(failed(2)), "#3 cell 0: 1.1", "each version runs its own again");
    assert_eq!(shared.step(failed(3)), "1 Failed; #4 cell 0: 4.1");
    assert_eq!(shared.step(failed(4)), "4 Failed");
}

#[test]
fn a_lost_lane_takes_the_rows_of_all_versions_with_it() {
    let mut shared = Shared::new(vec![chain(4, KIND), chain(4, KIND)]);
    shared.arrives(0, 0, &[1]);
    shared.arrives(1, 0, &[2]);
    shared.arrives(2, 1, &[2]);
    assert_eq!(shared.step(done(0)), "0 Completed; #1 cell 0: 1.0 2.0");
    assert_eq!(shared.step(Event::LaneLost(LaneId(0))), "1 Failed; 2 Failed");
    assert_eq!(shared.0.check(), Ok(()));
}

#[test]
fn a_version_stays_until_the_task_of_another_that_holds_its_rows_has_ended() {
    let mut shared = Shared::new(vec![chain(4, KIND), chain(4, KIND)]);
    shared.arrives(0, 1, &[1]);
    shared.arrives(1, 0, &[2]);
    shared.arrives(2, 1, &[2]);
    assert_eq!(shared.step(done(0)), "0 Completed; #1 cell 0: 1.0 2.0");
    assert_eq!(shared.step(Event::ModelDraining(ModelId(1))), "");
    assert_eq!(shared.step(Event::Cancelled(ReqId(2))), "2 Cancelled", "its row runs on");
    assert_eq!(shared.step(done(1)), "Drained(ModelId(1)); #2 cell 0: 1.1");
}

#[test]
fn a_type_counts_as_full_with_what_others_bring() {
    for (kind, expected) in [(KIND, "#2 cell 1: 0.2 2.0"), (CellKind(8), "#2 cell 0: 1.0")] {
        let mut shared = Shared::new(vec![cellular(&[2, 2], &[None, Some(KIND)]), chain(2, kind)]);
        assert_eq!(shared.arrives(0, 0, &[1, 3]), "#0 cell 0: 0.0");
        assert_eq!(shared.step(done(0)), "#1 cell 1: 0.1");
        shared.arrives(1, 0, &[1, 1]);
        shared.arrives(2, 1, &[1]);
        // If neither is full, the type that did not run last goes first.
        assert_eq!(shared.step(done(1)), expected);
    }
}

#[test]
fn cells_of_one_kind_of_one_version_share_a_task_that_counts_once() {
    let two_cells = || cellular(&[4, 4], &[Some(KIND), Some(KIND)]);
    for max_in_flight in [1, 9] {
        let mut shared = Shared::with(vec![two_cells()], max_in_flight);
        assert_eq!(shared.arrives(0, 0, &[1, 2]), "#0 cell 0: 0.0");
        shared.arrives(1, 0, &[2, 1]);
        assert_eq!(shared.step(done(0)), "#1 cell 1: 0.1 1.0", "0 in its second segment, 1 in its first");
        let counters = shared.0.counters()[0].1;
        assert_eq!((counters.running_tasks, counters.tasks_launched, counters.rows_launched), (1, 2, 3));
        assert_eq!(shared.step(done(1)), "#2 cell 1: 0.2 1.1");
        assert_eq!(shared.step(failed(2)), "#3 cell 1: 0.2", "each cell's rows by themselves");
        assert_eq!(shared.step(done(3)), "0 Completed; #4 cell 0: 1.1");
        assert_eq!(shared.step(done(4)), "#5 cell 1: 1.2");
        assert_eq!(shared.step(done(5)), "1 Completed");
    }
}

#[test]
fn a_version_that_drains_goes_when_the_last_of_its_rows_in_a_task_has_ended() {
    for ends in [done(1), failed(1)] {
        let mut shared = Shared::with(vec![cellular(&[4, 4], &[Some(KIND), Some(KIND)])], 1);
        shared.arrives(0, 0, &[1, 1]);
        shared.arrives(1, 0, &[1, 1]);
        assert_eq!(shared.step(done(0)), "#1 cell 1: 0.1 1.0");
        shared.step(Event::Cancelled(ReqId(0)));
        shared.step(Event::Cancelled(ReqId(1)));
        assert_eq!(shared.step(Event::ModelDraining(ModelId(0))), "");
        assert_eq!(shared.step(ends), "Drained(ModelId(0))");
    }
    let mut shared = Shared::with(vec![cellular(&[4, 4], &[Some(KIND), Some(KIND)])], 1);
    shared.arrives(0, 0, &[1, 1]);
    shared.arrives(1, 0, &[1, 1]);
    assert_eq!(shared.step(done(0)), "#1 cell 1: 0.1 1.0");
    assert_eq!(shared.step(Event::LaneLost(LaneId(0))), "0 Failed; 1 Failed");
    assert_eq!(shared.0.check(), Ok(()));
}

#[test]
fn merged_and_lazy_versions_keep_their_tasks_to_themselves() {
    let lazy = CellularKnobs { lazy: Some(LazyCellKnobs::default()), ..chain(4, KIND) };
    let merged = CellularKnobs { merge_requests: Some(3), ..chain(4, KIND) };
    for other in [lazy, merged] {
        let mut shared = Shared::new(vec![chain(4, KIND), other]);
        shared.arrives(0, 0, &[1]);
        shared.arrives(1, 0, &[1]);
        shared.arrives(2, 1, &[1]);
        assert_eq!(shared.step(done(0)), "0 Completed; #1 cell 0: 1.0");
        assert_eq!(shared.step(done(1)), "1 Completed; #2 cell 0: 2.0");
    }
}

#[test]
fn who_shares_a_task_pays_for_its_rows() {
    let mut core = Shared::new(vec![chain(4, KIND), chain(4, KIND)]).0;
    core.step(Instant::ZERO, Event::Arrived(of(0, 0, &[1])));
    for (req, model) in [(1, 0), (2, 1), (3, 1), (4, 1)] {
        core.step(Instant::ZERO, Event::Arrived(of(req, model, &[9])));
    }
    assert_eq!(said(&core.step(Instant::ZERO, done(0))), "0 Completed; #1 cell 0: 1.0 2.0 3.0 4.0");
    // A quarter of ten milliseconds is less than three quarters of them: version 0 leads again.
    assert_eq!(said(&core.step(at(10_000_000), done(1))), "#2 cell 0: 1.1 2.1 3.1 4.1");
}
