//! Splits haproxy.cfg into sections and words, and returns why some words have no counterpart.

use crate::import::reasons::{self, LeftReason};
use crate::import::source::Source;

/// Words that begin a section.
const SECTIONS: [&str; 19] = [
    "global",
    "defaults",
    "frontend",
    "backend",
    "listen",
    "peers",
    "resolvers",
    "mailers",
    "userlist",
    "program",
    "http-errors",
    "ring",
    "cache",
    "log-forward",
    "log-profile",
    "fcgi-app",
    "crt-store",
    "traces",
    "acme",
];

/// A line, split into words.
#[derive(Clone, Debug)]
pub(super) struct HaproxyLine {
    /// Place in the source.
    pub(super) line: usize,
    /// Line of the head of its section, or 0 if there is no section.
    pub(super) section: usize,
    pub(super) words: Vec<String>,
}

impl HaproxyLine {
    /// Returns the word at this index, or an empty one if there is none.
    pub(super) fn word(&self, at: usize) -> &str {
        self.words.get(at).map_or("", String::as_str)
    }

    /// Returns the word after this one.
    pub(super) fn after(&self, word: &str) -> Option<&str> {
        let at = self.words.iter().position(|one| one == word)?;
        self.words.get(at + 1).map(String::as_str)
    }
}

/// A section with its lines.
#[derive(Clone, Debug)]
pub(super) struct HaproxySection {
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) head: HaproxyLine,
    pub(super) lines: Vec<HaproxyLine>,
    /// Index of the `defaults` section that applies.
    pub(super) defaults: Option<usize>,
    /// Last line of the section.
    pub(super) last: usize,
}

/// Groups the lines into sections. Also returns the lines before the first section.
pub(super) fn sections(lines: Vec<HaproxyLine>) -> (Vec<HaproxySection>, Vec<HaproxyLine>) {
    let (mut sections, mut before): (Vec<HaproxySection>, Vec<HaproxyLine>) = (Vec::new(), Vec::new());
    let mut defaults = None;
    for mut words in lines {
        if !SECTIONS.contains(&words.word(0)) {
            match sections.last_mut() {
                Some(section) => {
                    (section.last, words.section) = (words.line, section.head.line);
                    section.lines.push(words);
                }
                None => before.push(words),
            }
            continue;
        }
        let kind = words.word(0).to_owned();
        let named = words
            .after("from")
            .map(|name| sections.iter().rposition(|known| known.kind == "defaults" && known.name == *name));
        // A section without `from` uses the last `defaults`. A `defaults` section without `from`
        // has no defaults.
        let last = defaults.filter(|_| kind != "defaults");
        let section = HaproxySection {
            name: words.word(1).to_owned(),
            lines: Vec::new(),
            defaults: named.unwrap_or(last),
            last: words.line,
            head: words,
            kind,
        };
        if section.kind == "defaults" {
            defaults = Some(sections.len());
        }
        sections.push(section);
    }
    (sections, before)
}

/// Returns the lines with words, and separately the lines that depend on the environment.
/// The latter are within `.if`, or have variables.
pub(super) fn lines(source: &Source) -> (Vec<HaproxyLine>, Vec<HaproxyLine>) {
    let (mut plain, mut conditional) = (Vec::new(), Vec::new());
    let mut depth = 0_usize;
    for (at, line) in source.lines.iter().enumerate() {
        let words = HaproxyLine { line: at + 1, section: 0, words: split(&line.text) };
        let is_condition = matches!(words.word(0), ".if" | ".elif" | ".else" | ".endif");
        depth += usize::from(words.word(0) == ".if");
        match words.words.is_empty() {
            true => {}
            false if depth > 0 || is_condition => conditional.push(words.clone()),
            // Unknown addresses get placeholders.
            false if has_variable(&line.text) && !matches!(words.word(0), "bind" | "server") => {
                conditional.push(words.clone());
            }
            false => plain.push(words.clone()),
        }
        depth = depth.saturating_sub(usize::from(words.word(0) == ".endif"));
    }
    (plain, conditional)
}

