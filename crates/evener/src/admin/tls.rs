//! TLS at the admin address. Certificates are renewed while the daemon runs, so their files are
//! read again when they have changed.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use rustls::ServerConfig;

use crate::config::AdminTls;
use crate::runtime::tls::{self, TlsError};

/// Why there can be no TLS at the admin address.
#[derive(Debug, thiserror::Error)]
#[error("[admin.tls]: {0}")]
pub struct AdminTlsError(#[from] TlsError);

/// The daemon's part of TLS.
#[derive(Debug)]
pub(super) struct AdminTlsServer {
    files: AdminTls,
    read: Mutex<(Times, Arc<ServerConfig>)>,
}

/// When certificate, key and authority were written last.
type Times = [Option<SystemTime>; 3];

impl AdminTlsServer {
    pub(super) fn new(files: AdminTls) -> Result<AdminTlsServer, AdminTlsError> {
        let read = (times(&files), read(&files)?);
        Ok(AdminTlsServer { files, read: Mutex::new(read) })
    }

    /// By the files as they are now; while they can't be used, by those before.
    pub(super) fn current(&self) -> Arc<ServerConfig> {
        let mut known = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let now = times(&self.files);
        if known.0 != now {
            match read(&self.files) {
                Ok(config) => *known = (now, config),
                Err(error) => tracing::warn!("[admin.tls]: {error}; the certificate of before is shown"),
            }
        }
        Arc::clone(&known.1)
    }
}

fn times(files: &AdminTls) -> Times {
    let written = |path: &Path| fs::metadata(path).and_then(|known| known.modified()).ok();
    let ca = files.clients.as_ref().and_then(|clients| written(&clients.ca));
    [written(&files.own.certificate), written(&files.own.key), ca]
}

fn read(files: &AdminTls) -> Result<Arc<ServerConfig>, TlsError> {
    let ca = files.clients.as_ref().map(|clients| clients.ca.as_path());
    tls::server(&files.own.certificate, &files.own.key, ca)
}
