//! Errors: injected ones, those that ruin a context, and the contents of a trace.

use cudarc::driver::{
    CudaContext, DriverError, result,
    sys::{self, CUdeviceptr, CUresult::*},
};
use paternoster_testing::{
    fake_control::{calls, fail, fail_calls, fail_none, traced},
    fake_cuda::{command, with_fake_cuda},
};

use crate::rig::{Rig, Word, Words, argument, on_fake_cuda};

/// A small program that uses a little of everything.
fn program(rig: &Rig) -> Result<Vec<u32>, DriverError> {
    let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP;
    // SAFETY: everything is freed after the stream's work on it has ended, or never.
    unsafe {
        let (stream, other) = (
            result::stream::create(result::stream::StreamKind::NonBlocking)?,
            result::stream::create(result::stream::StreamKind::NonBlocking)?,
        );
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
        let memory = result::malloc_sync(16)?;
        let host = result::malloc_host(16, flags)?;
        result::memset_d8_async(memory, 0, 16, stream)?;
        let name = c"append".to_owned();
        let function = result::module::get_function(rig.module(), name)?;
        let (mut list, mut value) = (memory, 5_u32);
        let mut arguments = [argument(&mut list), argument(&mut value)];
        result::launch_kernel(function, (1, 1, 1), (32, 1, 1), 0, stream, &mut arguments)?;
        result::event::record(event, stream)?;
        result::stream::wait_event(other, event, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT)?;
        let back = std::slice::from_raw_parts_mut(host.cast::<u32>(), 4);
        result::memcpy_dtoh_async(back, memory, other)?;
        result::stream::synchronize(other)?;
        let answer = back.to_vec();
        result::free_host(host)?;
        result::free_sync(memory)?;
        result::event::destroy(event)?;
        result::stream::destroy(other)?;
        result::stream::destroy(stream)?;
        Ok(answer)
    }
}

#[test]
fn an_error_at_any_call_is_an_error_and_never_a_wrong_answer() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let before = calls();
        assert_eq!(program(&rig).unwrap(), [1, 5, 0, 0]);
        let count = calls() - before;
        assert!(count >= 15, "the program makes {count} calls");
        for nth in 1..=count {
            fail(nth, CUDA_ERROR_UNKNOWN);
            let before = calls();
            assert_eq!(program(&rig), Err(DriverError(CUDA_ERROR_UNKNOWN)), "call {nth}");
            assert_eq!(calls() - before, nth, "the program ends where it failed");
            fail_none();
            assert_eq!(program(&rig).unwrap(), [1, 5, 0, 0], "after a failure of call {nth}");
        }
        fail(count + 1, CUDA_ERROR_UNKNOWN);
        assert_eq!(program(&rig).unwrap(), [1, 5, 0, 0], "a later call is not this program's");
    });
}

#[test]
fn calls_of_one_function_fail() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        fail_calls(c"cuStreamCreate", 2, CUDA_ERROR_OUT_OF_MEMORY);
        let create = || result::stream::create(result::stream::StreamKind::NonBlocking).map(|_| ()).map_err(|e| e.0);
        assert_eq!([create(), create(), create()], [Ok(()), Err(CUDA_ERROR_OUT_OF_MEMORY), Ok(())]);
        fail_none();
        fail_calls(c"cuStreamCreate", 0, CUDA_ERROR_NOT_PERMITTED);
        assert_eq!([create(), create()], [Err(CUDA_ERROR_NOT_PERMITTED); 2]);
        fail_none();
        assert_eq!(create(), Ok(()));
        drop(rig);
    });
}

/// Checks that every call in a ruined context returns this code.
fn assert_ruined(rig: &Rig, code: sys::CUresult) {
    let ruined = Err(DriverError(code));
    // SAFETY: handles and addresses are checked.
    unsafe {
        assert_eq!(result::malloc_sync(16), ruined.map(|()| 0));
        assert_eq!(result::ctx::synchronize(), ruined);
        assert_eq!(result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map(|_| ()), ruined);
        assert_eq!(result::stream::create(result::stream::StreamKind::NonBlocking).map(|_| ()), ruined);
        let current = rig.context.cu_ctx();
        assert_eq!(result::ctx::set_current(current), ruined);
    }
}

