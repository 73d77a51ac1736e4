//! Stores run-time changes in a JSON file, which is written atomically, and their authors in an
//! audit log.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::edit::{Edit, places};
use super::record::{Author, Record};
use crate::runtime::files;
use crate::runtime::shown::json;

/// Format version of the file. Files of another version are refused.
const FORMAT: u32 = 1;
/// Maximum length of the log in bytes. A longer log is renamed to `audit.log.1`, and a new one
/// begins.
const LOG_BYTES: u64 = 16 << 20;
/// Number of rotated logs that are always kept. Older logs are kept for 30 days.
const LOGS_KEPT: u32 = 4;
const LOG_AGE: Duration = Duration::from_secs(30 * 24 * 3_600);

/// Maximum number of refused files that are kept.
const ASIDE_MAX: usize = 9;

/// Error of reading the stored changes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// The file can't be read.
    #[error("failed to read the run-time changes in {path}: {source}", path = .path.display())]
    Io {
        /// Path of the changes.
        path: PathBuf,
        source: io::Error,
    },
    /// The file has another format version, or is no valid record.
    #[error("{path} has no run-time changes of a supported version: {why}", path = .path.display())]
    Format {
        /// Path of the changes.
        path: PathBuf,
        why: String,
    },
}

/// Folder that stores run-time changes.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    folder: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    format: u32,
    #[serde(flatten)]
    record: Record,
}

/// An action, as recorded in the log.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AuditEntry {
    pub(crate) unix_ms: u64,
    pub(crate) author: Author,
    /// Generation after the action.
    pub(crate) generation: u64,
    pub(crate) message: String,
}

impl AuditEntry {
    /// Returns an entry saying that logged changes were refused and are not in force.
    pub(crate) fn refused(unix_ms: u64, refused: u64, generation: u64, why: &str) -> AuditEntry {
        let author = Author { by: "evener".to_owned(), from: "the engine".to_owned() };
        let message = format!("refused and undone, up to generation {refused}: {why}");
        AuditEntry { unix_ms, author, generation, message }
    }

    /// Returns an entry saying that a reload or a start has dropped edits. If `edits` is empty, all
    /// run-time changes were dropped.
    pub(crate) fn dropped(unix_ms: u64, edits: &[Edit], by: &str, generation: u64) -> AuditEntry {
        let message = match edits.is_empty() {
            true => format!("all run-time changes are dropped by {by}"),
            false => format!("{by} drops run-time changes in {}", places(edits)),
        };
        let author = Author { by: "evener".to_owned(), from: by.to_owned() };
        AuditEntry { unix_ms, author, generation, message }
    }
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    by: &'a str,
    from: &'a str,
    generation: u64,
    message: &'a str,
}

impl Store {
    pub(crate) fn new(folder: &Path) -> Store {
        Store { folder: folder.to_owned() }
    }

