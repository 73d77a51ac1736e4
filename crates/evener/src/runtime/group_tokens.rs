//! Credentials of group members. A token is valid for the members below its URLs, a certificate for
//! members on the hosts that the certificate names.

use std::fmt;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use evener_core::farm::group::{Claims, Joiner, JoinerError, member_host, member_path, member_weight};
use evener_core::net::http::{Url, UrlError};
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;
use subtle::ConstantTimeEq;

use super::files;

/// Maximum size of the file, in bytes.
const FILE_BYTES: u64 = 1024 * 1024;
/// Minimum length of a token in characters. Shorter tokens can be guessed.
const LEAST: usize = 16;
/// Permission bits of other users than the owner. A writer bit is an error. The reader bit only
/// causes a warning: each reader can join the group.
const WRITERS: u32 = 0o022;
const READERS: u32 = 0o004;

#[derive(Debug, thiserror::Error)]
pub(crate) enum GroupTokenError {
    /// The file can't be read.
    #[error("failed to read the group's tokens from {path}: {source}", path = .path.display())]
    Io { path: PathBuf, source: io::Error },
    /// Other users can change the file.
    #[error("{path} has mode {mode:03o}, so other users can add tokens: chmod 600 it", path = .path.display())]
    Open { path: PathBuf, mode: u32 },
    #[error("{path}, line {line}: {why}", path = .path.display())]
    Line {
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        why: LineError,
    },
    #[error("{path} has no tokens: write lines such as `TOKEN http://192.0.2.31:8080`, or `TOKEN *` for all members", path = .path.display())]
    Empty { path: PathBuf },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LineError {
    #[error("a token may have letters, digits and -._~+/= only, as `openssl rand -hex 32` prints")]
    Token,
    /// No member URL follows the token.
    #[error("write the member URLs of the token after it, or * for all members")]
    NoMember,
    #[error("{0}")]
    Url(UrlError),
    /// Claims that contradict each other.
    #[error("{0}")]
    Claim(#[from] JoinerError),
    /// An unknown key, or a second weight.
    #[error("after the URLs only paths=GLOB,..., hosts=NAME,... and one weight=N are allowed")]
    Key,
}

/// Members that a credential is valid for, with the claims that they may make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenScope {
    /// All members and any claim: an operator may change the farm anyway.
    Operator,
    /// Members and claims that are allowed by at least one grant.
    Grants(Vec<Grant>),
}

/// Members of one line of a token file, or of one certificate, and the claims that they may make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) members: GrantedMembers,
    pub(crate) claims: Claims,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GrantedMembers {
    All,
    /// Members at these URLs and below them.
    Below(Vec<Url>),
    /// Members on hosts or addresses that this certificate names (RFC 6125).
    Named(CertificateDer<'static>),
}

impl TokenScope {
    /// True if the credential is valid for the member at a URL.
    pub(crate) fn is_for(&self, url: &Url) -> bool {
        match self {
            TokenScope::Operator => true,
            TokenScope::Grants(grants) => grants.iter().any(|grant| grant.is_for(url)),
        }
    }

    /// True if the credential is valid for all members.
    pub(crate) fn is_for_all(&self) -> bool {
        match self {
            TokenScope::Operator => true,
            TokenScope::Grants(grants) => grants.iter().any(|grant| grant.members == GrantedMembers::All),
        }
    }

    /// Returns the first claim of a member that none of the grants for its URL allows.
    pub(crate) fn excess(&self, member: &Joiner) -> Option<String> {
        let TokenScope::Grants(grants) = self else { return None };
        let mut beyond = None;
        for grant in grants.iter().filter(|grant| grant.is_for(&member.url)) {
            beyond = Some(grant.claims.excess(member)?);
        }
        beyond
    }

    /// Returns the hosts that the credential names one by one, sorted. A credential for all members
    /// names no host.
    pub(crate) fn named<'h>(&self, hosts: impl Iterator<Item = &'h str>) -> Vec<String> {
        let is_named = |host: &&str| match self {
            TokenScope::Operator => true,
            TokenScope::Grants(grants) => grants.iter().any(|grant| grant.names(host)),
        };
        let mut named: Vec<String> = hosts.filter(is_named).map(str::to_owned).collect();
        named.sort_unstable();
        named.dedup();
        named
    }
}

impl Grant {
    fn is_for(&self, url: &Url) -> bool {
        match &self.members {
            GrantedMembers::All => true,
            GrantedMembers::Below(prefixes) => prefixes.iter().any(|prefix| url.is_below(prefix)),
            GrantedMembers::Named(certificate) => names(certificate, url.host()),
        }
    }

