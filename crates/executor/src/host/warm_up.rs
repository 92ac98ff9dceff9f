//! Runs a version's programs without the lanes, before it goes into service.

use std::sync::Arc;

use paternoster_batching::{Ns, ShapeClass};
use paternoster_engine::StopSignal;
use paternoster_model::{InputTensor, ModelSpec};

use super::{
    boundary::{BoundaryRows, Places},
    stage_task::StageTask,
    trial::{Trial, run_alone},
    whole_task::WholeTask,
};
use crate::{
    Pool, StagePrograms,
    admission::Admission,
    cells::{CellPrograms, ProgramInputs, unfold},
    gather::Part,
    stages::Programs,
};

/// The batch that warms up a version's programs.
#[derive(Clone, Copy, Debug)]
pub struct WarmUp<'a> {
    /// Rows of the batch. If requests unfold into cells, this many requests of one row, which arrive together.
    pub rows: u32,
    /// Inputs of the batch, in the order of the specification.
    pub inputs: &'a [Option<InputTensor>],
    /// Rows for inputs of the program that are not inputs of the model (states and controls of sequences), by name and
    /// with the dimensions of a row. Missing ones have the values of a sequence's only request.
    pub program_inputs: &'a [(String, InputTensor)],
    /// Ends the run early.
    pub stop: &'a StopSignal,
}

impl Pool {
    /// Runs a version's programs once on the calling thread, without the lanes and the statistics. This happens before
    /// the version goes into service, so that its first request does not pay for one-time setup. Stages run one after
    /// another, ignoring exits. Returns the time of each stage as it would be on a lane: gathering inputs, running, and
    /// splitting outputs.
    ///
    /// # Errors
    /// If a program fails or is stopped, or if its outputs do not match the specification or the plan.
    pub fn warm_up(
        &self,
        spec: &ModelSpec,
        programs: &StagePrograms,
        WarmUp { rows, inputs, program_inputs, stop }: WarmUp<'_>,
    ) -> Result<Vec<Ns>, String> {
        let (lengths, _) = Admission::new(spec).measure(inputs);
        let class = ShapeClass(lengths.clone());
        let (parts, lengths) = ([Part { inputs, rows, start: 0, count: rows }], [&lengths]);
        let buffers = self.buffers();
        let stages = match &programs.0 {
            Programs::Whole(program) => {
                let steps = vec![0; rows as usize];
                let (parts, lengths, steps) = (&parts, &lengths, &steps);
                let task = WholeTask { spec, program: &**program, parts, lengths, steps, buffers, stop };
                return Ok(vec![task.run(&class)?.timings.total_ns()]);
            }
            Programs::Cells(cells) => {
                let given = Arc::new(cells.rows_of(program_inputs)?);
                let requests = (0..rows).map(|row| trial(cells, spec, row_of(spec, inputs, row, rows), &given));
                let requests = requests.collect::<Result<_, _>>()?;
                return run_alone(spec, cells, requests, (buffers, stop)).map(|(_, took_ns)| took_ns);
            }
            Programs::Cut(stages) => stages,
        };
        let places = Places::new([(0, rows)].into_iter());
        let boundaries = stages.boundaries.iter().map(|tensors| BoundaryRows::new(rows, tensors.len()));
        let kept: Vec<(u16, Arc<BoundaryRows>)> = (0..).zip(boundaries).collect();
        let mut took_ns = Vec::with_capacity(stages.stages.len());
        for number in 0..stages.stages.len() {
            let task = StageTask {
                spec,
                stages,
                number,
                class: &class,
                parts: &parts,
                lengths: &lengths,
                places: &places,
                reads: &kept,
                writes: kept.get(number).map(|(_, rows)| rows),
                buffers,
                stop,
            };
            took_ns.push(task.run()?.timings.total_ns());
        }
        Ok(took_ns)
    }
}

/// Returns one row of the inputs of a batch.
fn row_of(spec: &ModelSpec, inputs: &[Option<InputTensor>], row: u32, rows: u32) -> Vec<Option<InputTensor>> {
    let of_batch = |input: &InputTensor| {
        let (bytes, mut shape) = (input.data.len() / rows as usize, input.shape.clone());
        if spec.has_batch_axis() {
            shape[0] = 1;
        }
        InputTensor { shape, data: input.data.slice(row as usize * bytes..(row as usize + 1) * bytes) }
    };
    inputs.iter().map(|input| input.as_ref().map(of_batch)).collect()
}

fn trial(
    cells: &CellPrograms,
    spec: &ModelSpec,
    inputs: Vec<Option<InputTensor>>,
    given: &Arc<ProgramInputs>,
) -> Result<Trial, String> {
    let graph = unfold(cells, spec, 1, &inputs, None).map_err(|fault| fault.to_string())?;
    Ok(Trial { inputs, graph, given: Arc::clone(given) })
}
