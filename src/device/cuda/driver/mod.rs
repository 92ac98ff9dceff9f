//! The driver's handles, each freed by its owner: the only place that calls the driver.
//!
//! What the driver answers is checked here. An error that a context never recovers from is kept in the context, which
//! is *lost* from then on: every later call answers it, and nothing is freed any more, since the driver refuses that
//! too. The safe layer of `cudarc` parks errors of destructors for the next caller, and panics in some; hence the
//! plain functions.
//!
//! A call is made with the context current on its thread ([`Context::enter`]). Handles are used by the one thread that
//! owns the device, and [`Stream::is_healthy`] by the poller beside it.
#![expect(unsafe_code, reason = "the driver is a C library")]

mod memory;

use std::{
    ffi::{CString, c_int, c_void},
    ptr,
    rc::Rc,
    sync::{Arc, OnceLock},
};

use cudarc::driver::{
    result::{self, DriverError},
    sys,
};

pub use self::memory::{Address, IMPORT_HANDLE_BYTES, Memory};
pub(super) use self::memory::{Imported, Mapped, Plain};
use crate::device::DeviceError;

/// Errors that are the caller's fault or pass by: all others leave the context unusable.
const PASSING: [sys::CUresult; 9] = [
    sys::CUresult::CUDA_ERROR_INVALID_VALUE,
    sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY,
    sys::CUresult::CUDA_ERROR_NOT_READY,
    sys::CUresult::CUDA_ERROR_NOT_FOUND,
    sys::CUresult::CUDA_ERROR_INVALID_IMAGE,
    sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
    sys::CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
    sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
    sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
];

/// A card's primary context.
#[derive(Debug)]
pub(super) struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
    lost: OnceLock<String>,
}

// SAFETY: the driver's contexts may be used by any thread that has made them current.
unsafe impl Send for Context {}
// SAFETY: as above; what is ours in it is a `OnceLock`.
unsafe impl Sync for Context {}

impl Context {
    /// Takes a card's context and makes it current on the calling thread.
    pub(super) fn retain(ordinal: u16) -> Result<Arc<Self>, DeviceError> {
        // To start the driver again is nothing.
        let device = result::init().and_then(|()| result::device::get(c_int::from(ordinal)));
        let opened = device.and_then(|device| {
            // SAFETY: the driver has just named the device.
            unsafe { result::primary_ctx::retain(device) }.map(|context| (device, context))
        });
        let (device, context) = opened.map_err(|error| DeviceError::Lost(named(error)))?;
        let context = Arc::new(Self { device, context, lost: OnceLock::new() });
        context.enter()?;
        Ok(context)
    }

    /// Makes it the calling thread's context.
    pub(super) fn enter(&self) -> Result<(), DeviceError> {
        // SAFETY: the context is retained as long as this lives.
        self.check(unsafe { result::ctx::set_current(self.context) })
    }

    /// An attribute of the card.
    pub(super) fn attribute(&self, attribute: sys::CUdevice_attribute) -> Result<i32, DeviceError> {
        // SAFETY: the driver has named the device.
        self.check(unsafe { result::device::get_attribute(self.device, attribute) })
    }

    /// Bytes of the card's memory: free, and all.
    pub(super) fn memory_bytes(&self) -> Result<(usize, usize), DeviceError> {
        self.check(result::mem_get_info())
    }

    /// What the driver answered; an error from which there is no way back is kept.
    fn check<T>(&self, answered: Result<T, DriverError>) -> Result<T, DeviceError> {
        self.check_but(answered, &[])
    }

    /// As [`Self::check`], where these errors pass by, too.
    fn check_but<T>(&self, answered: Result<T, DriverError>, passing: &[sys::CUresult]) -> Result<T, DeviceError> {
        if let Some(lost) = self.lost.get() {
            return Err(DeviceError::Lost(lost.clone()));
        }
        answered.map_err(|error| {
            if PASSING.contains(&error.0) || passing.contains(&error.0) {
                return DeviceError::Driver(named(error));
            }
            DeviceError::Lost(self.lost.get_or_init(|| named(error)).clone())
        })
    }

    /// Whether it can still be used.
    pub(super) fn is_usable(&self) -> bool {
        self.lost.get().is_none()
    }

    /// Leaves everything as it is: work that does not end still uses it.
    pub(super) fn abandon(&self, reason: &str) {
        self.lost.get_or_init(|| reason.to_owned());
    }

