//! A group: one loaded version and the work that its requests are in. `Core` routes every event that names a request or
//! a version to its group. Waiting requests are handled here; running requests are handled by [`Work`].

use std::mem;

use super::{
    Action, Actions, Arrival, Counters, End, Instant, Knobs, LaneId, ModelId, Rejection, TimeoutAction,
    ids::{GroupIx, NOT_THEIR_TURN, RequestIx},
    ledger::{Ledger, Request, RequestState},
    policy::RequestView,
    queue::BatchKey,
    rate_limiter::Claim,
    timers::Timers,
    version::{StepContext, Tightest, Version},
    work::Work,
};

/// One loaded version with its work.
#[derive(Debug)]
pub(super) struct VersionScheduler {
    pub(super) version: Version,
    pub(super) work: Work,
    /// The units that its tasks need, if they need any.
    pub(super) claim: Option<Claim>,
    draining: bool,
}

impl VersionScheduler {
    pub(super) fn new(model: ModelId, ix: GroupIx, knobs: &Knobs, claim: Option<Claim>) -> Self {
        Self { version: Version::new(model, ix, knobs), work: Work::new(knobs), claim, draining: false }
    }

    /// Returns the work together with the context through which a step changes it.
    pub(super) fn at<'a>(
        &'a mut self,
        now: Instant,
        ledger: &'a mut Ledger,
        timers: &'a mut Timers,
        actions: &'a mut Actions,
    ) -> (&'a mut Work, StepContext<'a>) {
        (&mut self.work, StepContext { now, version: &mut self.version, ledger, timers, actions })
    }

    pub(super) fn drain(&mut self) {
        self.draining = true;
        self.version.hold = None;
    }

    /// Whether the group is drained and can be removed.
    pub(super) fn is_drained(&self) -> bool {
        self.draining && self.version.live == 0 && self.version.running == 0
    }

    /// Whether the group could use a lane, judged without asking the policy.
    pub(super) fn wants_lane(&self) -> bool {
        self.version.may_run() && (self.version.pending.ready() > 0 || self.work.has_ready())
    }

    /// Whether the policy's next decision depends on the slack of other models.
    pub(super) fn asks_for_neighbours(&self) -> bool {
        self.work.batches().is_some_and(|batches| batches.asks_for_neighbours(&self.version))
    }

    /// Whether the group may launch work that is pinned to this lane.
    pub(super) fn has_ready_on(&self, lane: LaneId) -> bool {
        self.version.may_run() && self.work.cells().is_some_and(|cells| cells.has_ready_on(lane))
    }

    pub(super) fn counters(&self) -> Counters {
        let Version { pending, live, running, totals, .. } = &self.version;
        Counters {
            pending_requests: pending.requests as u64,
            pending_rows: pending.rows,
            live_requests: *live as u64,
            running_tasks: u64::from(*running),
            ..*totals
        }
    }

    /// Whether a target will be missed unless this group runs next, that is, whether its slack is shorter than one
    /// stage.
    pub(super) fn is_urgent(&mut self, now: Instant, ledger: &Ledger) -> bool {
        self.tightest(now, ledger).is_some_and(|tightest| tightest.slack_ns < tightest.stage_ns)
    }

    /// Returns the slack before the first reachable target of this group is missed, or `None` without targets.
    pub(super) fn tightest(&mut self, now: Instant, ledger: &Ledger) -> Option<Tightest> {
        self.version.objective_ns?;
        let waiting = self.version.tightest_waiting(now, ledger);
        let aboard = self.work.tightest(&self.version, now, ledger);
        waiting.into_iter().chain(aboard).min_by_key(|tightest| tightest.slack_ns)
    }
}

