//! The form of ONNX's `Scan` in operator sets from 9 on: a body that runs once for each entry of some tensors.
//!
//! Operands are the initial states, then the scanned tensors; results are the last states, then the stacked outputs of
//! all runs. The body takes and gives the same, of one step.

use crate::{infer::ops::is_standard, pb};

/// A `Scan` with its attributes in one form.
#[derive(Debug)]
pub(crate) struct ScanForm<'n> {
    pub body: &'n pb::GraphProto,
    /// Number of states: the first operands and results.
    pub states: usize,
    /// Scanned tensors, which are the operands after the states.
    pub inputs: Vec<ScanAxis>,
    /// Stacked outputs, which are the results after the states.
    pub outputs: Vec<ScanAxis>,
}

/// How a tensor is scanned or stacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScanAxis {
    /// The axis of the runs; negative numbers count from the end.
    pub axis: i64,
    /// From the last entry to the first.
    pub reversed: bool,
}

impl<'n> ScanForm<'n> {
    /// Returns the form of a node; `None` if it is no `Scan`, or one whose parts do not fit together.
    pub(crate) fn of(node: &'n pb::NodeProto) -> Option<Self> {
        let body = named(node, "body").filter(|_| is_scan(node))?.g.as_deref()?;
        let states = states(node)?;
        let stacked = body.output.len().checked_sub(states)?;
        let scanned = node.input.len() - states;
        if body.input.len() != node.input.len() || node.output.len() > body.output.len() {
            return None;
        }
        let inputs = axes(node, "scan_input_axes", "scan_input_directions", scanned)?;
        let outputs = axes(node, "scan_output_axes", "scan_output_directions", stacked)?;
        Some(Self { body, states, inputs, outputs })
    }

    /// Returns whether it runs from the last entries to the first; `None` if that differs among its inputs.
    pub(crate) fn is_reversed(&self) -> Option<bool> {
        let first = self.inputs.first()?.reversed;
        self.inputs.iter().all(|input| input.reversed == first).then_some(first)
    }
}

/// Returns whether a node is a `Scan` with states.
pub(crate) fn has_states(node: &pb::NodeProto) -> bool {
    is_scan(node) && states(node).is_some_and(|states| states > 0)
}

fn is_scan(node: &pb::NodeProto) -> bool {
    is_standard(node) && node.op_type() == "Scan"
}

/// Returns the number of states; `None` if no operand is scanned.
fn states(node: &pb::NodeProto) -> Option<usize> {
    let scanned = usize::try_from(named(node, "num_scan_inputs")?.i()).ok().filter(|count| *count > 0)?;
    node.input.len().checked_sub(scanned)
}

fn named<'n>(node: &'n pb::NodeProto, name: &str) -> Option<&'n pb::AttributeProto> {
    node.attribute.iter().find(|attribute| attribute.name() == name)
}

/// Returns one axis for each of `count` tensors; axis 0 forwards where the attributes are missing.
fn axes(node: &pb::NodeProto, axes: &str, directions: &str, count: usize) -> Option<Vec<ScanAxis>> {
    let listed = |name: &str| match named(node, name).map(|attribute| attribute.ints.as_slice()) {
        None | Some([]) => Some(vec![0; count]),
        Some(numbers) => (numbers.len() == count).then(|| numbers.to_vec()),
    };
    let pairs = listed(axes)?.into_iter().zip(listed(directions)?);
    Some(pairs.map(|(axis, direction)| ScanAxis { axis, reversed: direction != 0 }).collect())
}
