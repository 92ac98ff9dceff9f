//! Closes connections that exceed the connection limit.

use std::{
    io::{self, Read, Write},
    net::Shutdown,
};

use tokio::net::TcpStream;

/// Maximum bytes of the peer's data that are read before closing. Closing with unread bytes resets the connection, and
/// the peer may then never see the message.
const READ_BYTES: usize = 16 << 10;

/// Sends a short message, which must fit into an empty socket buffer, and closes the connection without waiting.
///
/// # Errors
/// If the peer has disconnected.
pub(super) fn turn_away(stream: TcpStream, words: &[u8]) -> io::Result<()> {
    let mut stream = stream.into_std()?;
    stream.write_all(words)?;
    stream.shutdown(Shutdown::Write)?;
    match stream.read(&mut [0; READ_BYTES]) {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(()),
    }
}
