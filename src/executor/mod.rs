//! The shared pool: drives `batching`, carries out its actions, owns threads and batch memory. Knows neither protocols
//! nor papers.

mod handle;
mod request;

pub use handle::{ModelHandle, Pool, ResponseStream, Ticket};
pub use request::{InferError, InferRequest, InputTensor, OutputTensor, Response};
