pub(crate) mod hostile;
mod networks;
mod rows;
mod shapes;

use super::*;
use crate::{
    build::{Graph, Value},
    port::dims,
};

/// A graph over tokens: `ids` INT64 `[batch, tokens]` and `states` FP32 `[batch, tokens, 384]`.
struct Texts {
    graph: Graph,
    ids: Value,
    states: Value,
}

fn texts() -> Texts {
    let mut graph = Graph::new("texts");
    let ids = graph.input("ids", DataType::Int64, &dims!["batch", "tokens"]);
    let states = graph.input("states", DataType::Fp32, &dims!["batch", "tokens", 384]);
    Texts { graph, ids, states }
}

/// Returns what is inferred about a tensor that `build` creates.
fn known(build: impl FnOnce(&mut Graph, &Value, &Value) -> Value) -> TensorInfo {
    let Texts { mut graph, ids, states } = texts();
    let value = build(&mut graph, &ids, &states);
    let name = value.name().to_owned();
    graph.output(&value, DataType::Fp32, &[]);
    let mut model = graph.finish().expect("a sound graph");
    // Removes the declaration above, which would reveal the rank.
    if let Some(graph) = &mut model.0.graph {
        graph.output.iter_mut().for_each(|output| output.r#type = None);
    }
    infer(&model).tensor(&name).expect("the graph makes it").clone()
}

fn by_rows(datatype: DataType, dims: &[PortDim]) -> TensorInfo {
    TensorInfo { datatype: Some(datatype), dims: Some(dims.to_vec()), rows: RowDependence::PerRow }
}

fn cause(info: &TensorInfo) -> &'static str {
    match info.rows {
        RowDependence::Mixed { cause, .. } => cause,
        _ => panic!("rows are not mixed: {info:?}"),
    }
}
