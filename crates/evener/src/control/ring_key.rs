//! Key of the hash tables. Directors with the same key choose the same server for a flow without a
//! session. So connections continue if another director gets their packets.

use std::fs;
use std::io;
use std::path::Path;

use evener_core::path::seed::Seed;

use super::start::{StartError, seed};
use crate::config::Config;
use crate::runtime::{files, secret};

/// File in the state directory that stores the key if there is no secret, and the key's length in
/// hex digits.
const FILE: &str = "ring.key";
const DIGITS: usize = 32;

/// Returns this director's key, derived from the farm's secret. Without a secret, the key is stored
/// in `folder`, so that the next start chooses the same servers.
///
/// # Errors
/// If there are no random numbers.
pub(super) fn read(config: &Config, folder: &Path) -> Result<Seed, StartError> {
    if let Some(file) = &config.farm.secret_file {
        match secret::read(file) {
            Ok(secret) => return Ok(secret::ring_key(&secret)),
            Err(error) => {
                tracing::warn!(%error, "failed to derive the hash key from the farm's secret: this director selects other servers than the farm's other directors")
            }
        }
    }
    let path = folder.join(FILE);
    match kept(&path) {
        Ok(key) => Ok(key),
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(%error, file = %path.display(), "failed to read the key of the hash tables; a new one is used");
            }
            let key = seed()?;
            if let Err(error) = keep(&path, key) {
                tracing::warn!(
                    %error, file = %path.display(),
                    "failed to save the key of the hash tables: after the next start flows without a session may go to other servers"
                );
            }
            Ok(key)
        }
    }
}

fn kept(path: &Path) -> io::Result<Seed> {
    let text = files::bounded(path, 2 * DIGITS as u64)?;
    let text = String::from_utf8_lossy(&text);
    let digits = text.trim();
    let is_key = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let bits = u128::from_str_radix(digits, 16).ok().filter(|_| is_key);
    let bits =
        bits.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it has no key of 32 hex digits"))?;
    Ok(Seed::from_bytes(bits.to_be_bytes()))
}

/// Writes the file atomically.
fn keep(path: &Path, key: Seed) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    files::replace_secret(path, format!("{:016x}{:016x}\n", key.0, key.1).as_bytes())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("evener-ring-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn config(farm: &str) -> Config {
        let text = format!(
            "{farm}[[service]]\naddress = \"192.0.2.100:80\"\n[[service.server]]\naddress = \"192.0.2.11\"\n"
        );
        crate::config::parse(&text, "evener.toml").unwrap()
    }

    #[test]
    fn key_without_a_secret_is_kept_for_the_next_start() {
        let folder = folder("kept");
        let first = read(&config(""), &folder).unwrap();
        assert_eq!(read(&config(""), &folder).unwrap(), first);
        let mode = fs::metadata(folder.join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        for broken in ["", "xyz", &"0".repeat(31), &format!("+{}", "0".repeat(31)), &"0".repeat(100)] {
            fs::write(folder.join(FILE), broken).unwrap();
            let new = read(&config(""), &folder).unwrap();
            assert_ne!(new, first, "{broken:?}");
            assert_eq!(read(&config(""), &folder).unwrap(), new, "it is mended");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn directors_with_one_secret_have_one_key() {
        let (one, other) = (folder("one"), folder("other"));
        let file = one.join("farm.key");
        fs::write(&file, format!("{}\n", "5a".repeat(32))).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let config = config(&format!("[farm]\nsecret_file = \"{}\"\n", file.display()));
        let key = read(&config, &one).unwrap();
        assert_eq!(read(&config, &other).unwrap(), key);
        assert!(!other.join(FILE).exists());
        fs::remove_file(&file).unwrap();
        assert_ne!(read(&config, &other).unwrap(), key, "it serves, with a key of its own");
        fs::remove_dir_all(one).unwrap();
        fs::remove_dir_all(other).unwrap();
    }
}
