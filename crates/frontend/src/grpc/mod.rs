//! The gRPC front end: `inference.GRPCInferenceService`, `grpc.health.v1.Health` and server reflection on one port.
//!
//! `transport` accepts connections and drives HTTP/2; `framing` converts HTTP/2 bodies to messages and back; `dispatch`
//! routes calls to methods; `methods` reads their requests. This module must not interpret tensors (`wire`) or resolve
//! model names (`repository`).
//!
//! The server runs on hyper directly. tonic's own transport answers an expired deadline with CANCELLED, omits GOAWAY if
//! a connection's age has a grace period, allocates the length that a peer declares before a byte has arrived, and
//! boxes several times per request. tonic's message types, status and generated clients are used throughout.

mod config;
mod dispatch;
mod framing;
mod health;
mod methods;
mod reflection;
mod server;
mod transport;

pub use config::{CompressionLevel, ConnectionLimits, GrpcConfig, MessageLimits};
#[cfg(any(test, feature = "fuzzing"))]
pub use framing::frames;
pub use server::{GrpcServer, GrpcStartError};
