//! A CUDA GPU as a device: streams, events, graphs captured at load, and completion words that one thread polls.
//!
//! - **Work is a captured graph** with a block of parameters. What changes between launches (row indices, live rows,
//!   lengths) is read from the block, never captured. The block is written to host memory that the card reads. The
//!   graph's first kernel fetches it, and the last signals that the operation is complete (`signals`).
//! - **A launch is one call of the driver**, and so is a ticket that another stream may wait for. After loading,
//!   launches allocate no memory on the card, do not synchronise, and use no callbacks of the driver.
//! - **Tickets order work between streams.** Waiting for a ticket that is complete takes no call of the driver.
//! - **A device can be lost**: after an error that its context never recovers from, every call returns
//!   [`DeviceError::Lost`].
//!
//! A [`Cuda`] is used only by the thread that opened it. `driver` calls the driver and owns its handles, `queue` is one
//! stream, `libraries` finds and checks CUDA's libraries, `compiler` compiles kernels, `products` multiplies matrices,
//! `convolutions` convolves images, `capture` issues operations to graphs, `sharing` opens memory of other processes,
//! and [`cards`](mod@cards) lists the cards.

mod capture;
pub mod cards;
mod compiler;
pub mod convolutions;
mod driver;
mod host_memory;
pub mod libraries;
pub mod products;
mod queue;
mod sharing;
mod signals;
mod stream_memory;

use std::{
    collections::HashSet,
    fmt,
    marker::PhantomData,
    rc::Rc,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use tracing::error;

pub use self::{
    capture::Capture,
    compiler::{Compiler, KERNELS, KernelElement, KernelSource},
    driver::{Address, Argument, Function, IMPORT_HANDLE_BYTES, LaunchShape, Memory},
    host_memory::HostMemory,
    sharing::{ImportedMemory, ImportedSlice, Sharing},
    signals::CompletionListener,
};
use self::{
    convolutions::{Convolution, Geometry, ImageConvolution},
    driver::{Context, GraphExec, Mapped, Module, Stream},
    products::{MatrixProduct, Product},
    queue::{Blocks, Frame, Queue},
    signals::Signals,
    stream_memory::StreamMemory,
};
use super::{
    Access, BufferId, Device, DeviceError, MemoryShortage, Operation, Region, StreamId, Ticket,
    access::{check_copy, check_named_once},
    memory::LARGEST_BYTES,
    registry::Registry,
};

/// How often a stopping device is polled for the end of running work.
const STOP_INTERVAL: Duration = Duration::from_micros(200);

/// Options of a device.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// The card's ordinal in the driver.
    pub ordinal: u16,
    /// Number of streams, at least one.
    pub streams: u16,
    /// Maximum operations in flight on one stream.
    pub depth: u32,
    /// Maximum bytes of an operation's parameters.
    pub parameter_bytes: usize,
    /// Maximum bytes of the memory that is allocated on the card; `None`: as much as there is. The driver's and the
    /// libraries' memory does not count.
    pub memory_bytes: Option<usize>,
}

/// A card, used only by the thread that opened it.
pub struct Cuda {
    context: Arc<Context>,
    /// Compute capability.
    capability: (i32, i32),
    compiler: Compiler,
    /// cuBLASLt, opened when the first product is prepared.
    multiplying: Option<Rc<products::Library>>,
    /// Forms of products that have run, whose kernels are therefore loaded.
    tried: HashSet<products::Form>,
    /// cuDNN, opened when the first convolution is prepared.
    convolving: Option<Rc<convolutions::Library>>,
    queues: Vec<Queue>,
    /// The stream for captures, and for the trial runs of libraries. No work runs on it.
    capturing: Stream,
    buffers: Registry<Rows>,
    stream_memory: StreamMemory,
    signals: Arc<Signals>,
    /// `None` once it has reported everything and ended.
    poller: Option<JoinHandle<()>>,
    is_stopped: bool,
    /// Makes the device `!Send`: its context is current on one thread only.
    thread_bound: PhantomData<Rc<()>>,
}

/// A buffer of rows.
struct Rows {
    memory: Memory,
    rows: u32,
    row_bytes: usize,
}

