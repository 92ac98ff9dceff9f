//! The slots that rows of tasks use.

use paternoster_model::{CellId, unfold::Unfolded};

use super::{
    cellular::{cell, cellular, chain, core, done, request, tree},
    pool::arrival,
};
use crate::{
    Action, Actions, Arrival, CellKind, CellKnobs, Event, Instant, Knobs, LaneKnobs, ModelId, ReqId, RowSpan,
    SegmentKnobs,
};

const AHEAD: LaneKnobs = LaneKnobs { horizon_ns: 1_000, depth: 3 };

/// Returns the rows of each launched task, as `request.node@slot`.
fn rows(actions: &Actions) -> String {
    let launched = actions.iter().filter_map(|action| match action {
        Action::Launch(task) => Some(task.rows.iter().map(|row| format!("{}.{}@{}", row.req.0, row.start, row.slot))),
        _ => None,
    });
    launched.map(|rows| rows.collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join("; ")
}

fn arrived(req: u64, graph: Vec<Unfolded>) -> Event<'static> {
    Event::Arrived(request(req, graph))
}

#[test]
fn a_chain_keeps_its_slot_to_its_last_step_and_the_next_request_is_given_it() {
    let mut core = core(chain(2, 9), 1, LaneKnobs::default());
    let mut step = |event| rows(&core.step(Instant::ZERO, event));
    assert_eq!(step(arrived(0, vec![Unfolded::Steps(2)])), "0.0@0");
    for (req, steps) in [(1, 3), (2, 1), (3, 1)] {
        assert_eq!(step(arrived(req, vec![Unfolded::Steps(steps)])), "");
    }
    assert_eq!(step(done(0)), "0.1@0 1.0@1");
    assert_eq!(step(done(1)), "1.1@1 2.0@0", "the slot that was freed last, and not the next");
    assert_eq!(step(done(2)), "1.2@1 3.0@0");
}

#[test]
fn a_decoder_goes_on_in_the_slot_where_its_encoder_stopped() {
    let segments = [SegmentKnobs::Steps { cell: CellId(0) }, SegmentKnobs::Steps { cell: CellId(1) }];
    let mut core = core(cellular(&[cell(1, 2), cell(1, 1)], &segments, 9), 2, LaneKnobs::default());
    let mut step = |event| rows(&core.step(Instant::ZERO, event));
    let both = || vec![Unfolded::Steps(1), Unfolded::Steps(2)];
    assert_eq!((step(arrived(0, both())), step(arrived(1, both()))), ("0.0@0".into(), "1.0@1".into()));
    assert_eq!((step(done(1)), step(done(2)), step(done(0))), ("1.1@1".into(), "1.2@1".into(), "0.1@0".into()));
}

#[test]
fn each_node_of_a_tree_has_a_slot_and_what_follows_goes_on_in_the_first() {
    let segments = [SegmentKnobs::Tree { leaf: CellId(0), inner: CellId(1) }, SegmentKnobs::Steps { cell: CellId(2) }];
    let mut core = core(cellular(&[cell(8, 3), cell(8, 2), cell(8, 1)], &segments, 9), 1, LaneKnobs::default());
    let mut step = |event| rows(&core.step(Instant::ZERO, event));
    let both = || vec![tree(2), Unfolded::Steps(1)];
    assert_eq!(step(arrived(0, both())), "0.0@0 0.1@1");
    assert_eq!(step(done(0)), "0.2@2", "a parent has a slot of its own beside its children's");
    assert_eq!(step(done(1)), "0.3@0");
    assert_eq!(step(arrived(1, both())), "");
    assert_eq!(step(done(2)), "1.0@0 1.1@1", "a tree of the same size is given the same slots");
}

#[test]
fn a_slot_returns_with_the_last_row_that_names_it() {
    let mut core = core(chain(1, 9), 1, AHEAD);
    let mut step = |event| rows(&core.step(Instant::ZERO, event));
    step(arrived(0, vec![Unfolded::Steps(5)]));
    assert_eq!(step(done(0)), "0.1@0; 0.2@0; 0.3@0");
    assert_eq!(step(Event::Cancelled(ReqId(0))), "");
    step(arrived(1, vec![Unfolded::Steps(1)]));
    assert_eq!(step(done(1)), "1.0@1", "two tasks on the lane still name slot 0");
    step(arrived(2, vec![Unfolded::Steps(1)]));
    assert_eq!(step(done(2)), "2.0@2", "one does");
    step(arrived(3, vec![Unfolded::Steps(1)]));
    assert_eq!(step(done(3)), "3.0@0");
}

#[test]
fn rows_of_a_shared_task_name_slots_of_their_own_versions() {
    let shared = |slots| {
        let cells = [CellKnobs { kind: Some(CellKind(7)), ..cell(4, 1) }];
        cellular(&cells, &[SegmentKnobs::Steps { cell: CellId(0) }], slots)
    };
    let mut core = core(shared(9), 1, LaneKnobs::default());
    core.step(Instant::ZERO, Event::ModelUp(ModelId(1), Box::new(shared(9))));
    let mut arrives = |req, model| {
        let arrival = Arrival { model: ModelId(model), ..request(req, vec![Unfolded::Steps(2)]) };
        rows(&core.step(Instant::ZERO, Event::Arrived(arrival)))
    };
    assert_eq!(arrives(0, 0), "0.0@0");
    assert_eq!((arrives(1, 1), arrives(2, 0)), (String::new(), String::new()));
    assert_eq!(rows(&core.step(Instant::ZERO, done(0))), "0.1@0 2.0@1 1.0@0", "slot 0 of each version");
}

#[test]
fn rows_of_a_batch_have_no_slot() {
    let mut core = core(Knobs::default(), 1, LaneKnobs::default());
    let actions = core.step(Instant::ZERO, Event::Arrived(arrival(0)));
    assert_eq!(rows(&actions), format!("0.0@{}", RowSpan::NO_SLOT));
    assert_eq!(size_of::<RowSpan>(), 24, "a task copies one for each of its rows");
}
