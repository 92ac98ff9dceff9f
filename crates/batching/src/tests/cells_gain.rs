//! Which type of cells runs next: a stage (type 0), then a chain (type 1), on one lane.

use paternoster_model::{CellId, unfold::Unfolded};

use super::cellular::{cell, cellular, core, done, failed, request, said};
use crate::{Core, CostPoint, CostTable, Event, Instant, Knobs, LaneKnobs, Ns, SegmentKnobs, StageKnobs};

/// Time of a step of the chain, for any number of rows.
const STEPS: Ns = 20;

/// Fixed time of the stage, beside 2 ns a row.
const FIXED: Ns = 8;

fn knobs(fixed_ns: Ns, is_known: bool) -> Knobs {
    let segments = [SegmentKnobs::Stage { cell: CellId(0) }, SegmentKnobs::Steps { cell: CellId(1) }];
    let point = |rows, took_ns| CostPoint { rows, length: 0, took_ns };
    let stage = [1, 2, 8].map(|rows| point(rows, fixed_ns + 2 * u64::from(rows))).to_vec();
    let chain = [1, 8].map(|rows| point(rows, STEPS)).to_vec();
    let latencies = is_known.then_some(CostTable { stages: vec![stage, chain] });
    Knobs { latencies, stages: StageKnobs::chain(2), ..cellular(&[cell(3, 1), cell(8, 2)], &segments, 99) }
}

/// A core whose tasks take as long as they are known to.
struct Played {
    core: Core,
    fixed_ns: Ns,
    now: Instant,
    task: u64,
    last: String,
}

impl Played {
    fn new(fixed_ns: Ns, is_known: bool) -> Self {
        let core = core(knobs(fixed_ns, is_known), 1, LaneKnobs::default());
        Self { core, fixed_ns, now: Instant::ZERO, task: 0, last: String::new() }
    }

    /// Lets a request arrive that has `steps` steps after the stage, and returns what is launched.
    fn arrives(&mut self, req: u64, steps: u32) -> String {
        let graph = vec![Unfolded::Steps(1), Unfolded::Steps(steps)];
        let said = said(&self.core.step(self.now, Event::Arrived(request(req, graph))));
        if !said.is_empty() {
            self.last.clone_from(&said);
        }
        said
    }

    /// Ends the running task, and returns what is launched next.
    fn ends(&mut self, fails: bool) -> String {
        let rows = self.last.matches('.').count() as u64;
        self.now += if self.last.contains("cell 0") { self.fixed_ns + 2 * rows } else { STEPS };
        let event = if fails { failed(self.task) } else { done(self.task) };
        self.last = said(&self.core.step(self.now, event));
        self.core.check().expect("nothing is broken");
        self.task += 1;
        self.last.clone()
    }

    /// Brings four requests into the chain, of six steps each.
    fn four_run(fixed_ns: Ns) -> Self {
        let mut played = Self::new(fixed_ns, true);
        assert_eq!(played.arrives(0, 6), "#0 cell 0: 0.0");
        for req in 1..4 {
            assert_eq!(played.arrives(req, 6), "");
        }
        assert_eq!(played.ends(false), "#1 cell 0: 1.0 2.0 3.0");
        assert_eq!(played.ends(false), "#2 cell 1: 0.1 1.1 2.1 3.1");
        played
    }
}

#[test]
fn newcomers_wait_until_they_are_many_enough_beside_the_others() {
    let mut played = Played::four_run(FIXED);
    assert_eq!(played.arrives(4, 6), "");
    // A stage counts as two steps of 8 ns, a chain has six of 20.
    assert_eq!(played.ends(false), "#3 cell 1: 0.2 1.2 2.2 3.2", "1 / √(2 · 8) < 4 / √(6 · 20)");
    assert_eq!(played.arrives(5, 6), "");
    assert_eq!(played.ends(false), "#4 cell 0: 4.0 5.0", "2 / √(2 · 8) > 4 / √(6 · 20)");
    assert_eq!(played.ends(false), "#5 cell 1: 0.3 1.3 2.3 3.3 4.1 5.1");
}

#[test]
fn a_newcomer_runs_when_the_others_become_few() {
    let mut played = Played::four_run(FIXED);
    let before: Vec<String> = (0..3).map(|_| played.ends(false)).collect();
    played.arrives(4, 6);
    let launched: Vec<String> = before.into_iter().chain((0..3).map(|_| played.ends(false))).collect();
    assert!(launched[..5].iter().all(|said| said.contains("cell 1")), "{launched:?}");
    assert!(launched[5].ends_with("3 Completed; #8 cell 0: 4.0"), "{launched:?}");
}

#[test]
fn a_type_whose_time_is_unknown_or_that_shares_no_fixed_time_runs_at_once() {
    let mut unknown = Played::new(FIXED, false);
    unknown.arrives(0, 90);
    assert_eq!(unknown.ends(false), "#1 cell 1: 0.1");
    unknown.arrives(1, 90);
    assert_eq!(unknown.ends(false), "#2 cell 0: 1.0", "the stage has run with one row alone");
    let mut linear = Played::four_run(0);
    linear.arrives(4, 6);
    assert_eq!(linear.ends(false), "#3 cell 0: 4.0", "nothing is gained by waiting for others");
}

#[test]
fn a_stage_that_failed_runs_again_at_once() {
    let mut played = Played::four_run(FIXED);
    played.arrives(4, 6);
    played.arrives(5, 6);
    assert_eq!(played.ends(false), "#3 cell 0: 4.0 5.0");
    assert_eq!(played.ends(true), "#4 cell 0: 4.0", "in halves");
    assert_eq!(played.ends(false), "#5 cell 0: 5.0");
    assert_eq!(played.ends(false), "#6 cell 1: 0.2 1.2 2.2 3.2 4.1 5.1");
}