/// A captured graph, for one stream.
#[derive(Debug)]
pub struct CapturedGraph {
    stream: StreamId,
    parameter_bytes: usize,
    executable: GraphExec,
    /// Memory that only its kernels read.
    _kept: Option<Memory>,
}

impl CapturedGraph {
    /// Keeps memory that the graph's kernels read for as long as the graph.
    #[must_use]
    pub fn keeping(self, memory: Memory) -> Self {
        Self { _kept: Some(memory), ..self }
    }
}

/// A launch: a graph and its parameters.
#[derive(Clone, Debug)]
pub struct CudaWork {
    /// The graph to run.
    pub graph: Rc<CapturedGraph>,
    /// The parameters, which the graph reads at [`Capture::parameters`].
    pub parameters: Box<[u8]>,
}

impl Cuda {
    /// Opens a card. `listener` is notified of completions on the poller's thread.
    ///
    /// # Errors
    /// If the card cannot be opened, has too little memory, or the kernels of every operation cannot be compiled.
    pub fn open(
        options: &CudaOptions,
        compiler: &Compiler,
        listener: Arc<dyn CompletionListener>,
    ) -> Result<Self, DeviceError> {
        let context = Context::retain(options.ordinal, options.memory_bytes)?;
        let major = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let compiler = compiler.for_architecture(major, minor);
        let load = |source: KernelSource<'_>| compile(&compiler, &context, source, KernelElement::F32);
        let frame = Frame {
            fetch: load(KERNELS.parameters)?.function("fetch_parameters")?,
            signal: load(KERNELS.signal)?.function("signal")?,
        };
        let streams = options.streams.max(1);
        let signals = Arc::new(Signals::new(&context, streams)?);
        let blocks = Blocks::new(options.depth, options.parameter_bytes);
        let capturing = Stream::new(&context)?;
        let queue = |index| Queue::new(&context, StreamId(index), blocks, &signals, &frame, &capturing);
        let queues: Vec<Queue> = (0..streams).map(queue).collect::<Result<_, _>>()?;
        let polled = queues.iter().map(|queue| Arc::clone(&queue.stream)).collect();
        let poller = signals::poll(Arc::clone(&signals), Arc::clone(&context), polled, listener)?;
        let buffers = Registry::default();
        Ok(Self {
            context,
            capability: (major, minor),
            compiler,
            multiplying: None,
            tried: HashSet::new(),
            convolving: None,
            queues,
            capturing,
            buffers,
            stream_memory: StreamMemory::default(),
            signals,
            poller: Some(poller),
            is_stopped: false,
            thread_bound: PhantomData,
        })
    }

    /// Returns the compute capability, such as 9 and 0.
    pub fn capability(&self) -> (i32, i32) {
        self.capability
    }

    /// Returns the compiler of kernels for this card.
    pub fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// Compiles kernels for this card, or reads them from the cache, and loads them.
    ///
    /// # Errors
    /// If they do not compile, with the compiler's messages, or the driver cannot load them.
    pub fn kernels(&self, source: KernelSource<'_>, element: KernelElement) -> Result<Kernels, DeviceError> {
        compile(&self.compiler, &self.context, source, element).map(Kernels)
    }

    /// Allocates memory that is not a buffer of rows, such as weights: at least one byte, filled with zeros. The caller
    /// must hold it until all work that uses it has completed.
    ///
    /// # Errors
    /// If the card has too little memory, or the device is lost.
    pub fn memory(&self, bytes: usize) -> Result<Memory, DeviceError> {
        Memory::new(&self.context, bytes)
    }

    /// Prepares a matrix product for captures: chooses its algorithm. Also runs it once on the memory at its addresses,
    /// unless a product of the same form has run: the library loads kernels lazily, which it cannot do within a
    /// capture. For loading, not for the hot path.
    ///
    /// # Errors
    /// If cuBLASLt is not found, or has no algorithm for the product.
    pub fn product(&mut self, product: &MatrixProduct) -> Result<Product, DeviceError> {
        let library = match &self.multiplying {
            Some(library) => Rc::clone(library),
            None => Rc::clone(self.multiplying.insert(Rc::new(products::Library::open(&self.context)?))),
        };
        let prepared = Product::new(&library, product)?;
        let form = prepared.form();
        if !self.tried.contains(&form) {
            prepared.issue(&self.capturing)?;
            self.capturing.synchronize()?;
            self.tried.insert(form);
        }
        Ok(prepared)
    }

