//! Inputs that cells read as indices.

use paternoster_model::IndexRange;

use super::*;
use crate::indices::{IndexCheck, ReadRows};

const RANGE: IndexRange = IndexRange { least: -4, most: 3, as_int32: false };

/// A program whose first input consists of indices.
struct Indexing;

impl Program for Indexing {
    fn run(&self, _batch: &Batch<'_>) -> Result<Execution, EngineError> {
        Err(EngineError::new("a test never runs it"))
    }

    fn index_ranges(&self) -> &[Option<IndexRange>] {
        &[Some(RANGE), None]
    }
}

/// Returns the checks of a version in which the first input of every cell consists of indices.
fn checks(tried: &Tried) -> Vec<(usize, ReadRows)> {
    let unfolding = tried.programs.unfolding().clone();
    let programs = unfolding.cells.iter().map(|_| Arc::new(Indexing) as Arc<dyn Program>).collect();
    let checks = CellPrograms::new(&tried.spec, unfolding, programs).expect("it fits").index_checks();
    assert!(checks.iter().all(|check| check.range == RANGE));
    checks.iter().map(|&IndexCheck { input, read, .. }| (input, read)).collect()
}

#[test]
fn steps_of_a_chain_read_their_rows() {
    assert_eq!(checks(&digit_chain(false)), [(0, ReadRows::Steps(0))]);
    assert_eq!(checks(&digit_chain(true)), [(0, ReadRows::Steps(0))]);
}

#[test]
fn leaves_of_a_tree_read_the_request_and_inner_nodes_their_children() {
    assert_eq!(checks(&tree()), [(0, ReadRows::Nodes { segment: 0, leaves: true })]);
}

#[test]
fn a_stage_reads_all_of_an_input() {
    assert_eq!(checks(&stage(true)), [(0, ReadRows::All)]);
}

#[test]
fn rows_that_a_loop_may_leave_out_are_not_checked() {
    let most = Nodes::Decode { max_steps: Expression::Length(0), until: None, expected_steps: None };
    let unfolding = Unfolding {
        cells: vec![digit_cell()],
        segments: vec![segment(
            "loop",
            steps(0, vec![row_of_input(0), carried(0, 0)], most),
            vec![emit("last", 0, EmitRange::Last)],
        )],
        outputs: vec![emitted(0, 0)],
        limits: Vec::new(),
    };
    let tried = Tried::new(model(&[("tokens", &[-1])], 1), unfolding, &[digits]).expect("it fits");
    assert_eq!(checks(&tried), []);
}
