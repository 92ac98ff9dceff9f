//! Memory: what was written is read, and accesses out of range are rejected.

use std::{ffi::c_void, process::Command, sync::atomic::Ordering};

use cudarc::driver::{
    CudaContext, DevicePtr, result,
    sys::{self, CUipcMemHandle, CUresult::*},
};
use paternoster_testing::fake_cuda::{command, with_fake_cuda};

use crate::rig::{Rig, Word, Words, argument, on_fake_cuda};

#[test]
fn what_is_copied_to_the_device_comes_back() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let stream = rig.stream();
        let numbers: Vec<u32> = (0..10_000).collect();
        let first = stream.clone_htod(&numbers).unwrap();
        let mut second = stream.alloc_zeros::<u32>(numbers.len()).unwrap();
        assert_eq!(stream.clone_dtoh(&second).unwrap(), vec![0; numbers.len()], "a memset is a copy's match");
        stream.memcpy_dtod(&first, &mut second).unwrap();
        assert_eq!(stream.clone_dtoh(&second).unwrap(), numbers);
        stream.memset_zeros(&mut second.slice_mut(10..20)).unwrap();
        let back = stream.clone_dtoh(&second).unwrap();
        assert!(back[10..20].iter().all(|number| *number == 0), "the middle is cleared");
        assert_eq!((&back[..10], &back[20..]), (&numbers[..10], &numbers[20..]), "the rest is as it was");
    });
}

#[test]
fn new_memory_holds_no_zeros() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let stream = rig.stream();
        // SAFETY: the test only looks at what the memory holds.
        let fresh = unsafe { stream.alloc::<f32>(64) }.unwrap();
        assert!(
            stream.clone_dtoh(&fresh).unwrap().iter().all(|number| number.is_nan()),
            "it would show if it were used"
        );
    });
}

#[test]
fn ranges_that_are_not_allocated_are_refused() {
    on_fake_cuda(|| {
        let _rig = Rig::new();
        let bytes = [0_u8; 128];
        // SAFETY: the host's memory has the size of the copies; the stand-in checks the device's.
        unsafe {
            let memory = result::malloc_sync(100).unwrap();
            let to = |address, count| sys::cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), count);
            assert_eq!(to(memory, 100), CUDA_SUCCESS);
            assert_eq!(to(memory, 101), CUDA_ERROR_INVALID_VALUE, "one byte too many");
            assert_eq!(to(memory + 99, 2), CUDA_ERROR_INVALID_VALUE, "over the end");
            assert_eq!(to(memory - 1, 1), CUDA_ERROR_INVALID_VALUE, "before the beginning");
            assert_eq!(to(0, 1), CUDA_ERROR_INVALID_VALUE, "null");
            assert_eq!(sys::cuMemsetD8_v2(memory + 90, 0, 11), CUDA_ERROR_INVALID_VALUE, "a memset over the end");
            assert_eq!(sys::cuMemsetD32_v2(memory + 2, 0, 1), CUDA_ERROR_INVALID_VALUE, "a memset off its alignment");
            assert_eq!(sys::cuMemFree_v2(memory + 4), CUDA_ERROR_INVALID_VALUE, "not the beginning");
            assert_eq!(sys::cuMemFree_v2(memory), CUDA_SUCCESS);
            assert_eq!(to(memory, 1), CUDA_ERROR_INVALID_VALUE, "freed");
            assert_eq!(sys::cuMemFree_v2(memory), CUDA_ERROR_INVALID_VALUE, "freed twice");
            let mut none = 0;
            assert_eq!(sys::cuMemAlloc_v2(&mut none, 0), CUDA_ERROR_INVALID_VALUE, "nothing");
        }
    });
}

#[test]
fn a_device_has_no_more_memory_than_it_says() {
    with_fake_cuda(&[("FAKE_CUDA_MEMORY", "1048576")], || {
        let rig = Rig::new();
        let (free, total) = rig.context.mem_get_info().unwrap();
        assert_eq!((free, total), (1 << 20, 1 << 20));
        // SAFETY: the memory is not used.
        unsafe {
            let half = result::malloc_sync(1 << 19).unwrap();
            assert_eq!(rig.context.mem_get_info().unwrap().0, 1 << 19);
            let more = result::malloc_sync((1 << 19) + 1);
            assert_eq!(more.map_err(|error| error.0), Err(CUDA_ERROR_OUT_OF_MEMORY));
            result::free_sync(half).unwrap();
            assert_eq!(rig.context.mem_get_info().unwrap().0, 1 << 20);
        }
    });
}