/// Splits a line into words. Quotes, backslashes and `#` have the meaning of HAProxy's manual.
pub(super) fn split(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\\', None | Some('"')) => escape(&mut chars, word.get_or_insert_default()),
            (c, Some(open)) if c == open => quote = None,
            (c, Some(_)) => word.get_or_insert_default().push(c),
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            ('#', None) => break,
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, None) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// True if a line has an environment variable, which HAProxy expands within double quotes.
pub(super) fn has_variable(line: &str) -> bool {
    let (mut quote, mut chars) = (None, line.chars().peekable());
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\\', None | Some('"')) => drop(chars.next()),
            (c, Some(open)) if c == open => quote = None,
            ('"' | '\'', None) => quote = Some(c),
            ('#', None) => return false,
            ('$', Some('"'))
                if chars.peek().is_some_and(|next| matches!(next, '{' | '_' | 'A'..='Z' | 'a'..='z')) =>
            {
                return true;
            }
            _ => {}
        }
    }
    false
}

/// Appends the character that a backslash escapes. A backslash that escapes nothing stays.
fn escape(chars: &mut std::str::Chars<'_>, word: &mut String) {
    let mut rest = chars.clone();
    let code = |rest: &str| u8::from_str_radix(rest.get(..2)?, 16).ok().map(char::from);
    match rest.next() {
        Some(c @ (' ' | '\\' | '#' | '"' | '\'' | '$')) => word.push(c),
        Some('r') => word.push('\r'),
        Some('n') => word.push('\n'),
        Some('t') => word.push('\t'),
        Some('x') if code(rest.as_str()).is_some() => {
            word.extend(code(rest.as_str()));
            rest.by_ref().take(2).for_each(drop);
        }
        Some(c) => word.extend(['\\', c]),
        None => {}
    }
    *chars = rest;
}

