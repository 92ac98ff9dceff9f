//! A task of a whole model on the CPU: gathers the rows of the requests, runs the program and splits its outputs.

use std::{sync::Arc, time::Instant};

use paternoster_batching::ShapeClass;
use paternoster_device::BufferPool;
use paternoster_engine::{Batch, BatchInput, Execution, Program, StopSignal};
use paternoster_model::{Lengths, ModelSpec};
use paternoster_observe::ExecutionTimings;
use smallvec::SmallVec;

use super::output_bytes::{check_declared, check_made};
use crate::{
    gather::{Part, gather},
    job::{Outputs, TaskOutput, nanos},
    scatter::{BatchLengths, expected_shapes, scatter},
};

/// Rows of requests, and the program that runs them.
pub(super) struct WholeTask<'a> {
    pub(super) spec: &'a ModelSpec,
    pub(super) program: &'a dyn Program,
    pub(super) parts: &'a [Part<'a>],
    /// The own lengths of each part.
    pub(super) lengths: &'a [&'a Lengths],
    /// By row: how often it ran before.
    pub(super) steps: &'a [u32],
    pub(super) buffers: &'a Arc<BufferPool>,
    pub(super) stop: &'a StopSignal,
}

impl WholeTask<'_> {
    /// Runs the rows, padded to the lengths of `class`, on the calling thread. Lengths are extended to those that the
    /// program prefers. If it fails with these, the rows run once more at the lengths of `class`.
    ///
    /// # Errors
    /// If the parts do not match their shapes, the program fails, or its outputs do not match the specification.
    pub(super) fn run(&self, class: &ShapeClass) -> Result<TaskOutput, String> {
        let preferred = ShapeClass(class.0.iter().map(|&length| self.program.preferred_length(length)).collect());
        if preferred == *class {
            return self.run_at(class);
        }
        let ran = self.run_at(&preferred);
        if ran.is_ok() || self.stop.is_raised() {
            return ran;
        }
        let ran = self.run_at(class);
        if ran.is_ok() {
            // Later batches need not find out again. A failure at both lengths has another cause.
            let extended = preferred.0.iter().zip(&class.0).filter(|(preferred, own)| preferred != own);
            extended.for_each(|(preferred, _)| self.program.refuse_length(*preferred));
        }
        ran
    }

    fn run_at(&self, class: &ShapeClass) -> Result<TaskOutput, String> {
        let Self { spec, program, parts, lengths, steps, buffers, stop } = *self;
        let started = Instant::now();
        let rows = steps.len() as u32;
        let gathered = gather(spec, class, parts, buffers)?;
        let inputs: SmallVec<[BatchInput<'_>; 4]> = gathered.iter().map(|input| input.as_input()).collect();
        let output_shapes = expected_shapes(spec, class, rows);
        let of = format_args!(" of model '{}'", spec.name);
        check_declared(spec.outputs.iter().zip(&output_shapes), buffers, of)?;
        let gathered_at = Instant::now();

        let batch = Batch { rows, inputs: &inputs, steps, output_shapes: &output_shapes, buffers, stop };
        let execution = program.run(&batch).map_err(|error| error.message)?;
        let ran_at = Instant::now();

        check_made(spec.outputs.iter().zip(&execution.outputs), buffers, of)?;
        let lengths = BatchLengths { padded: &class.0, own: lengths };
        let responses = scatter(spec, parts, lengths, &execution.outputs)?;
        let timings = ExecutionTimings {
            compute_input_ns: nanos(started, gathered_at),
            compute_infer_ns: nanos(gathered_at, ran_at),
            compute_output_ns: nanos(ran_at, Instant::now()),
        };
        let Execution { outcomes, failures, delays, .. } = execution;
        let outputs = Some(Outputs { responses, ..Outputs::default() });
        Ok(TaskOutput { outputs, outcomes, failures, delays, timings })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use parking_lot::Mutex;
    use paternoster_engine::EngineError;
    use paternoster_model::{DataType, Dims, InputTensor, SymbolId, TensorSpec};
    use paternoster_testing::program::{dense, identity};

    use super::*;

    /// Returns its input. Prefers multiples of four, and refuses lengths above a limit.
    struct Echo {
        longest: i64,
        /// The lengths of its runs.
        seen: Mutex<Vec<i64>>,
        refused: Mutex<Vec<u32>>,
    }

    impl Program for Echo {
        fn run(&self, batch: &Batch<'_>) -> Result<Execution, EngineError> {
            let (shape, _) = dense(&batch.inputs[0]);
            self.seen.lock().push(shape[1]);
            if shape[1] > self.longest {
                return Err(EngineError::new(format!("length {} is beyond {}", shape[1], self.longest)));
            }
            identity(batch)
        }

        fn preferred_length(&self, length: u32) -> u32 {
            length.next_multiple_of(4)
        }

        fn refuse_length(&self, length: u32) {
            self.refused.lock().push(length);
        }
    }

    /// What a batch of texts of one and two tokens came to.
    struct Outcome {
        answers: Result<Vec<Bytes>, String>,
        /// The lengths of the runs.
        lengths: Vec<i64>,
        /// The lengths that the program no longer prefers.
        refused: Vec<u32>,
    }

    /// Runs the texts in a batch of length `class`.
    fn run(longest: i64, class: u32) -> Outcome {
        let tensor = |name| {
            let mut tensor = TensorSpec::new(name, DataType::Uint8, &[-1]);
            tensor.symbols.push(Some(SymbolId(0)));
            tensor
        };
        let spec = ModelSpec {
            name: "echo".to_owned(),
            version: 1,
            max_batch_size: 8,
            inputs: vec![tensor("text")],
            outputs: vec![tensor("echo")],
            symbols: vec!["tokens".to_owned()],
            decoupled: false,
        };
        let text = |tokens: &'static [u8]| {
            let shape = Dims::from_slice(&[1, tokens.len() as i64]);
            [Some(InputTensor { shape, data: Bytes::from_static(tokens) })]
        };
        let texts = [text(&[7]), text(&[8, 9])];
        let parts = texts.each_ref().map(|inputs| Part { inputs, rows: 1, start: 0, count: 1 });
        let lengths = [1, 2].map(|length| Lengths::from_slice(&[length]));
        let program = Echo { longest, seen: Mutex::default(), refused: Mutex::default() };
        let (buffers, stop) = (BufferPool::new(0), StopSignal::default());
        let class = ShapeClass(Lengths::from_slice(&[class]));
        let lengths = lengths.each_ref();
        let task = WholeTask {
            spec: &spec,
            program: &program,
            parts: &parts,
            lengths: &lengths,
            steps: &[0, 0],
            buffers: &buffers,
            stop: &stop,
        };
        let ran = task.run(&class);
        let answers = ran.map(|ran| {
            let responses = ran.outputs.expect("the run has outputs").responses;
            responses.into_iter().map(|response| response.outputs[0].data.clone()).collect()
        });
        Outcome { answers, lengths: program.seen.into_inner(), refused: program.refused.into_inner() }
    }

    #[test]
    fn a_batch_is_extended_to_the_length_that_its_program_prefers() {
        let Outcome { answers, lengths, .. } = run(8, 2);
        assert_eq!(answers.expect("it runs"), [&[7][..], &[8, 9]], "answers have the requests' own lengths");
        assert_eq!(lengths, [4]);
        assert_eq!(run(8, 4).lengths, [4], "a preferred length stays");
    }

    #[test]
    fn a_batch_that_fails_at_the_preferred_length_runs_at_its_own() {
        let Outcome { answers, lengths, refused } = run(3, 2);
        assert_eq!(answers.expect("it runs"), [&[7][..], &[8, 9]]);
        assert_eq!((&lengths[..], &refused[..]), (&[4, 2][..], &[4][..]));
    }

    #[test]
    fn a_batch_that_fails_at_every_length_says_nothing_about_lengths() {
        let Outcome { answers, lengths, refused } = run(1, 2);
        assert_eq!(answers, Err("length 2 is beyond 1".to_owned()), "the error is that of its own length");
        assert_eq!((&lengths[..], &refused[..]), (&[4, 2][..], &[][..]));
    }
}
