//! Virtual time: when operations begin and end.

use paternoster_device::{Access, Device, Operation, StreamId};
use paternoster_testing::sim::{Completion, Sim, Work};

const ONE: StreamId = StreamId(0);
const TWO: StreamId = StreamId(1);

fn work(duration_ns: u64) -> Work {
    Work::new(1, duration_ns, 0)
}

fn launch(sim: &mut Sim, stream: StreamId, duration_ns: u64) -> Operation {
    sim.launch(stream, &[], work(duration_ns)).expect("a stream of the device")
}

fn spans(sim: &mut Sim) -> Vec<(u16, u64, u64)> {
    let completions = std::iter::from_fn(|| sim.advance());
    completions.map(|ended| (ended.operation.stream.0, ended.started_ns, ended.ended_ns)).collect()
}

#[test]
fn streams_run_in_order_and_beside_each_other() {
    let mut sim = Sim::new(2);
    launch(&mut sim, ONE, 10);
    launch(&mut sim, ONE, 5);
    launch(&mut sim, TWO, 12);
    assert_eq!(spans(&mut sim), [(0, 0, 10), (1, 0, 12), (0, 10, 15)]);
    assert_eq!(sim.now_ns(), 15);
}

#[test]
fn operations_that_end_together_are_told_in_the_order_of_issue() {
    let mut sim = Sim::new(2);
    launch(&mut sim, TWO, 10);
    launch(&mut sim, ONE, 10);
    assert_eq!(spans(&mut sim), [(1, 0, 10), (0, 0, 10)]);
}

#[test]
fn an_operation_begins_when_its_stream_is_free_and_its_waits_are_over() {
    let mut sim = Sim::new(2);
    launch(&mut sim, ONE, 10);
    let early = sim.record(ONE).expect("a stream of the device");
    launch(&mut sim, ONE, 100);
    launch(&mut sim, TWO, 3);
    sim.wait(TWO, early).expect("a ticket of the device");
    launch(&mut sim, TWO, 4);
    assert_eq!(spans(&mut sim), [(1, 0, 3), (0, 0, 10), (1, 10, 14), (0, 10, 110)]);
}

#[test]
fn an_operation_does_not_begin_before_it_is_issued() {
    let mut sim = Sim::new(1);
    assert_eq!(sim.advance_to(50), None);
    launch(&mut sim, ONE, 10);
    assert_eq!(sim.advance_to(59), None);
    assert_eq!((sim.now_ns(), sim.next_end_ns()), (59, Some(60)));
    let ended = sim.advance_to(60);
    assert_eq!(ended.map(|ended: Completion| (ended.started_ns, ended.ended_ns)), Some((50, 60)));
}

#[test]
fn a_slow_stream_takes_longer_and_a_hung_one_takes_for_ever() {
    let mut sim = Sim::new(2);
    sim.slow(ONE, 3).expect("a stream of the device");
    launch(&mut sim, ONE, 10);
    launch(&mut sim, TWO, 7);
    sim.hang(TWO).expect("a stream of the device");
    launch(&mut sim, TWO, 1);
    let hung = sim.record(TWO).expect("a stream of the device");
    sim.wait(ONE, hung).expect("a ticket of the device");
    launch(&mut sim, ONE, 1);
    assert_eq!(spans(&mut sim), [(1, 0, 7), (0, 0, 30)]);
    assert_eq!((sim.next_end_ns(), sim.in_flight()), (None, 2));
    assert!(!sim.is_complete(hung));
    assert!(!sim.stop(crate::harness::PATIENCE), "the hung work runs on");
}

#[test]
fn a_clone_goes_on_by_itself() {
    let mut sim = Sim::new(1);
    let rows = sim.allocate(1, 8).expect("a small buffer");
    sim.launch(ONE, &[Access::write(rows, 0..1)], crate::harness::bring(1, 1)).expect("the launch is right");
    let mut branch = sim.clone();
    assert!(branch.advance().is_some());
    assert!(branch.read(rows, 0).is_ok());
    assert!(sim.read(rows, 0).is_err());
}
