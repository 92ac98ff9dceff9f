//! A task of one stage of a cut version: takes inputs from the requests and from earlier stages, and writes outputs to
//! the next boundary and to the requests' responses.

use std::{sync::Arc, time::Instant};

use paternoster_batching::ShapeClass;
use paternoster_device::BufferPool;
use paternoster_engine::{Batch, BatchInput, BatchOutput, StopSignal};
use paternoster_model::{Dims, InputSource, Lengths, ModelSpec};
use paternoster_observe::ExecutionTimings;
use smallvec::SmallVec;

use super::{
    boundary::{BoundaryRows, Places, WriteRows, row_dims},
    output_bytes::{check_declared, check_made},
};
use crate::{
    exits::RanStage,
    gather::{Gathered, Part, gather_input, with_rows},
    job::{Outputs, TaskOutput, nanos},
    scatter::{BatchLengths, expected_shape},
    stages::{Output, Stages, fault_of},
};

/// A stage with the rows that it runs on.
pub(crate) struct StageTask<'a> {
    pub(crate) spec: &'a ModelSpec,
    pub(crate) stages: &'a Stages,
    pub(crate) number: usize,
    pub(crate) class: &'a ShapeClass,
    pub(crate) parts: &'a [Part<'a>],
    /// Each part's own lengths.
    pub(crate) lengths: &'a [&'a Lengths],
    /// Places of the parts' rows in the batch.
    pub(crate) places: &'a Places,
    /// The rows that the batch keeps at the boundaries that the stage reads.
    pub(crate) reads: &'a [(u16, Arc<BoundaryRows>)],
    /// The rows at the stage's own boundary; `None` for the last stage.
    pub(crate) writes: Option<&'a Arc<BoundaryRows>>,
    pub(crate) buffers: &'a Arc<BufferPool>,
    pub(crate) stop: &'a StopSignal,
}

