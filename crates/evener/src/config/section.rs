//! Reads a TOML table key by key. Keys that no reader has read are unknown, and reported.

use std::path::PathBuf;
use std::sync::LazyLock;

use evener_core::pool::Period;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::keys::{ConfigKey, Scope, ValueType, home};
use super::problems::{Problem, ProblemSink, Span};
use super::{period, values};
use crate::runtime::spelling::{is_like, nearest};

/// Problem of a value, to be prefixed by its key, and a remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Complaint {
    pub(super) problem: String,
    pub(super) help: String,
}

impl Complaint {
    pub(super) fn new<T>(problem: impl Into<String>, help: impl Into<String>) -> Result<T, Self> {
        Err(Complaint { problem: problem.into(), help: help.into() })
    }

    /// Returns the complaint about a value of the wrong TOML type.
    pub(super) fn wrong_type<T>(value: &DeValue<'_>, expected: &str, help: &str) -> Result<T, Self> {
        Complaint::new(format!("must be {expected}, not {}", type_of(value)), help)
    }
}

static EMPTY: LazyLock<DeTable<'static>> = LazyLock::new(DeTable::new);

/// A table of the file while it is read.
pub(super) struct Section<'d> {
    /// Title as in the file: `[[service.server]]`. Empty for the file itself.
    title: String,
    table: &'d DeTable<'d>,
    span: Span,
    /// Keys that tables of this title may have.
    keys: &'static [&'static ConfigKey],
    scope: Scope,
    /// Help for unknown keys, if they probably belong to another table.
    others: Option<&'static str>,
    sink: &'d ProblemSink,
}

