//! What a client's request and everything derived from it hold: the requests of steps and rows, and the bytes of
//! inputs, outputs and state that they build.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use super::budget::{Budget, Reservation};

/// Most requests that one client request has in flight at a time beyond one, in all pipelines within each other.
const MOST_AT_A_TIME: usize = 256;

/// Most steps that all pipelines within one have together, each counted as often as it runs.
pub const MAX_STEPS_WITHIN: usize = 4096;

/// The budgets that requests draw from.
#[derive(Clone, Debug)]
pub struct RequestBudgets {
    /// Bytes of requests (`--max-pending-bytes`).
    pub bytes: Arc<Budget>,
    /// Requests that are not yet ended (`--max-pending-requests`).
    pub requests: Arc<Budget>,
}

impl RequestBudgets {
    /// Budgets without limits.
    pub fn unlimited() -> Self {
        Self { bytes: Budget::of(usize::MAX), requests: Budget::of(usize::MAX) }
    }
}

/// The account of one client request. Requests that are derived from it share it, and draw from it before they build
/// anything.
#[derive(Clone, Debug)]
pub struct Charge(Arc<Account>);

#[derive(Debug)]
struct Account {
    bytes: Arc<Budget>,
    /// The part of the budget of requests that derived requests may use.
    requests: Arc<Budget>,
    rows: usize,
    /// Steps that have started since the last response.
    steps: AtomicUsize,
}

/// More steps than [`MAX_STEPS_WITHIN`] have started for each row of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pipelines within each other have more than {MAX_STEPS_WITHIN} steps in all")]
pub struct TooManySteps;

impl Charge {
    /// Opens the account of a request of `rows` rows.
    pub fn new(budgets: &RequestBudgets, rows: usize) -> Self {
        let requests = Budget::part_of(&budgets.requests, MOST_AT_A_TIME);
        let (bytes, steps) = (Arc::clone(&budgets.bytes), AtomicUsize::new(0));
        Self(Arc::new(Account { bytes, requests, rows: rows.max(1), steps }))
    }

    /// Returns a reservation of no bytes, which grows from the account's budget.
    pub fn bytes(&self) -> Reservation {
        Reservation::none(&self.0.bytes)
    }

    /// Takes the place of one more derived request in flight; `None` if there is none now. The first one that a
    /// request has in flight needs no place: it has that of the request, which waits for it.
    pub fn place(&self) -> Option<Reservation> {
        let mut place = Reservation::none(&self.0.requests);
        place.try_grow(1).then_some(place)
    }

    /// Counts a step that starts.
    ///
    /// # Errors
    /// If there were too many since the last response.
    pub fn start_step(&self) -> Result<(), TooManySteps> {
        let started = self.0.steps.fetch_add(1, Ordering::Relaxed);
        if started < MAX_STEPS_WITHIN.saturating_mul(self.0.rows) { Ok(()) } else { Err(TooManySteps) }
    }

    /// Records a response. Steps behind it are counted from zero.
    pub fn responded(&self) {
        self.0.steps.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_takes_a_part_of_the_places_and_gives_them_back() {
        let budgets = RequestBudgets { bytes: Budget::of(10), requests: Budget::of(2 * MOST_AT_A_TIME) };
        let (first, second) = (Charge::new(&budgets, 1), Charge::new(&budgets, 1));
        let places: Vec<_> = std::iter::from_fn(|| first.place()).collect();
        assert_eq!((places.len(), budgets.requests.used()), (MOST_AT_A_TIME, MOST_AT_A_TIME));
        assert!(second.place().is_some(), "the other has its part");
        assert_eq!(budgets.requests.refused(), 0, "no request is refused for lack of a place");
        drop(places);
        assert_eq!(budgets.requests.used(), 0);
        assert!(first.clone().place().is_some());
    }

    #[test]
    fn bytes_are_those_of_the_budget() {
        let budgets = RequestBudgets { bytes: Budget::of(10), requests: Budget::of(1) };
        let mut held = Charge::new(&budgets, 1).bytes();
        held.grow_now(8).expect("there is room");
        assert!(held.grow_now(3).is_err());
        assert_eq!(budgets.bytes.used(), 8);
    }

    #[test]
    fn steps_are_counted_by_row_until_there_is_a_response() {
        let charge = Charge::new(&RequestBudgets::unlimited(), 2);
        for _ in 0..2 {
            assert_eq!((0..2 * MAX_STEPS_WITHIN).find(|_| charge.start_step().is_err()), None);
            assert_eq!(charge.start_step(), Err(TooManySteps));
            charge.responded();
        }
    }
}
