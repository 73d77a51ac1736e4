//! A client's connection: what was read of it before comes first, and a client that takes no byte
//! of an answer for too long ([`SendTimeout`]) is reset, so that neither its place nor the kernel's
//! buffers stay taken.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use evener_core::net::http::SendTimeout;
use evener_dataplane::repair::unacked_len;
use hyper::body::Bytes;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

/// How often a client that an answer waits for is looked at until it is closed.
const LOOKS: u32 = 20;

/// A connection whose other end acknowledges what it takes.
pub(super) trait UnacknowledgedBytes {
    /// Bytes that were written and not acknowledged.
    fn unacknowledged(&self) -> io::Result<usize>;

    /// Has the connection reset once it is closed, so that nothing of it stays in the kernel.
    fn reset_on_close(&self);
}

impl UnacknowledgedBytes for TcpStream {
    fn unacknowledged(&self) -> io::Result<usize> {
        unacked_len(self.as_fd()).map_err(io::Error::other)
    }

    fn reset_on_close(&self) {
        // An option that can't be set leaves the rest to the kernel's own timers.
        let _ = SockRef::from(self).set_linger(Some(Duration::ZERO));
    }
}

/// See the module.
pub(super) struct ClientStream<S> {
    /// The bytes that were read already.
    unread: Bytes,
    stream: S,
    /// A client that takes no byte for so long is closed.
    timeout: Duration,
    /// While the socket takes no more.
    blocked: Option<BlockedWrite>,
}

struct BlockedWrite {
    since: Instant,
    timeout: SendTimeout,
    look: Pin<Box<Sleep>>,
}

impl<S: UnacknowledgedBytes> ClientStream<S> {
    pub(super) fn new(unread: Vec<u8>, stream: S, timeout: Duration) -> ClientStream<S> {
        ClientStream { unread: Bytes::from(unread), stream, timeout, blocked: None }
    }

    /// The socket takes no more: waits for its client, and fails once that has taken nothing for
    /// too long.
    fn poll_client(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        let pause = self.timeout / LOOKS;
        let unacknowledged = match self.stream.unacknowledged() {
            Ok(unacknowledged) => unacknowledged,
            Err(error) => return Poll::Ready(error),
        };
        let blocked = self.blocked.get_or_insert_with(|| BlockedWrite {
            since: Instant::now(),
            timeout: SendTimeout::begin(milliseconds(self.timeout), 0, unacknowledged),
            look: Box::pin(sleep(pause)),
        });
        if blocked.timeout.has_expired(milliseconds(blocked.since.elapsed()), unacknowledged) {
            self.stream.reset_on_close();
            return Poll::Ready(io::ErrorKind::TimedOut.into());
        }
        while blocked.look.as_mut().poll(context).is_ready() {
            blocked.look.as_mut().reset(Instant::now() + pause);
        }
        Poll::Pending
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.unread.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let len = self.unread.len().min(buffer.remaining());
        buffer.put_slice(&self.unread.split_to(len));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + UnacknowledgedBytes + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(context, bytes) {
            Poll::Pending => self.poll_client(context).map(Err),
            written => {
                self.blocked = None;
                written
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::Cell;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn client_that_stops_reading_is_reset() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = ClientStream::new(Vec::new(), stream, Duration::from_millis(200));
        let error = loop {
            if let Err(error) = stream.write_all(&[0; 65_536]).await {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(stream);
        let end = client.read_to_end(&mut Vec::new()).await;
        assert_eq!(end.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }

    /// A socket that takes no more, whose client acknowledges a byte whenever it is looked at, as
    /// long as there are any.
    struct Slow(Cell<usize>);

    impl UnacknowledgedBytes for Slow {
        fn unacknowledged(&self) -> io::Result<usize> {
            self.0.set(self.0.get().saturating_sub(1));
            Ok(self.0.get())
        }

        fn reset_on_close(&self) {}
    }

    impl AsyncWrite for Slow {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Pending
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn slow_reading_client_is_waited_for() {
        // Three times as many looks as there are until a client that takes nothing is closed.
        let slow = Slow(Cell::new(3 * LOOKS as usize));
        let mut stream = ClientStream::new(Vec::new(), slow, Duration::from_millis(100));
        let error = stream.write_all(&[0]).await.unwrap_err();
        assert_eq!((error.kind(), stream.stream.0.get()), (io::ErrorKind::TimedOut, 0));
    }
}