    fn names(&self, host: &str) -> bool {
        match &self.members {
            GrantedMembers::All => false,
            GrantedMembers::Below(prefixes) => prefixes.iter().any(|prefix| prefix.host() == host),
            GrantedMembers::Named(certificate) => names(certificate, host),
        }
    }
}

fn names(certificate: &CertificateDer<'_>, host: &str) -> bool {
    let Ok(parsed) = ParsedCertificate::try_from(certificate) else { return false };
    ServerName::try_from(host.trim_matches(['[', ']']))
        .is_ok_and(|name| verify_server_name(&parsed, &name).is_ok())
}

#[derive(Clone)]
pub(crate) struct GroupTokens(Vec<(String, Grant)>);

/// Secrets stay out of logs.
impl fmt::Debug for GroupTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GroupTokens({} lines)", self.0.len())
    }
}

impl GroupTokens {
    /// Reads a file of lines `TOKEN URL... [paths=GLOB,...] [hosts=NAME,...] [weight=N]`. Lines
    /// that begin with `#` are comments.
    ///
    /// # Errors
    /// If the file can't be read, other users can write it, or a line is invalid.
    pub(crate) fn read(path: &Path) -> Result<GroupTokens, GroupTokenError> {
        let failed = |source| GroupTokenError::Io { path: path.to_owned(), source };
        let file = files::open_regular(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o777;
        if mode & WRITERS != 0 {
            return Err(GroupTokenError::Open { path: path.to_owned(), mode });
        }
        if mode & READERS != 0 {
            let path = path.display();
            tracing::warn!(%path, "all users of this host can read these tokens and join the group: chmod 600 the file");
        }
        let mut bytes = Vec::new();
        file.take(FILE_BYTES).read_to_end(&mut bytes).map_err(failed)?;
        let tokens = GroupTokens::parse(&String::from_utf8_lossy(&bytes));
        let tokens = tokens
            .map_err(|(line, why)| GroupTokenError::Line { path: path.to_owned(), line, why })?
            .ok_or_else(|| GroupTokenError::Empty { path: path.to_owned() })?;
        if tokens.0.iter().any(|(token, _)| token.len() < LEAST) {
            let path = path.display();
            tracing::warn!(%path, "a token of fewer than {LEAST} characters can be guessed: make tokens by `openssl rand -hex 32`");
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
            tokens.push((token.to_owned(), grant(words).map_err(|error| (number, error))?));
        }
        Ok((!tokens.is_empty()).then_some(GroupTokens(tokens)))
    }

    /// Returns the grants of a token, one per line with this token. All tokens are compared, so the
    /// duration reveals at most their lengths.
    pub(crate) fn of(&self, token: &[u8]) -> Option<TokenScope> {
        let same = self.0.iter().filter(|(known, _)| bool::from(known.as_bytes().ct_eq(token)));
        let grants: Vec<Grant> = same.map(|(_, grant)| grant.clone()).collect();
        (!grants.is_empty()).then_some(TokenScope::Grants(grants))
    }

    /// Returns the claims of each line that is valid for the member at a URL.
    pub(crate) fn claims(&self, url: &Url) -> Vec<&Claims> {
        self.0.iter().filter(|(_, grant)| grant.is_for(url)).map(|(_, grant)| &grant.claims).collect()
    }
}

/// Parses the words after a token: `URL... [paths=GLOB,...] [hosts=NAME,...] [weight=N]`, with `*`
/// for all URLs.
fn grant<'w>(words: impl Iterator<Item = &'w str>) -> Result<Grant, LineError> {
    let (mut urls, mut claims) = (Vec::new(), Claims::default());
    let (mut is_for_all, mut has_weight) = (false, false);
    for word in words {
        let key = word.split_once('=').filter(|(key, _)| key.bytes().all(|byte| byte.is_ascii_lowercase()));
        match key {
            Some(("paths", list)) => {
                let paths = list.split(',').map(member_path).collect::<Result<Vec<_>, _>>()?;
                claims.paths.extend(paths);
            }
            Some(("hosts", list)) => {
                let hosts = list.split(',').map(member_host).collect::<Result<Vec<_>, _>>()?;
                claims.hosts.extend(hosts);
            }
            Some(("weight", weight)) if !has_weight => {
                has_weight = true;
                claims.weight_max = member_weight(weight)?;
            }
            Some(_) => return Err(LineError::Key),
            None if word == "*" => is_for_all = true,
            None => urls.push(Url::parse(word).map_err(LineError::Url)?),
        }
    }
    let members = match (is_for_all, urls.is_empty()) {
        (true, _) => GrantedMembers::All,
        (false, false) => GrantedMembers::Below(urls),
        (false, true) => return Err(LineError::NoMember),
    };
    Ok(Grant { members, claims })
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
        assert!(tokens.of(b"all").unwrap().is_for_all() && !speaks.is_for_all());
        assert!(["", "ab", "abcd", "ABC", "#"].iter().all(|other| tokens.of(other.as_bytes()).is_none()));
    }

    #[test]
    fn claims_are_allowed_by_the_line_of_the_url_alone() {
        let text =
            "abc http://m1 paths=/img/*,/a? weight=5\nabc http://m2 hosts=*.shop.example\nabc http://m3\n";
        let tokens = GroupTokens::parse(text).unwrap().unwrap();
        let scope = tokens.of(b"abc").unwrap();
        for (line, excess) in [
            ("http://m1 path=/img/* path=/img/cats/?.png path=/ab weight=5", None),
            ("http://m1 path=/*", Some("path=/*")),
            ("http://m1 path=/a*", Some("path=/a*")),
            ("http://m1 path=/imgs/x", Some("path=/imgs/x")),
            ("http://m1 host=x path=/img/*", None),
            ("http://m1 host=x", Some("host=x")),
            ("http://m1 weight=6", Some("weight=6")),
            ("http://m2 host=A.shop.example host=*.b.shop.example path=/*", None),
            ("http://m2 host=shop.example", Some("host=shop.example")),
            ("http://m2 host=*.example", Some("host=*.example")),
            ("http://m2 path=/img/*", Some("path=/img/*")),
            ("http://m2 weight=2", Some("weight=2")),
            ("http://m3 weight=0", None),
            ("http://m3 path=/img/x", Some("path=/img/x")),
        ] {
            assert_eq!(scope.excess(&Joiner::parse(line).unwrap()).as_deref(), excess, "{line}");
        }
    }

    #[test]
    fn malformed_token_line_is_named() {
        let error = |text| GroupTokens::parse(text).err();
        assert_eq!(error("abc *\nabc"), Some((2, LineError::NoMember)));
        assert_eq!(error("a\"c *"), Some((1, LineError::Token)));
        assert_eq!(error("abc m1"), Some((1, LineError::Url(UrlError::Scheme))));
        assert_eq!(error("abc * path=/x"), Some((1, LineError::Key)));
        assert_eq!(error("abc * weight=1 weight=2"), Some((1, LineError::Key)));
        assert_eq!(error("abc * weight=1001"), Some((1, LineError::Claim(JoinerError::Weight))));
        assert_eq!(error("abc paths=/x"), Some((1, LineError::NoMember)));
        assert!(GroupTokens::parse("# nothing\n").unwrap().is_none());
    }
}