impl<'d> Section<'d> {
    /// Reads a whole file with `read`, then reports keys that it can't have.
    pub(super) fn root<T>(
        table: &'d DeTable<'d>,
        keys: &'static [&'static ConfigKey],
        sink: &'d ProblemSink,
        read: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let scope = Scope::FILE;
        Section { title: String::new(), table, span: 0..0, keys, scope, others: None, sink }.read(read)
    }

    /// Choices that decide which keys this table and its subtables may have.
    pub(super) fn scope(&mut self) -> &mut Scope {
        &mut self.scope
    }

    /// Returns the position of the table's header.
    pub(super) fn span(&self) -> Span {
        self.span.clone()
    }

    /// Sets the help for unknown keys.
    pub(super) fn set_unknown_key_help(&mut self, help: &'static str) {
        self.others = Some(help);
    }

    /// Reports a problem that no single value shows.
    pub(super) fn problem(&self, problem: Problem) {
        self.sink.push(problem);
    }

    /// Records a file of authorities, which is checked once all is read.
    pub(super) fn note_authorities(&self, file: &Spanned<PathBuf>) {
        self.sink.note_authorities(file.span(), file.get_ref());
    }

    /// Returns the value of `key` if the table has the key and `read` accepts its value.
    pub(super) fn get<T>(
        &self,
        key: &ConfigKey,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, Complaint>,
    ) -> Option<Spanned<T>> {
        debug_assert!(self.keys.iter().any(|known| known.name == key.name), "{} {}", self.title, key.name);
        let value = self.value(key.name)?;
        let read = |value: &DeValue<'_>| {
            let several = || self.plural(key).filter(|_| value.is_array());
            read(value).map_err(|complaint| match several() {
                Some(plural) => {
                    Complaint { help: format!("write {} = [...] for several", plural.name), ..complaint }
                }
                None => complaint,
            })
        };
        self.accept(&format!("`{}`", key.name), value, read)
    }

    /// Returns the value of `key`, or `default`.
    pub(super) fn or<T>(
        &self,
        key: &ConfigKey,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, Complaint>,
        default: T,
    ) -> T {
        self.get(key, read).map_or(default, Spanned::into_inner)
    }

    /// Returns the value of a flag, or its default.
    pub(super) fn flag(&self, key: &ConfigKey) -> bool {
        self.or(key, values::flag, matches!(key.value, ValueType::Flag(true)))
    }

    /// Returns the value of a number within its limits.
    pub(super) fn number<T: TryFrom<u64>>(&self, key: &ConfigKey) -> Option<Spanned<T>> {
        self.get(key, values::count(key.limits()))
    }

    /// Returns the value of a number within its limits, or its default.
    pub(super) fn number_or<T: TryFrom<u64> + Default>(&self, key: &ConfigKey) -> T {
        let default = || T::try_from(key.default()).unwrap_or_default();
        self.number(key).map_or_else(default, Spanned::into_inner)
    }

    /// Returns the value of a factor within its limits, or its default, in percent.
    pub(super) fn factor(&self, key: &ConfigKey) -> u64 {
        self.or(key, values::percent(key.limits()), key.default())
    }

    /// Returns the value of a time within its limits, in milliseconds.
    pub(super) fn time(&self, key: &ConfigKey) -> Option<Spanned<u64>> {
        self.get(key, values::duration_ms(key.limits()))
    }

    /// Returns the value of a time within its limits, or its default, in milliseconds.
    pub(super) fn time_or(&self, key: &ConfigKey) -> u64 {
        self.time(key).map_or(key.default(), Spanned::into_inner)
    }

    /// Returns the value of a period, each of whose times is within the key's limits.
    pub(super) fn period(&self, key: &ConfigKey) -> Option<Spanned<Period>> {
        self.get(key, |value| period::period(value, key.limits()))
    }

    /// Returns the value of a period, or its default.
    pub(super) fn period_or(&self, key: &ConfigKey) -> Period {
        self.period(key).map_or_else(|| Period::always(key.default()), Spanned::into_inner)
    }

    /// Returns the value of a word, or its default: the first choice if the key has none.
    pub(super) fn word<T: Copy>(&self, key: &ConfigKey, choices: &'static [(&'static str, T)]) -> T {
        let default = match key.value {
            ValueType::Word(_, default) => choices.iter().find(|(name, _)| Some(*name) == default),
            _ => None,
        };
        let default = default.map_or(choices[0].1, |(_, choice)| *choice);
        self.or(key, values::choice(choices, &[]), default)
    }

    /// Returns the entries of the list `key` that `read` accepts. Empty if there is no list.
    pub(super) fn list<T>(
        &self,
        key: &ConfigKey,
        read: impl Fn(&DeValue<'_>) -> Result<T, Complaint>,
    ) -> Vec<Spanned<T>> {
        let name = key.name;
        match self.value(name).map(|value| (value.get_ref(), value.span())) {
            None | Some((DeValue::Array(_), _)) => self.one_or_list(key, read),
            Some((other, span)) => {
                let message = format!("`{name}` must be a list, not {}", type_of(other));
                self.problem(Problem::new(span, message, format!("put it in brackets: {name} = [...]")));
                Vec::new()
            }
        }
    }

    /// Like [`Section::list`], but also accepts a single value instead of a list.
    pub(super) fn one_or_list<T>(
        &self,
        key: &ConfigKey,
        read: impl Fn(&DeValue<'_>) -> Result<T, Complaint>,
    ) -> Vec<Spanned<T>> {
        let key = key.name;
        let Some(value) = self.value(key) else { return Vec::new() };
        let DeValue::Array(entries) = value.get_ref() else {
            return self.accept(&format!("`{key}`"), value, read).into_iter().collect();
        };
        let called = format!("an entry of `{key}`");
        entries.iter().filter_map(|entry| self.accept(&called, entry, &read)).collect()
    }

    /// Reads the table `[key]`. A missing table is read as an empty one, so that defaults come from
    /// `read` alone.
    pub(super) fn section<T>(&self, key: &ConfigKey, read: impl FnOnce(&mut Section<'d>) -> T) -> T {
        let (keys, key) = (key.keys(), key.name);
        let title = format!("[{}]", self.path_of(key));
        let value = self.value(key);
        match value.map(|value| (value.get_ref(), value.span())) {
            Some((DeValue::Table(table), span)) => self.child(title, keys, table, span).read(read),
            Some((other, span)) => {
                let message = format!("`{key}` must be a table, not {}", type_of(other));
                self.problem(Problem::new(
                    span.clone(),
                    message,
                    format!("write {title} on a line of its own"),
                ));
                self.child(title, keys, &EMPTY, span).read(read)
            }
            None => self.child(title, keys, &EMPTY, self.span()).read(read),
        }
    }

    /// Reads every table `[[key]]`.
    pub(super) fn sections<T>(&self, key: &ConfigKey, mut read: impl FnMut(&mut Section<'d>) -> T) -> Vec<T> {
        let (keys, key) = (key.keys(), key.name);
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
                    out.push(self.child(title.clone(), keys, table, entry.span()).read(&mut read));
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

    /// True if `key` has this word as its value. Does not mark the key as read.
    pub(super) fn has_word(&self, key: &str, word: &str) -> bool {
        let value = self.table.get(key).map(Spanned::get_ref);
        matches!(value, Some(DeValue::String(written)) if written == word)
    }

    /// Returns the position of the key itself, for problems with its presence.
    pub(super) fn key_span(&self, key: &str) -> Option<Span> {
        self.table.get_key_value(key).map(|(name, _)| name.span())
    }

    /// True if the table has `key`, and its value is not an empty list.
    pub(super) fn has(&self, key: &str) -> bool {
        match self.table.get(key).map(Spanned::get_ref) {
            None => false,
            Some(DeValue::Array(entries)) => !entries.is_empty(),
            Some(_) => true,
        }
    }

    /// Reports that `key` is missing, unless it is misspelt, which is reported already.
    pub(super) fn missing(&self, key: &str, message: &str, help: &str) {
        let misspelt = |name: &Spanned<DeString<'_>>| {
            let name: &str = name.get_ref();
            let is_at_home = self.title.is_empty() && home(name).is_some();
            self.key(name).is_none() && !is_at_home && is_like(name, key)
        };
        if !self.table.keys().any(misspelt) {
            self.problem(Problem::missing(self.span(), message, help));
        }
    }

    fn value(&self, key: &str) -> Option<&'d Spanned<DeValue<'d>>> {
        self.table.get(key)
    }

    fn key(&self, name: &str) -> Option<&'static ConfigKey> {
        self.keys.iter().find(|key| key.name == name).copied()
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

    /// Returns the key for several values of a key, such as `addresses` for `address`.
    fn plural(&self, key: &ConfigKey) -> Option<&'static ConfigKey> {
        ["es", "s"].iter().find_map(|ending| self.key(&format!("{}{ending}", key.name)))
    }

    fn child(
        &self,
        title: String,
        keys: &'static [&'static ConfigKey],
        table: &'d DeTable<'d>,
        span: Span,
    ) -> Section<'d> {
        let scope = Scope { kind: None, ..self.scope };
        Section { title, table, span, keys, scope, others: None, sink: self.sink }
    }

    fn read<T>(mut self, read: impl FnOnce(&mut Self) -> T) -> T {
        let value = read(&mut self);
        self.check_keys();
        value
    }

    /// Reports keys that the table can't have.
    fn check_keys(&self) {
        let has = |key: &str| self.table.contains_key(key);
        for name in self.table.keys() {
            let problem = match self.key(name.get_ref()) {
                Some(key) => key.misplaced(&self.scope, &self.title, has),
                None => Some(self.unknown_key(name.get_ref())),
            };
            if let Some((message, help)) = problem {
                self.problem(Problem::new(name.span(), message, help));
            }
        }
    }

    fn unknown_key(&self, key: &str) -> (String, String) {
        let place = match self.title.as_str() {
            "" => "at the top of the file".to_owned(),
            title => format!("in {title}"),
        };
        let home = home(key).filter(|_| self.title.is_empty());
        let help = match (self.others, home) {
            (Some(others), _) => others.to_owned(),
            (None, Some(home)) if home.trim_start_matches('[').starts_with("service.") => {
                format!("write {home} after the [[service]] that it belongs to")
            }
            (None, Some(home)) => format!("it belongs below {home}"),
            (None, None) => {
                let known = self.keys.iter().filter(|key| key.is_for(self.scope.consumer));
                nearest_or_all(key, &known.map(|key| key.name).collect::<Vec<_>>())
            }
        };
        (format!("unknown key {key:?} {place}"), help)
    }

    fn path_of(&self, key: &str) -> String {
        match self.title.trim_matches(['[', ']']) {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        }
    }
}

/// Returns "did you mean ...?" if a name in `names` is similar to `wrong`, else lists all names.
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
