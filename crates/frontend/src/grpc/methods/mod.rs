//! The parts of `inference.GRPCInferenceService` that depend on gRPC: reading messages, and streams. The other methods
//! are in [`crate::methods`].

mod infer;
mod intake;
mod read_load;
mod responses;
mod stream;

pub(super) use infer::infer;
pub(super) use read_load::read_load;
pub(super) use stream::{InferStream, StreamBounds};
