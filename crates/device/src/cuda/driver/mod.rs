//! Handles of the driver, each freed by its owner. Only this module calls the driver.
//!
//! Results of the driver are checked here. An error that a context never recovers from is kept in the context, which is
//! *lost* from then on: every later call returns that error, and nothing is freed any more, since the driver would
//! refuse that too. This module calls the plain functions of `cudarc`: its safe layer stores errors of destructors for
//! the next caller, and panics in some.
//!
//! Calls need the context to be current on their thread ([`Context::enter`]). Each handle is used by the thread that
//! created it; only [`Stream::is_healthy`] is also called by the poller.
#![expect(unsafe_code, reason = "the driver is a C library")]

mod memory;

use std::{
    ffi::{CString, c_int, c_void},
    ops::Range,
    ptr,
    rc::Rc,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use cudarc::driver::{
    result::{self, DriverError},
    sys,
};
use parking_lot::Mutex;

pub use self::memory::{Address, IMPORT_HANDLE_BYTES, Memory};
pub(super) use self::memory::{Imported, Mapped, Plain};
use crate::{DeviceError, MemoryShortage};

/// Errors that are the caller's fault or temporary. All others leave the context unusable.
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
    /// Maximum bytes of all its memory on the card; `None`: as much as there is.
    most_bytes: Option<usize>,
    reserved_bytes: AtomicUsize,
    /// Bytes that were reserved when the latest load began.
    before_load_bytes: AtomicUsize,
    /// What that load lacks, if an allocation has failed since.
    shortage: Mutex<Option<MemoryShortage>>,
}

// SAFETY: the driver's contexts may be used by any thread that has made them current.
unsafe impl Send for Context {}
// SAFETY: as above; its other state is a `OnceLock`, a mutex and atomics.
unsafe impl Sync for Context {}

impl Context {
    /// Retains a card's primary context and makes it current on the calling thread. The memory allocated in it is
    /// bounded by `most_bytes`.
    pub(super) fn retain(ordinal: u16, most_bytes: Option<usize>) -> Result<Arc<Self>, DeviceError> {
        // Initialising the driver again has no effect.
        let device = result::init().and_then(|()| result::device::get(c_int::from(ordinal)));
        let opened = device.and_then(|device| {
            // SAFETY: the driver has just returned the device.
            unsafe { result::primary_ctx::retain(device) }.map(|context| (device, context))
        });
        let (device, context) = opened.map_err(|error| DeviceError::Lost(named(error)))?;
        let (reserved_bytes, before_load_bytes, shortage) = Default::default();
        let lost = OnceLock::new();
        let context = Self { device, context, lost, most_bytes, reserved_bytes, before_load_bytes, shortage };
        let context = Arc::new(context);
        context.enter()?;
        Ok(context)
    }

    /// Makes this the calling thread's context.
    pub(super) fn enter(&self) -> Result<(), DeviceError> {
        // SAFETY: the context is retained for the lifetime of `self`.
        self.check(unsafe { result::ctx::set_current(self.context) })
    }

    /// Returns an attribute of the card.
    pub(super) fn attribute(&self, attribute: sys::CUdevice_attribute) -> Result<i32, DeviceError> {
        // SAFETY: the driver returned the device.
        self.check(unsafe { result::device::get_attribute(self.device, attribute) })
    }

    /// Returns the card's identifier, as the driver's tools write it.
    pub(super) fn uuid(&self) -> Result<String, DeviceError> {
        self.check(result::device::get_uuid(self.device)).map(uuid)
    }

    /// Returns the free and the total bytes of the card's memory, within the bound.
    pub(super) fn memory_bytes(&self) -> Result<(usize, usize), DeviceError> {
        let (free, total) = self.check(result::mem_get_info())?;
        let most = self.most_bytes.unwrap_or(usize::MAX);
        Ok((free.min(most.saturating_sub(self.reserved_bytes())), total.min(most)))
    }

    /// Returns the bytes of all its memory on the card.
    pub(super) fn reserved_bytes(&self) -> usize {
        self.reserved_bytes.load(Ordering::Relaxed)
    }

    /// Begins a load: what is reserved from now on counts as needed by it.
    pub(super) fn begin_load(&self) {
        self.before_load_bytes.store(self.reserved_bytes(), Ordering::Relaxed);
        *self.shortage.lock() = None;
    }

    /// Returns what the latest load lacks, if an allocation has failed for want of memory.
    pub(super) fn shortage(&self) -> Option<MemoryShortage> {
        *self.shortage.lock()
    }

