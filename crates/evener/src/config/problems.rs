//! Problems of a file: all at once, each with its position and a remedy.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use serde::Serialize;

use super::defaults;

/// Range of a text, in bytes.
pub(super) type Span = Range<usize>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    /// Position. `None` if the file can't be read.
    pub(super) span: Option<Span>,
    /// Another position that explains the problem, with a label.
    pub(super) also: Option<(Span, &'static str)>,
    pub(super) message: String,
    pub(super) help: String,
    pub(super) cause: Cause,
}

/// Cause of a problem. It decides whether the problem is dropped because of another problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Syntax,
    Value,
    Missing,
    /// An unset variable, so that the string around it is unknown.
    Variable,
}

impl Problem {
    pub(super) fn new(span: Span, message: impl Into<String>, help: impl Into<String>) -> Self {
        let (message, help) = (message.into(), help.into());
        Problem { span: Some(span), also: None, message, help, cause: Cause::Value }
    }

    pub(super) fn missing(span: Span, message: impl Into<String>, help: impl Into<String>) -> Self {
        Problem { cause: Cause::Missing, ..Problem::new(span, message, help) }
    }

    pub(super) fn also(self, span: Span, label: &'static str) -> Self {
        Problem { also: Some((span, label)), ..self }
    }
}

/// Collects problems while a file is read, so that reading goes on after a problem.
#[derive(Debug, Default)]
pub(super) struct ProblemSink {
    problems: RefCell<Vec<Problem>>,
    /// Files of authorities for certificates, with the positions of their names.
    authorities: RefCell<Vec<(Span, PathBuf)>>,
}

impl ProblemSink {
    /// Adds a problem, unless there are [`defaults::NOTED_PROBLEMS`] already.
    pub(super) fn push(&self, problem: Problem) {
        let mut problems = self.problems.borrow_mut();
        if problems.len() < defaults::NOTED_PROBLEMS {
            problems.push(problem);
        }
    }

    /// Returns and clears the problems.
    pub(super) fn drain(&self) -> Vec<Problem> {
        self.problems.take()
    }

    pub(super) fn note_authorities(&self, span: Span, file: &Path) {
        self.authorities.borrow_mut().push((span, file.to_owned()));
    }

    /// Returns and clears the files of authorities.
    pub(super) fn drain_authorities(&self) -> Vec<(Span, PathBuf)> {
        self.authorities.take()
    }
}

/// All problems of a configuration file, and of its files of names, in the order of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    file: String,
    parts: Vec<FileProblems>,
    omitted: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FileProblems {
    file: String,
    text: String,
    list: Vec<Problem>,
}

/// A problem, or a note on a valid file, as `evener check --json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProblemReport<'p> {
    /// Name of the file, as given.
    pub file: &'p str,
    /// Line from 1. `None` for notes, and if the file can't be read.
    pub line: Option<usize>,
    /// Column from 1, in characters.
    pub column: Option<usize>,
    /// `error`, or `note` on a valid file.
    pub level: &'static str,
    /// Text of the problem or the note.
    pub message: &'p str,
    pub help: &'p str,
}

impl Problems {
    pub(super) fn new(file: &str, text: &str, list: Vec<Problem>) -> Self {
        Problems::of(file, [(file, text, list)])
    }

    /// Creates the problems of several files, each with its text. `file` is the main file.
    pub(super) fn of<'f>(
        file: &str,
        files: impl IntoIterator<Item = (&'f str, &'f str, Vec<Problem>)>,
    ) -> Self {
        let mut problems = Problems { file: file.to_owned(), parts: Vec::new(), omitted: 0 };
        let mut remaining = defaults::PROBLEMS;
        for (file, text, mut list) in files {
            drop_echoes(text, &mut list);
            list.sort_by_key(|problem| problem.span.as_ref().map(|span| span.start));
            problems.omitted += list.len().saturating_sub(remaining);
            list.truncate(remaining);
            remaining -= list.len();
            for problem in &mut list {
                problem.span = problem.span.take().map(|span| within(text, span));
                problem.also = problem.also.take().map(|(span, label)| (within(text, span), label));
            }
            if !list.is_empty() {
                problems.parts.push(FileProblems { file: file.to_owned(), text: text.to_owned(), list });
            }
        }
        problems
    }

    /// Creates the problem of a file that can't be read.
    pub(super) fn unreadable(file: &str, message: String, help: &str) -> Self {
        let problem = Problem { span: None, also: None, message, help: help.to_owned(), cause: Cause::Value };
        Problems::new(file, "", vec![problem])
    }

    /// Returns the problems as a machine-readable list.
    pub fn reports(&self) -> impl Iterator<Item = ProblemReport<'_>> {
        self.parts.iter().flat_map(|FileProblems { file, text, list }| {
            list.iter().map(move |problem| {
                let place = problem.span.as_ref().map(|span| line_and_column(text, span.start));
                ProblemReport {
                    file,
                    line: place.map(|(line, _)| line),
                    column: place.map(|(_, column)| column),
                    level: "error",
                    message: &problem.message,
                    help: &problem.help,
                }
            })
        })
    }

    /// Formats the problems for people: each with its line, a caret and a remedy.
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let mut out = String::new();
        for part in &self.parts {
            for problem in &part.list {
                out.push_str(&part.render_one(&renderer, problem));
                out.push_str("\n\n");
            }
        }
        let shown: usize = self.parts.iter().map(|part| part.list.len()).sum();
        let count = shown + self.omitted;
        let errors = match count {
            1 => "1 error".to_owned(),
            defaults::NOTED_PROBLEMS.. => format!("{count} errors or more"),
            _ => format!("{count} errors"),
        };
        out.push_str(&format!("{}: {errors}", self.file));
        if self.omitted > 0 {
            out.push_str(&format!(", the first {shown} are shown"));
        }
        out
    }
}

