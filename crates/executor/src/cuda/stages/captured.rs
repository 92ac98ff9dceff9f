//! Stages on a card without a pool, for measurements: the graphs that a server captures, and their launches.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use paternoster_batching::{Bucket, Knobs, LaneId, Lease, ModelId, ReqId, RowSpan, ShapeClass, Task, TaskId};
use paternoster_device::{
    DeviceError,
    cuda::{Cuda, CudaWork},
};
use paternoster_engine::RunSize;
use paternoster_model::{CellId, Dims, InputTensor, Lengths, ModelSpec, element_count};
use paternoster_observe::budget::Budget;
use smallvec::SmallVec;

use super::Stages;
use crate::{
    StagePrograms,
    cuda::{
        PARAMETER_BYTES,
        graph::{Kernels, Loader},
        version::{CardVersion, Filled},
    },
    job::{Job, Member},
    record::Payload,
    version::ServedVersion,
};

/// The stages of a version, or its whole program, on the first stream of a card. Their graphs and parameters are those
/// of a server: each task gathers its rows from the buffer pairs and from host memory, runs, and scatters its outputs.
///
/// Nothing else may use the stream. The card must take
/// [parameters](paternoster_device::cuda::CudaOptions::parameter_bytes) of as many bytes as the lists of row numbers
/// need.
pub struct CapturedStages {
    model: Arc<ServedVersion>,
    stages: Stages,
    kernels: Kernels,
    /// The pair of each boundary that batches use.
    pair: u16,
    /// Batches so far.
    batches: u64,
}

/// The launches of a batch's task at one stage. Each must come after the tasks of the stages before it.
#[derive(Debug)]
pub struct StageLaunch {
    /// The task as a server launches it.
    pub task: CudaWork,
    /// The program alone, on the rows that the task has gathered.
    pub program: CudaWork,
}

impl CapturedStages {
    /// Loads a version and reserves its memory, for batches of up to `max_rows` rows in the default number of buffer
    /// pairs.
    ///
    /// # Errors
    /// If the card has too little memory, or does not support what a stage needs.
    pub fn load(card: &mut Cuda, spec: ModelSpec, programs: &StagePrograms, max_rows: u32) -> Result<Self, String> {
        let knobs = Knobs { max_batch_rows: max_rows.max(1), ..Knobs::default() };
        let model =
            ServedVersion::new(Arc::new(spec), Arc::default(), programs.clone(), Duration::ZERO, &Budget::of(0));
        let kernels = Kernels::new(card).map_err(|error| error.to_string())?;
        let mut loader = loader(card, &kernels);
        let stages = Stages::with(&mut loader, &model.spec, programs, &knobs, |loader, _, program, around| {
            loader.reserve(program, around, knobs.max_batch_rows, 1)
        });
        Ok(Self { model, stages: stages?, kernels, pair: knobs.buffer_pairs.saturating_sub(1), batches: 0 })
    }

    /// Captures a batch's task at each stage. Each row is a request of zeros. Its rows are not consecutive in the
    /// buffer pairs: as if every second request had left a full batch, and others had taken their places since.
    ///
    /// # Errors
    /// If the batch does not fit, or the card refuses an operation.
    pub fn capture(&mut self, card: &mut Cuda, size: RunSize) -> Result<Vec<StageLaunch>, String> {
        let max_rows = self.stages.max_rows;
        if !(1..=max_rows).contains(&size.rows) {
            return Err(format!("a batch has {} rows, expected 1 to {max_rows}", size.rows));
        }
        let lengths = self.stages.layout.lengths.get(size.lengths).cloned();
        let lengths = lengths.ok_or("the programs are not prepared for these lengths")?;
        let payload = Arc::new(zeros(&self.model.spec, lengths)?);
        self.batches += 1;
        (0..self.stages.stages.len()).map(|stage| self.stage(card, stage, size, &payload)).collect()
    }

