//! What a request says about its reply, kept beside it while it runs.

use smallvec::SmallVec;

use super::shared_memory::RegionSlice;

/// How to make the reply, or replies, of one request.
#[derive(Clone, Debug)]
pub struct ReplyPlan {
    /// Echoed in every answer; empty where the request had none.
    pub id: String,
    /// Which outputs, in which form.
    pub outputs: Selection,
    /// Whether a decoupled request wants an answer without outputs after its last response.
    pub enable_empty_final_response: bool,
}

/// Which outputs a reply carries.
#[derive(Clone, Debug)]
pub enum Selection {
    /// All of the model, raw: nothing was asked for.
    All,
    /// These, in the model's order, each once.
    Some(SmallVec<[OutputPlan; 2]>),
}

/// One requested output.
#[derive(Clone, Debug)]
pub struct OutputPlan {
    /// Position in the specification's outputs.
    pub index: usize,
    /// How it is sent.
    pub form: OutputForm,
}

/// How an output is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputForm {
    /// The tensor, in the response.
    Raw,
    /// The classification extension.
    Classes {
        /// How many classes per row, at least 1; a row has no more than it has elements.
        count: u32,
    },
    /// The tensor, in shared memory.
    SharedMemory(RegionSlice),
}