    /// Frees something, unless the context is lost: then it goes with the process.
    fn free(&self, free: impl FnOnce() -> Result<(), DriverError>) {
        if self.lost.get().is_none() {
            let _ = self.check(free());
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once, and whatever was made in it holds it.
        self.free(|| unsafe { result::primary_ctx::release(self.device) });
    }
}

/// An error as the driver names it.
pub(super) fn named(error: DriverError) -> String {
    let word = |found: Result<&std::ffi::CStr, DriverError>| found.map(|text| text.to_string_lossy().into_owned());
    match (word(error.error_name()), word(error.error_string())) {
        (Ok(name), Ok(text)) => format!("{name}: {text}"),
        _ => format!("CUDA error {}", error.0 as u32),
    }
}

/// An in-order queue of the card.
#[derive(Debug)]
pub(super) struct Stream {
    context: Arc<Context>,
    raw: sys::CUstream,
}

// SAFETY: the driver's handles may be used by any thread on which their context is current.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver takes calls of several threads one by one.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream that no other holds up.
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        let created = result::stream::create(result::stream::StreamKind::NonBlocking);
        Ok(Self { raw: context.check(created)?, context: Arc::clone(context) })
    }

    /// What is issued from here on waits for an event that was recorded.
    pub(super) fn wait(&self, event: &Event) -> Result<(), DeviceError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both live.
        self.context.check(unsafe { result::stream::wait_event(self.raw, event.raw, flags) })
    }

    /// Whether nothing is wrong with what has been issued.
    pub(super) fn is_healthy(&self) -> Result<(), DeviceError> {
        // SAFETY: it lives.
        match unsafe { sys::cuStreamQuery(self.raw) }.result() {
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => self.context.check(Ok(())),
            answered => self.context.check(answered),
        }
    }

    /// Holds the thread until everything that was issued is complete.
    pub(super) fn synchronize(&self) -> Result<(), DeviceError> {
        // SAFETY: it lives.
        self.context.check(unsafe { result::stream::synchronize(self.raw) })
    }

    /// The driver's name of it, for libraries that issue to it.
    pub(super) fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// Copies within the card's memory.
    pub(super) fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's ranges lie within buffers that live until the copy is complete (`Device::free`).
        self.context.check(unsafe { result::memcpy_dtod_async(to.0, from.0, bytes, self.raw) })
    }

    /// Copies from the card to host memory that is pinned, from its start on, and waits until the bytes are there.
    pub(super) fn download(&self, from: Address, to: &mut Mapped<u8>, bytes: usize) -> Result<(), DeviceError> {
        let pinned = to.part(0, bytes).as_ptr();
        // SAFETY: the memory is that long, and its only owner waits. What lies at `from` is the caller's matter.
        self.context.check(unsafe { sys::cuMemcpyDtoHAsync_v2(pinned.cast(), from.0, bytes, self.raw) }.result())?;
        self.synchronize()
    }

    /// Copies from host memory that is pinned to the card, and waits until the bytes are there.
    pub(super) fn upload(&self, from: &Mapped<u8>, to: Address, bytes: usize) -> Result<(), DeviceError> {
        let pinned = from.part(0, bytes).as_ptr();
        // SAFETY: the memory is that long, and its only owner waits. What lies at `to` is the caller's matter.
        self.context.check(unsafe { sys::cuMemcpyHtoDAsync_v2(to.0, pinned.cast(), bytes, self.raw) }.result())?;
        self.synchronize()
    }

    /// Launches a kernel; inside a capture, notes it.
    pub(super) fn launch(&self, kernel: &Function, shape: Shape, arguments: &[Argument]) -> Result<(), DeviceError> {
        let mut pointers: Vec<*mut c_void> = arguments.iter().map(Argument::pointer).collect();
        let Shape { grid: [x, y, z], threads, shared_bytes } = shape;
        // SAFETY: the driver copies the arguments before it returns. That they are of the kernel's types, and that
        // what they point to lives until the kernel has run, is what the compiler of plans answers for.
        let launched = unsafe {
            result::launch_kernel(kernel.raw, (x, y, z), (threads, 1, 1), shared_bytes, self.raw, &mut pointers)
        };
        self.context.check(launched)
    }

    /// Starts a graph.
    pub(super) fn launch_graph(&self, graph: &GraphExec) -> Result<(), DeviceError> {
        // SAFETY: both live.
        self.context.check(unsafe { result::graph::launch(graph.raw, self.raw) })
    }

    /// Notes what `issue` issues to the stream, in place of doing it, as a graph that is to run on `target`. The
    /// thread's other calls are held to the rules of captures meanwhile, and so is a thread that asks for the stream:
    /// it is none that the poller watches.
    pub(super) fn capture(
        &self,
        target: &Self,
        issue: impl FnOnce(&Self) -> Result<(), DeviceError>,
    ) -> Result<GraphExec, DeviceError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: it lives.
        self.context.check(unsafe { result::stream::begin_capture(self.raw, mode) })?;
        let issued = issue(self);
        // SAFETY: it lives, and its capture was begun by this thread.
        let graph = self.context.check(unsafe { result::stream::end_capture(self.raw) });
        if let Err(error) = issued {
            // SAFETY: nothing names what there may be of it.
            graph.into_iter().for_each(|graph| self.context.free(|| unsafe { result::graph::destroy(graph) }));
            return Err(error);
        }
        let graph = graph?;
        // SAFETY: the driver has just made the graph, and nothing else names it.
        let made = self.context.check(unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) });
        // SAFETY: as above; an executable graph does not need it any more.
        self.context.free(|| unsafe { result::graph::destroy(graph) });
        let executable = GraphExec { raw: made?, context: Arc::clone(&self.context) };
        // SAFETY: both live.
        self.context.check(unsafe { result::graph::upload(executable.raw, target.raw) })?;
        Ok(executable)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: nothing else names it.
        self.context.free(|| unsafe { result::stream::destroy(self.raw) });
    }
}

