//! Description of a member, which the member itself sends when it joins. It is a line of text,
//! which is also the format of the saved record.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use crate::net::http::{Url, UrlError};
use crate::path::content::{HostPattern, PathPattern, PatternError};

/// Maximum weight that a member may request, so that a single member can't outweigh a whole group.
pub const WEIGHT_MAX: u16 = 1_000;
/// Maximum number of own paths of one member, and of own hosts.
pub const PATTERNS_MAX: usize = 16;

/// Description of a member, sent by the member itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joiner {
    /// URL that clients are redirected to.
    pub url: Url,
    /// Share of requests relative to the other members; 0 drains the member.
    pub weight: u16,
    /// True if clients must not learn the URL.
    pub anonymous: bool,
    /// URL for load queries, if it isn't the member's own URL.
    pub control: Option<Url>,
    /// Own paths of the member: only members with the same own path serve a path.
    pub paths: Vec<PathPattern>,
    /// Own hosts of the member: only members with the same own host serve a host. If `paths` is not
    /// empty either, the member claims these paths of these hosts.
    pub hosts: Vec<HostPattern>,
}

/// Error in a member's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinerError {
    #[error("the line is empty: a member's line begins with its URL")]
    Empty,
    /// No URL at the start.
    #[error("the line must begin with a member's URL, such as http://192.0.2.31:8080")]
    NoUrl,
    #[error("{0}")]
    Url(UrlError),
    #[error("control: {0}")]
    Control(UrlError),
    #[error("weight is a whole number from 0 to {WEIGHT_MAX}")]
    Weight,
    #[error("{0}")]
    Pattern(PatternError),
    /// The line has more than [`PATTERNS_MAX`] paths or hosts.
    #[error("a member has at most {PATTERNS_MAX} paths and {PATTERNS_MAX} hosts of its own")]
    Patterns,
    /// A repeated key that may occur only once.
    #[error("weight, anonymous or control is given twice: a member's line has each at most once")]
    Twice,
    #[error("after the URL only weight=N, anonymous, control=URL, path=GLOB and host=NAME are allowed")]
    Unknown,
}

impl JoinerError {
    /// True if the line's syntax is correct and only a value is invalid.
    pub fn is_value(self) -> bool {
        !matches!(self, JoinerError::Empty | JoinerError::NoUrl | JoinerError::Twice | JoinerError::Unknown)
    }
}

impl Joiner {
    /// Returns the description of a member with this URL and default values.
    pub fn new(url: Url) -> Joiner {
        Joiner { url, weight: 1, anonymous: false, control: None, paths: Vec::new(), hosts: Vec::new() }
    }

    /// Parses `URL [weight=N] [anonymous] [control=URL] [path=GLOB] [host=NAME]`; `path` and `host`
    /// may repeat.
    ///
    /// # Errors
    /// The first error of the line.
    pub fn parse(line: &str) -> Result<Joiner, JoinerError> {
        let mut words = line.split_ascii_whitespace();
        let url = words.next().ok_or(JoinerError::Empty)?;
        let mut joiner = Joiner::new(member_url(url)?);
        let mut seen = (false, false, false);
        for word in words {
            match word.split_once('=').unwrap_or((word, "")) {
                ("weight", value) => {
                    once(&mut seen.0)?;
                    joiner.weight = member_weight(value)?;
                }
                ("anonymous", "") if !word.contains('=') => {
                    once(&mut seen.1)?;
                    joiner.anonymous = true;
                }
                ("control", value) => {
                    once(&mut seen.2)?;
                    joiner.control = Some(Url::parse(value).map_err(JoinerError::Control)?);
                }
                ("path", value) => joiner.add_path(value)?,
                ("host", value) => joiner.add_host(value)?,
                _ => return Err(JoinerError::Unknown),
            }
        }
        Ok(joiner)
    }

    /// Adds an own path, unless the member has it already.
    ///
    /// # Errors
    /// The path is malformed, or the member has [`PATTERNS_MAX`] paths.
    pub fn add_path(&mut self, text: &str) -> Result<(), JoinerError> {
        add(&mut self.paths, member_path(text)?)
    }

    /// Adds an own host, unless the member has it already.
    ///
    /// # Errors
    /// The host is malformed, or the member has [`PATTERNS_MAX`] hosts.
    pub fn add_host(&mut self, text: &str) -> Result<(), JoinerError> {
        add(&mut self.hosts, member_host(text)?)
    }

    /// Returns all pairs of own hosts and paths. `None` stands for any host or any path.
    pub(super) fn pairs(&self) -> Vec<(Option<&HostPattern>, Option<&PathPattern>)> {
        let paths = or_any(&self.paths);
        let pairs =
            or_any(&self.hosts).into_iter().flat_map(|host| paths.iter().map(move |path| (host, *path)));
        pairs.filter(|pair| *pair != (None, None)).collect()
    }
}

/// Parses an own path of a member.
///
/// # Errors
/// The path is malformed.
pub fn member_path(text: &str) -> Result<PathPattern, JoinerError> {
    let path = PathPattern::parse(text).map_err(JoinerError::Pattern)?;
    match text.chars().find(|char| char.is_whitespace()) {
        Some(space) => Err(JoinerError::Pattern(PatternError::PathByte(space))),
        None => Ok(path),
    }
}

