//! How the rows of a step become requests of its model: one for all rows; several where they are more than the model's
//! largest batch; one for each row where rows differ in shape, or where some skip the step. The batcher of the model
//! joins them with all others.

use std::fmt::Display;

use paternoster_executor::{InferError, InferRequest};
use paternoster_model::{InputTensor, RequestShape, TensorSpec};
use paternoster_observe::StepOf;
use smallvec::SmallVec;

use super::{Run, State, TensorValue, joint, located};
use crate::{TensorRows, binding::Binding, value::split};

/// How the rows of a request are spread over the requests of a step.
pub(super) enum Parts {
    /// All rows in one request, or consecutive ones in each of several.
    Joint,
    /// One row each, by number.
    Rows(Vec<usize>),
}

impl Run {
    /// Returns which rows a step's condition holds for; `None` if all rows run it.
    pub(super) fn mask(&self, step: usize, state: &State) -> Result<Option<Vec<bool>>, InferError> {
        let Some((tensor, condition)) = &self.pipeline.graph.steps[step].when else { return Ok(None) };
        let Some(TensorValue { value, .. }) = state.value(*tensor) else { return Ok(Some(vec![false; self.rows])) };
        let datatype = self.pipeline.kinds[*tensor].datatype;
        let rows = value.by_row(datatype, self.rows).map_err(|fault| self.fault(step, *tensor, fault))?;
        let mask: Vec<bool> =
            rows.iter().map(|row| row.as_ref().is_some_and(|row| condition.test.holds(row, datatype))).collect();
        Ok(if mask.iter().all(|&holds| holds) { None } else { Some(mask) })
    }

    /// Returns the requests of a step, each with the bytes of its outputs as far as they are known, and how the rows
    /// are spread over them.
    pub(super) fn requests(
        &self,
        step: usize,
        binding: &Binding,
        inputs: &[Option<TensorRows>],
        mask: Option<Vec<bool>>,
        wanted_outputs: Option<SmallVec<[usize; 4]>>,
        step_of: &StepOf,
    ) -> Result<(Parts, Vec<(InferRequest, usize)>), InferError> {
        let common = InferRequest {
            priority: self.priority,
            queue_timeout: self.queue_timeout,
            deadline: self.deadline,
            needed_after: self.needed_after.get(step).copied().unwrap_or_default(),
            sequence: self.sequence.clone(),
            step_of: Some(step_of.clone()),
            charge: Some(self.charge.clone()),
            wanted_outputs,
            ..InferRequest::new(0, Vec::new())
        };
        let is_joint = mask.is_none() && inputs.iter().flatten().all(|value| matches!(value, TensorRows::Joint(_)));
        let named = |number: usize, fault: &dyn Display| {
            let name = &binding.spec.inputs[number].name;
            located(&self.pipeline, step, InferError::Invalid(format!("input '{name}': {fault}")))
        };
        if is_joint {
            let whole: Vec<Option<InputTensor>> = inputs.iter().map(|value| value.as_ref().and_then(joint)).collect();
            let limit = binding.spec.max_batch_size as usize;
            let first = whole.iter().flatten().next().and_then(|tensor| tensor.shape.first().copied());
            let rows = first.and_then(|rows| usize::try_from(rows).ok()).unwrap_or(0);
            if limit == 0 || rows <= limit {
                return Ok((Parts::Joint, vec![request(&common, binding, whole, named)?]));
            }
            let sizes: Vec<usize> = (0..rows).step_by(limit).map(|start| limit.min(rows - start)).collect();
            let mut parts: Vec<Vec<Option<InputTensor>>> = sizes.iter().map(|_| Vec::new()).collect();
            for (number, tensor) in whole.iter().enumerate() {
                let datatype = binding.spec.inputs[number].datatype;
                let cut = tensor.as_ref().map(|tensor| split(tensor, datatype, &sizes)).transpose();
                let mut cut = cut.map_err(|fault| named(number, &fault))?.map(Vec::into_iter);
                parts.iter_mut().for_each(|part| part.push(cut.as_mut().and_then(Iterator::next)));
            }
            let requests = parts.into_iter().map(|part| request(&common, binding, part, named));
            return Ok((Parts::Joint, requests.collect::<Result<_, _>>()?));
        }
        if !binding.spec.has_batch_axis() {
            let text = "its rows differ, and the model has no batch axis".to_owned();
            return Err(located(&self.pipeline, step, InferError::Invalid(text)));
        }
        let mut by_row = Vec::with_capacity(inputs.len());
        for (number, value) in inputs.iter().enumerate() {
            let rows = value.as_ref().map(|value| value.by_row(binding.spec.inputs[number].datatype, self.rows));
            by_row.push(rows.transpose().map_err(|fault| named(number, &fault))?);
        }
        let (mut rows, mut requests) = (Vec::new(), Vec::new());
        for row in (0..self.rows).filter(|&row| mask.as_ref().is_none_or(|mask| mask[row])) {
            let of_row: Vec<_> = by_row.iter().map(|rows| rows.as_ref().and_then(|rows| rows[row].clone())).collect();
            let lacks = |(given, wanted): (&Option<InputTensor>, &TensorSpec)| given.is_none() && !wanted.optional;
            if of_row.iter().zip(&binding.spec.inputs).any(lacks) {
                continue;
            }
            requests.push(request(&common, binding, of_row, named)?);
            rows.push(row);
        }
        Ok((Parts::Rows(rows), requests))
    }
}

/// Returns a request of a step's version, after the checks that a client's request passes, and the bytes of its
/// outputs, as far as these are known.
fn request(
    common: &InferRequest,
    binding: &Binding,
    inputs: Vec<Option<InputTensor>>,
    named: impl Fn(usize, &dyn Display) -> InferError,
) -> Result<(InferRequest, usize), InferError> {
    let mut shape = RequestShape::new(&binding.spec);
    for (number, input) in inputs.iter().enumerate() {
        if let Some(input) = input {
            shape.admit(number, &input.shape).map_err(|fault| named(number, &fault))?;
        }
    }
    Ok((InferRequest { rows: shape.rows(), inputs, ..common.clone() }, shape.output_bytes()))
}
