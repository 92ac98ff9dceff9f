//! Growing state: nodes that read the outputs of all previous steps.

use proptest::{collection::vec, prelude::*};

use super::*;

/// Takes a number, the previous numbers, and how many of these are valid. Returns the number, the digits of all valid
/// numbers, and how many previous numbers it read, including invalid ones.
fn all_digits(inputs: &[Vec<i64>]) -> Vec<Vec<i64>> {
    let [x, past] = [inputs[0][0], inputs[1].len() as i64];
    let counting = inputs.get(2).map_or(past, |count| count[0]) as usize;
    assert!(inputs[1][counting..].iter().all(|padding| *padding == 0), "{inputs:?}");
    let digits = inputs[1][..counting].iter().chain([&x]).fold(0_i64, |digits, x| digits.wrapping_mul(10) + x);
    vec![vec![x], vec![digits], vec![past]]
}

/// A chain over the input `tokens`, whose cell optionally reads the number of previous steps.
fn unfolding(has_length: bool, reversed: bool) -> Unfolding {
    let mut inputs: Vec<(&str, &[i64])> = vec![("x", &[]), ("seen", &[-1, 1])];
    let mut sources =
        vec![CellInputSource::Step { of: Tensor::Input(0), reversed }, CellInputSource::Grown { output: 0 }];
    if has_length {
        inputs.push(("count", &[]));
        sources.push(CellInputSource::GrownLength);
    }
    let emits = vec![
        emit("digits", 1, EmitRange::All),
        emit("read", 2, EmitRange::All),
        emit("own", 0, EmitRange::All),
        emit("last", 0, EmitRange::Last),
    ];
    Unfolding {
        cells: vec![cell("step", &inputs, &["own", "digits", "read"])],
        segments: vec![segment("chain", steps(0, sources, over_tokens()), emits)],
        outputs: (0..4).map(|emit| emitted(0, emit)).collect(),
        limits: Vec::new(),
    }
}

pub(super) fn growing(has_length: bool, reversed: bool) -> Tried {
    let spec = model(&[("tokens", &[-1])], 4);
    let tried = Tried::new(spec, unfolding(has_length, reversed), &[all_digits]).expect("it fits");
    // Reuses buffers together with their stale contents.
    Tried { buffers: BufferPool::new(1 << 20), ..tried }
}

/// Returns the outputs of a request that has run.
pub(super) fn left(unfolded_state: &UnfoldedState) -> Vec<Vec<i64>> {
    let outputs = unfolded_state.reply().expect("it has run").outputs;
    outputs.iter().map(|output| values(&output.data)).collect()
}

#[test]
fn each_step_reads_what_all_steps_before_it_have_left() {
    for has_length in [false, true] {
        let outputs = growing(has_length, false).alone(&[(&[3], &[1, 2, 3])]).expect("it runs");
        let expected = [
            (vec![3, 1], vec![1, 12, 123]),
            (vec![3, 1], vec![0, 1, 2]),
            (vec![3, 1], vec![1, 2, 3]),
            (vec![1], vec![3]),
        ];
        assert_eq!(outputs, expected);
    }
}

#[test]
fn what_grows_in_a_reversed_chain_begins_with_its_first_step() {
    let outputs = growing(true, true).alone(&[(&[3], &[1, 2, 3])]).expect("it runs");
    let outputs: Vec<Vec<i64>> = outputs.into_iter().map(|(_, values)| values).collect();
    assert_eq!(outputs, [vec![321, 32, 3], vec![2, 1, 0], vec![1, 2, 3], vec![1]], "all(…) is in the input's order");
}

#[test]
fn a_loop_reads_its_own_tokens() {
    let next: Row = |inputs| vec![vec![inputs[0].iter().sum::<i64>() + 1]];
    let sources = vec![CellInputSource::Grown { output: 0 }];
    let nodes = Nodes::Decode { max_steps: Expression::Number(10), until: Some((0, 32)), expected_steps: None };
    let unfolding = Unfolding {
        cells: vec![cell("next", &[("seen", &[-1, 1])], &["next"])],
        segments: vec![segment("decode", steps(0, sources, nodes), vec![emit("tokens", 0, EmitRange::All)])],
        outputs: vec![emitted(0, 0)],
        limits: Vec::new(),
    };
    let tried = Tried::new(model(&[("tokens", &[-1])], 1), unfolding, &[next]).expect("it fits");
    assert_eq!(tried.alone(&[(&[1], &[0])]), Ok(vec![(vec![6, 1], vec![1, 2, 4, 8, 16, 32])]));
}

