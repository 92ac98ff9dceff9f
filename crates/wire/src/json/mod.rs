//! Inference over HTTP: converts KServe v2 JSON, with Triton's binary tensor extension, to and from the gRPC messages.
//!
//! A request becomes a [`ModelInferRequest`](super::pb::ModelInferRequest) with raw tensors, so
//! [`decode`](super::decode::decode) checks requests of both transports in the same way. A response is made from a
//! [`ModelInferResponse`](super::pb::ModelInferResponse). Binary tensors are slices of the body; elements in JSON are
//! written to a buffer of the size that the input's shape implies.
//!
//! [`prepare`] checks the depth of the text, and makes JSON of numbers that are not finite. [`Request::read`] reads
//! only the structure: the number of its entries is limited, and elements remain text. The memory that
//! [`Request::build`] then takes is known in advance ([`Request::built_bytes`]).

mod elements;
mod fault;
mod forms;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod generate;
mod header;
mod raw;
mod request;
mod response;
mod text;

pub use elements::listed;
pub use forms::Forms;
pub use generate::{generate, generate_built_bytes, generated};
pub use raw::raw;
pub use request::Request;
pub use response::{JsonResponse, response};
pub use text::prepare;

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use super::{RequestError, pb::InferParameter};

/// Reads the parameters of a request that has only parameters, such as repository control.
///
/// # Errors
/// INVALID_ARGUMENT if the text is not such an object, or has too many parameters.
pub fn parameters(text: &[u8]) -> Result<HashMap<String, InferParameter>, RequestError> {
    Ok(header::read_parameters(text)?)
}
