//! Writes single nodes, and what they need of a model.

use std::collections::HashSet;

use super::{
    links::subgraphs,
    pb::{self, attribute_proto::AttributeType, tensor_proto::DataType as Elem},
};

/// Returns the version of the standard operator set that a model uses.
pub(super) fn standard_opset(model: &pb::ModelProto) -> i64 {
    let standard = model.opset_import.iter().find(|set| matches!(set.domain(), "" | "ai.onnx"));
    standard.map_or(1, |set| set.version())
}

/// Returns a first part of names that no tensor has, also inside of bodies.
pub(super) fn unused_prefix(graph: &pb::GraphProto) -> String {
    let mut taken = HashSet::new();
    let mut open = vec![graph];
    while let Some(graph) = open.pop() {
        let declared = graph.input.iter().chain(&graph.output).chain(&graph.value_info).map(|info| info.name());
        let weights = graph.initializer.iter().map(|weight| weight.name());
        let of_nodes = graph.node.iter().flat_map(|node| node.input.iter().chain(&node.output)).map(String::as_str);
        let names = declared.chain(weights).chain(of_nodes);
        taken.extend(names.map(|name| name.split('/').next().unwrap_or_default()));
        open.extend(graph.node.iter().flat_map(subgraphs));
    }
    let mut prefix = "cells".to_owned();
    while taken.contains(prefix.as_str()) {
        prefix.push('_');
    }
    prefix
}

/// Returns a vector of INT64.
pub(super) fn integers(name: &str, values: &[i64]) -> pb::TensorProto {
    pb::TensorProto {
        name: Some(name.to_owned()),
        data_type: Some(Elem::Int64.into()),
        dims: vec![values.len() as i64],
        int64_data: values.to_vec(),
        ..Default::default()
    }
}

/// Returns a node of the standard operator set.
pub(super) fn node(op: &str, inputs: &[&str], outputs: &[&str], attribute: Vec<pb::AttributeProto>) -> pb::NodeProto {
    let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    pb::NodeProto {
        op_type: Some(op.to_owned()),
        input: owned(inputs),
        output: owned(outputs),
        attribute,
        ..Default::default()
    }
}

pub(super) fn int(name: &str, value: i64) -> pb::AttributeProto {
    let (name, kind) = (Some(name.to_owned()), Some(AttributeType::Int.into()));
    pb::AttributeProto { name, r#type: kind, i: Some(value), ..Default::default() }
}

pub(super) fn ints(name: &str, values: &[i64]) -> pb::AttributeProto {
    let (name, kind) = (Some(name.to_owned()), Some(AttributeType::Ints.into()));
    pb::AttributeProto { name, r#type: kind, ints: values.to_vec(), ..Default::default() }
}

pub(super) fn attribute<'n>(node: &'n pb::NodeProto, name: &str) -> Option<&'n pb::AttributeProto> {
    node.attribute.iter().find(|attribute| attribute.name() == name)
}