/// Parses an own host of a member.
///
/// # Errors
/// The host is malformed.
pub fn member_host(text: &str) -> Result<HostPattern, JoinerError> {
    HostPattern::parse(text).map_err(JoinerError::Pattern)
}

/// Returns the entries of a list, or a single `None` if the list is empty.
pub(super) fn or_any<T>(list: &[T]) -> Vec<Option<&T>> {
    if list.is_empty() { alloc::vec![None] } else { list.iter().map(Some).collect() }
}

/// Parses the URL that identifies a member.
///
/// # Errors
/// The text is not a valid URL.
pub fn member_url(text: &str) -> Result<Url, JoinerError> {
    if text.contains("://") { Url::parse(text).map_err(JoinerError::Url) } else { Err(JoinerError::NoUrl) }
}

/// Parses a member's weight.
///
/// # Errors
/// The text is not a number, or the number exceeds [`WEIGHT_MAX`].
pub fn member_weight(text: &str) -> Result<u16, JoinerError> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let weight = text.parse().ok().filter(|weight| digits && *weight <= WEIGHT_MAX);
    weight.ok_or(JoinerError::Weight)
}

fn once(seen: &mut bool) -> Result<(), JoinerError> {
    if core::mem::replace(seen, true) { Err(JoinerError::Twice) } else { Ok(()) }
}

fn add<T: PartialEq>(list: &mut Vec<T>, one: T) -> Result<(), JoinerError> {
    if list.contains(&one) {
        return Ok(());
    }
    if list.len() >= PATTERNS_MAX {
        return Err(JoinerError::Patterns);
    }
    list.push(one);
    Ok(())
}

impl fmt::Display for Joiner {
    /// Writes the line in the format that [`Joiner::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.url.as_str())?;
        if self.weight != 1 {
            write!(f, " weight={}", self.weight)?;
        }
        if self.anonymous {
            f.write_str(" anonymous")?;
        }
        if let Some(control) = &self.control {
            write!(f, " control={control}")?;
        }
        self.paths.iter().try_for_each(|path| write!(f, " path={path}"))?;
        self.hosts.iter().try_for_each(|host| write!(f, " host={host}"))
    }
}

/// Returns the host and the path of an announced route as texts, by which routes are sorted. An
/// empty text stands for any host or any path.
pub(super) fn pattern_text(host: Option<&HostPattern>, path: Option<&PathPattern>) -> (String, String) {
    (host.map(ToString::to_string).unwrap_or_default(), path.map(ToString::to_string).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn joiner_line_parses_every_key() {
        let line = "HTTP://M1.example:80/ weight=3 anonymous control=http://m1.example:9184 path=/img/* path=/a host=*.example.com";
        let joiner = Joiner::parse(line).unwrap();
        let normal = "http://m1.example weight=3 anonymous control=http://m1.example:9184 path=/img/* path=/a host=*.example.com";
        assert_eq!(joiner.to_string(), normal);
        assert_eq!(Joiner::parse("http://m1").unwrap(), Joiner::new(Url::parse("http://m1").unwrap()));
    }

    #[test]
    fn impossible_values_differ_from_malformed_lines() {
        let cases = [
            ("", JoinerError::Empty),
            ("http://m1 http://m2", JoinerError::Unknown),
            ("http://m1 wait=3", JoinerError::Unknown),
            ("http://m1 anonymous=yes", JoinerError::Unknown),
            ("http://m1 weight=1 weight=2", JoinerError::Twice),
            ("http://m1 weight=-1", JoinerError::Weight),
            ("http://m1 weight=", JoinerError::Weight),
            ("http://m1 weight=1001", JoinerError::Weight),
            ("m1", JoinerError::NoUrl),
            ("ftp://m1", JoinerError::Url(UrlError::Scheme)),
            ("http://m1 control=http://me@m1", JoinerError::Control(UrlError::Credentials)),
            ("http://m1 path=img", JoinerError::Pattern(PatternError::PathRelative)),
            ("http://m1 host=", JoinerError::Pattern(PatternError::HostMissing)),
        ];
        for (line, error) in cases {
            assert_eq!(Joiner::parse(line), Err(error), "{line:?}");
        }
        let many: String = (0..=PATTERNS_MAX).map(|number| format!(" path=/{number}")).collect();
        assert_eq!(Joiner::parse(&format!("http://m1{many}")), Err(JoinerError::Patterns));
        assert!(JoinerError::Weight.is_value() && !JoinerError::Unknown.is_value());
    }

    proptest! {
        #[test]
        fn parsed_line_round_trips(line in "http://m[0-9]( weight=[0-9]{1,3}| anonymous| path=/[a-z*é]{0,5}| host=[a-z.*]{1,6}){0,4}|\\PC*") {
            if let Ok(joiner) = Joiner::parse(&line) {
                prop_assert_eq!(Joiner::parse(&joiner.to_string()), Ok(joiner));
            }
        }
    }
}
