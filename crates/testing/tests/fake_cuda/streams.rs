//! Streams and events.

use std::{
    ffi::c_void,
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use cudarc::driver::{
    result,
    sys::{self, CUevent_flags, CUresult::*},
};
use paternoster_testing::fake_control::{hold, release};

use crate::rig::{Rig, Word, Words, on_fake_cuda};

#[test]
fn a_stream_that_waits_for_the_host_stops_no_other() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let (held, free) = (rig.stream(), rig.stream());
        let (word, list) = (Word::new(), Words::new(8));
        rig.hold(&held, &word);
        rig.append(&held, &list, 2).unwrap();
        rig.append(&free, &list, 1).unwrap();
        free.synchronize().unwrap();
        assert_eq!(list.list(), [1], "the other went on");
        word.set();
        held.synchronize().unwrap();
        assert_eq!(list.list(), [1, 2]);
    });
}

#[test]
fn held_streams_run_as_many_operations_as_are_released() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let (stream, list) = (rig.stream(), Words::new(8));
        hold();
        (1..=4).for_each(|number| rig.append(&stream, &list, number).unwrap());
        for ran in 1..4 {
            release(1);
            while list.list().len() < ran {
                thread::yield_now();
            }
        }
        assert_eq!(list.list(), [1, 2, 3]);
        // SAFETY: the stream lives.
        assert_eq!(unsafe { sys::cuStreamQuery(stream.cu_stream()) }, CUDA_ERROR_NOT_READY);
        release(u64::MAX);
        rig.append(&stream, &list, 5).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(list.list(), [1, 2, 3, 4, 5]);
    });
}

#[test]
fn a_stream_runs_in_order() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let stream = rig.stream();
        let list = Words::new(101);
        let numbers: Vec<u32> = (1..=100).collect();
        numbers.iter().for_each(|number| rig.append(&stream, &list, *number).unwrap());
        stream.synchronize().unwrap();
        assert_eq!(list.list(), numbers);
    });
}

/// A step of the host.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    LaunchOnFirst,
    Record,
    Wait,
    LaunchOnSecond,
}

/// Returns all permutations of these steps.
fn orders(steps: &[Step]) -> Vec<Vec<Step>> {
    if steps.is_empty() {
        return vec![Vec::new()];
    }
    let mut found = Vec::new();
    for (place, first) in steps.iter().enumerate() {
        let mut rest = steps.to_vec();
        rest.remove(place);
        found.extend(orders(&rest).into_iter().map(|rest| [vec![*first], rest].concat()));
    }
    found
}

#[test]
fn a_wait_orders_streams_only_if_it_comes_after_the_record_and_before_the_work() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let orders = orders(&[Step::LaunchOnFirst, Step::Record, Step::Wait, Step::LaunchOnSecond]);
        assert_eq!(orders.len(), 24);
        for order in orders {
            let (first, second) = (rig.stream(), rig.stream());
            let (word, list) = (Word::new(), Words::new(4));
            let event = rig.context.new_event(None).unwrap();
            rig.hold(&first, &word);
            for step in &order {
                match step {
                    Step::LaunchOnFirst => rig.append(&first, &list, 1).unwrap(),
                    Step::Record => event.record(&first).unwrap(),
                    Step::Wait => second.wait(&event).unwrap(),
                    Step::LaunchOnSecond => rig.append(&second, &list, 2).unwrap(),
                }
            }
            let place = |wanted| order.iter().position(|step| *step == wanted).unwrap();
            let recorded = place(Step::Record) < place(Step::Wait);
            let ordered = recorded && place(Step::Wait) < place(Step::LaunchOnSecond);
            if !recorded {
                second.synchronize().unwrap();
            }
            if !ordered {
                // Work that does not wait runs.
                while list.list().is_empty() {
                    std::hint::spin_loop();
                }
                assert_eq!(list.list(), [2], "{order:?}: nothing holds the second up");
            }
            assert!(!event.is_complete(), "{order:?}: the first has not come by the event");
            word.set();
            first.synchronize().unwrap();
            second.synchronize().unwrap();
            assert!(event.is_complete(), "{order:?}");
            let done = list.list();
            assert_eq!(done.len(), 2, "{order:?}");
            let launched_before = place(Step::LaunchOnFirst) < place(Step::Record);
            if ordered && launched_before {
                assert_eq!(done, [1, 2], "{order:?}");
            }
        }
    });
}

#[test]
fn an_event_that_was_never_recorded_is_complete() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let stream = rig.stream();
        let event = rig.context.new_event(None).unwrap();
        assert!(event.is_complete());
        event.synchronize().unwrap();
        stream.wait(&event).unwrap();
        stream.synchronize().unwrap();
    });
}

