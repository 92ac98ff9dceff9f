//! The gRPC front end: `inference.GRPCInferenceService`, `grpc.health.v1.Health` and server reflection on one port.
//!
//! `transport` accepts connections and drives HTTP/2; `framing` turns HTTP/2 bodies into messages and back; `dispatch`
//! finds the method of a request; `methods` takes in what it gets. Here must not live: what a tensor means (`wire`), or
//! which model a name stands for (`repository`).
//!
//! The server runs on hyper directly. tonic's own transport answers a client's deadline with CANCELLED, forgets the
//! GOAWAY when a connection's age has a grace, reserves whatever length a peer declares before a byte of it has come,
//! and boxes several times per request; its message types, status and generated clients are used throughout.

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
pub use server::{GrpcServer, StartError};
