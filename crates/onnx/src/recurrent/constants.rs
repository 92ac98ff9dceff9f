//! Tensors whose elements are all the same: zeros, and numbers of steps.

use crate::{
    infer::{Facts, is_standard, size::Size},
    links::{Links, NodeId, TensorId},
    pb::{self, tensor_proto::DataType as Elem},
};

/// Returns the operand of a node whose elements alone its results have; `None` if there may be others. All operands
/// of a `Concat` have to be asked.
fn passed_on(node: &pb::NodeProto) -> Option<std::ops::Range<usize>> {
    let known = is_standard(node).then_some(node.op_type())?;
    match known {
        "Identity" | "Cast" | "Expand" | "Tile" | "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" | "Transpose"
        | "Slice" | "Gather" | "Split" => Some(0..1),
        "Concat" => Some(0..node.input.len()),
        _ => None,
    }
}

/// Returns, for each tensor, whether it is known to have only zeros.
pub(super) fn zeros(graph: &pb::GraphProto, links: &Links<'_>) -> Vec<bool> {
    let mut found = vec![false; links.tensors()];
    for weight in &graph.initializer {
        if let Some(tensor) = links.find(weight.name()) {
            found[tensor] = is_zero(weight);
        }
    }
    // A caller may replace the value of a weight that is an input too.
    for input in &graph.input {
        if let Some(tensor) = links.find(input.name()) {
            found[tensor] = false;
        }
    }
    spread(graph, links, &mut found, |node| {
        let value = node.attribute.iter().find(|attribute| attribute.name() == "value").and_then(|it| it.t.as_ref());
        match node.op_type() {
            "Constant" => value.is_some_and(|tensor| is_zero(tensor)),
            "ConstantOfShape" => value.is_none_or(|tensor| is_zero(tensor)),
            _ => false,
        }
    });
    found
}

/// Returns, for each tensor, whether all its elements are known to be this length.
pub(super) fn all_of_length(graph: &pb::GraphProto, links: &Links<'_>, facts: &Facts, length: &Size) -> Vec<bool> {
    let is_length = |tensor: TensorId| {
        let value = facts.fact(tensor).value.as_deref();
        value.is_some_and(|value| !value.is_empty() && value.iter().all(|element| element.as_ref() == Some(length)))
    };
    let mut found: Vec<bool> = (0..links.tensors()).map(is_length).collect();
    spread(graph, links, &mut found, |_| false);
    found
}

fn spread(graph: &pb::GraphProto, links: &Links<'_>, found: &mut [bool], is_first: impl Fn(&pb::NodeProto) -> bool) {
    for &id in links.order() {
        let node = &graph.node[id];
        let tensors = links.node(id);
        let is_uniform = (is_standard(node) && is_first(node))
            || passed_on(node).is_some_and(|operands| {
                let mut asked = tensors.operands.get(operands).unwrap_or_default().iter();
                asked.len() > 0 && asked.all(|operand| operand.is_some_and(|operand| found[operand]))
            });
        if is_uniform {
            tensors.results.iter().flatten().for_each(|&result| found[result] = true);
        }
    }
}

/// Returns whether a tensor in the file has elements, all of them zero. Elements outside of the file are not read.
fn is_zero(tensor: &pb::TensorProto) -> bool {
    if !tensor.external_data.is_empty() {
        return false;
    }
    match (&tensor.raw_data, Elem::try_from(tensor.data_type())) {
        (Some(raw), Ok(_)) => !raw.is_empty() && raw.iter().all(|byte| *byte == 0),
        (None, Ok(Elem::Float)) => !tensor.float_data.is_empty() && tensor.float_data.iter().all(|it| *it == 0.0),
        (None, Ok(Elem::Double)) => !tensor.double_data.is_empty() && tensor.double_data.iter().all(|it| *it == 0.0),
        _ => false,
    }
}

/// Returns the elements of a constant integer operand of a node.
pub(super) fn numbers(links: &Links<'_>, facts: &Facts, id: NodeId, index: usize) -> Option<Vec<i64>> {
    let operand = links.node(id).operands.get(index).copied().flatten()?;
    facts.fact(operand).numbers()
}
