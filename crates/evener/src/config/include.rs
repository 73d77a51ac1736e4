//! `include`: files with services and names, read as if their text were in the including file.
//!
//! Offsets count over all texts, one text after the other. So checks between services don't need to
//! know the files. [`by_file`] maps problems back to their files.

use std::collections::BTreeSet;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::NamesText;
use super::patterns;
use super::problems::{Problem, ProblemSink, Span, line_and_column};
use super::syntax;
use super::variables::{self, VariableLookup};

/// Help for other keys in an included file.
const OTHERS: &str = "an included file holds [[service]], [[dns.zone]] and [[dns.name]] alone: move this into the file that includes it";

/// A file that another one includes.
#[derive(Debug)]
pub(super) struct IncludedFile {
    /// Name of the file in problems.
    pub(super) name: String,
    pub(super) text: String,
    /// Offset of its text, after the texts of the other files.
    base: usize,
}

/// A text and its origin.
#[derive(Clone, Copy)]
pub(super) struct SourceText<'a> {
    /// Name of the file, as given.
    pub(super) name: &'a str,
    pub(super) text: &'a str,
    /// Folder of included files and of files with names. `None`: no included file and no file with
    /// names is read.
    pub(super) folder: Option<&'a Path>,
    /// Files that the text includes.
    pub(super) included: &'a [IncludedFile],
    /// Files of `names_from`, if they were read before. `None`: they are read now.
    pub(super) names: Option<&'a [NamesText]>,
    pub(super) variables: VariableLookup,
}

impl<'a> SourceText<'a> {
    /// Creates the source for a file of this host.
    pub(super) fn of_file(path: &'a Path, name: &'a str, text: &'a str) -> SourceText<'a> {
        let folder = path.parent();
        SourceText { name, text, folder, included: &[], names: None, variables: variables::environment }
    }

    /// Creates the source for a text without a file.
    pub(super) fn alone(name: &'a str, text: &'a str) -> SourceText<'a> {
        SourceText { name, text, folder: None, included: &[], names: None, variables: |_| None }
    }
}

/// Replaces the variables of the table, removes `include` from it, and reads the included files.
/// Paths are relative to the origin's folder. Files that match one pattern are read in alphabetical
/// order. Without a folder no file is read.
pub(super) fn files(
    table: &mut DeTable<'_>,
    origin: SourceText<'_>,
    sink: &ProblemSink,
) -> Vec<IncludedFile> {
    variables::expand(table, origin.text, origin.variables, sink);
    let mut files: Vec<IncludedFile> = Vec::new();
    let Some(value) = table.remove("include") else { return files };
    let patterns = patterns_of(&value, sink);
    let Some(folder) = origin.folder else { return files };
    let mut seen = BTreeSet::new();
    let mut base = origin.text.len() + 1;
    for pattern in &patterns {
        for path in patterns::find(folder, pattern, |problem| sink.push(problem)) {
            if !seen.insert(path.clone()) {
                continue;
            }
            match patterns::text(&path) {
                Ok(text) => {
                    let length = text.len();
                    files.push(IncludedFile { name: path.display().to_string(), text, base });
                    base += length + 1;
                }
                Err(why) => {
                    let message = format!("failed to read {}: {why}", path.display());
                    let help = "name a TOML file with [[service]] that the daemon may read";
                    sink.push(Problem::new(pattern.span(), message, help));
                }
            }
        }
    }
    files
}

/// Returns the patterns: one, or a list.
fn patterns_of(value: &Spanned<DeValue<'_>>, sink: &ProblemSink) -> Vec<Spanned<String>> {
    let one = |called: &str, value: &Spanned<DeValue<'_>>| match patterns::pattern(value.get_ref()) {
        Ok(text) => Some(Spanned::new(value.span(), text)),
        Err(complaint) => {
            let message = format!("{called} {}", complaint.problem);
            sink.push(Problem::new(value.span(), message, complaint.help));
            None
        }
    };
    match value.get_ref() {
        DeValue::Array(entries) => {
            entries.iter().filter_map(|entry| one("an entry of `include`", entry)).collect()
        }
        _ => one("`include`", value).into_iter().collect(),
    }
}

/// Appends the contents of the files to the table, with their variables replaced.
pub(super) fn merge<'d>(
    table: &mut DeTable<'d>,
    files: &'d [IncludedFile],
    origin: SourceText<'_>,
    sink: &ProblemSink,
) {
    for file in files {
        let own = ProblemSink::default();
        match syntax::parse(&file.text, &own) {
            Ok(document) => {
                let mut document = document.into_inner();
                variables::expand(&mut document, &file.text, origin.variables, &own);
                append_all(table, document, file, &own);
            }
            Err(problem) => own.push(problem),
        }
        for problem in own.drain() {
            let span = problem.span.map(|span| moved(span, file.base));
            let also = problem.also.map(|(span, label)| (moved(span, file.base), label));
            sink.push(Problem { span, also, ..problem });
        }
    }
}

