//! Where changes last: a file of JSON that is written whole or not at all, and a log of who made
//! them.

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

/// The format of the file. Another one is not read.
const FORMAT: u32 = 1;
/// A log of this length is put aside as `audit.log.1`, and another one begun, in bytes.
const LOG_BYTES: u64 = 16 << 20;
/// Logs that were put aside are kept for 30 days, and these many however old they are.
const LOGS_KEPT: u32 = 4;
const LOG_AGE: Duration = Duration::from_secs(30 * 24 * 3_600);

/// Files that were put aside and are kept.
const ASIDE_MAX: usize = 9;

/// Why changes of before can't be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// The system refuses.
    #[error("the run-time changes in {path} can't be read: {source}", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// It is something else.
    #[error("{path} has no run-time changes that this version reads: {why}", path = .path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The error in it.
        why: String,
    },
}

/// The folder in which they last.
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

/// Something that was done, as the log has it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AuditEntry {
    pub(crate) unix_ms: u64,
    pub(crate) author: Author,
    /// The generation after it.
    pub(crate) generation: u64,
    pub(crate) message: String,
}

impl AuditEntry {
    /// A note that changes which the log has are not in force.
    pub(crate) fn refused(unix_ms: u64, refused: u64, generation: u64, why: &str) -> AuditEntry {
        let author = Author { by: "evener".to_owned(), from: "the engine".to_owned() };
        let message = format!("refused and taken back, all up to generation {refused}: {why}");
        AuditEntry { unix_ms, author, generation, message }
    }

    /// A note that edits were dropped, by a reload or a start; without any, all were.
    pub(crate) fn dropped(unix_ms: u64, edits: &[Edit], by: &str, generation: u64) -> AuditEntry {
        let message = match edits.is_empty() {
            true => format!("all run-time changes are dropped by {by}"),
            false => format!("{by} drops run-time changes in {}", places(edits)),
        };
        let author = Author { by: "evener".to_owned(), from: by.to_owned() };
        AuditEntry { unix_ms, author, generation, message }
    }
}

/// A line of the log.
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

    /// The file.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join("changes.json")
    }

    /// The changes of before; none where there is no file.
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

    /// Puts the file aside, where it is not read again.
    pub(crate) fn set_aside(&self) -> io::Result<PathBuf> {
        let numbered = (2..=ASIDE_MAX).map(|number| format!("changes.refused-{number}.json"));
        let mut names = std::iter::once("changes.refused.json".to_owned()).chain(numbered);
        // Of many the last one is written over.
        let free = names.find(|name| !self.folder.join(name).exists());
        let aside = self.folder.join(free.unwrap_or_else(|| format!("changes.refused-{ASIDE_MAX}.json")));
        fs::rename(self.path(), &aside)?;
        Ok(aside)
    }

    /// Writes the file anew; once this returns, it lasts whatever happens to the machine.
    pub(crate) fn write(&self, record: &Record) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let text = serde_json::to_vec(&Stored { format: FORMAT, record: record.clone() })?;
        files::replace_secret(&self.path(), &text)?;
        File::open(&self.folder)?.sync_all()
    }

    /// Puts back the record before a refused one, where the file isn't that record any more. On a
    /// full disk it mostly is.
    pub(crate) fn write_back(&self, record: &Record) {
        let is_there = self.read().is_ok_and(|stored| stored == *record);
        if !is_there && let Err(error) = self.write(record) {
            tracing::error!("a refused run-time change can't be taken back on disk: {error}");
        }
    }

    /// Notes what was done in the log, if it can be written.
    pub(crate) fn note(&self, entries: &[AuditEntry]) {
        if !entries.is_empty()
            && let Err(error) = self.log(entries)
        {
            tracing::warn!("the audit log can't be written: {error}");
        }
    }

    /// Notes what was done in the log.
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
    /// Makes `audit.log.1` of the log, with those before it one number up, and removes those that
    /// need not be kept any more.
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

/// A time as in RFC 3339, in UTC.
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
