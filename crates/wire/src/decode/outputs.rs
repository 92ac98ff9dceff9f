//! Requested outputs: which ones, and the form of each.

use std::sync::Arc;

use paternoster_model::{DataType, ModelSpec, TensorSpec};
use smallvec::SmallVec;

use super::{
    super::{
        SharedMemory,
        fault::{Fault, OutputFault},
        pb::model_infer_request::InferRequestedOutputTensor,
        plan::{OutputForm, OutputPlan, SelectedOutputs},
    },
    parameters,
};

const CLASSIFICATION: &str = "classification";

/// Returns the requested outputs in the model's order; all outputs if the request names none.
pub(super) fn select(
    requested: Vec<InferRequestedOutputTensor>,
    spec: &ModelSpec,
    regions: &SharedMemory,
) -> Result<SelectedOutputs, Fault> {
    if requested.is_empty() {
        return Ok(SelectedOutputs::All);
    }
    let mut forms: SmallVec<[Option<OutputForm>; 4]> = SmallVec::new();
    forms.resize_with(spec.outputs.len(), || None);
    for output in requested {
        let Some(index) = spec.output_index(&output.name) else {
            return Err(Fault::UnknownOutput { model: spec.name.clone(), output: output.name });
        };
        let fault = |fault| Fault::Output {
            model: spec.name.clone(),
            output: spec.outputs[index].name.clone(),
            fault: Box::new(fault),
        };
        let form = form(&output, &spec.outputs[index], regions).map_err(fault)?;
        if forms[index].replace(form).is_some() {
            return Err(Fault::DuplicateOutput { output: output.name });
        }
    }
    let plans = forms.into_iter().enumerate();
    Ok(SelectedOutputs::Some(plans.filter_map(|(index, form)| Some(OutputPlan { index, form: form? })).collect()))
}

fn form(
    output: &InferRequestedOutputTensor,
    tensor: &TensorSpec,
    regions: &SharedMemory,
) -> Result<OutputForm, OutputFault> {
    if output.parameters.is_empty() {
        return Ok(OutputForm::Raw);
    }
    let classes = parameters::int64(&output.parameters, CLASSIFICATION)?;
    let region = parameters::region(&output.parameters, regions)?;
    match (classes, region) {
        (None, None) => Ok(OutputForm::Raw),
        (None, Some(region)) => Ok(OutputForm::SharedMemory(region)),
        (Some(_), Some(_)) => Err(OutputFault::ClassesInRegion),
        (Some(got), None) if got < 1 => Err(OutputFault::ClassCount { got }),
        (Some(got), None) if has_classes(tensor.datatype) => {
            let (count, labels) = (u32::try_from(got).unwrap_or(u32::MAX), Arc::clone(&tensor.labels));
            Ok(OutputForm::Classes { count, labels })
        }
        (Some(_), None) => Err(OutputFault::ClassDatatype { datatype: tensor.datatype }),
    }
}

/// As in Triton: every datatype that has an order and a C type.
fn has_classes(datatype: DataType) -> bool {
    !matches!(datatype, DataType::Bool | DataType::Fp16 | DataType::Bf16 | DataType::Bytes)
}
