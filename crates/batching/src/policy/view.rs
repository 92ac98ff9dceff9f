//! What policies of other crates read: the methods of [`View`] and of what they return.

use paternoster_model::{CellId, Lengths};

use super::{Decision, View, candidate::CandidateBatch};
use crate::{
    Instant, Ns, ReqId, ShapeClass,
    cost::Quantile,
    ids::{PartIx, RequestIx, SubQueueIx},
    ledger::Request,
    queue::SubQueue,
    table::batch::{Batch, Part},
};

impl<'a> View<'a> {
    /// Returns the time. A policy has no other clock.
    #[inline]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns the rows of the version's largest batch.
    #[inline]
    pub fn max_rows(&self) -> u32 {
        self.max_rows
    }

    /// Returns the latency objective, from arrival to completion.
    #[inline]
    pub fn objective_ns(&self) -> Option<Ns> {
        self.objective_ns
    }

    /// Returns the sub-queues that are not empty, starting with the one that boards next.
    pub fn sub_queues(&self) -> impl Iterator<Item = SubQueueView<'_>> {
        self.pending.in_order().map(move |(ix, entry)| SubQueueView { view: self, ix, entry })
    }

    /// Returns the number of rows that wait in all sub-queues.
    #[inline]
    pub fn waiting_rows(&self) -> u64 {
        self.pending.rows
    }

    /// Returns the rate at which rows arrive, in rows per nanosecond.
    #[inline]
    pub fn arrival_rate(&self) -> f64 {
        self.pending.rate.at(self.now)
    }

    /// Returns the part of a batch under way that would run on the lane, if no new batch does.
    #[inline]
    pub fn ready_part(&self) -> Option<PartView<'a>> {
        self.ready.map(|part| PartView { part })
    }

    /// Whether a new batch can be launched on the lane.
    #[inline]
    pub fn can_launch_new(&self) -> bool {
        self.enterable
    }

    /// Whether the lane has no task.
    #[inline]
    pub fn lane_is_idle(&self) -> bool {
        self.lane_is_idle
    }

    /// Returns the number of lanes that the version may use at once, at least 1.
    #[inline]
    pub fn lanes(&self) -> u32 {
        self.lanes
    }

    /// Returns the number of idle lanes besides this one that the version may use.
    #[inline]
    pub fn idle_besides(&self) -> u32 {
        self.idle_besides
    }

    /// Returns the least slack of any other model; `None` without targets, or unless the policy [asks for
    /// it](super::BatchPolicy::asks_for_neighbours).
    #[inline]
    pub fn neighbours_slack_ns(&self) -> Option<Ns> {
        self.neighbours_slack_ns
    }

    /// Returns the number of stages, at least 1.
    #[inline]
    pub fn stage_count(&self) -> u16 {
        self.stages.count()
    }

    /// Returns the predicted time of one stage for a batch of this size and padded shape; `None` if no time of the
    /// stage is known.
    pub fn stage_ns(&self, stage: CellId, rows: u32, class: &ShapeClass, quantile: Quantile) -> Option<Ns> {
        self.costs.predict(stage, rows, class, quantile)
    }

    /// Returns the predicted time of all stages, one after another.
    pub fn batch_ns(&self, rows: u32, class: &ShapeClass, quantile: Quantile) -> Option<Ns> {
        self.costs.whole(rows, class, quantile)
    }
}

/// The waiting requests of a sub-queue. They may share a batch.
#[derive(Clone, Copy, Debug)]
pub struct SubQueueView<'v> {
    view: &'v View<'v>,
    ix: SubQueueIx,
    entry: &'v SubQueue,
}

impl<'v> SubQueueView<'v> {
    /// Returns its index, for a [`Decision`].
    #[inline]
    pub fn ix(&self) -> SubQueueIx {
        self.ix
    }

    /// Returns the number of its rows.
    #[inline]
    pub fn rows(&self) -> u64 {
        self.entry.rows
    }

    /// Returns the priority level of the request that boards next, 1 = highest.
    #[inline]
    pub fn level(&self) -> u64 {
        self.view.level_of(self.ix)
    }

    /// Returns the arrival time of its oldest request.
    #[inline]
    pub fn oldest_arrival(&self) -> Option<Instant> {
        self.entry.oldest(self.view.ledger)
    }

    /// Returns its requests in boarding order. There may be many: a policy should look at a batch of them at most.
    pub fn requests(self) -> impl Iterator<Item = RequestView<'v>> {
        let view = self.view;
        self.entry.iter(view.ledger).map(move |request_ix| RequestView::of(view, request_ix))
    }

    /// Returns its requests by level and then by target; none unless the policy [requires
    /// targets](super::Requirements::targets) or the version has an objective.
    pub fn by_target(self) -> impl Iterator<Item = RequestView<'v>> {
        let view = self.view;
        view.pending.by_target(self.ix).map(move |request_ix| RequestView::of(view, request_ix))
    }

    /// Returns those that may board as one batch.
    pub fn candidates(self) -> Candidates<'v> {
        let Self { view, ix, entry } = self;
        Candidates { view, ix, batch: CandidateBatch::of(view, ix, entry, view.max_rows) }
    }
}

