//! What holds of batches, their places, buffers and tasks.

use std::collections::{BTreeMap, BTreeSet};

use super::{Broken, hold, own};
use crate::batching::{
    CellId, Lease,
    batches::Batches,
    core::Core,
    group::Group,
    ids::{BatchIx, GroupIx, LineageIx, RequestIx},
    ledger::{BatchSpan, Request, RequestState},
    table::{
        batch::{Batch, Step, StepState},
        lineage::Lineage,
    },
};

/// Batches, lineages and buffers of a group.
pub(in crate::batching) fn check(core: &Core, ix: GroupIx, group: &Group) -> Result<(), Broken> {
    let max_rows = group.version.max_rows;
    let Some(group) = group.work.batches() else { return Ok(()) };
    batches(ix, group)?;
    tasks(core, ix, group)?;
    spans(core, ix, group)?;
    for (at, lineage) in &group.table.lineages {
        parts(ix, max_rows, group, at, lineage)?;
        places(ix, max_rows, group, lineage)?;
        leased(ix, group, lineage)?;
    }
    credits(ix, group)?;
    uses(ix, group)
}

fn steps(group: &Batches) -> impl Iterator<Item = &Step> {
    group.table.iter().flat_map(|(_, batch)| &batch.steps)
}

fn steps_of<'a>(group: &'a Batches, lineage: &'a Lineage) -> impl Iterator<Item = &'a Step> {
    lineage.parts.iter().flat_map(|&part| &group.table.get(part).steps)
}

/// No batch is empty; its steps form a staircase, most advanced first; it is queued exactly if its foot waits.
fn batches(ix: GroupIx, group: &Batches) -> Result<(), Broken> {
    let queued: BTreeSet<BatchIx> = group.table.all_queued().collect();
    let mut ids = BTreeSet::new();
    for (at, batch) in group.table.iter() {
        let id = batch.id;
        hold!(ids.insert(id), "{id:?} of group {ix} is there twice");
        hold!(batch.row_count() > 0, "{id:?} of group {ix} is empty");
        let waits = batch.foot().is_some_and(Step::is_queued);
        hold!(waits == queued.contains(&at), "{id:?} of group {ix} is queued wrongly");
        staircase(ix, batch)?;
        for step in &batch.steps {
            if let StepState::Running(task) = step.state {
                let there = group.tasks.iter().any(|in_flight| in_flight.id == task && in_flight.batch == at);
                hold!(there, "{id:?} of group {ix} runs as {task:?}, which is not in flight");
            }
        }
    }
    hold!(queued.iter().all(|&at| group.table.find(at).is_some()), "a batch of group {ix} that is gone is queued");
    Ok(())
}

fn staircase(ix: GroupIx, batch: &Batch) -> Result<(), Broken> {
    for pair in batch.steps.windows(2) {
        let [before, behind] = pair else { continue };
        hold!(before.next >= behind.next, "{:?} of group {ix} has a step above a more advanced one", batch.id);
        let alike = before.next == behind.next && before.is_queued() && behind.is_queued();
        hold!(!alike, "{:?} of group {ix} has two steps that should have merged", batch.id);
    }
    for step in &batch.steps {
        hold!(!step.rows.is_empty(), "{:?} of group {ix} has an empty step", batch.id);
        let by_place = step.rows.is_sorted_by_key(|span| span.rows.at);
        hold!(by_place, "{:?} of group {ix} has rows out of order", batch.id);
    }
    Ok(())
}

/// Each row that has boarded and is not done sits in exactly one place or pauses, and no masked row waits.
fn spans(core: &Core, ix: GroupIx, group: &Batches) -> Result<(), Broken> {
    let mut seated = BTreeMap::<RequestIx, BTreeSet<u32>>::new();
    for step in steps(group) {
        for span in &step.rows {
            let aboard = core.ledger.is_aboard(span);
            hold!(aboard || !step.is_queued(), "a masked row of {:?} waits", span.rows.req);
            if !aboard {
                continue;
            }
            for row in span.rows.start..span.rows.start + span.rows.count {
                let once = seated.entry(span.request_ix).or_default().insert(row);
                hold!(once, "row {row} of {:?} sits twice", span.rows.req);
            }
        }
    }
    for (&request_ix, spans) in &group.paused {
        hold!(!spans.is_empty(), "request {request_ix} of group {ix} pauses without rows");
        for span in spans {
            hold!(
                span.request_ix == request_ix && core.ledger.is_aboard(span),
                "a masked row of {:?} pauses",
                span.rows.req
            );
            let mut rows = span.rows.start..span.rows.start + span.rows.count;
            let once = rows.all(|row| seated.entry(request_ix).or_default().insert(row));
            hold!(once, "a row of {:?} pauses and sits in a batch", span.rows.req);
        }
    }
    let travel = |request: &&Request| request.state == RequestState::Aboard;
    for (request_ix, request) in own(core, ix).filter(|(_, request)| travel(request)) {
        let rows = seated.get(&request_ix).map_or(0, BTreeSet::len);
        hold!(rows == request.left as usize, "{:?} has {rows} rows seated and {} left", request.req, request.left);
    }
    Ok(())
}

