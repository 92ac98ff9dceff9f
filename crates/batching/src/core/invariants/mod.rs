//! Invariants that hold after every step. Tests, simulations and debug builds all run these checks, so each invariant
//! is written once. A check visits everything and changes nothing.

mod batches;

use std::collections::{BTreeMap, BTreeSet};

use super::Core;
use crate::{
    Instant, Ns,
    arbiter::Lane,
    group::VersionScheduler,
    hold::hold,
    ids::{GroupIx, NOT_THEIR_TURN, RequestIx, SubQueueIx},
    ledger::{InFlightTask, Ledger, Request, RequestState},
    queue::{Pending, SubQueue},
    timers::Timers,
    version::Version,
};

/// Description of a broken invariant.
pub(crate) type Broken = String;

/// Checks every invariant of a core between two steps.
pub(crate) fn check(core: &Core) -> Result<(), Broken> {
    requests(core)?;
    sums(core)?;
    lanes(core)?;
    wakes(core)?;
    units(core)?;
    for (ix, group) in &core.groups {
        group_of(core, ix, group).map_err(|broken| format!("group {ix}: {broken}"))?;
    }
    Ok(())
}

fn group_of(core: &Core, ix: GroupIx, group: &VersionScheduler) -> Result<(), Broken> {
    running(core, ix, group)?;
    counts(core, ix, group)?;
    sub_queues(core, group)?;
    targets(core, group)?;
    lengths(core, group)?;
    batches::check(core, ix, group)?;
    cells(core, ix, group)?;
    sequences(core, ix, group)?;
    order(core, ix, group)?;
    progress(core, ix, group)
}

/// Every live request is found by its id, belongs to a group, and has rows left unless it is over.
fn requests(core: &Core) -> Result<(), Broken> {
    for (request_ix, request) in core.ledger.iter() {
        let req = request.req;
        hold!(core.ledger.find(req) == Some(request_ix), "{req:?} is not found in its slot");
        hold!(core.groups.contains(request.group), "{req:?} belongs to no group");
        let over = matches!(request.state, RequestState::Held(_) | RequestState::Merged(_));
        hold!(over || (1..=request.rows).contains(&request.left), "{req:?} has {} rows left", request.left);
        hold!(over || core.now < request.deadline, "{req:?} is live past its deadline");
        let waits = matches!(request.state, RequestState::Queued { .. });
        hold!(!waits || core.now < request.queue_deadline, "{req:?} waits past its queue timeout");
    }
    Ok(())
}

/// The sums that the router reads add up.
fn sums(core: &Core) -> Result<(), Broken> {
    let expected_ns: Ns = core.ledger.iter().map(|(_, request)| request.expected_ns).sum();
    hold!(core.ledger.expected_ns == expected_ns, "expects {} ns, of {expected_ns}", core.ledger.expected_ns);
    let groups = core.groups.iter().map(|(_, group)| &group.version.pending);
    let may_leave: usize = groups.filter(|pending| pending.may_leave).map(|pending| pending.requests).sum();
    hold!(core.ledger.may_leave == may_leave, "{} may leave, of {may_leave}", core.ledger.may_leave);
    Ok(())
}

/// Each lane counts its tasks correctly and stays within its depth.
fn lanes(core: &Core) -> Result<(), Broken> {
    let in_flight_tasks = &core.ledger.in_flight_tasks;
    let tasks_on: BTreeSet<_> = in_flight_tasks.iter().map(|in_flight| (in_flight.lane, in_flight.task)).collect();
    let mut known = 0;
    for Lane { id, tasks, knobs, .. } in core.arbiter.lanes() {
        let own = tasks_on.iter().filter(|(on, _)| on == id).count();
        hold!(own == usize::from(*tasks), "{id:?} counts {tasks} tasks of {own}");
        hold!(*tasks <= knobs.depth.max(1), "{id:?} has {tasks} tasks");
        known += own;
    }
    hold!(known == tasks_on.len(), "{} tasks are on lanes that are not there", tasks_on.len() - known);
    for InFlightTask { task, own_rows, rows, bucket, .. } in in_flight_tasks {
        hold!(own_rows <= rows && rows <= bucket, "{task:?} has {own_rows} of {rows} rows in a bucket of {bucket}");
    }
    Ok(())
}

/// A group counts its tasks in flight correctly and stays within its limit.
fn running(core: &Core, ix: GroupIx, group: &VersionScheduler) -> Result<(), Broken> {
    let own = core.ledger.in_flight_tasks.iter().filter(|in_flight| in_flight.group == ix);
    let tasks: BTreeSet<_> = own.clone().map(|in_flight| in_flight.task).collect();
    let ends = own.filter(|in_flight| !in_flight.is_followed).count();
    hold!(ends == tasks.len(), "it is in {} tasks, {ends} of which end", tasks.len());
    let Version { running, max_in_flight, .. } = group.version;
    hold!(ends == running as usize, "it counts {running} tasks of {ends}");
    hold!(running <= max_in_flight, "it has {running} tasks in flight, of at most {max_in_flight}");
    Ok(())
}

