//! Connection of a client. A client that acknowledges no byte for too long ([`SendTimeout`]) is
//! reset, which frees its slot and the kernel's buffers.
//!
//! tokio treats a new socket as not ready until epoll(7) reports it. Usually the request has
//! already arrived, and the response fits the send buffer. The first read and the first write are
//! therefore tried at once, which saves a pass of the runtime.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use evener_core::net::http::SendTimeout;
use evener_dataplane::repair::unacked_len;
use nix::sys::socket::{MsgFlags, recv, send};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

/// Number of checks of a blocked client within its timeout.
const LOOKS: u32 = 20;

/// Maximum size of the first read, in bytes.
const FIRST: usize = 2 * 1024;

/// Socket operations that [`ClientStream`] needs.
pub(crate) trait ClientSocket {
    /// Returns the number of bytes written and not acknowledged.
    fn unacknowledged(&self) -> io::Result<usize>;

    /// Configures close(2) to reset the connection, so that the kernel keeps no state of it.
    fn reset_on_close(&self);

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize>;

    fn send(&self, bytes: &[u8]) -> io::Result<usize>;
}

impl ClientSocket for TcpStream {
    fn unacknowledged(&self) -> io::Result<usize> {
        unacked_len(self.as_fd()).map_err(io::Error::other)
    }

    fn reset_on_close(&self) {
        // If the option can't be set, the kernel's own timers apply.
        let _ = SockRef::from(self).set_linger(Some(Duration::ZERO));
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(recv(self.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT)?)
    }

    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(self.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL)?)
    }
}

/// Stream of a client's connection. See the module.
pub(crate) struct ClientStream<S> {
    stream: S,
    /// True before the first read.
    is_new: bool,
    /// True after the last write. The FIN is postponed: usually the socket is closed at once, and
    /// only a further read sends the FIN first.
    is_ending: bool,
    /// Time without an acknowledged byte after which the client is reset.
    timeout: Duration,
    /// State while the send buffer is full.
    blocked: Option<BlockedWrite>,
}

struct BlockedWrite {
    since: Instant,
    timeout: SendTimeout,
    look: Pin<Box<Sleep>>,
}

impl<S: ClientSocket> ClientStream<S> {
    pub(crate) fn new(stream: S, timeout: Duration) -> ClientStream<S> {
        ClientStream { stream, is_new: true, is_ending: false, timeout, blocked: None }
    }

    /// Waits for the client while the send buffer is full. Ready with an error once the client has
    /// acknowledged nothing for too long.
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

impl<S: AsyncRead + AsyncWrite + ClientSocket + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_ending {
            ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
            self.is_ending = false;
        }
        if std::mem::take(&mut self.is_new)
            && let Ok(len) = self.stream.receive(buffer.initialize_unfilled_to(FIRST.min(buffer.remaining())))
        {
            buffer.advance(len);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + ClientSocket + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = match self.stream.send(bytes) {
            Ok(len) => Poll::Ready(Ok(len)),
            // Returns the cause of the error.
            Err(_) => Pin::new(&mut self.stream).poll_write(context, bytes),
        };
        match sent {
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
        ready!(self.as_mut().poll_flush(context))?;
        self.is_ending = true;
        Poll::Ready(Ok(()))
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
        let mut stream = ClientStream::new(stream, Duration::from_millis(200));
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

    /// A socket with a full send buffer, whose client acknowledges one byte at each check, as long
    /// as there are any.
    struct Slow(Cell<usize>);

    impl ClientSocket for Slow {
        fn unacknowledged(&self) -> io::Result<usize> {
            self.0.set(self.0.get().saturating_sub(1));
            Ok(self.0.get())
        }

        fn reset_on_close(&self) {}

        fn receive(&self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::WouldBlock.into())
        }

        fn send(&self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::WouldBlock.into())
        }
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
        // Three times the number of checks after which a stalled client is reset.
        let slow = Slow(Cell::new(3 * LOOKS as usize));
        let mut stream = ClientStream::new(slow, Duration::from_millis(100));
        let error = stream.write_all(&[0]).await.unwrap_err();
        assert_eq!((error.kind(), stream.stream.0.get()), (io::ErrorKind::TimedOut, 0));
    }
}
