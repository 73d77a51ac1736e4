//! The account of an import: each line of the source is carried over, or left with a reason.

use std::collections::BTreeSet;

use serde::Serialize;

use super::reasons::{self, LeftReason};
use super::source::Source;
use super::tree::Statement;
use crate::runtime::shown::is_shown;

/// The longest excerpt of the source in a report, in characters.
const EXCERPT: usize = 72;

/// Something of the source that the new file does without.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Left {
    /// The file that it stands in.
    pub file: String,
    /// Its first line there, from 1.
    pub line: usize,
    /// Its last line.
    pub end: usize,
    /// The line, or the part of it that is left, or the beginning of several.
    pub text: String,
    /// Why it has no counterpart.
    pub why: String,
    /// The remedy.
    pub todo: String,
    /// Its lines, by their places in the whole source.
    #[serde(skip)]
    pub lines: std::ops::RangeInclusive<usize>,
}

/// A value that the new file needs and the source doesn't have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Blank {
    /// The line that it is for; `None`: the whole farm.
    pub line: Option<usize>,
    /// The address of documentation that stands in its place (RFC 5737).
    pub placeholder: String,
    /// The value that belongs there.
    pub todo: String,
}

/// The account while an import is made.
#[derive(Debug)]
pub(super) struct Ledger<'s> {
    pub(super) source: &'s Source,
    pub(super) significant: BTreeSet<usize>,
    pub(super) carried: BTreeSet<usize>,
    pub(super) left: Vec<Left>,
    pub(super) blanks: Vec<Blank>,
    /// The lines of all that is left.
    left_lines: BTreeSet<usize>,
    /// Line, text and reason of all that is left, so that each is noted once.
    noted: BTreeSet<(usize, usize, String, String)>,
}

impl<'s> Ledger<'s> {
    /// Of a source with these lines to account for.
    pub(super) fn new(source: &'s Source, significant: BTreeSet<usize>) -> Ledger<'s> {
        let mut ledger = Ledger {
            source,
            significant,
            carried: BTreeSet::new(),
            left: Vec::new(),
            blanks: Vec::new(),
            left_lines: BTreeSet::new(),
            noted: BTreeSet::new(),
        };
        source.followed.iter().for_each(|place| ledger.carry(*place));
        ledger
    }

    /// A line has its counterpart.
    pub(super) fn carry(&mut self, place: usize) {
        if self.significant.contains(&place) {
            self.carried.insert(place);
        }
    }

    /// All of these have.
    pub(super) fn carry_all(&mut self, places: impl IntoIterator<Item = usize>) {
        places.into_iter().for_each(|place| self.carry(place));
    }

    /// A line has none.
    pub(super) fn leave(&mut self, place: usize, reason: &LeftReason) {
        self.leave_span(place..=place, None, reason.why, reason.todo);
    }

    /// A part of a line has none; the rest of the line may have.
    pub(super) fn leave_part(&mut self, place: usize, part: &str, reason: &LeftReason) {
        self.leave_span(place..=place, Some(part), reason.why, reason.todo);
    }

    /// A statement has none, with its block.
    pub(super) fn leave_statement(&mut self, statement: &Statement, reason: &LeftReason) {
        let mut text = statement.words.join(" ");
        if statement.block.is_some() {
            text.push_str(" {");
        }
        self.leave_span(statement.whole(), Some(&text), reason.why, reason.todo);
    }

    /// Several lines have none.
    pub(super) fn leave_lines(&mut self, places: std::ops::RangeInclusive<usize>, reason: &LeftReason) {
        self.leave_span(places, None, reason.why, reason.todo);
    }

    /// The same, with words of their own.
    pub(super) fn leave_span(
        &mut self,
        places: std::ops::RangeInclusive<usize>,
        part: Option<&str>,
        why: &str,
        todo: &str,
    ) {
        let Some(first) = self.source.line(*places.start()) else { return };
        let last = self.source.line(*places.end()).filter(|last| last.file == first.file);
        let left = Left {
            file: self.source.files.get(first.file).cloned().unwrap_or_default(),
            line: first.number,
            end: last.map_or(first.number, |last| last.number),
            text: excerpt(part.unwrap_or(&first.text), places.end() > places.start()),
            why: why.to_owned(),
            todo: todo.to_owned(),
            lines: places,
        };
        self.left_lines.extend(left.lines.clone());
        let key = (*left.lines.start(), *left.lines.end(), left.text.clone(), left.why.clone());
        if self.noted.insert(key) {
            self.left.push(left);
        }
    }

    /// A value is still to be filled in.
    pub(super) fn blank(&mut self, place: usize, placeholder: impl ToString, todo: impl Into<String>) {
        let Some(line) = self.source.line(place) else { return };
        let blank =
            Blank { line: Some(line.number), placeholder: placeholder.to_string(), todo: todo.into() };
        if !self.blanks.contains(&blank) {
            self.blanks.push(blank);
        }
    }

    /// The lines among these that nothing has been noted of.
    fn open(&self, places: std::ops::RangeInclusive<usize>) -> Vec<usize> {
        if places.is_empty() {
            return Vec::new();
        }
        let is_open = |place: &&usize| !self.carried.contains(place) && !self.left_lines.contains(place);
        self.significant.range(places).filter(is_open).copied().collect()
    }

    /// Whether nothing has been noted of any of these.
    pub(super) fn is_open(&self, places: std::ops::RangeInclusive<usize>) -> bool {
        !self.has_carried(places.clone()) && self.left_lines.range(places).next().is_none()
    }

    /// Whether one of these was carried over.
    pub(super) fn has_carried(&self, places: std::ops::RangeInclusive<usize>) -> bool {
        self.carried.range(places).next().is_some()
    }

    /// Leaves the open ones among these for this reason.
    pub(super) fn leave_open(&mut self, places: std::ops::RangeInclusive<usize>, reason: &LeftReason) {
        self.open(places).into_iter().for_each(|place| self.leave(place, reason));
    }

    /// Takes back what was carried from these lines, unless others still need them.
    pub(super) fn take_back(
        &mut self,
        places: &BTreeSet<usize>,
        needed: &BTreeSet<usize>,
        why: &str,
        todo: &str,
    ) {
        for place in places.difference(needed) {
            if self.significant.contains(place) {
                self.carried.remove(place);
                self.leave_span(*place..=*place, None, why, todo);
            }
        }
    }

    /// Leaves what is open as unknown, and puts all in the order of the source.
    pub(super) fn close(&mut self) {
        self.leave_open(1..=usize::MAX, &reasons::UNKNOWN);
        self.left.sort_by_key(|left| (*left.lines.start(), *left.lines.end()));
    }
}

/// A line as a report shows it.
fn excerpt(text: &str, goes_on: bool) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let printable = words.chars().filter(|c| is_shown(*c));
    let mut shown: String = printable.take(EXCERPT).collect();
    if goes_on || words.chars().count() > EXCERPT {
        shown.push_str(" ...");
    }
    shown
}
