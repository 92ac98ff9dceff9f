//! `WakeAt`: as rarely as possible, and never too late.

use super::{
    at,
    pool::{DynamicBatching, Pool, arrival, serial, window},
    script::play,
};
use crate::{Action, Core, Event, Instant, LaneId, LaneKnobs, ModelId, ReqId};

#[test]
fn a_wake_is_announced_only_when_something_is_due_earlier() {
    let mut pool = Pool::new(1, [serial()]);
    play(
        &mut pool,
        &[
            (0, "a deadline=90", "#0 runs a; wake at 90"),
            (0, "b deadline=95", ""),
            (0, "c deadline=40", "wake at 40"),
            (1, "d deadline=50", ""),
            (2, "cancel c", "c cancelled"),
            (2, "cancel d", "d cancelled"),
            (40, "wake", "wake at 90"),
            (80, "#0 done", "a completed; #1 runs b"),
            (81, "#1 done", "b completed"),
            (90, "wake", ""),
        ],
    );
}

#[test]
fn a_group_that_waits_for_its_delay_does_not_bother_the_driver_for_each_request() {
    let mut pool =
        Pool::new(1, [window(64, DynamicBatching { max_queue_delay_ns: 100, ..DynamicBatching::default() })]);
    let mut wakes = 0;
    for req in 0..50 {
        pool.now = at(req);
        let actions = pool.arrive(arrival(req));
        wakes += actions.iter().filter(|action| matches!(action, Action::WakeAt(_))).count();
    }
    assert_eq!(wakes, 1);
}

#[test]
fn a_storm_of_cancellations_leaves_no_alarms_behind() {
    let mut core = Core::new();
    core.step(Instant::ZERO, Event::ModelUp(ModelId(0), Box::new(serial())));
    core.step(Instant::ZERO, Event::LaneUp(LaneId(0), LaneKnobs::default()));
    // A request that stays and is due before all others, so that none of their deadlines reaches the top of the heap.
    let mut first = arrival(0);
    first.deadline = Some(at(500_000));
    core.step(Instant::ZERO, Event::Arrived(first));
    let mut most = 0;
    for req in 1..20_000 {
        let mut request = arrival(req);
        request.deadline = Some(at(1_000_000 + req));
        core.step(at(req), Event::Arrived(request));
        core.step(at(req), Event::Cancelled(ReqId(req)));
        most = most.max(core.timers.load().0);
    }
    assert!(most < 200, "{most} alarms are kept for one live request");
}

#[test]
fn time_that_goes_back_counts_as_the_last() {
    let mut pool = Pool::new(1, [window(4, DynamicBatching { max_queue_delay_ns: 100, ..DynamicBatching::default() })]);
    play(&mut pool, &[(50, "a", "wake at 150")]);
    let actions = pool.core.step(at(10), Event::Arrived(arrival(1)));
    assert!(actions.is_empty(), "the second waits from 50 on: {actions:?}");
    let actions = pool.core.step(at(150), Event::Wake);
    assert_eq!(actions.len(), 1, "both go at 150: {actions:?}");
}
