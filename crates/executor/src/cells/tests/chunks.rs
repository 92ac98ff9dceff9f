//! Programs that run several steps of each row at a time.

use super::*;

/// Appends digits to a number, of which a given number count: the result after each of them, and after the last.
fn all_digits(inputs: &[Vec<i64>]) -> Vec<Vec<i64>> {
    let (digits, count) = (&inputs[0], inputs[2][0] as usize);
    assert!(digits[count..].iter().all(|digit| *digit == 0), "rows are padded with zeros");
    let mut number = inputs[1][0];
    let after = digits.iter().enumerate().map(|(at, digit)| {
        if at >= count {
            return -1;
        }
        number = 10 * number + digit;
        number
    });
    vec![after.collect(), vec![number]]
}

/// The same, of a program in which all digits count.
fn each_digit(inputs: &[Vec<i64>]) -> Vec<Vec<i64>> {
    all_digits(&[inputs[0].clone(), inputs[1].clone(), vec![inputs[0].len() as i64]])
}

fn chunk_cell(is_told: bool) -> CellSpec {
    let inputs: &[(&str, &[i64])] = &[("x", &[-1]), ("h", &[1]), ("lens", &[])];
    let inputs = if is_told { inputs } else { &inputs[..2] };
    let mut cell = cell("step", inputs, &["y", "h_next"]);
    cell.outputs[0] = tensor("y", &[-1]);
    cell
}

fn unfolding(is_told: bool, reversed: bool) -> Unfolding {
    let mut inputs = vec![CellInputSource::Step { of: Tensor::Input(0), reversed }, carried(1, 0)];
    inputs.extend(is_told.then_some(CellInputSource::Steps));
    let nodes = Nodes::Chain { steps: Expression::Length(0), chunks: true };
    let emits =
        vec![emit("all", 0, EmitRange::All), emit("last", 0, EmitRange::Last), emit("state", 1, EmitRange::Last)];
    Unfolding {
        cells: vec![chunk_cell(is_told)],
        segments: vec![segment("chain", steps(0, inputs, nodes), emits)],
        outputs: vec![emitted(0, 0), emitted(0, 1), emitted(0, 2)],
        limits: Vec::new(),
    }
}

fn tried(is_told: bool, reversed: bool) -> Tried {
    let row: Row = if is_told { all_digits } else { each_digit };
    Tried::new(model(&[("tokens", &[-1])], 3), unfolding(is_told, reversed), &[row]).expect("it fits")
}

fn reply(unfolded_state: &UnfoldedState) -> Vec<Vec<i64>> {
    unfolded_state.reply().expect("it has run").outputs.iter().map(|output| values(&output.data)).collect()
}

#[test]
fn chunks_of_any_size_leave_what_single_steps_leave() {
    for (is_told, reversed) in [(true, false), (true, true), (false, false), (false, true)] {
        let tried = tried(is_told, reversed);
        let expected = if reversed { [5, 54, 543, 5432, 54321] } else { [1, 12, 123, 1234, 12345] };
        let last = expected[4];
        let mut all = expected.to_vec();
        if reversed {
            all.reverse();
        }
        for sizes in [&[5][..], &[1, 1, 1, 1, 1], &[2, 3], &[1, 4], &[3, 1, 1]] {
            let unfolded_state = tried.unfolded_state(&[(&[5], &[1, 2, 3, 4, 5])]);
            let mut node = 0;
            for &size in sizes {
                tried.chunks(0, &[(&unfolded_state, node, size)]).expect("it runs");
                node += size;
            }
            assert_eq!(reply(&unfolded_state), [all.clone(), vec![last], vec![last]], "{is_told} {reversed} {sizes:?}");
        }
    }
}

#[test]
fn rows_with_fewer_steps_share_a_run_if_the_program_is_told_how_many_they_are() {
    for (is_told, runs) in [(true, vec![3]), (false, vec![1, 2])] {
        let tried = tried(is_told, false);
        let unfolded_states =
            [&[1, 2, 3][..], &[4, 5], &[6, 7]].map(|own| tried.unfolded_state(&[(&[own.len() as i64], own)]));
        let [one, two, three] = &unfolded_states;
        tried.chunks(0, &[(one, 0, 3), (two, 0, 2), (three, 0, 2)]).expect("they run");
        assert_eq!(*tried.rows[0].runs.lock(), runs);
        let last = unfolded_states.iter().map(|unfolded_state| reply(unfolded_state)[1][0]);
        assert_eq!(last.collect::<Vec<i64>>(), [123, 45, 67]);
        assert_eq!(reply(two)[0], [4, 45], "cut back to its own steps");
    }
}

#[test]
fn a_request_alone_runs_its_first_step_and_then_all_others() {
    let tried = tried(true, false);
    let outputs = tried.alone(&[(&[4], &[1, 2, 3, 4])]).expect("it runs");
    assert_eq!(outputs[0], (vec![4], vec![1, 12, 123, 1234]));
    assert_eq!(tried.rows[0].runs.lock().len(), 2, "the first tells how long a step takes");
}

