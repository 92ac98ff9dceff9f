//! Requests that board only with the memory for their state.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use paternoster_model::unfold::Unfolded;

use super::{
    at,
    cellular::{chain, core, done, request},
};
use crate::{Action, Actions, Arrival, Core, Event, Instant, LaneKnobs, SharedStateMemory, StateMemory};

/// What a request needs of the bytes that are free.
#[derive(Debug)]
struct Counted {
    free: Arc<AtomicU64>,
    bytes: u64,
    is_taken: AtomicBool,
}

impl StateMemory for Counted {
    fn fits(&self) -> bool {
        self.is_taken.load(Ordering::Relaxed) || self.free.load(Ordering::Relaxed) >= self.bytes
    }

    fn take(&self) -> bool {
        if self.fits() && !self.is_taken.swap(true, Ordering::Relaxed) {
            self.free.fetch_sub(self.bytes, Ordering::Relaxed);
        }
        self.is_taken.load(Ordering::Relaxed)
    }
}

/// A core with one chain, whose tasks have up to four rows, and the free bytes.
fn world(free: u64) -> (Core, Arc<AtomicU64>) {
    (core(chain(4, 9), 1, LaneKnobs::default()), Arc::new(AtomicU64::new(free)))
}

fn arrived(req: u64, steps: u32, free: &Arc<AtomicU64>, bytes: u64) -> Event<'static> {
    let memory = Counted { free: Arc::clone(free), bytes, is_taken: AtomicBool::new(false) };
    let arrival = request(req, vec![Unfolded::Steps(steps)]);
    Event::Arrived(Arrival { memory: Some(SharedStateMemory(Arc::new(memory))), ..arrival })
}

/// Returns the rows of launched tasks as `request.node`, and when the core wakes.
fn acted(actions: &Actions) -> (String, Option<u64>) {
    let rows = actions.iter().filter_map(|action| match action {
        Action::Launch(task) => Some(&task.rows),
        _ => None,
    });
    let rows = rows.flatten().map(|row| format!("{}.{}", row.req.0, row.start)).collect::<Vec<_>>();
    let wake = actions.iter().find_map(|action| match action {
        Action::WakeAt(at) => Some(at.as_ns()),
        _ => None,
    });
    (rows.join(" "), wake)
}

#[test]
fn requests_board_in_order_as_far_as_there_is_memory() {
    let (mut core, free) = world(10);
    let mut step = |event| acted(&core.step(Instant::ZERO, event)).0;
    assert_eq!(step(arrived(0, 2, &free, 6)), "0.0");
    for (req, bytes) in [(1, 4), (2, 3), (3, 0)] {
        assert_eq!(step(arrived(req, 2, &free, bytes)), "");
    }
    assert_eq!(step(done(0)), "0.1 1.0", "request 3 needs nothing, and waits behind 2");
    free.fetch_add(6, Ordering::Relaxed);
    assert_eq!(step(done(1)), "1.1 2.0 3.0");
    assert_eq!(free.load(Ordering::Relaxed), 3);
}

#[test]
fn boarded_requests_go_on_while_one_waits_for_memory() {
    let (mut core, free) = world(1);
    let mut step = |event| acted(&core.step(Instant::ZERO, event)).0;
    assert_eq!(step(arrived(0, 3, &free, 1)), "0.0");
    assert_eq!(step(arrived(1, 3, &free, 1)), "");
    assert_eq!((step(done(0)), step(done(1))), ("0.1".into(), "0.2".into()));
}

#[test]
fn memory_that_others_free_is_found_by_looking_again() {
    let (mut core, free) = world(0);
    let mut step = |now, event| acted(&core.step(at(now), event));
    assert_eq!(step(5, arrived(0, 1, &free, 1)), (String::new(), Some(10_000_005)));
    assert_eq!(step(10_000_005, Event::Wake), (String::new(), Some(20_000_005)));
    free.fetch_add(1, Ordering::Relaxed);
    assert_eq!(step(20_000_005, Event::Wake), ("0.0".into(), None));
}

#[test]
fn a_request_that_waits_for_memory_can_be_cancelled() {
    let (mut core, free) = world(0);
    core.step(Instant::ZERO, arrived(0, 1, &free, 1));
    core.step(at(1), Event::Cancelled(crate::ReqId(0)));
    free.fetch_add(1, Ordering::Relaxed);
    assert_eq!(acted(&core.step(at(20_000_000), Event::Wake)).0, "");
    assert_eq!((free.load(Ordering::Relaxed), core.check()), (1, Ok(())));
}
