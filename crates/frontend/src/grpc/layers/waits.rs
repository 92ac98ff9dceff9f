//! Calls that wait before their requests are read. Streams wait themselves, before each request.

use std::sync::Arc;

use futures_util::future::Either;
use tower::service_fn;

use super::Calls;
use crate::{
    Services,
    grpc::call::{CallRequest, Kind},
};

/// Lets calls wait while their client leaves too many replies unread.
pub(in crate::grpc) fn wait_for_reader<B: Send + 'static>(
    mut inner: impl Calls<CallRequest<B>>,
) -> impl Calls<CallRequest<B>> {
    service_fn(move |request: CallRequest<B>| {
        let call = &request.call;
        if call.is(Kind::StreamInfer) || call.holds.backlog.has_room() {
            return Either::Left(inner.call(request));
        }
        let (backlog, mut inner) = (Arc::clone(&call.holds.backlog), inner.clone());
        Either::Right(Box::pin(async move {
            backlog.room().await;
            inner.call(request).await
        }))
    })
}

/// Lets ModelInfer wait for a place of its client, if clients have limits.
pub(in crate::grpc) fn wait_for_client<B: Send + 'static>(
    services: Arc<Services>,
    mut inner: impl Calls<CallRequest<B>>,
) -> impl Calls<CallRequest<B>> {
    service_fn(move |request: CallRequest<B>| {
        let infer = Some(&request.call).filter(|call| call.is(Kind::Infer));
        let Some(client) = infer.and_then(|call| services.client(&call.holds, request.request.headers())) else {
            return Either::Left(inner.call(request));
        };
        let mut inner = inner.clone();
        Either::Right(Box::pin(async move {
            let _place = client.place().await;
            inner.call(request).await
        }))
    })
}