/// Every due time has been announced to the driver, and the size of the alarm heap is bounded by the number of armed
/// alarms.
fn wakes(core: &Core) -> Result<(), Broken> {
    let alarms = || core.ledger.iter().map(|(_, request)| request.alarm).filter(|&at| at != Instant::NEVER);
    let idle = core.groups.iter().flat_map(|(ix, _)| core.timers.idle(ix)).map(|(until, _)| until);
    let earliest = alarms().chain(core.arbiter.earliest(core.now)).chain(idle).min();
    if let Some(due) = earliest {
        let announced = core.announced;
        hold!(announced.is_some_and(|at| at <= due), "{due:?} is due, but a wake is announced for {announced:?}");
    }
    let armed = alarms().count();
    let (entries, stale) = core.timers.load();
    hold!(entries == armed + stale, "{entries} alarms are {armed} armed and {stale} stale");
    hold!(entries <= Timers::bound(armed), "{entries} alarms are kept for {armed} armed ones");
    for (_, request) in core.ledger.iter() {
        let matters = match request.state {
            RequestState::Queued { .. } => request.queue_deadline.min(request.deadline),
            RequestState::Aboard | RequestState::Held(_) | RequestState::Merged(_) => request.deadline,
        };
        hold!(request.alarm <= matters, "{:?} has no alarm for {matters:?}", request.req);
    }
    Ok(())
}

fn own(core: &Core, ix: GroupIx) -> impl Iterator<Item = (RequestIx, &Request)> {
    core.ledger.iter().filter(move |(_, request)| request.group == ix)
}

fn counts(core: &Core, ix: GroupIx, group: &VersionScheduler) -> Result<(), Broken> {
    let live = own(core, ix).count();
    hold!(live == group.version.live, "it counts {} live requests of {live}", group.version.live);
    let queued = own(core, ix).filter(|(_, request)| matches!(request.state, RequestState::Queued { .. }));
    let (mut requests, mut rows, mut by_level) = (0, 0, BTreeMap::<u64, u32>::new());
    for (_, request) in queued {
        requests += 1;
        rows += u64::from(request.rows);
        *by_level.entry(request.level).or_default() += 1;
    }
    let pending = &group.version.pending;
    hold!(requests == pending.requests, "it counts {} pending requests of {requests}", pending.requests);
    hold!(rows == pending.rows, "it counts {} pending rows of {rows}", pending.rows);
    let levels = pending.by_level.iter().count();
    hold!(levels == by_level.len(), "it counts requests of {levels} levels, of {}", by_level.len());
    for (level, &waiting) in pending.by_level.iter() {
        let there = by_level.get(&level).copied().unwrap_or_default();
        hold!(waiting == there, "level {level} counts {waiting} requests of {there}");
        let limit = pending.rules.queue_of(level).max_queue_size;
        hold!(limit == 0 || waiting <= limit, "level {level} holds {waiting} requests of at most {limit}");
    }
    Ok(())
}

/// Each queued request appears once, in its own sub-queue and level; those whose queue timeout has not passed are in
/// arrival order.
fn sub_queues(core: &Core, group: &VersionScheduler) -> Result<(), Broken> {
    let (mut seen, mut empty) = (0, 0);
    let Version { pending, sequences, .. } = &group.version;
    let Pending { sub_queues, by_key, order, .. } = pending;
    let held = sub_queue_of(&core.ledger, NOT_THEIR_TURN, &pending.held, true)?;
    for (at, sub_queue) in sub_queues {
        let found = by_key.get(&sub_queue.batch_key).map(|found| found.at());
        hold!(found == Some(at), "sub-queue {at} is not found by its batch key");
        empty += usize::from(sub_queue.is_empty());
        let rank = sub_queue.rank(&core.ledger);
        hold!(order.is_filed(SubQueueIx(at as u32), rank), "sub-queue {at} is not filed as {rank:?}");
        // Requests of sequences are queued in the order in which their turns came, not in arrival order.
        seen += sub_queue_of(&core.ledger, SubQueueIx(at as u32), sub_queue, sequences.is_none())?;
    }
    let ready = pending.ready();
    hold!(seen == ready, "it counts {ready} requests that may board, of {seen}");
    seen += held;
    hold!(seen == pending.requests, "its sub-queues hold {seen} of {} requests", pending.requests);
    hold!(order.is_in_order(), "its sub-queues are out of order");
    hold!(order.len() + empty == sub_queues.len(), "it has a sub-queue in order that is gone");
    hold!(empty <= 1, "it keeps {empty} empty sub-queues");
    hold!(sub_queues.len() == by_key.len(), "it knows a sub-queue that is gone");
    Ok(())
}

