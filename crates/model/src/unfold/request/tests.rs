use smallvec::smallvec;

use super::*;
use crate::unfold::{CellSpec, Emit, EmitRange, Emitted, Expression, NodeType, Operator, Start};

fn tensor(name: &str, datatype: DataType, dims: &[i64]) -> TensorSpec {
    TensorSpec::new(name, datatype, dims)
}

fn segment(name: &str, source: CellInputSource, nodes: Nodes) -> Segment {
    let types = smallvec![NodeType { cell: 0, inputs: vec![source] }];
    let emits = vec![Emit { name: "h".to_owned(), output: 0, which: EmitRange::Last }];
    Segment { name: name.to_owned(), types, nodes, emits, streams: false }
}

fn unfolding(segments: Vec<Segment>) -> Unfolding {
    let cell = CellSpec {
        name: "step".to_owned(),
        inputs: vec![tensor("x", DataType::Int64, &[])],
        outputs: vec![tensor("h", DataType::Fp32, &[2])],
        max_rows: 4,
        min_followup: 1,
        priority: 1,
    };
    Unfolding { cells: vec![cell], segments, outputs: vec![Emitted { segment: 0, emit: 0 }], limits: Vec::new() }
}

/// Steps over the first input.
fn over() -> CellInputSource {
    CellInputSource::Step { of: Tensor::Input(0), reversed: false }
}

/// A source that does not read per step.
fn carried() -> CellInputSource {
    CellInputSource::Carried { output: 0, start: Start::Tensor(Tensor::Input(0)), is_kept: false }
}

fn given<'a>(shape: &'a [i64], data: &'a [u8]) -> Option<ProvidedInput<'a>> {
    Some(ProvidedInput { shape, data })
}

