//! The simulated device detects every planted fault, and accepts the correct schedule.

use paternoster_device::{
    Access, AccessKind, Accessor, BufferId, Device, DeviceError, Operation, Region, StreamId, Violation, WorkFailure,
};
use paternoster_testing::sim::{Completion, RowSource, Sim, Work, content, external};

use crate::harness::{bring, chain, stage, step};

const ONE: StreamId = StreamId(0);
const TWO: StreamId = StreamId(1);
const THREE: StreamId = StreamId(2);

fn device() -> (Sim, BufferId) {
    let mut sim = Sim::new(3);
    let rows = sim.allocate(8, 8).expect("a small buffer");
    (sim, rows)
}

fn launch(sim: &mut Sim, stream: StreamId, accesses: &[Access], work: Work) -> Operation {
    sim.launch(stream, accesses, work).expect("the launch is right")
}

fn order(sim: &mut Sim, before: StreamId, after: StreamId) {
    let ticket = sim.record(before).expect("a stream of the device");
    sim.wait(after, ticket).expect("a ticket of the device");
}

fn by(operation: Operation, program: u64) -> Accessor {
    Accessor::Launch { operation, program }
}

fn violation<T>(result: Result<T, DeviceError>) -> Violation {
    match result {
        Err(DeviceError::Violation(violation)) => *violation,
        Err(error) => panic!("refused for another reason: {error}"),
        Ok(_) => panic!("nothing was found"),
    }
}

fn finish(sim: &mut Sim) -> Vec<Completion> {
    std::iter::from_fn(|| sim.advance()).collect()
}

#[test]
fn a_missing_wait_before_reading_what_another_stream_writes_is_a_race() {
    let (mut sim, rows) = device();
    let writer = launch(&mut sim, ONE, &[Access::write(rows, 0..4)], bring(1, 4));
    let reads = stage(rows, 2..6, rows, 6..8);
    let work = Work::new(9, 10, 0);
    let race = violation(sim.launch(TWO, &[reads[0].clone()], work.clone()));
    let later = by(Operation { stream: TWO, position: 1 }, 9);
    let expected = Violation::Race {
        buffer: rows,
        rows: 2..4,
        earlier: by(writer, 0),
        earlier_kind: AccessKind::Write,
        later,
        later_kind: AccessKind::Read,
    };
    assert_eq!(race, expected);
    assert_eq!(
        race.to_string(),
        "race on rows 2 to 4 of buffer 0.0: program 9 (operation 1 of stream 1) reads them, \
         program 0 (operation 1 of stream 0) writes them, and nothing orders the two"
    );
    order(&mut sim, ONE, TWO);
    launch(&mut sim, TWO, &[Access::read(rows, 2..4)], work);
}

#[test]
fn a_missing_wait_before_writing_what_another_stream_reads_is_a_race() {
    let (mut sim, rows) = device();
    launch(&mut sim, ONE, &[Access::write(rows, 0..4)], bring(1, 4));
    order(&mut sim, ONE, TWO);
    order(&mut sim, ONE, THREE);
    let reader = launch(&mut sim, TWO, &stage(rows, 1..3, rows, 4..6), step(5, 2));
    let race = violation(sim.launch(THREE, &[Access::write(rows, 0..4)], bring(9, 4)));
    let Violation::Race { rows: found, earlier, earlier_kind, later_kind, .. } = race else { panic!("a race") };
    assert_eq!((found, earlier), (1..3, by(reader, 5)));
    assert_eq!((earlier_kind, later_kind), (AccessKind::Read, AccessKind::Write));
    order(&mut sim, TWO, THREE);
    launch(&mut sim, THREE, &[Access::write(rows, 0..4)], bring(9, 4));
}

#[test]
fn every_reader_since_the_last_write_must_be_waited_for() {
    for (waited_for, forgotten) in [(ONE, TWO), (TWO, ONE)] {
        let (mut sim, rows) = device();
        launch(&mut sim, ONE, &[Access::write(rows, 0..1)], bring(1, 1));
        order(&mut sim, ONE, TWO);
        launch(&mut sim, waited_for, &stage(rows, 0..1, rows, 1..2), step(5, 1));
        order(&mut sim, waited_for, THREE);
        let reader = launch(&mut sim, forgotten, &stage(rows, 0..1, rows, 2..3), step(6, 1));
        launch(&mut sim, waited_for, &stage(rows, 0..1, rows, 3..4), step(7, 1));
        order(&mut sim, waited_for, THREE);
        let write = [Access::write(rows, 0..1)];
        let race = violation(sim.launch(THREE, &write, bring(9, 1)));
        assert!(matches!(race, Violation::Race { earlier, .. } if earlier == by(reader, 6)));
        order(&mut sim, forgotten, THREE);
        launch(&mut sim, THREE, &write, bring(9, 1));
    }
}

