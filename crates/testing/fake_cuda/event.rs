//! Events. An event that was never recorded counts as complete. Recording it again replaces its position.

use std::{sync::Arc, time::Instant};

use cudarc::driver::sys::{CUresult, CUresult::*};
use parking_lot::Mutex;

use crate::{
    calls::entries,
    capture::{self, Capture},
    context::{self, Context},
    handles::{Handle, Kind, Table, name},
    stream::{self, Position, Stream},
};

const BLOCKING_SYNC: u32 = 1;
const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;

static EVENTS: Table<Event> = Table::new(Kind::Event);

struct Event {
    context: Arc<Context>,
    flags: u32,
    recorded: Mutex<Recorded>,
}

#[derive(Clone)]
enum Recorded {
    Never,
    /// On a stream; the time is when the stream reached it.
    Stream {
        position: Position,
        time: Arc<Mutex<Option<Instant>>>,
    },
    /// Within a capture, after these nodes.
    Captured {
        capture: Arc<Capture>,
        behind: Vec<usize>,
    },
}

impl Event {
    /// Returns where it was recorded; an error if that is within a capture, because the host must not query it then.
    fn position(&self) -> Result<Option<Position>, CUresult> {
        match &*self.recorded.lock() {
            Recorded::Never => Ok(None),
            Recorded::Stream { position, .. } => Ok(Some(position.clone())),
            Recorded::Captured { capture, .. } => {
                capture.invalidate();
                Err(CUDA_ERROR_CAPTURED_EVENT)
            }
        }
    }

    fn record(&self, stream: &Arc<Stream>) -> Result<(), CUresult> {
        if stream.context.handle != self.context.handle {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        let recorded = if let Some(capture) = capture::of(stream) {
            let behind = capture.frontier(stream)?;
            Recorded::Captured { capture, behind }
        } else {
            capture::refuse_implicit(stream)?;
            let time = Arc::new(Mutex::new(None));
            let stamp = time.clone();
            let position = stream.enqueue_in_order(Arc::new(move || {
                *stamp.lock() = Some(Instant::now());
                Ok(())
            }));
            Recorded::Stream { position, time }
        };
        *self.recorded.lock() = recorded;
        Ok(())
    }

    /// Returns when a stream reached it.
    fn time(&self) -> Result<Instant, CUresult> {
        if self.flags & DISABLE_TIMING != 0 {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        match &*self.recorded.lock() {
            Recorded::Stream { time, .. } => time.lock().ok_or(CUDA_ERROR_NOT_READY),
            _ => Err(CUDA_ERROR_INVALID_HANDLE),
        }
    }
}

/// Makes a stream wait for an event.
fn wait(stream: &Arc<Stream>, event: &Event) -> Result<(), CUresult> {
    let recorded = event.recorded.lock().clone();
    match (capture::of(stream), recorded) {
        (Some(capture), Recorded::Captured { capture: of_event, behind }) => {
            if !Arc::ptr_eq(&capture, &of_event) {
                capture.invalidate();
                of_event.invalidate();
                return Err(CUDA_ERROR_STREAM_CAPTURE_MERGE);
            }
            capture.join(stream, &behind)
        }
        // The real driver may accept an event that was never recorded, but a graph cannot rely on that.
        (Some(capture), _) => {
            capture.invalidate();
            Err(CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
        }
        (None, Recorded::Captured { capture, behind }) => {
            if stream.is_legacy() {
                capture.invalidate();
                return Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
            }
            capture.join(stream, &behind)
        }
        (None, Recorded::Stream { position, .. }) => {
            capture::refuse_implicit(stream)?;
            stream.wait_for(position);
            Ok(())
        }
        (None, Recorded::Never) => Ok(()),
    }
}

pub(crate) fn destroy_all(context: &Context) {
    EVENTS.remove_all(|event| event.context.handle == context.handle);
}

entries! {
    fn cuEventCreate(event: *mut Handle, flags: u32) |call| {
        call.note(|| format!("flags={flags}"));
        let context = context::current()?;
        let unknown = flags & !(BLOCKING_SYNC | DISABLE_TIMING | INTERPROCESS) != 0;
        if unknown || flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        *event = EVENTS.insert(Event { context, flags, recorded: Mutex::new(Recorded::Never) });
        call.note(|| format!("-> {}", name(*event)));
        Ok(())
    }

    fn cuEventRecord(event: Handle, stream: Handle) |call| {
        call.note(|| format!("{} {}", name(event), name(stream)));
        let stream = stream::get(stream)?;
        EVENTS.get(event)?.record(&stream)
    }

    fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: u32) |call| {
        call.note(|| format!("{} {}", name(stream), name(event)));
        let stream = stream::get(stream)?;
        let event = EVENTS.get(event)?;
        if flags > 1 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        wait(&stream, &event)
    }

    fn cuEventQuery(event: Handle) |call| {
        call.note(|| name(event));
        context::current()?;
        let position = EVENTS.get(event)?.position()?;
        capture::refuse_unsafe_call()?;
        match position {
            Some(position) => {
                position.context().check()?;
                if position.is_complete() { Ok(()) } else { Err(CUDA_ERROR_NOT_READY) }
            }
            None => Ok(()),
        }
    }

    fn cuEventSynchronize(event: Handle) |call| {
        call.note(|| name(event));
        context::current()?;
        let position = EVENTS.get(event)?.position()?;
        capture::refuse_unsafe_call()?;
        if let Some(position) = position {
            position.wait();
            position.context().check()?;
        }
        Ok(())
    }

    fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: Handle, end: Handle) |call| {
        call.note(|| format!("{} {}", name(start), name(end)));
        context::current()?;
        let (start, end) = (EVENTS.get(start)?.time()?, EVENTS.get(end)?.time()?);
        let signed = match end.checked_duration_since(start) {
            Some(after) => after.as_secs_f32(),
            None => -start.duration_since(end).as_secs_f32(),
        };
        *milliseconds = signed * 1e3;
        Ok(())
    }

    fn cuEventDestroy_v2(event: Handle) |call| {
        call.note(|| name(event));
        context::current()?;
        EVENTS.remove(event)?;
        Ok(())
    }
}
