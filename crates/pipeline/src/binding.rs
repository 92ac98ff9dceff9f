//! Binds the ports of a step to the inputs and outputs of a version's specification.

use std::sync::Arc;

use paternoster_model::{DataType, ModelSpec, ShapeText, TensorSpec};

use super::graph::{GraphStep, TensorIx};

/// A step's ports by number, for one specification.
#[derive(Debug)]
pub(crate) struct Binding {
    pub(crate) spec: Arc<ModelSpec>,
    /// By input of the specification: the tensor of the pipeline; `None` if the step leaves it out.
    pub(crate) inputs: Box<[Option<TensorIx>]>,
    /// By output of the step: its number in the specification.
    pub(crate) outputs: Box<[usize]>,
}

/// What is known of a tensor of the pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorKind {
    pub(crate) datatype: DataType,
    /// All dimensions, the batch axis included; -1 where they vary.
    pub(crate) dims: Vec<i64>,
    /// Whether the first dimension is the batch.
    has_batch_axis: bool,
}

impl TensorKind {
    /// Of a tensor that a step's model receives or gives.
    pub(crate) fn of(spec: &TensorSpec, has_batch_axis: bool) -> Self {
        Self::with_dims(spec.datatype, &spec.dims, has_batch_axis)
    }

    /// Of an input or output of the pipeline, as its steps know it.
    pub(crate) fn within(spec: &TensorSpec, has_batch_axis: bool) -> Self {
        Self::with_dims(spec.datatype, spec.graph_dims(), has_batch_axis)
    }

    fn with_dims(datatype: DataType, dims: &[i64], has_batch_axis: bool) -> Self {
        let batch = has_batch_axis.then_some(-1);
        Self { datatype, dims: batch.into_iter().chain(dims.iter().copied()).collect(), has_batch_axis }
    }

    /// Returns the dimensions behind the batch axis; all, without one.
    fn row_dims(&self) -> &[i64] {
        &self.dims[usize::from(self.has_batch_axis)..]
    }

    /// Returns why a tensor of the kind `other` cannot be one of this kind, if it cannot. As in Triton, either all
    /// dimensions agree, or those of a row: then a tensor without a batch axis is a batch of one row.
    pub(crate) fn mismatch(&self, other: &Self) -> Option<String> {
        self.difference(other, agree(&self.dims, &other.dims) || agree(self.row_dims(), other.row_dims()))
    }

    /// Returns why a tensor may not be of either kind, if it may not: nothing says of which one it is.
    fn other_kind(&self, other: &Self) -> Option<String> {
        self.difference(other, agree(&self.dims, &other.dims))
    }

    fn difference(&self, other: &Self, fits: bool) -> Option<String> {
        if self.datatype != other.datatype {
            return Some(format!("expected datatype {}, but it has {}", self.datatype, other.datatype));
        }
        let shape = |kind: &Self| ShapeText(kind.dims.clone());
        (!fits).then(|| format!("expected shape {}, but it has {}", shape(self), shape(other)))
    }
}

fn agree(left: &[i64], right: &[i64]) -> bool {
    let is_same = |(left, right): (&i64, &i64)| left == right || *left < 0 || *right < 0;
    left.len() == right.len() && left.iter().zip(right).all(is_same)
}

/// Why a step does not fit its model.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum BindingFault {
    /// There is no such input.
    #[error("it has no input '{0}'; its inputs are {1}")]
    NoInput(String, String),
    /// There is no such output.
    #[error("it has no output '{0}'; its outputs are {1}")]
    NoOutput(String, String),
    /// A required input is not mapped.
    #[error("its input '{0}' is required, and the step does not map it")]
    Unmapped(String),
    /// It has any number of responses, and the pipeline has one.
    #[error("it is decoupled, and it was not before")]
    Decoupled,
    /// The tensor has another datatype or shape.
    #[error("its {what} '{port}' and the tensor '{tensor}' differ: {difference}")]
    Mismatch {
        /// `input` or `output`.
        what: &'static str,
        /// The name in the model.
        port: String,
        /// The name in the pipeline.
        tensor: String,
        /// What was expected, and what was found.
        difference: String,
    },
}

fn names(tensors: &[TensorSpec]) -> String {
    let names: Vec<String> = tensors.iter().map(|tensor| format!("'{}'", tensor.name)).collect();
    names.join(", ")
}

/// Binds a step to a specification. `kinds` has what is known of the tensors; those of the step's outputs are filled
/// in.
pub(crate) fn bind(
    step: &GraphStep,
    spec: &Arc<ModelSpec>,
    names_of: &[String],
    kinds: &mut [Option<TensorKind>],
) -> Result<Binding, BindingFault> {
    let batched = spec.has_batch_axis();
    let mut inputs: Box<[Option<TensorIx>]> = vec![None; spec.inputs.len()].into();
    for (port, tensor) in &step.inputs {
        let no_input = || BindingFault::NoInput(port.clone(), names(&spec.inputs));
        let number = spec.input_index(port).ok_or_else(no_input)?;
        inputs[number] = Some(*tensor);
        let wanted = TensorKind::of(&spec.inputs[number], batched);
        if let Some(difference) = kinds[*tensor].as_ref().and_then(|kind| wanted.mismatch(kind)) {
            let (what, port, tensor) = ("input", port.clone(), names_of[*tensor].clone());
            return Err(BindingFault::Mismatch { what, port, tensor, difference });
        }
    }
    let mut required = spec.inputs.iter().zip(&inputs).filter(|(input, bound)| bound.is_none() && !input.optional);
    if let Some((input, _)) = required.next() {
        return Err(BindingFault::Unmapped(input.name.clone()));
    }
    let mut outputs = Vec::with_capacity(step.outputs.len());
    for (port, tensor) in &step.outputs {
        let no_output = || BindingFault::NoOutput(port.clone(), names(&spec.outputs));
        let number = spec.output_index(port).ok_or_else(no_output)?;
        outputs.push(number);
        let given = TensorKind::of(&spec.outputs[number], batched);
        match &kinds[*tensor] {
            None => kinds[*tensor] = Some(given),
            Some(kind) => {
                if let Some(difference) = kind.other_kind(&given) {
                    let (what, port, tensor) = ("output", port.clone(), names_of[*tensor].clone());
                    return Err(BindingFault::Mismatch { what, port, tensor, difference });
                }
            }
        }
    }
    Ok(Binding { spec: Arc::clone(spec), inputs, outputs: outputs.into() })
}
