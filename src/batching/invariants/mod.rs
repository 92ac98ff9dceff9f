//! What holds after every step, written once: tests and debug builds check the same sentences. A check walks over
//! everything and changes nothing.

mod travel;

use std::collections::{BTreeMap, BTreeSet};

use super::{
    arbiter::{GroupIx, Waiting},
    core::Core,
    group::Group,
    ledger::{Ledger, NEVER, Request, Slot, Stand},
    pending::{HELD, Line, LineIx},
    timers::Timers,
};

/// A broken invariant, in words.
pub(super) type Broken = String;

/// Checks that a sentence is true; says it otherwise.
macro_rules! hold {
    ($that:expr, $($sentence:tt)+) => {
        if !$that {
            return Err(format!($($sentence)+));
        }
    };
}
use hold;

/// Checks every invariant of a core between two steps.
pub(super) fn check(core: &Core) -> Result<(), Broken> {
    requests(core)?;
    lanes(core)?;
    wakes(core)?;
    for (ix, group) in &core.groups {
        counts(core, ix, group)?;
        lines(core, ix, group)?;
        group.policy.check(&group.pending, &core.ledger)?;
        targets(core, ix, group)?;
        travel::check(core, ix, group)?;
        cells(core, ix, group)?;
        sequences(core, ix, group)?;
        order(core, ix, group)?;
        progress(core, ix, group)?;
    }
    Ok(())
}

/// Every live request is found by its id, belongs to a group and has rows to go unless it is over.
fn requests(core: &Core) -> Result<(), Broken> {
    for (slot, request) in core.ledger.iter() {
        let req = request.req;
        hold!(core.ledger.find(req) == Some(slot), "{req:?} is not found in its slot");
        hold!(core.groups.contains(request.group), "{req:?} belongs to no group");
        let over = matches!(request.stand, Stand::Held(_));
        hold!(over || (1..=request.rows).contains(&request.left), "{req:?} has {} rows left", request.left);
        hold!(over || core.now() < request.expiry, "{req:?} lives past its deadline");
        let waits = matches!(request.stand, Stand::Queued { .. });
        hold!(!waits || core.now() < request.board_by, "{req:?} waits past its queue timeout");
    }
    Ok(())
}

/// A lane runs as many tasks as it may at most, and counts them; a group has no more than it may.
fn lanes(core: &Core) -> Result<(), Broken> {
    let flights = core.ledger.flights();
    let tasks_on: BTreeSet<_> = flights.iter().map(|flight| (flight.lane, flight.task)).collect();
    let mut known = 0;
    for (lane, tasks) in core.arbiter.lanes() {
        let own = tasks_on.iter().filter(|(on, _)| *on == lane.id).count();
        hold!(own == usize::from(tasks), "{:?} counts {tasks} tasks of {own}", lane.id);
        hold!(tasks <= lane.knobs.depth.max(1), "{:?} has {tasks} tasks", lane.id);
        known += own;
    }
    hold!(known == tasks_on.len(), "{} tasks are on lanes that are not there", tasks_on.len() - known);
    for (ix, group) in &core.groups {
        let own = flights.iter().filter(|flight| flight.group == ix);
        let tasks: BTreeSet<_> = own.clone().map(|flight| flight.task).collect();
        let running = own.filter(|flight| !flight.is_followed).count();
        hold!(running == tasks.len(), "group {ix} is in {} tasks, {running} of which end", tasks.len());
        hold!(running == group.running as usize, "group {ix} counts {} tasks of {running}", group.running);
        hold!(group.running <= group.max_in_flight, "group {ix} has {running} tasks in flight");
    }
    Ok(())
}

/// Every instant at which something is due has been announced, and the heap of alarms is bounded by the armed ones.
fn wakes(core: &Core) -> Result<(), Broken> {
    let alarms = || core.ledger.iter().map(|(_, request)| request.alarm).filter(|&at| at != NEVER);
    let idle = core.groups.iter().flat_map(|(ix, _)| core.timers.idle(ix)).map(|(until, _)| until);
    let earliest = alarms().chain(core.arbiter.earliest()).chain(idle).min();
    if let Some(due) = earliest {
        let announced = core.announced();
        hold!(announced.is_some_and(|at| at <= due), "{due} is due, but a wake is announced for {announced:?}");
    }
    let armed = alarms().count();
    let (entries, stale) = core.timers.load();
    hold!(entries == armed + stale, "{entries} alarms are {armed} armed and {stale} stale");
    hold!(entries <= Timers::bound(armed), "{entries} alarms are kept for {armed} armed ones");
    for (_, request) in core.ledger.iter() {
        let matters = match request.stand {
            Stand::Queued { .. } => request.board_by.min(request.expiry),
            Stand::Aboard | Stand::Held(_) => request.expiry,
        };
        hold!(request.alarm <= matters, "{:?} has no alarm for {matters}", request.req);
    }
    Ok(())
}

