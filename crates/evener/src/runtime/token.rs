//! Tokens for remote access to the admin interface. The file has one token per line.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use subtle::ConstantTimeEq;

use super::files::{self, FilePermissionError};

/// Minimum length of a token in characters. Shorter tokens can be guessed.
const LEAST: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file can't be read.
    #[error("failed to read the admin tokens from {path}: {source}", path = .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "{path} has mode {mode:03o}, so other users can read or change the admin tokens: chmod 600 it, or 640 for a group that may read it", path = .path.display()
    )]
    Open { path: PathBuf, mode: u32 },
    /// The file has no token, or an invalid line.
    #[error(
        "{path} has no admin tokens: write one per line, of at least {LEAST} letters, digits or -._~+/= (`openssl rand -hex 32`), optionally followed by a role (read, operate or admin) and a name", path = .path.display()
    )]
    Text { path: PathBuf },
}

/// Rights of a token's holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// May read the state of the farm.
    Read,
    /// Like `Read`, and may trace clients, change weights and select which servers get sessions.
    Operate,
    Admin,
}

impl Role {
    const ALL: [Role; 3] = [Role::Read, Role::Operate, Role::Admin];

    /// Name in files and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Read => "read",
            Role::Operate => "operate",
            Role::Admin => "admin",
        }
    }

    pub(crate) fn of(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// Role of a token, and the name of its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) role: Role,
    pub(crate) name: String,
}

impl Holder {
    /// Parses the words after a token: a role and a name. Both are optional.
    pub(crate) fn of<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<Holder> {
        let role = words.next().map_or(Some(Role::Read), Role::of)?;
        let name = words.next().unwrap_or("somebody with a token").to_owned();
        words.next().is_none().then_some(Holder { role, name })
    }
}

/// Tokens with their holders. Several tokens allow replacing them one by one.
#[derive(Clone)]
pub(crate) struct Tokens(Vec<(String, Holder)>);

/// Hides the tokens in logs.
impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokens({} lines)", self.0.len())
    }
}

impl Tokens {
    /// Reads a file of lines `TOKEN [ROLE [NAME]]`. Lines that begin with `#` are comments.
    ///
    /// # Errors
    /// If the file has no token, or if other users than its owner could have read or written it.
    pub(crate) fn read(path: &Path) -> Result<Tokens, TokenError> {
        let text = files::secret(path).map_err(|why| match why {
            FilePermissionError::Io(source) => TokenError::Io { path: path.to_owned(), source },
            FilePermissionError::Open(mode) => TokenError::Open { path: path.to_owned(), mode },
        })?;
        Tokens::parse(&text).ok_or(TokenError::Text { path: path.to_owned() })
    }

    fn parse(text: &str) -> Option<Tokens> {
        let token = |line: &str| {
            let mut words = line.split_ascii_whitespace();
            let token = words.next().filter(|token| is_token(token))?.to_owned();
            Some((token, Holder::of(words)?))
        };
        let tokens: Option<Vec<_>> = files::lines(text).map(token).collect();
        tokens.filter(|tokens| !tokens.is_empty()).map(Tokens)
    }

    /// Returns the holder of this token. All tokens are compared, so the duration reveals at most
    /// their lengths.
    pub(crate) fn holder(&self, token: &[u8]) -> Option<&Holder> {
        let mut found = None;
        for (known, holder) in &self.0 {
            if bool::from(known.as_bytes().ct_eq(token)) {
                found = Some(holder);
            }
        }
        found
    }
}

/// RFC 6750, section 2.1: b64token.
fn is_token(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    text.len() >= LEAST && text.bytes().all(allowed)
}

/// Checks a file of tokens.
///
/// # Errors
/// As when the daemon reads the file.
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
        let text = "# for Prometheus\n0123456789abcdef\n\n  fedcba9876543210==  operate \n\
                    0000000000000000 admin alice\n";
        let tokens = Tokens::parse(text).unwrap();
        let holder = |token: &str| tokens.holder(token.as_bytes()).map(|of| (of.role, of.name.as_str()));
        assert_eq!(holder("0123456789abcdef"), Some((Role::Read, "somebody with a token")));
        assert_eq!(holder("fedcba9876543210=="), Some((Role::Operate, "somebody with a token")));
        assert_eq!(holder("0000000000000000"), Some((Role::Admin, "alice")));
        for other in ["", "0123456789abcde", "0123456789abcdef0", "# for Prometheus", "0123456789abcdeF"] {
            assert_eq!(holder(other), None, "{other:?}");
        }
        let bad = ["0123456789abcdef root", "0123456789abcdef admin alice b", "0123456789abcdef\nshort"];
        for text in ["", "# nothing\n", "short"].into_iter().chain(bad) {
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
