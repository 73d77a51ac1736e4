//! TLS configurations from files of certificates and keys.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoClientAuth, WebPkiClientVerifier};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};

/// ALPN name of HTTP/1.1, the only version that is supported over TLS.
const HTTP_1_1: &[u8] = b"http/1.1";

#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// A file can't be read, or lacks the expected part.
    #[error("{path} has no valid {what}: {source}; it must be in PEM", path = .path.display())]
    File {
        path: PathBuf,
        /// Missing part, for the error's text.
        what: &'static str,
        source: pem::Error,
    },
    /// Certificate and key don't match, or are of an unsupported kind.
    #[error("{certificate} and {key} can't be used: {source}", certificate = .certificate.display(), key = .key.display())]
    Pair {
        /// Path of the certificate's file.
        certificate: PathBuf,
        key: PathBuf,
        source: rustls::Error,
    },
    /// The file has no authority that can sign certificates.
    #[error("{path} has no valid certificate authority: {source}", path = .path.display())]
    Authority { path: PathBuf, source: Box<dyn Error + Send + Sync> },
}

impl TlsError {
    pub(crate) fn help(&self) -> &'static str {
        match self {
            TlsError::Authority { .. } => {
                "name a file with the certificates of the authorities that sign members' certificates"
            }
            TlsError::File { .. } | TlsError::Pair { .. } => {
                "name a certificate and the key that belongs to it"
            }
        }
    }
}

/// Returns the TLS configuration of a server. The file `certificate` contains the server's
/// certificate and its chain. Clients may present a certificate signed by an authority of
/// `client_ca`. Clients without a certificate are accepted, too.
///
/// # Errors
/// If a file can't be used, or certificate and key don't match.
pub(crate) fn server(
    certificate: &Path,
    key: &Path,
    client_ca: Option<&Path>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let (chain, private) = (certificates(certificate)?, private_key(key)?);
    let provider = Arc::new(ring::default_provider());
    let clients = match client_ca {
        Some(path) => authority(path, &provider)?,
        None => Arc::new(NoClientAuth),
    };
    let made = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_client_cert_verifier(clients).with_single_cert(chain, private));
    let mut config = made.map_err(|source| TlsError::Pair {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        source,
    })?;
    config.alpn_protocols = vec![HTTP_1_1.to_vec()];
    Ok(Arc::new(config))
}

/// Returns the TLS configuration of a client. Servers must have a certificate signed by an
/// authority of the file `ca`, or, without it, by one that this system trusts. `own` names the
/// files of the client's own certificate and key.
///
/// # Errors
/// If a file can't be used, or certificate and key don't match.
pub(crate) fn client(ca: Option<&Path>, own: Option<(&Path, &Path)>) -> Result<Arc<ClientConfig>, TlsError> {
    let roots = match ca {
        Some(path) => roots_of(path)?,
        None => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            roots
        }
    };
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let none = || PathBuf::new();
    let (certificate, key) = own.map_or((none(), none()), |(one, other)| (one.to_owned(), other.to_owned()));
    let pair = |source| TlsError::Pair { certificate, key, source };
    let builder = match builder {
        Ok(builder) => builder.with_root_certificates(roots),
        Err(error) => return Err(pair(error)),
    };
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let (chain, private) = (certificates(certificate)?, private_key(key)?);
            builder.with_client_auth_cert(chain, private).map_err(pair)?
        }
    };
    config.alpn_protocols = vec![HTTP_1_1.to_vec()];
    Ok(Arc::new(config))
}

/// Returns the TLS configuration of a prober, with the authorities of [`client`]. Sessions are
/// never resumed. Without `verify`, any certificate is accepted.
///
/// # Errors
/// If the authorities can't be used.
pub(crate) fn prober(ca: Option<&Path>, verify: bool) -> Result<Arc<ClientConfig>, TlsError> {
    let mut config = ClientConfig::clone(&*client(ca, None)?);
    config.resumption = Resumption::disabled();
    if !verify {
        let verifier = Unverified(Arc::clone(config.crypto_provider()));
        config.dangerous().set_certificate_verifier(Arc::new(verifier));
    }
    Ok(Arc::new(config))
}

/// Accepts every certificate, for probes that only test if a server answers.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let unread = |source| TlsError::File { path: path.to_owned(), what: "private key", source };
    PrivateKeyDer::from_pem_file(path).map_err(unread)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    read.map_err(|source| TlsError::File { path: path.to_owned(), what: "certificate", source })
}

/// Reads the authorities of a file.
fn roots_of(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        let failed =
            |error: rustls::Error| TlsError::Authority { path: path.to_owned(), source: error.into() };
        roots.add(certificate).map_err(failed)?;
    }
    Ok(roots)
}

/// Returns a verifier of client certificates with the authorities of a file.
fn authority(path: &Path, provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let failed = |source| TlsError::Authority { path: path.to_owned(), source };
    let roots = roots_of(path)?;
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    builder.allow_unauthenticated().build().map_err(|error| failed(error.into()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn invalid_certificate_file_is_refused_with_reason() {
        let path = std::env::temp_dir().join(format!("evener-tls-{}", std::process::id()));
        let error = server(&path, &path, None).unwrap_err().to_string();
        assert!(error.contains("No such file"), "{error}");
        fs::write(&path, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        let error = server(&path, &path, None).unwrap_err().to_string();
        assert!(error.contains("no valid private key"), "{error}");
        fs::remove_file(&path).unwrap();
    }
}