/// Launches a kernel that writes a byte inside a buffer of 100 bytes, and then one that writes at the offset that
/// `wrong` returns. The second ruins the context.
fn ruins(wrong: impl FnOnce(CUdeviceptr) -> i64) {
    let rig = Rig::new();
    let stream = rig.stream();
    // SAFETY: the kernel writes where it must not, which is what is tested.
    let memory = unsafe { result::malloc_sync(100) }.unwrap();
    let poke = |mut offset: i64| {
        let mut place = memory;
        rig.launch(&stream, "poke", &mut [argument(&mut place), argument(&mut offset)])
    };
    poke(99).unwrap();
    stream.synchronize().unwrap();
    poke(wrong(memory)).unwrap();
    assert_eq!(stream.synchronize(), Err(DriverError(CUDA_ERROR_ILLEGAL_ADDRESS)));
    assert_ruined(&rig, CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(poke(0), Err(DriverError(CUDA_ERROR_ILLEGAL_ADDRESS)));
}

#[test]
fn a_kernel_that_writes_behind_a_buffer_ruins_its_context() {
    on_fake_cuda(|| ruins(|_| 100));
}

#[test]
fn a_kernel_that_writes_before_a_buffer_ruins_its_context() {
    on_fake_cuda(|| ruins(|_| -1));
}

#[test]
fn a_kernel_that_writes_far_away_ruins_its_context() {
    on_fake_cuda(|| ruins(|_| 1 << 20));
}

#[test]
fn a_kernel_that_writes_to_null_ruins_its_context() {
    on_fake_cuda(|| ruins(|memory| -(memory as i64)));
}

#[test]
fn a_kernel_that_writes_to_freed_memory_ruins_its_context() {
    on_fake_cuda(|| {
        ruins(|memory| {
            // SAFETY: freed memory is used, which is what is tested.
            unsafe {
                let other = result::malloc_sync(100).unwrap();
                result::free_sync(other).unwrap();
                (other as i64) - (memory as i64)
            }
        });
    });
}

#[test]
fn work_behind_an_error_does_not_run() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let stream = rig.stream();
        let (word, list) = (Word::new(), Words::new(8));
        let (mut null, mut offset) = (0_u64, 0_i64);
        rig.hold(&stream, &word);
        rig.append(&stream, &list, 1).unwrap();
        rig.launch(&stream, "poke", &mut [argument(&mut null), argument(&mut offset)]).unwrap();
        rig.append(&stream, &list, 2).unwrap();
        let before = calls();
        let waited = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| stream.synchronize());
            // The other thread gets the current context, sets it, and waits.
            while calls() < before + 3 {
                std::hint::spin_loop();
            }
            word.set();
            waiting.join().unwrap()
        });
        assert_eq!(waited, Err(DriverError(CUDA_ERROR_ILLEGAL_ADDRESS)));
        assert_eq!(list.list(), [1]);
    });
}

#[test]
fn an_injected_error_that_ruins_contexts_does_so() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        fail_calls(c"cuLaunchKernel", 1, CUDA_ERROR_LAUNCH_FAILED);
        let stream = rig.stream();
        assert!(rig.append(&stream, &Words::new(2), 1).is_err());
        assert_ruined(&rig, CUDA_ERROR_LAUNCH_FAILED);
    });
}

#[test]
fn a_ruined_device_leaves_others_alone() {
    with_fake_cuda(&[("FAKE_CUDA_DEVICES", "2")], || {
        let good = Rig::new();
        let bad = CudaContext::new(1).unwrap();
        let (stream, list) = (bad.new_stream().unwrap(), {
            good.context.bind_to_thread().unwrap();
            Words::new(2)
        });
        bad.bind_to_thread().unwrap();
        fail_calls(c"cuCtxSynchronize", 1, CUDA_ERROR_LAUNCH_FAILED);
        assert!(result::ctx::synchronize().is_err());
        good.context.bind_to_thread().unwrap();
        let own = good.stream();
        good.append(&own, &list, 1).unwrap();
        own.synchronize().unwrap();
        assert_eq!(list.list(), [1]);
        // SAFETY: the memory is allocated, and nothing else uses it.
        let other = unsafe { result::memset_d8_async(list.device(), 0, 4, stream.cu_stream()) };
        assert_eq!(other, Err(DriverError(CUDA_ERROR_LAUNCH_FAILED)), "its streams answer its error");
    });
}

