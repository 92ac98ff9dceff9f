//! What the methods of `inference.GRPCInferenceService` do that depends on gRPC: taking messages in, and streams. The
//! other methods are [`crate::frontend::methods`].

mod answers;
mod infer;
mod intake;
mod load;
mod stream;

pub(super) use infer::infer;
pub(super) use load::read_load;
pub(super) use stream::{InferStream, StreamBounds};
