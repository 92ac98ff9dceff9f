//! Brings recurrent layers into one form: one direction, and for layers with gates the steps as axis 0 and no initial
//! states of zeros.

use std::collections::HashSet;

use super::{NotOpened, constants, label, refused};
use crate::{
    infer::{ScanForm, has_gates, has_states},
    links::Links,
    nodes::{attribute, int, integers, ints, node, standard_opset, unused_prefix},
    pb,
};

/// Operands of recurrent layers that have an axis of directions: weights, recurrent weights, bias, initial states, and
/// peepholes.
const BY_DIRECTION: [usize; 6] = [1, 2, 3, 5, 6, 7];
/// Operand with the number of steps of each row.
pub(super) const LENGTHS: usize = 4;
/// Operands with the initial states, which each have an output: the states after the last step.
pub(super) const STATES: [usize; 2] = [5, 6];

/// First operator set whose `Slice` turns an axis around.
const TURNING_SINCE: i64 = 10;

/// A graph in which all recurrent layers have the same form.
#[derive(Debug)]
pub(super) struct Unified {
    pub graph: pb::GraphProto,
    /// What the names of new tensors begin with; no other names do.
    pub prefix: String,
    pub opset: i64,
    /// Tensors that are known to have only zeros.
    pub zeros: HashSet<String>,
}

/// Returns the graph with its layers in one form.
///
/// # Errors
/// If the settings of a layer of two directions cannot be divided.
pub(super) fn unified(model: &pb::ModelProto, graph: &pb::GraphProto) -> Result<Unified, NotOpened> {
    let opset = standard_opset(model);
    let zeros = {
        let links = Links::new(graph);
        let zeros = constants::zeros(graph, &links);
        let names = (0..links.tensors()).filter(|&tensor| zeros[tensor]).map(|tensor| links.name(tensor).to_owned());
        names.collect::<HashSet<String>>()
    };
    let prefix = unused_prefix(graph);
    let mut unified = pb::GraphProto { node: Vec::with_capacity(graph.node.len()), ..graph.clone() };
    let mut writer = Writer { prefix: &prefix, nodes: Vec::new(), weights: Vec::new() };
    for (id, node) in graph.node.iter().enumerate() {
        if has_states(node) && opset >= TURNING_SINCE {
            writer.scan(id, node);
            continue;
        }
        if !has_gates(node) {
            writer.nodes.push(node.clone());
            continue;
        }
        let mut layer = node.clone();
        for index in STATES {
            if layer.input.get(index).is_some_and(|name| zeros.contains(name)) {
                layer.input[index].clear();
            }
        }
        writer.layer(id, layer)?;
    }
    unified.node = writer.nodes;
    unified.initializer.extend(writer.weights);
    Ok(Unified { graph: unified, prefix, opset, zeros })
}

/// Writes layers as nodes of the graph.
struct Writer<'a> {
    prefix: &'a str,
    nodes: Vec<pb::NodeProto>,
    weights: Vec<pb::TensorProto>,
}

