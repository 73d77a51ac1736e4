//! Token by which a host joins a group, from a file that only its owner can read.
//! A line has a token, optionally followed by the URLs that the token is valid for, as in the
//! group's own file.

use std::io;
use std::path::{Path, PathBuf};

use evener_core::net::http::Url;

use super::files::{FilePermissionError, lines, secret};

#[derive(Debug, thiserror::Error)]
pub(crate) enum MemberTokenError {
    /// The file can't be read.
    #[error("failed to read the token from {path}: {source}", path = .path.display())]
    Io { path: PathBuf, source: io::Error },
    /// Other users can read or change the file.
    #[error("{path} has mode {mode:03o}, so other users can read or change the token: chmod 600 it", path = .path.display())]
    Open { path: PathBuf, mode: u32 },
    #[error("{path} has no token", path = .path.display())]
    Empty { path: PathBuf },
    #[error("{path} has no token for {url}", path = .path.display())]
    NotFor { path: PathBuf, url: Url },
}

/// Tokens of a file, each with its URLs.
#[derive(Clone)]
pub(crate) struct MemberTokens {
    path: PathBuf,
    text: String,
}

/// Reads a file of tokens.
///
/// # Errors
/// If the file can't be read or has no token, or if other users than its owner can read or write
/// it.
pub(crate) fn read(path: &Path) -> Result<MemberTokens, MemberTokenError> {
    let path = path.to_owned();
    let text = match secret(&path) {
        Ok(text) => text,
        Err(FilePermissionError::Io(source)) => return Err(MemberTokenError::Io { path, source }),
        Err(FilePermissionError::Open(mode)) => return Err(MemberTokenError::Open { path, mode }),
    };
    if lines(&text).next().is_none() {
        return Err(MemberTokenError::Empty { path });
    }
    Ok(MemberTokens { path, text })
}

impl MemberTokens {
    /// Returns the first token that is valid for the member at a URL.
    ///
    /// # Errors
    /// If no token is valid for the URL.
    pub(crate) fn speaking_for(&self, url: &Url) -> Result<&str, MemberTokenError> {
        let is_for = |word: &str| word == "*" || Url::parse(word).is_ok_and(|prefix| url.is_below(&prefix));
        let token = |line: &'_ str| {
            let (token, urls) = line.split_once(char::is_whitespace).unwrap_or((line, "*"));
            let is_sendable = token.bytes().all(|byte| byte.is_ascii_graphic());
            (is_sendable && urls.split_whitespace().any(is_for)).then_some(token.len())
        };
        let mut found = lines(&self.text).filter_map(|line| line.get(..token(line)?));
        found.next().ok_or_else(|| MemberTokenError::NotFor { path: self.path.clone(), url: url.clone() })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_is_read_where_others_cannot_and_speaks_for_its_member() {
        let path = std::env::temp_dir().join(format!("evener-member-token-{}", std::process::id()));
        fs::write(&path, "# tokens\n\nfirst http://192.0.2.32 http://192.0.2.33/a\nsecond\nthird *\n")
            .unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert!(read(&path).err().unwrap().to_string().contains("644"));
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let tokens = read(&path).unwrap();
        let of = |url: &str| tokens.speaking_for(&Url::parse(url).unwrap()).unwrap().to_owned();
        assert_eq!((of("http://192.0.2.33/a/b"), of("http://192.0.2.33")), ("first".into(), "second".into()));
        fs::write(&path, "first http://192.0.2.32\n").unwrap();
        let tokens = read(&path).unwrap();
        assert!(tokens.speaking_for(&Url::parse("http://192.0.2.31").unwrap()).is_err());
        fs::write(&path, "#\n").unwrap();
        assert!(matches!(read(&path), Err(MemberTokenError::Empty { .. })));
        fs::remove_file(&path).unwrap();
        assert!(matches!(read(&path), Err(MemberTokenError::Io { .. })));
    }
}
