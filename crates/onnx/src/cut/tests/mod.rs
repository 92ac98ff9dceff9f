mod networks;
mod properties;
mod refused;
mod stages;

use paternoster_model::DataType;

use super::*;
use crate::{
    build::{Graph, Value},
    port::dims,
};

const FP32: DataType = DataType::Fp32;

/// Starts a graph with the input `x`, FP32 `[batch, tokens, 4]`.
fn begin() -> (Graph, Value) {
    let mut graph = Graph::new("tested");
    let x = graph.input("x", FP32, &dims!["batch", "tokens", 4]);
    (graph, x)
}

fn relu(graph: &mut Graph, x: &Value, name: &str) -> Value {
    graph.op("Relu", &[x]).named(name).value()
}

fn finish(mut graph: Graph, y: &Value) -> Model {
    graph.output(y, FP32, &[]);
    graph.finish().expect("a sound graph")
}

/// `x` → a → b → c → d, each a rectifier.
fn chain() -> Model {
    let (mut graph, x) = begin();
    let y = ["a", "b", "c", "d"].iter().fold(x, |x, name| relu(&mut graph, &x, name));
    finish(graph, &y)
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn cut_at(model: &Model, at: &[&str]) -> Result<Vec<StageGraph>, CutError> {
    cut(model, Cuts::At(&names(at)), &[])
}

/// Returns the message of a rejected cut.
fn refusal(model: &Model, at: &[&str]) -> String {
    cut_at(model, at).expect_err("it is refused").to_string()
}

fn port_names(ports: &[StagePort]) -> Vec<&str> {
    ports.iter().map(|port| port.name.as_str()).collect()
}

fn node_names(stage: &StageGraph) -> Vec<&str> {
    stage.model.0.graph.iter().flat_map(|graph| &graph.node).map(|node| node.name()).collect()
}

fn weight_names(stage: &StageGraph) -> Vec<&str> {
    stage.model.0.graph.iter().flat_map(|graph| &graph.initializer).map(|weight| weight.name()).collect()
}