/// Reasons why lines have no counterpart, by their first words. The longest match applies.
const LEFT: [(&str, &LeftReason); 131] = [
    ("acl", &reasons::CONTENT),
    (".diag", &reasons::PROCESS),
    (".notice", &reasons::PROCESS),
    (".warning", &reasons::PROCESS),
    (".alert", &reasons::PROCESS),
    ("block", &reasons::RULES),
    ("disabled", &reasons::DISABLED),
    ("dispatch", &reasons::CONTENT),
    ("enabled", &reasons::UNUSED),
    ("use-server", &reasons::CONTENT),
    ("use-fcgi-app", &reasons::UPSTREAM_PROTOCOL),
    ("http-request capture", &reasons::LOGGING),
    ("http-request set-log", &reasons::LOGGING),
    ("http-request set-var", &reasons::HEADERS),
    ("http-request return", &reasons::REDIRECTS),
    ("http-request set-dst", &reasons::CONTENT),
    ("http-request do-resolve", &reasons::CONTENT),
    ("http-send-name-header", &reasons::HEADERS),
    ("http-response deny", &reasons::RULES),
    ("option allbackups", &reasons::POLICY),
    ("option disable-h2-upgrade", &reasons::CONNECTION),
    ("option external-check", &reasons::CHECK_KIND),
    ("option http-server-close", &reasons::CONNECTION),
    ("option transparent", &reasons::CONTENT),
    ("option http_proxy", &reasons::CONTENT),
    ("option persist", &reasons::COOKIES),
    ("option accept-invalid", &reasons::CONNECTION),
    ("reqallow", &reasons::RULES),
    ("reqiallow", &reasons::RULES),
    ("reqdeny", &reasons::RULES),
    ("reqideny", &reasons::RULES),
    ("reqpass", &reasons::RULES),
    ("reqipass", &reasons::RULES),
    ("reqtarpit", &reasons::RULES),
    ("reqitarpit", &reasons::RULES),
    ("reqrep", &reasons::REWRITE),
    ("reqirep", &reasons::REWRITE),
    ("rspdeny", &reasons::RULES),
    ("rspideny", &reasons::RULES),
    ("tcp-request connection set-", &reasons::CONNECTION),
    ("tcp-request connection track-sc", &reasons::STICK_TABLES),
    ("tcp-request content track-sc", &reasons::STICK_TABLES),
    ("tcp-request inspect-delay", &reasons::CONNECTION),
    ("tcp-request content accept", &reasons::CONNECTION),
    ("tcp-request connection accept", &reasons::RULES),
    ("tcp-request content set-", &reasons::CONNECTION),
    ("tcp-request content set-dst", &reasons::CONTENT),
    ("tcp-request connection set-dst", &reasons::CONTENT),
    ("tcp-request session", &reasons::RULES),
    ("tcp-response inspect-delay", &reasons::CONNECTION),
    ("clitcpka", &reasons::CONNECTION),
    ("srvtcpka", &reasons::CONNECTION),
    ("guid", &reasons::PROCESS),
    ("backlog", &reasons::PROCESS),
    ("bind-process", &reasons::PROCESS),
    ("capture", &reasons::LOGGING),
    ("compression", &reasons::COMPRESSION),
    ("cookie", &reasons::COOKIES),
    ("appsession", &reasons::COOKIES),
    ("dynamic-cookie-key", &reasons::COOKIES),
    ("persist", &reasons::COOKIES),
    ("force-persist", &reasons::COOKIES),
    ("ignore-persist", &reasons::COOKIES),
    ("declare", &reasons::LOGGING),
    ("description", &reasons::PROCESS),
    ("email-alert", &reasons::SCRIPTS),
    ("error-log-format", &reasons::LOGGING),
    ("errorfile", &reasons::ERROR_PAGES),
    ("errorfiles", &reasons::ERROR_PAGES),
    ("errorloc", &reasons::ERROR_PAGES),
    ("errorloc302", &reasons::ERROR_PAGES),
    ("errorloc303", &reasons::ERROR_PAGES),
    ("external-check", &reasons::SCRIPTS),
    ("filter", &reasons::RULES),
    ("filter compression", &reasons::COMPRESSION),
    ("filter cache", &reasons::CACHING),
    ("fullconn", &reasons::MAX_CONNECTIONS),
    ("grace", &reasons::PROCESS),
    ("hash-type", &reasons::POLICY),
    ("hash-balance-factor", &reasons::POLICY),
    ("http-after-response", &reasons::HEADERS),
    ("http-check", &reasons::CHECK_DETAIL),
    ("http-error", &reasons::ERROR_PAGES),
    ("http-request", &reasons::RULES),
    ("http-request add-header", &reasons::HEADERS),
    ("http-request cache-use", &reasons::CACHING),
    ("http-request del-header", &reasons::HEADERS),
    ("http-request redirect", &reasons::REDIRECTS),
    ("http-request replace", &reasons::REWRITE),
    ("http-request set-header", &reasons::HEADERS),
    ("http-request set-path", &reasons::REWRITE),
    ("http-request set-uri", &reasons::REWRITE),
    ("http-request track-sc", &reasons::STICK_TABLES),
    ("http-response", &reasons::HEADERS),
    ("http-response cache-store", &reasons::CACHING),
    ("http-reuse", &reasons::CONNECTION),
    ("id", &reasons::PROCESS),
    ("load-server-state-from-file", &reasons::PROCESS),
    ("log", &reasons::LOGGING),
    ("log-format", &reasons::LOGGING),
    ("log-tag", &reasons::LOGGING),
    ("max-keep-alive-queue", &reasons::QUEUES),
    ("maxconn", &reasons::MAX_CONNECTIONS),
    ("monitor", &reasons::ERROR_PAGES),
    ("monitor-net", &reasons::ERROR_PAGES),
    ("monitor-uri", &reasons::ERROR_PAGES),
    ("option", &reasons::CONNECTION),
    ("option dontlog", &reasons::LOGGING),
    ("option forwardfor", &reasons::HEADERS),
    ("option httpchk", &reasons::UNUSED),
    ("option httplog", &reasons::LOGGING),
    ("option log", &reasons::LOGGING),
    ("option originalto", &reasons::HEADERS),
    ("option redispatch", &reasons::QUEUES),
    ("option socket-stats", &reasons::STATISTICS),
    ("option tcplog", &reasons::LOGGING),
    ("rate-limit", &reasons::RATES),
    ("redirect", &reasons::REDIRECTS),
    ("req", &reasons::HEADERS),
    ("retries", &reasons::QUEUES),
    ("retry-on", &reasons::QUEUES),
    ("rsp", &reasons::HEADERS),
    ("server-state-file-name", &reasons::PROCESS),
    ("source", &reasons::CONNECTION),
    ("stats", &reasons::STATISTICS),
    ("stick", &reasons::STICK_TABLES),
    ("tcp-check", &reasons::CHECK_KIND),
    ("tcp-request", &reasons::RULES),
    ("tcp-response", &reasons::RULES),
    ("timeout", &reasons::CONNECTION),
    ("unique-id", &reasons::HEADERS),
];