#[test]
fn a_missing_wait_between_two_writers_is_a_race() {
    let (mut sim, rows) = device();
    let first = launch(&mut sim, ONE, &[Access::write(rows, 3..4)], bring(1, 1));
    let race = violation(sim.launch(TWO, &[Access::write(rows, 0..8)], bring(2, 8)));
    assert!(matches!(race, Violation::Race { rows, earlier, .. } if rows == (3..4) && earlier == by(first, 0)));
    order(&mut sim, ONE, TWO);
    launch(&mut sim, TWO, &[Access::write(rows, 0..8)], bring(2, 8));
}

#[test]
fn copies_race_like_launches() {
    let (mut sim, rows) = device();
    launch(&mut sim, ONE, &[Access::write(rows, 0..2)], bring(1, 2));
    let (from, to) = (Region::new(rows, 0..2), Region::new(rows, 4..6));
    violation(sim.copy(TWO, &from, &to));
    let copy = sim.copy(ONE, &from, &to).expect("in order on its stream");
    let race = violation(sim.launch(TWO, &[Access::read(rows, 4..5)], Work::new(1, 1, 0)));
    assert!(matches!(race, Violation::Race { earlier, .. } if earlier == Accessor::Copy(copy)));
}

#[test]
fn a_race_is_found_although_the_times_of_this_run_do_not_meet() {
    let (mut sim, rows) = device();
    sim.set_copy_ns(10);
    launch(&mut sim, ONE, &[Access::write(rows, 0..1)], bring(1, 1));
    sim.copy(ONE, &Region::new(rows, 0..1), &Region::new(rows, 1..2)).expect("in order on its stream");
    let ticket = sim.record(ONE).expect("a stream of the device");
    launch(&mut sim, TWO, &[Access::write(rows, 7..8)], Work { duration_ns: 1_000, ..bring(1, 1) });
    assert_eq!(finish(&mut sim).len(), 2);
    assert_eq!(sim.now_ns(), 1_000, "the copy ended long ago");
    let read = stage(rows, 1..2, rows, 2..3);
    violation(sim.launch(TWO, &read, step(1, 1)));
    assert!(sim.is_complete(ticket), "now the host knows");
    launch(&mut sim, TWO, &read, step(1, 1));
}

#[test]
fn what_the_host_was_told_orders_what_it_issues_next() {
    let (mut sim, rows) = device();
    launch(&mut sim, ONE, &[Access::write(rows, 0..1)], bring(1, 1));
    order(&mut sim, ONE, TWO);
    launch(&mut sim, TWO, &stage(rows, 0..1, rows, 1..2), step(5, 1));
    let write = [Access::write(rows, 0..1)];
    violation(sim.launch(THREE, &write, bring(2, 1)));
    assert!(sim.advance().is_some_and(|completion| completion.operation.stream == ONE));
    violation(sim.launch(THREE, &write, bring(2, 1)));
    assert!(sim.advance().is_some_and(|completion| completion.operation.stream == TWO));
    launch(&mut sim, THREE, &write, bring(2, 1));
}

#[test]
fn order_goes_on_from_ticket_to_ticket() {
    let (mut sim, rows) = device();
    launch(&mut sim, ONE, &[Access::write(rows, 0..1)], bring(1, 1));
    order(&mut sim, ONE, TWO);
    order(&mut sim, TWO, THREE);
    launch(&mut sim, THREE, &[Access::update(rows, 0..1)], step(1, 1));
}

#[test]
fn a_ticket_orders_what_was_recorded_and_nothing_later() {
    let (mut sim, rows) = device();
    let ticket = sim.record(ONE).expect("a stream of the device");
    launch(&mut sim, ONE, &[Access::write(rows, 0..1)], bring(1, 1));
    sim.wait(TWO, ticket).expect("a ticket of the device");
    violation(sim.launch(TWO, &[Access::update(rows, 0..1)], step(1, 1)));
}

#[test]
fn a_result_is_not_read_before_the_host_knows_it_complete() {
    let (mut sim, rows) = device();
    launch(&mut sim, ONE, &[Access::write(rows, 0..1)], bring(1, 1));
    assert!(matches!(violation(sim.read(rows, 0)), Violation::Race { later: Accessor::Host, .. }));
    finish(&mut sim);
    assert_eq!(sim.read(rows, 0), Ok(chain(1, [])));
}

#[test]
fn a_buffer_is_not_freed_while_it_is_in_use() {
    let (mut sim, rows) = device();
    launch(&mut sim, ONE, &[Access::write(rows, 0..1)], bring(1, 1));
    violation(sim.free(rows));
    finish(&mut sim);
    assert_eq!(sim.free(rows), Ok(()));
}

#[test]
fn rows_that_were_never_written_are_not_read() {
    let (mut sim, rows) = device();
    launch(&mut sim, ONE, &[Access::write(rows, 0..2)], bring(1, 2));
    let found = violation(sim.launch(ONE, &stage(rows, 0..3, rows, 4..7), step(3, 3)));
    let reader = by(Operation { stream: ONE, position: 2 }, 3);
    assert_eq!(found, Violation::NeverWritten { reader, buffer: rows, row: 2 });
    assert!(matches!(violation(sim.read(rows, 5)), Violation::NeverWritten { reader: Accessor::Host, row: 5, .. }));
}

