//! Handles on the pool: one loaded version, one request's future answer, one request's responses.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::sync::{mpsc, oneshot};

use super::{
    CellPrograms, InferError, InferRequest, Response,
    hangs::Hangs,
    pool::Pool,
    record::{Reply, Sink},
};
use crate::{
    batching::{ModelId, ReqId},
    model::ModelSpec,
    observe::ModelStats,
};

/// One loaded version. Whoever holds it may submit; when the last holder lets go, the version leaves the pool and its
/// memory is freed.
pub struct ModelHandle {
    pub(super) pool: Arc<Pool>,
    pub(super) id: ModelId,
    pub(super) spec: Arc<ModelSpec>,
    pub(super) stats: Arc<ModelStats>,
    pub(super) hangs: Arc<Hangs>,
    /// Into which its requests unfold.
    pub(super) cells: Option<Arc<CellPrograms>>,
    /// Whether its requests belong to sequences.
    pub(super) has_sequences: bool,
}

impl ModelHandle {
    /// What the version takes and gives.
    pub fn spec(&self) -> &Arc<ModelSpec> {
        &self.spec
    }

    /// The version's counters.
    pub fn stats(&self) -> &Arc<ModelStats> {
        &self.stats
    }

    /// Whether all tasks of the version end in time.
    pub fn is_responsive(&self) -> bool {
        self.fault().is_none()
    }

    /// Why the version is not responsive; `None` while it is.
    pub fn fault(&self) -> Option<String> {
        self.hangs.reason()
    }

    /// Submits a request with exactly one response. Dropping the ticket cancels the request.
    pub fn submit(self: &Arc<Self>, request: InferRequest) -> Ticket {
        let (sender, receiver) = oneshot::channel();
        let req = self.pool.submit(self, request, Sink::Once(sender));
        Ticket { receiver, cancel: CancelOnDrop { handle: Arc::clone(self), req } }
    }

    /// Submits a request with any number of responses. Dropping the stream cancels the request.
    pub fn submit_stream(self: &Arc<Self>, request: InferRequest) -> ResponseStream {
        let (sender, receiver) = mpsc::unbounded_channel();
        let req = self.pool.submit(self, request, Sink::Stream(sender));
        ResponseStream { receiver, cancel: CancelOnDrop { handle: Arc::clone(self), req } }
    }
}

impl fmt::Debug for ModelHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ModelHandle")
            .field("id", &self.id)
            .field("model", &self.spec.name)
            .field("version", &self.spec.version)
            .finish_non_exhaustive()
    }
}

impl Drop for ModelHandle {
    fn drop(&mut self) {
        self.pool.retire(self.id);
    }
}

/// Gives a request up when its client lets go of it before the end.
#[derive(Debug)]
struct CancelOnDrop {
    handle: Arc<ModelHandle>,
    /// `None` once the request ended.
    req: Option<ReqId>,
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(req) = self.req.take() {
            self.handle.pool.cancel(req);
        }
    }
}

/// The future answer of a request.
#[derive(Debug)]
pub struct Ticket {
    receiver: oneshot::Receiver<Reply>,
    cancel: CancelOnDrop,
}

impl Future for Ticket {
    type Output = Result<Response, InferError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = std::task::ready!(Pin::new(&mut self.receiver).poll(context));
        self.cancel.req = None;
        Poll::Ready(answer.unwrap_or(Err(InferError::ShuttingDown)))
    }
}

/// The responses of a decoupled request in order.
#[derive(Debug)]
pub struct ResponseStream {
    receiver: mpsc::UnboundedReceiver<Reply>,
    cancel: CancelOnDrop,
}

impl ResponseStream {
    /// The next response; `None` after the last one of a request that ended well.
    ///
    /// # Errors
    /// When the request ended otherwise; nothing follows.
    pub async fn next(&mut self) -> Option<Result<Response, InferError>> {
        let reply = self.receiver.recv().await;
        if !matches!(reply, Some(Ok(_))) {
            self.cancel.req = None;
        }
        reply
    }
}
