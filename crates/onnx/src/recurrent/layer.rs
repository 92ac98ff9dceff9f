//! Recurrent layers: operators with gates (`LSTM`, `GRU`, `RNN`), and `Scan` with states.

use super::{NotOpened, label, refused, unify::direction};
use crate::{
    infer::{Facts, ScanForm, axis_of, has_gates, has_states},
    links::{Links, NodeId, TensorId, captured},
    pb,
};

/// Returns whether a node is a recurrent layer.
pub(super) fn is_recurrent(node: &pb::NodeProto) -> bool {
    has_gates(node) || has_states(node)
}

/// A recurrent layer of a graph.
#[derive(Debug)]
pub(super) struct Layer<'g> {
    pub node: &'g pb::NodeProto,
    /// The form of a `Scan`; `None` for layers with gates.
    pub scan: Option<ScanForm<'g>>,
    operands: &'g [Option<TensorId>],
}

impl<'g> Layer<'g> {
    /// Returns the layer of a node; `None` if it is none, or a `Scan` in a form that is not understood.
    pub(super) fn of(graph: &'g pb::GraphProto, links: &'g Links<'_>, id: NodeId) -> Option<Self> {
        let node = &graph.node[id];
        let scan = if has_states(node) { Some(ScanForm::of(node)?) } else { None };
        let operands = links.node(id).operands.as_slice();
        (scan.is_some() || has_gates(node)).then_some(Self { node, scan, operands })
    }

    /// Returns the operands over whose steps it runs, each with the axis of the steps; `None` if one is missing or of
    /// unknown rank.
    pub(super) fn sequences(&self, facts: &Facts) -> Option<Vec<(TensorId, usize)>> {
        let Some(scan) = &self.scan else { return Some(vec![(self.operands.first().copied().flatten()?, 0)]) };
        let scanned = self.operands[scan.states..].iter().zip(&scan.inputs);
        let sequences = scanned.map(|(operand, input)| {
            let tensor = (*operand)?;
            Some((tensor, axis_of(input.axis, facts.fact(tensor).dims.as_ref()?.len())?))
        });
        sequences.collect()
    }

    /// Returns the operands with the initial states of a `Scan`; `None` where one is omitted.
    pub(super) fn starts(&self) -> impl Iterator<Item = Option<TensorId>> {
        let states = self.scan.as_ref().map_or(0, |scan| scan.states);
        self.operands.iter().take(states).copied()
    }

    /// Returns the tensors of the graph that the body of a `Scan` reads, beside its inputs.
    pub(super) fn captured(&self, links: &Links<'_>) -> Vec<TensorId> {
        let names = self.scan.as_ref().map(|scan| captured(scan.body)).unwrap_or_default();
        names.into_iter().filter_map(|name| links.find(name)).collect()
    }

    /// Returns whether a result is a state after the last step.
    pub(super) fn is_last_state(&self, result: usize) -> bool {
        match &self.scan {
            Some(scan) => result < scan.states,
            None => result > 0,
        }
    }

    /// Returns whether it runs from the last step to the first.
    ///
    /// # Errors
    /// If that is not known.
    pub(super) fn is_reversed(&self) -> Result<bool, NotOpened> {
        let name = label(self.node);
        let Some(scan) = &self.scan else {
            return match direction(self.node) {
                Some("forward") => Ok(false),
                Some("reverse") => Ok(true),
                _ => Err(refused(format!("{name} has an unknown direction"))),
            };
        };
        let reversed = scan.is_reversed();
        let reversed =
            reversed.ok_or_else(|| refused(format!("{name} runs over its inputs in different directions")))?;
        if scan.outputs.iter().any(|output| output.reversed != reversed) {
            return Err(refused(format!("{name} gives its outputs in the opposite order of its inputs")));
        }
        Ok(reversed)
    }
}
