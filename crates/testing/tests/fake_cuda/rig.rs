//! Shared parts of the tests: a context, compiled kernels, and memory that both the host and the device access.

use std::{
    ffi::{CStr, CString, c_void},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use cudarc::{
    driver::{
        CudaContext, CudaStream, DriverError,
        result::{self, launch_kernel},
        sys::{self, CUdeviceptr, CUmodule, CUresult},
    },
    nvrtc::{self, sys::nvrtcResult},
};

const KERNELS: &CStr = match CStr::from_bytes_with_nul(concat!(include_str!("kernels.cu"), "\0").as_bytes()) {
    Ok(text) => text,
    Err(_) => panic!("the kernels have no zero bytes"),
};
const HOST_FLAGS: u32 = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;

/// Runs `body` with the stand-in.
pub(crate) fn on_fake_cuda(body: impl FnOnce()) {
    paternoster_testing::fake_cuda::with_fake_cuda(&[], body);
}

/// A context with the kernels of these tests.
pub(crate) struct Rig {
    pub context: Arc<CudaContext>,
    module: CUmodule,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let context = CudaContext::new(0).expect("a context");
        // SAFETY: the tests order their work themselves.
        unsafe { context.disable_event_tracking() };
        let cubin = compile(KERNELS, &["--gpu-architecture=sm_90"]).expect("the kernels compile");
        // SAFETY: the bytes come from NVRTC.
        let module = unsafe { result::module::load_data(cubin.as_ptr().cast()) }.expect("the module loads");
        Self { context, module }
    }

    pub(crate) fn stream(&self) -> Arc<CudaStream> {
        self.context.new_stream().expect("a stream")
    }

    pub(crate) fn module(&self) -> CUmodule {
        self.module
    }

    /// Launches one block of a kernel with arguments of any types.
    pub(crate) fn launch(
        &self,
        stream: &CudaStream,
        kernel: &str,
        arguments: &mut [*mut c_void],
    ) -> Result<(), DriverError> {
        self.launch_blocks(stream, kernel, 1, 32, arguments)
    }

    pub(crate) fn launch_blocks(
        &self,
        stream: &CudaStream,
        kernel: &str,
        blocks: u32,
        threads: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<(), DriverError> {
        self.context.bind_to_thread()?;
        let name = CString::new(kernel).expect("a name without zero bytes");
        // SAFETY: the tests pass kernels the arguments that they take, and wait before freeing them.
        unsafe {
            let function = result::module::get_function(self.module(), name)?;
            launch_kernel(function, (blocks, 1, 1), (threads, 1, 1), 0, stream.cu_stream(), arguments)
        }
    }

    /// Makes the stream wait until [`Word::set`].
    pub(crate) fn hold(&self, stream: &CudaStream, word: &Word) {
        let mut device = word.device();
        self.launch(stream, "wait_for_host", &mut [argument(&mut device)]).expect("the launch is good");
    }

    pub(crate) fn append(&self, stream: &CudaStream, list: &Words, value: u32) -> Result<(), DriverError> {
        let (mut device, mut value) = (list.device(), value);
        self.launch(stream, "append", &mut [argument(&mut device), argument(&mut value)])
    }
}

pub(crate) fn argument<T>(value: &mut T) -> *mut c_void {
    (value as *mut T).cast()
}

/// The element type, which the kernels' prelude asks for.
pub(crate) const ELEMENT: &str = "-DELEMENT=f32";

/// Compiles a program; the error is the result and the log.
pub(crate) fn compile(source: &CStr, options: &[&str]) -> Result<Vec<u8>, (nvrtcResult, String)> {
    let program = nvrtc::result::create_program(source, Some(c"kernels.cu")).map_err(|e| (e.0, String::new()))?;
    // SAFETY: the program lives to the end of this function.
    unsafe {
        let compiled = nvrtc::result::compile_program(program, &[options, &[ELEMENT]].concat());
        let log = nvrtc::result::get_program_log(program).map(|log| log.iter().map(|c| *c as u8).collect::<Vec<_>>());
        let mut bytes = 0;
        let size = nvrtc::sys::nvrtcGetCUBINSize(program, &mut bytes).result();
        let mut cubin = vec![0_u8; bytes];
        let got = nvrtc::sys::nvrtcGetCUBIN(program, cubin.as_mut_ptr().cast()).result();
        let destroyed = nvrtc::result::destroy_program(program);
        let log = String::from_utf8(log.unwrap_or_default()).expect("the log is text");
        let result = compiled.and(size).and(got).and(destroyed);
        result.map(|()| cubin).map_err(|error| (error.0, log))
    }
}

/// Words in pinned memory that the device accesses.
pub(crate) struct Words {
    host: *mut c_void,
    count: usize,
}

impl Words {
    pub(crate) fn new(count: usize) -> Self {
        // SAFETY: plain memory, which the stand-in returns zeroed; it is freed with this value.
        let host = unsafe { result::malloc_host(4 * count, HOST_FLAGS) }.expect("pinned memory");
        Self { host, count }
    }

    pub(crate) fn device(&self) -> CUdeviceptr {
        let mut device = 0;
        // SAFETY: the memory is pinned and mapped.
        let result = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut device, self.host, 0) };
        assert_eq!(result, CUresult::CUDA_SUCCESS, "mapped memory has an address on the device");
        device
    }

    pub(crate) fn at(&self, place: usize) -> &AtomicU32 {
        assert!(place < self.count, "the word exists");
        // SAFETY: there are that many words, which only the host and kernels of these tests access.
        unsafe { AtomicU32::from_ptr(self.host.cast::<u32>().add(place)) }
    }

    /// Returns the values of a list, whose first word is its length.
    pub(crate) fn list(&self) -> Vec<u32> {
        (1..=self.at(0).load(Ordering::Acquire) as usize).map(|place| self.at(place).load(Ordering::Acquire)).collect()
    }

    pub(crate) fn free(self) {
        // SAFETY: no kernel uses it any more.
        unsafe { result::free_host(self.host) }.expect("the memory can be freed");
    }
}

/// A word that a stream waits for.
pub(crate) struct Word(Words);

impl Word {
    pub(crate) fn new() -> Self {
        Self(Words::new(1))
    }

    fn device(&self) -> CUdeviceptr {
        self.0.device()
    }

    pub(crate) fn set(&self) {
        self.0.at(0).store(1, Ordering::Release);
    }
}
