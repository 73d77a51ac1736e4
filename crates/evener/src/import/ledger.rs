//! The ledger of an import: each place of the source is carried over, or left with a reason.
//! A place is a line, or the part of a line that belongs to one statement.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use serde::Serialize;

use super::reasons::{self, LeftReason, Weight};
use super::source::Source;
use super::tree::Statement;
use crate::runtime::shown::is_shown;

/// Maximum length of an excerpt of the source in a report, in characters.
const EXCERPT: usize = 72;

/// A part of the source without a counterpart in the new file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Left {
    pub weight: Weight,
    pub file: String,
    /// First line in the file, from 1.
    pub line: usize,
    /// Last line in the file.
    pub end: usize,
    /// Excerpt of the source: the line, the part that is left, or the beginning of several lines.
    pub text: String,
    /// Why the part has no counterpart.
    pub why: String,
    pub todo: String,
    /// Lines, counted over all files.
    #[serde(skip)]
    pub lines: RangeInclusive<usize>,
    #[serde(skip)]
    pub(super) places: RangeInclusive<usize>,
}

impl Left {
    /// Returns the reason alone.
    pub(super) fn reason(&self) -> LeftReason {
        let (why, todo) = (self.why.clone().into(), self.todo.clone().into());
        LeftReason { weight: self.weight, why, todo }
    }
}

/// A value that the new file needs and the source doesn't have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Blank {
    /// Line that needs the value. `None` is the whole farm.
    pub line: Option<usize>,
    /// Address of a documentation network that is written instead (RFC 5737).
    pub placeholder: String,
    /// Description of the missing value.
    pub todo: String,
}

/// The ledger while an import runs.
#[derive(Debug)]
pub(super) struct Ledger<'s> {
    pub(super) source: &'s Source,
    pub(super) significant: BTreeSet<usize>,
    pub(super) carried: BTreeSet<usize>,
    pub(super) left: Vec<Left>,
    pub(super) blanks: Vec<Blank>,
    /// Places in all entries of `left`.
    left_places: BTreeSet<usize>,
    /// First and last place, text and reason of all entries of `left`, to avoid duplicates.
    noted: BTreeSet<(usize, usize, String, String)>,
}

