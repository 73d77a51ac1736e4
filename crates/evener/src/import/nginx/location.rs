//! Names of virtual hosts and locations, as patterns of routes.

use evener_core::path::content::{HostPattern, PathPattern};

use crate::import::tree::Statement;

/// The requests of a location, and how soon nginx looks at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LocationMatch {
    /// `None` alone: all requests of the virtual host.
    pub(super) paths: Vec<Option<String>>,
    /// Smaller ones come first: exact, then regular expressions, then prefixes by their length.
    pub(super) rank: (u8, std::cmp::Reverse<usize>),
}

/// Reads the words behind `location`; `None` where no pattern takes the same requests.
pub(super) fn read(location: &Statement) -> Option<LocationMatch> {
    let prefix = |rank: u8, path: &str| {
        let pattern = (path != "/").then(|| format!("{path}*"));
        let length = std::cmp::Reverse(path.len());
        LocationMatch { paths: vec![pattern], rank: (rank, length) }
    };
    let all = match (location.word(1), location.word(2)) {
        ("=", path) => LocationMatch { paths: vec![Some(path.to_owned())], rank: (0, std::cmp::Reverse(0)) },
        ("^~", path) => prefix(1, path),
        ("~" | "~*", regex) => {
            let paths = endings(regex)?.into_iter().map(Some).collect();
            LocationMatch { paths, rank: (2, std::cmp::Reverse(0)) }
        }
        (name, "") if name.starts_with('@') => {
            LocationMatch { paths: vec![None], rank: (4, std::cmp::Reverse(0)) }
        }
        (path, "") => prefix(3, path),
        _ => return None,
    };
    let is_valid = |path: &Option<String>| path.as_ref().is_none_or(|path| PathPattern::parse(path).is_ok());
    let has_star =
        location.words.iter().skip(1).any(|word| !word.starts_with('~') && word.contains(['*', '?']));
    let is_regex = location.word(1).starts_with('~');
    (all.paths.iter().all(is_valid) && (is_regex || !has_star)).then_some(all)
}

/// A regular expression of file names' ends, such as `\.(png|jpg)$`.
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

/// The names of a virtual host as patterns; `None` where one is a regular expression.
pub(super) fn hosts(names: &[String]) -> Option<Vec<String>> {
    let mut hosts = Vec::new();
    for name in names {
        match name.strip_prefix('.') {
            Some(domain) => hosts.extend([domain.to_owned(), format!("*.{domain}")]),
            None if name == "_" || name.is_empty() => {}
            None => hosts.push(name.to_ascii_lowercase()),
        }
    }
    hosts.iter().all(|host| HostPattern::parse(host).is_ok()).then_some(hosts)
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
        assert_eq!(
            hosts(&["A.example".into(), ".b.example".into()]).unwrap(),
            ["a.example", "b.example", "*.b.example"]
        );
        assert_eq!(hosts(&["~^www".into()]), None);
    }
}