    /// Counts memory before it is allocated.
    fn reserve(&self, bytes: usize) -> Result<(), DeviceError> {
        let most_bytes = self.most_bytes.unwrap_or(usize::MAX);
        let within = |reserved: usize| reserved.checked_add(bytes).filter(|&reserved| reserved <= most_bytes);
        let reserved = self.reserved_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within);
        reserved.map(drop).map_err(|reserved| DeviceError::OverBound(self.lacks(bytes, reserved, most_bytes)))
    }

    /// Records that the driver could not allocate `bytes`, which were counted before.
    fn allocation_failed(&self, bytes: usize, error: &DriverError) {
        self.unreserve(bytes);
        if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let reserved = self.reserved_bytes();
            let free = self.memory_bytes().map_or(0, |(free, _)| free);
            // What is free may be in pieces that are too small.
            self.lacks(bytes, reserved, reserved.saturating_add(free.min(bytes.saturating_sub(1))));
        }
    }

    /// Records and returns what the latest load lacks, where `bytes` more than `reserved` were asked for.
    fn lacks(&self, bytes: usize, reserved: usize, most_bytes: usize) -> MemoryShortage {
        let reserved_bytes = self.before_load_bytes.load(Ordering::Relaxed).min(reserved);
        let needed_bytes = (reserved - reserved_bytes).saturating_add(bytes);
        *self.shortage.lock().insert(MemoryShortage { needed_bytes, reserved_bytes, most_bytes })
    }

    /// Counts memory that is not allocated any longer.
    fn unreserve(&self, bytes: usize) {
        self.reserved_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Converts a result of the driver. Records an error that the context cannot recover from.
    fn check<T>(&self, answered: Result<T, DriverError>) -> Result<T, DeviceError> {
        self.check_but(answered, &[])
    }

    /// Same as [`Self::check`], but the errors in `passing` do not lose the context either.
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

    /// Returns whether the context can still be used.
    pub(super) fn is_usable(&self) -> bool {
        self.lost.get().is_none()
    }

    /// Marks the context as lost, so that nothing in it is freed: work that does not end still uses it.
    pub(super) fn abandon(&self, reason: &str) {
        self.lost.get_or_init(|| reason.to_owned());
    }

    /// Frees a handle, unless the context is lost; the process's end frees it then.
    fn free(&self, free: impl FnOnce() -> Result<(), DriverError>) {
        if self.lost.get().is_none() {
            let _ = self.check(free());
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once, and everything created in it holds this.
        self.free(|| unsafe { result::primary_ctx::release(self.device) });
    }
}

/// Formats a card's identifier as the driver's tools do.
pub(super) fn uuid(id: sys::CUuuid) -> String {
    let part =
        |range: Range<usize>| id.bytes[range].iter().map(|byte| format!("{:02x}", *byte as u8)).collect::<String>();
    format!("GPU-{}-{}-{}-{}-{}", part(0..4), part(4..6), part(6..8), part(8..10), part(10..16))
}

/// Returns the driver's name and text of an error.
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
// SAFETY: as above; the driver serialises calls from several threads.
unsafe impl Sync for Stream {}

impl Stream {
    /// Creates a stream that does not wait for the context's default stream.
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        let created = result::stream::create(result::stream::StreamKind::NonBlocking);
        Ok(Self { raw: context.check(created)?, context: Arc::clone(context) })
    }

    /// Makes everything issued from here on wait for a recorded event.
    pub(super) fn wait(&self, event: &Event) -> Result<(), DeviceError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both live.
        self.context.check(unsafe { result::stream::wait_event(self.raw, event.raw, flags) })
    }

    /// Checks that nothing issued so far has failed.
    pub(super) fn is_healthy(&self) -> Result<(), DeviceError> {
        // SAFETY: it lives.
        match unsafe { sys::cuStreamQuery(self.raw) }.result() {
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => self.context.check(Ok(())),
            answered => self.context.check(answered),
        }
    }

    /// Blocks the thread until everything issued is complete.
    pub(super) fn synchronize(&self) -> Result<(), DeviceError> {
        // SAFETY: it lives.
        self.context.check(unsafe { result::stream::synchronize(self.raw) })
    }

    /// Returns the driver's handle, for libraries that issue to the stream.
    pub(super) fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// Copies within the card's memory.
    pub(super) fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's ranges lie within buffers that live until the copy is complete (`Device::free`).
        self.context.check(unsafe { result::memcpy_dtod_async(to.0, from.0, bytes, self.raw) })
    }

    /// Copies from the card to the start of pinned host memory, and waits for the copy.
    pub(super) fn download(&self, from: Address, to: &mut Mapped<u8>, bytes: usize) -> Result<(), DeviceError> {
        let pinned = to.part(0, bytes).as_ptr();
        // SAFETY: the memory has that size (`part` checks it), and its only owner waits. The caller ensures that `from`
        // is valid.
        self.context.check(unsafe { sys::cuMemcpyDtoHAsync_v2(pinned.cast(), from.0, bytes, self.raw) }.result())?;
        self.synchronize()
    }

    /// Copies from the start of pinned host memory to the card, and waits for the copy.
    pub(super) fn upload(&self, from: &Mapped<u8>, to: Address, bytes: usize) -> Result<(), DeviceError> {
        let pinned = from.part(0, bytes).as_ptr();
        // SAFETY: the memory has that size (`part` checks it), and its only owner waits. The caller ensures that `to`
        // is valid.
        self.context.check(unsafe { sys::cuMemcpyHtoDAsync_v2(to.0, pinned.cast(), bytes, self.raw) }.result())?;
        self.synchronize()
    }

    /// Launches a kernel, or adds it to the graph within a capture.
    pub(super) fn launch(
        &self,
        kernel: &Function,
        shape: LaunchShape,
        arguments: &[Argument],
    ) -> Result<(), DeviceError> {
        let mut pointers: Vec<*mut c_void> = arguments.iter().map(Argument::pointer).collect();
        let LaunchShape { grid: [x, y, z], threads, shared_bytes } = shape;
        // SAFETY: the driver copies the arguments before it returns. The compiler of plans ensures that they have the
        // kernel's types and that what they point to lives until the kernel has run.
        let launched = unsafe {
            result::launch_kernel(kernel.raw, (x, y, z), (threads, 1, 1), shared_bytes, self.raw, &mut pointers)
        };
        self.context.check(launched)
    }

    /// Launches a graph.
    pub(super) fn launch_graph(&self, graph: &GraphExec) -> Result<(), DeviceError> {
        // SAFETY: both live.
        self.context.check(unsafe { result::graph::launch(graph.raw, self.raw) })
    }

    /// Captures what `issue` issues to this stream, as a graph that runs on `target`. Nothing is executed. During the
    /// capture the driver restricts this thread's other calls and queries of this stream, so the poller must not watch
    /// it.
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
            // SAFETY: nothing else refers to the incomplete graph.
            graph.into_iter().for_each(|graph| self.context.free(|| unsafe { result::graph::destroy(graph) }));
            return Err(error);
        }
        let graph = graph?;
        // SAFETY: the driver has just created the graph, and nothing else refers to it.
        let made = self.context.check(unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) });
        // SAFETY: as above; an executable graph does not need its template.
        self.context.free(|| unsafe { result::graph::destroy(graph) });
        let executable = GraphExec { raw: made?, context: Arc::clone(&self.context) };
        // SAFETY: both live.
        // Uploaded now, so that the first launch does not do it.
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

