use std::time::Duration;

use paternoster_engine::Repeat;
use paternoster_model::ModelSpec;
use paternoster_observe::{ModelStats, budget::Budget};

use super::*;

const LIMIT: Ns = 100;
const GRACE: Ns = 10;
const ONE: LaneId = LaneId(0);
const TWO: LaneId = LaneId(1);

/// Returns the instant this long after the epoch.
fn at(since_epoch_ns: Ns) -> Instant {
    Instant::from_ns(since_epoch_ns)
}

/// A task with a limit.
fn flight(task: u64, since: Ns) -> InFlightTask {
    let spec = ModelSpec {
        name: "m".to_owned(),
        version: 1,
        max_batch_size: 1,
        inputs: vec![],
        outputs: vec![],
        symbols: vec![],
        decoupled: false,
    };
    let stats = Arc::new(ModelStats::new(1));
    let loaded = ServedVersion::new(
        Arc::new(spec),
        stats,
        Arc::new(Repeat { decoupled: true }).into(),
        Duration::from_nanos(LIMIT),
        &Budget::of(0),
    );
    let limit_ns = loaded.limit_ns;
    InFlightTask { task: TaskId(task), loaded, stage: 0, since: at(since), limit_ns }
}

fn launch(
    watch: &mut Watch,
    lane: LaneId,
    flight: InFlightTask,
    requests: &[u64],
) -> (Arc<StopSignal>, Option<Instant>) {
    watch.launched(lane, flight, requests.iter().map(|&req| ReqId(req)))
}

/// Returns the tasks that are overdue, and those that are lost.
fn check(watch: &mut Watch, now: Ns) -> (Vec<u64>, Vec<u64>) {
    let (mut overdue, mut lost) = (Vec::new(), Vec::new());
    for (_, found) in watch.check(at(now)) {
        match found {
            Found::Overdue(flight) => overdue.push(flight.task.0),
            Found::Lost(flight, _) => lost.push(flight.task.0),
        }
    }
    (overdue, lost)
}

#[test]
fn a_task_is_told_to_stop_once_when_its_limit_has_passed() {
    let mut watch = Watch::new(2, GRACE);
    let (first, check_at) = launch(&mut watch, ONE, flight(1, 10), &[1]);
    assert_eq!(check_at, Some(at(110)));
    let (second, check_at) = launch(&mut watch, TWO, flight(2, 50), &[2]);
    assert_eq!(check_at, None, "an earlier check is due");
    assert_eq!(check(&mut watch, 109), (vec![], vec![]));
    assert_eq!(check(&mut watch, 110), (vec![1], vec![]));
    assert!(first.is_raised() && !second.is_raised());
    assert_eq!(check(&mut watch, 110), (vec![], vec![]), "it was found before");
    assert_eq!(watch.next_check(), Some(at(120)), "then its grace is over");
    assert!(matches!(
        watch.returned(ONE, TaskId(1)),
        Returned::Stopped { lost: false, reason: StopReason::Overdue, .. }
    ));
    assert!(!first.is_raised(), "the next one on the lane may run");
    assert_eq!(watch.next_check(), Some(at(150)));
    assert!(matches!(watch.returned(TWO, TaskId(2)), Returned::InTime));
    assert_eq!(watch.next_check(), None, "nothing is checked while all lanes are idle");
}

#[test]
fn a_shorter_limit_brings_the_look_forward() {
    let mut watch = Watch::new(2, GRACE);
    let unlimited = InFlightTask { limit_ns: None, ..flight(1, 0) };
    assert_eq!(launch(&mut watch, ONE, unlimited, &[1]).1, None);
    assert_eq!(watch.next_check(), None);
    assert!(matches!(watch.returned(ONE, TaskId(1)), Returned::InTime));
    assert_eq!(launch(&mut watch, ONE, flight(2, 0), &[1]).1, Some(at(100)));
    let short = InFlightTask { limit_ns: Some(20), ..flight(3, 30) };
    assert_eq!(launch(&mut watch, TWO, short, &[2]).1, Some(at(50)));
}

#[test]
fn a_task_is_unwanted_when_none_of_its_requests_lives() {
    let mut watch = Watch::new(2, GRACE);
    let (first, _) = launch(&mut watch, ONE, flight(1, 0), &[1, 2]);
    let (second, _) = launch(&mut watch, TWO, flight(2, 0), &[3]);
    assert_eq!(watch.stop_unwanted(at(5), |req| req != ReqId(1)), (0, None), "request 2 waits for it");
    assert_eq!(watch.stop_unwanted(at(6), |req| req == ReqId(3)), (1, Some(at(16))));
    assert!(first.is_raised() && !second.is_raised());
    assert_eq!(watch.stop_unwanted(at(7), |req| req == ReqId(3)), (0, None), "its signal was raised before");
    assert_eq!(watch.counts(), LaneCounts { unwanted: 1, ..LaneCounts::default() }, "its time is not over");
    assert!(matches!(watch.returned(ONE, TaskId(1)), Returned::Stopped { reason: StopReason::Unwanted, .. }));
}

