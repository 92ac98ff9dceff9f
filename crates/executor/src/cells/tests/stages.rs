//! Segments of one node, which read a whole tensor or all of its rows.

use super::*;

/// Returns the sum of the valid elements of a whole input.
fn sums(inputs: &[Vec<i64>]) -> Vec<Vec<i64>> {
    let count = inputs.get(1).map_or(inputs[0].len(), |length| length[0] as usize);
    vec![vec![inputs[0][..count].iter().sum()]]
}

pub(super) fn stage(pads: bool) -> Tried {
    let mut sources = vec![CellInputSource::Whole(Tensor::Input(0))];
    let mut inputs: Vec<(&str, &[i64])> = vec![("x", &[-1])];
    if pads {
        sources.push(CellInputSource::Length(Tensor::Input(0)));
        inputs.push(("length", &[1]));
    }
    let unfolding = Unfolding {
        cells: vec![cell("sum", &inputs, &["y"])],
        segments: vec![segment("stage", steps(0, sources, Nodes::Stage), vec![emit("y", 0, EmitRange::Last)])],
        outputs: vec![emitted(0, 0)],
        limits: Vec::new(),
    };
    Tried::new(model(&[("x", &[-1])], 1), unfolding, &[sums]).expect("it fits")
}

#[test]
fn nodes_of_other_lengths_share_a_run_where_the_cell_is_told_them_and_else_run_apart() {
    for (pads, runs) in [(true, vec![3]), (false, vec![2, 1])] {
        let tried = stage(pads);
        let unfolded_states =
            [&[1, 2][..], &[3, 4, 5], &[6, 7]].map(|x| tried.unfolded_state(&[(&[x.len() as i64], x)]));
        let nodes: Vec<(&UnfoldedState, u32)> =
            unfolded_states.iter().map(|unfolded_state| (unfolded_state, 0)).collect();
        tried.task(0, &nodes).expect("it runs");
        assert_eq!(*tried.rows[0].runs.lock(), runs);
        let sums =
            unfolded_states.map(|unfolded_state| values(&unfolded_state.reply().expect("it has run").outputs[0].data));
        assert_eq!(sums, [vec![3], vec![12], vec![13]]);
    }
}

#[test]
fn one_long_request_does_not_make_a_huge_run_of_many_short_ones() {
    let tried = stage(true);
    let short: Vec<UnfoldedState> = (0..20).map(|x| tried.unfolded_state(&[(&[1], &[x])])).collect();
    let long = tried.unfolded_state(&[(&[1 << 20], &[1; 1 << 20])]);
    let unfolded_states: Vec<&UnfoldedState> = short.iter().chain([&long]).collect();
    let nodes: Vec<(&UnfoldedState, u32)> = unfolded_states.iter().map(|unfolded_state| (*unfolded_state, 0)).collect();
    tried.task(0, &nodes).expect("it runs");
    assert_eq!(*tried.rows[0].runs.lock(), [20, 1], "together they would take 21 times the long one");
    let sum = |unfolded_state: &UnfoldedState| values(&unfolded_state.reply().expect("it has run").outputs[0].data)[0];
    assert_eq!((sum(&short[19]), sum(&long)), (19, 1 << 20));
    tried.task(0, &[(&long, 0), (&short[0], 0)]).expect("it runs");
    assert_eq!(tried.rows[0].runs.lock()[2..], [2], "where it makes little of them, they share a run");
}

/// A stage that doubles each token, followed by a chain over its output.
fn doubled() -> Unfolding {
    let over = CellInputSource::Step { of: Tensor::Emitted(emitted(0, 0)), reversed: false };
    let chain = steps(1, vec![over, carried(0, 0)], over_tokens());
    let stage = steps(0, vec![CellInputSource::Rows(Tensor::Input(0))], Nodes::Stage);
    Unfolding {
        cells: vec![cell("double", &[("x", &[])], &["y"]), cell("step", &[("x", &[1]), ("h", &[1])], &["h_next"])],
        segments: vec![
            segment("stage", stage, vec![emit("y", 0, EmitRange::Last)]),
            segment("chain", chain, vec![emit("last", 0, EmitRange::Last)]),
        ],
        outputs: vec![emitted(1, 0), emitted(0, 0)],
        limits: Vec::new(),
    }
}

fn doubles(inputs: &[Vec<i64>]) -> Vec<Vec<i64>> {
    vec![vec![2 * inputs[0][0]]]
}

#[test]
fn rows_that_stages_go_over_share_a_run_and_come_back_to_their_requests() {
    let spec = || model(&[("tokens", &[-1])], 2);
    let tried = Tried::new(spec(), doubled(), &[doubles, digits]).expect("it fits");
    let outputs = tried.alone(&[(&[3], &[1, 2, 3])]).expect("it runs");
    assert_eq!(outputs, [(vec![1], vec![246]), (vec![3, 1], vec![2, 4, 6])]);
    let unfolded_states = [&[1, 2][..], &[3], &[4, 3, 2]].map(|x| tried.unfolded_state(&[(&[x.len() as i64], x)]));
    let nodes: Vec<(&UnfoldedState, u32)> = unfolded_states.iter().map(|unfolded_state| (unfolded_state, 0)).collect();
    assert_eq!(tried.task(0, &nodes), Ok(vec![Next::On; 3]));
    assert_eq!(*tried.rows[0].runs.lock(), [3, 6], "one alone, then all rows together");
    tried
        .task(1, &[(&unfolded_states[0], 1), (&unfolded_states[1], 1), (&unfolded_states[2], 1)])
        .expect("the first steps");
    tried.task(1, &[(&unfolded_states[2], 2), (&unfolded_states[0], 2)]).expect("the second ones");
    tried.task(1, &[(&unfolded_states[2], 3)]).expect("the last one");
    let found = unfolded_states.map(|unfolded_state| unfolded_state.reply().expect("it has run").outputs);
    let found = found.map(|outputs| (values(&outputs[0].data), outputs[1].shape.to_vec(), values(&outputs[1].data)));
    let expected = [
        (vec![24], vec![1, 2, 1], vec![2, 4]),
        (vec![6], vec![1, 1, 1], vec![6]),
        (vec![864], vec![1, 3, 1], vec![8, 6, 4]),
    ];
    assert_eq!(found, expected);
}

#[test]
fn tensors_that_a_stage_goes_over_are_equally_long() {
    let mut unfolding = doubled();
    unfolding.cells[0].inputs.push(tensor("z", &[]));
    unfolding.segments[0].types[0].inputs.push(CellInputSource::Rows(Tensor::Input(1)));
    let spec = model(&[("tokens", &[-1]), ("others", &[-1])], 2);
    let tried = Tried::new(spec, unfolding, &[|inputs| vec![vec![inputs[0][0] - inputs[1][0]]], digits]);
    let tried = tried.expect("it fits");
    let outputs = tried.alone(&[(&[2], &[7, 8]), (&[2], &[3, 5])]).expect("it runs");
    assert_eq!(outputs[1], (vec![2, 1], vec![4, 3]));
    let refusal = tried.alone(&[(&[2], &[7, 8]), (&[1], &[3])]).expect_err("a row is missing");
    assert_eq!(refusal, "cell 'double': input 'z': expected 2 rows, but found 1");
}
