//! The parts of a request that determine its reply, kept while it runs.

use smallvec::SmallVec;

use super::shared_memory::RegionSlice;
use crate::model::ModelSpec;

/// How to build the reply, or replies, to one request.
#[derive(Clone, Debug)]
pub struct ReplyPlan {
    /// Echoed in every reply; empty if the request had none.
    pub id: String,
    /// The outputs and their forms.
    pub outputs: Selection,
    /// Whether a decoupled request wants an empty response after its last one.
    pub enable_empty_final_response: bool,
}

/// The outputs of a reply.
#[derive(Clone, Debug)]
pub enum Selection {
    /// All outputs of the model, raw, because the request named none.
    All,
    /// These outputs, in the model's order, each once.
    Some(SmallVec<[OutputPlan; 2]>),
}

impl Selection {
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
    },
    /// As a tensor in shared memory.
    SharedMemory(RegionSlice),
    /// The tensor, in shared memory of the card that makes it: it is there already.
    Placed(RegionSlice),
}
