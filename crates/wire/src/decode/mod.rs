//! Converts ModelInferRequest to [`executor::InferRequest`](InferRequest). Everything is checked against the model's
//! specification here, so an admitted request can be batched without further checks.
//!
//! [`RequestShape`] checks shapes, and its faults have their own texts; all other
//! texts are in `fault`.
//!
//! Before a message is parsed, [`size`] determines how much memory that takes, and [`parse`] takes no more.
//!
//! Payloads are moved, not copied: a raw entry remains a slice of the received frame, and typed contents of four or
//! eight bytes per element remain in the list that they were parsed into. Only other typed contents (a different
//! layout) and shared memory (a different owner) are copied, once.

mod fields;
mod on_card;
mod outputs;
mod parameters;
mod parse;
mod payload;
pub mod size;
mod strings;
mod typed;

use std::{collections::HashMap, iter};

use paternoster_executor::{CardPorts, InferRequest};
use paternoster_model::{DataType, Dims, InputTensor, ModelSpec, RequestShape};

pub use self::{parameters::EMPTY_FINAL_RESPONSE, parse::parse};
use super::{
    RequestError, ResponsePlan, SharedMemory,
    fault::{Fault, InputCount, InputFault, Names},
    pb::{self, model_infer_request::InferInputTensor},
};

/// Checks a request against its model and takes its payload. Returns the request to submit, whose deadline only the
/// transport knows, and the form of the response.
///
/// # Errors
/// INVALID_ARGUMENT if anything in it is wrong, or NOT_FOUND if it names an unknown shared-memory region. The error
/// carries the request's id.
pub fn decode(
    request: pb::ModelInferRequest,
    spec: &ModelSpec,
    regions: &SharedMemory,
) -> Result<(InferRequest, ResponsePlan), RequestError> {
    decode_for(request, spec, regions, &CardPorts::default())
}

/// As [`decode`], of a version that reads and writes tensors on cards, where they lie in memory that the client shares.
///
/// # Errors
/// As [`decode`].
pub fn decode_for(
    request: pb::ModelInferRequest,
    spec: &ModelSpec,
    regions: &SharedMemory,
    ports: &CardPorts,
) -> Result<(InferRequest, ResponsePlan), RequestError> {
    let pb::ModelInferRequest { id, parameters, inputs, outputs, raw_input_contents, .. } = request;
    let parts = || {
        let parameters = parameters::request(&parameters)?;
        let mut selection = outputs::select(outputs, spec, regions)?;
        let source = payload::Source::new(raw_input_contents, regions, ports);
        let (rows, inputs, staying) = place(inputs, source, spec)?;
        let on_card = staying.keep_outputs(&mut selection, spec, rows);
        Ok((parameters, selection, rows, inputs, on_card))
    };
    let (parameters, outputs, rows, inputs, on_card) = match parts() {
        Ok(parts) => parts,
        Err(fault) => return Err(RequestError::from_fault(&fault, id)),
    };
    let request = InferRequest {
        priority: parameters.priority,
        queue_timeout: parameters.queue_timeout,
        sequence: parameters.sequence,
        on_card,
        wanted_outputs: outputs.wanted(spec),
        ..InferRequest::new(rows, inputs)
    };
    let enable_empty_final_response = parameters.enable_empty_final_response;
    Ok((request, ResponsePlan { id, outputs, enable_empty_final_response, parameters: HashMap::new() }))
}

/// The number of rows, the inputs in the specification's order, and the tensors that stay on a card.
type Placed<'a> = (u32, Vec<Option<InputTensor>>, on_card::Staying<'a>);

fn place<'a>(
    inputs: Vec<InferInputTensor>,
    mut source: payload::Source<'a>,
    spec: &ModelSpec,
) -> Result<Placed<'a>, Fault> {
    let mut placed: Vec<Option<InputTensor>> = Vec::with_capacity(spec.inputs.len());
    placed.resize_with(spec.inputs.len(), || None);
    let mut agreement = RequestShape::new(spec);
    let given = inputs.len();
    let mut inputs = inputs.into_iter();
    while let Some(input) = inputs.next() {
        let Some(index) = spec.input_index(&input.name) else {
            let others = inputs.map(|input| input.name);
            return Err(unknown(spec, &placed, given, input.name, others));
        };
        if placed[index].is_some() {
            return Err(input_fault(spec, index, InputFault::Duplicate));
        }
        let tensor =
            take(input, index, spec, &mut agreement, &mut source).map_err(|fault| input_fault(spec, index, fault))?;
        placed[index] = Some(tensor);
    }
    let complete = placed.iter().zip(&spec.inputs).all(|(tensor, wanted)| tensor.is_some() || wanted.optional);
    if !complete {
        return Err(wrong_count(spec, &placed, []));
    }
    Ok((agreement.rows(), placed, source.into_staying()))
}

fn take(
    input: InferInputTensor,
    index: usize,
    spec: &ModelSpec,
    agreement: &mut RequestShape<'_>,
    source: &mut payload::Source<'_>,
) -> Result<InputTensor, InputFault> {
    let wanted = &spec.inputs[index];
    check_datatype(&input.datatype, wanted.datatype)?;
    let elements = agreement.admit(index, &input.shape)?;
    let data = source.take(index, &input.parameters, input.contents, wanted.datatype, elements)?;
    Ok(InputTensor { shape: Dims::from_vec(input.shape), data })
}

fn check_datatype(got: &str, expected: DataType) -> Result<(), InputFault> {
    if got == expected.as_str() {
        return Ok(());
    }
    Err(InputFault::Datatype { expected, got: got.to_owned() })
}

fn input_fault(spec: &ModelSpec, index: usize, fault: InputFault) -> Fault {
    Fault::Input { model: spec.name.clone(), input: spec.inputs[index].name.clone(), fault: Box::new(fault) }
}

/// Error for a request with `given` inputs, one of which the model does not have. As in Triton, a wrong number of
/// inputs is reported first.
fn unknown(
    spec: &ModelSpec,
    placed: &[Option<InputTensor>],
    given: usize,
    name: String,
    others: impl Iterator<Item = String>,
) -> Fault {
    let InputCount { least, most } = input_count(spec);
    if (least..=most).contains(&given) {
        return Fault::UnknownInput { model: spec.name.clone(), input: name };
    }
    wrong_count(spec, placed, iter::once(name).chain(others))
}

/// Error for a wrong number of inputs. `others` are the names of inputs that have not been placed.
fn wrong_count(spec: &ModelSpec, placed: &[Option<InputTensor>], others: impl IntoIterator<Item = String>) -> Fault {
    let names = |wanted: &dyn Fn(usize) -> bool| -> Vec<String> {
        let chosen = spec.inputs.iter().enumerate().filter(|(index, _)| wanted(*index));
        chosen.map(|(_, tensor)| tensor.name.clone()).collect()
    };
    let mut got = names(&|index| placed[index].is_some());
    got.extend(others);
    Fault::InputCount {
        model: spec.name.clone(),
        expected: input_count(spec),
        got: Names(got),
        missing: Names(names(&|index| placed[index].is_none() && !spec.inputs[index].optional)),
    }
}

fn input_count(spec: &ModelSpec) -> InputCount {
    let most = spec.inputs.len();
    let least = spec.inputs.iter().filter(|input| !input.optional).count();
    InputCount { least, most }
}

#[cfg(test)]
mod tests;
