//! Runs requests through all their cells on the calling thread, without the lanes. Used to try out a version when it is
//! loaded.

use std::{collections::VecDeque, sync::Arc};

use paternoster_batching::{
    Action, Arrival, CellularKnobs, Core, End, Event, Instant, Knobs, LaneId, LaneKnobs, ModelId, Ns, Policy, ReqId,
    Task,
};
use paternoster_device::BufferPool;
use paternoster_engine::StopSignal;
use paternoster_model::{InputTensor, Lengths, ModelSpec, unfold::Unfolded};

use super::cell_task::CellTask;
use crate::{
    Response,
    cells::{CellPrograms, ProgramInputs, UnfoldedState},
    record::Payload,
};

const MODEL: ModelId = ModelId(0);

/// A request of one row.
pub(crate) struct Trial {
    /// Inputs in the order of the specification.
    pub(crate) inputs: Vec<Option<InputTensor>>,
    /// The graph that they unfold into.
    pub(crate) graph: Box<[Unfolded]>,
    /// Rows that replace inputs of the program.
    pub(crate) given: Arc<ProgramInputs>,
}

/// Runs requests that arrive together, so that they share tasks. Returns their responses (none for decoupled models),
/// and the total time of each cell.
///
/// # Errors
/// If a cell fails, if the requests are stopped, or if its outputs do not match its specification or the next cell.
pub(crate) fn run_alone(
    spec: &ModelSpec,
    programs: &Arc<CellPrograms>,
    requests: Vec<Trial>,
    (buffers, stop): (&Arc<BufferPool>, &StopSignal),
) -> Result<(Vec<Response>, Vec<Ns>), String> {
    let mut took_ns = vec![0; programs.count()];
    let (cells, segments) = programs.knobs();
    let knobs = CellularKnobs { cells, segments, slots: u32::MAX, max_tasks: 1, ..CellularKnobs::default() };
    let knobs = Knobs { stages: programs.stage_knobs(), policy: Policy::Cellular(knobs), ..Knobs::default() };
    let mut core = Core::new();
    let mut step = |event: Event<'_>| core.step(Instant::ZERO, event);
    step(Event::ModelUp(MODEL, Box::new(knobs)));
    let mut unfolded_states = Vec::with_capacity(requests.len());
    let mut actions = Vec::new();
    for (number, Trial { inputs, graph, given }) in (0..).zip(requests) {
        let payload = Payload { rows: 1, lengths: Lengths::new(), inputs, on_card: None, backlog: None };
        unfolded_states.push(
            UnfoldedState::new(programs, spec.has_batch_axis(), Arc::new(payload), &graph, None).with_given(given),
        );
        let arrival = Arrival { graph, ..Arrival::new(ReqId(number), MODEL, 1) };
        actions.extend(step(Event::Arrived(arrival)));
    }
    actions.extend(step(Event::LaneUp(LaneId(0), LaneKnobs::default())));
    let mut tasks: VecDeque<Task> = VecDeque::new();
    let mut left = unfolded_states.len();
    loop {
        for action in actions {
            match action {
                Action::Launch(task) => tasks.push_back(*task),
                Action::Finish { end: End::Completed, .. } => left -= 1,
                Action::Finish { end, .. } => return Err(format!("the request ended {end:?}")),
                Action::Emit { .. }
                | Action::Joined { .. }
                | Action::SequenceOver { .. }
                | Action::Recalled(_)
                | Action::Drained(_)
                | Action::UnitsFreed { .. }
                | Action::WakeAt(_) => {}
            }
        }
        if left == 0 {
            let replies = unfolded_states.iter().filter(|_| !spec.decoupled).map(UnfoldedState::reply);
            return Ok((replies.collect::<Result<_, _>>()?, took_ns));
        }
        // A short cell that repeats many times may end before it notices the signal.
        if stop.is_raised() {
            return Err("the requests were asked to stop".to_owned());
        }
        let task = tasks.pop_front().ok_or("nothing is left to run before the request's end")?;
        let nodes: Vec<(&UnfoldedState, u32, u32)> =
            task.rows.iter().map(|row| (&unfolded_states[row.req.0 as usize], row.start, row.count)).collect();
        let cell = usize::from(task.cell.0);
        let ran = CellTask { programs, cell, nodes: &nodes, buffers, stop }.run()?;
        let took = ran.timings.total_ns();
        if let Some(failure) = ran.failures.into_iter().next() {
            return Err(failure.reason);
        }
        took_ns[cell] += took;
        actions = step(Event::Completed { task: task.id, rows: &ran.outcomes }).into_iter().collect();
    }
}