#[test]
fn a_lane_goes_on_without_a_task_that_does_not_stop() {
    let mut watch = Watch::new(1, GRACE);
    let (signal, _) = launch(&mut watch, ONE, flight(1, 0), &[1]);
    check(&mut watch, 100);
    assert!(watch.abandon().is_none(), "it has its grace");
    assert_eq!(check(&mut watch, 110), (vec![], vec![1]));
    assert_eq!(watch.counts().stuck, 1);
    let (lane, flight_of_lane, _) = watch.abandon().expect("there is room for one");
    assert_eq!((lane, flight_of_lane.task), (ONE, TaskId(1)));
    let (next, _) = launch(&mut watch, ONE, flight(2, 120), &[2]);
    assert!(signal.is_raised() && !next.is_raised(), "the next task has a signal of its own");
    check(&mut watch, 220);
    assert_eq!(check(&mut watch, 230), (vec![], vec![2]));
    assert!(watch.abandon().is_none(), "as many as there are lanes");
    assert!(matches!(watch.returned(ONE, TaskId(1)), Returned::Abandoned(_)));
    assert!(watch.abandon().is_some(), "there is room again");
    let expected = LaneCounts { abandoned: 1, overdue: 2, replaced: 2, ..LaneCounts::default() };
    assert_eq!(watch.counts(), expected);
}

#[test]
fn a_lane_that_gets_no_thread_waits_for_its_task() {
    let mut watch = Watch::new(1, GRACE);
    launch(&mut watch, ONE, flight(1, 0), &[1]);
    check(&mut watch, 100);
    check(&mut watch, 110);
    watch.abandon().expect("there is room for one");
    assert_eq!(watch.keep(ONE, TaskId(1)), Some(StopReason::Overdue));
    assert_eq!(watch.counts(), LaneCounts { stuck: 1, overdue: 1, ..LaneCounts::default() });
    assert!(matches!(watch.returned(ONE, TaskId(1)), Returned::Stopped { lost: true, .. }));
    launch(&mut watch, ONE, flight(2, 200), &[2]);
    check(&mut watch, 300);
    check(&mut watch, 310);
    watch.abandon().expect("there is room for one");
    assert!(matches!(watch.returned(ONE, TaskId(2)), Returned::Abandoned(_)));
    assert_eq!(watch.keep(ONE, TaskId(2)), None, "it returned before a thread was asked for");
    assert_eq!(watch.counts(), LaneCounts { overdue: 2, ..LaneCounts::default() });
}

#[test]
fn of_tasks_one_behind_the_other_the_first_counts() {
    let mut watch = Watch::new(1, GRACE);
    let (first, check_at) = launch(&mut watch, ONE, flight(1, 0), &[1]);
    assert_eq!(check_at, Some(at(100)));
    let (second, check_at) = launch(&mut watch, ONE, flight(2, 10), &[2]);
    assert_eq!(check_at, None, "its time has not begun");
    assert_eq!(watch.next_check(), Some(at(100)));
    assert!(matches!(watch.returned(ONE, TaskId(1)), Returned::InTime));
    assert_eq!(watch.next_check(), Some(at(110)), "as it was launched");
    assert_eq!(watch.goes_on(ONE, at(90)), None, "there is a check before that");
    assert_eq!(check(&mut watch, 110), (vec![], vec![]), "it has run for 20");
    assert_eq!(watch.next_check(), Some(at(190)));
    assert_eq!(check(&mut watch, 190), (vec![2], vec![]));
    assert!(second.is_raised() && !first.is_raised());
}

#[test]
fn a_lane_goes_on_without_what_stands_behind_a_task_that_does_not_stop() {
    let mut watch = Watch::new(3, GRACE);
    launch(&mut watch, ONE, flight(1, 0), &[1]);
    launch(&mut watch, ONE, flight(2, 0), &[2]);
    check(&mut watch, 100);
    assert_eq!(check(&mut watch, 110), (vec![], vec![1]));
    let (_, flight_of_lane, _) = watch.abandon().expect("there is room");
    assert_eq!(flight_of_lane.task, TaskId(1));
    for task in [1, 2] {
        assert!(matches!(watch.returned(ONE, TaskId(task)), Returned::Abandoned(_)));
    }
    assert!(matches!(watch.returned(ONE, TaskId(2)), Returned::InTime), "it is forgotten");
}
