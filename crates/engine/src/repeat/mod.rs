//! The built-in `repeat` programs, which send several responses to one request, for tests of streaming. The names of a
//! model's inputs decide which of the two it uses.

mod elements;

pub use elements::RepeatElements;
use paternoster_device::BufferPool;
use paternoster_model::{CellId, DataType, Dims, ModelSpec, Next, RowOutcome};

use super::{Batch, BatchInput, BatchOutput, EngineError, Execution, Program, RowFailure};

/// Most responses of one request.
pub(super) const MAX_RESPONSES: u32 = 65_536;

/// Sends n responses to a request whose first input element is n; response i is the input plus i. Each response is one
/// run of the cell, which a row repeats until it is done. A model that is not decoupled has exactly one response to a
/// request: the first, which is the input.
#[derive(Debug)]
pub struct Repeat {
    /// Whether the model is decoupled.
    pub decoupled: bool,
}

impl Repeat {
    /// Checks that a model's configuration fits the program.
    ///
    /// # Errors
    /// Fails unless the model has exactly one FP32 input and one FP32 output with the same dimensions.
    pub fn compile(spec: &ModelSpec) -> Result<Self, EngineError> {
        let fits = match (spec.inputs.as_slice(), spec.outputs.as_slice()) {
            ([input], [output]) => {
                input.datatype == DataType::Fp32 && output.datatype == DataType::Fp32 && input.dims == output.dims
            }
            _ => false,
        };
        if fits {
            return Ok(Self { decoupled: spec.decoupled });
        }
        Err(EngineError::new(format!(
            "backend 'repeat' of model '{}' expects one FP32 input and one FP32 output of the same dims",
            spec.name
        )))
    }
}

impl Program for Repeat {
    fn run(&self, batch: &Batch<'_>) -> Result<Execution, EngineError> {
        let [BatchInput::Dense { shape, data }] = batch.inputs else {
            return Err(EngineError::new("backend 'repeat' expects one input"));
        };
        let rows = batch.rows as usize;
        let row_bytes = data.len().checked_div(rows).unwrap_or(0);
        let mut output = BufferPool::take(batch.buffers, data.len())?;
        let mut execution = Execution::default();
        for (row, &step) in batch.steps.iter().enumerate().take(rows) {
            let place = row * row_bytes..(row + 1) * row_bytes;
            let input: &[f32] = bytemuck::cast_slice(&data[place.clone()]);
            let sum: &mut [f32] = bytemuck::cast_slice_mut(&mut output.as_mut_slice()[place]);
            for (to, from) in sum.iter_mut().zip(input) {
                *to = from + step as f32;
            }
            let outcome = match responses(input) {
                Ok(_) if !self.decoupled => RowOutcome { next: Next::Done, emitted: false },
                Ok(count) => RowOutcome {
                    next: if step + 1 < count { Next::Skip(CellId(0)) } else { Next::Done },
                    emitted: step < count,
                },
                Err(reason) => {
                    execution.failures.push(RowFailure { row: row as u32, reason });
                    RowOutcome { next: Next::Failed, emitted: false }
                }
            };
            execution.outcomes.push(outcome);
        }
        execution.outputs.push(BatchOutput { shape: Dims::from_slice(shape), data: output.freeze() });
        Ok(execution)
    }
}

/// Returns the number of responses to a row.
fn responses(row: &[f32]) -> Result<u32, String> {
    let asked = row.first().copied().unwrap_or(0.0);
    if asked < 0.0 {
        return Err("negative count".to_owned());
    }
    if asked.is_nan() || asked > MAX_RESPONSES as f32 {
        return Err(format!("expected a count of at most {MAX_RESPONSES} responses, got {asked}"));
    }
    Ok(asked as u32)
}
