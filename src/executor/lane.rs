//! A task on its lane: gather, run, scatter; or a stage of it.

use std::{sync::Arc, time::Instant};

use smallvec::SmallVec;
use tracing::{debug, error};

use super::{
    boundary::{BoundaryRows, Places},
    cells::{CellPrograms, CellTask, Journey},
    gather::{Part, gather},
    loaded::Loaded,
    output_bytes::{check_declared, check_made},
    ran::{Ran, nanos},
    record::Payload,
    scatter::{expected_shapes, scatter},
    short_runs::Size,
    stage_task::StageTask,
    stages::{Programs, Stages},
};
use crate::{
    batching::{Lengths, Next, ReqId, RowSpan, ShapeClass, Task},
    device::{BufferPool, WorkFailure},
    engine::{Batch, BatchInput, Execution, Program, StopSignal},
    model::ModelSpec,
    observe::{ExecutionTimings, ModelStats},
};

/// A part of this share of a batch, or a smaller one, is copied when its reply has to wait.
const SMALL_PART: u32 = 2;

/// A task with what it needs to run.
pub(super) struct Job {
    pub(super) task: Task,
    pub(super) model: Arc<Loaded>,
    /// One per span of the task's rows.
    pub(super) members: Vec<Member>,
    /// What the task's batch keeps at the boundaries that the task reads.
    pub(super) reads: SmallVec<[(u16, Arc<BoundaryRows>); 1]>,
    /// Where it keeps what the task writes.
    pub(super) writes: Option<Arc<BoundaryRows>>,
    /// Stops it before its end.
    pub(super) stop: Arc<StopSignal>,
}

/// Consecutive rows of one request in a task.
pub(super) struct Member {
    pub(super) span: RowSpan,
    pub(super) payload: Arc<Payload>,
    /// The request's way through its cells, where it unfolds.
    pub(super) journey: Option<Arc<Journey>>,
    /// How often the request ran before.
    pub(super) step: u32,
    /// Where it is of another version or cell than the task.
    pub(super) guest: Option<Guest>,
}

/// The version and cell of a node in a task of another cell of the same kind, be it of the same version or not.
pub(super) struct Guest {
    stats: Arc<ModelStats>,
    cell: u16,
}

impl Guest {
    /// Of a node of a version's request.
    pub(super) fn new(stats: &Arc<ModelStats>, cell: usize) -> Self {
        Self { stats: Arc::clone(stats), cell: cell as u16 }
    }
}

/// What became of a task.
pub(super) enum Finished {
    Ran(Ran),
    Failed(String),
}

impl Job {
    /// The request that brought a row of the batch.
    pub(super) fn member_of_row(&self, row: u32) -> Option<ReqId> {
        let mut end = 0;
        let member = self.members.iter().find(|member| {
            end += member.span.count;
            row < end
        });
        member.map(|member| member.span.req)
    }

    /// The request that all rows are of, if it is one.
    pub(super) fn only_member(&self) -> Option<ReqId> {
        let req = self.members.first()?.span.req;
        self.members.iter().all(|member| member.span.req == req).then_some(req)
    }

    /// Rows and bytes of inputs of the requests in it. Requests that are split count with all their bytes.
    pub(super) fn size(&self) -> Size {
        let inputs = self.members.iter().flat_map(|member| member.payload.inputs.iter().flatten());
        Size { rows: self.task.bucket.rows, input_bytes: inputs.map(|input| input.data.len()).sum() }
    }

    /// Members of each version and cell, with its counters and the cell's number there.
    pub(super) fn by_cell(&self) -> impl Iterator<Item = (&ModelStats, u16, &[Member])> {
        let of = |member: &Member| member.guest.as_ref().map(|guest| (Arc::as_ptr(&guest.stats), guest.cell));
        self.members.chunk_by(move |one, other| of(one) == of(other)).map(|members| {
            let guest = members.first().and_then(|member| member.guest.as_ref());
            let own = (&*self.model.stats, self.task.cell.0);
            let (stats, cell) = guest.map_or(own, |guest| (&*guest.stats, guest.cell));
            (stats, cell, members)
        })
    }

    /// Rows of each version, whatever cells they are of, with its counters.
    fn by_version(&self) -> SmallVec<[(&ModelStats, u32); 2]> {
        let mut versions: SmallVec<[(&ModelStats, u32); 2]> = SmallVec::new();
        for (stats, _, members) in self.by_cell() {
            let own = members.iter().map(|member| member.span.count).sum();
            match versions.iter_mut().find(|(known, _)| std::ptr::eq(*known, stats)) {
                Some((_, rows)) => *rows += own,
                None => versions.push((stats, own)),
            }
        }
        versions
    }

