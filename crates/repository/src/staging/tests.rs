use paternoster_model::DataType;
use paternoster_onnx::{
    build::Graph,
    dims,
    zoo::{self, Width},
};
use smallvec::SmallVec;

use super::*;
use crate::{
    LoadErrorKind::{Graph as InGraph, Settings},
    tests::refusals::Refusals,
};

fn spec(inputs: Vec<TensorSpec>, outputs: Vec<TensorSpec>, symbols: &[&str]) -> ModelSpec {
    let symbols = symbols.iter().map(|&symbol| symbol.to_owned()).collect();
    ModelSpec { name: "m".to_owned(), version: 1, max_batch_size: 8, inputs, outputs, symbols, decoupled: false }
}

fn fp32(name: &str, dims: &[i64]) -> TensorSpec {
    TensorSpec::new(name, DataType::Fp32, dims)
}

fn at(tensors: &[&str], exits: Vec<ExitRequest>) -> StageRequest {
    StageRequest { cuts: StageCuts::At(tensors.iter().map(|&tensor| tensor.to_owned()).collect()), exits }
}

fn plan(model: &Model, spec: &ModelSpec, request: &StageRequest) -> StagePlan {
    let (plan, graphs) = cut_into_stages(model, spec, request).expect("it can be cut");
    assert_eq!(plan.stages.len(), graphs.len());
    for (stage, graph) in plan.stages.iter().zip(&graphs) {
        let graph = graph.0.graph.as_ref().expect("a graph");
        let inputs: Vec<&str> = graph.input.iter().map(|port| port.name()).collect();
        assert_eq!(stage.inputs.iter().map(|(tensor, _)| &*tensor.name).collect::<Vec<_>>(), inputs);
    }
    plan
}

fn sources(stage: &StageSpec) -> Vec<(&str, InputSource)> {
    stage.inputs.iter().map(|(tensor, source)| (&*tensor.name, *source)).collect()
}

fn sinks_of(stage: &StageSpec) -> Vec<(&str, Sink)> {
    stage.outputs.iter().map(|(tensor, sink)| (&*tensor.name, *sink)).collect()
}

fn left(boundary: u16, tensor: u16) -> InputSource {
    InputSource::Boundary { boundary, tensor }
}

fn row(name: &str, dims: Option<&[BoundaryDim]>) -> BoundaryTensor {
    BoundaryTensor { name: name.to_owned(), datatype: DataType::Fp32, dims: dims.map(SmallVec::from_slice) }
}

#[test]
fn connections_of_a_unet_are_read_where_its_encoder_left_them() {
    let spec = spec(vec![fp32("image", &[3, 256, 256])], vec![fp32("mask", &[2, 256, 256])], &[]);
    let model = zoo::unet(Width::QUARTER).expect("sound");
    let plan = plan(&model, &spec, &at(&["down2/Relu_2", "up2/Relu_2"], vec![]));
    let [first, second, third] = plan.stages.as_slice() else { panic!("two cuts make three stages") };
    assert_eq!(sources(first), [("image", InputSource::Request(0))]);
    let encoded = [("down0/Relu_2", 0), ("down1/Relu_2", 1), ("down2/Relu_2", 2)];
    assert_eq!(sinks_of(first), encoded.map(|(name, tensor)| (name, Sink::Boundary(tensor))));
    assert_eq!(sources(second), [("down2/Relu_2", left(0, 2))]);
    assert_eq!(sinks_of(second), [("up2/Relu_2", Sink::Boundary(0))]);
    let connected = [("down0/Relu_2", left(0, 0)), ("down1/Relu_2", left(0, 1)), ("up2/Relu_2", left(1, 0))];
    assert_eq!(sources(third), connected);
    assert_eq!(sinks_of(third), [("mask", Sink::Reply(0))]);
    let fixed = |name: &str, dims: [i64; 3]| row(name, Some(&dims.map(BoundaryDim::Fixed)));
    let encoded = [("down0/Relu_2", 16, 256), ("down1/Relu_2", 32, 128), ("down2/Relu_2", 64, 64)];
    let encoded = encoded.map(|(name, channels, side)| fixed(name, [channels, side, side]));
    assert_eq!(plan.boundaries, [encoded.to_vec(), vec![fixed("up2/Relu_2", [64, 64, 64])]]);
    assert!(plan.stages.iter().all(|stage| stage.exits.is_empty()));
}

/// The inputs are in another order than in the graph, and the axis has another name.
fn bert_spec(padded: bool) -> ModelSpec {
    let input = |name: &str| TensorSpec {
        symbols: SmallVec::from_slice(if padded { &[Some(SymbolId(0))] } else { &[] }),
        ..TensorSpec::new(name, DataType::Int64, &[-1])
    };
    let outputs = vec![fp32("pooled_output", &[192]), fp32("last_hidden_state", &[-1, 192])];
    spec(vec![input("attention_mask"), input("input_ids")], outputs, &["length"])
}

