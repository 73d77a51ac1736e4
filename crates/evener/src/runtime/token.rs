//! The tokens that let others than this host's own users look at the farm: a file, a token a line.

use std::io;
use std::path::{Path, PathBuf};

use subtle::ConstantTimeEq;

use super::files::{self, FilePermissionError};

/// Shorter ones can be guessed, in characters.
const LEAST: usize = 16;

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file can't be read.
    #[error("the admin tokens can't be read from {path}: {source}", path = .path.display())]
    Io {
        /// As [admin] token_file names it.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Others may read or change it.
    #[error(
        "{path} has mode {mode:03o}, so others can read or change the admin tokens: chmod 600 it, or 640 for a group \
         that may read it", path = .path.display()
    )]
    Open {
        /// As [admin] token_file names it.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// There is none in it, or something else.
    #[error(
        "{path} has no admin tokens: write one a line, at least {LEAST} letters, digits or -._~+/=, as \
         `openssl rand -hex 32` makes them", path = .path.display()
    )]
    Text {
        /// As [admin] token_file names it.
        path: PathBuf,
    },
}

/// Tokens of which any will do, so that they can be changed one after the other.
#[derive(Clone)]
pub(crate) struct Tokens(Vec<String>);

impl Tokens {
    /// Reads a file. Lines that begin with `#` are comments.
    ///
    /// # Errors
    /// When there is no token, or others than its owner could have read or written it.
    pub(crate) fn read(path: &Path) -> Result<Tokens, TokenError> {
        let text = files::secret(path).map_err(|why| match why {
            FilePermissionError::Io(source) => TokenError::Io { path: path.to_owned(), source },
            FilePermissionError::Open(mode) => TokenError::Open { path: path.to_owned(), mode },
        })?;
        Tokens::parse(&text).ok_or(TokenError::Text { path: path.to_owned() })
    }

    fn parse(text: &str) -> Option<Tokens> {
        let tokens: Vec<String> = files::lines(text).map(str::to_owned).collect();
        let good = !tokens.is_empty() && tokens.iter().all(|token| is_token(token));
        good.then_some(Tokens(tokens))
    }

    /// Whether this is one of them. How long that takes tells at most how long they are.
    pub(crate) fn have(&self, token: &[u8]) -> bool {
        let same = self.0.iter().map(|known| known.as_bytes().ct_eq(token));
        same.fold(subtle::Choice::from(0), |any, one| any | one).into()
    }
}

/// RFC 6750, section 2.1: b64token.
fn is_token(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    text.len() >= LEAST && text.bytes().all(allowed)
}

/// Whether tokens can be had from a file, for who only checks.
///
/// # Errors
/// As the daemon would say it.
pub fn check(path: &Path) -> Result<(), TokenError> {
    Tokens::read(path).map(drop)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn any_token_of_file_is_accepted_and_others_refused() {
        let tokens = Tokens::parse("# for Prometheus\n0123456789abcdef\n\n  fedcba9876543210==  \n").unwrap();
        assert!(tokens.have(b"0123456789abcdef") && tokens.have(b"fedcba9876543210=="));
        for other in ["", "0123456789abcde", "0123456789abcdef0", "# for Prometheus", "0123456789abcdeF"] {
            assert!(!tokens.have(other.as_bytes()), "{other:?}");
        }
        for text in ["", "# nothing\n", "short", "0123456789abcdef with words", "0123456789abcdef\nshort"] {
            assert!(Tokens::parse(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let path = std::env::temp_dir().join(format!("evener-token-{}", std::process::id()));
        fs::write(&path, "0123456789abcdef\n").unwrap();
        for (mode, good) in [(0o600, true), (0o640, true), (0o400, true), (0o644, false), (0o660, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let read = check(&path);
            assert_eq!(read.is_ok(), good, "{mode:o}");
            if let Err(error) = read {
                assert!(error.to_string().contains(&format!("mode {mode:03o}")), "{error}");
            }
        }
        fs::remove_file(&path).unwrap();
        assert!(matches!(check(&path), Err(TokenError::Io { .. })));
    }
}