#[test]
fn a_task_with_more_steps_than_are_left_is_refused() {
    let tried = tried(true, false);
    let unfolded_state = tried.unfolded_state(&[(&[3], &[1, 2, 3])]);
    let refused = tried.chunks(0, &[(&unfolded_state, 1, 3)]).expect_err("there are two");
    assert_eq!(refused, "cell 'step': a task has 3 steps of a request from node 1 on, expected 1 to 2");
    let single = digit_chain(false);
    let unfolded_state = single.unfolded_state(&[(&[3], &[1, 2, 3])]);
    let refused = single.chunks(0, &[(&unfolded_state, 0, 2)]).expect_err("it runs one at a time");
    assert_eq!(refused, "cell 'step': a task has 2 steps of a request from node 0 on, expected 1 to 1");
}

#[test]
fn a_chunk_that_leaves_too_much_fails_its_request_alone() {
    let tried = Tried { buffers: BufferPool::with_output_limit(0, 40), ..tried(true, false) };
    let [long, one, two] =
        [&[1, 2, 3, 4, 5, 6][..], &[7], &[8]].map(|own| tried.unfolded_state(&[(&[own.len() as i64], own)]));
    assert_eq!(tried.chunks(0, &[(&long, 0, 4)]), Ok(vec![Next::On]));
    assert_eq!(tried.chunks(0, &[(&long, 4, 1), (&one, 0, 1)]), Ok(vec![Next::On; 2]));
    assert_eq!(tried.chunks(0, &[(&long, 5, 1), (&two, 0, 1)]), Ok(vec![Next::Failed, Next::On]), "six of 8 bytes");
}

#[test]
fn each_chunk_of_a_stream_answers_for_its_steps() {
    for (reversed, expected) in [(false, [vec![1, 12], vec![123]]), (true, [vec![32, 3], vec![321]])] {
        let mut unfolding = unfolding(true, reversed);
        unfolding.segments[0].streams = true;
        let mut spec = model(&[("tokens", &[-1])], 3);
        spec.decoupled = true;
        let tried = Tried::new(spec, unfolding, &[all_digits]).expect("it fits");
        let unfolded_state = tried.unfolded_state(&[(&[3], &[1, 2, 3])]);
        for ((node, size), expected) in [(0, 2), (2, 1)].into_iter().zip(expected) {
            let nodes = [(&unfolded_state, node, size)];
            let (programs, buffers, stop) = (&tried.programs, &tried.buffers, &StopSignal::default());
            let ran = CellTask { programs, cell: 0, nodes: &nodes, buffers, stop }.run().expect("it runs");
            let (_, Response { outputs }) = &ran.outputs.as_ref().expect("they are there at once").streamed[0];
            assert_eq!((outputs[0].shape.as_slice(), values(&outputs[0].data)), (&[1, size.into()][..], expected));
            assert_eq!(outputs[1].shape.as_slice(), [1], "the last alone");
        }
    }
}

#[test]
fn a_segment_whose_program_does_not_fit_is_refused() {
    let refusal = |change: &dyn Fn(&mut Unfolding)| {
        let mut unfolding = unfolding(true, false);
        change(&mut unfolding);
        let rows: Vec<Row> = vec![all_digits; unfolding.cells.len()];
        Tried::new(model(&[("tokens", &[-1])], 3), unfolding, &rows).err().expect("it does not fit")
    };
    let inputs = |unfolding: &mut Unfolding, at: usize, source: CellInputSource| {
        unfolding.segments[0].types[0].inputs[at] = source;
    };
    assert_eq!(
        refusal(&|unfolding| unfolding.cells[0].inputs[0] = tensor("x", &[2])),
        "segment 'chain': input 'x': has the dims [2] without the batch: expected steps as the first of them, which \
         varies"
    );
    assert_eq!(
        refusal(&|unfolding| unfolding.cells[0].outputs[0] = tensor("y", &[1])),
        "segment 'chain': output 'y' has the dims [1] without the batch: expected steps as the first of them, which \
         varies"
    );
    assert_eq!(
        refusal(&|unfolding| unfolding.segments[0].emits[2].which = EmitRange::All),
        "segment 'chain': output 'h_next' is carried, so that a run of several steps has only the last of its values: \
         expected last(h_next)"
    );
    assert_eq!(
        refusal(&|unfolding| unfolding.cells[0].inputs[2] = tensor("lens", &[2])),
        "segment 'chain': input 'lens': expected one INT32 or INT64 for a length"
    );
    assert_eq!(
        refusal(&|unfolding| inputs(unfolding, 2, CellInputSource::GrownLength)),
        "segment 'chain': input 'lens': grows by the step, but the program runs several steps at a time"
    );
    assert_eq!(
        refusal(&|unfolding| {
            unfolding.cells[0].inputs.push(tensor("more", &[]));
            unfolding.segments[0].types[0].inputs.push(CellInputSource::Steps);
        }),
        "segment 'chain': expected one input for the number of steps, but found 2"
    );
    assert_eq!(
        refusal(&|unfolding| {
            let mut whole = unfolding.segments[0].clone();
            (whole.name, whole.nodes) = ("whole".to_owned(), Nodes::Stage);
            whole.types[0].inputs[2] = CellInputSource::Length(Tensor::Input(0));
            unfolding.segments.push(whole);
        }),
        "segment 'whole': cell 'step' runs single nodes here, but several steps at a time in 'chain': expected a cell \
         for each"
    );
    assert_eq!(
        refusal(&|unfolding| unfolding.segments[0].nodes = over_tokens()),
        "segment 'chain': input 'lens': takes a number of steps, but the program runs one at a time"
    );
}
