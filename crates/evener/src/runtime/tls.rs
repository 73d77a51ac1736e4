//! What it takes to be spoken to by TLS: a certificate and its key, from files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// What is spoken by it: no other version of HTTP is read here.
const HTTP_1_1: &[u8] = b"http/1.1";

/// Why there can be no TLS.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// A file can't be read, or isn't what it should be.
    #[error("{path} has no {what} that can be read: {source}; write it there in PEM", path = .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What it should have.
        what: &'static str,
        /// Why.
        source: pem::Error,
    },
    /// The two don't go together, or are of a kind that isn't known.
    #[error("{certificate} and {key} can't be used: {source}", certificate = .certificate.display(), key = .key.display())]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's.
        key: PathBuf,
        /// Why.
        source: rustls::Error,
    },
}

/// A server's part of TLS, by a file with its certificate, and others up to one that clients know, and a file with its key.
///
/// # Errors
/// When they can't be had, or don't go together.
pub(crate) fn server(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let unread = |path: &Path, what, source| TlsError::File { path: path.to_owned(), what, source };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
    let chain = chain.map_err(|error| unread(certificate, "certificate", error))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unread(key, "private key", error))?;
    let made = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private));
    let mut config = made.map_err(|source| TlsError::Pair {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        source,
    })?;
    config.alpn_protocols = vec![HTTP_1_1.to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_no_certificate_is_told() {
        let path = std::env::temp_dir().join(format!("evener-tls-{}", std::process::id()));
        let said = server(&path, &path).unwrap_err().to_string();
        assert!(said.contains("No such file"), "{said}");
        fs::write(&path, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        let said = server(&path, &path).unwrap_err().to_string();
        assert!(said.contains("no private key"), "{said}");
        fs::remove_file(&path).unwrap();
    }
}
