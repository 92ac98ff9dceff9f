//! Pending requests: first in, first out within each priority level, followed by those of that level whose queue
//! timeout has passed (timeout action `DELAY`). Any request leaves in O(1). Batch sizes count rows; `max_queue_size`
//! counts requests.
//!
//! Requests that may share a batch (equal keys, and lengths that round up to the same class) are in one *sub-queue*. A
//! request that cannot join the batch being formed is in another sub-queue, so neither delays the other.

use std::collections::BTreeMap;

use paternoster_model::Lengths;
use slab::Slab;

use super::{
    by_length::ByLength,
    lengths::LengthGroups,
    levels::Levels,
    list::{IN_QUEUE, List},
    order::{QueueOrder, Rank},
    rate::Rate,
    rules::QueueRules,
    targets::Targets,
};
use crate::{
    Instant, RequestKey, ShapeClass,
    ids::{NOT_THEIR_TURN, RequestIx, SubQueueIx},
    ledger::{Ledger, Request, RequestState},
};

/// Which lengths may share a batch: those that round up to equal lengths.
#[derive(Debug)]
pub enum LengthBucketing {
    /// Any lengths may. A batch takes those that the model's runs have shown to be faster together.
    Learned,
    /// Any lengths may, whatever their padding costs.
    Any,
    /// To multiples of a width.
    Width(u32),
    /// The first length to the bound of its group (DVABatch's Policy I); the others unchanged.
    Groups(LengthGroups),
}

/// The properties that all requests of a sub-queue share.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BatchKey {
    pub(crate) key: RequestKey,
    pub(crate) class: ShapeClass,
}

impl BatchKey {
    /// Creates the key of a request by rounding its lengths.
    pub(crate) fn new(key: RequestKey, lengths: &Lengths, length_bucketing: &mut LengthBucketing) -> Self {
        let class = match length_bucketing {
            LengthBucketing::Learned | LengthBucketing::Any => Lengths::new(),
            LengthBucketing::Width(width) => {
                lengths.iter().map(|length| length.div_ceil(*width).saturating_mul(*width)).collect()
            }
            LengthBucketing::Groups(groups) => {
                let mut class = lengths.clone();
                class.iter_mut().take(1).for_each(|length| *length = groups.round(*length));
                class
            }
        };
        Self { key, class: ShapeClass(class) }
    }

    /// Equality for mostly empty keys, without a call of `memcmp` per field.
    fn agree(&self, other: &Self) -> bool {
        let ((one, two), (own, their)) = ((&self.key.0, &other.key.0), (&self.class.0, &other.class.0));
        one.len() == two.len()
            && own.len() == their.len()
            && one.iter().zip(two).all(|(one, two)| one == two)
            && own.iter().zip(their).all(|(own, their)| own == their)
    }
}

/// The requests of one level in a sub-queue.
#[derive(Debug, Default)]
pub(crate) struct Level {
    pub(crate) fresh: List<IN_QUEUE>,
    /// Requests past their queue timeout under `DELAY`, and those that the policy has postponed. They go behind the
    /// fresh requests of their level and before the next level.
    pub(crate) timed_out: List<IN_QUEUE>,
}

/// Requests that may share a batch.
#[derive(Debug, Default)]
pub(crate) struct SubQueue {
    pub(crate) batch_key: BatchKey,
    /// Levels that have requests.
    pub(crate) levels: Levels<Level>,
    pub(crate) rows: u64,
}

