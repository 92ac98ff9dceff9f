//! Fuzz target for ONNX graphs: both readers agree, written models read back unchanged, shapes are inferred, and stages
//! fit together.

use std::collections::HashSet;

use super::{
    ExternalFiles, Model, PortDim, SealedModel, Signature,
    cut::{Cuts, StageGraph, cut, legal_cuts},
    infer::infer,
    pb,
};

/// Maximum number of places at which a graph is cut, one after another.
const CUTS_MAX: usize = 4;

/// Runs the fuzz target on the bytes of a model file.
pub fn onnx(bytes: &[u8]) {
    let signature = Signature::from_bytes("fuzzed", bytes);
    drop(SealedModel::new("fuzzed", bytes.to_vec().into(), &ExternalFiles::None));
    let Ok(model) = Model::from_bytes("fuzzed", bytes.to_vec().into()) else { return };
    let Some(graph) = &model.0.graph else { panic!("a model has a graph") };
    if let Ok(signature) = signature {
        check_signature(&signature, graph);
    }
    check_written(&model);
    for (name, info) in &infer(&model).tensors {
        let negative = |dim: &PortDim| matches!(dim, PortDim::Fixed(..0));
        assert!(!info.dims.iter().flatten().any(negative), "'{name}' has {info:?}");
    }
    let unique = has_unique_names(graph);
    for parts in 1..4 {
        if let Ok(stages) = cut(&model, Cuts::Parts(parts), &[]) {
            assert_eq!(stages.len(), parts);
            stages.iter().for_each(|stage| check_written(&stage.model));
            if unique {
                check_stages(graph, &stages);
            }
        }
    }
    for legal in legal_cuts(&model).into_iter().take(CUTS_MAX) {
        if let Ok(stages) = cut(&model, Cuts::At(&[legal.tensor]), &[])
            && unique
        {
            check_stages(graph, &stages);
        }
    }
}

/// Checks that the reader that skips weights finds the same ports as the full reader.
fn check_signature(signature: &Signature, graph: &pb::GraphProto) {
    let weights: HashSet<&str> = graph.initializer.iter().map(|tensor| tensor.name()).collect();
    let given = graph.input.iter().map(|input| input.name()).filter(|name| !weights.contains(name));
    assert!(signature.inputs.iter().map(|port| port.name.as_str()).eq(given));
    assert!(signature.outputs.iter().map(|port| port.name.as_str()).eq(graph.output.iter().map(|it| it.name())));
}

/// Compares bytes, because a model may contain NaN, which is not equal to itself.
fn check_written(model: &Model) {
    let bytes = model.to_bytes();
    let again = Model::from_bytes("encoded", bytes.clone()).expect("what is encoded is a model");
    assert_eq!(again.to_bytes(), bytes, "an encoded model reads back the same");
    let mut file = Vec::new();
    model.write_to(&mut file).expect("memory takes any byte");
    let again = Model::from_bytes("written", file.into()).expect("what is written is a model");
    assert_eq!(again.to_bytes(), bytes, "a written model reads back the same");
}

/// Iterates over the names of all tensors that a graph defines.
fn definitions(graph: &pb::GraphProto) -> impl Iterator<Item = &str> {
    let sparse = graph.sparse_initializer.iter().filter_map(|tensor| tensor.values.as_ref());
    let weights = graph.initializer.iter().chain(sparse).map(|tensor| tensor.name());
    let inputs = graph.input.iter().map(|input| input.name());
    weights.chain(inputs).chain(graph.node.iter().flat_map(|node| &node.output).map(String::as_str))
}

/// Returns whether every name is defined once and each output is declared once. The engine rejects graphs with
/// duplicate definitions.
fn has_unique_names(graph: &pb::GraphProto) -> bool {
    let weights: HashSet<&str> = graph.initializer.iter().map(|weight| weight.name()).collect();
    let inputs = graph.input.iter().map(|input| input.name()).filter(|name| !weights.contains(name));
    let results = graph.node.iter().flat_map(|node| &node.output).map(String::as_str).filter(|name| !name.is_empty());
    let mut made = weights.clone();
    let mut declared = HashSet::new();
    weights.len() == graph.initializer.len()
        && inputs.chain(results).all(|name| made.insert(name))
        && graph.output.iter().all(|output| declared.insert(output.name()))
}

/// Checks that every stage reads only tensors of earlier stages or of the caller, that every output is produced once,
/// and that each stage defines whatever the original graph defines. Tensors that the original does not define are left
/// to the engine.
pub(super) fn check_stages(graph: &pb::GraphProto, stages: &[StageGraph]) {
    let known: HashSet<&str> = definitions(graph).collect();
    let mut given: HashSet<String> = graph.input.iter().map(|input| input.name().to_owned()).collect();
    let mut made = HashSet::new();
    for stage in stages {
        let own = stage.model.0.graph.as_ref().expect("a graph");
        for port in &stage.inputs {
            assert!(given.contains(&port.name), "'{}' is read before it is there", port.name);
        }
        let defined: HashSet<&str> = definitions(own).collect();
        for name in own.node.iter().flat_map(|node| &node.input).filter(|name| known.contains(name.as_str())) {
            assert!(defined.contains(name.as_str()), "'{name}' is not there");
        }
        for port in &stage.outputs {
            let name = port.name.as_str();
            assert!(defined.contains(name) || !known.contains(name), "'{name}' is not made");
            assert!(made.insert(port.name.clone()), "'{}' is made twice", port.name);
        }
        given.extend(stage.outputs.iter().map(|port| port.name.clone()));
    }
    for output in &graph.output {
        assert!(made.contains(output.name()), "'{}' is lost", output.name());
    }
}