#[test]
fn poisoned_rows_are_not_read_until_they_are_written() {
    let (mut sim, rows) = device();
    launch(&mut sim, ONE, &[Access::write(rows, 0..4)], bring(1, 4));
    sim.poison(&Region::new(rows, 1..3)).expect("rows of the buffer");
    let read = stage(rows, 0..4, rows, 4..8);
    assert!(matches!(violation(sim.launch(ONE, &read, step(3, 4))), Violation::Poisoned { row: 1, .. }));
    let copy = sim.copy(ONE, &Region::new(rows, 2..3), &Region::new(rows, 7..8));
    assert!(matches!(violation(copy), Violation::Poisoned { row: 2, .. }));
    launch(&mut sim, ONE, &[Access::write(rows, 1..3)], bring(1, 2));
    launch(&mut sim, ONE, &read, step(3, 4));
}

#[test]
fn a_lost_row_is_not_taken_for_a_result() {
    let (mut sim, rows) = device();
    let fails = launch(&mut sim, ONE, &[Access::write(rows, 0..1)], bring(1, 1).failing());
    let ended = sim.advance().expect("it ends");
    assert_eq!(ended.outcome, Err(WorkFailure::Failed("a planted fault".to_owned())));
    let lost = Violation::Lost { writer: by(fails, 0), buffer: rows, row: 0 };
    assert_eq!(violation(sim.read(rows, 0)), lost);
}

/// Runs two requests' rows through three stages in one batch. `offset` is where the second stage's program actually
/// reads its rows: a kernel may read other rows than its launch names.
fn two_requests(second_stage: impl Fn(u32) -> u32) -> Vec<u64> {
    let mut sim = Sim::new(1);
    let buffers: Vec<BufferId> = (0..3).map(|_| sim.allocate(8, 8).expect("a small buffer")).collect();
    for (request, start) in [(100, 0), (200, 2)] {
        let mut work = Work::new(0, 10, 1);
        work.sources.extend((0..2).map(|row| RowSource::External(external(request, row))));
        launch(&mut sim, ONE, &[Access::write(buffers[0], start..start + 2)], work);
    }
    for (start, count) in [(0, 2), (2, 2)] {
        let mut work = Work::new(1, 10, 1);
        work.sources.extend((0..count).map(|row| RowSource::Row { access: 0, row: second_stage(start + row) }));
        let accesses = [Access::read(buffers[0], 0..4), Access::write(buffers[1], start..start + count)];
        launch(&mut sim, ONE, &accesses, work);
    }
    launch(&mut sim, ONE, &stage(buffers[1], 0..4, buffers[2], 0..4), step(2, 4));
    finish(&mut sim);
    (0..4).map(|row| sim.read(buffers[2], row).expect("a result")).collect()
}

fn oracle() -> Vec<u64> {
    let one = |request, row| (1..3).fold(content(0, 0, &[external(request, row)]), |held, p| content(p, 0, &[held]));
    [(100, 0), (100, 1), (200, 0), (200, 1)].map(|(request, row)| one(request, row)).to_vec()
}

#[test]
fn the_right_rows_agree_with_the_serial_oracle() {
    assert_eq!(two_requests(|row| row), oracle());
}

#[test]
fn a_stage_at_offset_zero_instead_of_its_rows_shows() {
    let found = two_requests(|row| row % 2);
    assert_eq!(found[..2], oracle()[..2]);
    assert_ne!(found[2], oracle()[2]);
    assert_ne!(found[3], oracle()[3]);
}

#[test]
fn swapped_rows_show() {
    let found = two_requests(|row| row ^ 1);
    assert!(found.iter().zip(oracle()).all(|(found, expected)| *found != expected));
}

#[test]
fn contents_tell_programs_outputs_inputs_and_their_order_apart() {
    let all = [
        content(1, 0, &[1, 2]),
        content(1, 0, &[2, 1]),
        content(1, 1, &[1, 2]),
        content(2, 0, &[1, 2]),
        content(1, 0, &[1]),
        content(1, 0, &[]),
        external(1, 2),
        external(2, 1),
    ];
    for (place, one) in all.iter().enumerate() {
        assert!(!all[..place].contains(one), "content {place} equals an earlier one");
    }
}

#[test]
fn work_whose_sources_do_not_fit_is_refused() {
    let (mut sim, rows) = device();
    launch(&mut sim, ONE, &[Access::write(rows, 0..2)], bring(1, 2));
    let accesses = stage(rows, 0..2, rows, 2..4);
    for work in [step(1, 3), Work::row_by_row(1, 10, 2, 1, 2), {
        let mut beyond = Work::new(1, 10, 1);
        beyond.sources.extend([0, 2].map(|row| RowSource::Row { access: 0, row }));
        beyond
    }] {
        assert!(matches!(sim.launch(ONE, &accesses, work), Err(DeviceError::MalformedWork(_))));
    }
}
