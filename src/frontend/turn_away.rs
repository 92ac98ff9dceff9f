//! Closing connections for which there is no place.

use std::{
    io::{self, Read, Write},
    net::Shutdown,
};

use tokio::net::TcpStream;

/// Bytes of what the peer has sent already that are read before the connection is closed: closing with unread bytes
/// resets it, and the peer may then never see the words.
const READ_BYTES: usize = 16 << 10;

/// Says a few words, which must fit into an empty socket buffer, and closes the connection. Never waits.
///
/// # Errors
/// When the peer has gone.
pub(super) fn turn_away(stream: TcpStream, words: &[u8]) -> io::Result<()> {
    let mut stream = stream.into_std()?;
    stream.write_all(words)?;
    stream.shutdown(Shutdown::Write)?;
    match stream.read(&mut [0; READ_BYTES]) {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(()),
    }
}
