//! Secrets of DNS cookies that several servers share, or that survive a restart (RFC 9018, section
//! 5). The file has one secret per line, in the format of BIND, Knot and NSD.

use std::io;
use std::path::{Path, PathBuf};

use super::files::{self, FilePermissionError};

/// A secret, in octets.
pub(crate) type CookieSecret = [u8; 16];

/// Maximum number of secrets: the current secret, and older secrets that are still accepted. Each
/// secret costs one hash per query with a cookie.
const SECRETS_MAX: usize = 4;

#[derive(Debug, thiserror::Error)]
pub(crate) enum CookieSecretError {
    /// The file can't be read.
    #[error("failed to read the cookie secret from {path}: {source}", path = .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "{path} has mode {mode:03o}, so other users can read or change the cookie secret: chmod 600 it, or 640 for a group that may read it", path = .path.display()
    )]
    Open { path: PathBuf, mode: u32 },
    #[error(
        "{path} has no cookie secrets: write one line of 32 hex digits (`openssl rand -hex 16`), followed by up to {} earlier secrets, one per line", SECRETS_MAX - 1, path = .path.display()
    )]
    Text { path: PathBuf },
}

/// Reads a file of secrets. The first secret makes cookies, and all secrets verify them. Lines that
/// begin with `#` are comments.
///
/// # Errors
/// If the file has no secret, or if other users than its owner can read or write it.
pub(crate) fn read(path: &Path) -> Result<Vec<CookieSecret>, CookieSecretError> {
    let refused = |why| match why {
        FilePermissionError::Io(source) => CookieSecretError::Io { path: path.to_owned(), source },
        FilePermissionError::Open(mode) => CookieSecretError::Open { path: path.to_owned(), mode },
    };
    let text = files::secret(path).map_err(refused)?;
    parse(&text).ok_or(CookieSecretError::Text { path: path.to_owned() })
}

fn parse(text: &str) -> Option<Vec<CookieSecret>> {
    let secrets: Vec<CookieSecret> = files::lines(text).map(secret).collect::<Option<_>>()?;
    (1..=SECRETS_MAX).contains(&secrets.len()).then_some(secrets)
}

fn secret(line: &str) -> Option<CookieSecret> {
    let digits =
        line.len() == 2 * size_of::<CookieSecret>() && line.bytes().all(|byte| byte.is_ascii_hexdigit());
    u128::from_str_radix(line, 16).ok().filter(|_| digits).map(u128::to_be_bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn secrets_are_hex_digits_a_line_each() {
        let (new, old) = ("e5e973e5a6b2a43f48e7dc849e37bfcf", "DD3BDF9344B678B185A6F5CB60FCA715");
        let read = parse(&format!("# new\n{new}\n\n {old} \n")).unwrap();
        assert_eq!((read.len(), read[0][0], read[1][15]), (2, 0xe5, 0x15));
        for wrong in ["", "# none\n", &new[1..], &format!("{new}0"), &format!("+{}", &new[1..]), "secret"] {
            assert!(parse(wrong).is_none(), "{wrong:?}");
        }
        assert!(parse(&format!("{new}\n").repeat(SECRETS_MAX + 1)).is_none());
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let path = std::env::temp_dir().join(format!("evener-cookie-{}", std::process::id()));
        fs::write(&path, "e5e973e5a6b2a43f48e7dc849e37bfcf\n").unwrap();
        for (mode, good) in [(0o600, true), (0o640, true), (0o644, false), (0o660, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read(&path).is_ok(), good, "{mode:o}");
        }
        fs::remove_file(&path).unwrap();
        assert!(matches!(read(&path), Err(CookieSecretError::Io { .. })));
    }
}
