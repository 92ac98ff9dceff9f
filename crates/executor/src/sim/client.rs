//! A client that waits for the responses of a request.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
};

use super::values::{ROW_BYTES, value};
use crate::{InferError, Response, ResponseFuture, ResponseStream};

/// A waiting client.
pub(super) enum Waiting {
    ForOne(Pin<Box<ResponseFuture>>),
    /// Waits for responses until the stream ends; keeps those received.
    ForAll(ResponseStream, Vec<u64>),
}

impl Waiting {
    /// Polls for responses. Returns the values of all of them once the request has ended.
    pub(super) fn hear(&mut self) -> Poll<Result<Vec<u64>, InferError>> {
        let values = |response: &Response| {
            let data = &response.outputs[0].data;
            (0..data.len() / ROW_BYTES).map(|row| value(data, row)).collect::<Vec<u64>>()
        };
        let mut context = Context::from_waker(Waker::noop());
        match self {
            Self::ForOne(future) => future.as_mut().poll(&mut context).map_ok(|response| values(&response)),
            Self::ForAll(stream, heard) => loop {
                match ready!(stream.poll_next(&mut context)) {
                    Some(Ok(response)) => heard.extend(values(&response)),
                    Some(Err(error)) => return Poll::Ready(Err(error)),
                    None => return Poll::Ready(Ok(std::mem::take(heard))),
                }
            },
        }
    }
}