#[test]
fn rows_of_a_bert_are_as_long_as_the_padded_axis_of_its_inputs() {
    let model = zoo::bert_base(Width::QUARTER).expect("sound");
    let request = at(&["LayerNormalization_3"], vec![]);
    let padded = plan(&model, &bert_spec(true), &request);
    let [first, second] = padded.stages.as_slice() else { panic!("one cut makes two stages") };
    assert_eq!(sources(first), [("input_ids", InputSource::Request(1)), ("attention_mask", InputSource::Request(0))]);
    assert_eq!(sinks_of(first), [("mask/Mul", Sink::Boundary(0)), ("LayerNormalization_3", Sink::Boundary(1))]);
    assert_eq!(sources(second), [("mask/Mul", left(0, 0)), ("LayerNormalization_3", left(0, 1))]);
    assert_eq!(sinks_of(second), [("last_hidden_state", Sink::Reply(1)), ("pooled_output", Sink::Reply(0))]);
    let (one, length) = (BoundaryDim::Fixed(1), BoundaryDim::Symbol(SymbolId(0)));
    let states = [length, BoundaryDim::Fixed(192)];
    let expected = vec![row("mask/Mul", Some(&[one, one, length])), row("LayerNormalization_3", Some(&states))];
    assert_eq!(padded.boundaries, [expected]);
    let symbols = [Some(SymbolId(0)), None].into_iter().collect();
    assert_eq!(first.outputs[1].0, TensorSpec { symbols, ..fp32("LayerNormalization_3", &[-1, 192]) });

    let unpadded = plan(&model, &bert_spec(false), &request);
    let unknown = vec![row("mask/Mul", None), row("LayerNormalization_3", None)];
    assert_eq!(unpadded.boundaries, [unknown], "without padding lengths show in a run only");
}

/// `h` → `g` → `k` → `y`, where `y` reads `g` too. `g` is an output, and `h` and `g` have a head each.
fn with_heads() -> (Model, ModelSpec) {
    let dims = dims!["batch", 4];
    let mut graph = Graph::new("heads");
    let x = graph.input("x", DataType::Fp32, &dims);
    let (two, first) = (graph.scalar(2.0_f32), graph.scalar(0_i64));
    let h = graph.op("Mul", &[&x, &two]).named("h").value();
    graph.op("Gather", &[&h, &first]).attr("axis", 1).named("confidence").value();
    graph.op("Add", &[&h, &two]).named("early").value();
    let g = graph.op("Add", &[&h, &two]).named("g").value();
    graph.op("Gather", &[&g, &first]).attr("axis", 1).named("confidence_2").value();
    let k = graph.op("Add", &[&g, &two]).named("k").value();
    let y = graph.op("Mul", &[&k, &g]).named("y").value();
    graph.output(&y, DataType::Fp32, &dims);
    graph.output(&g, DataType::Fp32, &dims);
    let model = graph.finish().expect("sound");
    (model, spec(vec![fp32("x", &[4])], vec![fp32("y", &[4]), fp32("g", &[4])], &[]))
}

fn exit_to(stage: u16, value: &str, answers: &[(&str, &str)]) -> ExitRequest {
    let own = |text: &str| text.to_owned();
    let answers = answers.iter().map(|(output, tensor)| (own(output), own(tensor))).collect();
    ExitRequest { stage, value: own(value), at_least: 0.5, to: ExitRequestTo::Done(answers) }
}

#[test]
fn an_exit_answers_with_tensors_that_nothing_else_needs_and_with_those_that_go_on() {
    let (model, spec) = with_heads();
    let exits = vec![
        exit_to(0, "confidence", &[("y", "early"), ("g", "h")]),
        ExitRequest { stage: 0, value: "early".to_owned(), at_least: 2.0, to: ExitRequestTo::Stage(2) },
    ];
    let plan = plan(&model, &spec, &at(&["h"], exits));
    let [first, second] = plan.stages.as_slice() else { panic!("one cut makes two stages") };
    let made = [("h", Sink::Boundary(0)), ("confidence", Sink::Exit), ("early", Sink::Exit)];
    assert_eq!(sinks_of(first), made);
    let done = ExitTo::Done(vec![Some(2), Some(0)]);
    let skips = ExitTo::Stage(2);
    let expected = [Exit { value: 1, at_least: 0.5, to: done }, Exit { value: 2, at_least: 2.0, to: skips }];
    assert_eq!(first.exits, expected);
    assert_eq!(first.outputs[1].0, fp32("confidence", &[]), "one value a row");
    assert_eq!(sinks_of(second), [("g", Sink::Reply(1)), ("y", Sink::Reply(0))]);
    assert!(second.exits.is_empty());
}

pub(crate) fn refusals(all: &mut Refusals) {
    all.title("exits of a graph");
    let (model, spec) = with_heads();
    for (kind, given, exit) in [
        (Settings, "a tensor of another stage", exit_to(0, "confidence_2", &[])),
        (Settings, "an answer of another stage", exit_to(0, "confidence", &[("y", "y")])),
        (InGraph, "a misspelt tensor", exit_to(0, "confidnce", &[])),
        (InGraph, "an input", exit_to(0, "x", &[])),
    ] {
        all.add(Some(kind), given, cut_into_stages(&model, &spec, &at(&["h"], vec![exit])));
    }
}

#[test]
fn a_tensor_that_is_an_output_and_goes_on_has_two_sinks() {
    let (model, mut spec) = with_heads();
    spec.outputs.reverse();
    let plan = plan(&model, &spec, &at(&["k"], vec![]));
    let [first, second] = plan.stages.as_slice() else { panic!("one cut makes two stages") };
    let made = [("g", Sink::Reply(0)), ("g", Sink::Boundary(0)), ("k", Sink::Boundary(1))];
    assert_eq!(sinks_of(first), made);
    assert_eq!(sources(second), [("g", left(0, 0)), ("k", left(0, 1))]);
    assert_eq!(sinks_of(second), [("y", Sink::Reply(1))]);
}
