use paternoster_model::unfold::{Emitted, Expression, Operator};

use super::*;
use crate::{
    ConfigErrorKind::{Graph, Unknown, Value},
    convert,
    tests::refusals::{Refusals, part},
    unfold::read,
    yaml,
};

fn port(name: &str, datatype: DataType, dims: &[i64]) -> TensorSpec {
    TensorSpec::new(name, datatype, dims)
}

fn floats(names: &[&str]) -> Vec<TensorSpec> {
    names.iter().map(|name| port(name, DataType::Fp32, &[8])).collect()
}

const TRANSLATE: &str = "\
inputs: [ { name: source, dtype: INT64, dims: [words] } ]
outputs: [ { name: tokens, dtype: INT64, dims: [-1] } ]
cells: { encode: { program: e.onnx, batch_sizes: [512] }, decode: { program: d.onnx, batch_sizes: [256] } }
unfold:
- chain: { cell: encode, name: encoder, over: source, as: word, reverse: true,
    carry: { h: h_next }, emit: { h: last(h_next), all: all(h_next) } }
- decode: { cell: decode, feed: { token: next }, carry: { h: h_next }, start: { token: 1, h: encoder.h },
    hold: { memory: encoder.all }, length: { words: encoder.all, count: grow.past }, grow: { past: key },
    until: { next: 2 }, max_steps: \"len(encoder.all) + 50\", emit: { tokens: all(next) } }
";

fn translate_ports() -> Vec<CellPorts> {
    let (word, token, words, next) = (
        port("word", DataType::Int64, &[]),
        port("token", DataType::Int64, &[]),
        port("words", DataType::Int32, &[]),
        port("next", DataType::Int64, &[]),
    );
    let mut decoder = floats(&["h", "memory"]);
    decoder.extend([token, words, port("past", DataType::Fp32, &[-1, 8]), port("count", DataType::Int64, &[])]);
    vec![
        CellPorts { inputs: vec![word, floats(&["h"])[0].clone()], outputs: floats(&["h_next"]) },
        CellPorts { inputs: decoder, outputs: vec![floats(&["h_next"])[0].clone(), next, floats(&["key"])[0].clone()] },
    ]
}

fn resolve(text: &str, ports: &[CellPorts]) -> Result<Unfolding, SettingError> {
    let (config, origin) = yaml::parse("f", text.as_bytes()).unwrap_or_else(|fault| panic!("{fault}"));
    let request = read(&config, &origin).unwrap_or_else(|fault| panic!("{fault}")).expect("it has cells");
    let (spec, ..) = convert::model(&config, 1, &Default::default(), &origin).unwrap_or_else(|fault| panic!("{fault}"));
    request.resolve(&spec, ports)
}

const fn emitted(segment: usize, emit: usize) -> Tensor {
    Tensor::Emitted(Emitted { segment, emit })
}

#[test]
fn names_become_numbers() {
    let resolved = resolve(TRANSLATE, &translate_ports()).unwrap();
    let [encoder, decoder] = &resolved.segments[..] else { panic!("two segments") };
    let inputs = vec![
        CellInputSource::Step { of: Tensor::Input(0), reversed: true },
        CellInputSource::Carried { output: 0, start: Start::Row(vec![0; 32].into()), is_kept: false },
    ];
    assert_eq!(encoder.types[..], [NodeType { cell: 0, inputs }]);
    assert_eq!(encoder.nodes, Nodes::Chain { steps: Expression::Length(0), chunks: false });
    let most = [Expression::Length(0), Expression::Number(50)];
    let one = Bytes::copy_from_slice(&1_i64.to_le_bytes());
    let inputs = vec![
        CellInputSource::Carried { output: 0, start: Start::Tensor(emitted(0, 1)), is_kept: false },
        CellInputSource::Whole(emitted(0, 0)),
        CellInputSource::Carried { output: 1, start: Start::Row(one), is_kept: false },
        CellInputSource::Length(emitted(0, 0)),
        CellInputSource::Grown { output: 2 },
        CellInputSource::GrownLength,
    ];
    assert_eq!(decoder.types[..], [NodeType { cell: 1, inputs }]);
    let max_steps = Expression::Joined(Operator::Plus, Box::new(most));
    assert_eq!(decoder.nodes, Nodes::Decode { max_steps, until: Some((1, 2)), expected_steps: None });
    assert_eq!(resolved.outputs, [Emitted { segment: 1, emit: 0 }]);
    let (encode, decode) = (&resolved.cells[0], &resolved.cells[1]);
    assert_eq!((encode.name.as_str(), encode.max_rows, encode.min_followup, encode.priority), ("encode", 512, 128, 2));
    assert_eq!((decode.name.as_str(), decode.max_rows, decode.min_followup, decode.priority), ("decode", 256, 64, 1));
    assert_eq!(decode.inputs, translate_ports()[1].inputs);
}

const TREE: &str = "\
inputs: [ { name: tokens, dtype: INT64, dims: [n] }, { name: table, dtype: INT64, dims: [n, 2] } ]
outputs: [ { name: root, dtype: FP32, dims: [8] } ]
cells: { leaf: { program: l.onnx }, node: { program: n.onnx } }
unfold: [ tree: { leaf: leaf, internal: node, children: table, over: tokens, as: x,
    child: { left: 0.h, right: 1.h }, emit: { root: root(h) } } ]
";

fn tree_ports() -> [CellPorts; 2] {
    let leaf = CellPorts { inputs: vec![port("x", DataType::Int64, &[])], outputs: floats(&["c", "h"]) };
    [leaf, CellPorts { inputs: floats(&["right", "left"]), outputs: floats(&["h", "c"]) }]
}

#[test]
fn leaves_and_inner_nodes_take_what_they_have_of_a_trees_sources() {
    let [leaf, node] = tree_ports();
    let child = |child| CellInputSource::Child { child, output: 1, none: vec![0; 32].into() };
    let resolved = resolve(TREE, &[leaf, node]).unwrap();
    let expected = [
        NodeType { cell: 0, inputs: vec![CellInputSource::Step { of: Tensor::Input(0), reversed: false }] },
        NodeType { cell: 1, inputs: vec![child(1), child(0)] },
    ];
    let tree = &resolved.segments[0];
    assert_eq!(tree.types[..], expected, "outputs are those of the leaves");
    assert_eq!(tree.nodes, Nodes::Tree { children: 1, max_nodes: 256 });
    assert_eq!(resolved.outputs_of(tree, 1).as_deref(), Ok(&[1, 0][..]), "inner nodes have them elsewhere");
}

const SPEECH: &str = "\
inputs: [ { name: frames, dtype: FP32, dims: [n, 80] } ]
outputs: [ { name: last, dtype: FP32, dims: [8] }, { name: features, dtype: FP32, dims: [-1, 8] } ]
cells: { conv: { program: c.onnx }, step: { program: s.onnx } }
unfold:
- stage: conv
- chain: { cell: step, over: conv.features, as: x, steps: len(frames) / 2, emit: { last: last(y) } }
";

/// Ports of a first cell with these inputs and outputs, and of the second.
fn speech_ports(inputs: &[&str], outputs: &[&str]) -> [CellPorts; 2] {
    let conv = CellPorts { inputs: floats(inputs), outputs: floats(outputs) };
    [conv, CellPorts { inputs: floats(&["x"]), outputs: floats(&["y"]) }]
}

#[test]
fn a_stage_takes_inputs_and_leaves_outputs_under_their_own_names() {
    let resolved = resolve(SPEECH, &speech_ports(&["frames"], &["other", "features"])).unwrap();
    let stage = &resolved.segments[0];
    assert_eq!(stage.types[..], [NodeType { cell: 0, inputs: vec![CellInputSource::Whole(Tensor::Input(0))] }]);
    assert_eq!(stage.nodes, Nodes::Stage);
    let left: Vec<(&str, EmitRange)> =
        resolved.segments[0].emits.iter().map(|emit| (emit.name.as_str(), emit.which)).collect();
    assert_eq!(left, [("features", EmitRange::Last)], "nothing reads the other output");
    assert_eq!(resolved.outputs, [Emitted { segment: 1, emit: 0 }, Emitted { segment: 0, emit: 0 }]);
}

const PROJECT: &str = "\
inputs: [ { name: x, dtype: FP32, dims: [n, 8] } ]
outputs: [ { name: last, dtype: FP32, dims: [8] } ]
cells: { project: { program: p.onnx }, step: { program: s.onnx } }
unfold:
- stage: { cell: project, over: x, as: x }
- chain: { cell: step, over: project.gates, as: g, emit: { last: last(y) } }
";

#[test]
fn a_stage_may_go_over_rows_and_leaves_as_many() {
    let project = CellPorts { inputs: floats(&["x"]), outputs: floats(&["gates"]) };
    let step = CellPorts { inputs: floats(&["g"]), outputs: floats(&["y"]) };
    let resolved = resolve(PROJECT, &[project.clone(), step.clone()]).unwrap();
    let [stage, chain] = &resolved.segments[..] else { panic!("two segments") };
    assert_eq!(stage.types[..], [NodeType { cell: 0, inputs: vec![CellInputSource::Rows(Tensor::Input(0))] }]);
    assert_eq!(stage.nodes, Nodes::Stage);
    let steps = Expression::Length(0);
    assert_eq!(chain.nodes, Nodes::Chain { steps, chunks: false }, "known before the stage has run");
    let named = PROJECT.replace("as: x }", "as: x, emit: { gates: all(gates) } }");
    assert_eq!(resolve(&named, &[project, step]), Ok(resolved));
}

pub(crate) fn refusals(all: &mut Refusals) {
    let translate = |given: &str| {
        let (from, to) = given.split_once(" => ").expect("a replacement");
        assert!(TRANSLATE.contains(from), "{from}");
        resolve(&TRANSLATE.replacen(from, to, 1), &translate_ports())
    };
    part(all, "programs of cells: names and datatypes", translate).refuses(&[
        (Unknown, "segment 'encoder'", "as: word => as: world"),
        (Graph, "segment 'encoder'", "carry: { h: h_next }, emit => emit"),
        (Unknown, "segment 'encoder'", "carry: { h: h_next }, emit => carry: { h: h_nxt }, emit"),
        (Unknown, "segment 'encoder'", "last(h_next) => last(hidden)"),
        (Unknown, "segment 'decode'", "until: { next: 2 } => until: { last: 2 }"),
        (Graph, "segment 'decode'", "feed: { token: next } => feed: { token: h_next }"),
        (Value, "segment 'decode'", "hold: { memory: encoder.all } => hold: { memory: source }"),
        (Graph, "segment 'decode'", "grow: { past: key } => grow: { past: next }"),
        (Unknown, "segment 'decode'", "grow: { past: key } => grow: { past: keys }"),
        (Graph, "", "all(next) => all(h_next)"),
    ]);
    all.title("programs of cells: ports");
    let ports = translate_ports();
    all.add(Graph, "", "one program of two", resolve(TRANSLATE, &ports[..1]));
    let mut strings = translate_ports();
    strings[0].inputs[0].datatype = DataType::Bytes;
    all.add(Graph, "cell 'encode'", "an input of strings", resolve(TRANSLATE, &strings));
    let mut large = translate_ports();
    large[0].inputs[1].dims[0] = 1 << 40;
    all.add(Value, "segment 'encoder'", "a carried input of 4 TB", resolve(TRANSLATE, &large));
    large[0].inputs[1].dims[0] = 1;
    large[1].inputs[2] = port("token", DataType::Int64, &[1 << 27]);
    all.add(Value, "segment 'decode'", "a start of 1 GB beside another", resolve(TRANSLATE, &large));
    let [leaf, node] = tree_ports();
    let bare = CellPorts { outputs: floats(&["c"]), ..leaf.clone() };
    all.add(
        Unknown,
        "segment 'tree'",
        "leaves without the output of inner nodes",
        resolve(TREE, &[bare, node.clone()]),
    );
    let alone = CellPorts { inputs: floats(&["left"]), ..node };
    all.add(Unknown, "segment 'tree'", "inner nodes without a child's input", resolve(TREE, &[leaf, alone]));
    let conv = |inputs: &[&str], outputs: &[&str]| resolve(SPEECH, &speech_ports(inputs, outputs));
    all.add(Unknown, "segment 'conv'", "a stage without an output", conv(&["frames"], &["other"]));
    all.add(Graph, "segment 'conv'", "a stage with another input", conv(&["audio"], &["other", "features"]));
    all.add(Value, "", "an output of two segments", conv(&["frames"], &["last", "features"]));
    let text = PROJECT.replace("{ name: x,", "{ name: frames, dtype: FP32, dims: [8] }, { name: x,");
    let project = CellPorts { inputs: floats(&["frames", "x"]), outputs: floats(&["gates"]) };
    let step = CellPorts { inputs: floats(&["g"]), outputs: floats(&["y"]) };
    all.add(Graph, "segment 'project'", "a stage over rows with another input", resolve(&text, &[project, step]));
}