// ## arrival => (pending | ended)
/// Moves the parts that the request keeps out of `arrival`, to avoid a copy.
pub(super) fn arrive(work: &mut Work, context: &mut StepContext<'_>, arrival: &mut Arrival) {
    let version = &mut *context.version;
    let level = version.pending.rules.level_of(arrival.priority);
    let (arrived, queue_deadline) = match arrival.first {
        Some(first) => (first.at, first.queue_deadline.unwrap_or(Instant::NEVER)),
        None => (context.now, version.pending.rules.queue_deadline(level, context.now, arrival.queue_deadline)),
    };
    let expected_ns = version.expected_ns(arrival);
    let deadline = arrival.deadline.unwrap_or(Instant::NEVER);
    let has_expired = (deadline <= context.now).then_some(End::Expired);
    let refusal = has_expired.or_else(|| refusal(work, version, arrival, level));
    let batch_key = match &mut version.merges {
        Some(length_bucketing) => BatchKey::new(mem::take(&mut arrival.key), &arrival.lengths, length_bucketing),
        None => BatchKey::default(),
    };
    // A refused request is recorded too, because its response may have to wait for earlier ones.
    let seq = context.ledger.next_seq();
    let request_ix = context.ledger.insert(Request {
        req: arrival.req,
        group: version.ix,
        seq,
        rows: arrival.rows,
        left: arrival.rows,
        lengths: mem::take(&mut arrival.lengths),
        graph: mem::take(&mut arrival.graph),
        memory: arrival.memory.take(),
        sequence: None,
        level,
        arrived,
        boarded: Instant::NEVER,
        queue_deadline,
        deadline,
        due: arrival.deadline.map_or(Instant::NEVER, |deadline| deadline - arrival.needed_after_ns),
        alarm: Instant::NEVER,
        state: RequestState::Aboard,
        expected_ns,
        boarding: 0,
        emitted: 0,
        unsent: 0,
        links: Default::default(),
    });
    version.live += 1;
    if let Some(order) = &mut version.order {
        order.push_back(context.ledger, request_ix);
    }
    if let Some(end) = refusal {
        context.end(request_ix, end);
        return;
    }
    let pending = &mut version.pending;
    let sub_queue = if arrival.sequence.is_some() { NOT_THEIR_TURN } else { pending.sub_queue_for(batch_key) };
    pending.push(context.ledger, request_ix, sub_queue);
    pending.rate.add(context.now, arrival.rows);
    work.arrived(
        context.now,
        sub_queue,
        RequestView::new(request_ix, &context.ledger[request_ix], version.objective_ns),
    );
    if let (Some(sequences), Some(request)) = (&mut version.sequences, &arrival.sequence) {
        let (ix, sequence, change) = sequences.join(context.now, request_ix, request);
        context.ledger[request_ix].sequence = Some(ix);
        context.actions.push(Action::Joined { req: arrival.req, sequence });
        context.apply(change);
    }
    context.version.release_hold();
    context.timers.arm(context.ledger, request_ix, queue_deadline.min(deadline));
    // The queue timeout may have passed already: it is zero, or the request was recalled from another core.
    if queue_deadline <= context.now {
        context.timers.disarm(context.ledger, request_ix);
        alarm(work, context, request_ix);
    } else {
        context.version.touched(context.ledger, sub_queue);
    }
}

/// Returns why a request is refused before it enters the queue. A size that breaks the contract ends as `Failed`, since
/// no batch could ever hold the request.
fn refusal(work: &Work, version: &Version, arrival: &Arrival, level: u64) -> Option<End> {
    if !(1..=version.max_rows).contains(&arrival.rows) {
        return Some(End::Failed);
    }
    if let Some(end) = work.refusal(arrival) {
        return Some(end);
    }
    match (&version.sequences, &arrival.sequence) {
        (Some(sequences), Some(request)) if !sequences.admits(request) => {
            return Some(End::Rejected(Rejection::NotStarted));
        }
        (Some(_), None) | (None, Some(_)) => return Some(End::Failed),
        _ => {}
    }
    version.pending.is_full(level).then_some(End::Rejected(Rejection::QueueFull))
}

/// Handles an alarm of a request: its queue timeout, its deadline, or a time that no longer matters.
pub(super) fn alarm(work: &mut Work, context: &mut StepContext<'_>, request_ix: RequestIx) {
    let request = &context.ledger[request_ix];
    let (level, queue_deadline, deadline) = (request.level, request.queue_deadline, request.deadline);
    if let RequestState::Queued { .. } = request.state
        && queue_deadline <= context.now
        // The deadline wins a tie: an expired request must not be counted as rejected or delayed.
        && queue_deadline < deadline
    {
        if context.version.pending.rules.queue_of(level).timeout_action == TimeoutAction::Reject {
            work.end(context, request_ix, End::Rejected(Rejection::QueueTimeout));
            return;
        }
        context.version.totals.delayed += 1;
        context.ledger[request_ix].queue_deadline = Instant::NEVER;
        context.postpone(request_ix);
    }
    if deadline <= context.now {
        work.end(context, request_ix, End::Expired);
    } else {
        context.timers.arm(context.ledger, request_ix, deadline);
    }
}