fn own(core: &Core, ix: GroupIx) -> impl Iterator<Item = (Slot, &Request)> {
    core.ledger.iter().filter(move |(_, request)| request.group == ix)
}

fn counts(core: &Core, ix: GroupIx, group: &Group) -> Result<(), Broken> {
    let live = own(core, ix).count();
    hold!(live == group.live, "group {ix} counts {} live requests of {live}", group.live);
    let queued = own(core, ix).filter(|(_, request)| matches!(request.stand, Stand::Queued { .. }));
    let (mut requests, mut rows, mut by_level) = (0, 0, BTreeMap::<u64, u32>::new());
    for (_, request) in queued {
        requests += 1;
        rows += u64::from(request.rows);
        *by_level.entry(request.level).or_default() += 1;
    }
    let pending = &group.pending;
    hold!(requests == pending.requests, "group {ix} counts {} pending requests of {requests}", pending.requests);
    hold!(rows == pending.rows, "group {ix} counts {} pending rows of {rows}", pending.rows);
    let levels = pending.by_level.iter().count();
    hold!(levels == by_level.len(), "group {ix} counts requests of {levels} levels, of {}", by_level.len());
    for (level, &waiting) in pending.by_level.iter() {
        let there = by_level.get(&level).copied().unwrap_or_default();
        hold!(waiting == there, "level {level} of group {ix} counts {waiting} requests of {there}");
        let limit = pending.rules.queue_of(level).max_queue_size;
        hold!(
            limit == 0 || waiting <= limit,
            "level {level} of group {ix} holds {waiting} requests of at most {limit}"
        );
    }
    Ok(())
}

/// Each queued request stands once, in its own line and level, fresh ones in order of arrival.
fn lines(core: &Core, ix: GroupIx, group: &Group) -> Result<(), Broken> {
    let (mut seen, mut empty) = (0, 0);
    let held = line_of(&core.ledger, HELD, &group.pending.held, true)?;
    for (at, line) in &group.pending.lines {
        let found = group.pending.by_mates.get(&line.mates).map(|&found| found as usize);
        hold!(found == Some(at), "line {at} of group {ix} is not found by its mates");
        empty += usize::from(line.is_empty());
        // Requests of sequences stand there in the order in which their turns came.
        seen += line_of(&core.ledger, at as LineIx, line, group.sequences.is_none())?;
    }
    let ready = group.pending.ready();
    hold!(seen == ready, "group {ix} counts {ready} requests that may board, of {seen}");
    seen += held;
    hold!(seen == group.pending.requests, "lines of group {ix} hold {seen} of {} requests", group.pending.requests);
    hold!(empty <= 1, "group {ix} keeps {empty} empty lines");
    hold!(group.pending.lines.len() == group.pending.by_mates.len(), "group {ix} knows a line that is gone");
    Ok(())
}

/// Requests of one line, each of which stands where it says.
fn line_of(ledger: &Ledger, at: LineIx, line: &Line, by_arrival: bool) -> Result<usize, Broken> {
    let (mut seen, mut rows, mut level_before) = (0, 0, 0);
    for (number, level) in line.levels.iter() {
        hold!(number > level_before, "levels of line {at} are out of order");
        level_before = number;
        let mut newest = None;
        let fresh = level.fresh.iter(ledger).map(|slot| (false, slot));
        for (late, slot) in fresh.chain(level.delayed.iter(ledger).map(|slot| (true, slot))) {
            let request = &ledger[slot];
            let stand = Stand::Queued { line: at, delayed: late };
            hold!(request.stand == stand, "{:?} stands at {stand:?} as {:?}", request.req, request.stand);
            hold!(request.level == number, "{:?} stands at level {number}", request.req);
            let in_order = late || !by_arrival || newest < Some(request.seq);
            hold!(in_order, "{:?} stands behind a later one", request.req);
            newest = Some(request.seq);
            rows += u64::from(request.rows);
            seen += 1;
        }
    }
    hold!(rows == line.rows, "line {at} counts {} rows of {rows}", line.rows);
    Ok(seen)
}