impl<'a> StageTask<'a> {
    /// Runs the stage on the calling thread.
    ///
    /// # Errors
    /// If an input is missing or does not fit, the program fails, or an output does not match the plan.
    pub(crate) fn run(&self) -> Result<TaskOutput, String> {
        let started = Instant::now();
        let stage = &self.stages.stages[self.number];
        let rows = self.places.rows();
        let inputs = stage.inputs.iter().map(|(tensor, source)| match *source {
            InputSource::Request(index) => {
                gather_input(self.spec, (index, tensor), self.class, self.parts, self.buffers)
            }
            InputSource::Boundary { boundary, tensor: place } => self
                .read(boundary, usize::from(place))
                .map_err(|fault| self.fault(&format!("input '{}'", tensor.name), &fault)),
        });
        let inputs = inputs.collect::<Result<SmallVec<[Gathered<'_>; 4]>, String>>()?;
        let batch_inputs: SmallVec<[BatchInput<'_>; 4]> = inputs.iter().map(Gathered::as_input).collect();
        let shapes: SmallVec<[Option<Dims>; 4]> = stage.outputs.iter().map(|output| self.shape(output)).collect();
        let tensors = || stage.outputs.iter().map(|output| &output.tensor);
        let of = format_args!(" of stage {} of model '{}'", self.number, self.spec.name);
        check_declared(tensors().zip(&shapes), self.buffers, of)?;
        let mut rooms = stage
            .outputs
            .iter()
            .zip(&shapes)
            .map(|(output, shape)| self.room(output, shape.as_ref()))
            .collect::<Result<SmallVec<[Option<WriteRows>; 4]>, String>>()?;
        let gathered_at = Instant::now();

        // A cut version never repeats a stage, so every row is at step 0.
        let steps: SmallVec<[u32; 64]> = SmallVec::from_elem(0, rows as usize);
        let (inputs, steps, output_shapes) = (&batch_inputs[..], &steps[..], &shapes[..]);
        let batch = Batch { rows, inputs, steps, output_shapes, buffers: self.buffers, stop: self.stop };
        let mut given: SmallVec<[Option<&mut [u8]>; 4]> =
            rooms.iter_mut().map(|room| room.as_mut().map(WriteRows::as_mut_slice)).collect();
        let execution = stage.program.run_into(&batch, &mut given).map_err(|error| error.message)?;
        drop(given);
        let ran_at = Instant::now();

        check_made(tensors().zip(&execution.outputs), self.buffers, of)?;
        for ((output, room), made) in stage.outputs.iter().zip(rooms).zip(&execution.outputs) {
            match room {
                Some(room) => room.commit(),
                None => self.leave(output, made)?,
            }
        }
        let Self { spec, stages, number, parts, .. } = *self;
        let lengths = BatchLengths { padded: &self.class.0, own: self.lengths };
        let answers = RanStage { spec, stages, number, parts, lengths };
        let taken = answers.exits_taken(|output| execution.outputs.get(output).map(|made| &*made.data))?;
        let pieces = answers.pieces(&taken, &execution.outputs)?;
        let outcomes = answers.outcomes(&taken, execution.outcomes);
        let timings = ExecutionTimings {
            compute_input_ns: nanos(started, gathered_at),
            compute_infer_ns: nanos(gathered_at, ran_at),
            compute_output_ns: nanos(ran_at, Instant::now()),
        };
        let outputs = Some(Outputs { pieces, ..Outputs::default() });
        Ok(TaskOutput { outputs, outcomes, failures: execution.failures, delays: Vec::new(), timings })
    }

    fn fault(&self, what: &str, fault: &str) -> String {
        fault_of(self.spec, self.number, what, fault)
    }

    fn read(&self, boundary: u16, tensor: usize) -> Result<Gathered<'a>, String> {
        let kept = self.reads.iter().find(|(number, _)| *number == boundary).map(|(_, rows)| rows);
        let kept = kept.ok_or_else(|| format!("the batch keeps nothing at boundary {boundary}"))?;
        let (row_dims, data) = kept.read(tensor, self.places, self.buffers)?;
        Ok(Gathered::Dense { shape: with_rows(self.places.rows() as usize, &row_dims), data })
    }

    /// Returns an output's full shape if it follows from the batch.
    fn shape(&self, output: &Output) -> Option<Dims> {
        let rows = self.places.rows();
        match output.boundary {
            Some(tensor) => {
                let row_dims = row_dims(&self.stages.boundaries[self.number][tensor], &self.class.0)?;
                Some(with_rows(rows as usize, &row_dims))
            }
            None => expected_shape(self.spec, &output.tensor, self.class, rows),
        }
    }

    /// Returns memory at the boundary for an output that is needed only there, so that the program can write it in
    /// place.
    fn room(&self, output: &Output, shape: Option<&Dims>) -> Result<Option<WriteRows>, String> {
        match (output.boundary, shape) {
            (Some(tensor), Some(shape)) if !output.kept => self.write(output, tensor, &shape[1..]).map(Some),
            _ => Ok(None),
        }
    }

    fn write(&self, output: &Output, tensor: usize, row_dims: &[i64]) -> Result<WriteRows, String> {
        let at = |fault: &str| self.fault(&format!("output '{}'", output.tensor.name), fault);
        let into = self.writes.ok_or_else(|| at("the batch has no room at the boundary"))?;
        let size = output.tensor.datatype.size_bytes().ok_or_else(|| at("strings have no fixed size"))?;
        into.write(tensor, (row_dims, size), self.places, self.buffers).map_err(|fault| at(&fault))
    }

    /// Copies an output to its boundary, if it has one and was not written in place.
    fn leave(&self, output: &Output, made: &BatchOutput) -> Result<(), String> {
        let Some(tensor) = output.boundary else { return Ok(()) };
        let at = |fault: &str| self.fault(&format!("output '{}'", output.tensor.name), fault);
        let rows = self.places.rows();
        let row_dims = match made.shape.split_first() {
            Some((&first, row_dims)) if first == i64::from(rows) => row_dims,
            _ => return Err(at(&format!("has the shape {:?}, expected {rows} rows on axis 0", made.shape))),
        };
        let mut room = self.write(output, tensor, row_dims)?;
        let into = room.as_mut_slice();
        if into.len() != made.data.len() {
            return Err(at(&format!("has {} bytes, its shape {:?} makes {}", made.data.len(), made.shape, into.len())));
        }
        into.copy_from_slice(&made.data);
        room.commit();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
