//! Runs a task on its lane: gather, run, scatter; for the whole model or for one stage or cell.

use std::sync::Arc;

use paternoster_device::BufferPool;
use paternoster_engine::StopSignal;
use paternoster_model::Lengths;
use smallvec::SmallVec;

use super::{boundary::Places, cell_task::CellTask, stage_task::StageTask, whole_task::WholeTask, work::HostTask};
use crate::{
    cells::{CellPrograms, UnfoldedState},
    gather::Part,
    job::{Member, TaskOutput},
    stages::{Programs, Stages},
};

impl HostTask {
    /// Runs the task on the calling thread.
    ///
    /// # Errors
    /// If the program fails, or if its outputs do not match the specification.
    pub(super) fn run(&self, buffers: &Arc<BufferPool>) -> Result<TaskOutput, String> {
        let job = &self.job;
        let model = &*job.model;
        let parts: SmallVec<[Part<'_>; 8]> = job.members.iter().map(Member::part).collect();
        let lengths: SmallVec<[_; 8]> = job.members.iter().map(|member| &member.payload.lengths).collect();
        let class = &job.task.bucket.class;
        let on = RunContext { buffers, stop: &job.stop };
        let mut ran = match &model.programs.0 {
            Programs::Whole(program) => {
                let steps: SmallVec<[u32; 64]> =
                    job.members.iter().flat_map(|member| (0..member.span.count).map(|_| member.step)).collect();
                let task = WholeTask {
                    spec: &model.spec,
                    program: &**program,
                    parts: &parts,
                    lengths: &lengths,
                    steps: &steps,
                    buffers: on.buffers,
                    stop: on.stop,
                };
                task.run(class)?
            }
            Programs::Cells(cells) => self.run_cell(cells, on)?,
            Programs::Cut(stages) => self.run_stage(stages, &parts, &lengths, on)?,
        };
        if let Some(outputs) = &mut ran.outputs {
            job.detach_responses(outputs);
        }
        model.short_runs.ran(|| job.size(), ran.timings.total_ns());
        Ok(ran)
    }

    fn run_cell(&self, programs: &CellPrograms, on: RunContext<'_>) -> Result<TaskOutput, String> {
        let mut nodes: SmallVec<[(&UnfoldedState, u32, u32); 32]> = SmallVec::with_capacity(self.job.members.len());
        for member in &self.job.members {
            let Some(unfolded_state) = member.unfolded_state.as_deref() else {
                return Err("a request has not unfolded".to_owned());
            };
            nodes.push((unfolded_state, member.span.start, member.span.count));
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
    ) -> Result<TaskOutput, String> {
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
struct RunContext<'a> {
    /// Source of its memory.
    buffers: &'a Arc<BufferPool>,
    /// Signal that stops it early.
    stop: &'a StopSignal,
}
