//! A version's programs apart from the lanes, before it comes up.

use std::sync::Arc;

use super::{
    InputTensor, StagePrograms,
    admit::Admission,
    boundary::{BoundaryRows, Places},
    cells::{run_alone, unfold},
    gather::Part,
    lane::{RunContext, run_parts},
    pool::Pool,
    stage_task::StageTask,
    stages::Programs,
};
use crate::{
    batching::{Ns, ShapeClass},
    engine::StopSignal,
    model::ModelSpec,
};

impl Pool {
    /// Runs a version's programs once on the calling thread, apart from the lanes and from every statistic: before the
    /// version comes up, so that its first request does not pay for what the first run sets up. Stages run one after
    /// another, exits or not. Gives how long each stage took, as it would on a lane: inputs gathered, run, outputs taken apart.
    ///
    /// # Errors
    /// When a program fails or its outputs are not what the specification or the plan promises.
    pub fn warm_up(
        &self,
        spec: &ModelSpec,
        programs: &StagePrograms,
        rows: u32,
        inputs: &[Option<InputTensor>],
    ) -> Result<Vec<Ns>, String> {
        let (lengths, _) = Admission::new(spec).measure(inputs);
        let class = ShapeClass(lengths.clone());
        let (parts, lengths) = ([Part { inputs, rows, start: 0, count: rows }], [&lengths]);
        // Never raised: loading has no time limit.
        let stop = StopSignal::default();
        let (buffers, stop) = (self.buffers(), &stop);
        let stages = match &programs.0 {
            Programs::Whole(program) => {
                let steps = vec![0; rows as usize];
                let ran = run_parts(spec, &**program, &class, &parts, &lengths, &steps, RunContext { buffers, stop })?;
                return Ok(vec![ran.took_ns()]);
            }
            Programs::Cells(cells) => {
                let graph = unfold(cells, spec, rows, inputs, None).map_err(|fault| fault.to_string())?;
                return run_alone(spec, cells, graph, inputs, buffers).map(|(_, took_ns)| took_ns);
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
            took_ns.push(task.run()?.took_ns());
        }
        Ok(took_ns)
    }
}