/// Checks one sub-queue: each of its requests records the position at which it is found.
fn sub_queue_of(ledger: &Ledger, at: SubQueueIx, sub_queue: &SubQueue, by_arrival: bool) -> Result<usize, Broken> {
    let (mut seen, mut rows, mut level_before) = (0, 0, 0);
    for (number, level) in sub_queue.levels.iter() {
        hold!(number > level_before, "levels of {at:?} are out of order");
        level_before = number;
        let mut newest = None;
        let fresh = level.fresh.iter(ledger).map(|request_ix| (false, request_ix));
        for (late, request_ix) in fresh.chain(level.timed_out.iter(ledger).map(|request_ix| (true, request_ix))) {
            let request = &ledger[request_ix];
            let state = RequestState::Queued { sub_queue: at, timed_out: late };
            hold!(request.state == state, "{:?} should be in {state:?}, but is in {:?}", request.req, request.state);
            hold!(request.level == number, "{:?} is at level {number}", request.req);
            let in_order = late || !by_arrival || newest < Some(request.seq);
            hold!(in_order, "{:?} is behind a later one", request.req);
            newest = Some(request.seq);
            rows += u64::from(request.rows);
            seen += 1;
        }
    }
    hold!(rows == sub_queue.rows, "{at:?} counts {} rows of {rows}", sub_queue.rows);
    Ok(seen)
}

/// Where targets are kept, every request that may board is indexed by its target, and every sub-queue by its first
/// request.
fn targets(core: &Core, group: &VersionScheduler) -> Result<(), Broken> {
    let Version { pending, objective_ns, latest_starts, .. } = &group.version;
    let Some(targets) = &pending.targets else { return Ok(()) };
    let ready = pending.ready();
    hold!(targets.len() == ready, "it knows {} targets of {ready} requests", targets.len());
    let mut expected = 0;
    for (at, sub_queue) in &pending.sub_queues {
        let at = SubQueueIx(at as u32);
        for request_ix in sub_queue.iter(&core.ledger) {
            let request = &core.ledger[request_ix];
            hold!(targets.holds(request_ix, request), "{:?} is not known by its target", request.req);
        }
        expected += usize::from(objective_ns.is_some() && !sub_queue.is_empty());
        let first = targets.of_sub_queue(at).next().map(|request_ix| (request_ix, core.ledger[request_ix].seq));
        let is_filed = objective_ns.is_none() || latest_starts.is_filed(at, first);
        hold!(is_filed, "{at:?} is not filed by its first request");
    }
    let (filed, in_time, in_order) = latest_starts.sub_queues();
    hold!(filed == expected, "it files {filed} sub-queues of {expected}");
    hold!(in_time == in_order, "it has {in_time} sub-queues in time, {in_order} in order");
    Ok(())
}

/// Where run times decide which lengths share a batch, every request with lengths that may board is indexed by them.
fn lengths(core: &Core, group: &VersionScheduler) -> Result<(), Broken> {
    let pending = &group.version.pending;
    let Some(by_length) = &pending.by_length else { return Ok(()) };
    let waiting = pending.in_order().flat_map(|(_, sub_queue)| sub_queue.iter(&core.ledger));
    let mut expected = 0;
    for request_ix in waiting {
        let request = &core.ledger[request_ix];
        hold!(by_length.holds(request_ix, request), "{:?} is not known by its lengths", request.req);
        expected += usize::from(!request.lengths.is_empty());
    }
    hold!(by_length.len() == expected, "it knows the lengths of {} requests of {expected}", by_length.len());
    Ok(())
}

/// Requests of a sequence take turns one after the other, state slots are counted correctly, and every idle sequence
/// has a timer.
fn sequences(core: &Core, ix: GroupIx, group: &VersionScheduler) -> Result<(), Broken> {
    let Some(sequences) = &group.version.sequences else { return Ok(()) };
    let is_ready = |request_ix: RequestIx| {
        let request = own(core, ix).find(|(own, _)| *own == request_ix).map(|(_, request)| request);
        request.map(|request| !matches!(request.state, RequestState::Queued { sub_queue: NOT_THEIR_TURN, .. }))
    };
    sequences.check(is_ready)?;
    let mut idle: Vec<_> = sequences.idle().collect();
    let mut timed: Vec<_> = core.timers.idle(ix).collect();
    idle.sort_unstable();
    timed.sort_unstable();
    hold!(idle == timed, "it has the idle sequences {idle:?}, but those timed are {timed:?}");
    Ok(())
}

