//! Loops that end by their outputs, on a lane that takes work ahead.

use super::*;

#[test]
fn what_ran_beyond_the_end_of_a_loop_is_neither_kept_nor_streamed() {
    // The digit increases to 3, which ends the loop.
    let cell = cell("step", &[("h", &[1])], &["h_next"]);
    let max_steps = Expression::Number(9);
    let nodes = steps(0, vec![carried(0, 0)], Nodes::Decode { max_steps, until: Some((0, 3)), expected_steps: None });
    let emits = vec![emit("y0", 0, EmitRange::All), emit("y1", 0, EmitRange::Last)];
    let mut digits = segment("digits", nodes, emits);
    digits.streams = true;
    let unfolding = Unfolding {
        cells: vec![cell],
        segments: vec![digits],
        outputs: vec![emitted(0, 0), emitted(0, 1)],
        limits: Vec::new(),
    };
    let tried =
        Tried::new(model(&[("x", &[-1])], 2), unfolding, &[|inputs| vec![vec![inputs[0][0] + 1]]]).expect("it fits");
    let unfolded_state = tried.unfolded_state(&[(&[1], &[1])]);
    let mut streamed = Vec::new();
    for node in 0..5 {
        let nodes = [(&unfolded_state, node, 1)];
        let ran = CellTask {
            programs: &tried.programs,
            cell: 0,
            nodes: &nodes,
            buffers: &tried.buffers,
            stop: &StopSignal::default(),
        }
        .run();
        let ran = ran.expect("it runs");
        let outcome = ran.outcomes[0];
        assert_eq!((outcome.next == Next::Done, outcome.emitted), (node == 2, node <= 2), "step {node}");
        streamed.extend(
            ran.outputs
                .iter()
                .flat_map(|outputs| &outputs.streamed)
                .map(|(_, response)| values(&response.outputs[1].data)[0]),
        );
    }
    assert_eq!(streamed, [1, 2, 3]);
    let outputs = unfolded_state.reply().expect("it has ended").outputs;
    assert_eq!(values(&outputs[0].data), [1, 2, 3]);
    assert_eq!(values(&outputs[1].data), [3]);
}
