//! What happens on a device: tasks complete, and the host takes their outputs.

use std::sync::Arc;

use parking_lot::Mutex;
use paternoster_batching::Instant;
use paternoster_model::{Next, RowOutcome};
use paternoster_observe::ExecutionTimings;
use paternoster_testing::sim::Completion;

use super::{
    backend::{Floor, InFlightTask, Untaken},
    planted::Planted,
};
use crate::{
    backend::Reports,
    job::{Finished, TaskOutput},
};

/// Processes one due event of a device: a completion, or the outputs of one task. Returns whether there was one.
pub(super) fn advance(
    floor: &Mutex<Floor>,
    pool: &Arc<dyn Reports>,
    shard: usize,
    now: Instant,
) -> Result<bool, String> {
    if take(floor, pool, shard, now)? {
        return Ok(true);
    }
    let completion = floor.lock().sim.advance_to(now.as_ns());
    let has_ended = completion.is_some();
    completion.map_or(Ok(()), |completion| complete(floor, pool, shard, completion))?;
    Ok(has_ended)
}

/// Reports the next outputs that are due. Returns whether there are any.
pub(super) fn take(floor: &Mutex<Floor>, pool: &Arc<dyn Reports>, shard: usize, now: Instant) -> Result<bool, String> {
    let mut here = floor.lock();
    if here.unread_outputs.front().is_none_or(|unread_outputs| unread_outputs.at > now) {
        return Ok(false);
    }
    let out_of_order = here.planted == Some(Planted::TakenOutOfOrder);
    let next = if out_of_order { here.unread_outputs.pop_back() } else { here.unread_outputs.pop_front() };
    let Some(Untaken { flight, outcomes, .. }) = next else { return Ok(false) };
    let outputs = here.outputs(&flight, &outcomes)?;
    if here.planted != Some(Planted::OutputsReused) {
        here.spare.push((flight.out_rows, flight.out));
    }
    let is_lost = here.behaviour.loses_outputs(&flight.job);
    here.behaviour.counts.outputs_lost += u64::from(is_lost);
    drop(here);
    let outputs = if is_lost { Err("the outputs are lost".to_owned()) } else { Ok(outputs) };
    Arc::clone(pool).taken(shard, &flight.job, outputs);
    Ok(true)
}

/// Reports a completed task.
pub(super) fn complete(
    floor: &Mutex<Floor>,
    pool: &Arc<dyn Reports>,
    shard: usize,
    completion: Completion,
) -> Result<(), String> {
    let Completion { operation, started_ns, ended_ns, outcome } = completion;
    let mut here = floor.lock();
    let at = here.flights.iter().position(|flight| flight.operation == operation);
    let at = at.ok_or_else(|| format!("{operation} is no task's"))?;
    if here.forgets(&here.flights[at].job) {
        here.flights[at].is_told = true;
        return Ok(());
    }
    let flight = here.flights.remove(at);
    here.tickets.landed(flight.job.task.id);
    let job = &flight.job;
    let timings = ExecutionTimings { compute_infer_ns: ended_ns - started_ns, ..ExecutionTimings::default() };
    if let Err(failure) = outcome {
        if !flight.fails {
            return Err(format!("{:?} fails for no reason: {failure}", job.task.id));
        }
        here.behaviour.failed(job);
        here.spare.push((flight.out_rows, flight.out));
        let all_fail = here.planted == Some(Planted::StrangersFail);
        drop(here);
        let failed = RowOutcome { next: Next::Failed, emitted: false };
        let finished = if all_fail {
            Finished::Completed(ran(vec![failed; job.task.row_count() as usize], timings))
        } else {
            Finished::Failed(failure.to_string())
        };
        Arc::clone(pool).completed(shard, Some(Instant::from_ns(started_ns)), job, finished);
        return Ok(());
    }
    let mut outcomes = here.behaviour.outcomes(job);
    if here.planted == Some(Planted::ShiftedOutcomes) {
        outcomes.rotate_left(1);
    }
    let finished = Finished::Completed(ran(outcomes.clone(), timings));
    here.behaviour.counts.completed_before_taken += u64::from(!here.unread_outputs.is_empty());
    drop(here);
    if !flight.is_told {
        Arc::clone(pool).completed(shard, Some(Instant::from_ns(started_ns)), job, finished);
    }
    let mut here = floor.lock();
    let before = here.unread_outputs.back().map_or(Instant::ZERO, |unread_outputs| unread_outputs.at);
    let at = before.max(pool.now() + here.behaviour.take_ns());
    match here.planted {
        Some(Planted::NeverTaken) => return Ok(()),
        Some(Planted::OutputsReused) => here.spare.push((flight.out_rows, flight.out)),
        _ => {}
    }
    here.unread_outputs.push_back(Untaken { at, flight, outcomes });
    Ok(())
}

/// Reports the end of a task that has not ended: a planted fault.
pub(super) fn tell_early(floor: &Mutex<Floor>, pool: &Arc<dyn Reports>, shard: usize) {
    let mut here = floor.lock();
    let Floor { flights, behaviour, .. } = &mut *here;
    let may = |flight: &InFlightTask| {
        !flight.is_told && !flight.fails && flight.job.task.writes.is_some() && !behaviour.decides(&flight.job)
    };
    let Some(at) = flights.iter().position(may) else { return };
    let mut flight = flights.remove(at);
    flight.is_told = true;
    let finished = Finished::Completed(ran(behaviour.outcomes(&flight.job), ExecutionTimings::default()));
    drop(here);
    Arc::clone(pool).completed(shard, None, &flight.job, finished);
    floor.lock().flights.insert(at, flight);
}

fn ran(outcomes: Vec<RowOutcome>, timings: ExecutionTimings) -> TaskOutput {
    TaskOutput { outputs: None, outcomes, failures: Vec::new(), delays: Vec::new(), timings }
}
