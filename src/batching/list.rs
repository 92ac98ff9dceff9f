//! Doubly linked lists threaded through the ledger's requests: any member leaves in O(1) and nothing is allocated.

use std::marker::PhantomData;

use super::ledger::{Ledger, Request, Slot};

const NONE: Slot = Slot::MAX;

/// A request's neighbours in one list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    prev: Slot,
    next: Slot,
}

impl Default for Links {
    fn default() -> Self {
        Self { prev: NONE, next: NONE }
    }
}

/// Which of a request's links a list uses.
pub(super) trait Chain {
    /// The request's links of this chain.
    fn links(request: &mut Request) -> &mut Links;
    /// The same, to look at.
    fn peek(request: &Request) -> Links;
}

/// The chain of a pending queue.
#[derive(Debug)]
pub(super) struct InQueue;

impl Chain for InQueue {
    fn links(request: &mut Request) -> &mut Links {
        &mut request.in_queue
    }

    fn peek(request: &Request) -> Links {
        request.in_queue
    }
}

/// The chain of a group's requests in order of arrival.
#[derive(Debug)]
pub(super) struct InOrder;

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
pub(super) struct List<C> {
    head: Slot,
    tail: Slot,
    chain: PhantomData<C>,
}

impl<C: Chain> List<C> {
    pub(super) const fn new() -> Self {
        Self { head: NONE, tail: NONE, chain: PhantomData }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head == NONE
    }

    pub(super) fn head(&self) -> Option<Slot> {
        (self.head != NONE).then_some(self.head)
    }

    pub(super) fn push_back(&mut self, ledger: &mut Ledger, slot: Slot) {
        *C::links(&mut ledger[slot]) = Links { prev: self.tail, next: NONE };
        match self.tail {
            NONE => self.head = slot,
            tail => C::links(&mut ledger[tail]).next = slot,
        }
        self.tail = slot;
    }

    /// Takes a member out. `slot` must be in this list.
    pub(super) fn remove(&mut self, ledger: &mut Ledger, slot: Slot) {
        let links = std::mem::take(C::links(&mut ledger[slot]));
        match links.prev {
            NONE => self.head = links.next,
            prev => C::links(&mut ledger[prev]).next = links.next,
        }
        match links.next {
            NONE => self.tail = links.prev,
            next => C::links(&mut ledger[next]).prev = links.prev,
        }
    }

    pub(super) fn iter<'a>(&self, ledger: &'a Ledger) -> impl Iterator<Item = Slot> + use<'a, C> {
        let some = |slot: Slot| (slot != NONE).then_some(slot);
        std::iter::successors(some(self.head), move |&slot| some(C::peek(&ledger[slot]).next))
    }
}
