//! The other end of the admin socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes, to_bytes};
use axum::http::{Method, Request, Response, StatusCode, header};
use futures_util::StreamExt;
use hyper::body::Incoming;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::api::ErrorBody;
use crate::http;

/// A little longer than the daemon gives itself, so that its own words are heard.
const TIMEOUT: Duration = Duration::from_secs(65);
/// The longest answer that is read: some four million sessions.
const ANSWER_BYTES: usize = 1 << 30;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("no daemon answers on {path}; is `evener run` running in this network namespace?")]
    NoDaemon {
        /// The socket.
        path: String,
    },
    /// The socket is another user's.
    #[error("{path} may not be used: it is for the daemon's user; run this as that user, mostly root")]
    Forbidden {
        /// The socket.
        path: String,
    },
    /// The daemon said no, in its own words.
    #[error("{0}")]
    Refused(String),
    /// The daemon took too long.
    #[error("the daemon on {path} has not answered within {} s; see its log", TIMEOUT.as_secs())]
    Timeout {
        /// The socket.
        path: String,
    },
    /// The daemon said no more.
    #[error("the daemon has hung up: it has stopped, or was stopped")]
    Ended,
    /// The bytes that came are no answer.
    #[error("the answer on {path} can't be understood: {why}; is the daemon of the same version?")]
    Garbled {
        /// The socket.
        path: String,
        /// The error in it.
        why: String,
    },
}

/// A way to ask the daemon.
#[derive(Clone, Debug)]
pub struct Client {
    path: PathBuf,
}

impl Client {
    /// Asks the daemon whose admin socket is at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Client {
        Client { path: path.into() }
    }

    /// The admin socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads a view.
    ///
    /// # Errors
    /// When the daemon can't be reached, refuses, or answers with something else.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.request(Method::GET, path, None).await
    }

    /// Gives an order.
    ///
    /// # Errors
    /// As for [`Client::get`].
    pub async fn post<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.request(Method::POST, path, None).await
    }

    /// Gives an order with a body of JSON.
    ///
    /// # Errors
    /// As for [`Client::get`].
    pub async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&serde_json::Value>,
    ) -> Result<T, ClientError> {
        self.request(method, path, body).await
    }

    /// Reads an answer that goes on and on, line by line.
    ///
    /// # Errors
    /// As for [`Client::get`].
    pub async fn follow(&self, path: &str) -> Result<LineStream, ClientError> {
        let late = |_| ClientError::Timeout { path: self.name() };
        let started = tokio::time::timeout(TIMEOUT, self.begin(Method::GET, path, None));
        let response = started.await.map_err(late)??;
        let (status, body) = (response.status(), Body::new(response.into_body()));
        if !status.is_success() {
            let whole = tokio::time::timeout(TIMEOUT, self.whole(body));
            return Err(self.refused(status, &whole.await.map_err(late)??));
        }
        Ok(LineStream { body: body.into_data_stream(), rest: Vec::new(), is_torn: false })
    }

    async fn request<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&serde_json::Value>,
    ) -> Result<T, ClientError> {
        let exchange = async {
            let response = self.begin(method, path, body).await?;
            Ok((response.status(), self.whole(Body::new(response.into_body())).await?))
        };
        let (status, body) = match tokio::time::timeout(TIMEOUT, exchange).await {
            Ok(answer) => answer?,
            Err(_) => return Err(ClientError::Timeout { path: self.name() }),
        };
        if !status.is_success() {
            return Err(self.refused(status, &body));
        }
        serde_json::from_slice(&body).map_err(|error| self.garbled(error))
    }

    fn refused(&self, status: StatusCode, body: &[u8]) -> ClientError {
        match serde_json::from_slice::<ErrorBody>(body) {
            Ok(refusal) => ClientError::Refused(refusal.error),
            Err(_) => self.garbled(status),
        }
    }

    /// Asks, and has the beginning of the answer.
    async fn begin(
        &self,
        method: Method,
        path: &str,
        body: Option<&serde_json::Value>,
    ) -> Result<Response<Incoming>, ClientError> {
        let stream = UnixStream::connect(&self.path).await.map_err(|error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => ClientError::Forbidden { path: self.name() },
            _ => ClientError::NoDaemon { path: self.name() },
        })?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            // RFC 9112, section 3.2: a Host is needed, and means nothing here.
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .body(body.map_or_else(Body::empty, |body| Body::from(body.to_string())))
            .map_err(|error| self.garbled(error))?;
        http::client::begin(stream, request).await.map_err(|error| self.garbled(error))
    }

    async fn whole(&self, body: Body) -> Result<Bytes, ClientError> {
        to_bytes(body, ANSWER_BYTES).await.map_err(|error| self.garbled(error))
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    pub(super) fn garbled(&self, why: impl ToString) -> ClientError {
        ClientError::Garbled { path: self.name(), why: why.to_string() }
    }
}

/// An answer that goes on.
#[derive(Debug)]
pub struct LineStream {
    body: BodyDataStream,
    /// The bytes behind the last line's end.
    rest: Vec<u8>,
    /// Whether the connection broke before the answer's end.
    is_torn: bool,
}

impl LineStream {
    /// The next line; nothing if there are no more.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let rest = self.rest.split_off(end + 1);
                return Some(std::mem::replace(&mut self.rest, rest));
            }
            // A connection that breaks ends the answer, too.
            let Ok(piece) = self.body.next().await? else {
                self.is_torn = true;
                return None;
            };
            self.rest.extend_from_slice(&piece);
        }
    }

    /// True if the connection broke before the answer's end.
    pub fn is_torn(&self) -> bool {
        self.is_torn
    }
}

/// A name as it stands in a path or a query.
pub(super) fn escape(name: &str) -> String {
    utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()
}