impl SubQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.levels.is_empty()
    }

    /// Returns its requests in boarding order.
    pub(crate) fn iter<'a>(&'a self, ledger: &'a Ledger) -> impl Iterator<Item = RequestIx> + 'a {
        self.levels.iter().flat_map(|(_, level)| level.fresh.iter(ledger).chain(level.timed_out.iter(ledger)))
    }

    /// Returns those of its best level that wait behind the others.
    pub(crate) fn behind<'a>(&'a self, ledger: &'a Ledger) -> impl Iterator<Item = RequestIx> + 'a {
        self.levels.iter().take(1).flat_map(|(_, level)| level.timed_out.iter(ledger))
    }

    pub(crate) fn rank(&self, ledger: &Ledger) -> Option<Rank> {
        let (level, timed_out, request_ix) = self.first()?;
        Some((level, timed_out, ledger[request_ix].seq))
    }

    /// Returns the level of the request that boards next, whether its queue timeout has passed, and its ledger index.
    fn first(&self) -> Option<(u64, bool, RequestIx)> {
        let (number, level) = self.levels.iter().next()?;
        match level.fresh.head() {
            Some(request_ix) => Some((number, false, request_ix)),
            None => Some((number, true, level.timed_out.head()?)),
        }
    }

    /// Returns the arrival time of its oldest request. Fresh requests are in arrival order, others in timeout
    /// order.
    pub(crate) fn oldest(&self, ledger: &Ledger) -> Option<Instant> {
        let heads = self.levels.iter().filter_map(|(_, level)| level.fresh.head());
        let timed_out = self.levels.iter().flat_map(|(_, level)| level.timed_out.iter(ledger));
        heads.chain(timed_out).map(|request_ix| ledger[request_ix].arrived).min()
    }

    fn drop_level_if_empty(&mut self, level: u64) {
        if self.levels.get(level).is_some_and(|entry| entry.fresh.is_empty() && entry.timed_out.is_empty()) {
            self.levels.remove(level);
        }
    }
}

/// Returns how many requests, given by their rows in order, together have at most `room` rows.
pub(crate) fn first_within(rows: impl IntoIterator<Item = u32>, room: u32) -> usize {
    let left = rows.into_iter().scan(room, |left, rows| {
        *left = left.checked_sub(rows)?;
        Some(())
    });
    left.count()
}

/// All requests of a version that have not boarded.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    pub(crate) rules: QueueRules,
    /// Whether its requests may move to another core.
    pub(crate) may_leave: bool,
    pub(crate) sub_queues: Slab<SubQueue>,
    /// Requests that wait for earlier requests of their sequence. They count like those in sub-queues.
    pub(crate) held: SubQueue,
    pub(crate) by_key: BTreeMap<BatchKey, SubQueueIx>,
    /// The sub-queue of the latest arrival. Most arrivals join it without a search.
    recent: Option<SubQueueIx>,
    /// An empty sub-queue that is kept, so that a group whose requests are all alike does not create one for each.
    spare: Option<SubQueueIx>,
    /// Number of waiting requests per level, all of them; levels without any have no entry.
    pub(crate) by_level: Levels<u32>,
    pub(crate) requests: usize,
    pub(crate) rows: u64,
    /// Number of requests in `held`.
    held_requests: usize,
    /// The order of the sub-queues.
    pub(crate) order: QueueOrder,
    /// Requests in sub-queues by target, if a policy or an objective needs it.
    pub(crate) targets: Option<Targets>,
    /// Requests in sub-queues by length, if run times decide which lengths share a batch.
    pub(crate) by_length: Option<ByLength>,
    /// The rate at which rows arrive.
    pub(crate) rate: Rate,
}

impl Pending {
    pub(crate) fn new(
        rules: QueueRules,
        targets: Option<Targets>,
        by_length: Option<ByLength>,
        may_leave: bool,
    ) -> Self {
        Self { rules, targets, by_length, may_leave, ..Self::default() }
    }

    pub(crate) fn sub_queue(&self, sub_queue: SubQueueIx) -> Option<&SubQueue> {
        self.sub_queues.get(sub_queue.at())
    }

    /// Returns the sub-queue with this key, if any of its requests wait.
    pub(crate) fn waiting_with(&self, batch_key: &BatchKey) -> Option<SubQueueIx> {
        let sub_queue = *self.by_key.get(batch_key)?;
        self.sub_queue(sub_queue).filter(|entry| !entry.is_empty()).map(|_| sub_queue)
    }