/// Appends the tables of one file. Other keys are reported.
fn append_all<'d>(table: &mut DeTable<'d>, document: DeTable<'d>, file: &IncludedFile, own: &ProblemSink) {
    let unknown = |name: String, span: Span| {
        own.push(Problem::new(span, format!("unknown key {name:?} in an included file"), OTHERS));
    };
    for (key, value) in document {
        let span = value.span();
        match (key.get_ref().as_ref(), value.into_inner()) {
            ("service", DeValue::Array(entries)) => append(table, "service", entries, span, file.base),
            ("dns", DeValue::Table(inner)) => {
                let dns = dns(table, moved(span, file.base));
                for (key, value) in inner {
                    let span = value.span();
                    match (key.get_ref().as_ref(), value.into_inner(), &mut *dns) {
                        ("zone", DeValue::Array(zones), DeValue::Table(dns)) => {
                            append(dns, "zone", zones, span, file.base);
                        }
                        ("name", DeValue::Array(names), DeValue::Table(dns)) => {
                            append(dns, "name", names, span, file.base);
                        }
                        (name, ..) => unknown(format!("dns.{name}"), key.span()),
                    }
                }
            }
            (name, _) => unknown(name.to_owned(), key.span()),
        }
    }
}

/// Returns the table `[dns]`, and creates it if it is missing.
fn dns<'t, 'd>(table: &'t mut DeTable<'d>, place: Span) -> &'t mut DeValue<'d> {
    table
        .entry(Spanned::new(place.clone(), "dns".into()))
        .or_insert_with(|| Spanned::new(place, DeValue::Table(DeTable::new())))
        .get_mut()
}

/// Appends to the array `key`, and creates it if it is missing.
fn append<'d>(table: &mut DeTable<'d>, key: &'static str, entries: DeArray<'d>, span: Span, base: usize) {
    let place = moved(span, base);
    let there = table
        .entry(Spanned::new(place.clone(), key.into()))
        .or_insert_with(|| Spanned::new(place, DeValue::Array(DeArray::default())));
    if let DeValue::Array(array) = there.get_mut() {
        for entry in entries {
            array.push(moved_value(entry, base));
        }
    }
}

fn moved(span: Span, base: usize) -> Span {
    span.start + base..span.end + base
}

/// Returns the value with all offsets shifted by `base`.
fn moved_value(value: Spanned<DeValue<'_>>, base: usize) -> Spanned<DeValue<'_>> {
    let span = moved(value.span(), base);
    let inner = match value.into_inner() {
        DeValue::Array(entries) => {
            DeValue::Array(entries.into_iter().map(|entry| moved_value(entry, base)).collect())
        }
        DeValue::Table(table) => {
            let moved_pair = |(key, value): (Spanned<_>, _)| {
                (Spanned::new(moved(key.span(), base), key.into_inner()), moved_value(value, base))
            };
            DeValue::Table(table.into_iter().map(moved_pair).collect())
        }
        other => other,
    };
    Spanned::new(span, inner)
}

/// Returns the file of an offset: its name, its text and the offset in it.
pub(super) fn file_at<'f>(origin: SourceText<'f>, at: usize) -> (&'f str, &'f str, usize) {
    match origin.included.iter().rev().find(|file| file.base <= at) {
        Some(file) => (&file.name, &file.text, at - file.base),
        None => (origin.name, origin.text, at),
    }
}

/// Sorts problems by file, with offsets in their files.
pub(super) fn by_file<'f>(
    problems: Vec<Problem>,
    origin: SourceText<'f>,
) -> Vec<(&'f str, &'f str, Vec<Problem>)> {
    let mut files = vec![(origin.name, origin.text, Vec::new())];
    files.extend(origin.included.iter().map(|file| (file.name.as_str(), file.text.as_str(), Vec::new())));
    for problem in problems {
        let place = |at: usize| origin.included.iter().filter(|file| file.base <= at).count();
        let number = problem.span.as_ref().map_or(0, |span| place(span.start));
        let base = number.checked_sub(1).and_then(|at| origin.included.get(at)).map_or(0, |file| file.base);
        let back = |span: Span| span.start - base..span.end.saturating_sub(base);
        let Problem { span, also, mut message, help, cause } = problem;
        let also = also.and_then(|(other, label)| {
            if place(other.start) == number {
                return Some((back(other), label));
            }
            let (name, text, at) = file_at(origin, other.start);
            message.push_str(&format!(" ({label}: {name}:{})", line_and_column(text, at).0));
            None
        });
        if let Some((_, _, list)) = files.get_mut(number) {
            list.push(Problem { span: span.map(back), also, message, help, cause });
        }
    }
    files
}
