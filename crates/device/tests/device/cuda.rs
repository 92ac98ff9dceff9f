//! The CUDA device on the stand-in for the driver: which calls it makes, and how errors end.
//!
//! Each test runs in its own process, which finds the stand-in.

use std::{collections::BTreeSet, sync::Arc};

use cudarc::driver::sys::CUresult::{CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_OUT_OF_MEMORY};
use paternoster_device::{Access, Device, DeviceError, Operation, StreamId, cuda::cards};
use paternoster_testing::{
    fake_control::{calls, fail, fail_calls, fail_none, traced},
    fake_cuda::with_fake_cuda,
};

use crate::{
    harness::{Harness, bring, chain, stage, step},
    on_cuda::{DEPTH, OnCuda, Opening},
};

/// Returns the driver's functions that are called while `run` runs.
fn functions_called(run: impl FnOnce()) -> Vec<String> {
    let function =
        |line: &str| line.split_whitespace().nth(1).and_then(|call| call.split('(').next()).map(str::to_owned);
    traced(run).lines().filter_map(function).collect()
}

#[test]
fn cards_are_named() {
    with_fake_cuda(&[], || {
        let cards = cards::cards().expect("there is a card");
        assert_eq!(cards[0].ordinal, 0);
        assert!(cards[0].capability >= (7, 5) && cards[0].memory_bytes > 0, "{cards:?}");
        assert!(cards[0].uuid.starts_with("GPU-"), "{cards:?}");
    });
}

#[test]
fn a_launch_is_one_call_and_a_ticket_for_other_streams_one_more() {
    with_fake_cuda(&[], || {
        for (streams, expected) in [(1, vec!["cuGraphLaunch"]), (2, vec!["cuGraphLaunch", "cuEventRecord"])] {
            let mut on = OnCuda::start(streams);
            let rows = on.buffer(1);
            // A ticket that is complete already needs no event.
            on.launch_held(0, &[Access::write(rows, 0..1)], bring(1, 1));
            let again = on.prepare(0, &[Access::update(rows, 0..1)], &step(3, 1));
            let calls = functions_called(|| {
                on.again(0, &[Access::update(rows, 0..1)], &again);
                on.record(0);
            });
            on.release();
            let own: Vec<String> = calls.into_iter().filter(|call| call != "cuStreamQuery").collect();
            assert_eq!(own, expected, "{streams} streams");
            on.drain(0);
            assert_eq!(on.contents(rows, 0..1), [chain(1, [3])]);
        }
    });
}

#[test]
fn nothing_allocates_or_synchronises_after_load() {
    with_fake_cuda(&[], || {
        let mut on = OnCuda::start(2);
        let rows = on.buffer(2);
        on.launch(0, &[Access::write(rows, 0..1)], bring(1, 1));
        on.drain(0);
        let there = on.prepare(0, &stage(rows, 0..1, rows, 1..2), &step(1, 1));
        let back = on.prepare(1, &stage(rows, 1..2, rows, 0..1), &step(2, 1));
        let calls = functions_called(|| {
            for _ in 0..100 {
                on.again(0, &stage(rows, 0..1, rows, 1..2), &there);
                let ticket = on.record(0);
                on.wait(1, ticket);
                on.again(1, &stage(rows, 1..2, rows, 0..1), &back);
                let ticket = on.record(1);
                on.wait(0, ticket);
            }
        });
        let known: BTreeSet<&str> =
            ["cuGraphLaunch", "cuEventRecord", "cuStreamWaitEvent", "cuStreamQuery"].into_iter().collect();
        let others: Vec<&String> = calls.iter().filter(|call| !known.contains(call.as_str())).collect();
        assert!(others.is_empty(), "{others:?}");
        assert_eq!(calls.iter().filter(|call| *call == "cuGraphLaunch").count(), 200);
        on.drain(0);
        on.drain(1);
        assert_eq!(on.contents(rows, 0..1), [chain(1, [1, 2].repeat(100))]);
    });
}

