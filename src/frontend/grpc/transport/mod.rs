//! Connections: accepting them, TLS, the HTTP/2 preface, their age and their end. Knows nothing of what is called over
//! them.

mod accept;
mod calls;
mod connection;
mod idle;
mod preface;
mod tls;

pub(super) use accept::{Acceptor, accept};
pub(super) use connection::Host;
pub use tls::TlsError;
pub(super) use tls::acceptor;
