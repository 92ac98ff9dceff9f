//! Server reflection, v1 and v1alpha, which grpcurl and similar tools use.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use http_body::{Body, Frame};
use paternoster_wire::pb;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::service::Routes;
use tonic_reflection::server::{Builder, Error};

/// Maximum size of a request; requests are names.
const MOST_QUESTION_BYTES: usize = 64 << 10;

/// Adds both versions of the reflection service, over the descriptors of all services of this server.
///
/// # Errors
/// If the descriptors are invalid, which would be an error of the build.
pub(super) fn add_reflection(routes: Routes) -> Result<Routes, Error> {
    let builder = || {
        Builder::configure()
            .register_encoded_file_descriptor_set(pb::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let v1 = builder().build_v1()?.max_decoding_message_size(MOST_QUESTION_BYTES);
    let v1alpha = builder().build_v1alpha()?.max_decoding_message_size(MOST_QUESTION_BYTES);
    Ok(routes.add_service(v1).add_service(v1alpha))
}

/// The body of a request, which ends when the server closes, so that reflection ends an idle stream.
pub(super) struct UntilClosing<B> {
    body: B,
    closing: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<B> UntilClosing<B> {
    pub(super) fn new(body: B, closing: CancellationToken) -> Self {
        Self { body, closing: Box::pin(closing.cancelled_owned()) }
    }
}

impl<B: Body + Unpin> Body for UntilClosing<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Pending => self.closing.as_mut().poll(context).map(|()| None),
            ready => ready,
        }
    }
}
