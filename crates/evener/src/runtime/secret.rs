//! Secret of the farm, which every host has in a file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use evener_core::node::secret::{KEY_LEN, Secret, SecretError};
use evener_core::path::cookie::Schedule;
use evener_core::path::seed::Seed;

/// Maximum size of a key file, in bytes.
const FILE_BYTES: u64 = 64 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    #[error(
        "failed to read the farm's secret from {path}: {source}; `evener keygen` writes one, and all hosts need the same",
        path = .path.display()
    )]
    Io { path: PathBuf, source: io::Error },
    /// The file has no valid secret.
    #[error("{path} has no valid secret: {source}", path = .path.display())]
    Text { path: PathBuf, source: SecretError },
}

/// Reads the secret, and warns if other users can read it, too.
pub fn read(path: &Path) -> Result<Secret, SecretFileError> {
    let failed = |source| SecretFileError::Io { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    let open_to_others = file.metadata().map_err(failed)?.permissions().mode() & 0o077 != 0;
    file.take(FILE_BYTES).read_to_end(&mut bytes).map_err(failed)?;
    if open_to_others {
        tracing::warn!("other users can read {}: chmod 600 it", path.display());
    }
    Secret::parse(&String::from_utf8_lossy(&bytes))
        .map_err(|source| SecretFileError::Text { path: path.to_owned(), source })
}

/// Label from which the key of cookies is derived.
const COOKIE_LABEL: &str = "evener cookie";

/// Label from which the key of marks is derived.
const MARK_LABEL: &str = "evener mark";

/// Derives the key of marks. All hosts with this secret derive the same key.
pub(crate) fn mark_key(secret: &Secret) -> Seed {
    Seed::from_bytes(secret.derive_short(MARK_LABEL))
}

/// Label from which the key of hash tables is derived.
const RING_LABEL: &str = "evener ring";

/// Derives the key of hash tables. All hosts with this secret derive the same key.
pub(crate) fn ring_key(secret: &Secret) -> Seed {
    Seed::from_bytes(secret.derive_short(RING_LABEL))
}

/// Derives the keys of cookies from tick `now` on. All hosts with this secret and synchronised
/// clocks derive the same keys.
pub(crate) fn cookie_keys(secret: &Secret, epoch_ms: u64, now: u32) -> Schedule {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let unix_ms = u64::try_from(unix.as_millis()).unwrap_or_default();
    Schedule::new(Seed::from_bytes(secret.derive_short(COOKIE_LABEL)), epoch_ms, unix_ms, now)
}

/// Writes a new secret that only its owner can read.
///
/// # Errors
/// If the file exists, or can't be written. An existing secret is never overwritten: its farm's
/// hosts would reject each other.
pub fn write_new(path: &Path) -> io::Result<()> {
    let mut bytes = [0; KEY_LEN];
    random(&mut bytes)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let text = format!(
        "# The secret by which the hosts of a farm know each other.\n{}\n",
        Secret::new(bytes).text()
    );
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    if written.is_err() {
        // A partial secret is useless.
        let _ = fs::remove_file(path);
    }
    written
}

/// Fills `bytes` with cryptographic random numbers.
///
/// # Errors
/// Without /dev/urandom.
pub(crate) fn random(bytes: &mut [u8]) -> io::Result<()> {
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(bytes))
}

/// Returns a cryptographic random number, for example to identify the start of a node.
///
/// # Errors
/// Without /dev/urandom.
pub(crate) fn random_number() -> io::Result<u64> {
    let mut bytes = [0; 8];
    random(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_its_owner_s_and_written_once() {
        let folder = std::env::temp_dir().join(format!("evener-secret-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("farm.key");
        write_new(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let secret = read(&path).unwrap();
        assert_eq!(write_new(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(read(&path).unwrap(), secret);
        fs::write(&path, "not a key").unwrap();
        assert!(matches!(read(&path), Err(SecretFileError::Text { .. })));
        fs::remove_file(&path).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("keygen"));
        fs::remove_dir(folder).unwrap();
    }
}