#[test]
fn a_request_has_as_many_steps_as_its_inputs_are_long() {
    let longer = Expression::Joined(Operator::Plus, Box::new([Expression::Length(0), Expression::Number(50)]));
    let unfolding = unfolding(vec![
        segment("stage", over(), Nodes::Stage),
        segment("chain", over(), Nodes::Chain { steps: Expression::Length(0), chunks: false }),
        segment("decode", carried(), Nodes::Decode { max_steps: longer, until: None, expected_steps: None }),
    ]);
    let specs = [tensor("tokens", DataType::Int64, &[-1])];
    let graph = unfolding.unfold(&specs, &[given(&[7], &[0; 56])]).expect("it unfolds");
    assert_eq!(graph.as_ref(), [Unfolded::Steps(1), Unfolded::Steps(7), Unfolded::Steps(57)]);
    let refusal =
        |inputs: &[Option<ProvidedInput<'_>>]| unfolding.unfold(&specs, inputs).expect_err("it does not").to_string();
    let empty = "segment 'chain' would have no step: expected an input of at least one element along its first axis";
    assert_eq!(refusal(&[given(&[0], &[])]), empty);
    assert_eq!(refusal(&[None]), "segment 'chain' takes its number of steps from inputs that are left out");
    let long = "segment 'chain' would have 1048577 steps, expected at most 1048576";
    assert_eq!(refusal(&[given(&[1_048_577], &[])]), long);
}

#[test]
fn what_is_gone_over_has_a_row_for_each_step() {
    let longer = Expression::Joined(Operator::Plus, Box::new([Expression::Length(0), Expression::Number(1)]));
    let unfolding = unfolding(vec![segment("chain", over(), Nodes::Chain { steps: longer, chunks: false })]);
    let refused = unfolding.unfold(&[tensor("tokens", DataType::Int64, &[-1])], &[given(&[7], &[0; 56])]);
    let expected = "input 'tokens': expected a row for each of 8 steps, but found 7";
    assert_eq!(refused.expect_err("there are seven").to_string(), expected);
}

#[test]
fn a_stage_that_goes_over_rows_is_one_node_and_has_a_row() {
    let unfolding = unfolding(vec![segment("stage", CellInputSource::Rows(Tensor::Input(0)), Nodes::Stage)]);
    let specs = [tensor("tokens", DataType::Int64, &[-1])];
    let graph = unfolding.unfold(&specs, &[given(&[7], &[0; 56])]).expect("it unfolds");
    assert_eq!(graph.as_ref(), [Unfolded::Steps(1)]);
    let refused = unfolding.unfold(&specs, &[given(&[0], &[])]).expect_err("there is none");
    let expected = "segment 'stage' would have no step: expected an input of at least one element along its first axis";
    assert_eq!(refused.to_string(), expected);
}

#[test]
fn a_loop_runs_once_at_least() {
    let none = Expression::Joined(Operator::Minus, Box::new([Expression::Length(0), Expression::Number(50)]));
    let unfolding = unfolding(vec![segment(
        "decode",
        over(),
        Nodes::Decode { max_steps: none, until: None, expected_steps: None },
    )]);
    let graph = unfolding.unfold(&[tensor("tokens", DataType::Int64, &[-1])], &[given(&[7], &[0; 56])]);
    assert_eq!(graph.expect("it unfolds").as_ref(), [Unfolded::Steps(1)]);
}

#[test]
fn a_tree_is_what_its_children_say() {
    let tree = Nodes::Tree { children: 0, max_nodes: 3 };
    let unfolding = unfolding(vec![segment("tree", CellInputSource::Whole(Tensor::Input(0)), tree)]);
    let specs = [tensor("children", DataType::Int32, &[-1, 2])];
    let table = |children: &[i32]| children.iter().flat_map(|child| child.to_le_bytes()).collect::<Vec<u8>>();
    let unfold = |shape: &[i64], children: &[i32]| unfolding.unfold(&specs, &[given(shape, &table(children))]);
    let graph = unfold(&[3, 2], &[1, 2, -1, -1, -1, -1]).expect("a tree");
    let Unfolded::Tree(topology) = &graph[0] else { panic!("a tree") };
    assert_eq!((topology.nodes(), topology.children_of(0), topology.is_root(0)), (3, &[1, 2][..], true));
    let refusal = |shape: &[i64], children: &[i32]| unfold(shape, children).expect_err("it is none").to_string();
    assert_eq!(refusal(&[2, 3], &[-1; 6]), "input 'children': expected [nodes, 2], but found [2, 3]");
    assert_eq!(refusal(&[4, 2], &[-1; 8]), "input 'children': expected at most 3 nodes, but found 4");
    assert_eq!(refusal(&[2, 2], &[1, -1, 0, -1]), "node 0 is among its own descendants");
    let empty = "segment 'children' would have no step: expected an input of at least one element along its first axis";
    assert_eq!(refusal(&[0, 2], &[]), empty);
}

#[test]
fn limits_bound_lengths_and_steps() {
    let most = Expression::Number(50);
    let mut unfolding = unfolding(vec![
        segment("prompt", CellInputSource::Whole(Tensor::Input(0)), Nodes::Stage),
        segment("decode", carried(), Nodes::Decode { max_steps: most, until: None, expected_steps: None }),
    ]);
    unfolding.limits = vec![Limit::Length { input: 0, most: 9 }, Limit::Steps { segment: 1, input: 1 }];
    let specs = [tensor("tokens", DataType::Int64, &[-1]), tensor("most", DataType::Int32, &[1])];
    let unfold = |length: i64, asked: Option<i32>| {
        let (shape, data) = ([length], asked.unwrap_or(0).to_le_bytes());
        let asked = asked.and_then(|_| given(&[1], &data));
        let unfolded = unfolding.unfold(&specs, &[given(&shape, &[]), asked]);
        unfolded.map(|segments| segments.iter().map(Unfolded::nodes).collect::<Vec<_>>())
    };
    assert_eq!(unfold(9, None), Ok(vec![1, 50]));
    assert_eq!(unfold(1, Some(3)), Ok(vec![1, 3]), "the stage runs once whatever the request asks for");
    assert_eq!(unfold(1, Some(60)), Ok(vec![1, 50]));
    let refused = |length, asked| unfold(length, asked).expect_err("it should be refused").to_string();
    assert_eq!(refused(0, None), "input 'tokens': expected a length of 1 to 9, but found 0");
    assert_eq!(refused(10, None), "input 'tokens': expected a length of 1 to 9, but found 10");
    assert_eq!(refused(1, Some(0)), "input 'most': expected 1 or more, but found 0");
    assert_eq!(refused(1, Some(-7)), "input 'most': expected 1 or more, but found -7");
}
