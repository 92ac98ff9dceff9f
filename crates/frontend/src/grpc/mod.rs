//! The gRPC front end: `inference.GRPCInferenceService`, `grpc.health.v1.Health` and server reflection on one port.
//!
//! `transport` accepts connections and drives HTTP/2 on hyper; `stack` puts the `layers` around the services that tonic
//! has generated; `service` answers their calls, by `methods` where those read large requests. `messages` and `codec`
//! convert HTTP/2 bodies to messages and back. This module must not interpret tensors (`wire`) or resolve model names
//! (`repository`).

mod call;
mod codec;
mod config;
mod health;
mod layers;
mod messages;
mod methods;
mod reflection;
mod server;
mod service;
mod stack;
mod transport;

pub use config::{CompressionLevel, ConnectionLimits, GrpcConfig, MessageLimits};
#[cfg(any(test, feature = "fuzzing"))]
pub use messages::frames;
pub use server::{GrpcServer, GrpcStartError};
