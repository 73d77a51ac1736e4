//! Members' credentials: a token of the group speaks for the members below its URLs, a certificate
//! for those on the hosts that it names.

use std::fmt;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use evener_core::net::http::{Url, UrlError};
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;
use subtle::ConstantTimeEq;

use super::files;

/// A file with more is none of tokens.
const FILE_BYTES: u64 = 1024 * 1024;
/// Shorter ones can be guessed, in characters.
const LEAST: usize = 16;
/// Nobody but the owner may write the file, and who may read it can join.
const WRITERS: u32 = 0o022;
const READERS: u32 = 0o004;

/// Why there are no tokens.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GroupTokenError {
    /// The file can't be read.
    #[error("the group's tokens can't be read from {path}: {source}", path = .path.display())]
    Io {
        /// As [service.group] token_file names it.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Others may change it.
    #[error("{path} has mode {mode:03o}, so others can write tokens into it: chmod 600 it", path = .path.display())]
    Open {
        /// As [service.group] token_file names it.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A line that is none.
    #[error("{path}, line {line}: {why}", path = .path.display())]
    Line {
        /// As [service.group] token_file names it.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// The error in it.
        why: LineError,
    },
    /// There is none in it.
    #[error("{path} has no tokens: write lines such as `TOKEN http://192.0.2.31:8080`, or `TOKEN *` for all members", path = .path.display())]
    Empty {
        /// As [service.group] token_file names it.
        path: PathBuf,
    },
}

/// The error in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LineError {
    /// The token.
    #[error("a token has letters, digits and -._~+/= only, as `openssl rand -hex 32` makes them")]
    Token,
    /// Nothing behind it.
    #[error("behind the token stand the URLs that it is for, or * for all members")]
    NoMember,
    /// One of the URLs.
    #[error("{0}")]
    Url(UrlError),
}

/// The members that a credential speaks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenScope {
    /// All: who may change the farm anyway.
    Operator,
    /// All.
    ForAll,
    /// Those at these URLs, and below them.
    Below(Vec<Url>),
    /// Those on hosts that this certificate names (RFC 6125; addresses as well).
    Named(CertificateDer<'static>),
}

impl TokenScope {
    /// Whether it speaks for the member at a URL.
    pub(crate) fn is_for(&self, url: &Url) -> bool {
        match self {
            TokenScope::Operator | TokenScope::ForAll => true,
            TokenScope::Below(prefixes) => prefixes.iter().any(|prefix| url.is_below(prefix)),
            TokenScope::Named(certificate) => names(certificate, url.host()),
        }
    }

    /// Those of these hosts that it names, each by itself: a credential for all members names none.
    pub(crate) fn named<'h>(&self, hosts: impl Iterator<Item = &'h str>) -> Vec<String> {
        let is_named = |host: &&str| match self {
            TokenScope::Operator => true,
            TokenScope::ForAll => false,
            TokenScope::Below(prefixes) => prefixes.iter().any(|prefix| prefix.host() == *host),
            TokenScope::Named(certificate) => names(certificate, host),
        };
        let mut named: Vec<String> = hosts.filter(is_named).map(str::to_owned).collect();
        named.sort_unstable();
        named.dedup();
        named
    }
}

fn names(certificate: &CertificateDer<'_>, host: &str) -> bool {
    let Ok(parsed) = ParsedCertificate::try_from(certificate) else { return false };
    ServerName::try_from(host.trim_matches(['[', ']']))
        .is_ok_and(|name| verify_server_name(&parsed, &name).is_ok())
}

/// All tokens of a group.
#[derive(Clone)]
pub(crate) struct GroupTokens(Vec<(String, TokenScope)>);

/// Secrets stay out of logs.
impl fmt::Debug for GroupTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GroupTokens({} lines)", self.0.len())
    }
}

