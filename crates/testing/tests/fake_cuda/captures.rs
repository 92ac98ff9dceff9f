//! Captures and graphs.

use std::sync::{Arc, atomic::Ordering};

use cudarc::driver::{
    CudaStream, DevicePtr, DriverError, result,
    sys::{self, CUgraphInstantiate_flags, CUresult, CUresult::*, CUstreamCaptureMode, CUstreamCaptureMode::*},
};

use crate::rig::{Rig, Word, Words, argument, on_fake_cuda};

const MODE: CUstreamCaptureMode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const NO_FLAGS: CUgraphInstantiate_flags = CUgraphInstantiate_flags(0);

fn code<T>(result: Result<T, DriverError>) -> Result<(), CUresult> {
    result.map(|_| ()).map_err(|error| error.0)
}

#[test]
fn a_replay_reads_parameters_when_it_runs() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let stream = rig.stream();
        let x = stream.clone_htod(&[1.0_f32, 2.0, 3.0]).unwrap();
        let y = stream.alloc_zeros::<f32>(3).unwrap();
        let factor = Words::new(1);
        let (mut from, mut to, mut at) = (x.device_ptr(&stream).0, y.device_ptr(&stream).0, factor.device());
        let mut count = 3_i32;
        stream.begin_capture(MODE).unwrap();
        let mut arguments = [argument(&mut from), argument(&mut to), argument(&mut at), argument(&mut count)];
        rig.launch(&stream, "scale", &mut arguments).unwrap();
        // Like a launch, a capture copies the values of its arguments.
        (from, to, at, count) = (0, 0, 0, 0);
        assert_eq!((from, to, at, count), (0, 0, 0, 0));
        let graph = stream.end_capture(NO_FLAGS).unwrap().unwrap();
        assert_eq!(stream.clone_dtoh(&y).unwrap(), [0.0; 3], "a capture runs nothing");
        for value in [2.0_f32, 10.0] {
            factor.at(0).store(value.to_bits(), Ordering::Release);
            graph.launch().unwrap();
            assert_eq!(stream.clone_dtoh(&y).unwrap(), [value, 2.0 * value, 3.0 * value]);
        }
    });
}

#[test]
fn captures_fork_and_join_by_events() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let (main, side) = (rig.stream(), rig.stream());
        let list = Words::new(16);
        let (forked, joined) = (rig.context.new_event(None).unwrap(), rig.context.new_event(None).unwrap());
        main.begin_capture(MODE).unwrap();
        rig.append(&main, &list, 1).unwrap();
        forked.record(&main).unwrap();
        side.wait(&forked).unwrap();
        rig.append(&side, &list, 2).unwrap();
        joined.record(&side).unwrap();
        main.wait(&joined).unwrap();
        rig.append(&main, &list, 3).unwrap();
        assert_eq!(side.capture_status().unwrap(), sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
        let graph = main.end_capture(NO_FLAGS).unwrap().unwrap();
        assert_eq!(side.capture_status().unwrap(), sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
        graph.launch().unwrap();
        graph.launch().unwrap();
        main.synchronize().unwrap();
        assert_eq!(list.list(), [1, 2, 3, 1, 2, 3]);
        rig.append(&side, &list, 4).unwrap();
        side.synchronize().unwrap();
        assert_eq!(list.list()[6..], [4], "the other stream is as it was");
    });
}

#[test]
fn a_graph_runs_in_the_order_of_its_stream_and_never_beside_itself() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let (first, second) = (rig.stream(), rig.stream());
        let (word, list) = (Word::new(), Words::new(16));
        first.begin_capture(MODE).unwrap();
        rig.append(&first, &list, 1).unwrap();
        rig.hold(&first, &word);
        rig.append(&first, &list, 2).unwrap();
        let graph = first.end_capture(NO_FLAGS).unwrap().unwrap();
        graph.launch().unwrap();
        // SAFETY: both handles are valid.
        unsafe { result::graph::launch(graph.cu_graph_exec(), second.cu_stream()) }.unwrap();
        rig.append(&first, &list, 3).unwrap();
        while list.list().is_empty() {
            std::hint::spin_loop();
        }
        assert_eq!(list.list(), [1], "the second launch waits for the first, though on another stream");
        word.set();
        first.synchronize().unwrap();
        second.synchronize().unwrap();
        let done: Vec<u32> = list.list().into_iter().filter(|value| *value != 3).collect();
        assert_eq!(done, [1, 2, 1, 2]);
    });
}

