//! Streams. Each is a thread that runs its work in order, because a kernel is native code that may wait for the host.
//! Order between streams is up to the program, as on a GPU.

use std::{
    cell::Cell,
    collections::{BTreeMap, VecDeque},
    ffi::c_void,
    sync::Arc,
    thread::{self, ThreadId},
};

use cudarc::driver::sys::{CUresult, CUresult::*};
use parking_lot::{Condvar, Mutex};

use crate::{
    calls::entries,
    capture::{self, Capture},
    context::{self, Context},
    gate,
    handles::{Handle, Kind, Table, name},
};

pub(crate) const LEAST_PRIORITY: i32 = 0;
pub(crate) const GREATEST_PRIORITY: i32 = -5;
const NON_BLOCKING: u32 = 1;
/// Stack size of a stream's thread, which holds a block's registers and shared memory.
const STACK_BYTES: usize = 16 << 20;
const LEGACY: Handle = 1;
const PER_THREAD: Handle = 2;

static STREAMS: Table<Stream> = Table::new(Kind::Stream);
/// The default streams of each context: the legacy one, and one for each thread that asks for it.
static DEFAULTS: Mutex<Defaults> = Mutex::new(BTreeMap::new());
/// Streams that were destroyed before their work had ended.
static DESTROYED: Mutex<Vec<Arc<Stream>>> = Mutex::new(Vec::new());

