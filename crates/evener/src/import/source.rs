//! The text of the source with the files that it includes, of limited size.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use glob::{MatchOptions, glob_with};

use crate::runtime::files;

/// Maximum size of the source with all included files, in bytes.
pub(super) const FILE_BYTES: usize = 4 << 20;
/// Maximum length of a line, in bytes.
const LINE_BYTES: usize = 64 << 10;
/// Maximum depth of nested includes.
const DEPTH: usize = 8;
/// Maximum number of included files. A file that is included twice counts twice.
const FILES: usize = 4_096;

/// Error of a source that can't be read, with file and line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}, line {line}: {why}")]
pub struct ImportError {
    /// Name of the file, as given.
    pub file: String,
    /// Line number, from 1.
    pub line: usize,
    /// The problem and its remedy.
    pub why: String,
}

/// A place: a line, or the part of a line that belongs to one statement. The places of an included
/// file follow the place of the statement that includes the file.
#[derive(Clone, Debug)]
pub(super) struct SourceLine {
    /// Index of the file in [`Source::files`].
    pub(super) file: usize,
    /// Line number in the file, from 1.
    pub(super) number: usize,
    /// Line number over all files, from 1.
    pub(super) row: usize,
    pub(super) text: String,
}

/// All places of the source.
#[derive(Clone, Debug, Default)]
pub(super) struct Source {
    pub(super) files: Vec<String>,
    pub(super) lines: Vec<SourceLine>,
    /// Places of the statements whose included files were read.
    pub(super) followed: Vec<usize>,
    /// Files that can't be read, with the places of the statements that include them.
    pub(super) unread: Vec<(usize, String)>,
}

impl Source {
    /// Decodes the bytes, with one place per line.
    pub(super) fn read(bytes: &[u8], name: &str) -> Result<Source, ImportError> {
        let lines = checked(bytes, name)?.lines().enumerate();
        let line = |(at, text): (usize, &str)| SourceLine {
            file: 0,
            number: at + 1,
            row: at + 1,
            text: text.to_owned(),
        };
        let lines = lines.map(line).collect();
        Ok(Source { files: vec![name.to_owned()], lines, followed: Vec::new(), unread: Vec::new() })
    }

    /// Returns the line at this place, from 1.
    pub(super) fn line(&self, place: usize) -> Option<&SourceLine> {
        self.lines.get(place.checked_sub(1)?)
    }

    /// Returns the line numbers of these places, counted over all files.
    pub(super) fn rows(&self, places: &BTreeSet<usize>) -> BTreeSet<usize> {
        places.iter().filter_map(|place| self.line(*place)).map(|line| line.row).collect()
    }

    /// Returns an error at this place.
    pub(super) fn error(&self, place: usize, why: impl Into<String>) -> ImportError {
        let line = self.line(place).or(self.lines.last());
        let file = line.and_then(|line| self.files.get(line.file)).or(self.files.first());
        ImportError {
            file: file.cloned().unwrap_or_default(),
            line: line.map_or(1, |line| line.number),
            why: why.into(),
        }
    }
}

/// Finds and opens included files, within the limits.
#[derive(Debug, Default)]
pub(super) struct Includes {
    /// Folders for relative names. The first folder belongs to the first file. If `is_nested`, each
    /// open file adds its own folder. Without a folder, no file is included.
    folders: Vec<PathBuf>,
    /// True if names are relative to the including file, not to the first file.
    is_nested: bool,
    /// The open files, each included by the previous one.
    open: Vec<PathBuf>,
    files: usize,
    bytes: usize,
}

impl Includes {
    /// Creates the includes of a first file.
    pub(super) fn of(source: &Source, folder: Option<&Path>, is_nested: bool) -> Includes {
        let name = source.files.first().map(String::as_str).unwrap_or_default();
        let bytes = source.lines.iter().map(|line| line.text.len() + 1).sum();
        Includes {
            folders: folder.map(Path::to_owned).into_iter().collect(),
            is_nested,
            open: vec![real_path(Path::new(name))],
            files: 1,
            bytes,
        }
    }

