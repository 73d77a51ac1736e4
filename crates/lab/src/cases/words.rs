//! Words of a line, read in order.

use std::fmt::Display;
use std::str::FromStr;

/// Error in a line, for messages.
pub(super) type Wrong = String;

/// Remaining words of a line.
#[derive(Clone, Debug)]
pub(super) struct Words<'t> {
    words: std::iter::Peekable<std::str::SplitWhitespace<'t>>,
}

impl<'t> Words<'t> {
    pub(super) fn of(text: &'t str) -> Words<'t> {
        Words { words: text.split_whitespace().peekable() }
    }

    pub(super) fn peek(&mut self) -> Option<&'t str> {
        self.words.peek().copied()
    }

    /// Returns the next word; `what` describes the word in errors.
    pub(super) fn next(&mut self, what: &str) -> Result<&'t str, Wrong> {
        self.words.next().ok_or_else(|| format!("the line ends where {what} should be"))
    }

    /// Reads the next word if it equals `word`.
    pub(super) fn take(&mut self, word: &str) -> bool {
        self.words.next_if_eq(&word).is_some()
    }

    /// Reads the next word if `test` accepts it.
    pub(super) fn take_if(&mut self, test: impl Fn(&str) -> bool) -> Option<&'t str> {
        self.words.next_if(|word| test(word))
    }

    pub(super) fn expect(&mut self, word: &str) -> Result<(), Wrong> {
        let found = self.next(&format!("`{word}`"))?;
        if found == word { Ok(()) } else { Err(format!("expected `{word}`, found `{found}`")) }
    }

    pub(super) fn parse<T: FromStr<Err: Display>>(&mut self, what: &str) -> Result<T, Wrong> {
        let word = self.next(what)?;
        word.parse().map_err(|error| format!("`{word}` is not {what}: {error}"))
    }

    /// Returns an error if words remain.
    pub(super) fn end(&mut self) -> Result<(), Wrong> {
        self.words.next().map_or(Ok(()), |word| Err(format!("`{word}` is one word too many")))
    }
}

/// `key=value` words: fields that override the right values.
#[derive(Debug)]
pub(super) struct Fields<'t> {
    pairs: Vec<(&'t str, &'t str)>,
}

impl<'t> Fields<'t> {
    /// Reads all such words that follow; only `known` keys are allowed.
    pub(super) fn of(words: &mut Words<'t>, known: &[&str]) -> Result<Fields<'t>, Wrong> {
        let mut pairs = Vec::new();
        while let Some((key, value)) =
            words.take_if(|word| word.contains('=')).and_then(|w| w.split_once('='))
        {
            if !known.contains(&key) {
                return Err(format!("`{key}` is no field here; there are {}", known.join(", ")));
            }
            pairs.push((key, value));
        }
        Ok(Fields { pairs })
    }

    pub(super) fn text(&self, key: &str) -> Option<&'t str> {
        self.pairs.iter().rev().find(|(known, _)| *known == key).map(|(_, value)| *value)
    }

    /// Returns the number of a field, decimal or with `0x`; `right` if the line lacks the field.
    pub(super) fn number<T: TryFrom<u64>>(&self, key: &str, right: T) -> Result<T, Wrong> {
        let Some(text) = self.text(key) else { return Ok(right) };
        let number = match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => text.parse(),
        };
        number
            .ok()
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| format!("`{key}={text}` is not a number that fits the field"))
    }
}
