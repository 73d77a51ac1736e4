//! Reads a TOML table key by key. A key that was read is known; one that is left over is an error.

use std::path::PathBuf;
use std::sync::LazyLock;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::problems::{Problem, ProblemSink, Span};
use crate::runtime::spelling::{is_like, nearest};

/// Why a value will not do, to be prefixed by its key, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Complaint {
    pub(super) problem: String,
    pub(super) help: String,
}

impl Complaint {
    pub(super) fn new<T>(problem: impl Into<String>, help: impl Into<String>) -> Result<T, Self> {
        Err(Complaint { problem: problem.into(), help: help.into() })
    }

    /// A value of the wrong TOML type.
    pub(super) fn wrong_type<T>(value: &DeValue<'_>, expected: &str, help: &str) -> Result<T, Self> {
        Complaint::new(format!("must be {expected}, not {}", type_of(value)), help)
    }
}

/// Where keys belong that are easily written at the top of the file.
const HOMES: [(&str, &[&str]); 9] = [
    ("[[service.server]]", &["server", "servers"]),
    ("[[service.route]]", &["route", "routes"]),
    ("[service.health]", &["health"]),
    ("[service.timeouts]", &["timeouts"]),
    (
        "[[service]]",
        &[
            "name",
            "address",
            "addresses",
            "protocol",
            "method",
            "placement",
            "policy",
            "discover",
            "announce",
        ],
    ),
    ("[engine]", &["kind", "xdp_mode", "interfaces", "sessions_max", "threads"]),
    ("[farm]", &["secret_file", "directors", "dispatcher"]),
    ("[admin]", &["listen", "token_file", "hosts"]),
    ("[admin.tls]", &["client_ca", "certificates_file"]),
];

static EMPTY: LazyLock<DeTable<'static>> = LazyLock::new(DeTable::new);

/// A table of the file while it is read.
pub(super) struct Section<'d> {
    /// As in the file: `[[service.server]]`; empty for the file itself.
    title: String,
    table: &'d DeTable<'d>,
    span: Span,
    known: Vec<&'static str>,
    later: Vec<&'static str>,
    /// The help for other keys, where probably none that is known was meant.
    others: Option<&'static str>,
    sink: &'d ProblemSink,
}

impl<'d> Section<'d> {
    /// Reads the whole file with `read`, then complains of the keys it did not ask for.
    pub(super) fn root<T>(
        table: &'d DeTable<'d>,
        sink: &'d ProblemSink,
        read: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let (known, later, others) = (Vec::new(), Vec::new(), None);
        Section { title: String::new(), table, span: 0..0, known, later, others, sink }.read(read)
    }

    /// Where the table begins: its header.
    pub(super) fn span(&self) -> Span {
        self.span.clone()
    }

    /// Says what to do about keys that don't belong here.
    pub(super) fn set_unknown_key_help(&mut self, help: &'static str) {
        self.others = Some(help);
    }

    /// Notes a problem that no single value shows.
    pub(super) fn problem(&self, problem: Problem) {
        self.sink.push(problem);
    }

    /// Notes a file of authorities, which is looked at once all is read.
    pub(super) fn note_authorities(&self, file: &Spanned<PathBuf>) {
        self.sink.note_authorities(file.span(), file.get_ref());
    }

