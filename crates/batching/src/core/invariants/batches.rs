//! Invariants of batches, their row places, their buffers and their tasks.

use std::collections::{BTreeMap, BTreeSet};

use paternoster_model::CellId;

use super::{Broken, own};
use crate::{
    Lease,
    batches::Batches,
    core::Core,
    group::VersionScheduler,
    hold::hold,
    ids::{BatchIx, GroupIx, PartIx, RequestIx},
    ledger::{BatchSpan, Request, RequestState},
    table::batch::{Batch, Part, Step, StepState},
};

/// Checks the batches and buffers of one group.
pub(crate) fn check(core: &Core, ix: GroupIx, group: &VersionScheduler) -> Result<(), Broken> {
    let max_rows = group.version.max_rows;
    let Some(group) = group.work.batches() else { return Ok(()) };
    queued(group)?;
    tasks(core, ix, group)?;
    spans(core, ix, group)?;
    for (at, batch) in &group.table.batches {
        parts(max_rows, group, at, batch)?;
        places(max_rows, group, batch)?;
        leased(group, batch)?;
    }
    credits(group)?;
    uses(group)
}

/// Part numbers are unique, and exactly the parts whose last step waits are queued.
fn queued(group: &Batches) -> Result<(), Broken> {
    let mut numbers = BTreeSet::new();
    for part in group.table.parts() {
        hold!(numbers.insert(part.ix.number), "the number of {:?} is not unique", part.ix);
    }
    let queued: BTreeSet<PartIx> = group.table.all_queued().collect();
    let waiting = group.table.parts().filter(|part| part.foot().is_some_and(Step::is_queued));
    let waiting: BTreeSet<PartIx> = waiting.map(|part| part.ix).collect();
    hold!(queued == waiting, "{queued:?} are queued, and {waiting:?} wait");
    Ok(())
}

/// A batch's parts name the batch, are in the order of their numbers, and together have no more rows than the largest
/// batch. No part is empty, and each part's steps form a staircase, most advanced first.
fn parts(max_rows: u32, group: &Batches, at: BatchIx, batch: &Batch) -> Result<(), Broken> {
    let number = batch.number;
    hold!(!batch.parts.is_empty(), "batch {number} has no parts");
    let ascend = batch.parts.is_sorted_by(|one, other| one.ix < other.ix);
    hold!(ascend, "batch {number} has parts out of order");
    for part in &batch.parts {
        hold!(part.ix.batch == at, "{:?} is in batch {number}, which is another", part.ix);
        hold!(part.row_count() > 0, "{:?} is empty", part.ix);
        staircase(part)?;
        for step in &part.steps {
            if let StepState::Running(task) = step.state {
                let there = group.tasks.iter().any(|in_flight| in_flight.id == task && in_flight.part == part.ix);
                hold!(there, "{:?} runs as {task:?}, which is not in flight", part.ix);
            }
        }
    }
    let rows: u32 = batch.steps().map(Step::row_count).sum();
    hold!(rows <= max_rows, "batch {number} has {rows} rows");
    Ok(())
}

fn staircase(part: &Part) -> Result<(), Broken> {
    for pair in part.steps.windows(2) {
        let [before, behind] = pair else { continue };
        hold!(before.next >= behind.next, "{:?} has a step above a more advanced one", part.ix);
        let alike = before.next == behind.next && before.is_queued() && behind.is_queued();
        hold!(!alike, "{:?} has two steps that should have merged", part.ix);
    }
    for step in &part.steps {
        hold!(!step.rows.is_empty(), "{:?} has an empty step", part.ix);
        let by_place = step.rows.is_sorted_by_key(|span| span.rows.at);
        hold!(by_place, "{:?} has rows out of order", part.ix);
    }
    Ok(())
}