impl Writer<'_> {
    fn layer(&mut self, id: usize, mut layer: pb::NodeProto) -> Result<(), NotOpened> {
        layer.output.resize(3, String::new());
        if layer.op_type() != "LSTM" {
            layer.output.truncate(2);
        }
        let by_rows = attribute(&layer, "layout").is_some_and(|attribute| attribute.i() != 0);
        layer.attribute.retain(|attribute| attribute.name() != "layout");
        let outside = layer.output.clone();
        if by_rows {
            for index in [0, STATES[0], STATES[1]] {
                if let Some(name) = layer.input.get(index).filter(|name| !name.is_empty()).cloned() {
                    layer.input[index] = self.turned(&format!("{id}/in{index}"), &name, None, &[1, 0, 2]);
                }
            }
            for (index, name) in layer.output.iter_mut().enumerate().filter(|(_, name)| !name.is_empty()) {
                *name = format!("{}/{id}/out{index}", self.prefix);
            }
        }
        if direction(&layer) == Some("bidirectional") {
            self.two_directions(id, &layer)?;
        } else {
            self.nodes.push(layer.clone());
        }
        if by_rows {
            for (index, (name, outside)) in layer.output.iter().zip(&outside).enumerate() {
                if !name.is_empty() {
                    let order: &[i64] = if index == 0 { &[2, 0, 1, 3] } else { &[1, 0, 2] };
                    self.turned("", name, Some(outside), order);
                }
            }
        }
        Ok(())
    }

    /// Adds a transposed tensor and returns its name.
    fn turned(&mut self, name: &str, of: &str, given: Option<&str>, order: &[i64]) -> String {
        let made = given.map_or_else(|| format!("{}/{name}", self.prefix), str::to_owned);
        self.nodes.push(node("Transpose", &[of], &[&made], vec![ints("perm", order)]));
        made
    }

    /// Writes a `Scan`. Outputs that it gives in the opposite order of its inputs are turned around after it.
    fn scan(&mut self, id: usize, original: &pb::NodeProto) {
        let mut scan = original.clone();
        let mut after = Vec::new();
        if let Some(form) = ScanForm::of(original)
            && let Some(reversed) = form.is_reversed()
        {
            for (number, output) in form.outputs.iter().enumerate().filter(|(_, output)| output.reversed != reversed) {
                let name = scan.output.get_mut(form.states + number).filter(|name| !name.is_empty());
                let Some(name) = name else { continue };
                let inner = format!("{}/{id}/out{number}", self.prefix);
                let outer = std::mem::replace(name, inner.clone());
                let [last, end, axis] = [-1, i64::MIN, output.axis].map(|number| self.index(number));
                after.push(node("Slice", &[&inner, &last, &end, &axis, &last], &[&outer], Vec::new()));
            }
            scan.attribute.retain(|attribute| attribute.name() != "scan_output_directions");
            let directions = vec![i64::from(reversed); form.outputs.len()];
            scan.attribute.push(ints("scan_output_directions", &directions));
        }
        self.nodes.push(scan);
        self.nodes.append(&mut after);
    }

    /// Writes a layer of two directions as one of each.
    fn two_directions(&mut self, id: usize, layer: &pb::NodeProto) -> Result<(), NotOpened> {
        let cannot = |what: &str| refused(format!("{} has {what} that cannot be divided by direction", label(layer)));
        if ["activation_alpha", "activation_beta"].iter().any(|name| attribute(layer, name).is_some()) {
            return Err(cannot("settings of activations"));
        }
        let first = layer.output.iter().find(|name| !name.is_empty()).map_or("", String::as_str);
        let own = if layer.name().is_empty() { first } else { layer.name() };
        let mut parts: Vec<Vec<String>> = vec![Vec::new(); layer.output.len()];
        for (number, direction) in ["forward", "reverse"].into_iter().enumerate() {
            let mut part = layer.clone();
            part.name = Some(format!("{}/{}/{direction}", self.prefix, own));
            for attribute in &mut part.attribute {
                match attribute.name() {
                    "direction" => attribute.s = Some(direction.as_bytes().to_vec()),
                    "activations" if attribute.strings.len() % 2 == 0 => {
                        let half = attribute.strings.len() / 2;
                        attribute.strings = attribute.strings.split_off(number * half);
                        attribute.strings.truncate(half);
                    }
                    "activations" => return Err(cannot("activations")),
                    _ => {}
                }
            }
            for index in BY_DIRECTION {
                let Some(whole) = layer.input.get(index).filter(|name| !name.is_empty()) else { continue };
                let (picked, index_name) =
                    (format!("{}/{id}/{direction}{index}", self.prefix), self.index(number as i64));
                let axis = vec![int("axis", 0)];
                self.nodes.push(node("Gather", &[whole, &index_name], &[&picked], axis));
                part.input[index] = picked;
            }
            for (index, name) in part.output.iter_mut().enumerate() {
                if !layer.output[index].is_empty() {
                    *name = format!("{}/{id}/{direction}_out{index}", self.prefix);
                    parts[index].push(name.clone());
                }
            }
            self.nodes.push(part);
        }
        for (index, parts) in parts.iter().enumerate().filter(|(_, parts)| !parts.is_empty()) {
            let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
            let axis = vec![int("axis", i64::from(index == 0))];
            self.nodes.push(node("Concat", &parts, &[&layer.output[index]], axis));
        }
        Ok(())
    }

    /// Returns the name of a weight with one index.
    fn index(&mut self, index: i64) -> String {
        let name = format!("{}/index{index}", self.prefix);
        if self.weights.iter().all(|weight| weight.name() != name) {
            self.weights.push(integers(&name, &[index]));
        }
        name
    }
}

/// Returns the direction of a layer; `None` if it is not text.
pub(super) fn direction(layer: &pb::NodeProto) -> Option<&str> {
    match attribute(layer, "direction") {
        Some(attribute) => std::str::from_utf8(attribute.s.as_deref()?).ok(),
        None => Some("forward"),
    }
}
