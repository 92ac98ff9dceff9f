//! Connections: accepting them, the TLS handshake, the HTTP/2 preface, their age and their end. Independent of the
//! calls made over them.

mod accept;
mod authority;
mod calls;
mod connection;
mod idle;
mod preface;

pub(super) use accept::{Acceptor, accept};
pub(super) use connection::Host;
