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

/// Gathers a batch, runs it on the calling thread and splits its outputs.
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
