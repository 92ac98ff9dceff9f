//! Checks whether the runs of a recurrent layer may be divided between steps.

use paternoster_model::DataType;

use super::{
    NotOpened,
    assign::Plan,
    label,
    layer::Layer,
    named, refused,
    unify::{LENGTHS, STATES},
};
use crate::{
    PortDim,
    infer::Flow,
    links::{NodeId, TensorId},
    nodes::attribute,
};

/// Element types of states that can be kept for rows without steps.
const STATE_TYPES: [DataType; 7] =
    [DataType::Fp32, DataType::Fp16, DataType::Fp64, DataType::Int32, DataType::Int64, DataType::Uint8, DataType::Bool];

/// A state of a `Scan`.
#[derive(Debug)]
pub(super) struct ScanState {
    pub datatype: DataType,
    /// The axis of the batch.
    pub rows: usize,
    /// Lengths of the other axes.
    pub dims: Vec<i64>,
}

impl Plan<'_> {
    /// Checks a layer that runs along the steps; returns whether it does so from the last one.
    pub(super) fn check(&self, id: NodeId) -> Result<bool, NotOpened> {
        let name = label(&self.graph.node[id]);
        let not_understood = || refused(format!("{name} has a form that is not understood"));
        let layer = Layer::of(self.graph, self.links, id).ok_or_else(not_understood)?;
        match &layer.scan {
            Some(_) => self.check_scan(id, &layer)?,
            None => self.check_gates(id)?,
        }
        layer.is_reversed()
    }

    fn check_gates(&self, id: NodeId) -> Result<(), NotOpened> {
        let name = label(&self.graph.node[id]);
        let operands = &self.links.node(id).operands;
        let input = operands.first().copied().flatten().ok_or_else(|| refused(format!("{name} has no input")))?;
        let by_rows = self.rows_of(input) == Some(1);
        if !self.has_contents[input] || self.flow(input) != Flow::Rows(0) || !by_rows {
            let reason = format!("the input of {name} does not have the steps as axis 0 and the batch as axis 1");
            return Err(refused(reason));
        }
        for (index, operand) in operands.iter().enumerate().skip(1) {
            let Some(operand) = *operand else { continue };
            if index == LENGTHS {
                if !self.is_length[operand] {
                    return Err(refused(format!("{name} takes the lengths of its rows from the request")));
                }
            } else {
                let what = if STATES.contains(&index) { "an initial state" } else { "weights" };
                self.check_fixed(&name, what, operand)?;
            }
        }
        if self.hidden(id).is_none() || self.rows.fact(input).datatype.is_none() {
            return Err(refused(format!("{name} has states of unknown shape")));
        }
        Ok(())
    }

    /// Checks that an operand is the same for every request and any number of steps.
    fn check_fixed(&self, name: &str, what: &str, operand: TensorId) -> Result<(), NotOpened> {
        if self.has_contents[operand] {
            return Err(refused(format!("{name} takes {what} from the request, by {}", named(self.links, operand))));
        }
        self.check_without_steps(name, operand)
    }

    fn check_without_steps(&self, name: &str, operand: TensorId) -> Result<(), NotOpened> {
        if self.flow(operand) == Flow::Constant {
            return Ok(());
        }
        let what = named(self.links, operand);
        Err(refused(format!("{name} takes {what}, which depends on the number of steps")))
    }

    fn check_scan(&self, id: NodeId, layer: &Layer<'_>) -> Result<(), NotOpened> {
        let name = label(layer.node);
        let sequences = layer.sequences(&self.steps).unwrap_or_default();
        for &(tensor, axis) in &sequences {
            if self.steps_axis(tensor) != Some(axis) || self.rows_of(tensor).is_none() {
                let what = named(self.links, tensor);
                let expected = format!("the steps as axis {axis} and the batch as another axis");
                return Err(refused(format!("{name} runs over {what}, which does not have {expected}")));
            }
        }
        if !sequences.iter().any(|(tensor, _)| self.has_contents[*tensor]) {
            return Err(refused(format!("{name} does not run over what the request gives")));
        }
        for start in layer.starts() {
            let start = start.ok_or_else(|| refused(format!("{name} lacks an initial state")))?;
            self.check_fixed(&name, "an initial state", start)?;
            self.scan_state(&name, start)?;
        }
        for tensor in layer.captured(self.links) {
            self.check_without_steps(&name, tensor)?;
        }
        for &result in self.links.node(id).results.iter().flatten() {
            match self.rows.fact(result).flow {
                Flow::Rows(_) if self.rows_of(result).is_some() => {}
                Flow::Mixed(mixing) => {
                    let cause = mixing.cause;
                    return Err(refused(format!("{name} does not keep the rows of a batch apart: it {cause}")));
                }
                _ => return Err(refused(format!("{name} gives {} without a batch axis", named(self.links, result)))),
            }
        }
        Ok(())
    }

    /// Returns the form of a state of a `Scan`, by its initial value.
    pub(super) fn scan_state(&self, name: &str, start: TensorId) -> Result<ScanState, NotOpened> {
        let refuse = |what: &str| refused(format!("{name} has a state, {}, {what}", named(self.links, start)));
        let rows = self.rows_of(start).ok_or_else(|| refuse("without a batch axis"))?;
        let datatype = self.rows.fact(start).datatype.ok_or_else(|| refuse("of unknown type"))?;
        if !STATE_TYPES.contains(&datatype) {
            return Err(refuse(&format!("of type {datatype}")));
        }
        let dims = self.rows.port_dims(start).unwrap_or_default();
        let others = dims.iter().enumerate().filter(|(axis, _)| *axis != rows);
        let fixed = others.map(|(_, dim)| match dim {
            PortDim::Fixed(length) => Ok(*length),
            PortDim::Symbol(_) | PortDim::Unknown => Err(refuse("of a shape that varies")),
        });
        Ok(ScanState { datatype, rows, dims: fixed.collect::<Result<_, _>>()? })
    }

    /// Returns the length of the states of a layer with gates.
    pub(super) fn hidden(&self, id: NodeId) -> Option<i64> {
        if let Some(hidden) = attribute(&self.graph.node[id], "hidden_size") {
            return hidden.i.filter(|hidden| *hidden > 0);
        }
        let weights = self.links.node(id).operands.get(2).copied().flatten()?;
        self.rows.fact(weights).dims.as_ref()?.last()?.as_ref()?.known()
    }
}
