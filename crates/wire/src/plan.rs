//! The parts of a request that determine its response, kept while it runs.

use std::{collections::HashMap, sync::Arc};

use paternoster_model::{CorrelationId, InSequence, ModelSpec};
use smallvec::SmallVec;

use super::{
    pb::{InferParameter, infer_parameter::ParameterChoice},
    shared_memory::RegionSlice,
};

/// How to build the response, or responses, to one request.
#[derive(Clone, Debug)]
pub struct ResponsePlan {
    /// Echoed in every response; empty if the request had none.
    pub id: String,
    /// The outputs and their forms.
    pub outputs: SelectedOutputs,
    /// Whether a decoupled request wants an empty response after its last one.
    pub enable_empty_final_response: bool,
    /// Parameters of every response.
    pub parameters: HashMap<String, InferParameter>,
}

impl ResponsePlan {
    /// Has the responses name the request's sequence, as those of Triton's ensembles do; 0 if it has none.
    pub fn name_sequence(&mut self, sequence: Option<&InSequence>) {
        let id = match sequence.map(|sequence| &sequence.id) {
            None => ParameterChoice::Int64Param(0),
            // The numbers of sequences are unsigned, and parameters are not.
            Some(CorrelationId::Number(number)) => ParameterChoice::Int64Param(number.cast_signed()),
            Some(CorrelationId::Text(text)) => ParameterChoice::StringParam(text.to_string()),
        };
        let flag = |is_set: fn(&InSequence) -> bool| ParameterChoice::BoolParam(sequence.is_some_and(is_set));
        let values = [
            ("sequence_id", id),
            ("sequence_start", flag(|sequence| sequence.starts)),
            ("sequence_end", flag(|sequence| sequence.ends)),
        ];
        self.parameters.extend(parameters(values));
    }
}

/// Returns parameters by name.
pub(super) fn parameters<const COUNT: usize>(
    values: [(&str, ParameterChoice); COUNT],
) -> HashMap<String, InferParameter> {
    let parameter = |value| InferParameter { parameter_choice: Some(value) };
    values.into_iter().map(|(key, value)| (key.to_owned(), parameter(value))).collect()
}

/// The outputs of a response.
#[derive(Clone, Debug)]
pub enum SelectedOutputs {
    /// All outputs of the model, raw, because the request named none.
    All,
    /// These outputs, in the model's order, each once.
    Some(SmallVec<[OutputPlan; 2]>),
}

impl SelectedOutputs {
    /// Returns the numbers of the outputs; `None` for all of a model.
    pub(super) fn wanted(&self, spec: &ModelSpec) -> Option<SmallVec<[usize; 4]>> {
        match self {
            Self::All => None,
            Self::Some(plans) if plans.len() == spec.outputs.len() => None,
            Self::Some(plans) => Some(plans.iter().map(|plan| plan.index).collect()),
        }
    }
}

/// One requested output.
#[derive(Clone, Debug)]
pub struct OutputPlan {
    /// Index in the specification's outputs.
    pub index: usize,
    /// How it is sent.
    pub form: OutputForm,
}

/// The form of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputForm {
    /// As a tensor in the response.
    Raw,
    /// As classes, by the classification extension.
    Classes {
        /// Number of classes per row, at least 1; limited by the number of elements of a row.
        count: u32,
        /// Their labels, by index.
        labels: Arc<[String]>,
    },
    /// As a tensor in shared memory.
    SharedMemory(RegionSlice),
    /// The tensor, in shared memory of the card that makes it: it is there already.
    Placed(RegionSlice),
}
