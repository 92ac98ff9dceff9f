//! Disconnects a peer that does not read.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

/// Time without reading after which a peer is disconnected, so that it does not hold responses indefinitely.
pub(super) const UNREAD_PATIENCE: Duration = Duration::from_secs(60);

/// A stream whose writes fail once its peer has read nothing for [`UNREAD_PATIENCE`].
pub(super) struct Guarded<S> {
    stream: S,
    /// Set while a write waits for the peer.
    stall: Option<Pin<Box<Sleep>>>,
}

impl<S> Guarded<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, stall: None }
    }

    fn bounded<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stall = None;
            return written;
        }
        let stall = self.stall.get_or_insert_with(|| Box::pin(sleep(UNREAD_PATIENCE)));
        if stall.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        stall.as_mut().reset(Instant::now());
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer reads nothing")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.bounded(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.bounded(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.stream).poll_shutdown(context);
        self.bounded(context, ended)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_nothing_ends_the_write_and_one_that_reads_slowly_does_not() {
        let (ours, mut theirs) = duplex(1);
        let mut guarded = Guarded::new(ours);
        let read = async {
            for _ in 0..3 {
                tokio::time::sleep(UNREAD_PATIENCE / 2).await;
                theirs.read_u8().await.expect("a byte");
            }
        };
        let (written, ()) = tokio::join!(guarded.write_all(&[1, 2, 3]), read);
        written.expect("it was read in time");

        guarded.write_all(&[4]).await.expect("it fits");
        let error = guarded.write_all(&[5]).await.expect_err("the client does not read");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