/// A call that is forbidden while a stream captures, and its status.
type Forbidden = (&'static str, fn(&Rig, &CudaStream) -> Result<(), CUresult>, CUresult);

const FORBIDDEN: [Forbidden; 8] = [
    ("an allocation", |_, _| code(unsafe { result::malloc_sync(16) }), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
    ("pinned memory", |_, _| code(unsafe { result::malloc_host(16, 0) }), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
    ("synchronizing it", |_, stream| code(stream.synchronize()), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
    (
        "asking how far it is",
        |_, stream| match unsafe { sys::cuStreamQuery(stream.cu_stream()) } {
            CUDA_SUCCESS => Ok(()),
            error => Err(error),
        },
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
    ),
    ("synchronizing the context", |rig, _| code(rig.context.synchronize()), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
    (
        "synchronizing an event of the capture",
        |rig, stream| {
            let event = rig.context.new_event(None).unwrap();
            event.record(stream).unwrap();
            code(event.synchronize())
        },
        CUDA_ERROR_CAPTURED_EVENT,
    ),
    (
        "waiting for an event of before",
        |rig, stream| {
            let event = rig.context.new_event(None).unwrap();
            event.record(&rig.stream()).unwrap();
            code(stream.wait(&event))
        },
        CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
    ),
    (
        "a copy that waits",
        |_, _| code(unsafe { result::memcpy_htod_sync(0x1000, &[0_u8; 4]) }),
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
    ),
];

#[test]
fn what_is_forbidden_in_a_capture_invalidates_it() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let list = Words::new(1 + FORBIDDEN.len());
        for (what, forbidden, answer) in FORBIDDEN {
            let stream = rig.stream();
            stream.begin_capture(MODE).unwrap();
            rig.append(&stream, &list, 1).unwrap();
            assert_eq!(forbidden(&rig, &stream), Err(answer), "{what}");
            let more = rig.append(&stream, &list, 2);
            assert_eq!(code(more), Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED), "{what}");
            assert_eq!(code(stream.end_capture(NO_FLAGS)), Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED), "{what}");
            // The stream is usable again.
            rig.append(&stream, &list, 3).unwrap();
            stream.synchronize().unwrap();
        }
        assert_eq!(list.list(), vec![3; FORBIDDEN.len()], "nothing that was captured ran");
    });
}

#[test]
fn a_capture_ends_where_it_began() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let (main, side) = (rig.stream(), rig.stream());
        let list = Words::new(8);
        assert_eq!(code(main.end_capture(NO_FLAGS)), Err(CUDA_ERROR_ILLEGAL_STATE), "it never began");
        let event = rig.context.new_event(None).unwrap();
        let fork = || {
            main.begin_capture(MODE).unwrap();
            assert_eq!(code(main.begin_capture(MODE)), Err(CUDA_ERROR_ILLEGAL_STATE), "it has begun");
            event.record(&main).unwrap();
            side.wait(&event).unwrap();
            rig.append(&side, &list, 1).unwrap();
        };
        fork();
        assert_eq!(code(main.end_capture(NO_FLAGS)), Err(CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
        fork();
        assert_eq!(code(side.end_capture(NO_FLAGS)), Err(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED));
        assert_eq!(code(main.end_capture(NO_FLAGS)), Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
        main.begin_capture(MODE).unwrap();
        let elsewhere = std::thread::scope(|scope| scope.spawn(|| code(main.end_capture(NO_FLAGS))).join().unwrap());
        assert_eq!(elsewhere, Err(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD));
        assert_eq!(code(main.end_capture(NO_FLAGS)), Ok(()), "its own thread ends it");
        assert_eq!(list.list(), [0; 0]);
    });
}

/// Returns whether a capture in this mode on another thread forbids a call.
fn forbids_others(rig: &Rig, stream: &Arc<CudaStream>, mode: CUstreamCaptureMode) -> bool {
    stream.begin_capture(mode).unwrap();
    let context = &rig.context;
    let elsewhere = std::thread::scope(|scope| {
        let call = scope.spawn(|| {
            context.bind_to_thread().unwrap();
            // SAFETY: the memory is not used.
            code(unsafe { result::malloc_sync(16) })
        });
        call.join().unwrap()
    });
    let ended = code(stream.end_capture(NO_FLAGS));
    assert_eq!(ended.is_err(), elsewhere.is_err(), "a call that is refused invalidates the capture");
    elsewhere.is_err()
}

#[test]
fn the_mode_says_whose_calls_are_forbidden() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let stream = rig.stream();
        assert!(forbids_others(&rig, &stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        assert!(!forbids_others(&rig, &stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        assert!(!forbids_others(&rig, &stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        stream.begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        // SAFETY: the memory is not used.
        assert_eq!(code(unsafe { result::malloc_sync(16) }), Ok(()), "a relaxed capture forbids nothing");
        assert_eq!(code(stream.end_capture(NO_FLAGS)), Ok(()));
    });
}
