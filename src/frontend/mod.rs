//! What clients reach: gRPC services, HTTP, health, reflection, metrics, TLS, shutdown. Knows nothing of batching or
//! devices.

pub mod grpc;
pub mod http;
mod readiness;
mod turn_away;

pub use readiness::Readiness;