/// A mark in a stream that other streams can wait for. Waiting for one that was never recorded is no wait at all, so
/// it is only handed out recorded.
#[derive(Debug)]
pub(super) struct Event {
    context: Arc<Context>,
    raw: sys::CUevent,
}

impl Event {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        let created = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        Ok(Self { raw: context.check(created)?, context: Arc::clone(context) })
    }

    /// Stands for what has been issued to the stream so far, and no longer for what it stood for before.
    pub(super) fn record(&self, stream: &Stream) -> Result<(), DeviceError> {
        // SAFETY: both live.
        self.context.check(unsafe { result::event::record(self.raw, stream.raw) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: nothing else names it.
        self.context.free(|| unsafe { result::event::destroy(self.raw) });
    }
}

/// Compiled kernels.
#[derive(Debug)]
pub(super) struct Module {
    context: Arc<Context>,
    raw: sys::CUmodule,
}

impl Module {
    /// Takes what the compiler has made for this card.
    pub(super) fn load(context: &Arc<Context>, binary: &[u8]) -> Result<Rc<Self>, DeviceError> {
        // SAFETY: the driver checks the image's header and reads as far as that says.
        let raw = context.check(unsafe { result::module::load_data(binary.as_ptr().cast()) })?;
        Ok(Rc::new(Self { context: Arc::clone(context), raw }))
    }

    /// The kernel of this name.
    pub(super) fn function(self: &Rc<Self>, name: &str) -> Result<Function, DeviceError> {
        let unknown = |reason: String| DeviceError::Driver(format!("there is no kernel '{name}': {reason}"));
        let symbol = CString::new(name).map_err(|error| unknown(error.to_string()))?;
        // SAFETY: the module is loaded.
        let raw = self.context.check(unsafe { result::module::get_function(self.raw, symbol) });
        let raw = raw.map_err(|error| unknown(error.to_string()))?;
        Ok(Function { raw, _module: Rc::clone(self) })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: no function of it is left, and what ran of them is complete.
        self.context.free(|| unsafe { result::module::unload(self.raw) });
    }
}

/// A kernel.
#[derive(Clone, Debug)]
pub struct Function {
    raw: sys::CUfunction,
    _module: Rc<Module>,
}

/// How many threads run a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of shared memory that a block has beside what the kernel names.
    pub shared_bytes: u32,
}

/// An argument of a kernel: of its parameter's very type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// A pointer.
    Address(Address),
    /// A signed number.
    I32(i32),
    /// An unsigned number.
    U32(u32),
    /// An unsigned number.
    U64(u64),
    /// A real number.
    F32(f32),
}

impl Argument {
    fn pointer(&self) -> *mut c_void {
        match self {
            Self::Address(Address(value)) | Self::U64(value) => ptr::from_ref(value).cast_mut().cast(),
            Self::I32(value) => ptr::from_ref(value).cast_mut().cast(),
            Self::U32(value) => ptr::from_ref(value).cast_mut().cast(),
            Self::F32(value) => ptr::from_ref(value).cast_mut().cast(),
        }
    }
}

/// A captured graph, ready to be launched.
#[derive(Debug)]
pub(super) struct GraphExec {
    context: Arc<Context>,
    raw: sys::CUgraphExec,
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        // SAFETY: nothing else names it, and its launches are complete.
        self.context.free(|| unsafe { result::graph::exec_destroy(self.raw) });
    }
}
