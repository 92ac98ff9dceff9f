//! The layers around tonic's services. None of them reads what a message contains.
//!
//! Each layer moves the future of the next one, so that of a call is boxed, as is what a call seldom needs.

mod admission;
mod bodies;
mod deadline;
mod read;
mod status;
mod waits;

use std::convert::Infallible;

pub(super) use admission::{begin, restrict};
pub(super) use bodies::{RequestBody, ResponseBody};
pub(super) use deadline::end_at_deadline;
pub(super) use read::read_messages;
pub(super) use status::log_and_encode;
use tower::Service;
pub(super) use waits::{wait_for_client, wait_for_reader};

/// A service that is always ready.
pub(super) trait Calls<R, B = ResponseBody>:
    Service<R, Response = http::Response<B>, Error = Infallible, Future: Send> + Clone + Send + 'static
{
}

impl<R, B, S> Calls<R, B> for S where
    S: Service<R, Response = http::Response<B>, Error = Infallible, Future: Send> + Clone + Send + 'static
{
}

/// What each layer answers.
type Answer = Result<http::Response<ResponseBody>, Infallible>;

/// Returns the answer of a call that has only a status.
fn refused(status: tonic::Status) -> Answer {
    Ok(status.into_http())
}
