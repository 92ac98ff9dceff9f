//! The form in which a client wants each output: JSON or binary data.

use paternoster_model::{DataType, ModelSpec};

use super::{
    fault::JsonFault,
    header::{Output, Parameters},
};
use crate::{
    RequestError, ResponsePlan,
    pb::infer_parameter::ParameterChoice,
    plan::{OutputForm, SelectedOutputs},
};

/// The outputs that are sent as binary data after the JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forms {
    /// Whether outputs without their own parameter are binary.
    pub(super) binary: bool,
    /// Outputs with their own parameter, by name.
    pub(super) named: Vec<(String, bool)>,
}

impl Forms {
    /// Reads and removes the request's parameter `binary_data_output`.
    pub(super) fn of_request(parameters: &mut Parameters) -> Result<Self, JsonFault> {
        Ok(Self { binary: flag(parameters, "binary_data_output")?.unwrap_or(false), named: Vec::new() })
    }

    /// Reads and removes a requested output's parameter `binary_data`.
    pub(super) fn ask(&mut self, output: &mut Output<'_>) -> Result<(), JsonFault> {
        if let Some(binary) = flag(&mut output.parameters, "binary_data")? {
            self.named.push((output.name.0.to_string(), binary));
        }
        Ok(())
    }

    /// Whether this output is sent as binary data.
    pub fn is_binary(&self, output: &str) -> bool {
        self.named.iter().find(|(name, _)| name == output).map_or(self.binary, |(_, binary)| *binary)
    }

    /// Rejects outputs that could not be sent, before they are computed.
    ///
    /// # Errors
    /// For an output whose datatype has no JSON form and that is not requested as binary data.
    pub fn check(&self, spec: &ModelSpec, plan: &ResponsePlan) -> Result<(), RequestError> {
        let tensors = |index: usize| spec.outputs.get(index);
        let refused = match &plan.outputs {
            SelectedOutputs::All => spec.outputs.iter().find(|output| self.refuses(&output.name, output.datatype)),
            SelectedOutputs::Some(plans) => plans
                .iter()
                .filter(|plan| plan.form == OutputForm::Raw)
                .find_map(|plan| tensors(plan.index).filter(|output| self.refuses(&output.name, output.datatype))),
        };
        let Some(output) = refused else { return Ok(()) };
        let (model, name) = (spec.name.clone(), output.name.clone());
        Err(JsonFault::NoJsonForm { model, output: name, datatype: output.datatype }.into())
    }

    fn refuses(&self, output: &str, datatype: DataType) -> bool {
        matches!(datatype, DataType::Fp16 | DataType::Bf16) && !self.is_binary(output)
    }
}

fn flag(parameters: &mut Parameters, key: &'static str) -> Result<Option<bool>, JsonFault> {
    match parameters.remove(key).map(|parameter| parameter.parameter_choice) {
        None => Ok(None),
        Some(Some(ParameterChoice::BoolParam(flag))) => Ok(Some(flag)),
        Some(_) => Err(JsonFault::ParameterType { key, expected: "a boolean" }),
    }
}