#[test]
fn an_event_covers_what_was_issued_before_it() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let stream = rig.stream();
        let (first, second) = (Word::new(), Word::new());
        let event = rig.context.new_event(None).unwrap();
        rig.hold(&stream, &first);
        event.record(&stream).unwrap();
        rig.hold(&stream, &second);
        first.set();
        event.synchronize().unwrap();
        assert!(event.is_complete(), "what came later does not count");
        event.record(&stream).unwrap();
        assert!(!event.is_complete(), "recorded again, it covers more");
        second.set();
        event.synchronize().unwrap();
    });
}

#[test]
fn the_legacy_stream_and_blocking_streams_wait_for_each_other() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let legacy = rig.context.default_stream();
        let apart = rig.stream();
        // A blocking stream, the default kind.
        let blocking = rig.context.per_thread_stream();
        let (word, list) = (Word::new(), Words::new(8));
        rig.hold(&blocking, &word);
        rig.append(&blocking, &list, 2).unwrap();
        rig.append(&legacy, &list, 3).unwrap();
        rig.append(&apart, &list, 1).unwrap();
        apart.synchronize().unwrap();
        assert_eq!(list.list(), [1], "a stream that does not block waits for none");
        rig.append(&blocking, &list, 4).unwrap();
        word.set();
        blocking.synchronize().unwrap();
        assert_eq!(list.list(), [1, 2, 3, 4]);
    });
}

/// Adds one to the number, and calls CUDA, which is not allowed there.
unsafe extern "C" fn on_the_stream(data: *mut c_void) {
    let mut memory = 0;
    // SAFETY: the data belongs to the test, which waits for the stream.
    unsafe {
        let refused = sys::cuMemAlloc_v2(&mut memory, 16) == CUDA_ERROR_NOT_PERMITTED;
        (*data.cast::<AtomicU32>()).fetch_add(if refused { 1 } else { 100 }, Ordering::Relaxed);
    }
}

#[test]
fn functions_of_the_host_run_in_order_and_make_no_calls() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let stream = rig.stream();
        let (word, ran) = (Word::new(), AtomicU32::new(0));
        rig.hold(&stream, &word);
        for _ in 0..2 {
            let data = std::ptr::from_ref(&ran).cast_mut().cast();
            // SAFETY: the number outlives the stream's work.
            let launched = unsafe { sys::cuLaunchHostFunc(stream.cu_stream(), Some(on_the_stream), data) };
            assert_eq!(launched, CUDA_SUCCESS);
        }
        assert_eq!(ran.load(Ordering::Relaxed), 0, "the stream is held up");
        word.set();
        stream.synchronize().unwrap();
        assert_eq!(ran.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn a_stream_that_is_destroyed_does_its_work() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let (word, list) = (Word::new(), Words::new(2));
        let stream = rig.stream();
        rig.hold(&stream, &word);
        rig.append(&stream, &list, 1).unwrap();
        drop(stream);
        assert_eq!(list.list(), [0; 0]);
        word.set();
        rig.context.synchronize().unwrap();
        assert_eq!(list.list(), [1]);
    });
}

#[test]
fn times_are_of_events_that_keep_them() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let stream = rig.stream();
        let timed = Some(CUevent_flags::CU_EVENT_DEFAULT);
        let first = stream.record_event(timed).unwrap();
        rig.append(&stream, &Words::new(2), 1).unwrap();
        let second = stream.record_event(timed).unwrap();
        assert!(first.elapsed_ms(&second).unwrap() >= 0.0);
        assert!(second.elapsed_ms(&first).unwrap() <= 0.0);
        let untimed = stream.record_event(None).unwrap();
        assert_eq!(untimed.elapsed_ms(&second).map_err(|error| error.0), Err(CUDA_ERROR_INVALID_HANDLE));
    });
}

#[test]
fn destroyed_handles_are_refused() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        // SAFETY: the stand-in checks handles.
        unsafe {
            let stream = result::stream::create(result::stream::StreamKind::NonBlocking).unwrap();
            let event = result::event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING).unwrap();
            result::stream::destroy(stream).unwrap();
            let gone = Err(CUDA_ERROR_INVALID_HANDLE);
            assert_eq!(result::stream::synchronize(stream).map_err(|error| error.0), gone);
            assert_eq!(result::event::record(event, stream).map_err(|error| error.0), gone);
            assert_eq!(result::stream::destroy(stream).map_err(|error| error.0), gone);
            result::event::destroy(event).unwrap();
            assert_eq!(result::event::query(event).map_err(|error| error.0), gone);
        }
        drop(rig);
    });
}
