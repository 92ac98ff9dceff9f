//! Server reflection, v1 and v1alpha, which grpcurl and similar tools use.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use hyper::body::Incoming;
use paternoster_wire::pb;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{body::Body, codegen::Service};
use tonic_reflection::server::{Builder, Error};

/// Maximum size of a request; requests are names.
const MOST_QUESTION_BYTES: usize = 64 << 10;

type PendingReflection = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;
type Handler = Box<dyn Fn(Request<UntilClosing>) -> PendingReflection + Send + Sync>;

/// Both versions of the reflection service, over the descriptors of all services of this server.
pub(super) struct Reflection {
    v1: Handler,
    v1alpha: Handler,
}

impl Reflection {
    /// Reads the descriptors.
    ///
    /// # Errors
    /// If they are invalid, which would be an error of the build.
    pub(super) fn new() -> Result<Self, Error> {
        let builder = || {
            Builder::configure()
                .register_encoded_file_descriptor_set(pb::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let v1 = builder().build_v1()?.max_decoding_message_size(MOST_QUESTION_BYTES);
        let v1alpha = builder().build_v1alpha()?.max_decoding_message_size(MOST_QUESTION_BYTES);
        Ok(Self { v1: handler(v1), v1alpha: handler(v1alpha) })
    }

    /// Returns the service for a path of reflection.
    pub(super) fn service(&self, path: &str) -> Option<&Handler> {
        match path.strip_prefix("/grpc.reflection.")?.split('/').next()? {
            "v1.ServerReflection" => Some(&self.v1),
            "v1alpha.ServerReflection" => Some(&self.v1alpha),
            _ => None,
        }
    }
}

fn handler<S>(service: S) -> Handler
where
    S: Service<Request<UntilClosing>, Response = Response<Body>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
{
    Box::new(move |request| {
        let call = service.clone().call(request);
        Box::pin(async move {
            match call.await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        })
    })
}

/// The requests of a client, which end when the server closes, so that the service ends an idle stream.
pub(super) struct UntilClosing {
    body: Incoming,
    closing: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl UntilClosing {
    pub(super) fn new(body: Incoming, closing: CancellationToken) -> Self {
        Self { body, closing: Box::pin(closing.cancelled_owned()) }
    }
}

impl http_body::Body for UntilClosing {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Pending => self.closing.as_mut().poll(context).map(|()| None),
            ready => ready,
        }
    }
}
