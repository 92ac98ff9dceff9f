//! Steps that the server computes itself.

use std::fmt;

use paternoster_model::TensorSpec;

use super::Value;

/// A step that is no model: it computes its outputs on a worker thread, or at once where that takes well below a
/// millisecond.
pub trait BuiltIn: fmt::Debug + Send + Sync {
    /// Returns its kind, as configurations name it.
    fn kind(&self) -> &'static str;

    /// Returns its inputs. Each has the batch axis in front of its dimensions.
    fn inputs(&self) -> &[TensorSpec];

    /// Returns its outputs.
    fn outputs(&self) -> &[TensorSpec];

    /// Whether it takes these inputs well below a millisecond.
    fn is_short(&self, inputs: &[Option<Value>]) -> bool;

    /// Returns an upper limit of the bytes that [`Self::run`] builds for these inputs.
    fn built_bytes(&self, inputs: &[Option<Value>]) -> usize;

    /// Computes the outputs of `rows` rows, in the order of [`Self::outputs`]. `inputs` are in the order of
    /// [`Self::inputs`]; those that are optional may be absent.
    ///
    /// # Errors
    /// If the content of an input is not what the step expects.
    fn run(&self, inputs: &[Option<Value>], rows: usize) -> Result<Vec<Value>, BuiltInFault>;
}

/// Why a built-in step has no outputs.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum BuiltInFault {
    /// The request is at fault.
    #[error("{0}")]
    Invalid(String),
    /// The step is.
    #[error("{0}")]
    Failed(String),
}
