//! The shapes of tensors where they enter a pipeline or one of its steps, and where they leave it.

use paternoster_executor::OutputTensor;
use paternoster_model::{Dims, InputTensor, ModelSpec, ShapeText, TensorSpec};

use super::ValueFault;

/// Returns a tensor with `rank` dimensions, where one side of a connection has a batch axis and the other has none: it
/// becomes a batch of one row, or the only row of a batch. Other tensors stay as they are; their shapes are checked by
/// who receives them.
pub(crate) fn with_rank(mut tensor: InputTensor, rank: usize) -> InputTensor {
    if tensor.shape.len() + 1 == rank {
        tensor.shape.insert(0, 1);
    } else if tensor.shape.len() == rank + 1 && tensor.shape[0] == 1 {
        tensor.shape.remove(0);
    }
    tensor
}

/// Returns the input of a pipeline with this number in the shape that the steps know.
pub(crate) fn enter(mut input: InputTensor, spec: &ModelSpec, number: usize) -> InputTensor {
    if let Some(of_input) = spec.inputs.get(number).filter(|of_input| of_input.reshape.is_some()) {
        input.shape = per_row(&input.shape, spec.has_batch_axis(), |dims| of_input.to_graph(dims));
    }
    input
}

/// Returns an output of a pipeline in the shape that its clients know, given the tensor of its steps.
///
/// # Errors
/// If it is to be reshaped, and its dimensions are neither those of the specification nor one row of them.
pub(crate) fn leave(tensor: InputTensor, spec: &TensorSpec, batched: bool) -> Result<OutputTensor, ValueFault> {
    let batch = usize::from(batched);
    let InputTensor { shape, data } = with_rank(tensor, batch + spec.graph_dims().len());
    let dims = shape.get(batch..).unwrap_or_default();
    // Without a reshape, dims of the specification need not be those that a program gives.
    if let Some(wanted) = &spec.reshape
        && !(dims.len() == wanted.len() && dims.iter().zip(wanted).all(|(dim, wanted)| *wanted < 0 || dim == wanted))
    {
        let expected = batched.then_some(-1).into_iter().chain(wanted.iter().copied()).collect();
        return Err(ValueFault::Shape { expected: ShapeText(expected), got: ShapeText(shape.to_vec()) });
    }
    Ok(OutputTensor { shape: per_row(&shape, batched, |dims| spec.to_wire(dims)), data })
}

fn per_row(shape: &[i64], batched: bool, reshaped: impl FnOnce(&[i64]) -> Dims) -> Dims {
    let (batch, dims) = shape.split_at(usize::from(batched).min(shape.len()));
    batch.iter().copied().chain(reshaped(dims)).collect()
}
