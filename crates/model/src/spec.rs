//! The specification of a loaded model version.

use super::TensorSpec;

/// Index into [`ModelSpec::symbols`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SymbolId(pub u16);

/// Inputs, outputs and limits of a model version: everything that admission, batching and execution need to know of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Name of the model's directory.
    pub name: String,
    /// Version number, the name of the version's directory.
    pub version: i64,
    /// Largest batch in rows; 0 for a model without a batch axis, whose requests count as one row and are never merged.
    pub max_batch_size: u32,
    /// Inputs in the order of the configuration.
    pub inputs: Vec<TensorSpec>,
    /// Outputs in the order of the configuration.
    pub outputs: Vec<TensorSpec>,
    /// Names of the axes that vary from request to request and are padded within a batch.
    pub symbols: Vec<String>,
    /// Whether a request may have any number of responses (streaming only).
    pub decoupled: bool,
}

impl ModelSpec {
    /// Returns whether axis 0 of the tensors is the batch.
    pub fn has_batch_axis(&self) -> bool {
        self.max_batch_size > 0
    }

    /// Returns the index of an input by name.
    pub fn input_index(&self, name: &str) -> Option<usize> {
        self.inputs.iter().position(|tensor| tensor.name == name)
    }

    /// Returns the index of an output by name.
    pub fn output_index(&self, name: &str) -> Option<usize> {
        self.outputs.iter().position(|tensor| tensor.name == name)
    }
}
