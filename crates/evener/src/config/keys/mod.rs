//! Every key of evener.toml, declared once: its type with limits and default, and which services,
//! groups and names take it. Readers, error messages, the JSON Schema and the importers' limits
//! come from here; the prose is in evener.example.toml.

mod schema;
pub(super) mod tables;

use std::ops::RangeInclusive;

use evener_core::farm::{Method, Placement};

pub use schema::json as schema;

/// The part of a farm that a table of the file describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Consumer {
    /// A service whose packets are forwarded.
    Packets = 1,
    /// A service with method `redirect`.
    Redirect = 2,
    /// A name.
    Names = 4,
}

/// The choices that decide which keys a table may have. Tables within it have the same ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope {
    pub(super) consumer: Consumer,
    /// `None` if the file has no method that there is: what is wrong with other keys is a guess.
    pub(super) method: Option<Method>,
    pub(super) placement: Placement,
    /// The `kind` of the table itself.
    pub(super) kind: Option<&'static str>,
}

impl Scope {
    pub(super) const FILE: Scope =
        Scope { consumer: Consumer::Packets, method: None, placement: Placement::Director, kind: None };
}

/// A key of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) value: Value,
    /// A sum of [`Consumer`]s.
    consumers: u8,
    /// Why the key isn't for another consumer, and what to do.
    foreign: Option<(&'static str, &'static str)>,
    /// Methods that take the key, by a director and on every host; none: all.
    methods: [&'static [Method]; 2],
    /// The only placement that takes the key, why, and what to do.
    placement: Option<(Placement, &'static str, &'static str)>,
    /// A key without which this one means nothing, and what to do.
    requires: Option<(&'static str, &'static str)>,
    /// The kinds of the table that take the key, what these are, and a kind to write.
    kinds: Option<(&'static [&'static str], &'static str, &'static str)>,
}

/// A type of values.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Flag(bool),
    /// A whole number, perhaps with a default.
    Number(u64, u64, Option<u64>),
    /// A number such as 1.5, kept in percent: limits and default.
    Factor(u64, u64, u64),
    /// A share such as "50%".
    Share,
    /// A time with its unit: limits and default in milliseconds.
    Time(u64, u64, Option<u64>),
    /// One of these words, perhaps with a default.
    Word(fn() -> Vec<&'static str>, Option<&'static str>),
    Text,
    /// Texts or numbers, one or a list of them.
    List,
    /// A table of keys.
    Table(&'static [&'static Key]),
    /// A list of such tables.
    Tables(&'static [&'static Key]),
}

impl Key {
    const fn new(name: &'static str, value: Value) -> Key {
        Key {
            name,
            value,
            consumers: Consumer::Packets as u8 | Consumer::Redirect as u8 | Consumer::Names as u8,
            foreign: None,
            methods: [&[], &[]],
            placement: None,
            requires: None,
            kinds: None,
        }
    }

    const fn flag(name: &'static str, default: bool) -> Key {
        Key::new(name, Value::Flag(default))
    }

    const fn text(name: &'static str) -> Key {
        Key::new(name, Value::Text)
    }

    const fn list(name: &'static str) -> Key {
        Key::new(name, Value::List)
    }

    const fn number(name: &'static str, range: RangeInclusive<u64>) -> Key {
        Key::new(name, Value::Number(*range.start(), *range.end(), None))
    }

    const fn time(name: &'static str, range_ms: RangeInclusive<u64>) -> Key {
        Key::new(name, Value::Time(*range_ms.start(), *range_ms.end(), None))
    }

    const fn words(name: &'static str, words: fn() -> Vec<&'static str>) -> Key {
        Key::new(name, Value::Word(words, None))
    }

    /// The default of a number, or of a time in milliseconds.
    const fn or(self, default: u64) -> Key {
        let value = match self.value {
            Value::Number(least, most, _) => Value::Number(least, most, Some(default)),
            Value::Time(least, most, _) => Value::Time(least, most, Some(default)),
            other => other,
        };
        Key { value, ..self }
    }

    const fn or_word(self, default: &'static str) -> Key {
        let value = match self.value {
            Value::Word(words, _) => Value::Word(words, Some(default)),
            other => other,
        };
        Key { value, ..self }
    }

    const fn only_for(self, consumer: Consumer) -> Key {
        Key { consumers: consumer as u8, ..self }
    }

    const fn not_for(self, consumer: Consumer) -> Key {
        Key { consumers: self.consumers & !(consumer as u8), ..self }
    }

    const fn foreign(self, why: &'static str, help: &'static str) -> Key {
        Key { foreign: Some((why, help)), ..self }
    }

    const fn methods(self, methods: &'static [Method]) -> Key {
        Key { methods: [methods, methods], ..self }
    }

    const fn methods_on_every_host(self, methods: &'static [Method]) -> Key {
        Key { methods: [self.methods[0], methods], ..self }
    }

    const fn placement(self, placement: Placement, why: &'static str, help: &'static str) -> Key {
        Key { placement: Some((placement, why, help)), ..self }
    }

    const fn requires(self, key: &'static str, help: &'static str) -> Key {
        Key { requires: Some((key, help)), ..self }
    }

