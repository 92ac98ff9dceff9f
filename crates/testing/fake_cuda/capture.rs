//! Captures of streams into graphs, and the calls that they forbid. See the CUDA programming guide, "Creating a graph
//! using stream capture", and `cuThreadExchangeStreamCaptureMode`.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    thread::{self, ThreadId},
};

use cudarc::driver::sys::{CUresult, CUresult::*};
use parking_lot::Mutex;

use crate::{
    calls::entries,
    context::{self, Context},
    graph::{self, Node},
    handles::{Handle, name},
    stream::{self, Stream, Work},
};

/// Captures that have not ended.
static ACTIVE: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());

thread_local! {
    static THREAD_MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

/// The threads whose unsafe calls a capture forbids, or the captures that a thread's unsafe calls respect.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Global,
    ThreadLocal,
    Relaxed,
}

impl Mode {
    fn read(mode: u32) -> Result<Self, CUresult> {
        match mode {
            0 => Ok(Self::Global),
            1 => Ok(Self::ThreadLocal),
            2 => Ok(Self::Relaxed),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
}

pub(crate) struct Capture {
    mode: Mode,
    thread: ThreadId,
    context: Arc<Context>,
    /// The stream on which it began.
    origin: Handle,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    nodes: Vec<Node>,
    /// The streams that take part, each with the nodes that its next node depends on.
    streams: BTreeMap<Handle, (Arc<Stream>, Vec<usize>)>,
    invalidated: bool,
}

impl State {
    /// Returns nodes and all their ancestors.
    fn ancestors(&self, of: &[usize]) -> BTreeSet<usize> {
        let mut ancestors = BTreeSet::new();
        let mut open = of.to_vec();
        while let Some(node) = open.pop() {
            if ancestors.insert(node) {
                open.extend(&self.nodes[node].behind);
            }
        }
        ancestors
    }

    /// Returns whether all captured work joins the stream again.
    fn is_joined_in(&self, origin: Handle) -> bool {
        let reached = self.streams.get(&origin).map(|(_, frontier)| self.ancestors(frontier)).unwrap_or_default();
        self.streams.values().all(|(_, frontier)| frontier.iter().all(|node| reached.contains(node)))
    }
}

impl Capture {
    pub(crate) fn invalidate(&self) {
        self.state.lock().invalidated = true;
    }

    fn valid(&self) -> Result<parking_lot::MutexGuard<'_, State>, CUresult> {
        let state = self.state.lock();
        if state.invalidated { Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) } else { Ok(state) }
    }

    /// Adds a node after everything that the stream has captured.
    pub(crate) fn add(&self, stream: &Stream, what: &str, work: Work) -> Result<(), CUresult> {
        let mut state = self.valid()?;
        let node = state.nodes.len();
        if let Some((_, frontier)) = state.streams.get_mut(&stream.handle) {
            let behind = std::mem::replace(frontier, vec![node]);
            state.nodes.push(Node { what: what.to_owned(), work, behind });
        }
        Ok(())
    }

    /// Returns the nodes that the stream's next node depends on.
    pub(crate) fn frontier(&self, stream: &Stream) -> Result<Vec<usize>, CUresult> {
        Ok(self.valid()?.streams.get(&stream.handle).map(|(_, frontier)| frontier.clone()).unwrap_or_default())
    }