#[test]
fn as_many_operations_are_in_flight_as_there_are_blocks_for_and_no_more() {
    with_fake_cuda(&[], || {
        let mut on = OnCuda::start(1);
        let rows = on.buffer(2);
        on.launch_held(0, &[Access::write(rows, 0..1)], bring(1, 1));
        let work = on.prepare(0, &stage(rows, 0..1, rows, 1..2), &step(1, 1));
        for _ in 1..DEPTH {
            on.again(0, &stage(rows, 0..1, rows, 1..2), &work);
        }
        let full = DeviceError::Full { stream: StreamId(0), depth: DEPTH };
        assert_eq!(on.try_again(0, &stage(rows, 0..1, rows, 1..2), &work), Err(full));
        on.release();
        on.drain(0);
        on.again(0, &stage(rows, 0..1, rows, 1..2), &work);
        on.drain(0);
        assert_eq!(on.contents(rows, 1..2), [chain(1, [1])]);
    });
}

#[test]
fn an_error_that_passes_by_is_answered_and_the_device_goes_on() {
    with_fake_cuda(&[], || {
        let mut on = OnCuda::start(1);
        fail_calls(c"cuMemAlloc_v2", 1, CUDA_ERROR_OUT_OF_MEMORY);
        let refused = on.device().allocate(1, 8).expect_err("there is no memory");
        assert!(matches!(&refused, DeviceError::Driver(reason) if reason.contains("OUT_OF_MEMORY")), "{refused}");
        let rows = on.buffer(1);
        on.launch(0, &[Access::write(rows, 0..1)], bring(1, 1));
        on.drain(0);
        assert_eq!(on.contents(rows, 0..1), [chain(1, [])]);
    });
}

#[test]
fn an_error_without_a_way_back_loses_the_device_and_is_told() {
    with_fake_cuda(&[], || {
        let mut on = OnCuda::start(2);
        let rows = on.buffer(1);
        on.launch_held(0, &[Access::write(rows, 0..1)], bring(1, 1));
        // The poller queries the streams while something is in flight.
        fail_calls(c"cuStreamQuery", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
        let reason = on.loss();
        assert!(reason.contains("ILLEGAL_ADDRESS"), "{reason}");
        let lost = |answered: Result<Operation, DeviceError>| matches!(answered, Err(DeviceError::Lost(_)));
        assert!(lost(on.try_launch(1, &[], bring(0, 0))));
        assert!(matches!(on.device().allocate(1, 8), Err(DeviceError::Lost(_))));
        on.open_gate_from_the_host();
    });
}

/// A small program: its result is correct, or it is an error.
fn program(opening: &Opening) -> Result<Vec<u64>, DeviceError> {
    let mut on = opening.open(2)?;
    let rows = on.device().allocate(3, 8)?;
    on.try_launch(0, &[Access::write(rows, 0..1)], bring(1, 1))?;
    let ticket = on.device().record(StreamId(0))?;
    on.device().wait(StreamId(1), ticket)?;
    on.try_launch(1, &stage(rows, 0..1, rows, 1..2), step(2, 1))?;
    let slots: Arc<[u32]> = [1].into();
    let (from, to) = (Access::read(rows, slots).region, Access::write(rows, 2..3).region);
    on.device().copy(StreamId(1), &from, &to)?;
    let last = on.device().record(StreamId(1))?;
    on.try_until(last)?;
    on.try_contents(rows, 0..3)
}

#[test]
fn an_error_at_any_call_is_an_error_and_never_a_wrong_answer() {
    with_fake_cuda(&[], || {
        let opening = Opening::default();
        let right = vec![chain(1, []), chain(1, [2]), chain(1, [2])];
        let before = calls();
        assert_eq!(program(&opening), Ok(right.clone()));
        let count = calls() - before;
        assert!(count > 40, "{count} calls");
        let mut refused = 0;
        for nth in 1..=count {
            fail(nth, CUDA_ERROR_OUT_OF_MEMORY);
            match program(&opening) {
                Ok(answer) => assert_eq!(answer, right, "call {nth}"),
                Err(_) => refused += 1,
            }
            fail_none();
        }
        assert!(refused * 2 > count, "only {refused} of {count} errors were seen");
    });
}