/// The requests of a sub-queue that may board as one batch, at least one. Where run times decide which lengths share a
/// batch, they are those whose lengths gain from it, and at most a largest batch; else all of the sub-queue.
#[derive(Debug)]
pub struct Candidates<'v> {
    view: &'v View<'v>,
    ix: SubQueueIx,
    batch: CandidateBatch<'v>,
}

impl<'v> Candidates<'v> {
    /// Returns them in boarding order.
    pub fn requests(&self) -> impl Iterator<Item = RequestView<'v>> {
        let view = self.view;
        self.batch.iter(view).map(move |request_ix| RequestView::of(view, request_ix))
    }

    /// Returns the number of their rows.
    #[inline]
    pub fn rows(&self) -> u64 {
        self.batch.rows()
    }

    /// Returns the padded shape that they would have as a batch. It is estimated from the first request if all of the
    /// sub-queue are candidates.
    pub fn class(&self) -> ShapeClass {
        self.batch.class(self.view)
    }

    /// Whether requests of the sub-queue stay behind although there was room, because their lengths differ too much.
    #[inline]
    pub fn leaves_others(&self) -> bool {
        self.batch.leaves_others()
    }

    /// Returns how many of them, in boarding order, together have at most `rows` rows.
    pub fn within(&self, rows: u32) -> u32 {
        self.batch.within(self.view, rows).0
    }

    /// Decides to launch the first `requests` of them as a new batch: at least one, and at most a largest batch.
    pub fn launch(self, requests: u32) -> Decision {
        let requests = requests.min(self.within(self.view.max_rows)).max(1);
        Decision::New { sub_queue: self.ix, selection: self.batch.select(requests), accepts_newcomers: true }
    }
}

/// A request that has not boarded.
#[derive(Clone, Copy, Debug)]
pub struct RequestView<'v> {
    ix: RequestIx,
    pub(crate) request: &'v Request,
    objective_ns: Option<Ns>,
}

impl<'v> RequestView<'v> {
    pub(crate) fn new(ix: RequestIx, request: &'v Request, objective_ns: Option<Ns>) -> Self {
        Self { ix, request, objective_ns }
    }

    fn of(view: &'v View<'v>, ix: RequestIx) -> Self {
        Self::new(ix, &view.ledger[ix], view.objective_ns)
    }

    /// Returns its index, for a [`Decision`].
    #[inline]
    pub fn ix(&self) -> RequestIx {
        self.ix
    }

    /// Returns the id that its driver gave it.
    #[inline]
    pub fn id(&self) -> ReqId {
        self.request.req
    }

    /// Returns the number of its rows.
    #[inline]
    pub fn rows(&self) -> u32 {
        self.request.rows
    }

    /// Returns its lengths along the padded axes of its model.
    #[inline]
    pub fn lengths(&self) -> &'v Lengths {
        &self.request.lengths
    }

    /// Returns its priority level, 1 = highest.
    #[inline]
    pub fn level(&self) -> u64 {
        self.request.level
    }

    /// Returns the time of its arrival.
    #[inline]
    pub fn arrived(&self) -> Instant {
        self.request.arrived
    }

    /// Returns the client's deadline. The request ends then in whatever state it is.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        self.request.deadline.unless_never()
    }

    /// Returns the time at which it should complete: the earlier of arrival plus objective, and the deadline less what
    /// is needed after the request.
    #[inline]
    pub fn target(&self) -> Option<Instant> {
        self.request.target(self.objective_ns).unless_never()
    }

    /// Whether it waits behind the others of its level, because its queue timeout has passed or because the policy has
    /// [postponed](Decision::Postpone) it.
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.request.is_behind()
    }
}

/// A part of a batch under way.
#[derive(Clone, Copy, Debug)]
pub struct PartView<'v> {
    part: &'v Part,
}

impl PartView<'_> {
    /// Returns its index, for a [`Decision`].
    #[inline]
    pub fn ix(&self) -> PartIx {
        self.part.ix
    }

    /// Returns the best priority level of its requests, 1 = highest.
    #[inline]
    pub fn level(&self) -> u64 {
        self.part.level
    }

    /// Returns the number of its rows.
    pub fn rows(&self) -> u32 {
        self.part.row_count()
    }

    /// Returns the stage that its least advanced rows run next.
    pub fn next_stage(&self) -> Option<CellId> {
        self.part.foot().map(|foot| foot.next)
    }
}

/// A batch under way.
#[derive(Clone, Copy, Debug)]
pub struct BatchView<'v> {
    pub(crate) batch: &'v Batch,
    /// Number of the version's stages.
    pub(crate) stages: u16,
}

impl<'v> BatchView<'v> {
    /// Returns the time at which it was formed.
    #[inline]
    pub fn created(&self) -> Instant {
        self.batch.created
    }

    /// Returns its parts, oldest first: one, unless it has been split.
    pub fn parts(self) -> impl Iterator<Item = PartView<'v>> {
        self.batch.parts.iter().map(|part| PartView { part })
    }

    /// Returns the number of its version's stages.
    #[inline]
    pub fn stage_count(&self) -> u16 {
        self.stages
    }
}
