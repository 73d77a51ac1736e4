//! TLS of a probe, for any transport: consumes the server's bytes, and returns bytes to send.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use evener_core::pool::ProbeTls;
use evener_core::pool::health::Failure;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use crate::runtime::tls;

/// Interval at which files of authorities are read again, so that new ones need no reload.
const READ_AGAIN: Duration = Duration::from_secs(60);

/// Configurations by file of authorities, and by whether certificates are verified.
type Configs = BTreeMap<(Option<String>, bool), (Instant, Arc<ClientConfig>)>;

/// Cache, since reading the system's authorities is slower than a probe.
static CONFIGS: Mutex<Configs> = Mutex::new(BTreeMap::new());

/// TLS of one connection.
pub(super) struct TlsSession(ClientConnection);

impl TlsSession {
    /// Starts TLS with the server at `destination`. `request` is sent after the handshake.
    pub(super) fn new(
        settings: &ProbeTls,
        destination: SocketAddr,
        request: &[u8],
    ) -> Result<TlsSession, Failure> {
        let config = config(settings)?;
        let name = settings.name.clone().map_or_else(
            || Ok(ServerName::IpAddress(destination.ip().into())),
            |name| ServerName::try_from(name).map_err(|error| error.to_string()),
        );
        let connection = name.and_then(|name| {
            ClientConnection::new(config, name).map_err(|error: rustls::Error| error.to_string())
        });
        let mut connection = connection.map_err(Failure::NotProbed)?;
        // rustls buffers the request until the handshake is done.
        connection.writer().write_all(request).map_err(failure)?;
        Ok(TlsSession(connection))
    }

    /// Returns the bytes to send to the server.
    pub(super) fn outgoing(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // Writing to memory does not fail.
        while self.0.wants_write() && self.0.write_tls(&mut bytes).is_ok() {}
        bytes
    }

    /// Handles bytes of the server, and returns the decrypted bytes of its reply.
    pub(super) fn receive(&mut self, mut bytes: &[u8]) -> Result<Vec<u8>, Failure> {
        let mut reply = Vec::new();
        while !bytes.is_empty() {
            self.0.read_tls(&mut bytes).map_err(failure)?;
            self.0.process_new_packets().map_err(|error| Failure::Other(format!("TLS: {error}")))?;
            match self.0.reader().read_to_end(&mut reply) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(failure(error)),
                _ => {}
            }
        }
        Ok(reply)
    }
}

fn config(settings: &ProbeTls) -> Result<Arc<ClientConfig>, Failure> {
    let key = (settings.ca.clone(), settings.verify);
    let mut configs = CONFIGS.lock().unwrap_or_else(PoisonError::into_inner);
    configs.retain(|_, (read, _)| read.elapsed() < READ_AGAIN);
    if let Some((_, config)) = configs.get(&key) {
        return Ok(Arc::clone(config));
    }
    let config = tls::prober(settings.ca.as_deref().map(Path::new), settings.verify);
    let config = config.map_err(|error| Failure::NotProbed(error.to_string()))?;
    configs.insert(key, (Instant::now(), Arc::clone(&config)));
    Ok(config)
}

fn failure(error: io::Error) -> Failure {
    Failure::Other(format!("TLS: {error}"))
}