#[test]
fn steps_of_unlike_numbers_share_a_run_where_the_cell_is_told_them_and_else_run_apart() {
    let shared = (vec![1, 1, 3, 2, 1], [vec![0, 1, 2, 3], vec![2, 3], vec![2, 1]]);
    let apart = (vec![1, 1, 2, 1, 1, 1, 1], [vec![0, 1, 2, 3], vec![0, 1], vec![0, 1]]);
    for (has_length, (runs, read)) in [(true, shared), (false, apart)] {
        let tried = growing(has_length, false);
        let unfolded_states =
            [&[1, 2, 3, 4][..], &[5, 6], &[7, 8]].map(|x| tried.unfolded_state(&[(&[x.len() as i64], x)]));
        let [long, one, two] = &unfolded_states;
        let tasks: [&[(&UnfoldedState, u32)]; 5] =
            [&[(long, 0)], &[(long, 1)], &[(one, 0), (long, 2), (two, 0)], &[(one, 1), (long, 3)], &[(two, 1)]];
        for nodes in tasks {
            tried.task(0, nodes).expect("it runs");
        }
        assert_eq!(*tried.rows[0].runs.lock(), runs);
        assert_eq!(
            unfolded_states.each_ref().map(|unfolded_state| left(unfolded_state)[0].clone()),
            [vec![1, 12, 123, 1234], vec![5, 56], vec![7, 78]]
        );
        assert_eq!(unfolded_states.each_ref().map(|unfolded_state| left(unfolded_state)[1].clone()), read);
    }
}

#[test]
fn the_length_of_what_is_held_says_nothing_about_what_grows() {
    let mut unfolding = unfolding(true, false);
    unfolding.segments[0].types[0].inputs[2] = CellInputSource::Length(Tensor::Input(0));
    let count_all: Row = |inputs| vec![vec![inputs[0][0]], vec![inputs[2][0]], vec![inputs[1].len() as i64]];
    let tried = Tried::new(model(&[("tokens", &[-1])], 4), unfolding, &[count_all]).expect("it fits");
    let unfolded_states = [&[1, 2][..], &[3, 4, 5]].map(|x| tried.unfolded_state(&[(&[x.len() as i64], x)]));
    let [short, long] = &unfolded_states;
    tried.task(0, &[(long, 0)]).expect("it runs");
    tried.task(0, &[(short, 0), (long, 1)]).expect("it runs");
    tried.task(0, &[(short, 1), (long, 2)]).expect("it runs");
    assert_eq!(*tried.rows[0].runs.lock(), [1, 1, 1, 1, 1]);
    assert_eq!([&left(short)[..2], &left(long)[..2]], [[vec![2, 2], vec![0, 1]], [vec![3, 3, 3], vec![0, 1, 2]]]);
}

#[test]
fn what_has_been_left_is_not_copied_again_at_each_step() {
    let tried = growing(false, false);
    let tokens: Vec<i64> = (0..200).map(|token| token % 10).collect();
    let unfolded_state = tried.unfolded_state(&[(&[200], &tokens)]);
    let mut moves = 0;
    let mut at = None;
    for node in 0..200 {
        tried.task(0, &[(&unfolded_state, node)]).expect("it runs");
        let data = unfolded_state.steps(0, 0).expect("it has steps");
        assert_eq!(data.len(), 8 * (node as usize + 1));
        moves += u32::from(at != Some(data.as_ptr()));
        at = Some(data.as_ptr());
    }
    assert!(moves <= 9, "doubled when full, and otherwise appended to: {moves} moves");
}

