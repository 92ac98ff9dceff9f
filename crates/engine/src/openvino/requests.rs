//! The infer requests of a compiled graph; each serves one run at a time.

use std::{ptr, sync::Arc};

use parking_lot::{Condvar, Mutex};

use super::{
    api::{self, Api},
    compiled::Compiled,
    tensor::Tensor,
};
use crate::{EngineError, StopSignal, stop::Interrupt};

/// A pool with as many infer requests as the graph has streams. OpenVINO would make further runs wait without a way to
/// end the wait, so they wait here.
pub(super) struct Requests<R = Request> {
    idle: Mutex<Vec<Arc<R>>>,
    returned: Condvar,
}

impl Requests {
    /// Creates `count` infer requests.
    ///
    /// # Errors
    /// Fails if OpenVINO cannot create one.
    pub(super) fn new(graph: &Compiled, count: usize) -> Result<Self, EngineError> {
        (0..count).map(|_| Request::new(graph)).collect::<Result<_, _>>().map(Self::of)
    }
}

impl<R: Send + Sync + 'static> Requests<R> {
    fn of(requests: Vec<R>) -> Self {
        Self { idle: Mutex::new(requests.into_iter().map(Arc::new).collect()), returned: Condvar::new() }
    }

    /// Waits for an idle infer request.
    ///
    /// # Errors
    /// Fails if `stop` is raised meanwhile.
    pub(super) fn take(self: &Arc<Self>, stop: &StopSignal) -> Result<Taken<'_, R>, EngineError> {
        let taken = |request| Ok(Taken { requests: self, request });
        if let Some(request) = self.idle.lock().pop() {
            return taken(request);
        }
        let _waiting = stop.interrupts(Arc::clone(self) as Arc<dyn Interrupt>)?;
        let mut idle = self.idle.lock();
        loop {
            if stop.is_raised() {
                return Err(StopSignal::stopped());
            }
            if let Some(request) = idle.pop() {
                return taken(request);
            }
            self.returned.wait(&mut idle);
        }
    }
}

impl<R: Send + Sync> Interrupt for Requests<R> {
    fn interrupt(&self) {
        // With the lock held, no thread is between checking the signal and waiting, so none misses the notification.
        let _idle = self.idle.lock();
        self.returned.notify_all();
    }
}

/// An infer request in use; dropping it returns it to the pool.
pub(super) struct Taken<'a, R = Request> {
    requests: &'a Requests<R>,
    request: Arc<R>,
}

impl<R> Drop for Taken<'_, R> {
    fn drop(&mut self) {
        self.requests.idle.lock().push(Arc::clone(&self.request));
        self.requests.returned.notify_all();
    }
}

impl Taken<'_> {
    /// Makes the next run read an input from a tensor, which must live until the run has ended.
    pub(super) fn bind_input(&mut self, index: usize, tensor: &Tensor<'_>) -> Result<(), EngineError> {
        let Request { api, request } = *self.request;
        // SAFETY: both are live, and nothing else uses the infer request.
        api.check(unsafe { (api.ov_infer_request_set_input_tensor_by_index)(request, index, tensor.as_ptr()) })
    }

    /// Makes the next run write an output to a tensor, which must live until the run has ended.
    pub(super) fn bind_output(&mut self, index: usize, tensor: &Tensor<'_>) -> Result<(), EngineError> {
        let Request { api, request } = *self.request;
        // SAFETY: as above.
        api.check(unsafe { (api.ov_infer_request_set_output_tensor_by_index)(request, index, tensor.as_ptr()) })
    }

    /// Runs with the bound tensors.
    ///
    /// A signal raised between the check here and the start of the run inside OpenVINO, microseconds later, does not
    /// stop it. The run then ends by itself, or the executor abandons its lane.
    ///
    /// # Errors
    /// Fails if the run fails or is stopped.
    ///
    /// # Safety
    /// The tensors bound last are alive, and every input and output has been bound for this run.
    pub(super) unsafe fn run(&mut self, stop: &StopSignal) -> Result<(), EngineError> {
        let Request { api, request } = *self.request;
        let running = stop.interrupts(Arc::clone(&self.request) as Arc<dyn Interrupt>)?;
        // SAFETY: the infer request is live and used by nothing else, except to cancel it; the caller guarantees the
        // memory.
        let ran = api.check(unsafe { (api.ov_infer_request_infer)(request) });
        drop(running);
        if stop.is_raised() { ran.map_err(|_| StopSignal::stopped()) } else { ran }
    }
}

pub(super) struct Request {
    api: &'static Api,
    request: *mut api::InferRequest,
}

// SAFETY: an infer request is not tied to a thread.
unsafe impl Send for Request {}
// SAFETY: only `cancel` is called through a shared reference, and it may be called during a run. Everything else goes
// through `Taken`, of which only one exists at a time.
unsafe impl Sync for Request {}

impl Request {
    fn new(graph: &Compiled) -> Result<Self, EngineError> {
        let (api, mut request) = (graph.api(), ptr::null_mut());
        // SAFETY: the compiled graph is live; `request` receives the new object, which keeps the graph alive.
        api.check(unsafe { (api.ov_compiled_model_create_infer_request)(graph.as_ptr(), &mut request) })?;
        Ok(Self { api, request })
    }
}

impl Interrupt for Request {
    fn interrupt(&self) {
        // SAFETY: the infer request is live; cancelling one that does not run has no effect.
        let _ = unsafe { (self.api.ov_infer_request_cancel)(self.request) };
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // SAFETY: created by `new` and released once. It is not running, since a run holds a reference.
        unsafe { (self.api.ov_infer_request_free)(self.request) }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    #[test]
    fn one_run_at_a_time_has_a_request_and_the_others_wait() {
        let requests = Arc::new(Requests::of(vec![7]));
        let stop = StopSignal::default();
        let first = requests.take(&stop).expect("it is idle");
        assert_eq!(*first.request, 7);
        let (began, begins) = mpsc::channel();
        thread::scope(|scope| {
            let second = scope.spawn(|| {
                began.send(()).expect("the test waits for it");
                requests.take(&stop).map(|taken| *taken.request)
            });
            begins.recv().expect("it has begun");
            drop(first);
            assert_eq!(second.join().expect("it does not panic"), Ok(7));
        });
    }

    #[test]
    fn a_wait_ends_when_it_is_told_to() {
        let requests = Arc::new(Requests::of(vec![7]));
        let [runs, waits] = [(); 2].map(|()| StopSignal::default());
        let first = requests.take(&runs).expect("it is idle");
        thread::scope(|scope| {
            let second = scope.spawn(|| requests.take(&waits).map(drop));
            waits.raise();
            assert_eq!(second.join().expect("it does not panic"), Err(StopSignal::stopped()));
        });
        drop(first);
        waits.clear();
        requests.take(&waits).map(drop).expect("it is idle again");
    }
}
