//! State that requests of sequences read and write.

use paternoster_batching::SequenceNo;
use paternoster_model::{CorrelationId, InSequence, unfold::Control};
use paternoster_observe::budget::Budget;

use super::*;
use crate::cells::SequenceState;

/// A chain of digits whose state is kept between requests, and whose cell reads the request's sequence flags.
fn digits_of_a_sequence() -> Tried {
    let flags = |control| CellInputSource::Control { control, no: bytes(&[0]), yes: bytes(&[1]) };
    let kept = CellInputSource::Carried { output: 0, start: Start::Row(bytes(&[9])), is_kept: true };
    let sources = vec![
        CellInputSource::Step { of: Tensor::Input(0), reversed: false },
        kept,
        flags(Control::Start),
        flags(Control::End),
        flags(Control::Ready),
        CellInputSource::CorrelationId,
    ];
    let one: &[i64] = &[1];
    let cell =
        cell("step", &[("x", &[]), ("h", one), ("s", one), ("e", one), ("r", one), ("id", one)], &["h_next", "flags"]);
    let emits = vec![emit("y0", 0, EmitRange::Last), emit("y1", 1, EmitRange::Last)];
    let segments = vec![segment("digits", steps(0, sources, over_tokens()), emits)];
    let unfolding =
        Unfolding { cells: vec![cell], segments, outputs: vec![emitted(0, 0), emitted(0, 1)], limits: Vec::new() };
    let row: Row = |inputs| {
        let flags = 1000 * inputs[5][0] + 100 * inputs[2][0] + 10 * inputs[3][0] + inputs[4][0];
        vec![vec![10 * inputs[1][0] + inputs[0][0]], vec![flags]]
    };
    Tried::new(model(&[("x", &[-1])], 2), unfolding, &[row]).expect("the cell fits")
}

fn in_sequence(id: u64, starts: bool, ends: bool) -> InSequence {
    InSequence { id: CorrelationId::Number(id), starts, ends }
}

#[test]
fn a_sequence_reads_what_its_last_completed_request_left_and_no_other_does() {
    let tried = digits_of_a_sequence();
    let budget = Budget::of(usize::MAX);
    let states = [0, 1].map(|number| Arc::new(SequenceState::new(SequenceNo(number), &budget)));
    let run = |sequence: usize, digits: &[i64], place: InSequence, completes: bool| {
        let inputs = tried.inputs(&[(&[digits.len() as i64], digits)]);
        let graph = unfold(&tried.programs, &tried.spec, 1, &inputs, Some(&place)).expect("it unfolds");
        let payload = Payload { rows: 1, lengths: Default::default(), inputs, on_card: None, backlog: None };
        let unfolded_state = UnfoldedState::new(&tried.programs, true, Arc::new(payload), &graph, Some(place));
        unfolded_state.join(Arc::clone(&states[sequence]));
        for node in 0..digits.len() as u32 {
            tried.task(0, &[(&unfolded_state, node)]).expect("it runs");
        }
        if completes {
            unfolded_state.commit().expect("there is room");
        }
        let outputs = unfolded_state.reply().expect("it has run").outputs;
        (values(&outputs[0].data)[0], values(&outputs[1].data)[0])
    };
    assert_eq!(run(0, &[1, 2], in_sequence(7, true, false), true), (912, 7101), "the state begins with 9");
    assert_eq!(run(1, &[5], in_sequence(8, true, false), true), (95, 8101));
    assert_eq!(run(0, &[3], in_sequence(7, false, false), false), (9123, 7001), "given up before its end");
    assert_eq!(run(0, &[4], in_sequence(7, false, true), true), (9124, 7011), "nothing of it is left");
    assert_eq!(run(1, &[6], in_sequence(8, true, true), true), (956, 8111));
}

#[test]
fn an_id_that_its_cell_cannot_read_is_the_senders_fault() {
    let tried = digits_of_a_sequence();
    let inputs = tried.inputs(&[(&[1], &[1])]);
    let text = InSequence { id: CorrelationId::Text("a".into()), starts: true, ends: false };
    let fault = unfold(&tried.programs, &tried.spec, 1, &inputs, Some(&text)).expect_err("it is no number");
    assert_eq!(fault.to_string(), "expected a sequence_id that is INT64, as the model reads it, but found 'a'");
    let reply = tried.alone(&[(&[1], &[1])]).expect("outside of a sequence");
    assert_eq!(reply[1].1, [111], "a trial is a whole sequence");
}

#[test]
fn trials_that_come_at_once_share_a_run_and_read_what_they_are_given() {
    let tried = digits_of_a_sequence();
    let given = |name: &str, values: &[i64]| {
        (name.to_owned(), InputTensor { shape: Dims::from_slice(&[values.len() as i64]), data: bytes(values) })
    };
    let rows = Arc::new(tried.programs.rows_of(&[given("s", &[0]), given("h", &[4])]).expect("they are there"));
    let trial = |digit: i64| {
        let inputs = tried.inputs(&[(&[1], &[digit])]);
        let graph = unfold(&tried.programs, &tried.spec, 1, &inputs, None).expect("it unfolds");
        Trial { inputs, graph, given: Arc::clone(&rows) }
    };
    let trials = vec![trial(1), trial(2), trial(3)];
    let (replies, _) =
        run_alone(&tried.spec, &tried.programs, trials, (&tried.buffers, &StopSignal::default())).expect("they run");
    let flags = replies.iter().map(|reply| [0, 1].map(|output| values(&reply.outputs[output].data)[0]));
    let expected = [[41, 11], [42, 11], [43, 11]];
    assert_eq!(
        flags.collect::<Vec<_>>(),
        expected,
        "no START, as given; END and READY, as of a sequence's only request"
    );
    assert_eq!(*tried.rows[0].runs.lock(), [3], "they share a run");

    let refused = |name: &str, values: &[i64]| tried.programs.rows_of(&[given(name, values)]).map(drop);
    assert_eq!(refused("z", &[0]), Err("the program has no input 'z'".to_owned()));
    assert_eq!(refused("s", &[0, 0]), Err("expected dims [1] for input 's', but found [2]".to_owned()));
}

#[test]
fn state_without_room_is_lost_with_its_sequence() {
    let budget = Budget::of(10);
    let row = |len: usize| super::super::row::Row::alone(Dims::from_slice(&[len as i64]), Bytes::from(vec![1; len]));
    let [first, second] = [0, 1].map(|number| SequenceState::new(SequenceNo(number), &budget));
    first.write(vec![(0, 0, row(4)), (0, 1, row(2))]).expect("6 of 10");
    first.write(vec![(0, 0, row(3))]).expect("5 of 10");
    assert_eq!(budget.used(), 5, "what is replaced is given back");
    second.write(vec![(0, 0, row(6))]).expect_err("11 of 10");
    assert!(second.read(0, 0).is_none());
    first.write(vec![(0, 0, row(1))]).expect("3 of 10");
    second.write(vec![(0, 0, row(1))]).expect_err("a step is missing, so the sequence cannot go on");
    assert_eq!((budget.used(), budget.refused()), (3, 1));
    drop(first);
    assert_eq!(budget.used(), 0);
}
