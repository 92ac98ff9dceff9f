//! Finds integer constants that an engine which computes with 32 bits would change.

use super::{
    Model,
    infer::is_standard,
    links::{Links, subgraphs},
    pb::{self, tensor_proto::DataType as Elem},
};

/// Operators that only compare such integers with lengths or other elements, for which the largest number of 32 bits
/// serves as well.
const SATURATING: [&str; 2] = ["Slice", "Clip"];
/// Operators that keep elements as they are.
const KEEPING: [&str; 6] = ["Concat", "Gather", "Identity", "Reshape", "Squeeze", "Unsqueeze"];

/// Returns the name and the element of an INT64 constant with an element beyond 32 bits; `None` if there is no such
/// constant, or if only operators read it for which the largest number of 32 bits is as good, as the end of a slice.
pub fn wide_integer(model: &Model) -> Option<(String, i64)> {
    model.0.graph.as_ref().and_then(of_graph)
}

fn of_graph(graph: &pb::GraphProto) -> Option<(String, i64)> {
    let links = Links::new(graph);
    let mut saturates = vec![true; links.tensors()];
    let mut ordered = vec![false; graph.node.len()];
    links.order().iter().for_each(|&id| ordered[id] = true);
    // Readers come first, so that a tensor is decided before the nodes that make it. Nodes on a cycle have no order.
    let cyclic = (0..graph.node.len()).filter(|id| !ordered[*id]);
    for output in &graph.output {
        if let Some(tensor) = links.find(output.name()) {
            saturates[tensor] = false;
        }
    }
    for (id, in_order) in cyclic.map(|id| (id, false)).chain(links.order().iter().rev().map(|&id| (id, true))) {
        let (node, tensors) = (&graph.node[id], links.node(id));
        let is_one_of = |operators: &[&str]| is_standard(node) && in_order && operators.contains(&node.op_type());
        let keeps = is_one_of(&KEEPING) && tensors.results.iter().flatten().all(|&result| saturates[result]);
        if !keeps && !is_one_of(&SATURATING) {
            tensors.reads.iter().for_each(|&read| saturates[read] = false);
        }
    }
    let weights = graph.initializer.iter().map(|weight| (weight.name(), first_wide(weight)));
    let constants = graph.node.iter().filter(|node| node.op_type() == "Constant" && is_standard(node)).map(|node| {
        let found = node.attribute.iter().find_map(|attribute| {
            let listed = || attribute.ints.iter().copied().chain(attribute.i).find(is_wide);
            attribute.t.as_deref().and_then(first_wide).or_else(listed)
        });
        (node.output.first().map_or("", String::as_str), found)
    });
    let wide = weights.chain(constants).find_map(|(name, found)| {
        let counts = links.find(name).is_some_and(|tensor| !saturates[tensor]);
        found.filter(|_| counts).map(|found| (name.to_owned(), found))
    });
    wide.or_else(|| graph.node.iter().flat_map(subgraphs).find_map(of_graph))
}

fn is_wide(number: &i64) -> bool {
    i32::try_from(*number).is_err()
}

fn first_wide(tensor: &pb::TensorProto) -> Option<i64> {
    if Elem::try_from(tensor.data_type()) != Ok(Elem::Int64) {
        return None;
    }
    let raw = tensor.raw_data.as_deref().unwrap_or_default().as_chunks().0;
    let raw = raw.iter().map(|&bytes| i64::from_le_bytes(bytes));
    tensor.int64_data.iter().copied().chain(raw).find(is_wide)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PortDim, build::Graph};
    use paternoster_model::DataType;

    const SHAPE: [&str; 1] = ["n"];

    /// Returns the wide constant of a graph in which `operator` reads `number`, given whole.
    fn wide(operator: &str, number: i64) -> Option<i64> {
        let mut graph = Graph::new("wide");
        let input = graph.input("INPUT0", DataType::Int64, &SHAPE.map(PortDim::from));
        let (zero, limit) = (graph.literal(&[0_i64]), graph.literal(&[number]));
        let made = match operator {
            "Slice" => graph.op("Slice", &[&input, &zero, &limit]).value(),
            "Concat" => {
                let ends = graph.op("Concat", &[&limit]).attr("axis", 0).value();
                graph.op("Slice", &[&input, &zero, &ends]).value()
            }
            "both" => {
                let part = graph.op("Slice", &[&input, &zero, &limit]).value();
                graph.op("Add", &[&part, &limit]).value()
            }
            "output" => graph.op("Identity", &[&limit]).value(),
            other => graph.op(other, &[&input, &limit]).value(),
        };
        graph.output(&made, DataType::Int64, &SHAPE.map(PortDim::from));
        wide_integer(&graph.finish().expect("the graph is sound")).map(|(_, number)| number)
    }

    #[test]
    fn a_number_of_more_than_32_bits_counts_where_it_is_computed_with() {
        for operator in ["Add", "both", "output"] {
            for number in [1 << 31, i64::MAX, -(1 << 31) - 1] {
                assert_eq!(wide(operator, number), Some(number), "{operator}");
            }
            for number in [0, i64::from(i32::MAX), i64::from(i32::MIN)] {
                assert_eq!(wide(operator, number), None, "{operator}");
            }
        }
    }

    #[test]
    fn the_end_of_a_slice_may_be_any_large_number() {
        assert_eq!(wide("Slice", i64::MAX), None);
        assert_eq!(wide("Concat", i64::MAX), None, "it is a part of the ends");
    }
}
