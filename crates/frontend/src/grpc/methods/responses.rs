//! Responses to the requests of a stream, and the order of responses of decoupled models.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use paternoster_executor::{InferError, Response};
use paternoster_observe::trace::RequestTrace;
use paternoster_pipeline::Responses;
use paternoster_repository::ModelVersion;
use paternoster_wire::{RequestError, ResponsePlan, encode, pb, stream};
use tokio_stream::Stream;
use tracing::Span;

use crate::{clients::ClientPlace, intake::Held, span, trace::responded};

/// A reply to a request.
pub(super) enum StreamedResponse {
    Reply(pb::ModelStreamInferResponse),
    Refused(RequestError),
    Failed(Arc<ModelVersion>, RequestError),
}

/// A request to a decoupled model.
///
/// ```text
/// Running => (Over | Ended)    after an error, or at the end, with or without a final empty response
/// Over => Ended
/// ```
pub(super) struct Decoupled {
    pub(super) version: Arc<ModelVersion>,
    pub(super) responses: Responses,
    pub(super) reply: ResponsePlan,
    /// Bytes of the request.
    pub(super) bytes: usize,
    pub(super) state: DecoupledState,
    pub(super) trace: Option<Arc<RequestTrace>>,
    pub(super) span: Span,
    pub(super) _held: (Held, Option<ClientPlace>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DecoupledState {
    Running,
    Over,
    Ended,
}

/// An event of a decoupled request.
pub(super) enum DecoupledEvent {
    Answer(StreamedResponse),
    /// Nothing follows; `bytes` are those of the request.
    Over {
        bytes: usize,
    },
}

impl Stream for Decoupled {
    type Item = DecoupledEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<DecoupledEvent>> {
        if self.state == DecoupledState::Running {
            match ready!(self.responses.poll_next(context)) {
                Some(result) => {
                    let is_last = self.responses.is_over();
                    if result.is_err() || is_last {
                        self.state = DecoupledState::Over;
                    }
                    let answer = conclude(&self.version, &self.reply, self.trace.as_ref(), &self.span, result, is_last);
                    return Poll::Ready(Some(DecoupledEvent::Answer(answer)));
                }
                None => self.state = DecoupledState::Over,
            }
            if self.reply.enable_empty_final_response {
                let last = stream::empty_final(self.version.spec(), &self.reply);
                return Poll::Ready(Some(DecoupledEvent::Answer(StreamedResponse::Reply(last))));
            }
        }
        if self.state == DecoupledState::Ended {
            return Poll::Ready(None);
        }
        self.state = DecoupledState::Ended;
        Poll::Ready(Some(DecoupledEvent::Over { bytes: self.bytes }))
    }
}

pub(super) fn conclude(
    version: &Arc<ModelVersion>,
    reply: &ResponsePlan,
    trace: Option<&Arc<RequestTrace>>,
    span: &Span,
    result: Result<Response, InferError>,
    last: bool,
) -> StreamedResponse {
    let _sending = trace.map(|trace| {
        responded(trace, version, &result);
        trace.sending()
    });
    let is_refusal = result.as_ref().is_err_and(InferError::is_refusal);
    let encoded = result
        .map_err(|error| RequestError::from_infer(&error, &reply.id))
        .and_then(|response| encode::encode(version.spec(), reply, response));
    match encoded {
        Ok(response) => StreamedResponse::Reply(stream::success(response, last)),
        Err(error) => {
            span::refused(span, error.kind().code(), error.message());
            if is_refusal {
                StreamedResponse::Refused(error)
            } else {
                StreamedResponse::Failed(Arc::clone(version), error)
            }
        }
    }
}
