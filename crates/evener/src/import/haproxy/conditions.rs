//! Converts ACLs on host, path and method to the patterns of routes.

use std::collections::BTreeMap;

use evener_core::path::content::{HostPattern, PathPattern};

use super::words::HaproxyLine;
use crate::import::assemble::DraftPattern;

/// Patterns of a condition on requests. Several patterns of a kind are alternatives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ConditionPatterns {
    pub(super) hosts: Vec<String>,
    pub(super) paths: Vec<String>,
    pub(super) methods: Vec<String>,
}

impl ConditionPatterns {
    /// Returns the conjunction of two conditions, or `None` if routes can't express it.
    fn and(mut self, other: &ConditionPatterns) -> Option<ConditionPatterns> {
        let pairs = [
            (&mut self.hosts, &other.hosts),
            (&mut self.paths, &other.paths),
            (&mut self.methods, &other.methods),
        ];
        for (mine, theirs) in pairs {
            if !mine.is_empty() && !theirs.is_empty() {
                return None;
            }
            mine.extend(theirs.iter().cloned());
        }
        Some(self)
    }

    /// Returns the number of routes for the condition.
    pub(super) fn count(&self) -> usize {
        self.hosts.len().max(1).saturating_mul(self.paths.len().max(1))
    }

    /// Returns a pattern for each combination of a host and a path.
    pub(super) fn routes(&self) -> Vec<DraftPattern> {
        let or_any = |texts: &[String]| match texts.is_empty() {
            true => vec![None],
            false => texts.iter().cloned().map(Some).collect(),
        };
        let (hosts, paths) = (or_any(&self.hosts), or_any(&self.paths));
        let pairs = hosts.iter().flat_map(|host| paths.iter().map(move |path| (host, path)));
        let route = |(host, path): (&Option<String>, &Option<String>)| DraftPattern {
            host: host.clone(),
            path: path.clone(),
            methods: self.methods.clone(),
        };
        pairs.map(route).collect()
    }
}

/// ACLs by name: their patterns, their lines, and whether they examine a request.
/// The patterns are `None` if routes can't express the ACL.
#[derive(Debug, Default)]
pub(super) struct Acls(BTreeMap<String, (Option<ConditionPatterns>, Vec<usize>, bool)>);

impl Acls {
    /// Adds a line `acl NAME CRITERION ...`. Several lines of one name are alternatives.
    pub(super) fn add(&mut self, line: &HaproxyLine) {
        let test = line.words.get(2..).unwrap_or_default();
        let read = patterns(test);
        let is_of_request = self.needs_request(test);
        let first = || (Some(ConditionPatterns::default()), Vec::new(), false);
        let (known, lines, looks) = self.0.entry(line.word(1).to_owned()).or_insert_with(first);
        lines.push(line.line);
        *looks |= is_of_request;
        *known = known.take().zip(read).and_then(|(mut known, read)| {
            let kind =
                |of: &ConditionPatterns| (of.hosts.is_empty(), of.paths.is_empty(), of.methods.is_empty());
            let is_new = known == ConditionPatterns::default();
            if !is_new && kind(&known) != kind(&read) {
                return None;
            }
            known.hosts.extend(read.hosts);
            known.paths.extend(read.paths);
            known.methods.extend(read.methods);
            Some(known)
        });
    }

    /// True if a condition examines a request, not only the server name of TLS.
    pub(super) fn needs_request(&self, words: &[String]) -> bool {
        let of_request = |word: &str| {
            ["path", "url", "hdr", "req.hdr", "method"].iter().any(|beginning| word.starts_with(beginning))
        };
        let named = |word: &String| self.0.get(word).is_some_and(|(.., is_of_request)| *is_of_request);
        words.iter().any(|word| of_request(word) || named(word))
    }

    /// Returns the alternatives of a condition (`if ...`), and the lines of its ACLs.
    /// Returns `None` if routes can't express the condition.
    pub(super) fn condition(&self, words: &[String]) -> Option<(Vec<ConditionPatterns>, Vec<usize>)> {
        let mut alternatives = Vec::new();
        let mut lines = Vec::new();
        let mut current = ConditionPatterns::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "or" | "||" => alternatives.push(std::mem::take(&mut current)),
                "{" => {
                    let test: Vec<String> = words.by_ref().take_while(|word| *word != "}").cloned().collect();
                    current = current.and(&patterns(&test)?)?;
                }
                name => {
                    let (acl, acl_lines, _) = self.0.get(name)?;
                    current = current.and(acl.as_ref()?)?;
                    lines.extend(acl_lines.iter().copied());
                }
            }
        }
        alternatives.push(current);
        let is_test = |of: &ConditionPatterns| *of != ConditionPatterns::default();
        alternatives.iter().all(is_test).then_some((alternatives, lines))
    }
}

