//! Stream of a client's requests. Core's [`Requests`] checks each request, and only checked bytes
//! are passed to hyper. To hyper, each request is the last request of its connection, so an idle
//! connection occupies none of hyper's buffers.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use evener_core::net::http::{HttpRefusal, RequestProgress, Requests};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, timeout_at};

use super::server::ConnectionBounds;

/// Maximum size of a read, in bytes.
const READ: usize = 16 * 1024;

/// Stream of checked requests. See the module.
pub(super) struct RequestStream<S> {
    stream: S,
    bounds: ConnectionBounds,
    requests: Requests,
    /// Bytes that are read and not yet passed to hyper. The first `passed` bytes are checked.
    unread: Vec<u8>,
    passed: usize,
    /// True if the connection continues with another request.
    goes_on: bool,
    is_first: bool,
    /// Reason why no more bytes are passed to hyper.
    refusal: Option<HttpRefusal>,
}

/// A stream after its last request.
pub(super) struct StreamRest<S> {
    pub(super) stream: S,
    /// Reason of the last request's refusal, and its first bytes.
    pub(super) refusal: Option<(HttpRefusal, Vec<u8>)>,
    /// True if the client may still be sending.
    pub(super) lingers: bool,
}

impl<S> RequestStream<S> {
    pub(super) fn new(stream: S, bounds: ConnectionBounds) -> RequestStream<S> {
        RequestStream {
            stream,
            bounds,
            requests: Requests::new(bounds.idle.is_none()),
            unread: Vec::new(),
            passed: 0,
            goes_on: true,
            is_first: true,
            refusal: None,
        }
    }

    /// Returns the stream, with the work that remains.
    pub(super) fn into_rest(self) -> StreamRest<S> {
        let RequestStream { stream, requests, unread, refusal, .. } = self;
        let lingers = refusal.is_some() || requests.is_in_request();
        StreamRest { stream, refusal: refusal.map(|refusal| (refusal, unread)), lingers }
    }

    /// Copies checked bytes to the buffer, as many as fit.
    fn pass(&mut self, buffer: &mut ReadBuf<'_>) {
        let len = self.passed.min(buffer.remaining());
        buffer.put_slice(self.unread.get(..len).unwrap_or_default());
        self.unread.drain(..len);
        self.passed -= len;
        if self.unread.is_empty() {
            // An idle connection occupies no memory.
            self.unread = Vec::new();
        }
    }
}

impl<S: AsyncRead + Unpin> RequestStream<S> {
    /// Waits for the next head. Returns false if there is none to serve.
    pub(super) async fn next_request(&mut self) -> bool {
        if !std::mem::take(&mut self.goes_on) {
            return false;
        }
        let ConnectionBounds { head, idle, .. } = self.bounds;
        let (mut is_started, is_first) = (!self.unread.is_empty(), std::mem::take(&mut self.is_first));
        let wait = if is_started || is_first { head } else { idle.unwrap_or(head) };
        let mut deadline = Instant::now() + wait;
        loop {
            match self.requests.pass(&self.unread) {
                RequestProgress::Incomplete => {}
                RequestProgress::Bytes(len) => {
                    self.passed = len;
                    return true;
                }
                RequestProgress::End(refusal) => {
                    self.refusal = Some(refusal);
                    return false;
                }
            }
            match timeout_at(deadline, poll_fn(|context| self.poll_more(context))).await {
                Ok(Ok(0) | Err(_)) => return false,
                Ok(Ok(_)) if is_started => {}
                Ok(Ok(_)) => {
                    // The time limit of a head starts with its first byte. So a client gains no
                    // time by sending the head byte by byte.
                    (is_started, deadline) = (true, Instant::now() + head);
                }
                Err(_) => {
                    self.refusal = is_started.then_some(HttpRefusal::Timeout);
                    return false;
                }
            }
        }
    }

    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut read = [const { MaybeUninit::uninit() }; READ];
        let mut read = ReadBuf::uninit(&mut read);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut read))?;
        self.unread.extend_from_slice(read.filled());
        Poll::Ready(Ok(read.filled().len()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for RequestStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.passed == 0 {
            if self.requests.is_in_head() {
                self.goes_on = true;
                return Poll::Ready(Ok(()));
            }
            if self.unread.is_empty() {
                ready!(self.poll_more(context))?;
            }
            let this = &mut *self;
            // Bytes of a body are never refused.
            if let RequestProgress::Bytes(len) = this.requests.pass(&this.unread) {
                this.passed = len;
            }
        }
        self.pass(buffer);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for RequestStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    /// Does nothing: the connection continues with another request, or the caller closes it.
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }
}