/// A mark in a stream that other streams can wait for. Waiting for an event that was never recorded has no effect, so
/// callers are given recorded ones only.
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

    /// Marks everything issued to the stream so far; replaces an earlier mark.
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
    /// Loads a binary that was compiled for this card.
    pub(super) fn load(context: &Arc<Context>, binary: &[u8]) -> Result<Rc<Self>, DeviceError> {
        // SAFETY: the driver checks the image's header and reads the size given there.
        let raw = context.check(unsafe { result::module::load_data(binary.as_ptr().cast()) })?;
        Ok(Rc::new(Self { context: Arc::clone(context), raw }))
    }

    /// Returns the kernel of this name.
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
        // SAFETY: all its functions are dropped, and their launches are complete.
        self.context.free(|| unsafe { result::module::unload(self.raw) });
    }
}

/// A kernel.
#[derive(Clone, Debug)]
pub struct Function {
    raw: sys::CUfunction,
    _module: Rc<Module>,
}

/// The launch configuration of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads in a block.
    pub threads: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

/// An argument of a kernel. Its type must be exactly that of the parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// A pointer.
    Address(Address),
    /// A signed integer of 32 bits.
    I32(i32),
    /// An unsigned integer of 32 bits.
    U32(u32),
    /// An unsigned number.
    U64(u64),
    /// A single-precision float.
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

/// An executable graph.
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
