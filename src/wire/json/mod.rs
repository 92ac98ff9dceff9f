//! Inference over HTTP: KServe v2 JSON, with Triton's binary tensor extension, to and from the messages of gRPC.
//!
//! A request becomes a [`ModelInferRequest`](super::pb::ModelInferRequest) whose tensors are raw, so that
//! [`decode`](super::decode::decode) checks requests of both transports alike, and a reply is made from a
//! [`ModelInferResponse`](super::pb::ModelInferResponse). Binary tensors are slices of the body; elements in JSON are
//! written into a buffer of the length that the input's shape says.
//!
//! [`Request::read`] looks at the structure alone: the number of its entries is limited, and elements stay text. What
//! [`Request::build`] then takes is known before it ([`Request::built_bytes`]).

mod elements;
mod fault;
mod forms;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
mod generate;
mod header;
mod raw;
mod reply;
mod request;

pub use elements::listed;
pub use forms::Forms;
pub use generate::{generate, generate_built_bytes, generated};
pub use raw::raw;
pub use reply::{Reply, reply};
pub use request::Request;

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use super::{RequestError, pb::InferParameter};

/// The parameters of a request that has nothing else, as those of repository control.
///
/// # Errors
/// INVALID_ARGUMENT where the text is no such object, or has more parameters than a request may have.
pub fn parameters(text: &[u8]) -> Result<HashMap<String, InferParameter>, RequestError> {
    header::read_parameters(text).map_err(|error| fault::JsonFault::Syntax(error).into())
}
