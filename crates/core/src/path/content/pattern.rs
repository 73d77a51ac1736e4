//! Patterns of hosts and paths in the routes of a configuration.

use alloc::string::{String, ToString};
use core::fmt;

use super::{HOST_LABELS_MAX, HOST_MAX, PATH_DEPTH_MAX, READ_MAX, is_name_byte, is_v6_byte};

/// Host pattern: `img.example.com` matches only this host. `*.example.com` matches hosts with one
/// or more labels before `.example.com`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPattern(HostMatch);

/// Form of a host pattern. The text is in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
enum HostMatch {
    Exact(String),
    /// Suffix of a wildcard, with the leading dot: `.example.com`.
    End(String),
}

/// Path pattern: `/exact`, `/prefix/*`, or a glob. In a glob, `*` matches any number of bytes, none
/// and slashes included, and `?` matches one byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern(PathMatch);

#[derive(Clone, Debug, PartialEq, Eq)]
enum PathMatch {
    Exact(String),
    /// Prefix, with the trailing slash.
    Beginning(String),
    Glob(String),
}

/// Text by which one lookup in the hash table finds a pattern: a whole host or path, or a part (a
/// host's suffix or a path's prefix).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LiteralPattern<'a> {
    Exact(&'a str),
    Part(&'a str),
}

/// Reason why the text of a pattern is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// The host is empty.
    #[error("the host is empty: omit `host` to match any host")]
    HostMissing,
    /// The host is longer than [`HOST_MAX`].
    #[error("the host is longer than {HOST_MAX} bytes, the maximum of a DNS name")]
    HostLong,
    /// The host has a star that is not the whole first label.
    #[error("a star matches whole labels, once and at the left: write *.example.com")]
    HostStar,
    /// The host has a port.
    #[error("hosts are compared without ports: omit the port")]
    HostPort,
    /// The host has an empty label: a dot at either end, or two dots in a row.
    #[error("the host has an empty label: write it like img.example.com")]
    HostLabel,
    /// The host has a character that is invalid in hosts.
    #[error(
        "{0:?} is not allowed in a host: use letters, digits, '-' and '_'; write other letters in their xn-- form"
    )]
    HostByte(char),
    /// The path doesn't begin with a slash.
    #[error("a path must begin with '/': write /img/* for all paths below /img/")]
    PathRelative,
    /// The path is longer than [`READ_MAX`], the number of bytes read of a request.
    #[error("the path is longer than {READ_MAX} bytes")]
    PathLong,
    /// The path has a `%`: requests are decoded before they are compared.
    #[error("paths are compared after decoding: write the character instead of its '%' code")]
    PathEncoded,
    /// The path has an empty, `.` or `..` segment, which normalised paths never have.
    #[error(
        "paths are compared after normalisation, without '//', '/./' and '/../': this pattern matches none"
    )]
    PathAbnormal,
    /// The path has a control character.
    #[error("{0:?} is not allowed in a path")]
    PathByte(char),
}

impl HostPattern {
    /// Parses a host pattern. Upper and lower case are the same.
    pub fn parse(text: &str) -> Result<HostPattern, PatternError> {
        if text.is_empty() {
            return Err(PatternError::HostMissing);
        }
        if text.len() > HOST_MAX {
            return Err(PatternError::HostLong);
        }
        if let Some(address) = text.strip_prefix('[') {
            let Some(address) = address.strip_suffix(']') else {
                let port = address.contains("]:");
                return Err(if port { PatternError::HostPort } else { PatternError::HostByte('[') });
            };
            return match address.chars().find(|char| !is_ascii(*char, is_v6_byte)) {
                None if address.is_empty() => Err(PatternError::HostMissing),
                None => Ok(HostPattern(HostMatch::Exact(text.to_ascii_lowercase()))),
                Some(char) => Err(PatternError::HostByte(char)),
            };
        }
        let (wild, name) = match text.strip_prefix("*.") {
            Some(name) => (true, name),
            None => (false, text),
        };
        match name.chars().find(|char| !is_ascii(*char, is_name_byte)) {
            None => {}
            Some('*') => return Err(PatternError::HostStar),
            Some(':') => return Err(PatternError::HostPort),
            Some(char) => return Err(PatternError::HostByte(char)),
        }
        if name.split('.').any(str::is_empty) {
            return Err(PatternError::HostLabel);
        }
        let text = text.to_ascii_lowercase();
        Ok(HostPattern(match text.strip_prefix('*') {
            Some(end) if wild => HostMatch::End(end.to_string()),
            _ => HostMatch::Exact(text),
        }))
    }

    /// True if the pattern matches a host. Upper and lower case are the same.
    pub fn matches(&self, host: &[u8]) -> bool {
        match &self.0 {
            HostMatch::Exact(name) => host.eq_ignore_ascii_case(name.as_bytes()),
            HostMatch::End(end) => host
                .len()
                .checked_sub(end.len())
                .filter(|at| *at > 0)
                .and_then(|at| host.get(at..))
                .is_some_and(|tail| tail.eq_ignore_ascii_case(end.as_bytes())),
        }
    }

