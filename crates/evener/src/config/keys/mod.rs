//! All keys of evener.toml, each declared once: its type with limits and default, and the tables
//! that can have it.
//! Readers, error messages, the JSON Schema and the importers use these declarations. The
//! documentation is in evener.example.toml.

mod schema;
pub(super) mod tables;

use std::ops::RangeInclusive;

use evener_core::farm::{Method, Placement};

pub use schema::json as schema;

/// The part of a farm that a table of the file describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyConsumer {
    /// A service whose packets are forwarded.
    Packets = 1,
    /// A service with method `redirect`.
    Redirect = 2,
    Names = 4,
}

/// Choices that decide which keys a table may have. Subtables inherit them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope {
    pub(super) consumer: KeyConsumer,
    /// `None` if the file names an unknown method. Problems of other keys are then uncertain.
    pub(super) method: Option<Method>,
    pub(super) placement: Placement,
    /// The `kind` of the table itself.
    pub(super) kind: Option<&'static str>,
}

impl Scope {
    pub(super) const FILE: Scope =
        Scope { consumer: KeyConsumer::Packets, method: None, placement: Placement::Director, kind: None };
}

/// A key of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConfigKey {
    pub(super) name: &'static str,
    pub(super) value: ValueType,
    /// Bit set of [`KeyConsumer`]s.
    consumers: u8,
    /// Reason why other consumers can't have the key, and a remedy.
    foreign: Option<(&'static str, &'static str)>,
    /// Methods that support the key, with placement director and with every-host. Empty for all.
    methods: [&'static [Method]; 2],
    /// The only placement that supports the key, the reason, and a remedy.
    placement: Option<(Placement, &'static str, &'static str)>,
    /// Another key that this key requires, and a remedy.
    requires: Option<(&'static str, &'static str)>,
    /// Kinds of the table that support the key, a name for them, and a kind to suggest.
    kinds: Option<(&'static [&'static str], &'static str, &'static str)>,
}

/// Type of a value.
#[derive(Clone, Copy, Debug)]
pub(super) enum ValueType {
    Flag(bool),
    /// A flag with its default, or one of these words.
    FlagOr(bool, &'static [&'static str]),
    /// A whole number: limits and optional default.
    Number(u64, u64, Option<u64>),
    /// A number such as 1.5, stored in percent: limits and default.
    Factor(u64, u64, u64),
    /// A share such as "50%".
    Share,
    /// A time with its unit: limits and optional default in milliseconds.
    Time(u64, u64, Option<u64>),
    /// A time as above, or a list of times of day with a time each.
    Period(u64, u64, Option<u64>),
    /// A word of the list, with an optional default.
    Word(fn() -> Vec<&'static str>, Option<&'static str>),
    Text,
    /// Texts or numbers: one, or a list of them.
    List,
    /// A table with these keys.
    Table(&'static [&'static ConfigKey]),
    /// A list of tables with these keys.
    Tables(&'static [&'static ConfigKey]),
}

impl ConfigKey {
    const fn new(name: &'static str, value: ValueType) -> ConfigKey {
        ConfigKey {
            name,
            value,
            consumers: KeyConsumer::Packets as u8 | KeyConsumer::Redirect as u8 | KeyConsumer::Names as u8,
            foreign: None,
            methods: [&[], &[]],
            placement: None,
            requires: None,
            kinds: None,
        }
    }

    const fn flag(name: &'static str, default: bool) -> ConfigKey {
        ConfigKey::new(name, ValueType::Flag(default))
    }

    const fn text(name: &'static str) -> ConfigKey {
        ConfigKey::new(name, ValueType::Text)
    }

    const fn list(name: &'static str) -> ConfigKey {
        ConfigKey::new(name, ValueType::List)
    }

    const fn number(name: &'static str, range: RangeInclusive<u64>) -> ConfigKey {
        ConfigKey::new(name, ValueType::Number(*range.start(), *range.end(), None))
    }

    const fn time(name: &'static str, range_ms: RangeInclusive<u64>) -> ConfigKey {
        ConfigKey::new(name, ValueType::Time(*range_ms.start(), *range_ms.end(), None))
    }

    const fn period(name: &'static str, range_ms: RangeInclusive<u64>) -> ConfigKey {
        ConfigKey::new(name, ValueType::Period(*range_ms.start(), *range_ms.end(), None))
    }

    const fn words(name: &'static str, words: fn() -> Vec<&'static str>) -> ConfigKey {
        ConfigKey::new(name, ValueType::Word(words, None))
    }

    /// Sets the default of a number, or of a time in milliseconds.
    const fn or(self, default: u64) -> ConfigKey {
        let value = match self.value {
            ValueType::Number(least, most, _) => ValueType::Number(least, most, Some(default)),
            ValueType::Time(least, most, _) => ValueType::Time(least, most, Some(default)),
            ValueType::Period(least, most, _) => ValueType::Period(least, most, Some(default)),
            other => other,
        };
        ConfigKey { value, ..self }
    }

    const fn or_word(self, default: &'static str) -> ConfigKey {
        let value = match self.value {
            ValueType::Word(words, _) => ValueType::Word(words, Some(default)),
            other => other,
        };
        ConfigKey { value, ..self }
    }

