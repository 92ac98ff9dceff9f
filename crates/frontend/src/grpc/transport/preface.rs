//! The HTTP/2 client preface, read before HTTP/2 starts, so that a peer that sends nothing, or something else, can be
//! disconnected in time.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// The first bytes of every HTTP/2 client (RFC 9113, section 3.4).
pub(super) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A stream whose preface has been read and verified; it is replayed to the next reader.
pub(super) struct Prefaced<S> {
    stream: S,
    /// Bytes of the preface that have been replayed.
    replayed: usize,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Prefaced<S> {
    /// Waits for the preface.
    ///
    /// # Errors
    /// If the peer sends anything else, or disconnects.
    pub(super) async fn expect(mut stream: S) -> io::Result<Self> {
        let mut received = [0; PREFACE.len()];
        stream.read_exact(&mut received).await?;
        if received == *PREFACE {
            Ok(Self { stream, replayed: 0 })
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidData, "the peer does not speak HTTP/2"))
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Prefaced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = &PREFACE[self.replayed..];
        if left.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let replayed = left.len().min(buffer.remaining());
        buffer.put_slice(&left[..replayed]);
        self.replayed += replayed;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Prefaced<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn the_preface_is_read_again_and_what_follows_once() {
        let (mut client, server) = duplex(64);
        client.write_all(&[PREFACE, &b"settings"[..]].concat()).await.expect("room");
        drop(client);
        let mut stream = Prefaced::expect(server).await.expect("the preface");
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.expect("the rest");
        assert_eq!(all, [PREFACE, &b"settings"[..]].concat());
    }

    #[tokio::test]
    async fn other_protocols_are_turned_away() {
        let (mut client, server) = duplex(64);
        client.write_all(b"GET /v2/health/ready HTTP/1.1\r\n\r\n").await.expect("room");
        let error = Prefaced::expect(server).await.err().expect("not HTTP/2");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