    /// Returns the files that match a pattern, sorted.
    pub(super) fn find(&self, pattern: &str) -> Vec<PathBuf> {
        let folder = self.folders.last().filter(|_| self.open.len() <= DEPTH);
        folder.map(|folder| find(folder, pattern)).unwrap_or_default()
    }

    /// Opens a file. Returns its lines, or `None` if the file can't be read.
    /// Each opened file is closed with [`Includes::close`].
    ///
    /// # Errors
    /// If the including statement is wrong, or the contents of the file.
    pub(super) fn open(&mut self, path: &Path) -> Result<Option<Vec<String>>, IncludeError> {
        let Ok(bytes) = files::bounded(path, FILE_BYTES as u64) else { return Ok(None) };
        let folder = path.parent().filter(|_| self.is_nested).map(Path::to_owned);
        let path = real_path(path);
        if self.open.contains(&path) {
            let why = "this file includes itself: remove one of the lines".to_owned();
            return Err(IncludeError::Here(why));
        }
        self.bytes += bytes.len();
        self.files += 1;
        if self.bytes > FILE_BYTES {
            return Err(IncludeError::Here(too_large()));
        }
        if self.files > FILES {
            let why = format!("more than {FILES} files are included: import them in parts");
            return Err(IncludeError::Here(why));
        }
        let name = path.display().to_string();
        let lines = checked(&bytes, &name).map_err(IncludeError::There)?.lines().map(str::to_owned).collect();
        self.open.push(path);
        self.folders.extend(folder.or_else(|| self.folders.last().cloned()));
        Ok(Some(lines))
    }

    /// Closes the file that was opened last.
    pub(super) fn close(&mut self) {
        self.folders.pop();
        self.open.pop();
    }
}

/// Error of an included file.
pub(super) enum IncludeError {
    /// Error of the statement that includes the file.
    Here(String),
    /// Error within the file.
    There(ImportError),
}

fn too_large() -> String {
    format!("the file is larger than {} MiB: name the configuration itself", FILE_BYTES >> 20)
}

/// Decodes the bytes as text. The error has the first line that can't be part of a configuration.
fn checked<'b>(bytes: &'b [u8], name: &str) -> Result<&'b str, ImportError> {
    let error = |at: usize, why: String| {
        let before = bytes.get(..at).unwrap_or_default();
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        Err(ImportError { file: name.to_owned(), line, why })
    };
    if bytes.len() > FILE_BYTES {
        return error(FILE_BYTES, too_large());
    }
    if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
        return error(at, "there is a zero byte, so this is no text: name a configuration file".to_owned());
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(wrong) => {
            return error(wrong.valid_up_to(), "this is not UTF-8 text: save the file as UTF-8".to_owned());
        }
    };
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if line.len() > LINE_BYTES {
            let why = format!("the line is longer than {} KiB: break it, or leave it out", LINE_BYTES >> 10);
            return error(at, why);
        }
        at += line.len();
    }
    Ok(text)
}

fn find(folder: &Path, pattern: &str) -> Vec<PathBuf> {
    let whole = match Path::new(pattern).is_absolute() || folder.as_os_str().is_empty() {
        true => pattern.to_owned(),
        false => format!("{}/{pattern}", glob::Pattern::escape(&folder.display().to_string())),
    };
    let options = MatchOptions { require_literal_leading_dot: true, ..MatchOptions::default() };
    glob_with(&whole, options).map(|found| found.flatten().collect()).unwrap_or_default()
}

/// Returns the path without symbolic links, or the path itself if there is no such file.
fn real_path(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    fn why(bytes: &[u8]) -> (usize, String) {
        let error = Source::read(bytes, "f").unwrap_err();
        (error.line, error.why)
    }

    #[test]
    fn unreadable_text_names_its_line() {
        assert!(matches!(why(b"a\nb\0"), (2, why) if why.contains("zero byte")));
        assert!(matches!(why(b"a\nb\nc\xff"), (3, why) if why.contains("UTF-8")));
        let long = format!("a\n{}\n", "x".repeat(1 << 20));
        assert!(matches!(why(long.as_bytes()), (2, why) if why.contains("longer than 64 KiB")));
        let large = "line of text\n".repeat(1 << 20);
        assert!(matches!(why(large.as_bytes()), (line, why) if line > 300_000 && why.contains("4 MiB")));
    }
}