impl FileProblems {
    fn render_one(&self, renderer: &Renderer, problem: &Problem) -> String {
        let title = Level::ERROR.primary_title(problem.message.as_str());
        let help = Level::HELP.message(problem.help.as_str());
        let Some(span) = problem.span.clone() else {
            return renderer.render(&[title.element(help)]);
        };
        let mut snippet = Snippet::source(self.text.as_str())
            .path(self.file.as_str())
            .annotation(AnnotationKind::Primary.span(span));
        if let Some((span, label)) = problem.also.clone() {
            snippet = snippet.annotation(AnnotationKind::Context.span(span).label(label));
        }
        renderer.render(&[title.element(snippet).element(help)])
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for Problems {}

/// Removes problems that only follow from other problems.
///
/// A string with an unset variable is invalid in other ways, too. Near a syntax error the rest of
/// the file is uncertain: missing keys may only be unreadable. Problems on the same line follow
/// from the error. After a broken header, keys seem to be in another table.
fn drop_echoes(text: &str, list: &mut Vec<Problem>) {
    let mut variables: Vec<Span> = list
        .iter()
        .filter(|problem| problem.cause == Cause::Variable)
        .filter_map(|problem| problem.span.clone())
        .collect();
    variables.sort_by_key(|variable| variable.start);
    // Variables don't overlap. The first variable that starts in the span also ends first.
    let holds_variable = |problem: &Problem| {
        let Some(span) = &problem.span else { return false };
        let behind = variables.partition_point(|variable| variable.start < span.start);
        variables.get(behind).is_some_and(|variable| variable.end <= span.end)
    };
    list.retain(|problem| problem.cause == Cause::Variable || !holds_variable(problem));
    let starts = LineStarts::of(text);
    let start_of = |problem: &Problem| problem.span.as_ref().map_or(0, |span| starts.line(span.start));
    let broken: BTreeSet<usize> = list.iter().filter(|p| p.cause == Cause::Syntax).map(start_of).collect();
    if broken.is_empty() {
        return;
    }
    let header = broken.iter().copied().find(|&start| line_at(text, start).trim_start().starts_with('['));
    list.retain(|problem| match problem.cause {
        Cause::Syntax => true,
        Cause::Missing => false,
        Cause::Value | Cause::Variable => {
            let start = start_of(problem);
            !broken.contains(&start) && header.is_none_or(|header| start < header)
        }
    });
}

/// Offsets of all line starts, for fast lookups in a text with many problems.
pub(super) struct LineStarts(Vec<usize>);

impl LineStarts {
    pub(super) fn of(text: &str) -> LineStarts {
        LineStarts(text.match_indices('\n').map(|(newline, _)| newline + 1).collect())
    }

    /// Returns the start of the line around `at`, independent of the line's length.
    pub(super) fn line(&self, at: usize) -> usize {
        let before = self.0.partition_point(|start| *start <= at);
        before.checked_sub(1).and_then(|number| self.0.get(number)).copied().unwrap_or(0)
    }
}

/// Returns the line around `at`, without its end.
pub(super) fn line_at(text: &str, at: usize) -> &str {
    text.get(line_start(text, at)..).unwrap_or_default().lines().next().unwrap_or_default()
}

/// Returns the start of the line around `at`.
pub(super) fn line_start(text: &str, at: usize) -> usize {
    text.get(..floor(text, at)).unwrap_or_default().rfind('\n').map_or(0, |newline| newline + 1)
}

/// Cuts the span to its first line and to whole characters, for a caret under it.
fn within(text: &str, span: Span) -> Span {
    let start = floor(text, span.start);
    let rest = text.get(start..).unwrap_or_default();
    let line_end = start + rest.find(['\r', '\n']).unwrap_or(rest.len());
    let end = floor(text, span.end).clamp(start, line_end.max(start));
    start..end
}

/// Returns the last character boundary at or before `at`.
fn floor(text: &str, at: usize) -> usize {
    let at = at.min(text.len());
    (0..=at).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0)
}

/// Returns line and column, from 1. The column is in characters.
pub(super) fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or_default();
    let column = before.get(line_start(text, at)..).unwrap_or_default().chars().count();
    (before.matches('\n').count() + 1, column + 1)
}
