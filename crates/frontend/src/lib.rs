//! The front ends that clients reach: gRPC, HTTP, health, reflection, metrics, TLS and shutdown. Independent of
//! batching and devices.
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod clients;
pub mod grpc;
pub mod http;
mod intake;
mod listen;
mod methods;
mod readiness;
mod restricted;
mod services;
mod span;
mod tls;
mod trace;
mod unsent;

pub use clients::{ClientLimit, Clients, InvalidClientLimit};
pub use listen::{Endpoint, Host, InvalidHost};
pub use methods::server_metadata;
pub use readiness::Readiness;
pub use restricted::{Protocol, RestrictedProtocol, RestrictionError};
pub use services::Services;
pub use tls::{Certificates, TlsConfig, TlsError};