    /// The value of `key`, if it is there and `read` takes it.
    pub(super) fn get<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, Complaint>,
    ) -> Option<Spanned<T>> {
        let value = self.value(key)?;
        self.accept(&format!("`{key}`"), value, read)
    }

    /// The value of `key`, or `default`.
    pub(super) fn or<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, Complaint>,
        default: T,
    ) -> T {
        self.get(key, read).map_or(default, Spanned::into_inner)
    }

    /// The entries of the list `key` that `read` takes; none if there is no list.
    pub(super) fn list<T>(
        &mut self,
        key: &'static str,
        read: impl Fn(&DeValue<'_>) -> Result<T, Complaint>,
    ) -> Vec<Spanned<T>> {
        match self.value(key).map(|value| (value.get_ref(), value.span())) {
            None | Some((DeValue::Array(_), _)) => self.one_or_list(key, read),
            Some((other, span)) => {
                let message = format!("`{key}` must be a list, not {}", type_of(other));
                self.problem(Problem::new(span, message, format!("put it in brackets: {key} = [...]")));
                Vec::new()
            }
        }
    }

    /// As [`Section::list`], where a single value may stand for a list of one.
    pub(super) fn one_or_list<T>(
        &mut self,
        key: &'static str,
        read: impl Fn(&DeValue<'_>) -> Result<T, Complaint>,
    ) -> Vec<Spanned<T>> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let DeValue::Array(entries) = value.get_ref() else {
            return self.accept(&format!("`{key}`"), value, read).into_iter().collect();
        };
        let called = format!("an entry of `{key}`");
        entries.iter().filter_map(|entry| self.accept(&called, entry, &read)).collect()
    }

    /// Reads the table `[key]`; one that is not there reads as empty, so that defaults come from
    /// `read` alone.
    pub(super) fn section<T>(&mut self, key: &'static str, read: impl FnOnce(&mut Section<'d>) -> T) -> T {
        let title = format!("[{}]", self.path_of(key));
        let value = self.value(key);
        match value.map(|value| (value.get_ref(), value.span())) {
            Some((DeValue::Table(table), span)) => self.child(title, table, span).read(read),
            Some((other, span)) => {
                let message = format!("`{key}` must be a table, not {}", type_of(other));
                self.problem(Problem::new(
                    span.clone(),
                    message,
                    format!("write {title} on a line of its own"),
                ));
                self.child(title, &EMPTY, span).read(read)
            }
            None => self.child(title, &EMPTY, self.span()).read(read),
        }
    }

    /// Reads every `[[key]]`.
    pub(super) fn sections<T>(
        &mut self,
        key: &'static str,
        mut read: impl FnMut(&mut Section<'d>) -> T,
    ) -> Vec<T> {
        let title = format!("[[{}]]", self.path_of(key));
        let Some(value) = self.value(key) else { return Vec::new() };
        let entries = match value.get_ref() {
            DeValue::Array(entries) => entries.iter().collect(),
            _ => vec![value],
        };
        let mut out = Vec::with_capacity(entries.len());
        for entry in entries {
            match (entry.get_ref(), value.get_ref()) {
                (DeValue::Table(table), DeValue::Array(_)) => {
                    out.push(self.child(title.clone(), table, entry.span()).read(&mut read));
                }
                (DeValue::Table(_), _) => {
                    let message =
                        format!("there can be several of `{key}`, so each is written in double brackets");
                    self.problem(Problem::new(entry.span(), message, format!("write {title}")));
                }
                (other, _) => {
                    let message = format!("`{key}` must be a table, not {}", type_of(other));
                    self.problem(Problem::new(
                        entry.span(),
                        message,
                        format!("write {title} on a line of its own"),
                    ));
                }
            }
        }
        out
    }

    /// A key that belongs elsewhere: where it stands here all the same, says why it doesn't.
    pub(super) fn foreign(&mut self, key: &'static str, why: &str, help: &str) {
        self.later.push(key);
        if let Some(span) = self.key_span(key) {
            self.problem(Problem::new(span, format!("`{key}` {why}"), help));
        }
    }

    /// Whether `key` is this word, before anybody reads it.
    pub(super) fn has_word(&self, key: &str, word: &str) -> bool {
        let value = self.table.get(key).map(Spanned::get_ref);
        matches!(value, Some(DeValue::String(written)) if written == word)
    }

    /// Where the key itself stands, for problems with its being there.
    pub(super) fn key_span(&self, key: &str) -> Option<Span> {
        self.table.get_key_value(key).map(|(name, _)| name.span())
    }

    /// Whether `key` is there, and not as a list with nothing in it.
    pub(super) fn has(&self, key: &str) -> bool {
        match self.table.get(key).map(Spanned::get_ref) {
            None => false,
            Some(DeValue::Array(entries)) => !entries.is_empty(),
            Some(_) => true,
        }
    }

    /// Notes that `key` is not there, unless it is but misspelt, which is complained of already.
    pub(super) fn missing(&self, key: &str, message: &str, help: &str) {
        let misspelt = |name: &Spanned<DeString<'_>>| {
            let name: &str = name.get_ref();
            let at_home = HOMES.iter().any(|(_, keys)| self.title.is_empty() && keys.contains(&name));
            !self.known.contains(&name) && !at_home && is_like(name, key)
        };
        if !self.table.keys().any(misspelt) {
            self.problem(Problem::missing(self.span(), message, help));
        }
    }

    fn value(&mut self, key: &'static str) -> Option<&'d Spanned<DeValue<'d>>> {
        if !self.known.contains(&key) {
            self.known.push(key);
        }
        self.table.get(key)
    }

    fn accept<T>(
        &self,
        called: &str,
        value: &Spanned<DeValue<'_>>,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, Complaint>,
    ) -> Option<Spanned<T>> {
        match read(value.get_ref()) {
            Ok(read) => Some(Spanned::new(value.span(), read)),
            Err(Complaint { problem, help }) => {
                self.problem(Problem::new(value.span(), format!("{called} {problem}"), help));
                None
            }
        }
    }

    fn child(&self, title: String, table: &'d DeTable<'d>, span: Span) -> Section<'d> {
        Section { title, table, span, known: Vec::new(), later: Vec::new(), others: None, sink: self.sink }
    }

    fn read<T>(mut self, read: impl FnOnce(&mut Self) -> T) -> T {
        let value = read(&mut self);
        self.unknown_keys();
        value
    }

    fn unknown_keys(&self) {
        for name in self.table.keys() {
            let key: &str = name.get_ref();
            if self.known.contains(&key) || self.later.contains(&key) {
                continue;
            }
            let place = match self.title.as_str() {
                "" => "at the top of the file".to_owned(),
                title => format!("in {title}"),
            };
            let message = format!("unknown key {key:?} {place}");
            let home = HOMES.iter().find(|(_, keys)| self.title.is_empty() && keys.contains(&key));
            let help = match home {
                _ if self.others.is_some() => self.others.unwrap_or_default().to_owned(),
                Some((home, _)) if home.starts_with("[[service.") || home.starts_with("[service.") => {
                    format!("write {home}, behind the [[service]] that it belongs to")
                }
                Some((home, _)) => format!("it belongs below {home}"),
                None => nearest_or_all(key, &self.known),
            };
            self.problem(Problem::new(name.span(), message, help));
        }
    }

    fn path_of(&self, key: &str) -> String {
        match self.title.trim_matches(['[', ']']) {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        }
    }
}

/// "did you mean ...?" where one of `names` is like `wrong`, else all of them.
pub(super) fn nearest_or_all(wrong: &str, names: &[&str]) -> String {
    match nearest(wrong, names.iter().copied()) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("possible here: {}", names.join(", ")),
    }
}

fn type_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