    const fn kinds(self, kinds: &'static [&'static str], called: &'static str, instead: &'static str) -> Key {
        Key { kinds: Some((kinds, called, instead)), ..self }
    }

    /// The keys of a table.
    pub(super) fn keys(&self) -> &'static [&'static Key] {
        match self.value {
            Value::Table(keys) | Value::Tables(keys) => keys,
            _ => &[],
        }
    }

    pub(super) fn is_for(&self, consumer: Consumer) -> bool {
        self.consumers & consumer as u8 != 0
    }

    /// The limits of a number, or of a time in milliseconds.
    pub(crate) const fn limits(&self) -> RangeInclusive<u64> {
        match self.value {
            Value::Number(least, most, _) | Value::Time(least, most, _) | Value::Factor(least, most, _) => {
                least..=most
            }
            _ => 0..=u64::MAX,
        }
    }

    /// The default of a number, of a time in milliseconds, or of a factor in percent.
    pub(super) const fn default(&self) -> u64 {
        match self.value {
            Value::Number(_, _, Some(default))
            | Value::Time(_, _, Some(default))
            | Value::Factor(_, _, default) => default,
            _ => 0,
        }
    }

    /// Why the key can't stand in a table of this scope and title, and what to do; `has` says which
    /// other keys are there.
    pub(super) fn misplaced(
        &self,
        scope: &Scope,
        title: &str,
        has: impl Fn(&str) -> bool,
    ) -> Option<(String, String)> {
        let name = self.name;
        if !self.is_for(scope.consumer) {
            let (why, help) = self.foreign.unwrap_or(foreign(scope.consumer, title));
            return Some((format!("`{name}` {why}"), help.to_owned()));
        }
        if let Some((placement, why, help)) = self.placement
            && placement != scope.placement
        {
            return Some((format!("`{name}` {why}"), help.to_owned()));
        }
        let methods = self.methods[usize::from(scope.placement == Placement::EveryHost)];
        if let Some(written) =
            scope.method.filter(|written| !methods.is_empty() && !methods.contains(written))
        {
            let named = |beginning: &str| {
                let named = methods.iter().map(|method| format!("{beginning}\"{method}\""));
                named.collect::<Vec<_>>().join(" or ")
            };
            let message =
                format!("`{name}` is only for method {}; this service has \"{written}\"", named(""));
            return Some((message, format!("remove it, or write {}", named("method = "))));
        }
        if let Some((other, help)) = self.requires.filter(|(other, _)| !has(other)) {
            return Some((format!("`{name}` means nothing without `{other}`"), help.to_owned()));
        }
        let (_, called, instead) =
            self.kinds.filter(|(kinds, ..)| scope.kind.is_some_and(|kind| !kinds.contains(&kind)))?;
        Some((format!("`{name}` is only for {called}"), format!("write kind = {instead}, or remove it")))
    }
}

/// Why keys of other consumers can't stand in a table of this title, and what to do.
fn foreign(consumer: Consumer, title: &str) -> (&'static str, &'static str) {
    let is_of_server = title.ends_with(".server]]");
    match (consumer, is_of_server) {
        (Consumer::Packets, false) => {
            ("is only for method \"redirect\"", "remove it, or write method = \"redirect\"")
        }
        (Consumer::Packets, true) => {
            ("is only for method \"redirect\"", "remove it, and give the server's `address`")
        }
        (Consumer::Redirect, false) => {
            ("is about packets, and with method \"redirect\" clients are answered by HTTP", "remove it")
        }
        (Consumer::Redirect, true) => (
            "is for servers that packets are sent to; clients of method \"redirect\" are sent to a URL",
            "write url = \"http://...\" instead",
        ),
        (Consumer::Names, _) => ("is for services and groups", "remove it"),
    }
}

/// The limits of intervals of probes, in milliseconds.
pub(crate) fn interval_limits_ms() -> RangeInclusive<u64> {
    tables::health::INTERVAL.limits()
}

/// The limits of idle times of sessions, in milliseconds.
pub(crate) fn idle_limits_ms() -> RangeInclusive<u64> {
    tables::timeouts::TCP.limits()
}

/// The header under which a key belongs that stands at the top of the file.
pub(super) fn home(name: &str) -> Option<String> {
    let singular = name.strip_suffix('s').unwrap_or(name);
    let mut level: Vec<(String, &Key)> = tables::FILE.iter().map(|key| (key.name.to_owned(), *key)).collect();
    while !level.is_empty() {
        let mut next = Vec::new();
        for (path, key) in &level {
            let (Value::Table(keys) | Value::Tables(keys)) = key.value else { continue };
            let header = |key: &Key, path: &str| match key.value {
                Value::Tables(_) => format!("[[{path}]]"),
                _ => format!("[{path}]"),
            };
            for inner in keys.iter() {
                let inner_path = format!("{path}.{}", inner.name);
                match inner.value {
                    Value::Table(_) | Value::Tables(_) if [name, singular].contains(&inner.name) => {
                        return Some(header(inner, &inner_path));
                    }
                    _ if inner.name == name => return Some(header(key, path)),
                    _ => {}
                }
                next.push((inner_path, *inner));
            }
        }
        level = next;
    }
    None
}
