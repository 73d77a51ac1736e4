//! Client of a group's director.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evener_core::farm::group::DirectorAnswer;
use evener_core::net::http::Url;
use evener_core::node::group::Verb;
use http_body_util::Full;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use rustls::ClientConfig;
use tokio::net::lookup_host;
use tokio::time::timeout;

use crate::config::Tls;
use crate::http::client::{self, Answer, Destination, RequestError};
use crate::runtime::shown::is_shown;
use crate::runtime::tls::{self, TlsError};

/// Timeout of a message and its response.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of bytes that are read of a response.
const READ: usize = 16 * 1024;
/// Maximum length of the sentence in a response, in characters.
const SENTENCE_MAX: usize = 200;

/// Addresses of a director, and this host's address towards it.
pub(super) struct DirectorAddress {
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) own: IpAddr,
}

pub(super) struct DirectorClient {
    group: Url,
    /// Authority of the director's certificate, and identity of the member.
    ca: Option<PathBuf>,
    own: Option<Tls>,
}

impl DirectorClient {
    pub(super) fn new(group: Url, ca: Option<PathBuf>, own: Option<Tls>) -> DirectorClient {
        DirectorClient { group, ca, own }
    }

    /// Reads the files, since certificates are renewed.
    fn tls(&self) -> Result<Option<Arc<ClientConfig>>, TlsError> {
        if !self.group.is_secure() {
            return Ok(None);
        }
        let own = self.own.as_ref().map(|own| (own.certificate.as_path(), own.key.as_path()));
        tls::client(self.ca.as_deref(), own).map(Some)
    }

    /// Resolves the director's address each time, since names may change.
    ///
    /// # Errors
    /// If the name is not resolved, or if no route leads to the director.
    pub(super) async fn locate(&self) -> Result<DirectorAddress, String> {
        let (host, port) = (self.group.host(), self.group.port());
        let addresses: Vec<SocketAddr> = match self.group.address() {
            Some(address) => vec![SocketAddr::new(address, port)],
            None => match timeout(TIMEOUT, lookup_host((host, port))).await {
                Ok(Ok(found)) => found.collect(),
                Ok(Err(error)) => return Err(format!("{host} can't be resolved: {error}")),
                Err(_) => return Err(format!("{host} was not resolved in time")),
            },
        };
        let own = addresses.iter().find_map(|to| own_address(*to).ok());
        let own = own.ok_or_else(|| format!("there is no way to {host}"))?;
        Ok(DirectorAddress { addresses, own })
    }

    /// Sends a message. Returns the status, and the first line of the director's text.
    pub(super) async fn send(&self, verb: Verb, token: Option<&str>, body: &str) -> (DirectorAnswer, String) {
        let tls = match self.tls() {
            Ok(tls) => tls,
            Err(error) => return (DirectorAnswer::Unsent, error.to_string()),
        };
        match timeout(TIMEOUT, self.try_send(tls.as_ref(), verb, token, body)).await {
            Ok(Ok(answer)) => (DirectorAnswer::Status(answer.status), sentence(&answer.body)),
            Ok(Err(error)) => (DirectorAnswer::NoAnswer, error.to_string()),
            Err(_) => (DirectorAnswer::NoAnswer, "it doesn't answer in time".to_owned()),
        }
    }

    async fn try_send(
        &self,
        tls: Option<&Arc<ClientConfig>>,
        verb: Verb,
        token: Option<&str>,
        body: &str,
    ) -> Result<Answer, RequestError> {
        let located = self.locate().await.map_err(io::Error::other)?;
        let mut request = client::request(verb.name(), self.group.path(), self.group.authority())?;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        if let Some(token) = token {
            let value = HeaderValue::try_from(format!("Bearer {token}")).map_err(io::Error::other)?;
            headers.insert(AUTHORIZATION, value);
        }
        *request.body_mut() = Full::from(body.to_owned());
        let mut last = io::Error::from(io::ErrorKind::NotFound).into();
        for to in located.addresses {
            let destination = Destination::of_url(&self.group, to, None, tls)?;
            match client::send(&destination, request.clone(), READ).await {
                Ok(answer) => return Ok(answer),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// Returns the first line of a response's body, with printable characters only.
fn sentence(body: &[u8]) -> String {
    let body = String::from_utf8_lossy(body);
    let line = body.lines().next().unwrap_or_default();
    line.chars().filter(|char| is_shown(*char)).take(SENTENCE_MAX).collect()
}

/// Returns this host's address towards another host. No packet is sent.
fn own_address(to: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::sentence;

    #[test]
    fn a_sentence_is_the_first_line_of_the_body_without_controls() {
        assert_eq!(sentence(b"show \x1b[2Ja token\nmore"), "show [2Ja token");
        assert_eq!(sentence(b""), "");
    }
}