/// The requests in cells are exactly those that have boarded; queues and slots count their contents correctly.
fn cells(core: &Core, ix: GroupIx, group: &VersionScheduler) -> Result<(), Broken> {
    let Some(cellular) = group.work.cells() else { return Ok(()) };
    let aboard =
        own(core, ix).filter(|(_, request)| request.state == RequestState::Aboard).map(|(request_ix, _)| request_ix);
    let in_flight = cellular.tasks.iter().flat_map(|task| &task.nodes);
    let retried = cellular.tasks.iter().filter(|task| task.is_retry).flat_map(|task| &task.nodes);
    cellular.cells.check(aboard.collect(), in_flight, retried)?;
    let own_tasks = core.ledger.in_flight_tasks.iter().filter(|in_flight| in_flight.group == ix);
    let of_ledger: Vec<_> = own_tasks.map(|in_flight| (in_flight.task, in_flight.own_rows as usize)).collect();
    let of_cells: Vec<_> = cellular.tasks.iter().map(|task| (task.id, task.nodes.len())).collect();
    hold!(of_ledger == of_cells, "it runs {of_cells:?}, of which the ledger knows {of_ledger:?}");
    for (request_ix, request) in own(core, ix) {
        let waits = matches!(request.state, RequestState::Merged(_));
        hold!(
            waits == cellular.merged.contains(&request_ix) && (!waits || cellular.is_merged()),
            "the reply of {:?} ({request_ix:?}) waits without a request that it was merged with, or does not wait",
            request.req
        );
    }
    Ok(())
}

/// A response held for order has an unfinished request before it; any other held response waits for requests that it
/// was merged with.
fn order(core: &Core, ix: GroupIx, group: &VersionScheduler) -> Result<(), Broken> {
    let is_held = |request: &Request| matches!(request.state, RequestState::Held(_)) || request.unsent > 0;
    let Some(order) = &group.version.order else {
        let held = own(core, ix).any(|(_, request)| is_held(request));
        hold!(!held, "it holds a reply back without keeping order");
        return Ok(());
    };
    let request_ixs: Vec<RequestIx> = order.iter(&core.ledger).collect();
    hold!(
        request_ixs.len() == group.version.live,
        "its order has {} of {} requests",
        request_ixs.len(),
        group.version.live
    );
    let ascending = request_ixs.is_sorted_by_key(|&request_ix| core.ledger[request_ix].seq);
    hold!(ascending, "its order is not that of arrival");
    if let Some(&first) = request_ixs.first() {
        let request = &core.ledger[first];
        hold!(!is_held(request), "{:?} is first in order and is held back", request.req);
    }
    Ok(())
}

/// A group that could use an idle lane has one or waits for a time; while no lane is idle, it waits for a lane. A group
/// with no running task can always launch the work it has.
fn progress(core: &Core, ix: GroupIx, group: &VersionScheduler) -> Result<(), Broken> {
    hold!(!group.is_drained(), "it is drained, but not gone");
    let (for_lane, due) = core.arbiter.waits(ix);
    hold!(!for_lane || core.arbiter.idle_lanes() == 0, "it waits for a lane while one is idle");
    let for_units = core.arbiter.is_stalled(ix);
    let is_stuck = group.wants_lane() && group.version.running == 0 && !for_lane && due.is_none() && !for_units;
    hold!(!is_stuck, "it has work and waits for nothing");
    hold!(due.is_none_or(|due| due > core.now), "it waits for {due:?}, which has passed");
    let (waits, has_yielded) =
        group.claim.as_ref().map_or((false, false), |claim| (claim.waits_at.is_some(), claim.has_yielded));
    hold!(!for_units || waits && group.wants_lane() && !for_lane, "it waits for units that it does not want");
    hold!(!waits || for_units || for_lane && has_yielded, "it keeps units from others without a lane");
    hold!(!has_yielded || waits, "it has yielded units that it does not want");
    Ok(())
}

/// Units are held by tasks in flight alone, once each, on the task's own lane, for a group of the task.
fn units(core: &Core) -> Result<(), Broken> {
    let mut seen = BTreeSet::new();
    for (task, lane, instance) in core.limiting.holdings() {
        hold!(seen.insert(task), "{task:?} holds its units twice");
        let of_task = core.ledger.in_flight_tasks.iter().filter(|in_flight| in_flight.task == task);
        let claims = of_task.filter(|in_flight| in_flight.lane == lane);
        let mut claims = claims.filter_map(|in_flight| core.groups.get(in_flight.group)?.claim.as_ref());
        hold!(claims.any(|claim| claim.instance == instance), "{task:?} holds units that are none of its versions'");
    }
    for in_flight in &core.ledger.in_flight_tasks {
        let needs = core.groups.get(in_flight.group).is_some_and(|group| group.claim.is_some());
        hold!(!needs || seen.contains(&in_flight.task), "{:?} runs without its units", in_flight.task);
    }
    Ok(())
}
