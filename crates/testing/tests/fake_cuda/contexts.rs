//! Devices and contexts.

use cudarc::driver::{
    CudaContext, result,
    sys::{self, CUdevice_attribute_enum::*, CUresult::*},
};
use paternoster_testing::fake_cuda::with_fake_cuda;

use crate::rig::{Rig, on_fake_cuda};

#[test]
fn devices_are_as_many_as_the_environment_says() {
    with_fake_cuda(&[("FAKE_CUDA_DEVICES", "3"), ("FAKE_CUDA_CAPABILITY", "8.6")], || {
        assert_eq!(CudaContext::device_count().unwrap(), 3);
        let last = CudaContext::new(2).unwrap();
        assert_eq!(last.compute_capability().unwrap(), (8, 6));
        assert_eq!(last.attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED).unwrap(), 0);
        assert_eq!(CudaContext::new(3).map(|_| ()).map_err(|error| error.0), Err(CUDA_ERROR_INVALID_DEVICE));
    });
}

#[test]
fn without_a_device_the_driver_says_so() {
    with_fake_cuda(&[("FAKE_CUDA_DEVICES", "0")], || {
        assert_eq!(result::init().map_err(|error| error.0), Err(CUDA_ERROR_NO_DEVICE));
    });
}

#[test]
fn a_thread_without_a_context_is_refused() {
    on_fake_cuda(|| {
        let mut memory = 0;
        // SAFETY: the stand-in checks the calls.
        unsafe {
            assert_eq!(sys::cuMemAlloc_v2(&mut memory, 16), CUDA_ERROR_NOT_INITIALIZED);
            result::init().unwrap();
            assert_eq!(sys::cuMemAlloc_v2(&mut memory, 16), CUDA_ERROR_INVALID_CONTEXT);
            let rig = Rig::new();
            assert_eq!(sys::cuMemAlloc_v2(&mut memory, 16), CUDA_SUCCESS);
            let elsewhere = std::thread::spawn(move || sys::cuMemFree_v2(memory)).join().unwrap();
            assert_eq!(elsewhere, CUDA_ERROR_INVALID_CONTEXT, "contexts are current by thread");
            let stream = rig.stream();
            drop(rig);
            drop(stream);
            assert_eq!(sys::cuMemAlloc_v2(&mut memory, 16), CUDA_ERROR_CONTEXT_IS_DESTROYED);
        }
    });
}

#[test]
fn contexts_are_current_as_a_stack() {
    with_fake_cuda(&[("FAKE_CUDA_DEVICES", "2")], || {
        let contexts = [CudaContext::new(0).unwrap(), CudaContext::new(1).unwrap()];
        let current = || result::ctx::get_current().unwrap();
        // SAFETY: the contexts are retained.
        unsafe {
            result::ctx::set_current(contexts[0].cu_ctx()).unwrap();
            assert_eq!(sys::cuCtxPushCurrent_v2(contexts[1].cu_ctx()), CUDA_SUCCESS);
            assert_eq!(current(), Some(contexts[1].cu_ctx()));
            let mut popped = std::ptr::null_mut();
            assert_eq!(sys::cuCtxPopCurrent_v2(&mut popped), CUDA_SUCCESS);
            assert_eq!((popped, current()), (contexts[1].cu_ctx(), Some(contexts[0].cu_ctx())));
            let wrong = result::ctx::set_current(0x10 as _).map_err(|error| error.0);
            assert_eq!(wrong, Err(CUDA_ERROR_INVALID_CONTEXT));
        }
    });
}

#[test]
fn errors_have_names_and_descriptions() {
    on_fake_cuda(|| {
        let error = result::DriverError(CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_eq!(error.error_name().unwrap(), c"CUDA_ERROR_ILLEGAL_ADDRESS");
        assert_eq!(error.error_string().unwrap(), c"illegal address");
    });
}