/// Each boarded row that is not done either sits in exactly one place or is paused, and no masked row waits.
fn spans(core: &Core, ix: GroupIx, group: &Batches) -> Result<(), Broken> {
    let mut seated = BTreeMap::<RequestIx, BTreeSet<u32>>::new();
    for step in group.table.parts().flat_map(|part| &part.steps) {
        for span in &step.rows {
            let aboard = core.ledger.is_aboard(span);
            hold!(aboard || !step.is_queued(), "a masked row of {:?} is queued", span.rows.req);
            if !aboard {
                continue;
            }
            for row in span.rows.start..span.rows.start + span.rows.count {
                let once = seated.entry(span.request_ix).or_default().insert(row);
                hold!(once, "row {row} of {:?} is in two places", span.rows.req);
            }
        }
    }
    for (&request_ix, spans) in &group.paused {
        hold!(!spans.is_empty(), "{request_ix:?} is paused without rows");
        for span in spans {
            hold!(
                span.request_ix == request_ix && core.ledger.is_aboard(span),
                "a masked row of {:?} is paused",
                span.rows.req
            );
            let mut rows = span.rows.start..span.rows.start + span.rows.count;
            let once = rows.all(|row| seated.entry(request_ix).or_default().insert(row));
            hold!(once, "a row of {:?} is paused and in a batch", span.rows.req);
        }
    }
    let travel = |request: &&Request| request.state == RequestState::Aboard;
    for (request_ix, request) in own(core, ix).filter(|(_, request)| travel(request)) {
        let rows = seated.get(&request_ix).map_or(0, BTreeSet::len);
        hold!(rows == request.left as usize, "{:?} has {rows} rows in batches and {} left", request.req, request.left);
    }
    Ok(())
}

/// Each row of a staged batch has its own place, and no place is taken without a row.
fn places(max_rows: u32, group: &Batches, batch: &Batch) -> Result<(), Broken> {
    if group.stages.boundaries() == 0 {
        return Ok(());
    }
    let mut taken = BTreeSet::new();
    for span in batch.steps().flat_map(|step| &step.rows) {
        for place in span.rows.at..span.rows.at + span.rows.count {
            hold!(taken.insert(place), "two rows of batch {} share place {place}", batch.number);
            let known = batch.places.is_taken(place);
            hold!(known, "place {place} of batch {} is free and used", batch.number);
        }
    }
    let count = max_rows - batch.places.free();
    hold!(taken.len() == count as usize, "batch {} has lost a place", batch.number);
    Ok(())
}

/// For each waiting row, the batch holds the leases that the next stage reads.
fn leased(group: &Batches, batch: &Batch) -> Result<(), Broken> {
    for step in batch.steps() {
        // Only the boundary just before the stage is certain: failed rows start again, and skipping rows never ran the
        // stages in between.
        for &boundary in group.stages.reads(step.next) {
            let waits = step.is_queued() && boundary + 1 == step.next.0;
            let held = batch.leases[usize::from(boundary)].is_some();
            let number = batch.number;
            hold!(held || !waits, "batch {number} waits for {:?} without boundary {boundary}", step.next);
        }
    }
    Ok(())
}

/// Buffer credits are conserved: each buffer is either free or held by one batch.
fn credits(group: &Batches) -> Result<(), Broken> {
    for boundary in 0..group.stages.boundaries() {
        let mut held = BTreeSet::new();
        for (_, batch) in &group.table.batches {
            let Some(pair) = batch.leases[usize::from(boundary)] else { continue };
            hold!(held.insert(pair), "pair {pair} of boundary {boundary} is leased twice");
            let free = group.stages.is_free(Lease { boundary, pair });
            hold!(!free, "pair {pair} of boundary {boundary} is free and leased");
        }
        let (free, all) = group.stages.credits(boundary);
        hold!(free + held.len() as u32 == all, "boundary {boundary} has lost a credit");
        hold!(free == 0 || group.stages.has_credit(CellId(boundary)), "stage {boundary} has no credit");
    }
    Ok(())
}

/// The ledger's tasks in flight match those of the group, rows included.
fn tasks(core: &Core, ix: GroupIx, group: &Batches) -> Result<(), Broken> {
    let own_tasks = core.ledger.in_flight_tasks.iter().filter(|in_flight| in_flight.group == ix);
    let of_ledger: BTreeSet<_> = own_tasks.map(|in_flight| (in_flight.task, in_flight.rows)).collect();
    let of_batches: BTreeSet<_> = group.tasks.iter().map(|in_flight| (in_flight.id, in_flight.rows)).collect();
    hold!(of_ledger == of_batches, "it runs {of_batches:?}, of which the ledger knows {of_ledger:?}");
    Ok(())
}

/// Only tasks in flight use buffers.
fn uses(group: &Batches) -> Result<(), Broken> {
    for task in group.stages.users() {
        let is_in_flight = group.tasks.iter().any(|in_flight| in_flight.id == task);
        hold!(is_in_flight, "{task:?} has ended and uses a buffer");
    }
    let sum = |spans: &[BatchSpan]| spans.iter().map(|span| span.rows.count).sum::<u32>();
    for in_flight in group.tasks.iter().filter(|in_flight| !in_flight.ahead.is_empty()) {
        hold!(sum(&in_flight.ahead) == in_flight.rows, "{:?} lacks rows that were passed on at launch", in_flight.id);
    }
    Ok(())
}
