//! Client of the admin socket.

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
use crate::runtime::folders;
use crate::runtime::lock::Lock;

/// Timeout of a request, longer than the daemon's own timeouts, so that the daemon's error arrives.
const TIMEOUT: Duration = Duration::from_secs(65);
/// Maximum length of a response in bytes, enough for some four million sessions.
const ANSWER_BYTES: usize = 1 << 30;

/// Error of a request.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon listens on the socket.
    #[error("no daemon answers on {path}; {hint}")]
    NoDaemon {
        /// Path of the admin socket.
        path: String,
        hint: &'static str,
    },
    /// The socket belongs to another user.
    #[error("permission denied on {path}: run this command as the daemon's user, usually root")]
    Forbidden {
        /// Path of the admin socket.
        path: String,
    },
    /// The daemon refused, with this text.
    #[error("{0}")]
    Refused(String),
    /// The daemon did not answer in time.
    #[error("the daemon on {path} has not answered within {} s; see its log", TIMEOUT.as_secs())]
    Timeout {
        /// Path of the admin socket.
        path: String,
    },
    /// The daemon closed the connection without a response.
    #[error("the daemon closed the connection: it has stopped")]
    Ended,
    /// The response can't be parsed.
    #[error("the answer on {path} is invalid: {why}; has the daemon the same version as this command?")]
    Garbled {
        /// Path of the admin socket.
        path: String,
        why: String,
    },
}

/// Client of a daemon.
#[derive(Clone, Debug)]
pub struct Client {
    path: PathBuf,
}

impl Client {
    /// Creates a client of the daemon with the admin socket at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Client {
        Client { path: path.into() }
    }

    /// Returns the path of the admin socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads a view.
    ///
    /// # Errors
    /// If the daemon is unreachable or refuses, or if its response can't be parsed.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.request(Method::GET, path, None).await
    }

    /// Sends a command.
    ///
    /// # Errors
    /// As for [`Client::get`].
    pub async fn post<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.request(Method::POST, path, None).await
    }

    /// Sends a request with a JSON body.
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

    /// Reads a stream, line by line.
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

    /// Sends a request, and returns the response's head.
    async fn begin(
        &self,
        method: Method,
        path: &str,
        body: Option<&serde_json::Value>,
    ) -> Result<Response<Incoming>, ClientError> {
        let stream = UnixStream::connect(&self.path).await.map_err(|error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => ClientError::Forbidden { path: self.name() },
            _ => ClientError::NoDaemon { path: self.name(), hint: no_daemon_hint() },
        })?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            // A Host field is required (RFC 9112, section 3.2), but has no meaning here.
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

fn no_daemon_hint() -> &'static str {
    let has_agent = folders::directory().is_ok_and(|own| Lock::is_held(&folders::agent_lock_path(&own)));
    match has_agent {
        true => "an agent runs here: `evener agent --status` shows its state",
        false => "is `evener run` running in this network namespace?",
    }
}

/// Response that the daemon sends line by line.
#[derive(Debug)]
pub struct LineStream {
    body: BodyDataStream,
    /// Bytes after the end of the last line.
    rest: Vec<u8>,
    /// True if the connection broke before the response's end.
    is_torn: bool,
}

impl LineStream {
    /// Returns the next line. `None` at the end.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let rest = self.rest.split_off(end + 1);
                return Some(std::mem::replace(&mut self.rest, rest));
            }
            // A broken connection ends the response, too.
            let Ok(piece) = self.body.next().await? else {
                self.is_torn = true;
                return None;
            };
            self.rest.extend_from_slice(&piece);
        }
    }

    /// True if the connection broke before the response's end.
    pub fn is_torn(&self) -> bool {
        self.is_torn
    }
}

/// Escapes a name for a path or a query.
pub(super) fn escape(name: &str) -> String {
    utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()
}
