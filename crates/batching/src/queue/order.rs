//! The order of a queue's sub-queues: which one boards next. The pending queue owns it, and refiles a sub-queue
//! whenever its first request changes. Policies read it and keep no copy.

use std::collections::BTreeSet;

use crate::ids::SubQueueIx;

/// Rank of a sub-queue in its version: by the level of its first request, then whether that request waits behind the
/// others of its level, then arrival order.
pub(crate) type Rank = (u64, bool, u64);

/// Sub-queues that are not empty, by the rank of their first requests.
#[derive(Debug, Default)]
pub(crate) struct QueueOrder {
    /// The sub-queue that boards next. Stored separately because most models have only one sub-queue, which then needs
    /// no tree.
    first: Option<(Rank, SubQueueIx)>,
    others: BTreeSet<(Rank, SubQueueIx)>,
    /// Indexed by sub-queue.
    ranks: Vec<Option<Rank>>,
}

impl QueueOrder {
    /// Files a sub-queue by the rank of its first request; `None` removes an empty sub-queue.
    pub(crate) fn file(&mut self, sub_queue: SubQueueIx, rank: Option<Rank>) {
        let at = sub_queue.at();
        if self.ranks.len() <= at {
            self.ranks.resize(at + 1, None);
        }
        if self.ranks[at] == rank {
            return;
        }
        let before = std::mem::replace(&mut self.ranks[at], rank);
        if self.first.is_some_and(|(_, first)| first == sub_queue) {
            self.first = None;
        } else if let Some(before) = before {
            self.others.remove(&(before, sub_queue));
        }
        let Some(filed) = rank.map(|rank| (rank, sub_queue)) else { return self.restore_first() };
        if self.first.is_some_and(|first| first < filed) {
            self.others.insert(filed);
        } else {
            let displaced = self.first.replace(filed);
            self.others.extend(displaced);
            self.restore_first();
        }
    }

    /// Restores the invariant that `first` is before all others.
    fn restore_first(&mut self) {
        let Some(&next) = self.others.first() else { return };
        if self.first.is_none_or(|first| next < first) {
            self.others.remove(&next);
            let displaced = self.first.replace(next);
            self.others.extend(displaced);
        }
    }

    /// Returns the sub-queues in order.
    pub(crate) fn sub_queues(&self) -> impl Iterator<Item = SubQueueIx> + '_ {
        self.first.iter().chain(&self.others).map(|&(_, sub_queue)| sub_queue)
    }

    /// Whether a sub-queue is filed by this rank, for checks.
    pub(crate) fn is_filed(&self, sub_queue: SubQueueIx, rank: Option<Rank>) -> bool {
        let filed = self.ranks.get(sub_queue.at()).copied().flatten();
        let is_there = |rank| self.first == Some((rank, sub_queue)) || self.others.contains(&(rank, sub_queue));
        filed == rank && rank.is_none_or(is_there)
    }

    /// Whether `first` is before all others, for checks.
    pub(crate) fn is_in_order(&self) -> bool {
        self.others.first().is_none_or(|next| self.first.is_some_and(|first| first < *next))
    }

    pub(crate) fn len(&self) -> usize {
        self.first.iter().len() + self.others.len()
    }
}