    /// Makes the stream's next node depend on these, and the stream part of the capture.
    pub(crate) fn join(self: &Arc<Self>, stream: &Arc<Stream>, behind: &[usize]) -> Result<(), CUresult> {
        if stream.context.handle != self.context.handle {
            self.invalidate();
            return Err(CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        }
        let mut state = self.valid()?;
        let (_, frontier) = state.streams.entry(stream.handle).or_insert_with(|| (stream.clone(), Vec::new()));
        frontier.extend(behind);
        frontier.sort_unstable();
        frontier.dedup();
        *stream.capture.lock() = Some(self.clone());
        Ok(())
    }

    /// Releases the streams and returns the captured nodes.
    fn end(self: &Arc<Self>) -> Result<Vec<Node>, CUresult> {
        ACTIVE.lock().retain(|active| !Arc::ptr_eq(active, self));
        let mut state = self.state.lock();
        for (stream, _) in state.streams.values() {
            *stream.capture.lock() = None;
        }
        let joined = state.is_joined_in(self.origin);
        // Events that were recorded within the capture become invalid.
        let invalidated = std::mem::replace(&mut state.invalidated, true);
        if invalidated {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        if !joined {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
        }
        Ok(std::mem::take(&mut state.nodes))
    }
}

/// Returns the capture that a stream takes part in.
pub(crate) fn of(stream: &Stream) -> Option<Arc<Capture>> {
    stream.capture.lock().clone()
}

/// Invalidates the captures for which `which` holds, and rejects the call if there are any.
fn refuse(which: impl Fn(&Capture) -> bool, code: CUresult) -> Result<(), CUresult> {
    let conflicting: Vec<_> = ACTIVE.lock().iter().filter(|capture| which(capture)).cloned().collect();
    conflicting.iter().for_each(|capture| capture.invalidate());
    if conflicting.is_empty() { Ok(()) } else { Err(code) }
}

/// Rejects a call that captures forbid because it might wait for the device.
pub(crate) fn refuse_unsafe_call() -> Result<(), CUresult> {
    let (mode, thread) = (THREAD_MODE.get(), thread::current().id());
    let forbids = |capture: &Capture| match mode {
        _ if capture.thread == thread => mode != Mode::Relaxed && capture.mode != Mode::Relaxed,
        Mode::Global => capture.mode == Mode::Global,
        Mode::ThreadLocal | Mode::Relaxed => false,
    };
    refuse(forbids, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
}

/// Rejects waits for a stream, and queries of it, while it captures.
pub(crate) fn refuse_waiting(stream: &Stream) -> Result<(), CUresult> {
    if let Some(capture) = of(stream) {
        capture.invalidate();
        return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    refuse_implicit(stream)?;
    refuse_unsafe_call()
}

/// Rejects waits for a context while one of its streams captures.
pub(crate) fn refuse_synchronizing(context: &Context) -> Result<(), CUresult> {
    refuse(|capture| capture.context.handle == context.handle, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
}

/// Rejects use of the legacy stream while a stream captures that it would wait for.
pub(crate) fn refuse_implicit(stream: &Stream) -> Result<(), CUresult> {
    let waits = |capture: &Capture| {
        let mut streams = capture.state.lock().streams.values().map(|(stream, _)| stream.clone()).collect::<Vec<_>>();
        streams.retain(|captured| captured.is_blocking());
        capture.context.handle == stream.context.handle && !streams.is_empty()
    };
    if stream.is_legacy() { refuse(waits, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) } else { Ok(()) }
}

entries! {
    fn cuStreamBeginCapture_v2(stream: Handle, mode: u32) |call| {
        call.note(|| format!("{} mode={mode}", name(stream)));
        let stream = stream::get(stream)?;
        let mode = Mode::read(mode)?;
        if stream.is_legacy() {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let streams = BTreeMap::from([(stream.handle, (stream.clone(), Vec::new()))]);
        let capture = Arc::new(Capture {
            mode,
            thread: thread::current().id(),
            context: stream.context.clone(),
            origin: stream.handle,
            state: Mutex::new(State { streams, ..State::default() }),
        });
        match &mut *stream.capture.lock() {
            Some(_) => return Err(CUDA_ERROR_ILLEGAL_STATE),
            own => *own = Some(capture.clone()),
        }
        ACTIVE.lock().push(capture);
        Ok(())
    }

    fn cuStreamEndCapture(stream: Handle, graph: *mut Handle) |call| {
        call.note(|| name(stream));
        let stream = stream::get(stream)?;
        let capture = of(&stream).ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        if capture.origin != stream.handle {
            capture.invalidate();
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != Mode::Relaxed && capture.thread != thread::current().id() {
            return Err(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        }
        *graph = 0;
        *graph = graph::create(capture.context.clone(), capture.end()?);
        call.note(|| format!("-> {}", name(*graph)));
        Ok(())
    }

    fn cuStreamIsCapturing(stream: Handle, status: *mut u32) |call| {
        call.note(|| name(stream));
        let stream = stream::get(stream)?;
        refuse_implicit(&stream)?;
        *status = match of(&stream) {
            None => 0,
            Some(capture) => if capture.valid().is_ok() { 1 } else { 2 },
        };
        Ok(())
    }

    fn cuThreadExchangeStreamCaptureMode(mode: *mut u32) |_call| {
        context::current()?;
        let new = Mode::read(*mode)?;
        *mode = THREAD_MODE.replace(new) as u32;
        Ok(())
    }
}
