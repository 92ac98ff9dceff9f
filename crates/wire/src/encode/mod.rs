//! Converts [`executor::Response`](Response) to ModelInferResponse: outputs in the model's order, raw, sharing the
//! batch's memory.

use std::collections::HashMap;

use bytes::Bytes;
use paternoster_executor::{OutputTensor, Response};
use paternoster_model::{DataType, ModelSpec, TensorSpec, element_count};

use super::{
    Kind, RequestError, ResponsePlan,
    classification::{MOST_CLASSES, classify, elements_per_row},
    pb::{
        InferParameter, ModelInferResponse, infer_parameter::ParameterChoice, model_infer_response::InferOutputTensor,
    },
    plan::{OutputForm, SelectedOutputs, parameters},
    shared_memory::{RegionSlice, SharedMemoryError},
};

/// Builds the reply to a request, or one of the replies to a decoupled request, according to the plan.
///
/// Every output has its entry in `raw_output_contents`, because clients find it by the output's index. The entry of an
/// output in shared memory is empty.
///
/// # Errors
/// INVALID_ARGUMENT if an output does not fit into its shared memory or its region is no longer usable, INTERNAL if the
/// response does not belong to this model.
pub fn encode(spec: &ModelSpec, plan: &ResponsePlan, response: Response) -> Result<ModelInferResponse, RequestError> {
    let mut reply = ResponseInProgress::new(spec, &plan.outputs);
    match fill(&mut reply, spec, &plan.outputs, response.outputs) {
        Ok(()) => Ok(ModelInferResponse {
            model_name: spec.name.clone(),
            model_version: spec.version.to_string(),
            id: plan.id.clone(),
            parameters: plan.parameters.clone(),
            outputs: reply.outputs,
            raw_output_contents: reply.raw,
        }),
        Err(fault) => Err(RequestError::new(fault.kind(), fault.to_string()).with_id(plan.id.clone())),
    }
}

/// Why a response cannot be sent as requested.
#[derive(Debug, thiserror::Error)]
enum EncodeFault {
    #[error("model '{model}' gave {got} outputs, expected {expected}")]
    OutputCount { model: String, expected: usize, got: usize },
    #[error("output '{output}' for model '{model}' has {bytes} bytes, which does not match its shape {shape:?}")]
    Inconsistent { model: String, output: String, shape: Vec<i64>, bytes: usize },
    #[error(
        "shared memory size specified with the request for output '{output}' for model '{model}' ({available} bytes in \
         region '{region}') should be at least {needed} bytes to hold the results"
    )]
    RegionTooSmall { model: String, output: String, region: String, available: u64, needed: u64 },
    #[error(
        "output '{output}' for model '{model}': classification output tensor too large, expected at most {most} \
         elements in a row"
    )]
    TooManyClasses { model: String, output: String, most: usize },
    #[error("output '{output}' for model '{model}': {fault}")]
    Region { model: String, output: String, fault: Box<SharedMemoryError> },
}

impl EncodeFault {
    fn kind(&self) -> Kind {
        match self {
            Self::OutputCount { .. } | Self::Inconsistent { .. } => Kind::Internal,
            Self::RegionTooSmall { .. } | Self::TooManyClasses { .. } => Kind::InvalidArgument,
            Self::Region { fault, .. } => fault.kind(),
        }
    }
}

fn fill(
    reply: &mut ResponseInProgress<'_>,
    spec: &ModelSpec,
    selection: &SelectedOutputs,
    tensors: Vec<OutputTensor>,
) -> Result<(), EncodeFault> {
    if tensors.len() != spec.outputs.len() {
        let (expected, got) = (spec.outputs.len(), tensors.len());
        return Err(EncodeFault::OutputCount { model: spec.name.clone(), expected, got });
    }
    let tensors = tensors.into_iter().zip(&spec.outputs);
    match selection {
        SelectedOutputs::All => tensors.for_each(|(tensor, output)| reply.push(output, output.datatype, tensor)),
        SelectedOutputs::Some(plans) => {
            // Both are in the model's order.
            let mut plans = plans.iter().peekable();
            for (index, (tensor, output)) in tensors.enumerate() {
                if let Some(plan) = plans.next_if(|plan| plan.index == index) {
                    reply.put(output, &plan.form, tensor)?;
                }
            }
        }
    }
    Ok(())
}

