use paternoster_model::unfold::{EmitRange, Operator, Start};
use smallvec::smallvec;

use super::*;

fn emit(name: &str, output: &str, which: EmitRange) -> Emit<String> {
    Emit { name: name.to_owned(), output: output.to_owned(), which }
}

fn value(value: f64) -> Start<Tensor, Constant> {
    Start::Row(Constant::Value(value))
}

fn carried(output: &str, start: Start<Tensor, Constant>) -> SourceRequest {
    CellInputSource::Carried { output: output.to_owned(), start, is_kept: false }
}

fn sources<const N: usize>(given: [(&str, SourceRequest); N]) -> BTreeMap<String, SourceRequest> {
    given.into_iter().map(|(input, source)| (input.to_owned(), source)).collect()
}

const fn emitted(segment: usize, emit: usize) -> Tensor {
    Tensor::Emitted(Emitted { segment, emit })
}

#[test]
fn the_steps_of_a_decoder_may_be_expected() {
    let in_terms_of_lengths = changed(TRANSLATE, "max_steps:", "expected_steps: 30\n    max_steps:");
    let max_steps = "\"2 * len(encoder.all) + 50\"";
    for text in [&in_terms_of_lengths, &changed(&in_terms_of_lengths, max_steps, "30")] {
        let nodes = &sound(text).segments[1].nodes;
        assert!(matches!(nodes, Nodes::Decode { expected_steps: Some(30), .. }), "{nodes:?}");
    }
}

#[test]
fn every_key_of_chain_and_decode_is_read() {
    let encoder = SegmentRequest {
        name: "encoder".to_owned(),
        cells: smallvec![0],
        nodes: Nodes::Chain { steps: Expression::Length(0), chunks: false },
        sources: sources([
            ("word", CellInputSource::Step { of: Tensor::Input(0), reversed: true }),
            ("h", carried("h_next", value(-0.5))),
            ("c", carried("c_next", value(0.0))),
        ]),
        emits: vec![emit("all", "h_next", EmitRange::All), emit("h", "h_next", EmitRange::Last)],
        emits_all: false,
        streams: false,
    };
    let joined = |operator, left, right| Expression::Joined(operator, Box::new([left, right]));
    let twice = joined(Operator::Times, Expression::Number(2), Expression::Length(0));
    let max_steps = joined(Operator::Plus, twice, Expression::Number(50));
    let decode = SegmentRequest {
        name: "decode".to_owned(),
        cells: smallvec![1],
        nodes: Nodes::Decode { max_steps, until: Some(("next".to_owned(), 2)), expected_steps: None },
        sources: sources([
            ("token", carried("next", value(1.0))),
            ("h", carried("h_next", Start::Tensor(emitted(0, 1)))),
            ("memory", CellInputSource::Whole(emitted(0, 0))),
            ("words", CellInputSource::Length(emitted(0, 0))),
            ("past", CellInputSource::Grown { output: "key".to_owned() }),
            ("past_words", CellInputSource::GrownLength),
        ]),
        emits: vec![emit("tokens", "next", EmitRange::All)],
        emits_all: false,
        streams: false,
    };
    let cells = vec![
        CellRequest {
            name: "encode".to_owned(),
            program: "encoder.onnx".to_owned(),
            batch_sizes: Some(vec![1, 4, 512]),
            min_followup: Some(64),
            priority: 7,
            tensors: BTreeMap::new(),
        },
        CellRequest {
            name: "decode".to_owned(),
            program: "decoder.onnx".to_owned(),
            batch_sizes: None,
            min_followup: None,
            priority: 1,
            tensors: BTreeMap::new(),
        },
    ];
    let read = sound(TRANSLATE);
    assert_eq!(
        read,
        UnfoldRequest { cells, segments: vec![encoder, decode], lengths: BTreeMap::new(), limits: Vec::new() }
    );
    assert_eq!(read.max_rows(), 512);
}

#[test]
fn every_key_of_a_tree_is_read() {
    let child =
        |child, output: &str| CellInputSource::Child { child, output: output.to_owned(), none: Constant::Value(0.0) };
    let tree = SegmentRequest {
        name: "tree".to_owned(),
        cells: smallvec![0, 1],
        nodes: Nodes::Tree { children: 1, max_nodes: 31 },
        sources: sources([
            ("x", CellInputSource::Step { of: Tensor::Input(0), reversed: false }),
            ("left", child(0, "h")),
            ("right", child(1, "h")),
        ]),
        emits: vec![emit("all", "h", EmitRange::All), emit("root", "h", EmitRange::Last)],
        emits_all: false,
        streams: false,
    };
    let read = sound(TREE);
    assert_eq!(read.segments, [tree]);
    let max_nodes = |read: UnfoldRequest| match read.segments[0].nodes {
        Nodes::Tree { max_nodes, .. } => max_nodes,
        _ => panic!("a tree"),
    };
    assert_eq!(max_nodes(sound(&changed(TREE, "max_nodes: 31", "name: t"))), 256);
}

#[test]
fn a_stage_is_a_cell_that_runs_once() {
    let read = sound(SPEECH);
    let names: Vec<&str> = read.cells.iter().map(|cell| cell.name.as_str()).collect();
    assert_eq!(names, ["conv", "step", "dense"], "in the order in which they run");
    let conv = SegmentRequest {
        name: "conv".to_owned(),
        cells: smallvec![0],
        nodes: Nodes::Stage,
        sources: BTreeMap::new(),
        emits: vec![emit("features", "features", EmitRange::Last)],
        emits_all: true,
        streams: false,
    };
    assert_eq!(read.segments[0], conv, "it emits what a later segment names");
    let dense = SegmentRequest {
        name: "dense".to_owned(),
        cells: smallvec![2],
        nodes: Nodes::Stage,
        sources: sources([("x", CellInputSource::Whole(emitted(1, 0)))]),
        emits: vec![emit("logits", "y", EmitRange::Last)],
        emits_all: false,
        streams: false,
    };
    assert_eq!(read.segments[2], dense, "all values of one node are its only one");
    let half = [Expression::Length(0), Expression::Number(2)];
    let steps = Expression::Joined(Operator::Divided, Box::new(half));
    assert_eq!(read.segments[1].nodes, Nodes::Chain { steps, chunks: false });
}