    /// True if the pattern matches every host that another pattern matches.
    pub fn covers(&self, other: &HostPattern) -> bool {
        match (&self.0, &other.0) {
            (_, HostMatch::Exact(name)) => self.matches(name.as_bytes()),
            (HostMatch::End(end), HostMatch::End(other)) => other.ends_with(end.as_str()),
            (HostMatch::Exact(_), HostMatch::End(_)) => false,
        }
    }

    /// Returns the text for the hash lookup; `None` for a wildcard with more than
    /// [`HOST_LABELS_MAX`] labels.
    pub(super) fn simple(&self) -> Option<LiteralPattern<'_>> {
        match &self.0 {
            HostMatch::Exact(name) => Some(LiteralPattern::Exact(name)),
            HostMatch::End(end) => (count(end, b'.') <= HOST_LABELS_MAX).then_some(LiteralPattern::Part(end)),
        }
    }
}

impl PathPattern {
    /// Parses a path pattern.
    pub fn parse(text: &str) -> Result<PathPattern, PatternError> {
        if !text.starts_with('/') {
            return Err(PatternError::PathRelative);
        }
        if text.len() > READ_MAX {
            return Err(PatternError::PathLong);
        }
        if text.contains('%') {
            return Err(PatternError::PathEncoded);
        }
        if let Some(char) = text.chars().find(|char| char.is_control()) {
            return Err(PatternError::PathByte(char));
        }
        if text.contains("//") || text.split('/').any(|segment| matches!(segment, "." | "..")) {
            return Err(PatternError::PathAbnormal);
        }
        let wild = |text: &str| text.contains(['*', '?']);
        Ok(PathPattern(match text.strip_suffix('*') {
            Some(beginning) if beginning.ends_with('/') && !wild(beginning) => {
                PathMatch::Beginning(beginning.to_string())
            }
            _ if wild(text) => PathMatch::Glob(text.to_string()),
            _ => PathMatch::Exact(text.to_string()),
        }))
    }

    /// True if the pattern matches a path without its query.
    pub fn matches(&self, path: &[u8]) -> bool {
        match &self.0 {
            PathMatch::Exact(whole) => path == whole.as_bytes(),
            PathMatch::Beginning(beginning) => path.starts_with(beginning.as_bytes()),
            PathMatch::Glob(glob) => {
                globs(glob.as_bytes(), path, |wanted, byte| wanted == b'?' || wanted == byte)
            }
        }
    }

    /// True if the pattern matches every path that another pattern matches. May be false even so,
    /// since the patterns are compared character by character: only a star covers a star.
    pub fn covers(&self, other: &PathPattern) -> bool {
        let (wide, narrow) = (self.to_string(), other.to_string());
        globs(wide.as_bytes(), narrow.as_bytes(), |wanted, byte| {
            wanted == byte || (wanted == b'?' && byte != b'*')
        })
    }

    /// Returns the text for the hash lookup; `None` for a glob, and for a prefix with more than
    /// [`PATH_DEPTH_MAX`] slashes.
    pub(super) fn simple(&self) -> Option<LiteralPattern<'_>> {
        match &self.0 {
            PathMatch::Exact(whole) => Some(LiteralPattern::Exact(whole)),
            PathMatch::Beginning(beginning) => {
                (count(beginning, b'/') <= PATH_DEPTH_MAX).then_some(LiteralPattern::Part(beginning))
            }
            PathMatch::Glob(_) => None,
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            HostMatch::Exact(name) => f.write_str(name),
            HostMatch::End(end) => write!(f, "*{end}"),
        }
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            PathMatch::Exact(text) | PathMatch::Glob(text) => f.write_str(text),
            PathMatch::Beginning(beginning) => write!(f, "{beginning}*"),
        }
    }
}

fn is_ascii(char: char, kind: fn(u8) -> bool) -> bool {
    u8::try_from(char).is_ok_and(kind)
}

fn count(text: &str, byte: u8) -> usize {
    text.bytes().filter(|b| *b == byte).count()
}

/// True if a text matches a glob. `is_same` compares a byte of the glob with a byte of the text. A
/// star first matches no byte. If the rest of the glob fails to match, the last star matches one
/// more byte. Earlier stars never need to match more bytes, so the number of steps is at most the
/// product of both lengths.
fn globs(glob: &[u8], text: &[u8], is_same: impl Fn(u8, u8) -> bool) -> bool {
    let (mut in_glob, mut in_text) = (0, 0);
    // Position in the glob after the last star, and the end of the text that this star matches.
    let mut star = None;
    while let Some(byte) = text.get(in_text) {
        match glob.get(in_glob) {
            Some(b'*') => {
                in_glob += 1;
                star = Some((in_glob, in_text));
                continue;
            }
            Some(wanted) if is_same(*wanted, *byte) => {
                in_glob += 1;
                in_text += 1;
                continue;
            }
            _ => {}
        }
        let Some((behind, end)) = star else {
            return false;
        };
        star = Some((behind, end + 1));
        (in_glob, in_text) = (behind, end + 1);
    }
    glob.iter().skip(in_glob).all(|byte| *byte == b'*')
}