    const fn only_for(self, consumer: KeyConsumer) -> ConfigKey {
        ConfigKey { consumers: consumer as u8, ..self }
    }

    const fn not_for(self, consumer: KeyConsumer) -> ConfigKey {
        ConfigKey { consumers: self.consumers & !(consumer as u8), ..self }
    }

    const fn foreign(self, why: &'static str, help: &'static str) -> ConfigKey {
        ConfigKey { foreign: Some((why, help)), ..self }
    }

    const fn methods(self, methods: &'static [Method]) -> ConfigKey {
        ConfigKey { methods: [methods, methods], ..self }
    }

    const fn methods_on_every_host(self, methods: &'static [Method]) -> ConfigKey {
        ConfigKey { methods: [self.methods[0], methods], ..self }
    }

    const fn placement(self, placement: Placement, why: &'static str, help: &'static str) -> ConfigKey {
        ConfigKey { placement: Some((placement, why, help)), ..self }
    }

    const fn requires(self, key: &'static str, help: &'static str) -> ConfigKey {
        ConfigKey { requires: Some((key, help)), ..self }
    }

    const fn kinds(
        self,
        kinds: &'static [&'static str],
        called: &'static str,
        instead: &'static str,
    ) -> ConfigKey {
        ConfigKey { kinds: Some((kinds, called, instead)), ..self }
    }

    /// Returns the keys of a table.
    pub(super) fn keys(&self) -> &'static [&'static ConfigKey] {
        match self.value {
            ValueType::Table(keys) | ValueType::Tables(keys) => keys,
            _ => &[],
        }
    }

    pub(super) fn is_for(&self, consumer: KeyConsumer) -> bool {
        self.consumers & consumer as u8 != 0
    }

    /// Returns the limits of a number, or of a time in milliseconds.
    pub(crate) const fn limits(&self) -> RangeInclusive<u64> {
        match self.value {
            ValueType::Number(least, most, _)
            | ValueType::Time(least, most, _)
            | ValueType::Period(least, most, _)
            | ValueType::Factor(least, most, _) => least..=most,
            _ => 0..=u64::MAX,
        }
    }

    /// Returns the default of a number, of a time in milliseconds, or of a factor in percent.
    pub(super) const fn default(&self) -> u64 {
        match self.value {
            ValueType::Number(_, _, Some(default))
            | ValueType::Time(_, _, Some(default))
            | ValueType::Period(_, _, Some(default))
            | ValueType::Factor(_, _, default) => default,
            _ => 0,
        }
    }

    /// Returns why the key can't be in a table of this scope and title, and a remedy. `has` tests
    /// for other keys of the table.
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

/// Returns why keys of other consumers can't be in a table of this title, and a remedy.
fn foreign(consumer: KeyConsumer, title: &str) -> (&'static str, &'static str) {
    let is_of_server = title.ends_with(".server]]");
    match (consumer, is_of_server) {
        (KeyConsumer::Packets, false) => {
            ("is only for method \"redirect\"", "remove it, or write method = \"redirect\"")
        }
        (KeyConsumer::Packets, true) => {
            ("is only for method \"redirect\"", "remove it, and set the server's `address`")
        }
        (KeyConsumer::Redirect, false) => {
            ("is about packets, and with method \"redirect\" clients are answered by HTTP", "remove it")
        }
        (KeyConsumer::Redirect, true) => (
            "is for servers that packets are sent to; clients of method \"redirect\" are sent to a URL",
            "write url = \"http://...\" instead",
        ),
        (KeyConsumer::Names, _) => ("is for services and groups", "remove it"),
    }
}

/// Returns the limits of intervals of probes, in milliseconds.
pub(crate) fn interval_limits_ms() -> RangeInclusive<u64> {
    tables::health::INTERVAL.limits()
}

/// Returns the limits of the time for which clients are remembered, in milliseconds.
pub(crate) fn affinity_limits_ms() -> RangeInclusive<u64> {
    tables::service::AFFINITY.limits()
}

/// Returns the limits of idle times of sessions, in milliseconds.
pub(crate) fn idle_limits_ms() -> RangeInclusive<u64> {
    tables::timeouts::TCP.limits()
}

/// Returns the header of the table to which a key at the top of the file belongs.
pub(super) fn home(name: &str) -> Option<String> {
    let singular = name.strip_suffix('s').unwrap_or(name);
    let mut level: Vec<(String, &ConfigKey)> =
        tables::FILE.iter().map(|key| (key.name.to_owned(), *key)).collect();
    while !level.is_empty() {
        let mut next = Vec::new();
        for (path, key) in &level {
            let (ValueType::Table(keys) | ValueType::Tables(keys)) = key.value else { continue };
            let header = |key: &ConfigKey, path: &str| match key.value {
                ValueType::Tables(_) => format!("[[{path}]]"),
                _ => format!("[{path}]"),
            };
            for inner in keys.iter() {
                let inner_path = format!("{path}.{}", inner.name);
                match inner.value {
                    ValueType::Table(_) | ValueType::Tables(_) if [name, singular].contains(&inner.name) => {
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
