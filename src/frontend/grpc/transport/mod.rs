//! Connections: accepting them, the TLS handshake, the HTTP/2 preface, their age and their end. Knows nothing of what
//! is called over them.

mod accept;
mod calls;
mod connection;
mod idle;
mod preface;

pub(super) use accept::{Acceptor, accept};
pub(super) use connection::Host;
