//! Time estimates from the inferred shapes: the arithmetic of a row and the bytes that it moves.

use paternoster_model::DataType;

use crate::{
    infer::{Facts, elements, size::BATCH},
    links::{Links, NodeId, TensorId, subgraphs},
    pb,
};

/// Assumed value of a length that varies or is unknown.
const OPEN_LENGTH: f64 = 64.0;
/// Operations in the time of moving one byte: between that of a CPU core (32 per cycle at a shared 10 GB/s) and that of
/// a GPU (about 7).
const OPERATIONS_PER_BYTE: f64 = 4.0;

/// Returns the elements of one row of a tensor. An unknown rank counts as one dimension of open length.
fn count(facts: &Facts, tensor: TensorId) -> f64 {
    match &facts.fact(tensor).dims {
        Some(dims) => elements(dims, OPEN_LENGTH, |symbol| if symbol == BATCH { 1.0 } else { OPEN_LENGTH }),
        None => OPEN_LENGTH,
    }
}

/// Returns the bytes of one row of a tensor.
pub(super) fn bytes(facts: &Facts, tensor: TensorId) -> f64 {
    let element = facts.fact(tensor).datatype.and_then(DataType::size_bytes).unwrap_or(4);
    finite(count(facts, tensor) * element as f64)
}

/// Returns the estimated time of a node, in operations.
pub(crate) fn of_node(graph: &pb::GraphProto, links: &Links<'_>, facts: &Facts, id: NodeId) -> f64 {
    let (node, tensors) = (&graph.node[id], links.node(id));
    let operand = |index: usize| tensors.operands.get(index).copied().flatten();
    let made = || tensors.results.first().copied().flatten().map_or(0.0, |result| count(facts, result));
    let length = |tensor: Option<TensorId>, axis: usize| {
        let dims = tensor.and_then(|tensor| facts.fact(tensor).dims.as_ref());
        let dim = dims.and_then(|dims| dims.get(axis));
        dim.map_or(OPEN_LENGTH, |dim| elements(std::slice::from_ref(dim), OPEN_LENGTH, |_| OPEN_LENGTH))
    };
    let last = |tensor: Option<TensorId>| {
        let rank = tensor.and_then(|tensor| facts.fact(tensor).dims.as_ref()).map_or(0, Vec::len);
        length(tensor, rank.saturating_sub(1))
    };
    // Number of multiplications per output element, or per input element.
    let per_filter = |weight: Option<TensorId>| {
        weight.map_or(OPEN_LENGTH, |weight| count(facts, weight)) / length(weight, 0).max(1.0)
    };
    let products = match node.op_type() {
        "Conv" | "ConvInteger" => made() * per_filter(operand(1)),
        "QLinearConv" => made() * per_filter(operand(3)),
        "ConvTranspose" => operand(0).map_or(0.0, |own| count(facts, own)) * per_filter(operand(1)),
        "MatMul" | "MatMulInteger" | "QLinearMatMul" => made() * last(operand(0)),
        "Gemm" => {
            let turned = node.attribute.iter().any(|it| it.name() == "transA" && it.i() != 0);
            made() * length(operand(0), usize::from(!turned))
        }
        "LSTM" | "GRU" | "RNN" => {
            let weights = [1, 2].into_iter().filter_map(operand).map(|weight| count(facts, weight)).sum::<f64>();
            let own = operand(0);
            // The layout only determines which of the first two axes is the batch. That axis counts as one row, so the
            // larger of the two is the number of steps.
            length(own, 0).max(length(own, 1)) * weights
        }
        // As if each run multiplied once with every element that its body reads beside its operands.
        "Scan" => {
            let captured = tensors.reads.iter().filter(|tensor| !tensors.operands.contains(&Some(**tensor)));
            let captured = captured.map(|&tensor| count(facts, tensor)).sum::<f64>();
            let elements = |weight: &pb::TensorProto| weight.dims.iter().map(|&length| length as f64).product::<f64>();
            let inner = subgraphs(node).flat_map(|body| &body.initializer).map(elements).sum::<f64>();
            OPEN_LENGTH * (captured + inner)
        }
        _ => 0.0,
    };
    let results = tensors.results.iter().flatten().map(|&result| bytes(facts, result)).sum::<f64>();
    let moved = match node.op_type() {
        // These read only part of their operands, or only their shapes.
        "Gather" | "GatherElements" | "GatherND" | "Slice" | "Split" => 2.0 * results,
        "Shape" | "Size" | "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" | "Identity" => 0.0,
        _ => results + tensors.operands.iter().flatten().map(|&operand| bytes(facts, operand)).sum::<f64>(),
    };
    finite(2.0 * products + OPERATIONS_PER_BYTE * moved)
}

/// Keeps sums comparable for malicious shapes.
fn finite(cost: f64) -> f64 {
    if cost.is_finite() { cost.clamp(0.0, 1e30) } else { 1e30 }
}