    /// What is said of a task that failed.
    pub(super) fn failed(&self, failure: WorkFailure) -> String {
        let spec = &self.model.spec;
        if let WorkFailure::Panicked(panic) = failure {
            error!(model = %spec.name, version = spec.version, "the program panicked: {panic}");
            return format!("the program of model '{}' panicked", spec.name);
        }
        let reason = failure.to_string();
        // Clients can bring this about at will, and hear of it: no place for a warning.
        debug!(model = %spec.name, version = spec.version, "task failed: {reason}");
        reason
    }

    /// Runs the task on the calling thread.
    ///
    /// # Errors
    /// When the program fails, or gives what the specification does not promise.
    pub(super) fn run(&self, buffers: &Arc<BufferPool>) -> Result<Ran, String> {
        let model = &*self.model;
        let parts: SmallVec<[Part<'_>; 8]> = self.members.iter().map(Member::part).collect();
        let lengths: SmallVec<[_; 8]> = self.members.iter().map(|member| &member.payload.lengths).collect();
        let class = &self.task.bucket.class;
        let on = RunContext { buffers, stop: &self.stop };
        let (mut ran, ends_rows) = match &model.programs.0 {
            Programs::Whole(program) => {
                let steps: SmallVec<[u32; 64]> =
                    self.members.iter().flat_map(|member| (0..member.span.count).map(|_| member.step)).collect();
                let ran = run_parts(&model.spec, &**program, class, &parts, &lengths, &steps, on)?;
                (ran, true)
            }
            Programs::Cells(cells) => (self.run_cell(cells, on)?, true),
            Programs::Cut(stages) => {
                let ran = self.run_stage(stages, &parts, &lengths, on)?;
                let done = ran.outcomes.iter().any(|outcome| outcome.next == Next::Done);
                (ran, done || usize::from(self.task.cell.0) + 1 == stages.stages.len())
            }
        };
        self.detach_replies(&mut ran);
        // Batch sizes tell of the batches that requests leave in.
        if ends_rows {
            for (stats, rows) in self.by_version() {
                stats.execution(rows, &ran.timings);
            }
        }
        model.short_runs.ran(|| self.size(), ran.took_ns());
        Ok(ran)
    }

    /// Copies small parts of the batch whose replies have to wait behind others: each would keep the memory of the
    /// whole batch.
    fn detach_replies(&self, ran: &mut Ran) {
        let rows = self.task.bucket.rows;
        let is_kept = |member: &Member| member.span.count * SMALL_PART <= rows && member.payload.waits_behind_others();
        for (member, response) in self.members.iter().zip(&mut ran.responses) {
            if is_kept(member) {
                response.detach();
            }
        }
        for (part, piece) in &mut ran.pieces {
            if self.members.get(*part).is_some_and(is_kept) {
                piece.tensor.detach();
            }
        }
    }

    fn run_cell(&self, programs: &CellPrograms, on: RunContext<'_>) -> Result<Ran, String> {
        let mut nodes: SmallVec<[(&Journey, u32); 32]> = SmallVec::with_capacity(self.members.len());
        for member in &self.members {
            let Some(journey) = member.journey.as_deref() else { return Err("a request has not unfolded".to_owned()) };
            nodes.push((journey, member.span.start));
        }
        let cell = usize::from(self.task.cell.0);
        CellTask { programs, cell, nodes: &nodes, buffers: on.buffers, stop: on.stop }.run()
    }

    fn run_stage(
        &self,
        stages: &Stages,
        parts: &[Part<'_>],
        lengths: &[&Lengths],
        on: RunContext<'_>,
    ) -> Result<Ran, String> {
        let (spec, number) = (&*self.model.spec, usize::from(self.task.cell.0));
        if number >= stages.stages.len() {
            return Err(format!("model '{}' has no stage {number}", spec.name));
        }
        let places = Places::new(self.members.iter().map(|member| (member.span.at, member.span.count)));
        let task = StageTask {
            spec,
            stages,
            number,
            class: &self.task.bucket.class,
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

/// What a run needs besides its rows.
#[derive(Clone, Copy)]
pub(super) struct RunContext<'a> {
    /// Where its memory comes from.
    pub(super) buffers: &'a Arc<BufferPool>,
    /// Stops it before its end.
    pub(super) stop: &'a StopSignal,
}

/// Gathers a batch, runs it on the calling thread and takes its outputs apart.
///
/// # Errors
/// When the parts do not fit their shapes, the program fails, or its outputs are not what the specification promises.
pub(super) fn run_parts(
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
    Ok(Ran { responses, pieces: Vec::new(), streamed: Vec::new(), outcomes, failures, delays, timings })
}

impl Member {
    fn part(&self) -> Part<'_> {
        Part { inputs: &self.payload.inputs, rows: self.payload.rows, start: self.span.start, count: self.span.count }
    }
}