/// A response under construction.
struct ResponseInProgress<'a> {
    spec: &'a ModelSpec,
    outputs: Vec<InferOutputTensor>,
    raw: Vec<Bytes>,
}

impl<'a> ResponseInProgress<'a> {
    fn new(spec: &'a ModelSpec, selection: &SelectedOutputs) -> Self {
        let count = match selection {
            SelectedOutputs::All => spec.outputs.len(),
            SelectedOutputs::Some(plans) => plans.len(),
        };
        Self { spec, outputs: Vec::with_capacity(count), raw: Vec::with_capacity(count) }
    }

    fn put(&mut self, output: &TensorSpec, form: &OutputForm, tensor: OutputTensor) -> Result<(), EncodeFault> {
        match form {
            OutputForm::Raw => self.push(output, output.datatype, tensor),
            OutputForm::Classes { count, labels } => {
                let batched = self.spec.has_batch_axis();
                if elements_per_row(&tensor, batched).is_some_and(|elements| elements > MOST_CLASSES) {
                    return Err(EncodeFault::TooManyClasses {
                        model: self.spec.name.clone(),
                        output: output.name.clone(),
                        most: MOST_CLASSES,
                    });
                }
                let classes = classify(&tensor, output.datatype, batched, (*count, labels));
                let classes = classes.ok_or_else(|| EncodeFault::Inconsistent {
                    model: self.spec.name.clone(),
                    output: output.name.clone(),
                    shape: tensor.shape.to_vec(),
                    bytes: tensor.data.len(),
                })?;
                self.push(output, DataType::Bytes, classes);
            }
            OutputForm::SharedMemory(region) => {
                self.share(output, region, &tensor.data)?;
                let parameters = region_parameters(region, tensor.data.len());
                self.push_elsewhere(output, tensor, parameters);
            }
            OutputForm::Placed(region) => {
                let elements = element_count(&tensor.shape).unwrap_or(0);
                let bytes = elements.saturating_mul(output.datatype.size_bytes().unwrap_or(0));
                self.push_elsewhere(output, tensor, region_parameters(region, bytes));
            }
        }
        Ok(())
    }

    /// An output that is where its parameters say.
    fn push_elsewhere(
        &mut self,
        output: &TensorSpec,
        tensor: OutputTensor,
        parameters: HashMap<String, InferParameter>,
    ) {
        self.push(output, output.datatype, OutputTensor { shape: tensor.shape, data: Bytes::new() });
        if let Some(last) = self.outputs.last_mut() {
            last.parameters = parameters;
        }
    }

    fn push(&mut self, output: &TensorSpec, datatype: DataType, tensor: OutputTensor) {
        self.outputs.push(InferOutputTensor {
            name: output.name.clone(),
            datatype: datatype.as_str().to_owned(),
            shape: tensor.shape.into_vec(),
            parameters: HashMap::new(),
            contents: None,
        });
        self.raw.push(tensor.data);
    }

    fn share(&self, output: &TensorSpec, region: &RegionSlice, data: &Bytes) -> Result<(), EncodeFault> {
        let (available, needed) = (region.size_bytes(), data.len() as u64);
        if needed > available {
            return Err(EncodeFault::RegionTooSmall {
                model: self.spec.name.clone(),
                output: output.name.clone(),
                region: region.region().to_owned(),
                available,
                needed,
            });
        }
        region.write(data).map_err(|fault| EncodeFault::Region {
            model: self.spec.name.clone(),
            output: output.name.clone(),
            fault: Box::new(fault),
        })
    }
}

/// Returns the parameters that locate the output: the part of the region that it fills.
fn region_parameters(region: &RegionSlice, bytes: usize) -> HashMap<String, InferParameter> {
    // Cannot overflow: both are within a file or an allocation, whose length is an i64.
    let int64 = |value: u64| ParameterChoice::Int64Param(i64::try_from(value).unwrap_or(i64::MAX));
    parameters([
        ("shared_memory_region", ParameterChoice::StringParam(region.region().to_owned())),
        ("shared_memory_byte_size", int64(bytes as u64)),
        ("shared_memory_offset", int64(region.offset_bytes())),
    ])
}

#[cfg(test)]
mod tests;
