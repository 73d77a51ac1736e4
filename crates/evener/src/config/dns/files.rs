//! `names_from`: files that hold names alone, so that programs can write them and there may be
//! many.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::name::{self, NameEntry, SettingsInterner};
use crate::config::problems::{Problem, ProblemSink, Span};
use crate::config::section::{Complaint, Section};
use crate::config::{defaults, syntax, values};
use crate::runtime::files;

/// The help for other keys in such a file.
const OTHERS: &str = "a file of `names_from` holds [[dns.name]] alone: move this into the file that names it";

/// A file of names, and what is wrong with it.
pub(in crate::config) struct NamesFile {
    /// As problems name it.
    pub(in crate::config) name: String,
    pub(in crate::config) text: String,
    pub(in crate::config) sink: ProblemSink,
}

/// Reads the files that the section names, relative to `folder`, in the order in which they are
/// named and by name where several fit. Without a folder none is read.
pub(super) fn read(
    section: &mut Section<'_>,
    folder: Option<&Path>,
    all: &mut SettingsInterner,
) -> (Vec<NamesFile>, Vec<NameEntry>) {
    let (mut files, mut names) = (Vec::new(), Vec::new());
    let patterns = section.one_or_list("names_from", pattern);
    let Some(folder) = folder else { return (files, names) };
    let mut seen = BTreeSet::new();
    for pattern in &patterns {
        for path in find(section, folder, pattern) {
            if !seen.insert(path.clone()) {
                continue;
            }
            match text(&path) {
                Ok(text) => {
                    let file =
                        NamesFile { name: path.display().to_string(), text, sink: ProblemSink::default() };
                    names.extend(names_of(&file, files.len(), all));
                    files.push(file);
                }
                Err(why) => {
                    let message = format!("{} cannot be read: {why}", path.display());
                    let help = "name a TOML file of [[dns.name]] that the daemon may read";
                    section.problem(Problem::new(pattern.span(), message, help));
                }
            }
        }
    }
    (files, names)
}

fn pattern(value: &DeValue<'_>) -> Result<String, Complaint> {
    let text = values::text(value)?;
    match Pattern::new(&text) {
        Ok(_) if !text.is_empty() => Ok(text),
        Ok(_) => Complaint::new("is empty", "write for example \"names.d/*.toml\""),
        Err(error) => {
            let help = "write for example \"names.d/*.toml\"; [*] stands for a star";
            Complaint::new(format!("is no pattern of file names: {}: {text:?}", error.msg), help)
        }
    }
}

/// The files that a pattern fits, by name; what has no wildcard is a file whether it is there or
/// not.
fn find(section: &Section<'_>, folder: &Path, pattern: &Spanned<String>) -> Vec<PathBuf> {
    let text = pattern.get_ref();
    if !text.contains(['*', '?', '[']) {
        return vec![folder.join(text)];
    }
    let escaped = Pattern::escape(&folder.display().to_string());
    let whole = match folder.as_os_str().is_empty() || Path::new(text).is_absolute() {
        true => text.clone(),
        false => format!("{escaped}/{text}"),
    };
    // As shells do, lest an editor's half-written copy is read.
    let options = MatchOptions { require_literal_leading_dot: true, ..MatchOptions::default() };
    let found = match glob::glob_with(&whole, options) {
        Ok(found) => found,
        Err(error) => {
            unreadable(section, pattern.span(), &error.to_string());
            return Vec::new();
        }
    };
    let readable = found.filter_map(|path| match path {
        Ok(path) => Some(path),
        Err(error) => {
            unreadable(section, pattern.span(), &error.to_string());
            None
        }
    });
    readable.collect()
}

fn unreadable(section: &Section<'_>, span: Span, why: &str) {
    let message = format!("files can't be found by this: {why}");
    section.problem(Problem::new(span, message, "make the folder readable for the daemon, or name another"));
}

/// The text of a file.
fn text(path: &Path) -> Result<String, String> {
    let bytes = files::bounded(path, defaults::FILE_BYTES as u64).map_err(|error| error.to_string())?;
    String::from_utf8(bytes)
        .map_err(|error| format!("byte {} is no UTF-8 text", error.utf8_error().valid_up_to()))
}

/// The names of a file, which is the one of this number.
fn names_of(file: &NamesFile, number: usize, all: &mut SettingsInterner) -> Vec<NameEntry> {
    let (document, errors) = DeTable::parse_recoverable(&file.text);
    if let Err(problem) = syntax::collect_errors(&file.text, &errors, &file.sink) {
        file.sink.push(problem);
        return Vec::new();
    }
    let read = |section: &mut Section<'_>| name::read(section, Some(number), all);
    let names = Section::root(document.get_ref(), &file.sink, |root| {
        root.set_unknown_key_help(OTHERS);
        root.section("dns", |dns| {
            dns.set_unknown_key_help(OTHERS);
            dns.sections("name", read)
        })
    });
    names.into_iter().flatten().collect()
}