    /// Returns the requests of a sub-queue by level, fresh ones first, then by target. Empty unless the group keeps
    /// targets.
    pub(crate) fn by_target(&self, sub_queue: SubQueueIx) -> impl Iterator<Item = RequestIx> + '_ {
        self.targets.iter().flat_map(move |targets| targets.of_sub_queue(sub_queue))
    }

    /// Returns the requests of a sub-queue by target, or in boarding order if the group keeps no targets.
    pub(crate) fn by_target_or_arrival<'p>(
        &'p self,
        ledger: &'p Ledger,
        sub_queue: SubQueueIx,
    ) -> impl Iterator<Item = RequestIx> + 'p {
        let entry = self.sub_queue(sub_queue).filter(|_| self.targets.is_none());
        self.by_target(sub_queue).chain(entry.into_iter().flat_map(|entry| entry.iter(ledger)))
    }

    /// Returns the sub-queues that are not empty, starting with the one that boards next.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = (SubQueueIx, &SubQueue)> {
        self.order.sub_queues().filter_map(|sub_queue| Some((sub_queue, self.sub_queue(sub_queue)?)))
    }

    fn sub_queue_mut(&mut self, sub_queue: SubQueueIx) -> &mut SubQueue {
        if sub_queue == NOT_THEIR_TURN { &mut self.held } else { &mut self.sub_queues[sub_queue.at()] }
    }

    /// Returns the number of requests that may board.
    pub(crate) fn ready(&self) -> usize {
        self.requests - self.held_requests
    }

    /// Returns the highest level with a waiting request.
    pub(crate) fn best_level(&self) -> Option<u64> {
        self.by_level.iter().next().map(|(level, _)| level)
    }

    /// Whether the level has reached its maximum number of requests.
    pub(crate) fn is_full(&self, level: u64) -> bool {
        let limit = self.rules.queue_of(level).max_queue_size;
        limit != 0 && self.by_level.get(level).is_some_and(|waiting| *waiting >= limit)
    }

    /// Returns the sub-queue with this key; creates it if missing.
    pub(crate) fn sub_queue_for(&mut self, batch_key: BatchKey) -> SubQueueIx {
        if let Some(recent) = self.recent
            && self.sub_queue(recent).is_some_and(|sub_queue| sub_queue.batch_key.agree(&batch_key))
        {
            return recent;
        }
        let sub_queues = &mut self.sub_queues;
        let sub_queue = *self.by_key.entry(batch_key).or_insert_with_key(|batch_key| {
            SubQueueIx(sub_queues.insert(SubQueue { batch_key: batch_key.clone(), ..SubQueue::default() }) as u32)
        });
        self.recent = Some(sub_queue);
        sub_queue
    }

    /// Appends a request of the ledger to its level in `sub_queue`.
    pub(crate) fn push(&mut self, ledger: &mut Ledger, request_ix: RequestIx, sub_queue: SubQueueIx) {
        let request = &mut ledger[request_ix];
        request.state = RequestState::Queued { sub_queue, timed_out: false };
        let (level, rows) = (request.level, u64::from(request.rows));
        let entry = self.sub_queue_mut(sub_queue);
        entry.rows += rows;
        entry.levels.entry(level).fresh.push_back(ledger, request_ix);
        *self.by_level.entry(level) += 1;
        self.requests += 1;
        ledger.may_leave += usize::from(self.may_leave);
        self.rows += rows;
        self.held_requests += usize::from(sub_queue == NOT_THEIR_TURN);
        self.index(&ledger[request_ix], request_ix);
        if self.spare == Some(sub_queue) {
            self.spare = None;
        }
        self.refile(ledger, sub_queue);
    }

    /// Refiles a sub-queue whose first request may have changed.
    fn refile(&mut self, ledger: &Ledger, sub_queue: SubQueueIx) {
        if let Some(entry) = self.sub_queues.get(sub_queue.at()) {
            self.order.file(sub_queue, entry.rank(ledger));
        }
    }

    /// Removes a request from its sub-queue. An empty sub-queue stays until it is retired.
    pub(crate) fn remove(&mut self, ledger: &mut Ledger, request_ix: RequestIx) {
        let RequestState::Queued { sub_queue, .. } = ledger[request_ix].state else {
            debug_assert!(false, "only a queued request leaves the queue");
            return;
        };
        self.detach(ledger, request_ix);
        self.refile(ledger, sub_queue);
    }

    /// Removes up to `requests` requests from `sub_queue`, in boarding order, and passes each to `board`.
    pub(crate) fn pop(
        &mut self,
        ledger: &mut Ledger,
        sub_queue: SubQueueIx,
        requests: u32,
        mut board: impl FnMut(&mut Ledger, RequestIx),
    ) {
        for _ in 0..requests {
            let Some((_, _, request_ix)) = self.sub_queues[sub_queue.at()].first() else { break };
            self.detach(ledger, request_ix);
            board(ledger, request_ix);
        }
        self.refile(ledger, sub_queue);
    }

    fn detach(&mut self, ledger: &mut Ledger, request_ix: RequestIx) {
        let request = &ledger[request_ix];
        let RequestState::Queued { sub_queue, timed_out } = request.state else { return };
        let (level, rows) = (request.level, u64::from(request.rows));
        let entry = self.sub_queue_mut(sub_queue);
        entry.rows -= rows;
        let lists = entry.levels.entry(level);
        if timed_out {
            lists.timed_out.remove(ledger, request_ix)
        } else {
            lists.fresh.remove(ledger, request_ix)
        }
        entry.drop_level_if_empty(level);
        let waiting = self.by_level.entry(level);
        *waiting -= 1;
        if *waiting == 0 {
            self.by_level.remove(level);
        }
        self.requests -= 1;
        ledger.may_leave -= usize::from(self.may_leave);
        self.rows -= rows;
        self.held_requests -= usize::from(sub_queue == NOT_THEIR_TURN);
        self.unindex(&ledger[request_ix], request_ix);
    }

    /// Files a queued request by target and by length, where they are kept.
    fn index(&mut self, request: &Request, request_ix: RequestIx) {
        if let Some(targets) = &mut self.targets {
            targets.insert(request_ix, request);
        }
        if let Some(by_length) = &mut self.by_length {
            by_length.insert(request_ix, request);
        }
    }

    /// Undoes [`Self::index`], before the request's state changes.
    fn unindex(&mut self, request: &Request, request_ix: RequestIx) {
        if let Some(targets) = &mut self.targets {
            targets.remove(request_ix, request);
        }
        if let Some(by_length) = &mut self.by_length {
            by_length.remove(request_ix, request);
        }
    }

    /// Moves a fresh request behind the others of its level (`DELAY`, or because the policy says so).
    pub(crate) fn delay(&mut self, ledger: &mut Ledger, request_ix: RequestIx, sub_queue: SubQueueIx) {
        let level = self.sub_queue_mut(sub_queue).levels.entry(ledger[request_ix].level);
        level.fresh.remove(ledger, request_ix);
        level.timed_out.push_back(ledger, request_ix);
        self.unindex(&ledger[request_ix], request_ix);
        ledger[request_ix].state = RequestState::Queued { sub_queue, timed_out: true };
        self.index(&ledger[request_ix], request_ix);
        self.refile(ledger, sub_queue);
    }

    /// Keeps an empty sub-queue as the spare one, and removes the previous spare.
    pub(crate) fn retire(&mut self, sub_queue: SubQueueIx) {
        let is_empty = self.sub_queue(sub_queue).is_some_and(SubQueue::is_empty);
        if !is_empty || self.spare == Some(sub_queue) {
            return;
        }
        if let Some(previous) = self.spare.replace(sub_queue) {
            let removed = self.sub_queues.remove(previous.at());
            self.by_key.remove(&removed.batch_key);
            if self.recent == Some(previous) {
                self.recent = None;
            }
        }
    }
}
