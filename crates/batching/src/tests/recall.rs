//! Requests that move to another core: which ones, with what state, and what stays behind.

use paternoster_model::unfold::Unfolded;

use super::{
    super::*,
    at,
    cellular::{chain, request},
    pool::arrival,
};

const OBJECTIVE_NS: Ns = 1_000;

fn knobs() -> Knobs {
    Knobs {
        max_batch_rows: 8,
        objective_ns: Some(OBJECTIVE_NS),
        policy: Policy::Window(WindowKnobs::default()),
        ..Knobs::default()
    }
}

/// Creates a core with one lane and one version.
fn core(knobs: Knobs) -> Core {
    let mut core = Core::new();
    core.step(Instant::ZERO, Event::LaneUp(LaneId(0), LaneKnobs::default()));
    core.step(Instant::ZERO, Event::ModelUp(ModelId(0), Box::new(knobs)));
    core
}

/// Like [`core`], with one running request, and `waiting` requests in the queue that arrive at 1, 2, and so on.
fn busy(knobs: Knobs, waiting: u64) -> Core {
    let mut core = core(knobs);
    (0..=waiting).for_each(|req| drop(core.step(at(req), Event::Arrived(arrival(req)))));
    core
}

fn recalled(actions: Actions) -> Vec<Arrival> {
    let recalled = actions.into_iter().filter_map(|action| match action {
        Action::Recalled(arrival) => Some(*arrival),
        _ => None,
    });
    recalled.collect()
}

fn ids(arrivals: &[Arrival]) -> Vec<u64> {
    arrivals.iter().map(|arrival| arrival.req.0).collect()
}

fn launched(actions: &Actions) -> Vec<Vec<u64>> {
    let tasks = actions.iter().filter_map(|action| match action {
        Action::Launch(task) => Some(task.rows.iter().map(|span| span.req.0).collect()),
        _ => None,
    });
    tasks.collect()
}

fn ends(actions: &Actions) -> Vec<(u64, End)> {
    let ends = actions.iter().filter_map(|action| match action {
        Action::Finish { req, end } => Some((req.0, *end)),
        _ => None,
    });
    ends.collect()
}

#[test]
fn half_of_those_that_wait_leave_the_first_ones_first() {
    let mut core = busy(knobs(), 5);
    assert_eq!(core.load().may_leave, 5);
    let left = recalled(core.step(at(9), Event::Recall));
    assert_eq!(ids(&left), [1, 2, 3]);
    assert_eq!((core.load().may_leave, core.counters()[0].1.recalled), (2, 3));
    let done = core.step(at(10), Event::Completed { task: TaskId(0), rows: &[] });
    assert_eq!(launched(&done), [[4, 5]], "the others board here");
    assert_eq!(ends(&done), [(0, End::Completed)]);
}

#[test]
fn no_more_leave_than_a_batch_has_rows() {
    let mut core = busy(Knobs { max_batch_rows: 2, ..knobs() }, 9);
    assert_eq!(ids(&recalled(core.step(at(20), Event::Recall))), [1, 2]);
    assert_eq!(ids(&recalled(core.step(at(21), Event::Recall))), [3, 4]);
}

#[test]
fn they_board_together_elsewhere_and_keep_their_times() {
    let mut from = core(knobs());
    let asks = |req| Arrival {
        deadline: Some(at(500)),
        needed_after_ns: 40,
        queue_deadline: None,
        priority: 0,
        ..arrival(req)
    };
    (0..4).for_each(|req| drop(from.step(at(100 + req), Event::Arrived(asks(req)))));
    let left = recalled(from.step(at(200), Event::Recall));
    assert_eq!(ids(&left), [1, 2]);
    assert_eq!(left[0].first, Some(FirstArrival { at: at(101), queue_deadline: None }));
    assert_eq!((left[0].deadline, left[0].needed_after_ns), (Some(at(500)), 40));

    let mut to = core(knobs());
    let taken = to.step(at(300), Event::TakenIn(left.clone()));
    assert_eq!(launched(&taken), [[1, 2]], "one batch");

    let mut to = busy(knobs(), 0);
    drop(to.step(at(300), Event::TakenIn(left)));
    assert_eq!(ends(&to.step(at(500), Event::Wake)), [(1, End::Expired), (2, End::Expired)]);
}

