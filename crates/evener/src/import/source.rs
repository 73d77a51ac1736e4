//! The text of another program's file: bounded, in lines, with the files that it includes.

use std::fs;
use std::path::{Path, PathBuf};

use glob::{MatchOptions, glob_with};

/// The largest file, with all that it includes, in bytes.
pub(super) const FILE_BYTES: usize = 4 << 20;
/// The longest line, in bytes.
const LINE_BYTES: usize = 64 << 10;
/// How deep files may include each other.
const DEPTH: usize = 8;
/// How many files may be included; one that is included twice counts twice.
const FILES: usize = 4_096;

/// Why a text is not read at all: a sentence with the place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}, line {line}: {why}")]
pub struct ImportError {
    /// The file, as it was named.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// The fault there, and the remedy.
    pub why: String,
}

/// A line, by its place in all of the text: included files stand behind the line that names them.
#[derive(Clone, Debug)]
pub(super) struct SourceLine {
    /// The file's place in [`Source::files`].
    pub(super) file: usize,
    /// Its number in that file, from 1.
    pub(super) number: usize,
    pub(super) text: String,
}

/// All lines. The reports count them from 1, as the file does where nothing is included.
#[derive(Clone, Debug, Default)]
pub(super) struct Source {
    pub(super) files: Vec<String>,
    pub(super) lines: Vec<SourceLine>,
    /// Places of the lines whose files stand behind them.
    pub(super) followed: Vec<usize>,
    /// The size of all lines.
    bytes: usize,
}

impl Source {
    /// Bytes as text. `folder` is where included files are; without one none is followed.
    pub(super) fn read(bytes: &[u8], name: &str, folder: Option<&Path>) -> Result<Source, ImportError> {
        let mut source = Source::default();
        source.append(bytes, name, folder, &mut Vec::new())?;
        Ok(source)
    }

    /// The line at this place, from 1.
    pub(super) fn line(&self, place: usize) -> Option<&SourceLine> {
        self.lines.get(place.checked_sub(1)?)
    }

    /// The error at a line.
    pub(super) fn error(&self, place: usize, why: impl Into<String>) -> ImportError {
        let line = self.line(place);
        let file = line.and_then(|line| self.files.get(line.file)).or(self.files.first());
        ImportError {
            file: file.cloned().unwrap_or_default(),
            line: line.map_or(place, |line| line.number),
            why: why.into(),
        }
    }

    fn append(
        &mut self,
        bytes: &[u8],
        name: &str,
        folder: Option<&Path>,
        open: &mut Vec<PathBuf>,
    ) -> Result<(), ImportError> {
        let text = checked(bytes, name)?;
        open.push(real_path(Path::new(name)));
        let file = self.files.len();
        self.files.push(name.to_owned());
        for (number, text) in text.lines().enumerate() {
            self.lines.push(SourceLine { file, number: number + 1, text: text.to_owned() });
            self.bytes += text.len() + 1;
            let found = included(text).filter(|_| open.len() <= DEPTH).zip(folder);
            for path in found.map(|(pattern, folder)| find(folder, pattern)).unwrap_or_default() {
                let place = self.lines.len();
                let Some(bytes) = readable(&path) else { continue };
                if open.contains(&real_path(&path)) {
                    return Err(self.error(place, "this file includes itself: take one of the lines out"));
                }
                self.followed.push(place);
                if self.bytes + bytes.len() > FILE_BYTES {
                    return Err(self.error(place, too_large()));
                }
                if self.files.len() > FILES {
                    let why = format!("more than {FILES} files are included: import them in parts");
                    return Err(self.error(place, why));
                }
                let name = path.display().to_string();
                self.append(&bytes, &name, Some(folder.unwrap_or(Path::new(""))), open)?;
            }
        }
        open.pop();
        Ok(())
    }
}

fn too_large() -> String {
    format!("the file is larger than {} MiB: name the configuration itself", FILE_BYTES >> 20)
}

/// The bytes as text, or the first line that can't be one of a configuration.
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

/// The file or pattern that a whole line includes, as nginx and keepalived write it.
fn included(line: &str) -> Option<&str> {
    let rest = line.trim().strip_prefix("include")?;
    let name = rest.strip_prefix([' ', '\t'])?.split(['#', ';']).next()?.trim().trim_matches(['"', '\'']);
    (!name.is_empty() && !name.contains(char::is_whitespace)).then_some(name)
}

fn find(folder: &Path, pattern: &str) -> Vec<PathBuf> {
    let whole = match Path::new(pattern).is_absolute() || folder.as_os_str().is_empty() {
        true => pattern.to_owned(),
        false => format!("{}/{pattern}", glob::Pattern::escape(&folder.display().to_string())),
    };
    let options = MatchOptions { require_literal_leading_dot: true, ..MatchOptions::default() };
    glob_with(&whole, options).map(|found| found.flatten().collect()).unwrap_or_default()
}

/// The path without symbolic links, where there is such a file.
fn real_path(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// A regular file within the bounds; anything else is not followed.
fn readable(path: &Path) -> Option<Vec<u8>> {
    let about = fs::metadata(path).ok()?;
    let is_bounded = about.is_file() && about.len() <= FILE_BYTES as u64;
    is_bounded.then(|| fs::read(path).ok()).flatten()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    fn why(bytes: &[u8]) -> (usize, String) {
        let error = Source::read(bytes, "f", None).unwrap_err();
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

    #[test]
    fn include_is_a_word_of_its_own() {
        assert_eq!(included("  include mime.types;"), Some("mime.types"));
        assert_eq!(included("include /etc/x/*.conf"), Some("/etc/x/*.conf"));
        assert_eq!(included("included x;"), None);
        assert_eq!(included("include a b;"), None);
    }
}
