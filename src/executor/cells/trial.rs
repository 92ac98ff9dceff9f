//! One request through all its cells on the calling thread, apart from the lanes: what a version is tried with when it is loaded.

use std::{collections::VecDeque, sync::Arc};

use super::{plan::CellPrograms, task::CellTask, walk::Walk};
use crate::{
    batching::{
        Action, Arrival, BatchKey, CellularKnobs, Core, End, Event, Knobs, LaneId, LaneKnobs, Lengths, ModelId, Ns,
        Policy, ReqId, Task,
    },
    device::BufferPool,
    engine::StopSignal,
    executor::{InputTensor, Response, record::Payload},
    model::{ModelSpec, unfold::Unfolded},
};

const MODEL: ModelId = ModelId(0);

/// Runs a request of these inputs, which unfold into `graph`; its reply, and how long each cell took in all.
///
/// # Errors
/// When a cell fails, does not give what it promises, or does not fit the one before it.
pub(in crate::executor) fn run_alone(
    spec: &ModelSpec,
    programs: &Arc<CellPrograms>,
    graph: Box<[Unfolded]>,
    inputs: &[Option<InputTensor>],
    buffers: &Arc<BufferPool>,
) -> Result<(Option<Response>, Vec<Ns>), String> {
    let payload = Payload { rows: 1, lengths: Lengths::new(), inputs: inputs.to_vec(), backlog: None };
    let walk = Walk::new(programs, spec.has_batch_axis(), Arc::new(payload), &graph, None);
    let stop = StopSignal::default();
    let mut took_ns = vec![0; programs.count()];
    let (cells, segments) = programs.knobs();
    let knobs = CellularKnobs { cells, segments, slots: u32::MAX, max_tasks: 1, ..CellularKnobs::default() };
    let knobs = Knobs { stages: programs.stage_knobs(), policy: Policy::Cellular(knobs), ..Knobs::default() };
    let mut core = Core::new();
    core.step(0, Event::ModelUp(MODEL, knobs));
    core.step(0, Event::LaneUp(LaneId(0), LaneKnobs::default()));
    let arrival = Arrival {
        req: ReqId(0),
        model: MODEL,
        rows: 1,
        lengths: Lengths::new(),
        key: BatchKey::default(),
        priority: 0,
        board_by: None,
        expiry: None,
        graph,
        sequence: None,
    };
    let mut tasks: VecDeque<Task> = VecDeque::new();
    let mut actions = core.step(0, Event::Arrived(arrival));
    loop {
        for action in actions {
            match action {
                Action::Launch(task) => tasks.push_back(task),
                Action::Finish { end: End::Completed, .. } if spec.decoupled => return Ok((None, took_ns)),
                Action::Finish { end: End::Completed, .. } => return Ok((Some(walk.reply()?), took_ns)),
                Action::Finish { end, .. } => return Err(format!("the request ended {end:?}")),
                Action::Emit { .. }
                | Action::Joined { .. }
                | Action::SequenceOver { .. }
                | Action::Drained(_)
                | Action::WakeAt(_) => {}
            }
        }
        let task = tasks.pop_front().ok_or("nothing is left to run before the request's end")?;
        let nodes: Vec<(&Walk, u32)> = task.rows.iter().map(|row| (&walk, row.start)).collect();
        let cell = usize::from(task.cell.0);
        let ran = CellTask { programs, cell, nodes: &nodes, buffers, stop: &stop }.run()?;
        let took = ran.took_ns();
        if let Some(failure) = ran.failures.into_iter().next() {
            return Err(failure.reason);
        }
        took_ns[cell] += took;
        actions = core.step(0, Event::Completed { task: task.id, rows: &ran.outcomes });
    }
}