impl<'s> Ledger<'s> {
    /// Creates the ledger of a source. Only the `significant` places are accounted for.
    pub(super) fn new(source: &'s Source, significant: BTreeSet<usize>) -> Ledger<'s> {
        let mut ledger = Ledger {
            source,
            significant,
            carried: BTreeSet::new(),
            left: Vec::new(),
            blanks: Vec::new(),
            left_places: BTreeSet::new(),
            noted: BTreeSet::new(),
        };
        source.followed.iter().for_each(|place| ledger.carry(*place));
        for (place, file) in &source.unread {
            ledger.leave_part(*place, file, &reasons::UNREADABLE);
        }
        ledger
    }

    /// Records that a place is carried over.
    pub(super) fn carry(&mut self, place: usize) {
        if self.significant.contains(&place) {
            self.carried.insert(place);
        }
    }

    /// Records that all these places are carried over.
    pub(super) fn carry_all(&mut self, places: impl IntoIterator<Item = usize>) {
        places.into_iter().for_each(|place| self.carry(place));
    }

    /// Leaves a place with a reason.
    pub(super) fn leave(&mut self, place: usize, reason: &LeftReason) {
        self.leave_span(place..=place, None, reason);
    }

    /// Leaves a part of a place with a reason. The rest of it may be carried over.
    pub(super) fn leave_part(&mut self, place: usize, part: &str, reason: &LeftReason) {
        self.leave_span(place..=place, Some(part), reason);
    }

    /// Leaves a statement and its block with a reason.
    pub(super) fn leave_statement(&mut self, statement: &Statement, reason: &LeftReason) {
        let mut text = statement.words.join(" ");
        if statement.block.is_some() {
            text.push_str(" {");
        }
        self.leave_span(statement.whole(), Some(&text), reason);
    }

    /// Leaves several places with a reason.
    pub(super) fn leave_span(
        &mut self,
        places: RangeInclusive<usize>,
        part: Option<&str>,
        reason: &LeftReason,
    ) {
        let Some(first) = self.source.line(*places.start()) else { return };
        let is_there = || self.source.followed.contains(places.start());
        if *reason == reasons::NOT_FOLLOWED && is_there() {
            return;
        }
        let last = self.source.line(*places.end()).filter(|last| last.file == first.file).unwrap_or(first);
        // An included file may be no configuration but, for example, a file of secrets. Unknown
        // statements of included files are therefore not quoted.
        let is_strange = *reason == reasons::UNKNOWN || *reason == reasons::CONDITION;
        let text = match first.file > 0 && is_strange {
            true => "not quoted, since it may be no configuration".to_owned(),
            false => excerpt(part.unwrap_or(&first.text), places.end() > places.start()),
        };
        let left = Left {
            weight: reason.weight,
            file: self.source.files.get(first.file).cloned().unwrap_or_default(),
            line: first.number,
            end: last.number,
            text,
            why: reason.why.clone().into_owned(),
            todo: reason.todo.clone().into_owned(),
            lines: first.row..=last.row,
            places,
        };
        self.left_places.extend(left.places.clone());
        let key = (*left.places.start(), *left.places.end(), left.text.clone(), left.why.clone());
        if self.noted.insert(key) {
            self.left.push(left);
        }
    }

    /// Records a value that the user has to fill in.
    pub(super) fn blank(&mut self, place: usize, placeholder: impl ToString, todo: impl Into<String>) {
        let Some(line) = self.source.line(place) else { return };
        let blank =
            Blank { line: Some(line.number), placeholder: placeholder.to_string(), todo: todo.into() };
        let is_known = |known: &Blank| (&known.placeholder, &known.todo) == (&blank.placeholder, &blank.todo);
        if !self.blanks.iter().any(is_known) {
            self.blanks.push(blank);
        }
    }

    /// Returns the significant places of a range that are neither carried over nor left.
    fn open(&self, places: RangeInclusive<usize>) -> Vec<usize> {
        if places.is_empty() {
            return Vec::new();
        }
        let is_open = |place: &&usize| !self.carried.contains(place) && !self.left_places.contains(place);
        self.significant.range(places).filter(is_open).copied().collect()
    }

    /// True if no place of a range is carried over or left.
    pub(super) fn is_open(&self, places: RangeInclusive<usize>) -> bool {
        !self.has_carried(places.clone()) && self.left_places.range(places).next().is_none()
    }

    /// True if a place of the range is carried over.
    pub(super) fn has_carried(&self, places: RangeInclusive<usize>) -> bool {
        self.carried.range(places).next().is_some()
    }

    /// Leaves the places of a range that are neither carried over nor left yet.
    pub(super) fn leave_open(&mut self, places: RangeInclusive<usize>, reason: &LeftReason) {
        self.open(places).into_iter().for_each(|place| self.leave(place, reason));
    }

    /// Leaves places that were carried over, except the places in `needed`.
    pub(super) fn take_back(
        &mut self,
        places: &BTreeSet<usize>,
        needed: &BTreeSet<usize>,
        reason: &LeftReason,
    ) {
        for place in places.difference(needed) {
            if self.significant.contains(place) {
                self.carried.remove(place);
                self.leave(*place, reason);
            }
        }
    }

    /// Leaves all remaining places as unknown, and sorts the entries in the order of the source.
    pub(super) fn close(&mut self) {
        self.leave_open(1..=usize::MAX, &reasons::UNKNOWN);
        self.left.sort_by_key(|left| (*left.places.start(), *left.places.end()));
    }
}

/// Words that precede a secret.
const SECRETS: [&str; 5] = ["auth_pass", "password", "insecure-password", "authorization", "bearer"];

/// Returns an excerpt for a report, without secrets.
fn excerpt(text: &str, goes_on: bool) -> String {
    let mut words: Vec<&str> = text.split_whitespace().collect();
    let bare = |word: &str| word.trim_matches(['"', '\'', ':']).to_ascii_lowercase();
    let is_secret = |at: usize, word: &str| {
        // The login of HAProxy's statistics page.
        let is_login = word == "auth" && at > 0 && words.get(at - 1) == Some(&"stats");
        is_login || SECRETS.contains(&bare(word).as_str())
    };
    let secret = words.iter().enumerate().position(|(at, word)| is_secret(at, word));
    if let Some(at) = secret.filter(|at| at + 1 < words.len()) {
        words.truncate(at + 1);
        words.push("***");
    }
    let words = words.join(" ");
    let printable = words.chars().filter(|c| is_shown(*c));
    let mut shown: String = printable.take(EXCERPT).collect();
    if goes_on || words.chars().count() > EXCERPT {
        shown.push_str(" ...");
    }
    shown
}