#[test]
fn only_mapped_memory_of_the_host_has_an_address_on_the_device() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let words = Words::new(4);
        rig.append(&rig.stream(), &words, 7).unwrap();
        rig.context.synchronize().unwrap();
        assert_eq!(words.list(), [7], "a kernel writes where the host reads");
        // SAFETY: the memory is freed once, and nothing uses it.
        unsafe {
            let plain = result::malloc_host(64, sys::CU_MEMHOSTALLOC_PORTABLE).unwrap();
            let mut device = 0;
            assert_eq!(sys::cuMemHostGetDevicePointer_v2(&mut device, plain, 0), CUDA_ERROR_INVALID_VALUE);
            let mut flags = 0;
            assert_eq!(sys::cuMemHostGetFlags(&mut flags, plain), CUDA_SUCCESS);
            assert_eq!(flags, sys::CU_MEMHOSTALLOC_PORTABLE);
            result::free_host(plain).unwrap();
            assert_eq!(sys::cuMemFreeHost(plain), CUDA_ERROR_INVALID_VALUE, "freed twice");
        }
        words.free();
    });
}

#[test]
fn pageable_memory_is_read_at_the_call_and_pinned_memory_when_the_copy_runs() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let stream = rig.stream();
        let held = Word::new();
        let (mut pageable, pinned) = ([1_u32], Words::new(1));
        pinned.at(0).store(1, Ordering::Release);
        // SAFETY: the memory of both sides lives until the stream's work has ended.
        unsafe {
            let (first, second) = (result::malloc_sync(4).unwrap(), result::malloc_sync(4).unwrap());
            rig.hold(&stream, &held);
            result::memcpy_htod_async(first, &pageable, stream.cu_stream()).unwrap();
            let pinned_host = std::slice::from_raw_parts(pinned.at(0).as_ptr(), 1);
            result::memcpy_htod_async(second, pinned_host, stream.cu_stream()).unwrap();
            pageable[0] = 2;
            pinned.at(0).store(2, Ordering::Release);
            held.set();
            stream.synchronize().unwrap();
            let mut back = [0_u32; 2];
            result::memcpy_dtoh_sync(&mut back[..1], first).unwrap();
            result::memcpy_dtoh_sync(&mut back[1..], second).unwrap();
            assert_eq!((back, pageable), ([1, 2], [2]));
        }
    });
}

#[test]
fn arguments_of_each_size_are_copied_at_the_launch() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let stream = rig.stream();
        let out = stream.alloc_zeros::<f64>(1).unwrap();
        let held = Word::new();
        rig.hold(&stream, &held);
        let mut device = out.device_ptr(&stream).0;
        let (mut a, mut b, mut c, mut d, mut e, mut f) = (1_i8, 20_i16, 300_i32, 4_000_i64, 50_000_f32, 600_000_f64);
        let mut arguments = [
            argument(&mut device),
            argument(&mut a),
            argument(&mut b),
            argument(&mut c),
            argument(&mut d),
            argument(&mut e),
            argument(&mut f),
        ];
        rig.launch(&stream, "sizes", &mut arguments).unwrap();
        (a, b, c, d, e, f) = (0, 0, 0, 0, 0.0, 0.0);
        held.set();
        assert_eq!(stream.clone_dtoh(&out).unwrap(), [654_321.0], "what they were at the launch");
        assert_eq!((a, b, c, d, e, f), (0, 0, 0, 0, 0.0, 0.0));
    });
}

#[test]
fn memory_of_the_program_is_pinned_by_registering_it() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let mut list = [0_u32; 4];
        let host = list.as_mut_ptr().cast::<c_void>();
        // SAFETY: the list outlives all work on it.
        unsafe {
            let mut device = 0;
            assert_eq!(sys::cuMemHostGetDevicePointer_v2(&mut device, host, 0), CUDA_ERROR_INVALID_VALUE);
            assert_eq!(sys::cuMemHostRegister_v2(host, 16, sys::CU_MEMHOSTALLOC_DEVICEMAP), CUDA_SUCCESS);
            let again = sys::cuMemHostRegister_v2(host.add(8), 16, sys::CU_MEMHOSTALLOC_DEVICEMAP);
            assert_eq!(again, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
            assert_eq!(sys::cuMemHostGetDevicePointer_v2(&mut device, host, 0), CUDA_SUCCESS);
            let mut value = 9_u32;
            let stream = rig.stream();
            rig.launch(&stream, "append", &mut [argument(&mut device), argument(&mut value)]).unwrap();
            stream.synchronize().unwrap();
            assert_eq!(sys::cuMemHostUnregister(host), CUDA_SUCCESS);
            assert_eq!(sys::cuMemHostUnregister(host), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
        }
        assert_eq!(list, [1, 9, 0, 0]);
    });
}

