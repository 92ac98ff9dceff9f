//! The device contract, as tests that run on each device.

use std::{sync::Arc, time::Duration};

use paternoster_device::{Access, Device, DeviceError, Region, RowError, StreamId, WorkFailure};
use paternoster_testing::{fake_cuda::is_on_card, sim::content};

use crate::{
    harness::{Harness, OnCpu, OnSim, PATIENCE, bring, chain, stage, step},
    on_cuda::OnCuda,
};

/// Runs each test of the suite on each device, except those that a card cannot pass: a kernel cannot report a failure,
/// and issued work cannot be cancelled.
macro_rules! conformance {
    (everywhere: $($test:ident),+; but_on_a_card: $($other:ident),+ $(,)?) => {
        mod cpu {
            $(#[test] fn $test() { super::$test::<super::OnCpu>(); })+
            $(#[test] fn $other() { super::$other::<super::OnCpu>(); })+
        }
        mod sim {
            $(#[test] fn $test() { super::$test::<super::OnSim>(); })+
            $(#[test] fn $other() { super::$other::<super::OnSim>(); })+
        }
        mod cuda {
            $(#[test] fn $test() { paternoster_testing::fake_cuda::with_card(|| super::$test::<super::OnCuda>()); })+
        }
    };
}

conformance! {
    everywhere:
    a_stream_runs_its_operations_in_their_order,
    streams_run_beside_each_other,
    a_chain_that_changes_streams_at_each_step_gives_what_one_stream_would,
    a_ticket_does_not_wait_for_what_was_issued_later,
    a_ticket_recorded_after_a_wait_stands_for_the_wait_too,
    a_ticket_of_a_stream_without_operations_is_complete,
    a_ticket_of_another_device_is_refused,
    what_is_known_to_be_complete_needs_no_wait,
    copies_move_ranges_and_lists_of_rows,
    rows_by_index_are_gathered_and_scattered_in_their_order,
    rows_are_updated_in_place,
    every_written_access_is_an_output_of_its_own,
    what_is_wrong_is_refused_and_not_issued,
    a_freed_buffer_is_unknown;
    but_on_a_card:
    failed_work_completes_and_loses_its_rows,
    what_reads_lost_rows_fails_until_they_are_written_again,
    a_stopped_device_lets_running_work_end_and_abandons_the_rest,
}

fn a_stream_runs_its_operations_in_their_order<H: Harness>() {
    let mut on = H::start(1);
    let rows = on.buffer(3);
    on.launch_held(0, &[Access::write(rows, 0..3)], bring(7, 3));
    for program in 1..=20 {
        on.launch(0, &[Access::update(rows, 0..3)], step(program, 3));
    }
    on.release();
    on.drain(0);
    assert_eq!(on.contents(rows, 0..3), [chain(7, 1..=20), chain(8, 1..=20), chain(9, 1..=20)]);
}

fn streams_run_beside_each_other<H: Harness>() {
    let mut on = H::start(2);
    let (held, free) = (on.buffer(1), on.buffer(1));
    on.launch_held(0, &[Access::write(held, 0..1)], bring(1, 1));
    let behind = on.record(0);
    on.launch(1, &[Access::write(free, 0..1)], bring(2, 1));
    on.drain(1);
    assert!(!on.device().is_complete(behind));
    on.release();
    on.until(behind);
}

fn a_chain_that_changes_streams_at_each_step_gives_what_one_stream_would<H: Harness>() {
    let mut on = H::start(3);
    let rows = on.buffer(1);
    on.launch_held(0, &[Access::write(rows, 0..1)], bring(5, 1));
    let mut last = on.record(0);
    // A driver blocks a launch behind so many that wait.
    let count = if is_on_card() { 60 } else { 300 };
    for program in 1..=count {
        let stream = (program % 3) as u16;
        on.wait(stream, last);
        on.launch(stream, &[Access::update(rows, 0..1)], step(program, 1));
        last = on.record(stream);
    }
    on.release();
    on.until(last);
    assert_eq!(on.contents(rows, 0..1), [chain(5, 1..=count)]);
}

fn a_ticket_does_not_wait_for_what_was_issued_later<H: Harness>() {
    let mut on = H::start(2);
    let rows = on.buffer(3);
    on.launch(0, &[Access::write(rows, 0..1)], bring(1, 1));
    let early = on.record(0);
    on.launch_held(0, &[Access::write(rows, 1..2)], bring(2, 1));
    let late = on.record(0);
    on.wait(1, early);
    on.launch(1, &stage(rows, 0..1, rows, 2..3), step(4, 1));
    on.drain(1);
    assert!(on.device().is_complete(early));
    assert!(!on.device().is_complete(late));
    assert_eq!(on.contents(rows, 2..3), [chain(1, [4])]);
    on.release();
    on.until(late);
}

fn a_ticket_recorded_after_a_wait_stands_for_the_wait_too<H: Harness>() {
    let mut on = H::start(3);
    let rows = on.buffer(2);
    on.launch_held(0, &[Access::write(rows, 0..1)], bring(1, 1));
    let first = on.record(0);
    on.wait(1, first);
    let second = on.record(1);
    assert!(!on.device().is_complete(second));
    on.wait(2, second);
    on.launch(2, &stage(rows, 0..1, rows, 1..2), step(3, 1));
    on.release();
    on.drain(2);
    assert!(on.device().is_complete(first));
    assert!(on.device().is_complete(second));
    assert_eq!(on.contents(rows, 1..2), [chain(1, [3])]);
}

fn a_ticket_of_a_stream_without_operations_is_complete<H: Harness>() {
    let mut on = H::start(2);
    let nothing = on.record(0);
    assert_eq!(nothing.stream(), StreamId(0));
    assert!(on.device().is_complete(nothing));
    on.wait(1, nothing);
    let still_nothing = on.record(1);
    assert!(on.device().is_complete(still_nothing));
}

fn a_ticket_of_another_device_is_refused<H: Harness>() {
    let (mut on, mut other) = (H::start(2), H::start(2));
    let rows = other.buffer(1);
    other.launch(0, &[Access::write(rows, 0..1)], bring(1, 1));
    let foreign = other.record(0);
    assert_eq!(on.device().wait(StreamId(1), foreign), Err(DeviceError::UnknownTicket(StreamId(0))));
    assert!(!on.device().is_complete(foreign));
}

fn what_is_known_to_be_complete_needs_no_wait<H: Harness>() {
    let mut on = H::start(2);
    let rows = on.buffer(2);
    on.launch(0, &[Access::write(rows, 0..1)], bring(1, 1));
    on.drain(0);
    let read = on.launch(1, &stage(rows, 0..1, rows, 1..2), step(2, 1));
    assert_eq!(on.outcome(read), Ok(()));
    assert_eq!(on.contents(rows, 1..2), [chain(1, [2])]);
}

fn copies_move_ranges_and_lists_of_rows<H: Harness>() {
    let mut on = H::start(1);
    let (from, to) = (on.buffer(4), on.buffer(4));
    on.launch(0, &[Access::write(from, 0..4)], bring(10, 4));
    let copy = |on: &mut H, source: Region, target: Region| on.device().copy(StreamId(0), &source, &target);
    assert!(copy(&mut on, Region::new(from, 1..3), Region::new(to, 0..2)).is_ok());
    let (last, first): (Arc<[u32]>, Arc<[u32]>) = ([3, 0].into(), [2, 3].into());
    assert!(copy(&mut on, Region::new(from, last), Region::new(to, first)).is_ok());
    on.drain(0);
    let expected = [11, 12, 13, 10].map(|brought| chain(brought, []));
    assert_eq!(on.contents(to, 0..4), expected);
}

fn rows_by_index_are_gathered_and_scattered_in_their_order<H: Harness>() {
    let mut on = H::start(1);
    let (from, to) = (on.buffer(4), on.buffer(4));
    on.launch(0, &[Access::write(from, 0..4)], bring(10, 4));
    on.launch(0, &[Access::write(to, 0..4)], bring(90, 4));
    // A row may be read twice, as the rows that pad a bucket are.
    let (read, written): (Arc<[u32]>, Arc<[u32]>) = ([2, 0, 2].into(), [3, 1, 0].into());
    on.launch(0, &[Access::read(from, read), Access::write(to, written)], step(1, 3));
    on.drain(0);
    assert_eq!(on.contents(to, 0..4), [chain(12, [1]), chain(10, [1]), chain(92, []), chain(12, [1])]);
}

fn rows_are_updated_in_place<H: Harness>() {
    let mut on = H::start(1);
    let state = on.buffer(4);
    on.launch(0, &[Access::write(state, 0..4)], bring(1, 4));
    let slots: Arc<[u32]> = [3, 1].into();
    on.launch(0, &[Access::update(state, slots)], step(6, 2));
    on.drain(0);
    assert_eq!(on.contents(state, 0..4), [chain(1, []), chain(2, [6]), chain(3, []), chain(4, [6])]);
}

fn every_written_access_is_an_output_of_its_own<H: Harness>() {
    let mut on = H::start(1);
    let (from, one, two) = (on.buffer(2), on.buffer(2), on.buffer(2));
    on.launch(0, &[Access::write(from, 0..2)], bring(1, 2));
    let accesses = [Access::read(from, 0..2), Access::write(one, 0..2), Access::write(two, 0..2)];
    on.launch(0, &accesses, paternoster_testing::sim::Work::row_by_row(4, 10, 1, 2, 2));
    on.drain(0);
    assert_eq!(on.contents(one, 0..2), [1, 2].map(|brought| content(4, 0, &[chain(brought, [])])));
    assert_eq!(on.contents(two, 0..2), [1, 2].map(|brought| content(4, 1, &[chain(brought, [])])));
}

fn failed_work_completes_and_loses_its_rows<H: Harness>() {
    let mut on = H::start(2);
    let rows = on.buffer(3);
    on.launch(0, &[Access::write(rows, 0..1)], bring(1, 1));
    let fails = on.launch(0, &stage(rows, 0..1, rows, 1..2), step(2, 1).failing());
    let ticket = on.record(0);
    let later = on.launch(0, &stage(rows, 0..1, rows, 2..3), step(3, 1));
    on.wait(1, ticket);
    let reads_lost = on.launch(1, &[Access::update(rows, 1..2)], step(4, 1));
    assert_eq!(on.outcome(fails), Err(WorkFailure::Failed("a planted fault".to_owned())));
    assert_eq!(on.outcome(later), Ok(()), "the stream goes on");
    assert_eq!(on.outcome(reads_lost), Err(WorkFailure::Rows(RowError::NotWritten { row: 1 })));
    on.until(ticket);
    assert_eq!(on.contents(rows, 0..1), [chain(1, [])], "what it read is whole");
    assert_eq!(on.contents(rows, 2..3), [chain(1, [3])]);
}

fn what_reads_lost_rows_fails_until_they_are_written_again<H: Harness>() {
    let mut on = H::start(1);
    let (rows, copied, made) = (on.buffer(1), on.buffer(1), on.buffer(1));
    let lost = Err(WorkFailure::Rows(RowError::NotWritten { row: 0 }));
    on.launch(0, &[Access::write(rows, 0..1)], bring(1, 1).failing());
    assert!(on.device().copy(StreamId(0), &Region::new(rows, 0..1), &Region::new(copied, 0..1)).is_ok());
    let read = on.launch(0, &stage(copied, 0..1, made, 0..1), step(1, 1));
    let read_on = on.launch(0, &[Access::update(made, 0..1)], step(2, 1));
    assert_eq!(on.outcome(read), lost, "a copy of a lost row is lost");
    assert_eq!(on.outcome(read_on), lost, "what fails loses its own rows");
    on.launch(0, &[Access::write(copied, 0..1)], bring(8, 1));
    let again = on.launch(0, &stage(copied, 0..1, made, 0..1), step(1, 1));
    assert_eq!(on.outcome(again), Ok(()));
    assert_eq!(on.contents(made, 0..1), [chain(8, [1])]);
}

fn what_is_wrong_is_refused_and_not_issued<H: Harness>() {
    let mut on = H::start(1);
    let (rows, wide) = (on.buffer(4), on.device().allocate(4, 16).expect("a small buffer"));
    on.launch(0, &[Access::write(rows, 0..4)], bring(1, 4));
    let beyond = on.try_launch(0, &[Access::read(rows, 2..5)], step(1, 0));
    assert_eq!(beyond, Err(DeviceError::OutOfRange { buffer: rows, row: 4, capacity: 4 }));
    let twice = |row| Err(DeviceError::NamedTwice { buffer: rows, row });
    assert_eq!(on.try_launch(0, &stage(rows, 0..3, rows, 2..4), step(1, 2)), twice(2));
    let slots: Arc<[u32]> = [3, 1, 3].into();
    assert_eq!(on.try_launch(0, &[Access::update(rows, Arc::clone(&slots))], step(1, 3)), twice(3));
    assert_eq!(on.try_launch(0, &[Access::read(rows, 1..2), Access::write(rows, slots)], bring(1, 3)), twice(3));
    let nowhere = DeviceError::UnknownStream { stream: StreamId(1), streams: 1 };
    assert_eq!(on.try_launch(1, &[], bring(0, 0)), Err(nowhere.clone()));
    assert_eq!(on.device().record(StreamId(1)).err(), Some(nowhere));
    let copy = on.device().copy(StreamId(0), &Region::new(rows, 0..1), &Region::new(wide, 0..1));
    assert_eq!(copy, Err(DeviceError::CopySizes { from_rows: 1, from_row_bytes: 8, to_rows: 1, to_row_bytes: 16 }));
    let right = on.launch(0, &[Access::update(rows, 0..4)], step(2, 4));
    assert_eq!(right.position, 2, "what was refused took no place in the stream");
    on.drain(0);
    assert_eq!(on.contents(rows, 3..4), [chain(4, [2])]);
}

fn a_freed_buffer_is_unknown<H: Harness>() {
    let mut on = H::start(1);
    let rows = on.buffer(1);
    on.launch(0, &[Access::write(rows, 0..1)], bring(1, 1));
    on.drain(0);
    assert_eq!(on.device().free(rows), Ok(()));
    let unknown = DeviceError::UnknownBuffer(rows);
    assert_eq!(on.device().free(rows), Err(unknown.clone()));
    let next = on.buffer(1);
    assert_ne!(next, rows, "names are not given twice");
    assert_eq!(on.try_launch(0, &[Access::write(rows, 0..1)], bring(1, 1)), Err(unknown));
}

fn a_stopped_device_lets_running_work_end_and_abandons_the_rest<H: Harness>() {
    let mut on = H::start(2);
    let rows = on.buffer(3);
    let runs = on.launch_held(0, &[Access::write(rows, 0..1)], bring(1, 1));
    let ticket = on.record(0);
    let queued = on.launch(0, &[Access::write(rows, 1..2)], bring(2, 1));
    let behind = on.record(0);
    on.wait(1, ticket);
    let waiting = on.launch(1, &[Access::write(rows, 2..3)], bring(3, 1));
    assert!(!on.device().stop(Duration::ZERO), "work is running");
    on.release();
    assert!(on.device().stop(PATIENCE));
    assert_eq!(on.outcome(runs), Ok(()));
    assert_eq!(on.outcome(queued), Err(WorkFailure::Stopped));
    assert_eq!(on.outcome(waiting), Err(WorkFailure::Stopped));
    assert!(on.device().is_complete(ticket));
    assert!(!on.device().is_complete(behind));
    assert_eq!(on.try_launch(0, &[], bring(0, 0)), Err(DeviceError::Stopped));
    assert_eq!(on.device().record(StreamId(0)).err(), Some(DeviceError::Stopped));
    assert_eq!(on.device().wait(StreamId(0), ticket), Err(DeviceError::Stopped));
}
