//! A client's bytes, of which whole requests come through that core's reader lets through
//! ([`Requests`]), and nothing behind them. So hyper, which reads more loosely, sees no head that
//! responders would refuse; neither later on a connection nor within TLS.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use evener_core::net::http::{HEAD_MAX, HttpRefusal, RequestProgress, Requests, Response};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::http::last_bytes;

/// See the module.
pub(super) struct RequestStream<S> {
    stream: S,
    requests: Requests,
    /// The bytes that were read and not passed on, of which there may be so many.
    unread: Vec<u8>,
    passed: usize,
    /// Why nothing more is passed on.
    refusal: Option<HttpRefusal>,
    is_over: bool,
}

impl<S> RequestStream<S> {
    pub(super) fn new(stream: S) -> RequestStream<S> {
        RequestStream {
            stream,
            requests: Requests::default(),
            unread: Vec::new(),
            passed: 0,
            refusal: None,
            is_over: false,
        }
    }

    /// Why the last request was refused, and its first bytes.
    pub(super) fn refused(&self) -> Option<(HttpRefusal, &[u8])> {
        self.refusal.map(|refusal| (refusal, &self.unread[..]))
    }

    /// Judges what was read; whether there is something to pass on, be it the end.
    fn judge(&mut self) -> bool {
        if self.passed > 0 || self.is_over {
            return true;
        }
        match self.requests.pass(&self.unread) {
            RequestProgress::Bytes(len) => self.passed = len,
            RequestProgress::Incomplete => return false,
            RequestProgress::End(refusal) => (self.refusal, self.is_over) = (refusal, true),
        }
        true
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> RequestStream<S> {
    /// Sends the last response: the refusal of a request, if there was one. The client's further
    /// bytes are read away, so that no reset overtakes that (RFC 9112, section 9.6).
    pub(super) async fn end(&mut self) -> io::Result<()> {
        if let Some(refusal) = self.refusal {
            let out = last_bytes(&Response::refusal(refusal), false);
            self.stream.write_all(&out).await?;
        }
        self.stream.shutdown().await?;
        let mut rest = [0; 4096];
        while self.refusal.is_some() && self.stream.read(&mut rest).await? > 0 {}
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for RequestStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.judge() {
            let mut read = [const { MaybeUninit::uninit() }; HEAD_MAX];
            let mut read = ReadBuf::uninit(&mut read);
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.unread.extend_from_slice(read.filled());
        }
        let len = self.passed.min(buffer.remaining());
        if let Some(passed) = self.unread.get(..len) {
            buffer.put_slice(passed);
        }
        self.unread.drain(..len);
        self.passed -= len;
        if self.unread.is_empty() {
            // An idle connection holds no memory.
            self.unread = Vec::new();
        }
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

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