#[test]
fn addresses_say_what_they_are() {
    on_fake_cuda(|| {
        let _rig = Rig::new();
        let words = Words::new(4);
        // SAFETY: the destinations have the attributes' types.
        unsafe {
            let memory = result::malloc_sync(100).unwrap();
            let (mut base, mut bytes) = (0, 0);
            assert_eq!(sys::cuMemGetAddressRange_v2(&mut base, &mut bytes, memory + 40), CUDA_SUCCESS);
            assert_eq!((base, bytes), (memory, 100));
            assert_eq!(sys::cuMemGetAddressRange_v2(&mut base, &mut bytes, memory + 100), CUDA_ERROR_NOT_FOUND);
            let kind = |address| {
                let mut kind = 0_u32;
                let attribute = sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
                let result = sys::cuPointerGetAttribute((&raw mut kind).cast(), attribute, address);
                (result == CUDA_SUCCESS).then_some(kind)
            };
            let (host, device) = (1, 2);
            assert_eq!([kind(memory), kind(words.device()), kind(0x1000)], [Some(device), Some(host), None]);
        }
    });
}

#[test]
fn copies_between_devices_name_the_context_of_each() {
    with_fake_cuda(&[("FAKE_CUDA_DEVICES", "2")], || {
        let contexts = [CudaContext::new(0).unwrap(), CudaContext::new(1).unwrap()];
        let streams = [contexts[0].new_stream().unwrap(), contexts[1].new_stream().unwrap()];
        let [first, second] = [0, 1].map(|place: usize| streams[place].clone_htod(&[place as u32 + 1; 4]).unwrap());
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
        let (to, from) = (second.device_ptr(&streams[1]).0, first.device_ptr(&streams[0]).0);
        let copy = |to_context: usize, from_context: usize| {
            let (to_context, from_context) = (contexts[to_context].cu_ctx(), contexts[from_context].cu_ctx());
            // SAFETY: the memory lives until the copy has ended.
            unsafe { sys::cuMemcpyPeerAsync(to, to_context, from, from_context, 16, streams[1].cu_stream()) }
        };
        assert_eq!(copy(0, 1), CUDA_ERROR_INVALID_CONTEXT, "the other way round");
        assert_eq!(streams[1].clone_dtoh(&second).unwrap(), [2; 4]);
        assert_eq!(copy(1, 0), CUDA_SUCCESS);
        assert_eq!(streams[1].clone_dtoh(&second).unwrap(), [1; 4]);
    });
}

/// Environment variable that passes the handle to the child of [`memory_is_shared_between_processes`].
const HANDLE: &str = "FAKE_CUDA_TEST_HANDLE";

#[test]
fn memory_is_shared_between_processes() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let stream = rig.stream();
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        if let Ok(text) = std::env::var(HANDLE) {
            for (to, digits) in handle.reserved.iter_mut().zip(text.as_bytes().chunks(2)) {
                *to = u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap() as _;
            }
            write_over(handle);
            return;
        }
        let shared = stream.clone_htod(&[1_u32, 2, 3]).unwrap();
        stream.synchronize().unwrap();
        let address = shared.device_ptr(&stream).0;
        // SAFETY: the memory is allocated.
        assert_eq!(unsafe { sys::cuIpcGetMemHandle(&mut handle, address) }, CUDA_SUCCESS);
        let text: String = handle.reserved.iter().map(|byte| format!("{:02x}", *byte as u8)).collect();
        let mut other: Command = command(&std::env::current_exe().unwrap());
        other.args(["--exact", "memory::memory_is_shared_between_processes"]).env(HANDLE, text);
        assert!(other.status().unwrap().success(), "another process reads and writes it");
        assert_eq!(stream.clone_dtoh(&shared).unwrap(), [1, 20, 3]);

        write_over(handle);
        assert_eq!(stream.clone_dtoh(&shared).unwrap(), [1, 20, 3], "the same process may open it, too");
        handle.reserved[8] ^= 1;
        let mut opened = 0;
        // SAFETY: the stand-in checks the handle.
        let result = unsafe { sys::cuIpcOpenMemHandle_v2(&mut opened, handle, 1) };
        assert_eq!(result, CUDA_ERROR_INVALID_VALUE, "a handle that no process gave");
    });
}

/// Opens shared memory, checks what was written, and changes the second word.
fn write_over(handle: CUipcMemHandle) {
    let mut words = [0_u32; 3];
    // SAFETY: the memory has three words.
    unsafe {
        let mut opened = 0;
        assert_eq!(sys::cuIpcOpenMemHandle_v2(&mut opened, handle, 1), CUDA_SUCCESS);
        let host = words.as_mut_ptr().cast::<c_void>();
        assert_eq!(sys::cuMemcpyDtoH_v2(host, opened, 12), CUDA_SUCCESS);
        assert_eq!((words[0], words[2]), (1, 3));
        assert_eq!(sys::cuMemsetD32_v2(opened + 4, 20, 1), CUDA_SUCCESS);
        assert_eq!(sys::cuMemFree_v2(opened), CUDA_ERROR_INVALID_VALUE, "it is another's to free");
        assert_eq!(sys::cuIpcCloseMemHandle(opened), CUDA_SUCCESS);
        assert_eq!(sys::cuMemcpyDtoH_v2(host, opened, 12), CUDA_ERROR_INVALID_VALUE, "closed");
    }
}