impl GroupTokens {
    /// Reads a file of lines `TOKEN URL...`. Lines that begin with `#` are comments.
    ///
    /// # Errors
    /// When it can't be read, others can write it, or a line is none.
    pub(crate) fn read(path: &Path) -> Result<GroupTokens, GroupTokenError> {
        let failed = |source| GroupTokenError::Io { path: path.to_owned(), source };
        let file = files::open_regular(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o777;
        if mode & WRITERS != 0 {
            return Err(GroupTokenError::Open { path: path.to_owned(), mode });
        }
        if mode & READERS != 0 {
            let path = path.display();
            tracing::warn!(%path, "everybody on this host can read these tokens, and join the group by them: chmod 600 it");
        }
        let mut bytes = Vec::new();
        file.take(FILE_BYTES).read_to_end(&mut bytes).map_err(failed)?;
        let tokens = GroupTokens::parse(&String::from_utf8_lossy(&bytes));
        let tokens = tokens
            .map_err(|(line, why)| GroupTokenError::Line { path: path.to_owned(), line, why })?
            .ok_or_else(|| GroupTokenError::Empty { path: path.to_owned() })?;
        if tokens.0.iter().any(|(token, _)| token.len() < LEAST) {
            let path = path.display();
            tracing::warn!(%path, "a token of fewer than {LEAST} characters can be guessed: make them by `openssl rand -hex 32`");
        }
        Ok(tokens)
    }

    fn parse(text: &str) -> Result<Option<GroupTokens>, (usize, LineError)> {
        let mut tokens = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let mut words = line.split_whitespace();
            let Some(token) = words.next().filter(|token| !token.starts_with('#')) else { continue };
            if !token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte)) {
                return Err((number, LineError::Token));
            }
            let words: Vec<&str> = words.collect();
            let speaks = match words.as_slice() {
                [] => return Err((number, LineError::NoMember)),
                words if words.contains(&"*") => TokenScope::ForAll,
                words => {
                    let urls = words.iter().map(|word| Url::parse(word)).collect::<Result<_, _>>();
                    TokenScope::Below(urls.map_err(|error| (number, LineError::Url(error)))?)
                }
            };
            tokens.push((token.to_owned(), speaks));
        }
        Ok((!tokens.is_empty()).then_some(GroupTokens(tokens)))
    }

    /// The members that a token speaks for. How long that takes tells at most how long tokens are.
    pub(crate) fn of(&self, token: &[u8]) -> Option<TokenScope> {
        let same = self.0.iter().filter(|(known, _)| bool::from(known.as_bytes().ct_eq(token)));
        // All of them are compared, whichever it is; one that stands in several lines speaks for
        // all of these.
        same.map(|(_, speaks)| speaks.clone()).collect::<Vec<_>>().into_iter().reduce(|one, other| {
            match (one, other) {
                (TokenScope::Below(mut one), TokenScope::Below(other)) => {
                    one.extend(other);
                    TokenScope::Below(one)
                }
                _ => TokenScope::ForAll,
            }
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn token_covers_urls_below_its_prefixes() {
        let text = "# shop\nabc http://192.0.2.31:8080 http://m2/a/\n\nall *\nabc https://m3\n";
        let tokens = GroupTokens::parse(text).unwrap().unwrap();
        let speaks = tokens.of(b"abc").unwrap();
        for (at, good) in [
            ("http://192.0.2.31:8080", true),
            ("http://192.0.2.31:8080/x", true),
            ("http://192.0.2.31:80", false),
            ("http://192.0.2.31", false),
            ("http://m2/a/b", true),
            ("http://m2/ab", false),
            ("https://m3", true),
        ] {
            assert_eq!(speaks.is_for(&url(at)), good, "{at}");
        }
        assert_eq!(tokens.of(b"all"), Some(TokenScope::ForAll));
        assert!(["", "ab", "abcd", "ABC", "#"].iter().all(|other| tokens.of(other.as_bytes()).is_none()));
    }

    #[test]
    fn malformed_token_line_is_named() {
        let error = |text| GroupTokens::parse(text).err();
        assert_eq!(error("abc *\nabc"), Some((2, LineError::NoMember)));
        assert_eq!(error("a\"c *"), Some((1, LineError::Token)));
        assert_eq!(error("abc m1"), Some((1, LineError::Url(UrlError::Scheme))));
        assert!(GroupTokens::parse("# nothing\n").unwrap().is_none());
    }
}