    fn stage(
        &mut self,
        card: &mut Cuda,
        stage: usize,
        size: RunSize,
        payload: &Arc<Payload>,
    ) -> Result<StageLaunch, String> {
        let job = self.job(stage, size, payload);
        let on_card = &mut self.stages.stages[stage];
        let (around, lane) = (&on_card.around, &mut on_card.lanes[0]);
        let mut loader = loader(card, &self.kernels);
        let task = loader.capture(lane, around, size.into()).map_err(|error| error.to_string())?;
        let program = loader.capture_alone(lane, around, size.into()).map_err(|error| error.to_string())?;
        let mut section = lane.free.pop().ok_or("all sections of a stage are taken")?;
        let filled = self.stages.fill(&job, size.into(), &mut section);
        // All batches bring the same rows, so they can share the section.
        self.stages.stages[stage].lanes[0].free.push(section);
        let Filled { parameters, .. } = filled?;
        self.stages.issued(&job.task);
        let program = CudaWork { graph: program, parameters: parameters.clone() };
        Ok(StageLaunch { task: CudaWork { graph: task, parameters }, program })
    }

    /// Returns the task of a stage, with one row of each request.
    fn job(&self, stage: usize, size: RunSize, payload: &Arc<Payload>) -> Job {
        let lease = |boundary: u16| Lease { boundary, pair: self.pair };
        let places = scattered(self.stages.max_rows).take(size.rows as usize);
        let spans = (0..).zip(places).map(|(req, at)| RowSpan {
            req: ReqId(req),
            start: 0,
            count: 1,
            at,
            slot: RowSpan::NO_SLOT,
        });
        let spans: Vec<RowSpan> = spans.collect();
        let member = |span: &RowSpan| Member {
            span: *span,
            payload: Arc::clone(payload),
            unfolded_state: None,
            step: 0,
            guest: None,
        };
        let members = spans.iter().map(member).collect();
        let number = stage as u16;
        let task = Task {
            id: TaskId(self.batches),
            model: ModelId(0),
            cell: CellId(number),
            bucket: Bucket { rows: size.rows, class: ShapeClass(payload.lengths.clone()) },
            lane: LaneId(0),
            batch: self.batches,
            rows: spans,
            reads: self.stages.layout.stages[stage].reads.iter().copied().map(lease).collect(),
            writes: (stage < self.stages.boundaries.len()).then(|| lease(number)),
            after: SmallVec::new(),
        };
        Job { task, model: Arc::clone(&self.model), members, stop: Arc::default() }
    }

    /// Frees the memory on the card. All launches must have completed, and none may follow.
    ///
    /// # Errors
    /// If the card is lost.
    pub fn free(self, card: &mut Cuda) -> Result<(), DeviceError> {
        Box::new(self.stages).free(card)
    }
}

fn loader<'a>(card: &'a mut Cuda, kernels: &'a Kernels) -> Loader<'a> {
    Loader { card, kernels, parameter_bytes: PARAMETER_BYTES, places_rows: true }
}

/// Returns the places of a batch's rows within its buffer pair: first every second one, then those between them.
fn scattered(max_rows: u32) -> impl Iterator<Item = u32> {
    (0..max_rows).step_by(2).chain((1..max_rows).step_by(2))
}

/// Returns the inputs of a request of one row, all zeros.
fn zeros(spec: &ModelSpec, lengths: Lengths) -> Result<Payload, String> {
    let inputs = spec.inputs.iter().map(|input| {
        let dims = input.dims_at(&lengths);
        let bytes =
            element_count(&dims).zip(input.datatype.size_bytes()).and_then(|(count, size)| count.checked_mul(size));
        let bytes = bytes.ok_or_else(|| format!("input '{}' has no fixed size", input.name))?;
        let batch_axis = spec.has_batch_axis().then_some(1);
        let shape: Dims = batch_axis.into_iter().chain(dims).collect();
        Ok(Some(InputTensor { shape, data: Bytes::from(vec![0; bytes]) }))
    });
    let inputs = inputs.collect::<Result<_, String>>()?;
    Ok(Payload { rows: 1, lengths, inputs, on_card: None, backlog: None })
}
