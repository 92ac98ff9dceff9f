//! Visits every tensor of a model: weights, and constants of nodes, of their bodies and of functions.

use super::pb;

/// The place of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A dense weight of the main graph.
    Weight,
    /// Any other place.
    Inner,
}

/// Calls `visit` for every tensor and stops at the first error.
pub(super) fn visit_mut<E>(
    model: &mut pb::ModelProto,
    visit: &mut impl FnMut(Place, &mut pb::TensorProto) -> Result<(), E>,
) -> Result<(), E> {
    if let Some(graph) = &mut model.graph {
        of_graph(graph, Place::Weight, visit)?;
    }
    for function in &mut model.functions {
        of_nodes(&mut function.node, visit)?;
        of_attributes(&mut function.attribute_proto, visit)?;
    }
    Ok(())
}

fn of_graph<E>(
    graph: &mut pb::GraphProto,
    weights: Place,
    visit: &mut impl FnMut(Place, &mut pb::TensorProto) -> Result<(), E>,
) -> Result<(), E> {
    for tensor in &mut graph.initializer {
        visit(weights, tensor)?;
    }
    for sparse in &mut graph.sparse_initializer {
        of_sparse(sparse, visit)?;
    }
    of_nodes(&mut graph.node, visit)
}

fn of_sparse<E>(
    sparse: &mut pb::SparseTensorProto,
    visit: &mut impl FnMut(Place, &mut pb::TensorProto) -> Result<(), E>,
) -> Result<(), E> {
    sparse.values.iter_mut().chain(&mut sparse.indices).try_for_each(|tensor| visit(Place::Inner, tensor))
}

fn of_nodes<E>(
    nodes: &mut [pb::NodeProto],
    visit: &mut impl FnMut(Place, &mut pb::TensorProto) -> Result<(), E>,
) -> Result<(), E> {
    nodes.iter_mut().try_for_each(|node| of_attributes(&mut node.attribute, visit))
}

fn of_attributes<E>(
    attributes: &mut [pb::AttributeProto],
    visit: &mut impl FnMut(Place, &mut pb::TensorProto) -> Result<(), E>,
) -> Result<(), E> {
    for attribute in attributes {
        for tensor in attribute.t.as_deref_mut().into_iter().chain(&mut attribute.tensors) {
            visit(Place::Inner, tensor)?;
        }
        for sparse in attribute.sparse_tensor.as_deref_mut().into_iter().chain(&mut attribute.sparse_tensors) {
            of_sparse(sparse, visit)?;
        }
        for graph in attribute.g.as_deref_mut().into_iter().chain(&mut attribute.graphs) {
            of_graph(graph, Place::Inner, visit)?;
        }
    }
    Ok(())
}
