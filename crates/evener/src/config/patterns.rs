//! Patterns of file names, and the files that match.

use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern};
use toml::Spanned;
use toml::de::DeValue;

use super::problems::{Problem, Span};
use super::section::Complaint;
use super::{defaults, values};
use crate::runtime::files;

pub(super) fn pattern(value: &DeValue<'_>) -> Result<String, Complaint> {
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

/// Returns the files that match a pattern, in alphabetical order. A pattern without a wildcard is a
/// path, whether the file exists or not.
pub(super) fn find(folder: &Path, pattern: &Spanned<String>, problem: impl Fn(Problem)) -> Vec<PathBuf> {
    let text = pattern.get_ref();
    if !text.contains(['*', '?', '[']) {
        return vec![folder.join(text)];
    }
    let escaped = Pattern::escape(&folder.display().to_string());
    let whole = match folder.as_os_str().is_empty() || Path::new(text).is_absolute() {
        true => text.clone(),
        false => format!("{escaped}/{text}"),
    };
    // Wildcards match no hidden files, as in shells, so that an editor's half-written copy is
    // skipped.
    let options = MatchOptions { require_literal_leading_dot: true, ..MatchOptions::default() };
    let found = match glob::glob_with(&whole, options) {
        Ok(found) => found,
        Err(error) => {
            problem(unreadable(pattern.span(), &error.to_string()));
            return Vec::new();
        }
    };
    let readable = found.filter_map(|path| match path {
        Ok(path) => Some(path),
        Err(error) => {
            problem(unreadable(pattern.span(), &error.to_string()));
            None
        }
    });
    readable.collect()
}

fn unreadable(span: Span, why: &str) -> Problem {
    let message = format!("files can't be found by this: {why}");
    Problem::new(span, message, "make the folder readable for the daemon, or name another")
}

/// Reads a file as text.
pub(super) fn text(path: &Path) -> Result<String, String> {
    let bytes = files::bounded(path, defaults::FILE_BYTES as u64).map_err(|error| error.to_string())?;
    String::from_utf8(bytes)
        .map_err(|error| format!("byte {} is no UTF-8 text", error.utf8_error().valid_up_to()))
}
