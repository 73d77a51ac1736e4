//! Converts names of virtual hosts and locations to patterns of routes.

use std::cmp::Reverse;

use evener_core::path::content::{HostPattern, PathPattern};

use crate::import::assemble::PoolChoice;
use crate::import::tree::Statement;

/// The requests of a location, and its rank among the locations of nginx.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LocationMatch {
    /// Path patterns. A single `None` matches all requests of the virtual host.
    pub(super) paths: Vec<Option<String>>,
    /// Smaller ranks come first. Prefixes of the same kind are sorted by length, the longest first.
    pub(super) rank: (LocationKind, Reverse<usize>),
}

/// Kinds of locations, in the order of their precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LocationKind {
    Exact,
    /// A prefix with `^~`.
    First,
    Regex,
    Prefix,
}

impl LocationMatch {
    pub(super) fn all() -> LocationMatch {
        LocationMatch { paths: vec![None], rank: (LocationKind::Prefix, Reverse(0)) }
    }

    /// True if the location matches all requests of its virtual host.
    pub(super) fn takes_all(&self) -> bool {
        self.paths.iter().all(Option::is_none)
    }

    pub(super) fn is_regex(&self) -> bool {
        self.rank.0 == LocationKind::Regex
    }

    pub(super) fn is_before_regexes(&self) -> bool {
        self.rank.0 == LocationKind::First
    }

    /// Makes a prefix with `^~` an ordinary prefix.
    pub(super) fn set_plain(&mut self) {
        self.rank.0 = LocationKind::Prefix;
    }

    /// Returns the prefix of its paths, or `None` if the location isn't a prefix.
    pub(super) fn prefix(&self) -> Option<String> {
        let is_prefix = matches!(self.rank.0, LocationKind::First | LocationKind::Prefix);
        let pattern = self.paths.first().filter(|_| is_prefix)?.clone().unwrap_or_else(|| "/*".to_owned());
        pattern.strip_suffix('*').map(str::to_owned)
    }
}

/// True if only internal redirects of nginx lead to the location.
pub(super) fn is_named(location: &Statement) -> bool {
    location.word(1).starts_with('@')
}

/// True if the location is a regular expression.
pub(super) fn is_regex(location: &Statement) -> bool {
    location.word(1).starts_with('~')
}

/// Parses the words after `location`. Returns `None` if no pattern matches the same requests.
pub(super) fn read(location: &Statement) -> Option<LocationMatch> {
    let one = |kind: LocationKind, path: Option<String>, length: usize| LocationMatch {
        paths: vec![path],
        rank: (kind, Reverse(length)),
    };
    let prefix =
        |kind: LocationKind, path: &str| one(kind, (path != "/").then(|| format!("{path}*")), path.len());
    // The modifier may be written without a space before the path.
    let (sign, path) = match (location.word(1), location.word(2)) {
        (text, "") => {
            let signs = ["^~", "~*", "~", "="];
            let sign = signs.into_iter().find(|sign| text.starts_with(sign)).unwrap_or_default();
            (sign, text.get(sign.len()..).unwrap_or_default())
        }
        (sign, path) => (sign, path),
    };
    let all = match sign {
        "=" => one(LocationKind::Exact, Some(path.to_owned()), 0),
        "^~" => prefix(LocationKind::First, path),
        "~" | "~*" => {
            let paths = endings(path)?.into_iter().map(Some).collect();
            LocationMatch { paths, rank: (LocationKind::Regex, Reverse(0)) }
        }
        "" => prefix(LocationKind::Prefix, path),
        _ => return None,
    };
    let is_valid = |path: &Option<String>| path.as_ref().is_none_or(|path| PathPattern::parse(path).is_ok());
    let has_star = all.rank.0 != LocationKind::Regex && path.contains(['*', '?']);
    (all.paths.iter().all(is_valid) && !has_star && !path.is_empty()).then_some(all)
}

/// Converts a regular expression for file name extensions, such as `\.(png|jpg)$`.
fn endings(regex: &str) -> Option<Vec<String>> {
    let middle = regex.strip_prefix("\\.")?.strip_suffix('$')?;
    let inner = match middle.strip_prefix('(') {
        Some(rest) => rest.strip_suffix(')')?.trim_start_matches("?:"),
        None => middle,
    };
    let is_word = |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let words: Vec<&str> = inner.split('|').collect();
    words.iter().all(is_word).then(|| words.iter().map(|word| format!("/*.{word}")).collect())
}

/// Returns the names of a virtual host as patterns, and the names that have none.
pub(super) fn hosts(names: &[String]) -> (Vec<String>, Vec<String>) {
    let (mut hosts, mut left) = (Vec::new(), Vec::new());
    for name in names {
        let lower = name.to_ascii_lowercase();
        let patterns = match lower.strip_prefix('.') {
            Some(domain) => vec![domain.to_owned(), format!("*.{domain}")],
            None if name == "_" || name.is_empty() => Vec::new(),
            None => vec![lower],
        };
        match patterns.iter().all(|host| HostPattern::parse(host).is_ok()) {
            true => hosts.extend(patterns),
            false => left.push(name.clone()),
        }
    }
    (hosts, left)
}

/// Sorts exact names before wildcards, and longer wildcards before shorter ones, like nginx.
pub(super) fn sort_by_host(choices: &mut [PoolChoice]) {
    choices.sort_by_key(|choice| {
        let host = choice.patterns.first().and_then(|pattern| pattern.host.as_deref()).unwrap_or("*");
        (host.starts_with('*'), Reverse(if host.starts_with('*') { host.len() } else { 0 }))
    });
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    fn paths(words: &[&str]) -> Option<Vec<String>> {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        let location = Statement { words, ..Statement::default() };
        read(&location).map(|found| found.paths.into_iter().map(Option::unwrap_or_default).collect())
    }

    #[test]
    fn locations_become_patterns() {
        assert_eq!(paths(&["location", "/img/"]).unwrap(), ["/img/*"]);
        assert_eq!(paths(&["location", "=", "/a"]).unwrap(), ["/a"]);
        assert_eq!(paths(&["location", "/"]).unwrap(), [""]);
        assert_eq!(paths(&["location", "~*", r"\.(png|jpg)$"]).unwrap(), ["/*.png", "/*.jpg"]);
        assert_eq!(paths(&["location", "~", "^/a/(.*)"]), None);
        assert_eq!(paths(&["location", "=/a"]).unwrap(), ["/a"]);
        let names = ["A.example", ".b.example", "~^www", "mail.*", "_"].map(str::to_owned);
        let (read, left) = hosts(&names);
        assert_eq!(
            (read, left.len()),
            (vec!["a.example".into(), "b.example".into(), "*.b.example".into()], 2)
        );
    }
}