#[test]
fn a_queue_timeout_counts_from_the_first_arrival() {
    let queue = QueueKnobs { default_timeout_ns: 50, ..QueueKnobs::default() };
    let queueing = QueueingKnobs { default_queue: queue, ..QueueingKnobs::default() };
    let knobs = Knobs { queueing, ..knobs() };
    let mut from = busy(knobs.clone(), 1);
    let left = recalled(from.step(at(30), Event::Recall));
    assert_eq!(left[0].first, Some(FirstArrival { at: at(1), queue_deadline: Some(at(51)) }));
    let mut to = busy(knobs, 0);
    drop(to.step(at(40), Event::TakenIn(left)));
    let late = ends(&to.step(at(51), Event::Wake));
    assert_eq!(late, [(1, End::Rejected(Rejection::QueueTimeout))]);
}

#[test]
fn requests_that_depend_on_each_other_stay() {
    let ordered = QueueingKnobs { preserve_ordering: true, ..QueueingKnobs::default() };
    let mut core = busy(Knobs { queueing: ordered, ..knobs() }, 4);
    assert_eq!(core.load().may_leave, 0);
    assert!(recalled(core.step(at(9), Event::Recall)).is_empty());
    let lost = core.step(at(10), Event::DeviceLost);
    assert_eq!(ends(&lost).len(), 5, "all of them fail with their device");
    assert!(ends(&lost).iter().all(|(_, end)| *end == End::Failed));
}

#[test]
fn graphs_leave_as_they_came() {
    let mut core = core(chain(1, 1));
    let graph = || vec![Unfolded::Steps(3)];
    (0..3).for_each(|req| drop(core.step(Instant::ZERO, Event::Arrived(request(req, graph())))));
    let left = recalled(core.step(at(1), Event::Recall));
    assert!(left.iter().all(|arrival| *arrival.graph == graph()[..]), "{left:?}");
}

#[test]
fn a_lost_device_fails_what_has_boarded_and_gives_up_what_waits() {
    let mut core = busy(knobs(), 12);
    let lost = core.step(at(20), Event::DeviceLost);
    assert_eq!(ends(&lost), [(0, End::Failed)]);
    assert_eq!(ids(&recalled(lost)), (1..=12).collect::<Vec<_>>());
    assert_eq!(core.load(), DeviceLoad::default(), "it has nothing, and nothing to do it on");
    assert!(
        core.step(at(30), Event::Completed { task: TaskId(0), rows: &[] }).is_empty(),
        "what comes late is dropped"
    );
    let drained = core.step(at(40), Event::ModelDraining(ModelId(0)));
    assert_eq!(drained.to_vec(), [Action::Drained(ModelId(0))]);
}

#[test]
fn what_is_expected_of_requests_is_learnt_from_those_before() {
    let mut core = busy(Knobs { stages: StageKnobs::chain(2), ..knobs() }, 0);
    let unknown = core.load().expected_ns;
    assert!(unknown > 0, "a request is never for nothing");
    drop(core.step(at(4_000), Event::Completed { task: TaskId(0), rows: &[] }));
    drop(core.step(at(8_000), Event::Completed { task: TaskId(1), rows: &[] }));
    assert_eq!(core.load().expected_ns, 0);
    drop(core.step(at(8_000), Event::Arrived(Arrival { rows: 3, ..arrival(7) })));
    assert_eq!(core.load().expected_ns, 2 * 3 * 4_000, "three rows through two stages");
}

#[test]
fn alarms_of_requests_that_leave_and_come_back_go_off_once() {
    let mut core = Core::new();
    core.step(Instant::ZERO, Event::ModelUp(ModelId(0), Box::new(Knobs { max_batch_rows: 200, ..knobs() })));
    for req in 0..200 {
        core.step(Instant::ZERO, Event::Arrived(Arrival { deadline: Some(at(1_000)), ..arrival(req) }));
    }
    for _ in 0..8 {
        // Slots are reused last in, first out, so each request gets its own slot back.
        let back: Vec<Arrival> = recalled(core.step(Instant::ZERO, Event::Recall)).into_iter().rev().collect();
        assert_eq!(back.len(), 100, "half of those that wait");
        core.step(Instant::ZERO, Event::TakenIn(back));
        assert_eq!(core.check(), Ok(()));
    }
    let ends = core.step(at(1_000), Event::Wake);
    let expired = ends.iter().filter(|action| matches!(action, Action::Finish { end: End::Expired, .. }));
    assert_eq!(expired.count(), 200);
    assert_eq!(core.check(), Ok(()));
}
