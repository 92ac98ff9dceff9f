//! Runs a task on its lane: gather, run, scatter; for the whole model or for one stage or cell.

use std::{sync::Arc, time::Instant};

use smallvec::SmallVec;

use super::{
    boundary::Places,
    cell_task::CellTask,
    gather::{Part, gather},
    output_bytes::{check_declared, check_made},
    stage_task::StageTask,
    work::HostTask,
};
use crate::{
    batching::{Lengths, Next, ShapeClass},
    device::BufferPool,
    engine::{Batch, BatchInput, Execution, Program, StopSignal},
    executor::{
        cells::{CellPrograms, Journey},
        job::Member,
        ran::{Outputs, Ran, nanos},
        scatter::{expected_shapes, scatter},
        stages::{Programs, Stages},
    },
    model::ModelSpec,
    observe::ExecutionTimings,
};

impl HostTask {
    /// Runs the task on the calling thread.
    ///
    /// # Errors
    /// If the program fails, or if its outputs do not match the specification.
    pub(super) fn run(&self, buffers: &Arc<BufferPool>) -> Result<Ran, String> {
        let job = &self.job;
        let model = &*job.model;
        let parts: SmallVec<[Part<'_>; 8]> = job.members.iter().map(Member::part).collect();
        let lengths: SmallVec<[_; 8]> = job.members.iter().map(|member| &member.payload.lengths).collect();
        let class = &job.task.bucket.class;
        let on = RunContext { buffers, stop: &job.stop };
        let (mut ran, ends_rows) = match &model.programs.0 {
            Programs::Whole(program) => {
                let steps: SmallVec<[u32; 64]> =
                    job.members.iter().flat_map(|member| (0..member.span.count).map(|_| member.step)).collect();
                let ran = run_parts(&model.spec, &**program, class, &parts, &lengths, &steps, on)?;
                (ran, true)
            }
            Programs::Cells(cells) => (self.run_cell(cells, on)?, true),
            Programs::Cut(stages) => {
                let ran = self.run_stage(stages, &parts, &lengths, on)?;
                let done = ran.outcomes.iter().any(|outcome| outcome.next == Next::Done);
                (ran, done || usize::from(job.task.cell.0) + 1 == stages.stages.len())
            }
        };
        if let Some(outputs) = &mut ran.outputs {
            job.detach_replies(outputs);
        }
        if ends_rows {
            job.count_execution(&ran.timings);
        }
        model.short_runs.ran(|| job.size(), ran.took_ns());
        Ok(ran)
    }

    fn run_cell(&self, programs: &CellPrograms, on: RunContext<'_>) -> Result<Ran, String> {
        let mut nodes: SmallVec<[(&Journey, u32); 32]> = SmallVec::with_capacity(self.job.members.len());
        for member in &self.job.members {
            let Some(journey) = member.journey.as_deref() else { return Err("a request has not unfolded".to_owned()) };
            nodes.push((journey, member.span.start));
        }
        let cell = usize::from(self.job.task.cell.0);
        CellTask { programs, cell, nodes: &nodes, buffers: on.buffers, stop: on.stop }.run()
    }

    fn run_stage(
        &self,
        stages: &Stages,
        parts: &[Part<'_>],
        lengths: &[&Lengths],
        on: RunContext<'_>,
    ) -> Result<Ran, String> {
        let (spec, number) = (&*self.job.model.spec, usize::from(self.job.task.cell.0));
        if number >= stages.stages.len() {
            return Err(format!("model '{}' has no stage {number}", spec.name));
        }
        let places = Places::new(self.job.members.iter().map(|member| (member.span.at, member.span.count)));
        let task = StageTask {
            spec,
            stages,
            number,
            class: &self.job.task.bucket.class,
            parts,
            lengths,
            places: &places,
            reads: &self.reads,
            writes: self.writes.as_ref(),
            buffers: on.buffers,
            stop: on.stop,
        };
        task.run()
    }
}

/// The context of a run, apart from its rows.
#[derive(Clone, Copy)]
pub(in crate::executor) struct RunContext<'a> {
    /// Source of its memory.
    pub(in crate::executor) buffers: &'a Arc<BufferPool>,
    /// Signal that stops it early.
    pub(in crate::executor) stop: &'a StopSignal,
}

/// Gathers a batch, runs it on the calling thread and splits its outputs. Padded axes are extended to the lengths that
/// the program prefers; if it fails with these, the batch runs once more at its own lengths.
///
/// # Errors
/// If the parts do not match their shapes, the program fails, or its outputs do not match the specification.
pub(in crate::executor) fn run_parts(
    spec: &ModelSpec,
    program: &dyn Program,
    class: &ShapeClass,
    parts: &[Part<'_>],
    lengths: &[&Lengths],
    steps: &[u32],
    on: RunContext<'_>,
) -> Result<Ran, String> {
    if let Some(preferred) = extended(class, program.pads_to()) {
        let ran = run_padded(spec, program, &preferred, parts, lengths, steps, on);
        if ran.is_ok() || on.stop.is_raised() {
            return ran;
        }
    }
    run_padded(spec, program, class, parts, lengths, steps, on)
}

/// Returns the lengths rounded up to multiples of `to`; `None` if they are multiples already.
fn extended(ShapeClass(lengths): &ShapeClass, to: u32) -> Option<ShapeClass> {
    let rounded = lengths.iter().map(|length| length.checked_next_multiple_of(to).unwrap_or(*length));
    let rounded = ShapeClass(rounded.collect());
    (rounded.0 != *lengths).then_some(rounded)
}

/// Runs a batch whose padded axes have the lengths of `class`.
fn run_padded(
    spec: &ModelSpec,
    program: &dyn Program,
    class: &ShapeClass,
    parts: &[Part<'_>],
    lengths: &[&Lengths],
    steps: &[u32],
    RunContext { buffers, stop }: RunContext<'_>,
) -> Result<Ran, String> {
    let started = Instant::now();
    let rows = steps.len() as u32;
    let gathered = gather(spec, class, parts, buffers)?;
    let inputs: SmallVec<[BatchInput<'_>; 4]> = gathered.iter().map(|input| input.as_input()).collect();
    let output_shapes = expected_shapes(spec, class, rows);
    let of = format_args!(" of model '{}'", spec.name);
    check_declared(spec.outputs.iter().zip(&output_shapes), buffers, of)?;
    let gathered_at = Instant::now();

    let batch = Batch { rows, inputs: &inputs, steps, output_shapes: &output_shapes, buffers, stop };
    let execution = program.run(&batch).map_err(|error| error.0)?;
    let ran_at = Instant::now();

    check_made(spec.outputs.iter().zip(&execution.outputs), buffers, of)?;
    let responses = scatter(spec, parts, lengths, &execution.outputs)?;
    let timings = ExecutionTimings {
        compute_input_ns: nanos(started, gathered_at),
        compute_infer_ns: nanos(gathered_at, ran_at),
        compute_output_ns: nanos(ran_at, Instant::now()),
    };
    let Execution { outcomes, failures, delays, .. } = execution;
    let outputs = Some(Outputs { responses, ..Outputs::default() });
    Ok(Ran { outputs, outcomes, failures, delays, timings })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use parking_lot::Mutex;

    use super::*;
    use crate::{
        engine::{BatchOutput, EngineError},
        executor::InputTensor,
        model::{DataType, Dims, SymbolId, TensorSpec},
    };

    /// Returns its input. Prefers multiples of four, and refuses lengths above a limit.
    struct Echo {
        longest: i64,
        /// The lengths of its runs.
        seen: Mutex<Vec<i64>>,
    }

    impl Program for Echo {
        fn run(&self, batch: &Batch<'_>) -> Result<Execution, EngineError> {
            let BatchInput::Dense { shape, data } = batch.inputs[0] else { panic!("the input is dense") };
            self.seen.lock().push(shape[1]);
            if shape[1] > self.longest {
                return Err(EngineError(format!("length {} is beyond {}", shape[1], self.longest)));
            }
            let output = BatchOutput { shape: Dims::from_slice(shape), data: Bytes::copy_from_slice(data) };
            Ok(Execution { outputs: vec![output], ..Execution::default() })
        }

        fn pads_to(&self) -> u32 {
            4
        }
    }

    /// Runs texts of one and two tokens in a batch of length `class`. Returns the answers and the lengths of the runs.
    fn run(longest: i64, class: u32) -> (Result<Vec<Bytes>, String>, Vec<i64>) {
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
        let program = Echo { longest, seen: Mutex::default() };
        let (buffers, stop) = (BufferPool::new(0), StopSignal::default());
        let on = RunContext { buffers: &buffers, stop: &stop };
        let class = ShapeClass(Lengths::from_slice(&[class]));
        let ran = run_parts(&spec, &program, &class, &parts, &lengths.each_ref(), &[0, 0], on);
        let answers = ran.map(|ran| {
            let responses = ran.outputs.expect("the run has outputs").responses;
            responses.into_iter().map(|response| response.outputs[0].data.clone()).collect()
        });
        (answers, program.seen.into_inner())
    }

    #[test]
    fn a_batch_is_extended_to_the_length_that_its_program_prefers() {
        let (answers, lengths) = run(8, 2);
        assert_eq!(answers.expect("it runs"), [&[7][..], &[8, 9]], "answers have the requests' own lengths");
        assert_eq!(lengths, [4]);
        assert_eq!(run(8, 4).1, [4], "a preferred length stays");
    }

    #[test]
    fn a_batch_that_fails_at_the_preferred_length_runs_at_its_own() {
        let (answers, lengths) = run(3, 2);
        assert_eq!(answers.expect("it runs"), [&[7][..], &[8, 9]]);
        assert_eq!(lengths, [4, 2]);
        let (answers, lengths) = run(1, 2);
        assert_eq!(answers, Err("length 2 is beyond 1".to_owned()), "the error is that of its own length");
        assert_eq!(lengths, [4, 2]);
    }
}