    /// Returns the workspace bytes of the best algorithm for a convolution.
    ///
    /// # Errors
    /// If cuDNN is not found, or has no algorithm for this shape.
    pub fn convolution_workspace_bytes(&mut self, geometry: &Geometry) -> Result<usize, DeviceError> {
        convolutions::workspace_bytes(&*self.convolving()?, geometry)
    }

    /// Prepares a convolution for captures: chooses its algorithm and runs it once on the memory at its addresses. For
    /// loading, not for the hot path.
    ///
    /// # Errors
    /// If cuDNN is not found, or has no algorithm that fits the workspace.
    pub fn convolution(&mut self, convolution: &ImageConvolution) -> Result<Convolution, DeviceError> {
        let library = self.convolving()?;
        let prepared = Convolution::new(&library, convolution, &self.capturing)?;
        self.capturing.synchronize()?;
        Ok(prepared)
    }

    fn convolving(&mut self) -> Result<Rc<convolutions::Library>, DeviceError> {
        if let Some(library) = &self.convolving {
            return Ok(Rc::clone(library));
        }
        Ok(Rc::clone(self.convolving.insert(Rc::new(convolutions::Library::open(&self.context)?))))
    }

    /// Captures what `issue` issues, as a graph for one stream. Each launch fetches `parameter_bytes` of parameters
    /// from the host, and may have at most as many. For loading, not for the hot path.
    ///
    /// # Errors
    /// If there is no such stream, the parameters exceed the device's limit, or the driver refuses an operation.
    pub fn capture(
        &mut self,
        stream: StreamId,
        parameter_bytes: usize,
        issue: impl FnOnce(&mut Capture<'_>) -> Result<(), DeviceError>,
    ) -> Result<CapturedGraph, DeviceError> {
        self.capture_graph(stream, parameter_bytes, true, issue)
    }

    /// Same as [`Self::capture`], but the first kernel that `issue` launches fetches the parameters
    /// ([`Capture::fetching`]).
    ///
    /// # Errors
    /// As [`Self::capture`].
    pub fn capture_fetching(
        &mut self,
        stream: StreamId,
        parameter_bytes: usize,
        issue: impl FnOnce(&mut Capture<'_>) -> Result<(), DeviceError>,
    ) -> Result<CapturedGraph, DeviceError> {
        self.capture_graph(stream, parameter_bytes, false, issue)
    }

    fn capture_graph(
        &mut self,
        stream: StreamId,
        parameter_bytes: usize,
        fetches: bool,
        issue: impl FnOnce(&mut Capture<'_>) -> Result<(), DeviceError>,
    ) -> Result<CapturedGraph, DeviceError> {
        let queue = self.queue(stream)?;
        let executable = queue.capture(&self.capturing, parameter_bytes, fetches, issue)?;
        Ok(CapturedGraph { stream, parameter_bytes, executable, _kept: None })
    }

    /// Returns the address of a buffer's first row.
    ///
    /// # Errors
    /// If there is no such buffer.
    pub fn address(&self, buffer: BufferId) -> Result<Address, DeviceError> {
        Ok(self.buffers.get(buffer)?.memory.address())
    }

    /// Writes rows from `row` on. No work on the card may use them. Blocks the thread; for loading.
    ///
    /// # Errors
    /// If there is no such buffer, or the rows exceed it.
    pub fn upload(&mut self, buffer: BufferId, row: u32, data: &[u8]) -> Result<(), DeviceError> {
        let rows = self.buffers.get(buffer)?;
        rows.memory.upload(row as usize * rows.row_bytes, data)
    }

    /// Reads rows from `row` on. Their writers must have completed. Blocks the thread; for tests and rare cases.
    ///
    /// # Errors
    /// If there is no such buffer, or the rows exceed it.
    pub fn download(&self, buffer: BufferId, row: u32, data: &mut [u8]) -> Result<(), DeviceError> {
        let rows = self.buffers.get(buffer)?;
        rows.memory.download(row as usize * rows.row_bytes, data)
    }

    /// Allocates host memory that the card reads and writes in place, as `count` consecutive parts of `part_bytes`
    /// each. They must be dropped on this thread.
    ///
    /// # Errors
    /// If there is too little memory.
    pub fn host_memory(&mut self, part_bytes: usize, count: usize) -> Result<Vec<HostMemory>, DeviceError> {
        let bytes = part_bytes.checked_mul(count).filter(|&bytes| bytes <= LARGEST_BYTES);
        let too_large = DeviceError::TooLarge { rows: count as u32, row_bytes: part_bytes, most_bytes: LARGEST_BYTES };
        let mapped = Mapped::new(&self.context, bytes.ok_or(too_large)?)?;
        Ok(HostMemory::parts(mapped, part_bytes, count))
    }

    /// Returns the card's identifier, such as `GPU-...`.
    ///
    /// # Errors
    /// If the device is lost.
    pub fn uuid(&self) -> Result<String, DeviceError> {
        self.context.uuid()
    }

    /// Returns the bytes of all memory that is allocated on the card.
    pub fn reserved_bytes(&self) -> usize {
        self.context.reserved_bytes()
    }

    /// Begins a load. An allocation that exceeds the bound names what the load needs, and what was reserved before it.
    pub fn begin_load(&self) {
        self.context.begin_load();
    }

    /// Returns what the latest load lacks, if an allocation has failed for want of memory since it began.
    pub fn shortage(&self) -> Option<MemoryShortage> {
        self.context.shortage()
    }

    /// Returns the free and the total bytes of the card's memory, within the bound of the options.
    ///
    /// # Errors
    /// If the device is lost.
    pub fn memory_bytes(&self) -> Result<(usize, usize), DeviceError> {
        self.context.memory_bytes()
    }

    /// Asks the driver whether anything issued so far has failed: a kernel that faults signals nothing. For waits that
    /// are not on the hot path.
    ///
    /// # Errors
    /// If the device is lost, with the driver's reason.
    pub fn check_health(&self) -> Result<(), DeviceError> {
        self.queues.iter().try_for_each(|queue| queue.stream.is_healthy())
    }

    fn queue(&self, stream: StreamId) -> Result<&Queue, DeviceError> {
        self.queues.get(stream.index()).ok_or(DeviceError::UnknownStream { stream, streams: self.streams() })
    }

    fn queue_mut(&mut self, stream: StreamId) -> Result<&mut Queue, DeviceError> {
        if self.is_stopped {
            return Err(DeviceError::Stopped);
        }
        let streams = self.streams();
        self.queues.get_mut(stream.index()).ok_or(DeviceError::UnknownStream { stream, streams })
    }

    /// Checks that a region's rows exist.
    fn check(&self, region: &Region) -> Result<&Rows, DeviceError> {
        let rows = self.buffers.get(region.buffer)?;
        region.check(rows.rows)?;
        Ok(rows)
    }
}

fn compile(
    compiler: &Compiler,
    context: &Arc<Context>,
    source: KernelSource<'_>,
    element: KernelElement,
) -> Result<Rc<Module>, DeviceError> {
    let binary = compiler.compile(source, element).map_err(DeviceError::Driver)?;
    Module::load(context, &binary)
}

/// A loaded file of kernels.
pub struct Kernels(Rc<Module>);

impl Kernels {
    /// Returns the kernel of this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn function(&self, name: &str) -> Result<Function, DeviceError> {
        self.0.function(name)
    }
}

impl Device for Cuda {
    type Work = CudaWork;

    fn streams(&self) -> u16 {
        self.queues.len() as u16
    }

    fn allocate(&mut self, rows: u32, row_bytes: usize) -> Result<BufferId, DeviceError> {
        let too_large = DeviceError::TooLarge { rows, row_bytes, most_bytes: LARGEST_BYTES };
        let bytes = (rows as usize).checked_mul(row_bytes).filter(|&bytes| bytes <= LARGEST_BYTES).ok_or(too_large)?;
        let memory = Memory::new(&self.context, bytes)?;
        Ok(self.buffers.insert(Rows { memory, rows, row_bytes }))
    }

    fn free(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        self.buffers.remove(buffer).map(drop)
    }

    fn wait(&mut self, stream: StreamId, ticket: Ticket) -> Result<(), DeviceError> {
        self.queue_mut(stream)?;
        let is_complete = self.queue(ticket.stream)?.is_complete(ticket.position);
        let is_complete = is_complete.ok_or(DeviceError::UnknownTicket(ticket.stream))?;
        // A stream runs its operations in order, so it needs no event of its own.
        if is_complete || ticket.stream == stream {
            return Ok(());
        }
        let pair = self.queues.get_disjoint_mut([stream.index(), ticket.stream.index()]);
        let Ok([waiting, awaited]) = pair else { return Err(DeviceError::UnknownTicket(ticket.stream)) };
        let event = awaited.event(ticket.position).ok_or(DeviceError::UnknownTicket(ticket.stream))?;
        waiting.wait(event)
    }

    fn launch(&mut self, stream: StreamId, accesses: &[Access], work: CudaWork) -> Result<Operation, DeviceError> {
        self.queue_mut(stream)?;
        accesses.iter().try_for_each(|access| self.check(&access.region).map(drop))?;
        check_named_once(accesses)?;
        if work.graph.stream != stream {
            return Err(DeviceError::MalformedWork("the graph was captured for another stream"));
        }
        let (bytes, most_bytes) = (work.parameters.len(), work.graph.parameter_bytes);
        if bytes > most_bytes {
            return Err(DeviceError::TooManyParameters { bytes, most_bytes });
        }
        let operation = self.queue_mut(stream)?.launch(&work.graph.executable, &work.parameters)?;
        self.signals.issued(operation);
        Ok(operation)
    }

    fn copy(&mut self, stream: StreamId, from: &Region, to: &Region) -> Result<Operation, DeviceError> {
        let (read, written) = (self.check(from)?, self.check(to)?);
        check_copy(from, read.row_bytes, to, written.row_bytes)?;
        let (source, target, bytes) = (read.memory.address(), written.memory.address(), read.row_bytes);
        let pairs: Vec<(u32, u32)> = from.rows.iter().zip(to.rows.iter()).collect();
        self.queue_mut(stream)?.issue(|stream| {
            // Rows that are consecutive on both sides are copied in one call.
            pairs.chunk_by(|one, next| one.0 + 1 == next.0 && one.1 + 1 == next.1).try_for_each(|run| {
                let (from, to) = run[0];
                let at = |start: Address, row: u32| start.offset(row as usize * bytes);
                stream.copy(at(source, from), at(target, to), run.len() * bytes)
            })
        })
    }

    fn record(&mut self, stream: StreamId) -> Result<Ticket, DeviceError> {
        let is_waited_for = self.queues.len() > 1;
        self.queue_mut(stream)?.record(is_waited_for)
    }

    fn is_complete(&mut self, ticket: Ticket) -> bool {
        self.queue(ticket.stream).is_ok_and(|queue| queue.is_complete(ticket.position) == Some(true))
    }

    /// Issued work cannot be cancelled: it runs until `patience` is over. Everything that ends in that time is
    /// reported.
    #[expect(clippy::disallowed_methods, reason = "a stuck stream signals nothing, so the streams are polled")]
    fn stop(&mut self, patience: Duration) -> bool {
        self.is_stopped = true;
        let deadline = Instant::now() + patience;
        loop {
            if self.queues.iter().all(Queue::is_idle) {
                self.tell_the_rest();
                return true;
            }
            let is_healthy = self.queues.iter().all(|queue| queue.stream.is_healthy().is_ok());
            if !is_healthy || Instant::now() >= deadline {
                return false;
            }
            thread::sleep(STOP_INTERVAL);
        }
    }
}

impl Cuda {
    /// Ends the poller after it has reported everything, which is complete by now.
    fn tell_the_rest(&mut self) {
        self.signals.end();
        let Some(poller) = self.poller.take() else { return };
        if poller.join().is_err() {
            error!("the poller of a card panicked");
        }
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        self.signals.end();
        if !self.stop(Duration::ZERO) {
            self.context.abandon("the device was dropped while work was on it");
        }
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Cuda").field("context", &self.context).field("streams", &self.queues.len()).finish()
    }
}
