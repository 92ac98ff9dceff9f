//! Doubly linked lists threaded through the ledger's requests: any member leaves in O(1), without allocation.

use std::marker::PhantomData;

use crate::batching::{
    ids::RequestIx,
    ledger::{Ledger, Links, NONE, Request},
};

/// Selects which of a request's links a list uses.
pub(in crate::batching) trait Chain {
    /// Returns the request's links in this list.
    fn links(request: &mut Request) -> &mut Links;
    /// The same, read-only.
    fn peek(request: &Request) -> Links;
}

/// The list of a pending queue.
#[derive(Debug)]
pub(in crate::batching) struct InQueue;

impl Chain for InQueue {
    fn links(request: &mut Request) -> &mut Links {
        &mut request.in_queue
    }

    fn peek(request: &Request) -> Links {
        request.in_queue
    }
}

/// The list of a version's requests in arrival order.
#[derive(Debug)]
pub(in crate::batching) struct InOrder;

impl Chain for InOrder {
    fn links(request: &mut Request) -> &mut Links {
        &mut request.in_order
    }

    fn peek(request: &Request) -> Links {
        request.in_order
    }
}

/// A first-in first-out list from which any member may leave.
#[derive(Debug)]
pub(in crate::batching) struct List<C> {
    head: RequestIx,
    tail: RequestIx,
    chain: PhantomData<C>,
}

impl<C: Chain> List<C> {
    pub(in crate::batching) const fn new() -> Self {
        Self { head: NONE, tail: NONE, chain: PhantomData }
    }

    pub(in crate::batching) fn is_empty(&self) -> bool {
        self.head == NONE
    }

    pub(in crate::batching) fn head(&self) -> Option<RequestIx> {
        (self.head != NONE).then_some(self.head)
    }

    pub(in crate::batching) fn push_back(&mut self, ledger: &mut Ledger, request_ix: RequestIx) {
        *C::links(&mut ledger[request_ix]) = Links { prev: self.tail, next: NONE };
        match self.tail {
            NONE => self.head = request_ix,
            tail => C::links(&mut ledger[tail]).next = request_ix,
        }
        self.tail = request_ix;
    }

    /// Removes a member. `request_ix` must be in this list.
    pub(in crate::batching) fn remove(&mut self, ledger: &mut Ledger, request_ix: RequestIx) {
        let links = std::mem::take(C::links(&mut ledger[request_ix]));
        match links.prev {
            NONE => self.head = links.next,
            prev => C::links(&mut ledger[prev]).next = links.next,
        }
        match links.next {
            NONE => self.tail = links.prev,
            next => C::links(&mut ledger[next]).prev = links.prev,
        }
    }

    pub(in crate::batching) fn iter<'a>(&self, ledger: &'a Ledger) -> impl Iterator<Item = RequestIx> + use<'a, C> {
        let some = |request_ix: RequestIx| (request_ix != NONE).then_some(request_ix);
        std::iter::successors(some(self.head), move |&request_ix| some(C::peek(&ledger[request_ix]).next))
    }
}
