//! The infer requests of a compiled graph: each serves one run at a time.

use std::{ptr, sync::Arc};

use parking_lot::{Condvar, Mutex};

use super::{
    api::{self, Api},
    program::Compiled,
    tensor::Tensor,
};
use crate::engine::{EngineError, StopSignal, stop::Interrupt};

/// As many run at the same time as the graph has streams. OpenVINO has further runs wait where nothing can end the
/// wait; so they wait here.
pub(super) struct Requests<R = Request> {
    idle: Mutex<Vec<Arc<R>>>,
    returned: Condvar,
}

impl Requests {
    /// So many.
    ///
    /// # Errors
    /// When OpenVINO makes none.
    pub(super) fn new(graph: &Compiled, count: usize) -> Result<Self, EngineError> {
        (0..count).map(|_| Request::new(graph)).collect::<Result<_, _>>().map(Self::of)
    }
}

impl<R: Send + Sync + 'static> Requests<R> {
    fn of(requests: Vec<R>) -> Self {
        Self { idle: Mutex::new(requests.into_iter().map(Arc::new).collect()), returned: Condvar::new() }
    }

    /// Waits for a request that nobody uses.
    ///
    /// # Errors
    /// When it is told to stop meanwhile.
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
        // Nobody is between looking at the signal and waiting while this has the lock.
        let _idle = self.idle.lock();
        self.returned.notify_all();
    }
}

/// A request that is back among the others when this is dropped.
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
    /// Lets the next run read an input from a tensor, which has to live until it has ended.
    pub(super) fn bind_input(&mut self, index: usize, tensor: &Tensor<'_>) -> Result<(), EngineError> {
        let Request { api, request } = *self.request;
        // SAFETY: both are live; the request is used by nobody else.
        api.check(unsafe { (api.ov_infer_request_set_input_tensor_by_index)(request, index, tensor.as_ptr()) })
    }

    /// Lets the next run write an output to a tensor, which has to live until it has ended.
    pub(super) fn bind_output(&mut self, index: usize, tensor: &Tensor<'_>) -> Result<(), EngineError> {
        let Request { api, request } = *self.request;
        // SAFETY: as above.
        api.check(unsafe { (api.ov_infer_request_set_output_tensor_by_index)(request, index, tensor.as_ptr()) })
    }

    /// Runs, with what is bound.
    ///
    /// A signal that is raised before the run has begun within OpenVINO, microseconds after it was looked at here, does
    /// not stop it: it ends by itself, or the executor goes on without its lane.
    ///
    /// # Errors
    /// When the run fails or is told to stop.
    ///
    /// # Safety
    /// The tensors that were bound last are alive, and every input and output is bound to one of this run's.
    pub(super) unsafe fn run(&mut self, stop: &StopSignal) -> Result<(), EngineError> {
        let Request { api, request } = *self.request;
        let running = stop.interrupts(Arc::clone(&self.request) as Arc<dyn Interrupt>)?;
        // SAFETY: the request is live and used by nobody else, but for being cancelled; the memory is as the caller
        // promises.
        let ran = api.check(unsafe { (api.ov_infer_request_infer)(request) });
        drop(running);
        if stop.is_raised() { ran.map_err(|_| StopSignal::stopped()) } else { ran }
    }
}

pub(super) struct Request {
    api: &'static Api,
    request: *mut api::InferRequest,
}

// SAFETY: nothing about a request is tied to a thread.
unsafe impl Send for Request {}
// SAFETY: what is called through a shared reference, `cancel`, may be called while the request runs; the rest only
// through `Taken`, of which there is one at a time.
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
        // SAFETY: the request is live. One that does not run is not changed by this.
        let _ = unsafe { (self.api.ov_infer_request_cancel)(self.request) };
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // SAFETY: created by `new`, released once; it does not run, since a run holds it.
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
