//! The responses of a decoupled pipeline.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use paternoster_executor::{InferError, Response};
use tokio::sync::mpsc;

use super::run::StreamedResponse;

type Work = Pin<Box<dyn Future<Output = Result<(), InferError>> + Send>>;

/// The responses of a request, in order. The steps run while the stream is polled: a response that is not taken holds
/// up those behind it.
pub struct PipelineStream {
    work: Option<Work>,
    responses: mpsc::Receiver<StreamedResponse>,
    is_over: bool,
}

impl std::fmt::Debug for PipelineStream {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("PipelineStream").finish_non_exhaustive()
    }
}

impl PipelineStream {
    pub(crate) fn new<W>(work: impl FnOnce(mpsc::Sender<StreamedResponse>) -> W) -> Self
    where
        W: Future<Output = Result<(), InferError>> + Send + 'static,
    {
        let (sender, responses) = mpsc::channel(1);
        Self { work: Some(Box::pin(work(sender))), responses, is_over: false }
    }

    /// Whether the response that was returned last is known to be the last one.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Polls for the next response; `None` after the last one, or after an error.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Response, InferError>>> {
        let mut ended = None;
        if let Some(work) = &mut self.work
            && let Poll::Ready(end) = work.as_mut().poll(context)
        {
            ended = end.err();
            self.work = None;
        }
        // After the steps, which may just have sent one.
        match self.responses.poll_recv(context) {
            Poll::Ready(Some(StreamedResponse { response, is_last })) => {
                self.is_over = is_last;
                // An error comes behind the responses before it.
                if let Some(error) = ended {
                    self.work = Some(Box::pin(std::future::ready(Err(error))));
                }
                Poll::Ready(Some(Ok(response)))
            }
            Poll::Ready(None) | Poll::Pending if ended.is_some() => Poll::Ready(ended.map(Err)),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}
