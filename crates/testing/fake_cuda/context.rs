//! Contexts: each device has its primary one. After an error that ruins a context, every call returns that error.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use cudarc::driver::sys::{CUresult, CUresult::*};
use parking_lot::Mutex;

use crate::{
    calls::entries,
    capture, device, errors, event, graph,
    handles::{Handle, Kind, Table, name},
    memory, module, stream,
};

static CONTEXTS: Table<Context> = Table::new(Kind::Context);

pub(crate) struct Context {
    pub handle: Handle,
    pub device: usize,
    /// The code of the error that ruined it; 0 if it is usable.
    ruined: AtomicU32,
    destroyed: AtomicBool,
}

impl Context {
    /// Checks that it is usable.
    pub(crate) fn check(&self) -> Result<(), CUresult> {
        if self.destroyed.load(Ordering::Acquire) {
            return Err(CUDA_ERROR_CONTEXT_IS_DESTROYED);
        }
        match self.ruined.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(errors::known(code).unwrap_or(CUDA_ERROR_LAUNCH_FAILED)),
        }
    }

    /// Ruins it, unless it is ruined already: the first error is kept.
    pub(crate) fn poison(&self, code: CUresult) {
        let _ = self.ruined.compare_exchange(0, code as u32, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// A device's primary context, and how often it is retained.
#[derive(Default)]
pub(crate) struct Primary {
    retained: usize,
    context: Option<Arc<Context>>,
}

impl Primary {
    /// Frees everything that it holds.
    fn destroy(&mut self) {
        self.retained = 0;
        let Some(context) = self.context.take() else { return };
        context.destroyed.store(true, Ordering::Release);
        // The table holds it for as long as it is the device's.
        let _ = CONTEXTS.remove(context.handle);
        stream::destroy_all(&context);
        event::destroy_all(&context);
        module::unload_all(&context);
        graph::destroy_all(&context);
        memory::free_all(&context);
    }
}

thread_local! {
    /// The thread's contexts; the last is current.
    static CURRENT: RefCell<Vec<Arc<Context>>> = const { RefCell::new(Vec::new()) };
}

fn current_handle() -> Handle {
    CURRENT.with_borrow(|stack| stack.last().map_or(0, |context| context.handle))
}

/// Returns the calling thread's context, if it is usable.
pub(crate) fn current() -> Result<Arc<Context>, CUresult> {
    device::check_initialized()?;
    let context = CURRENT.with_borrow(|stack| stack.last().cloned()).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
    context.check()?;
    Ok(context)
}

fn set_current(handle: Handle, push: bool) -> Result<(), CUresult> {
    let context = match handle {
        0 => None,
        _ => Some(CONTEXTS.get(handle).map_err(|_| CUDA_ERROR_INVALID_CONTEXT)?),
    };
    if let Some(context) = &context {
        context.check()?;
    }
    CURRENT.with_borrow_mut(|stack| {
        if !push {
            stack.pop();
        }
        stack.extend(context);
    });
    Ok(())
}

fn primary(ordinal: i32) -> Result<&'static Mutex<Primary>, CUresult> {
    Ok(&device::get(ordinal)?.primary)
}

entries! {
    fn cuDevicePrimaryCtxRetain(context: *mut Handle, ordinal: i32) |call| {
        call.note(|| format!("device={ordinal}"));
        let mut primary = primary(ordinal)?.lock();
        if let Some(context) = &primary.context {
            context.check()?;
        }
        primary.retained += 1;
        let retained = primary.context.get_or_insert_with(|| {
            CONTEXTS.create(|handle| Context {
                handle,
                device: ordinal as usize,
                ruined: AtomicU32::new(0),
                destroyed: AtomicBool::new(false),
            })
        });
        *context = retained.handle;
        Ok(())
    }

    fn cuDevicePrimaryCtxRelease_v2(ordinal: i32) |call| {
        call.note(|| format!("device={ordinal}"));
        let mut primary = primary(ordinal)?.lock();
        match primary.retained {
            0 => return Err(CUDA_ERROR_INVALID_CONTEXT),
            1 => primary.destroy(),
            _ => primary.retained -= 1,
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxReset_v2(ordinal: i32) |call| {
        call.note(|| format!("device={ordinal}"));
        primary(ordinal)?.lock().destroy();
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(ordinal: i32, flags: *mut u32, active: *mut i32) |call| {
        call.note(|| format!("device={ordinal}"));
        *flags = 0;
        *active = i32::from(primary(ordinal)?.lock().context.is_some());
        Ok(())
    }

    // The flags choose how the host waits; the stand-in has only one way.
    fn cuDevicePrimaryCtxSetFlags_v2(ordinal: i32, flags: u32) |call| {
        call.note(|| format!("device={ordinal} flags={flags}"));
        primary(ordinal)?;
        Ok(())
    }

    fn cuCtxSetFlags(flags: u32) |call| {
        call.note(|| format!("flags={flags}"));
        current()?;
        Ok(())
    }

    fn cuCtxGetCurrent(context: *mut Handle) |_call| {
        device::check_initialized()?;
        *context = current_handle();
        Ok(())
    }

    fn cuCtxSetCurrent(context: Handle) |call| {
        call.note(|| name(context));
        device::check_initialized()?;
        set_current(context, false)
    }

    fn cuCtxPushCurrent_v2(context: Handle) |call| {
        call.note(|| name(context));
        device::check_initialized()?;
        if context == 0 {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        set_current(context, true)
    }

    fn cuCtxPopCurrent_v2(context: *mut Handle) |_call| {
        device::check_initialized()?;
        let popped = CURRENT.with_borrow_mut(Vec::pop).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        if let Some(context) = context.as_mut() {
            *context = popped.handle;
        }
        Ok(())
    }

    fn cuCtxGetDevice(ordinal: *mut i32) |_call| {
        *ordinal = current()?.device as i32;
        Ok(())
    }

    fn cuCtxGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) |_call| {
        current()?;
        *least = stream::LEAST_PRIORITY;
        *greatest = stream::GREATEST_PRIORITY;
        Ok(())
    }

    fn cuCtxSynchronize() |_call| {
        let context = current()?;
        capture::refuse_synchronizing(&context)?;
        capture::refuse_unsafe_call()?;
        stream::synchronize_all(&context);
        context.check()
    }
}
