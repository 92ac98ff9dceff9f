//! Doubly linked lists threaded through the ledger's requests: any member leaves in O(1), without allocation.

use crate::{
    ids::RequestIx,
    ledger::{Ledger, Links, NONE},
};

/// The list of a pending queue, among the links of a request.
pub(crate) const IN_QUEUE: usize = 0;
/// The list of a version's requests in arrival order.
pub(crate) const IN_ORDER: usize = 1;

/// A first-in first-out list from which any member may leave. `CHAIN` selects which of a request's links it uses.
#[derive(Debug)]
pub(crate) struct List<const CHAIN: usize> {
    head: RequestIx,
    tail: RequestIx,
}

impl<const CHAIN: usize> Default for List<CHAIN> {
    fn default() -> Self {
        Self { head: NONE, tail: NONE }
    }
}

impl<const CHAIN: usize> List<CHAIN> {
    pub(crate) fn is_empty(&self) -> bool {
        self.head == NONE
    }

    pub(crate) fn head(&self) -> Option<RequestIx> {
        (self.head != NONE).then_some(self.head)
    }

    pub(crate) fn push_back(&mut self, ledger: &mut Ledger, request_ix: RequestIx) {
        ledger[request_ix].links[CHAIN] = Links { prev: self.tail, next: NONE };
        match self.tail {
            NONE => self.head = request_ix,
            tail => ledger[tail].links[CHAIN].next = request_ix,
        }
        self.tail = request_ix;
    }

    /// Removes a member. `request_ix` must be in this list.
    pub(crate) fn remove(&mut self, ledger: &mut Ledger, request_ix: RequestIx) {
        let links = std::mem::take(&mut ledger[request_ix].links[CHAIN]);
        match links.prev {
            NONE => self.head = links.next,
            prev => ledger[prev].links[CHAIN].next = links.next,
        }
        match links.next {
            NONE => self.tail = links.prev,
            next => ledger[next].links[CHAIN].prev = links.prev,
        }
    }

    pub(crate) fn iter<'a>(&self, ledger: &'a Ledger) -> impl Iterator<Item = RequestIx> + use<'a, CHAIN> {
        let some = |request_ix: RequestIx| (request_ix != NONE).then_some(request_ix);
        std::iter::successors(some(self.head), move |&request_ix| some(ledger[request_ix].links[CHAIN].next))
    }
}