#[test]
fn cells_of_later_segments_go_first_unless_the_configuration_says_otherwise() {
    let priorities = |text: &str| sound(text).cells.iter().map(|cell| cell.priority).collect::<Vec<_>>();
    assert_eq!(priorities(SPEECH), [3, 2, 1]);
    assert_eq!(priorities(TRANSLATE), [7, 1]);
    assert_eq!(priorities(TREE), [2, 1], "inner nodes come later than leaves");
    let twice = changed(SPEECH, "cell: dense, inputs: { x: step.h }", "cell: conv, name: again, inputs: { x: step.h }");
    assert_eq!(priorities(&changed(&twice, ", dense: { program: dense.onnx }", "")), [1, 2], "by its last segment");
}

#[test]
fn a_small_batch_still_has_a_least_follow_up() {
    let least = |sizes: &str| {
        let cell = format!("{{ program: decoder.onnx, batch_sizes: {sizes} }}");
        sound(&changed(TRANSLATE, "{ program: decoder.onnx }", &cell)).cells[1].min_followup()
    };
    assert_eq!([least("[1]"), least("[2, 7]"), least("[256]")], [1, 1, 64]);
}

#[test]
fn chains_are_as_long_as_what_they_go_over_where_that_is_known() {
    let layer = "- chain: { cell: decode, name: layer, over: encoder.all, as: x, emit: { y: all(h) } }\n- decode:";
    let layered = sound(&changed(TRANSLATE, "- decode:", layer));
    let layer = &layered.segments[1];
    assert_eq!(
        (&layer.cells[..], &layer.nodes),
        (&[1][..], &Nodes::Chain { steps: Expression::Length(0), chunks: false })
    );
    let over_tree = "- chain: { cell: leaf, over: tree.all, as: x, emit: { y: last(h) } }\n";
    assert!(from_yaml(&format!("{TREE}{over_tree}")).is_ok(), "a tree has as many nodes as its table");
}

#[test]
fn one_segment_of_a_decoupled_model_streams() {
    let streams = |text: &str| sound(text).segments.iter().map(|segment| segment.streams).collect::<Vec<_>>();
    let decoupled = format!("decoupled: true\n{}", changed(TRANSLATE, "max_steps:", "stream: true\n    max_steps:"));
    assert_eq!(streams(&decoupled), [false, true]);
}

#[test]
fn a_model_without_cells_says_nothing_of_them() {
    assert_eq!(from_yaml("max_batch_size: 8\nparameters: { cellar: deep }"), Ok(None));
}

#[test]
fn the_documentations_example_is_sound() {
    let documentation = include_str!("../../../../../docs/model-configuration.md");
    let (_, section) = documentation.split_once("## Cells\n").expect("it has the section");
    let (_, example) = section.split_once("```yaml\n").expect("which begins with an example");
    let (example, _) = example.split_once("```").expect("that ends");
    assert_eq!(sound(example).segments.len(), 2);
}

#[test]
fn both_forms_say_the_same() {
    let (written, _) = yaml::parse("f", TRANSLATE.as_bytes()).unwrap();
    let written = written.shown();
    let parameters = written.parameters.iter();
    let parameters: String = parameters
        .map(|(key, value)| {
            format!("parameters {{ key: '{key}' value {{ string_value: '{}' }} }}\n", value.string_value)
        })
        .collect();
    let tensors = "max_batch_size: 1 input { name: 'source' data_type: TYPE_INT64 dims: -1 }
                   output { name: 'tokens' data_type: TYPE_INT64 dims: -1 }";
    let (config, origin) = pbtxt::parse("f", format!("{tensors}\n{parameters}").as_bytes()).unwrap();
    assert_eq!(read(&config, &origin), Ok(Some(sound(TRANSLATE))));
    assert_eq!(written.max_batch_size, 1, "each request is a batch of one");
}

#[test]
fn a_chain_may_run_several_steps_at_a_time() {
    let told = changed(TRANSLATE, "    reverse: true\n", "    reverse: true\n    chunk: { lengths: lens }\n");
    let told = changed(&told, "priority: 7 }", "priority: 7, batch_axes: { word: 1, h_next: 2 } }");
    let read = sound(&told);
    assert_eq!(read.segments[0].nodes, Nodes::Chain { steps: Expression::Length(0), chunks: true });
    assert_eq!(read.segments[0].sources["lens"], CellInputSource::Steps);
    let axes = read.cells[0].tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.batch));
    assert_eq!(axes.collect::<Vec<_>>(), [("h_next", TensorBatch::Axis(2)), ("word", TensorBatch::Axis(1))]);
    let untold = sound(&changed(TRANSLATE, "    reverse: true\n", "    chunk: {}\n"));
    assert_eq!(untold.segments[0].nodes, Nodes::Chain { steps: Expression::Length(0), chunks: true });
    assert!(untold.segments[0].sources.values().all(|source| *source != CellInputSource::Steps));
    assert_eq!(sound(TRANSLATE).segments[0].nodes, Nodes::Chain { steps: Expression::Length(0), chunks: false });
}