#[test]
fn failures_come_from_the_environment_too() {
    with_fake_cuda(&[("FAKE_CUDA_FAIL", "cuMemAlloc_v2:2:2,cuStreamCreate:0:801")], || {
        let _rig = Rig::new();
        // SAFETY: the memory is not used.
        let allocate = || unsafe { result::malloc_sync(16) }.map(|_| ()).map_err(|error| error.0);
        assert_eq!([allocate(), allocate(), allocate()], [Ok(()), Err(CUDA_ERROR_OUT_OF_MEMORY), Ok(())]);
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        assert_eq!(stream.map(|_| ()).map_err(|error| error.0), Err(CUDA_ERROR_NOT_SUPPORTED));
    });
}

#[test]
fn launches_are_checked() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let stream = rig.stream();
        let launch = |blocks, threads, arguments: &mut [*mut std::ffi::c_void]| {
            rig.launch_blocks(&stream, "append", blocks, threads, arguments).map_err(|error| error.0)
        };
        let list = Words::new(2);
        let (mut device, mut value) = (list.device(), 1_u32);
        let mut good = [argument(&mut device), argument(&mut value)];
        assert_eq!(launch(0, 32, &mut good), Err(CUDA_ERROR_INVALID_VALUE), "no blocks");
        assert_eq!(launch(1, 0, &mut good), Err(CUDA_ERROR_INVALID_VALUE), "no threads");
        assert_eq!(launch(1, 2048, &mut good), Err(CUDA_ERROR_INVALID_VALUE), "more than any block has");
        assert_eq!(launch(1, 64, &mut good), Err(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES), "more than the kernel's");
        assert_eq!(launch(1, 32, &mut [argument(&mut device), std::ptr::null_mut()]), Err(CUDA_ERROR_INVALID_VALUE));
        stream.synchronize().unwrap();
        assert_eq!(list.list(), [0; 0], "none of these ran");
    });
}

#[test]
fn more_shared_memory_needs_the_consent_of_the_kernel() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let stream = rig.stream();
        // SAFETY: the kernel has no arguments.
        unsafe {
            let function = result::module::get_function(rig.module(), c"nothing".to_owned()).unwrap();
            let launch = |bytes| {
                let stream = stream.cu_stream();
                result::launch_kernel(function, (1, 1, 1), (32, 1, 1), bytes, stream, &mut []).map_err(|error| error.0)
            };
            let most = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            assert_eq!([launch(48 << 10), launch(49 << 10)], [Ok(()), Err(CUDA_ERROR_INVALID_VALUE)]);
            result::function::set_function_attribute(function, most, 100 << 10).unwrap();
            assert_eq!(result::function::get_function_attribute(function, most).unwrap(), 100 << 10);
            assert_eq!([launch(100 << 10), launch(101 << 10)], [Ok(()), Err(CUDA_ERROR_INVALID_VALUE)]);
            let too_much = result::function::set_function_attribute(function, most, 228 << 10);
            assert_eq!(too_much, Err(DriverError(CUDA_ERROR_INVALID_VALUE)));
            let threads = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
            assert_eq!(result::function::get_function_attribute(function, threads).unwrap(), 32);
        }
        stream.synchronize().unwrap();
    });
}

#[test]
fn a_trace_shows_every_call() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let before = calls();
        let trace = traced(|| {
            program(&rig).unwrap();
            // SAFETY: the stand-in checks the address.
            assert!(unsafe { result::free_sync(4) }.is_err());
        });
        assert_eq!(trace.lines().count() as u64, calls() - before, "a line a call");
        assert_eq!(trace, include_str!("program.trace"));
    });
}

#[test]
fn a_trace_is_written_when_the_process_ends() {
    if std::env::var_os("FAKE_CUDA_TRACE").is_some() {
        Rig::new();
        return;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut child = command(&std::env::current_exe().unwrap());
    child.args(["--exact", "failures::a_trace_is_written_when_the_process_ends"]);
    child.env("FAKE_CUDA_TRACE", file.path());
    assert!(child.output().unwrap().status.success());
    let trace = std::fs::read_to_string(file.path()).unwrap();
    assert!(trace.starts_with("1 cuInit\n"), "{trace}");
    assert!(trace.contains("cuModuleLoadData -> module 1\n"), "{trace}");
}