#[test]
fn steps_that_have_not_run_are_missed() {
    let tried = growing(true, false);
    let unfolded_state = tried.unfolded_state(&[(&[3], &[1, 2, 3])]);
    tried.task(0, &[(&unfolded_state, 0)]).expect("it runs");
    let nodes = [(&unfolded_state, 2, 1)];
    let ran = CellTask {
        programs: &tried.programs,
        cell: 0,
        nodes: &nodes,
        buffers: &tried.buffers,
        stop: &StopSignal::default(),
    }
    .run();
    let reason = &ran.expect("the task itself runs").failures[0].reason;
    assert_eq!(reason, "cell 'step': input 'seen': expected INT64 [-1, 1], but found [2, 1] in 8 bytes");
}

#[test]
fn what_cannot_grow_is_refused_with_what_it_has_to_be() {
    let refusal = |change: fn(&mut CellSpec)| {
        let mut unfolding = unfolding(true, false);
        change(&mut unfolding.cells[0]);
        let refused = Tried::new(model(&[("tokens", &[-1])], 4), unfolding, &[all_digits]).err();
        refused.expect("it does not fit").replace("segment 'chain': input ", "")
    };
    assert_eq!(
        refusal(|cell| cell.inputs[1].dims = Dims::from_slice(&[4, 1])),
        "'seen': expected INT64 [-1, 1], rows of 'own' one behind the other, but found INT64 [4, 1]"
    );
    assert_eq!(
        refusal(|cell| cell.inputs[1].dims = Dims::from_slice(&[1])),
        "'seen': expected INT64 [-1, 1], rows of 'own' one behind the other, but found INT64 [1]"
    );
    assert_eq!(
        refusal(|cell| cell.outputs[0].datatype = DataType::Fp64),
        "'seen': expected FP64 [-1, 1], rows of 'own' one behind the other, but found INT64 [-1, 1]"
    );
    assert_eq!(
        refusal(|cell| cell.outputs[0].dims = Dims::from_slice(&[-1])),
        "'seen': expected fixed dims of what it grows by, but 'own' is [-1]"
    );
    assert_eq!(
        refusal(|cell| cell.inputs[2].datatype = DataType::Fp64),
        "'count': expected one INT32 or INT64 for a length"
    );
}

proptest! {
    /// Requests of any lengths, in tasks of any of them, in any order.
    #[test]
    fn nodes_in_any_tasks_read_their_own_requests_steps(
        tokens in vec(vec(0_i64..1_000, 1..12), 1..6),
        picks in vec(any::<u8>(), 1..40),
        has_length in any::<bool>(),
    ) {
        let tried = growing(has_length, false);
        let unfolded_states: Vec<UnfoldedState> =
            tokens.iter().map(|own| tried.unfolded_state(&[(&[own.len() as i64], own)])).collect();
        let mut ran = vec![0; unfolded_states.len()];
        let mut picks = picks.iter().cycle();
        loop {
            let is_open = |request: &usize| ran[*request] < tokens[*request].len();
            let open: Vec<usize> = (0..unfolded_states.len()).filter(is_open).collect();
            if open.is_empty() {
                break;
            }
            let pick = *picks.next().expect("it starts again");
            let mut nodes: Vec<usize> = open.iter().copied().filter(|request| pick >> request & 1 == 1).collect();
            if nodes.is_empty() {
                nodes.push(open[usize::from(pick) % open.len()]);
            }
            let turned = usize::from(pick) % nodes.len();
            nodes.rotate_left(turned);
            let node = |&request: &usize| (&unfolded_states[request], ran[request] as u32);
            let task: Vec<(&UnfoldedState, u32)> = nodes.iter().map(node).collect();
            tried.task(0, &task).map_err(TestCaseError::fail)?;
            nodes.iter().for_each(|&request| ran[request] += 1);
        }
        for (own, unfolded_state) in tokens.iter().zip(&unfolded_states) {
            let digits = own.iter().scan(0_i64, |digits, x| { *digits = digits.wrapping_mul(10) + x; Some(*digits) });
            let outputs = left(unfolded_state);
            prop_assert_eq!(&outputs[0], &digits.collect::<Vec<_>>());
            prop_assert_eq!(&outputs[2], own);
        }
    }
}