/// Options for checks of other protocols.
pub(super) const CHECKS: [&str; 7] =
    ["ssl-hello-chk", "smtpchk", "mysql-check", "pgsql-check", "redis-check", "ldap-check", "spop-check"];

/// Returns why a line of a proxy has no counterpart.
pub(super) fn reason(words: &HaproxyLine) -> &'static LeftReason {
    let skip = usize::from(matches!(words.word(0), "no" | "default"));
    let text = words.words.iter().skip(skip).take(3).cloned().collect::<Vec<_>>().join(" ");
    let option = text.strip_prefix("option ").and_then(|rest| rest.split(' ').next());
    if option.is_some_and(|option| CHECKS.contains(&option)) {
        return &reasons::CHECK_KIND;
    }
    let fits = |beginning: &str| match beginning.contains(' ') {
        true => text.starts_with(beginning),
        // The names of `reqadd` and `stick-table` begin with such an entry.
        false => match beginning {
            "req" | "rsp" | "stick" | "unique-id" | "email-alert" => text.starts_with(beginning),
            whole => text.split(' ').next() == Some(whole),
        },
    };
    let found = LEFT.iter().filter(|(beginning, _)| fits(beginning));
    found.max_by_key(|(beginning, _)| beginning.len()).map_or(&reasons::UNKNOWN, |(_, reason)| reason)
}

/// Returns why a whole section has no counterpart.
pub(super) fn section_reason(kind: &str) -> &'static LeftReason {
    match kind {
        "peers" => &reasons::STICK_TABLES,
        "resolvers" => &reasons::DISCOVERY,
        "mailers" | "program" => &reasons::SCRIPTS,
        "userlist" => &reasons::RULES,
        "cache" => &reasons::CACHING,
        "ring" | "log-forward" | "log-profile" | "traces" => &reasons::LOGGING,
        "http-errors" => &reasons::REDIRECTS,
        "fcgi-app" => &reasons::UPSTREAM_PROTOCOL,
        "crt-store" | "acme" => &reasons::TLS_HERE,
        _ => &reasons::PROCESS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_follow_quotes_and_backslashes() {
        assert_eq!(split("server a 'b c' \"d\\\"e\" f\\ g # h"), ["server", "a", "b c", "d\"e", "f g"]);
        assert!(split("  # nothing").is_empty());
    }

    #[test]
    fn longest_beginning_gives_the_reason() {
        let why = |text: &str| reason(&HaproxyLine { line: 1, section: 0, words: split(text) });
        assert_eq!(why("http-request redirect scheme https"), &reasons::REDIRECTS);
        assert_eq!(why("http-request deny"), &reasons::RULES);
        assert_eq!(why("no option httplog"), &reasons::LOGGING);
        assert_eq!(why("option mysql-check user a"), &reasons::CHECK_KIND);
        assert_eq!(why("stick-table type ip"), &reasons::STICK_TABLES);
        assert_eq!(why("wurfl-data-file x"), &reasons::UNKNOWN);
    }
}