/// Returns the patterns of `CRITERION [flags] VALUES`.
fn patterns(test: &[String]) -> Option<ConditionPatterns> {
    let (criterion, rest) = test.split_first()?;
    let mut values = Vec::new();
    let mut matching = None;
    let mut rest = rest.iter();
    while let Some(word) = rest.next() {
        match word.as_str() {
            "-i" | "--" => {}
            "-m" => matching = rest.next().map(String::as_str),
            word if word.starts_with('-') => return None,
            _ => values.push(word.clone()),
        }
    }
    if values.is_empty() {
        return None;
    }
    if criterion == "method" {
        return Some(ConditionPatterns { methods: values, ..ConditionPatterns::default() });
    }
    let (name, kind) = match criterion.as_str() {
        "hdr(host)" | "req.hdr(host)" | "hdr(Host)" | "req.ssl_sni" | "req_ssl_sni" | "ssl_fc_sni"
        | "hdr_dom(host)" | "hdr_end(host)" | "req.ssl_sni_end" | "ssl_fc_sni_end" | "req_ssl_sni_end" => {
            ("host", ending(criterion))
        }
        // The end of a URL may be the end of its query, so `url_end` isn't supported.
        "path" | "path_beg" | "path_end" | "path_dir" | "path_sub" | "url_beg" => {
            ("path", criterion.split_once('_').map_or("str", |(_, kind)| kind))
        }
        _ => return None,
    };
    let kind = matching.unwrap_or(kind);
    let read: Option<Vec<Vec<String>>> = values.iter().map(|value| pattern(name, kind, value)).collect();
    let all = read?.into_iter().flatten().collect();
    Some(match name {
        "host" => ConditionPatterns { hosts: all, ..ConditionPatterns::default() },
        _ => ConditionPatterns { paths: all, ..ConditionPatterns::default() },
    })
}

/// True if a line compares paths or methods without case, which routes can't do.
pub(super) fn ignores_case(words: &[String]) -> bool {
    let is_criterion = |word: &str| word == "method" || word.starts_with("path") || word.starts_with("url");
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        if is_criterion(word) {
            let mut flags = words.clone();
            while let Some(flag) = flags.next().filter(|flag| flag.starts_with('-') && *flag != "--") {
                match flag {
                    "-i" => return true,
                    "-m" => drop(flags.next()),
                    _ => {}
                }
            }
        }
    }
    false
}

fn ending(criterion: &str) -> &'static str {
    match criterion {
        "hdr_dom(host)" => "dom",
        criterion if criterion.contains("_end") => "end",
        _ => "str",
    }
}

/// Returns the patterns that Evener has for a value.
fn pattern(name: &str, kind: &str, value: &str) -> Option<Vec<String>> {
    if value.contains(['*', '?']) {
        return None;
    }
    let texts = match (name, kind) {
        ("host" | "path", "str") => vec![value.to_owned()],
        // A single label could be anywhere in a name, so the value needs a dot.
        ("host", "dom") if value.contains('.') => vec![value.to_owned(), format!("*.{value}")],
        ("host", "end") if value.starts_with('.') => vec![format!("*{value}")],
        ("path", "beg") => vec![format!("{value}*")],
        // The value may begin with the first slash of the path, or with a later slash.
        ("path", "end") if value.starts_with('/') => vec![value.to_owned(), format!("/*{value}")],
        ("path", "sub") if value.starts_with('/') => vec![format!("{value}*"), format!("/*{value}*")],
        ("path", "end") => vec![format!("/*{value}")],
        ("path", "dir") => {
            // The folder may be at the beginning of the path or deeper, and at its end or not.
            let folder = value.trim_matches('/');
            if folder.is_empty() {
                return None;
            }
            let ends = [format!("/{folder}"), format!("/*/{folder}")];
            ends.into_iter().flat_map(|end| [format!("{end}/*"), end]).collect()
        }
        ("path", "sub") => vec![format!("/*{value}*")],
        _ => return None,
    };
    let is_valid = |text: &String| match name {
        "host" => HostPattern::parse(text).is_ok(),
        _ => PathPattern::parse(text).is_ok(),
    };
    texts.iter().all(is_valid).then_some(texts)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::super::words::split;
    use super::*;

    fn routes(acls: &[&str], condition: &str) -> Option<Vec<(Option<String>, Option<String>)>> {
        let mut all = Acls::default();
        acls.iter().for_each(|acl| all.add(&HaproxyLine { line: 1, section: 0, words: split(acl) }));
        let (alternatives, _) = all.condition(&split(condition))?;
        let routes = alternatives.iter().flat_map(ConditionPatterns::routes);
        Some(routes.map(|route| (route.host, route.path)).collect())
    }

    #[test]
    fn case_of_paths_is_seen_where_a_test_ignores_it() {
        let ignored = |text: &str| ignores_case(&split(text));
        assert!(ignored("acl a path_beg -i /img") && ignored("use_backend b if { path -m beg -i /a }"));
        assert!(!ignored("acl a hdr(host) -i x.example") && !ignored("use_backend b if { path -- -i }"));
    }

    #[test]
    fn conditions_become_pairs_of_host_and_path() {
        let some = |text: &str| Some(text.to_owned());
        let anonymous = routes(&[], "{ path_beg /img /css }").unwrap();
        assert_eq!(anonymous, [(None, some("/img*")), (None, some("/css*"))]);
        let folder = routes(&[], "{ path_dir /img }").unwrap();
        let paths: Vec<_> = folder.into_iter().filter_map(|(_, path)| path).collect();
        assert_eq!(paths, ["/img/*", "/img", "/*/img/*", "/*/img"]);
        let both = routes(&["acl a hdr(host) -i x.example"], "a { path_end .png }").unwrap();
        assert_eq!(both, [(some("x.example"), some("/*.png"))]);
        let either = routes(&["acl a path /x", "acl a path /y"], "a or { hdr_end(host) .example }").unwrap();
        assert_eq!(either.len(), 3);
        let many: String = (0..300).map(|number| format!(" /{number}")).collect();
        assert_eq!(routes(&[], &format!("{{ path{many} }}")).unwrap().len(), 300);
        for condition in ["!a", "a a", "{ src 192.0.2.1 }", "{ path_reg ^/a }", "", "{ hdr_beg(host) img }"] {
            assert_eq!(routes(&["acl a path /x"], condition), None, "{condition}");
        }
    }
}