thread_local! {
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

type Defaults = BTreeMap<(Handle, Option<u64>), Arc<Stream>>;

/// Work of a stream, which runs once or, in graphs, repeatedly. An error ruins the context.
pub(crate) type Work = Arc<dyn Fn() -> Result<(), CUresult> + Send + Sync>;

pub(crate) struct Stream {
    pub handle: Handle,
    pub context: Arc<Context>,
    flags: u32,
    priority: i32,
    /// The capture that it takes part in, if any.
    pub capture: Mutex<Option<Arc<Capture>>>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    works: VecDeque<Work>,
    issued: u64,
    completed: u64,
    has_thread: bool,
    closed: bool,
}

/// A position on a stream: everything issued before it.
#[derive(Clone)]
pub(crate) struct Position {
    stream: Arc<Stream>,
    at: u64,
}

impl Position {
    pub(crate) fn is_complete(&self) -> bool {
        self.stream.queue.lock().completed >= self.at
    }

    pub(crate) fn wait(&self) {
        let mut queue = self.stream.queue.lock();
        self.stream.changed.wait_while(&mut queue, |queue| queue.completed < self.at);
    }

    /// Returns the context of the stream.
    pub(crate) fn context(&self) -> &Context {
        &self.stream.context
    }
}

impl Stream {
    fn new(handle: Handle, context: Arc<Context>, flags: u32, priority: i32) -> Self {
        let capture = Mutex::new(None);
        Self { handle, context, flags, priority, capture, queue: Mutex::default(), changed: Condvar::new() }
    }

    pub(crate) fn is_legacy(&self) -> bool {
        self.handle == LEGACY
    }

    /// Returns whether it and the legacy stream wait for each other.
    pub(crate) fn is_blocking(&self) -> bool {
        self.flags & NON_BLOCKING == 0
    }

    pub(crate) fn tail(self: &Arc<Self>) -> Position {
        Position { stream: self.clone(), at: self.queue.lock().issued }
    }

    /// Adds work after everything issued, whether or not a capture is active. Returns the position after it.
    fn enqueue(self: &Arc<Self>, work: Work) -> Position {
        let mut queue = self.queue.lock();
        queue.works.push_back(work);
        queue.issued += 1;
        if !queue.has_thread {
            queue.has_thread = true;
            let stream = self.clone();
            thread::Builder::new()
                .name(name(self.handle))
                .stack_size(STACK_BYTES)
                .spawn(move || stream.serve())
                .expect("a thread starts");
        }
        self.changed.notify_all();
        Position { stream: self.clone(), at: queue.issued }
    }

    /// Makes all further work wait for a position.
    pub(crate) fn wait_for(self: &Arc<Self>, position: Position) {
        if !position.is_complete() {
            self.enqueue(Arc::new(move || {
                position.wait();
                Ok(())
            }));
        }
    }

    /// Adds work in the order that the legacy stream requires. The stream must not be capturing.
    pub(crate) fn enqueue_in_order(self: &Arc<Self>, work: Work) -> Position {
        if self.is_legacy() {
            let others = all_of(&self.context).into_iter().filter(|other| other.is_blocking() && !other.is_legacy());
            others.for_each(|other| self.wait_for(other.tail()));
        } else if self.is_blocking() {
            let legacy = DEFAULTS.lock().get(&(self.context.handle, None)).cloned();
            legacy.iter().for_each(|legacy| self.wait_for(legacy.tail()));
        }
        // A stream that waits for another does not pass the gate for that, since it runs nothing.
        self.enqueue(Arc::new(move || {
            gate::pass();
            work()
        }))
    }

    fn serve(&self) {
        IS_WORKER.set(true);
        loop {
            let work = {
                let mut queue = self.queue.lock();
                self.changed.wait_while(&mut queue, |queue| queue.works.is_empty() && !queue.closed);
                queue.works.pop_front()
            };
            let Some(work) = work else { return };
            if self.context.check().is_ok()
                && let Err(code) = work()
            {
                self.context.poison(code);
            }
            drop(work);
            self.queue.lock().completed += 1;
            self.changed.notify_all();
        }
    }

    /// Makes its thread end once all work is done.
    fn close(&self) {
        self.queue.lock().closed = true;
        self.changed.notify_all();
    }
}

/// Returns whether the calling thread is a stream's. Host functions that run there must not call CUDA.
pub(crate) fn is_worker() -> bool {
    IS_WORKER.get()
}

/// Returns the stream of a handle.
pub(crate) fn get(handle: Handle) -> Result<Arc<Stream>, CUresult> {
    let context = context::current()?;
    let thread = match handle {
        0 | LEGACY => None,
        PER_THREAD => Some(thread_number(thread::current().id())),
        _ => {
            let stream = STREAMS.get(handle)?;
            stream.context.check()?;
            return Ok(stream);
        }
    };
    let handle = if thread.is_some() { PER_THREAD } else { LEGACY };
    let mut defaults = DEFAULTS.lock();
    let default = defaults.entry((context.handle, thread));
    Ok(default.or_insert_with(|| Arc::new(Stream::new(handle, context.clone(), 0, LEAST_PRIORITY))).clone())
}

fn thread_number(thread: ThreadId) -> u64 {
    static SEEN: Mutex<Vec<ThreadId>> = Mutex::new(Vec::new());
    let mut seen = SEEN.lock();
    let place = seen.iter().position(|known| *known == thread).unwrap_or_else(|| {
        seen.push(thread);
        seen.len() - 1
    });
    place as u64
}

/// Issues work to a stream, or adds it to the stream's capture.
pub(crate) fn issue(stream: &Arc<Stream>, what: &str, work: Work) -> Result<(), CUresult> {
    if let Some(capture) = capture::of(stream) {
        return capture.add(stream, what, work);
    }
    capture::refuse_implicit(stream)?;
    stream.enqueue_in_order(work);
    Ok(())
}

/// Returns the streams of a context that may have work.
fn all_of(context: &Context) -> Vec<Arc<Stream>> {
    let mut streams = STREAMS.all(|stream| stream.context.handle == context.handle);
    let mut destroyed = DESTROYED.lock();
    destroyed.retain(|stream| !stream.tail().is_complete());
    streams.extend(destroyed.iter().filter(|stream| stream.context.handle == context.handle).cloned());
    streams.extend(DEFAULTS.lock().iter().filter(|((own, _), _)| *own == context.handle).map(|(_, s)| s.clone()));
    streams
}

pub(crate) fn synchronize_all(context: &Context) {
    all_of(context).iter().for_each(|stream| stream.tail().wait());
}

pub(crate) fn destroy_all(context: &Context) {
    all_of(context).iter().for_each(|stream| stream.close());
    STREAMS.remove_all(|stream| stream.context.handle == context.handle);
    DEFAULTS.lock().retain(|(own, _), _| *own != context.handle);
}

fn create(to: *mut Handle, flags: u32, priority: i32) -> Result<Handle, CUresult> {
    let context = context::current()?;
    if flags & !NON_BLOCKING != 0 || to.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let priority = priority.clamp(GREATEST_PRIORITY, LEAST_PRIORITY);
    Ok(STREAMS.create(|handle| Stream::new(handle, context, flags, priority)).handle)
}

type HostFunction = unsafe extern "C" fn(*mut c_void);

entries! {
    fn cuStreamCreate(stream: *mut Handle, flags: u32) |call| {
        call.note(|| format!("flags={flags}"));
        *stream = create(stream, flags, LEAST_PRIORITY)?;
        call.note(|| format!("-> {}", name(*stream)));
        Ok(())
    }

    fn cuStreamCreateWithPriority(stream: *mut Handle, flags: u32, priority: i32) |call| {
        call.note(|| format!("flags={flags} priority={priority}"));
        *stream = create(stream, flags, priority)?;
        call.note(|| format!("-> {}", name(*stream)));
        Ok(())
    }

    fn cuStreamDestroy_v2(stream: Handle) |call| {
        call.note(|| name(stream));
        context::current()?;
        let stream = STREAMS.remove(stream)?;
        if let Some(capture) = capture::of(&stream) {
            capture.invalidate();
        }
        stream.close();
        DESTROYED.lock().push(stream);
        Ok(())
    }

    fn cuStreamSynchronize(stream: Handle) |call| {
        call.note(|| name(stream));
        let stream = get(stream)?;
        capture::refuse_waiting(&stream)?;
        if stream.is_legacy() {
            let blocking = all_of(&stream.context).into_iter().filter(|other| other.is_blocking());
            blocking.for_each(|other| other.tail().wait());
        }
        stream.tail().wait();
        stream.context.check()
    }

    fn cuStreamQuery(stream: Handle) |call| {
        call.note(|| name(stream));
        let stream = get(stream)?;
        capture::refuse_waiting(&stream)?;
        stream.context.check()?;
        if stream.tail().is_complete() { Ok(()) } else { Err(CUDA_ERROR_NOT_READY) }
    }

    fn cuStreamGetPriority(stream: Handle, priority: *mut i32) |call| {
        call.note(|| name(stream));
        *priority = get(stream)?.priority;
        Ok(())
    }

    fn cuStreamGetFlags(stream: Handle, flags: *mut u32) |call| {
        call.note(|| name(stream));
        *flags = get(stream)?.flags;
        Ok(())
    }

    fn cuStreamGetCtx(stream: Handle, context: *mut Handle) |call| {
        call.note(|| name(stream));
        *context = get(stream)?.context.handle;
        Ok(())
    }

    fn cuLaunchHostFunc(stream: Handle, function: Option<HostFunction>, data: *mut c_void) |call| {
        call.note(|| name(stream));
        let stream = get(stream)?;
        let function = function.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let data = data as usize;
        issue(&stream, "host function", Arc::new(move || {
            // SAFETY: the program keeps the data until the function has run.
            unsafe { function(data as *mut c_void) };
            Ok(())
        }))
    }
}