/// Requests that may board are known by their targets where that is kept, and lines by the first of them.
fn targets(core: &Core, ix: GroupIx, group: &Group) -> Result<(), Broken> {
    let Some(targets) = &group.pending.targets else { return Ok(()) };
    let ready = group.pending.ready();
    hold!(targets.len() == ready, "group {ix} knows {} targets of {ready} requests", targets.len());
    let mut filled = 0;
    for (at, line) in &group.pending.lines {
        let at = at as LineIx;
        for slot in line.iter(&core.ledger) {
            let request = &core.ledger[slot];
            let delayed = matches!(request.stand, Stand::Queued { delayed: true, .. });
            hold!(targets.holds(at, slot, request, delayed), "{:?} is not known by its target", request.req);
        }
        filled += usize::from(!line.is_empty());
        let first = targets.of_line(at).next().map(|slot| (slot, core.ledger[slot].seq));
        let is_filed = group.objective_ns.is_none() || group.latest_starts.is_filed(at, first);
        hold!(is_filed, "line {at} of group {ix} is not filed by its first request");
    }
    let (filed, in_time, in_order) = group.latest_starts.lines();
    let expected = if group.objective_ns.is_some() { filled } else { 0 };
    hold!(filed == expected, "group {ix} files {filed} lines of {expected}");
    hold!(in_time == in_order, "group {ix} has {in_time} lines in time, {in_order} in order");
    Ok(())
}

/// Requests of a sequence have their turns one after the other, slots are counted, and idle sequences are waited for.
fn sequences(core: &Core, ix: GroupIx, group: &Group) -> Result<(), Broken> {
    let Some(sequences) = &group.sequences else { return Ok(()) };
    let is_ready = |slot: Slot| {
        let request = own(core, ix).find(|(own, _)| *own == slot).map(|(_, request)| request);
        request.map(|request| !matches!(request.stand, Stand::Queued { line: HELD, .. }))
    };
    sequences.check(is_ready).map_err(|broken| format!("group {ix}: {broken}"))?;
    let mut idle: Vec<_> = sequences.idle().collect();
    let mut timed: Vec<_> = core.timers.idle(ix).collect();
    idle.sort_unstable();
    timed.sort_unstable();
    hold!(idle == timed, "group {ix} has the idle sequences {idle:?}, but those timed are {timed:?}");
    Ok(())
}

/// Requests that have boarded, and no others, are on their way through their cells; queues and slots count what there is.
fn cells(core: &Core, ix: GroupIx, group: &Group) -> Result<(), Broken> {
    let Some(cellular) = &group.cellular else { return Ok(()) };
    let aboard = own(core, ix).filter(|(_, request)| request.stand == Stand::Aboard).map(|(slot, _)| slot);
    let flights = core.ledger.flights().iter().filter(|flight| flight.group == ix && flight.is_retry);
    let retried = flights.flat_map(|flight| &flight.nodes);
    cellular.cells.check(aboard.collect(), retried).map_err(|broken| format!("group {ix}: {broken}"))?;
    for (slot, request) in own(core, ix).filter(|(slot, _)| cellular.keeps_reply(*slot)) {
        let waits = cellular.is_merged() && matches!(request.stand, Stand::Held(_));
        hold!(waits, "the reply in slot {slot} of {:?} waits for nobody that it was merged with", request.req);
    }
    Ok(())
}

/// Replies held for order stand behind a request that is not over; others that are held wait for those that they were merged with.
fn order(core: &Core, ix: GroupIx, group: &Group) -> Result<(), Broken> {
    let is_merged = |slot| group.cellular.as_ref().is_some_and(|cellular| cellular.keeps_reply(slot));
    let is_held = |slot: Slot, request: &Request| {
        (matches!(request.stand, Stand::Held(_)) && !is_merged(slot)) || request.unsent > 0
    };
    let Some(order) = &group.order else {
        let held = own(core, ix).any(|(slot, request)| is_held(slot, request));
        hold!(!held, "group {ix} holds a reply back without keeping order");
        return Ok(());
    };
    let slots: Vec<Slot> = order.iter(&core.ledger).collect();
    hold!(slots.len() == group.live, "the order of group {ix} has {} of {} requests", slots.len(), group.live);
    let ascending = slots.is_sorted_by_key(|&slot| core.ledger[slot].seq);
    hold!(ascending, "the order of group {ix} is not that of arrival");
    if let Some(&first) = slots.first() {
        let request = &core.ledger[first];
        hold!(!is_held(first, request), "{:?} is first in order and is held back", request.req);
    }
    Ok(())
}

/// A group that could use an idle lane has one or waits for a time; while no lane is idle it waits for one. A group of which
/// nothing runs can always launch what it has.
fn progress(core: &Core, ix: GroupIx, group: &Group) -> Result<(), Broken> {
    hold!(!group.is_drained(), "group {ix} is drained, but not gone");
    let waiting = core.arbiter.is_waiting(ix);
    let idle = core.arbiter.idle_lanes() > 0;
    hold!(!(idle && waiting == Waiting::ForLane), "group {ix} waits for a lane while one is idle");
    if group.wants_lane() && group.running == 0 {
        hold!(waiting != Waiting::Nothing, "group {ix} has work and waits for nothing");
    }
    if let Waiting::Until(due) = waiting {
        hold!(due > core.now(), "group {ix} waits for {due}, which has passed");
    }
    Ok(())
}