/// A lineage has parts that know it, and no more rows than the largest batch; lengths of its rows fit into its class.
fn parts(ix: GroupIx, max_rows: u32, group: &Batches, at: LineageIx, lineage: &Lineage) -> Result<(), Broken> {
    let number = lineage.number;
    hold!(!lineage.parts.is_empty(), "lineage {number} of group {ix} has no parts");
    for &part in &lineage.parts {
        let found = group.table.find(part).is_some_and(|batch| batch.lineage == at);
        hold!(found, "a part of lineage {number} of group {ix} is not there");
    }
    let rows: u32 = steps_of(group, lineage).map(Step::row_count).sum();
    hold!(rows <= max_rows, "lineage {number} of group {ix} has {rows} rows");
    Ok(())
}

/// Each row of a staged lineage has a place of its own, and no place is taken without a row.
fn places(ix: GroupIx, max_rows: u32, group: &Batches, lineage: &Lineage) -> Result<(), Broken> {
    if group.pipeline.boundaries() == 0 {
        return Ok(());
    }
    let mut taken = BTreeSet::new();
    for span in steps_of(group, lineage).flat_map(|step| &step.rows) {
        for place in span.rows.at..span.rows.at + span.rows.count {
            hold!(taken.insert(place), "two rows of lineage {} of group {ix} share place {place}", lineage.number);
            let known = lineage.places.is_taken(place);
            hold!(known, "place {place} of lineage {} of group {ix} is free and used", lineage.number);
        }
    }
    let count = max_rows - lineage.places.free();
    hold!(taken.len() == count as usize, "lineage {} of group {ix} has lost a place", lineage.number);
    Ok(())
}

/// Rows that wait for a stage have all that it and the later stages read of what they have run.
fn leased(ix: GroupIx, group: &Batches, lineage: &Lineage) -> Result<(), Broken> {
    for step in steps_of(group, lineage) {
        // Rows that failed start again; rows that skipped stages have not run what they skipped.
        for &boundary in group.pipeline.reads(step.next) {
            let waits = step.is_queued() && boundary + 1 == step.next.0;
            let held = lineage.leases[usize::from(boundary)].is_some();
            let number = lineage.number;
            hold!(
                held || !waits,
                "lineage {number} of group {ix} waits for {:?} without boundary {boundary}",
                step.next
            );
        }
    }
    Ok(())
}

/// Credits are conserved: each buffer is free or held by one lineage.
fn credits(ix: GroupIx, group: &Batches) -> Result<(), Broken> {
    for boundary in 0..group.pipeline.boundaries() {
        let mut held = BTreeSet::new();
        for (_, lineage) in &group.table.lineages {
            let Some(pair) = lineage.leases[usize::from(boundary)] else { continue };
            hold!(held.insert(pair), "pair {pair} of boundary {boundary} of group {ix} is leased twice");
            let free = group.pipeline.is_free(Lease { boundary, pair });
            hold!(!free, "pair {pair} of boundary {boundary} of group {ix} is free and leased");
        }
        let (free, all) = group.pipeline.credits(boundary);
        hold!(free + held.len() as u32 == all, "boundary {boundary} of group {ix} has lost a credit");
        hold!(free == 0 || group.pipeline.has_credit(CellId(boundary)), "stage {boundary} of group {ix} has no credit");
    }
    Ok(())
}

/// The ledger knows the tasks that run, with their rows.
fn tasks(core: &Core, ix: GroupIx, group: &Batches) -> Result<(), Broken> {
    let own_tasks = core.ledger.in_flight_tasks().iter().filter(|in_flight| in_flight.group == ix);
    let of_ledger: BTreeSet<_> = own_tasks.map(|in_flight| (in_flight.task, in_flight.rows)).collect();
    let of_batches: BTreeSet<_> = group.tasks.iter().map(|in_flight| (in_flight.id, in_flight.rows)).collect();
    hold!(of_ledger == of_batches, "group {ix} runs {of_batches:?}, of which the ledger knows {of_ledger:?}");
    Ok(())
}

/// Buffers are in use by tasks in flight alone.
fn uses(ix: GroupIx, group: &Batches) -> Result<(), Broken> {
    for task in group.pipeline.users() {
        let is_in_flight = group.tasks.iter().any(|in_flight| in_flight.id == task);
        hold!(is_in_flight, "{task:?} of group {ix} has ended and uses a buffer");
    }
    let sum = |spans: &[BatchSpan]| spans.iter().map(|span| span.rows.count).sum::<u32>();
    for in_flight in group.tasks.iter().filter(|in_flight| !in_flight.ahead.is_empty()) {
        hold!(sum(&in_flight.ahead) == in_flight.rows, "{:?} of group {ix} forgot rows that went ahead", in_flight.id);
    }
    Ok(())
}
