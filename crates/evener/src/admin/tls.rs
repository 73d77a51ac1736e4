//! TLS at the admin address. Certificates are renewed while the daemon runs, so changed files are
//! read again.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use rustls::ServerConfig;

use crate::config::AdminTls;
use crate::runtime::tls::{self, TlsError};

#[derive(Debug, thiserror::Error)]
#[error("[admin.tls]: {0}")]
pub struct AdminTlsError(#[from] TlsError);

/// TLS identity of the daemon.
#[derive(Debug)]
pub(super) struct AdminTlsServer {
    files: AdminTls,
    read: Mutex<(Times, Arc<ServerConfig>)>,
}

/// Modification times of certificate, key and authority.
type Times = [Option<SystemTime>; 3];

impl AdminTlsServer {
    pub(super) fn new(files: AdminTls) -> Result<AdminTlsServer, AdminTlsError> {
        let read = (times(&files), read(&files)?);
        Ok(AdminTlsServer { files, read: Mutex::new(read) })
    }

    /// Returns the configuration from the current files. While the files are invalid, returns the
    /// previous configuration.
    pub(super) fn current(&self) -> Arc<ServerConfig> {
        let mut known = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let now = times(&self.files);
        if known.0 != now {
            match read(&self.files) {
                Ok(config) => *known = (now, config),
                Err(error) => tracing::warn!("[admin.tls]: {error}; the previous certificate stays in use"),
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
