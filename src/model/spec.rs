//! The specification of one loaded model version.

use super::TensorSpec;

/// Index into [`ModelSpec::symbols`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SymbolId(pub u16);

/// What one version of a model takes and gives: all that admission, batching and execution need to know of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Name of the model's directory.
    pub name: String,
    /// Version number, the name of the version's directory.
    pub version: i64,
    /// Largest batch in rows; 0 for a model without a batch axis (then a request is one row and never merged).
    pub max_batch_size: u32,
    /// Inputs in the configuration's order.
    pub inputs: Vec<TensorSpec>,
    /// Outputs in the configuration's order.
    pub outputs: Vec<TensorSpec>,
    /// Names of the axes that vary from request to request and are padded within a batch.
    pub symbols: Vec<String>,
    /// Whether a request may have any number of responses (streaming only).
    pub decoupled: bool,
}

impl ModelSpec {
    /// Whether tensors carry the batch as axis 0.
    pub fn has_batch_axis(&self) -> bool {
        self.max_batch_size > 0
    }

    /// Position of an input by name.
    pub fn input_index(&self, name: &str) -> Option<usize> {
        self.inputs.iter().position(|tensor| tensor.name == name)
    }

    /// Position of an output by name.
    pub fn output_index(&self, name: &str) -> Option<usize> {
        self.outputs.iter().position(|tensor| tensor.name == name)
    }
}