    /// Returns the path of the file with the changes.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join("changes.json")
    }

    /// Reads the stored changes. If there is no file, the record is empty.
    pub(crate) fn read(&self) -> Result<Record, StoreError> {
        let path = self.path();
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(Record::default());
            }
            Err(source) => return Err(StoreError::Io { path, source }),
        };
        match serde_json::from_slice::<Stored>(&text) {
            Ok(Stored { format: FORMAT, record }) => Ok(record),
            Ok(Stored { format, .. }) => {
                Err(StoreError::Format { path, why: format!("its format is {format}, not {FORMAT}") })
            }
            Err(error) => Err(StoreError::Format { path, why: error.to_string() }),
        }
    }

    /// Renames the file, so that the next start does not read it.
    pub(crate) fn set_aside(&self) -> io::Result<PathBuf> {
        let numbered = (2..=ASIDE_MAX).map(|number| format!("changes.refused-{number}.json"));
        let mut names = std::iter::once("changes.refused.json".to_owned()).chain(numbered);
        // If all names are in use, the last file is overwritten.
        let free = names.find(|name| !self.folder.join(name).exists());
        let aside = self.folder.join(free.unwrap_or_else(|| format!("changes.refused-{ASIDE_MAX}.json")));
        fs::rename(self.path(), &aside)?;
        Ok(aside)
    }

    /// Writes the file atomically. Once this returns, the changes survive a crash of the machine.
    pub(crate) fn write(&self, record: &Record) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let text = serde_json::to_vec(&Stored { format: FORMAT, record: record.clone() })?;
        files::replace_secret(&self.path(), &text)?;
        File::open(&self.folder)?.sync_all()
    }

    /// Restores the record from before a refused change, if the file differs from that record. On a
    /// full disk the file is usually unchanged.
    pub(crate) fn write_back(&self, record: &Record) {
        let is_there = self.read().is_ok_and(|stored| stored == *record);
        if !is_there && let Err(error) = self.write(record) {
            tracing::error!("failed to undo a refused run-time change on disk: {error}");
        }
    }

    /// Writes entries to the log. A failure is only logged.
    pub(crate) fn note(&self, entries: &[AuditEntry]) {
        if !entries.is_empty()
            && let Err(error) = self.log(entries)
        {
            tracing::warn!("failed to record a change in the audit log: {error}");
        }
    }

    /// Writes entries to the log.
    pub(crate) fn log(&self, entries: &[AuditEntry]) -> io::Result<()> {
        let path = self.folder.join("audit.log");
        if fs::metadata(&path).is_ok_and(|known| known.len() > LOG_BYTES) {
            self.put_log_aside(SystemTime::now())?;
        }
        let mut text = Vec::new();
        for AuditEntry { unix_ms, author, generation, message } in entries {
            let (time, generation) = (time(*unix_ms), *generation);
            let line = Line { time, by: &author.by, from: &author.from, generation, message };
            text.extend(json(&line).into_bytes());
        }
        OpenOptions::new().create(true).append(true).mode(0o600).open(path)?.write_all(&text)
    }
}

impl Store {
    /// Rotates the logs: renames each to the next number, and removes logs that are too old.
    fn put_log_aside(&self, now: SystemTime) -> io::Result<()> {
        let aside = |number: u32| self.folder.join(format!("audit.log.{number}"));
        let count = (1..).take_while(|number| aside(*number).exists()).count();
        for number in (1..=u32::try_from(count).unwrap_or(u32::MAX)).rev() {
            let written = fs::metadata(aside(number)).and_then(|about| about.modified());
            let is_old = written.is_ok_and(|at| now.duration_since(at).is_ok_and(|age| age > LOG_AGE));
            match number >= LOGS_KEPT && is_old {
                true => fs::remove_file(aside(number))?,
                false => fs::rename(aside(number), aside(number + 1))?,
            }
        }
        fs::rename(self.folder.join("audit.log"), aside(1))
    }
}

/// Formats a time as in RFC 3339, in UTC.
pub fn time(unix_ms: u64) -> String {
    let ms = i64::try_from(unix_ms).unwrap_or_default();
    jiff::Timestamp::from_millisecond(ms).map(|time| time.to_string()).unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn audit_logs_are_kept_for_30_days_and_the_newest_for_longer() {
        let folder = std::env::temp_dir().join(format!("evener-audit-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let store = Store::new(&folder);
        let names = || {
            let mut names: Vec<_> =
                fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let put_aside = |text: &str, now| {
            fs::write(folder.join("audit.log"), text).unwrap();
            store.put_log_aside(now).unwrap();
        };
        let now = SystemTime::now();
        (0..7).for_each(|number| put_aside(&number.to_string(), now));
        assert_eq!(names().len(), 7);
        assert_eq!(fs::read_to_string(folder.join("audit.log.1")).unwrap(), "6");
        assert_eq!(fs::read_to_string(folder.join("audit.log.7")).unwrap(), "0");
        put_aside("7", now + LOG_AGE + Duration::from_secs(60));
        assert_eq!(names(), ["audit.log.1", "audit.log.2", "audit.log.3", "audit.log.4"]);
        assert_eq!(fs::read_to_string(folder.join("audit.log.4")).unwrap(), "4");
        fs::remove_dir_all(&folder).unwrap();
    }
}
