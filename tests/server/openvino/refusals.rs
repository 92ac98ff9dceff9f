//! The engine rejects what it does not support by name, when the model is loaded.

use paternoster_engine::{Precision, ProgramPort, openvino::OpenVinoProgram};
use paternoster_model::DataType;
use paternoster_onnx::{Model, PortDim, build::Graph, zoo};
use paternoster_testing::openvino::openvino;

use crate::openvino::rig::sealed;

const FP32: DataType = DataType::Fp32;

fn port(name: &str, datatype: DataType) -> ProgramPort<'_> {
    ProgramPort { name, datatype }
}

/// Returns why a model with these tensors is refused.
fn refusal(model: &Model, input: (&str, DataType), output: &str) -> Option<String> {
    let openvino = openvino()?;
    let (inputs, outputs) = ([port(input.0, input.1)], [port(output, FP32)]);
    let compiled = OpenVinoProgram::compile_sealed(openvino, Precision::Ieee, &sealed(model), &inputs, &outputs);
    Some(compiled.err().expect("it is refused").message)
}

#[test]
fn tensors_that_the_graph_does_not_have() {
    let model = zoo::identity().expect("the graph is sound");
    let Some(unknown) = refusal(&model, ("NOPE", FP32), "OUTPUT0") else { return };
    assert_eq!(unknown, r#"the graph has no input 'NOPE', it has ["INPUT0"]"#);
    let unknown = refusal(&model, ("INPUT0", FP32), "NOPE").expect("the engine is there");
    assert_eq!(unknown, r#"the graph has no output 'NOPE', it has ["OUTPUT0"]"#);
    let mistyped = refusal(&model, ("INPUT0", DataType::Int64), "OUTPUT0").expect("the engine is there");
    assert_eq!(mistyped, "input 'INPUT0' is INT64 in the configuration but FP32 in the graph");
}

#[test]
fn strings() {
    let dims = [PortDim::from("batch"), PortDim::from(2)];
    let model = zoo::identity_of(DataType::Bytes, &dims).expect("the graph is sound");
    let Some(refused) = refusal(&model, ("INPUT0", DataType::Bytes), "OUTPUT0") else { return };
    assert_eq!(refused, "input 'INPUT0' holds strings, which the engine openvino does not take");
}

#[test]
fn numbers_that_would_lose_bits() {
    let dims = [PortDim::from("batch"), PortDim::from(2)];
    for datatype in [DataType::Fp64, DataType::Uint32, DataType::Uint64] {
        let model = zoo::identity_of(datatype, &dims).expect("the graph is sound");
        let Some(refused) = refusal(&model, ("INPUT0", datatype), "OUTPUT0") else { return };
        let expected = format!("input 'INPUT0' holds {datatype}, which the engine openvino would compute in ");
        assert!(refused.starts_with(&expected), "{refused}");
    }
}

#[test]
fn constants_that_would_lose_bits() {
    let shape = [PortDim::from("batch"), PortDim::from(2)];
    let mut graph = Graph::new("wide");
    let input = graph.input("INPUT0", DataType::Int64, &shape);
    let limit = graph.constant("LIMIT", &[1], &[1_i64 << 40]);
    let less = graph.op("Less", &[&input, &limit]).value();
    let output = graph.op("Cast", &[&less]).attr("to", 1).named("OUTPUT0").value();
    graph.output(&output, FP32, &shape);
    let model = graph.finish().expect("the graph is sound");
    let Some(refused) = refusal(&model, ("INPUT0", DataType::Int64), "OUTPUT0") else { return };
    let expected = "the constant 'LIMIT' has the element 1099511627776, which the engine openvino would cut to 32 bits";
    assert_eq!(refused, expected);
}

#[test]
fn a_model_that_lacks_an_input_of_the_graph() {
    let Some(refused) = refusal(&zoo::add_sub().expect("the graph is sound"), ("INPUT0", FP32), "OUTPUT0") else {
        return;
    };
    assert_eq!(refused, "input 'INPUT1' of the graph is not among those of the model");
}

#[test]
fn an_operator_that_it_does_not_know() {
    let mut graph = Graph::new("unknown");
    let shape = [PortDim::from("batch"), PortDim::from(4)];
    let input = graph.input("INPUT0", FP32, &shape);
    let output = graph.op("Paternoster", &[&input]).named("OUTPUT0").value();
    graph.output(&output, FP32, &shape);
    let model = graph.finish().expect("it is written without being checked");
    let Some(refused) = refusal(&model, ("INPUT0", FP32), "OUTPUT0") else { return };
    assert!(refused.starts_with("openvino error: ") && refused.contains("Paternoster"), "{refused}");
    assert!(!refused.contains('\n') && !refused.contains(".cpp"), "{refused}");
}

#[test]
fn an_input_with_a_default() {
    let mut graph = Graph::new("default");
    let shape = [PortDim::from("batch"), PortDim::from(2)];
    let input = graph.input("INPUT0", FP32, &shape);
    let bias = graph.constant("BIAS", &[2], &[1.0, 2.0]);
    let output = graph.op("Add", &[&input, &bias]).named("OUTPUT0").value();
    graph.output(&output, FP32, &shape);
    let mut model = graph.finish().expect("the graph is sound");
    let graph = model.0.graph.as_mut().expect("a graph");
    let mut declared = graph.input[0].clone();
    declared.name = graph.initializer[0].name.clone();
    graph.input.push(declared);
    let name = graph.initializer[0].name.clone().expect("a name");
    let Some(refused) = refusal(&model, (&name, FP32), "OUTPUT0") else { return };
    let expected = format!("input '{name}' has a default in the graph, which the engine openvino takes for a constant");
    assert_eq!(refused, expected);
}
