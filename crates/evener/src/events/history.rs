//! Events that survive a restart of the daemon: a file of JSON lines beside the run-time changes. A
//! separate thread writes it, and the next daemon reads it at its start.
//!
//! The daemon also works without the file. If the disk is full, read-only or hangs, a warning is
//! logged, and only the events since the start are available.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::past::PastEvents;
use super::readers::Readers;
use super::{BusItem, EventView};
use crate::runtime::reader;
use crate::runtime::shown::json;

/// Maximum length of the file in bytes. A longer file replaces `events.log.1`, and a new one
/// begins.
const FILE_BYTES: u64 = 1 << 20;
/// Timeout of reading the file, which delays the start.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Upper bound of event numbers. JSON parsers represent smaller numbers exactly (RFC 8259, section
/// 6).
const NUMBER_END: u64 = 1 << 53;

/// Restores the events of the files in `folder`, and starts to write new events to this folder. The
/// caller holds the lock of this network namespace, so no other daemon writes to the folder.
pub(crate) async fn start(readers: &Readers, folder: &Path) {
    let (bus, path) = (readers.bus(), path(folder));
    let read = {
        let path = path.clone();
        move || (read(&aside(&path)), read(&path))
    };
    match reader::within(TIMEOUT, &path.display().to_string(), read).await {
        Ok((older, newer)) => {
            let mut past = PastEvents::default();
            older.into_iter().chain(newer).for_each(|event| past.push(event.into()));
            bus.restore(past);
        }
        // Only the writer's thread waits for the file.
        Err(late) => tracing::warn!("failed to read earlier events: {late}"),
    }
    let mut history = History::new(path);
    if let Err(error) = readers.spawn("history", move |item| history.take(item)) {
        tracing::warn!(%error, "failed to start the thread that saves events; they are lost at a restart");
    }
}

fn path(folder: &Path) -> PathBuf {
    folder.join("events.log")
}

fn aside(path: &Path) -> PathBuf {
    path.with_extension("log.1")
}

/// Reads the events of a file, and skips invalid lines. The last line may be torn.
fn read(path: &Path) -> Vec<EventView> {
    let bytes = match read_end(path) {
        Ok(bytes) => bytes,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!("failed to read earlier events from {}: {error}", path.display());
            }
            return Vec::new();
        }
    };
    let lines = bytes.split(|byte| *byte == b'\n');
    let events = lines.filter_map(|line| serde_json::from_slice::<EventView>(line).ok());
    events.filter(|event| event.number < NUMBER_END).collect()
}

/// Reads the last [`FILE_BYTES`] of a file.
fn read_end(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(FILE_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writer of the file.
struct History {
    path: PathBuf,
    /// Open file, with its length. `None` before the first event, and after an error.
    open: Option<(File, u64)>,
    /// True if the last event could not be written.
    is_failing: bool,
}

impl History {
    fn new(path: PathBuf) -> History {
        History { path, open: None, is_failing: false }
    }

    /// Writes an event. An error is logged once, until a write succeeds again.
    fn take(&mut self, item: BusItem) {
        let written = match item {
            BusItem::Event(published) => self.append(json(&*published.view).as_bytes()),
            BusItem::Lost(count) => {
                let path = self.path.display();
                tracing::warn!("{count} events were not saved: writing {path} took too long");
                return;
            }
        };
        match (written, self.is_failing) {
            (Ok(()), _) => self.is_failing = false,
            (Err(_), true) => {}
            (Err(error), false) => {
                let path = self.path.display();
                tracing::warn!("failed to save events to {path}; they are lost at a restart: {error}");
                self.is_failing = true;
            }
        }
    }

    /// Appends a line. After an error the file is opened again, and a torn line is ended.
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let (mut file, mut length) = match self.open.take() {
            Some(open) => open,
            None => open(&self.path)?,
        };
        if length > 0 && length + line.len() as u64 > FILE_BYTES {
            fs::rename(&self.path, aside(&self.path))?;
            (file, length) = open(&self.path)?;
        }
        file.write_all(line)?;
        self.open = Some((file, length + line.len() as u64));
        Ok(())
    }
}

/// Opens a file to append to it, and ends a torn last line.
fn open(path: &Path) -> io::Result<(File, u64)> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut file = OpenOptions::new().create(true).read(true).append(true).mode(0o600).open(path)?;
    let length = file.metadata()?.len();
    if length == 0 {
        return Ok((file, 0));
    }
    let mut last = [0];
    file.seek(SeekFrom::Start(length - 1))?;
    file.read_exact(&mut last)?;
    if last == *b"\n" {
        return Ok((file, length));
    }
    file.write_all(b"\n")?;
    Ok((file, length + 1))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::sync::Arc;
    use std::time::SystemTime;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::super::{Bus, DaemonEvent, PublishedEvent};
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("evener-history-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    /// Builds an event with a text of this length in bytes.
    fn event(number: u64, length: usize) -> BusItem {
        let error = "x".repeat(length);
        let event = DaemonEvent::ReloadRefused { file: String::new(), error };
        let view = Arc::new(EventView::new(number, SystemTime::now(), &event));
        BusItem::Event(Arc::new(PublishedEvent { view, event }))
    }

    fn numbers(path: &Path) -> Vec<u64> {
        read(path).iter().map(|event| event.number).collect()
    }

    /// Returns the numbers of the events of the last hour, in a daemon that publishes `count`
    /// events.
    async fn run_daemon(folder: &Path, count: usize) -> Vec<u64> {
        let readers = Readers::new(Bus::default());
        start(&readers, folder).await;
        (0..count).for_each(|_| readers.bus().publish(DaemonEvent::Stopping));
        let (past, _) = readers.bus().listen_since(Duration::from_secs(3_600));
        past.iter().map(|event| event.number).collect()
    }

    #[tokio::test]
    async fn events_and_their_numbers_go_on_after_a_restart() {
        let folder = folder("restart").join("made");
        assert_eq!(run_daemon(&folder, 2).await, [1, 2]);
        assert_eq!(run_daemon(&folder, 1).await, [1, 2, 3]);
        // a torn line, and a line of another program
        let mut file = OpenOptions::new().append(true).open(path(&folder)).unwrap();
        file.write_all(b"{\"number\":7}\n\xff\0{\"number\":4,\"time\":\"20").unwrap();
        assert_eq!(run_daemon(&folder, 1).await, [1, 2, 3, 4]);
        assert_eq!(run_daemon(&folder, 0).await, [1, 2, 3, 4]);
        assert_eq!(fs::metadata(path(&folder)).unwrap().mode() & 0o777, 0o600);
        fs::remove_dir_all(folder.parent().unwrap()).unwrap();
    }

    #[test]
    fn files_are_bounded_and_the_newest_events_stay() {
        let folder = folder("rotation");
        let mut history = History::new(path(&folder));
        let length = FILE_BYTES as usize / 8;
        (1..=30).for_each(|number| history.take(event(number, length)));
        let (newer, older) = (path(&folder), aside(&path(&folder)));
        for file in [&newer, &older] {
            assert!(fs::metadata(file).unwrap().len() <= FILE_BYTES, "{file:?}");
        }
        assert_eq!([numbers(&older), numbers(&newer)].concat(), (22..=30).collect::<Vec<_>>());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
        // If the file is too long, only its end is read.
        let text = [fs::read(&older).unwrap(), fs::read(&newer).unwrap()].concat();
        fs::write(&newer, text).unwrap();
        assert_eq!(numbers(&newer), (24..=30).collect::<Vec<_>>());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn full_disk_is_a_warning_and_later_events_are_written() {
        let folder = folder("full");
        fs::create_dir(&folder).unwrap();
        symlink("/dev/full", path(&folder)).unwrap();
        let mut history = History::new(path(&folder));
        (1..=2).for_each(|number| history.take(event(number, 1)));
        assert!(history.is_failing);
        fs::remove_file(path(&folder)).unwrap();
        history.take(event(3, 1));
        assert!(!history.is_failing);
        assert_eq!(numbers(&path(&folder)), [3]);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[tokio::test]
    async fn file_that_blocks_leaves_the_daemon_without_history() {
        let folder = folder("blocked");
        fs::create_dir(&folder).unwrap();
        mkfifo(&path(&folder), Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        let readers = Readers::new(Bus::default());
        start(&readers, &folder).await;
        readers.bus().publish(DaemonEvent::Stopping);
        assert_eq!(readers.bus().recent().len(), 1);
        // The threads end with the FIFO.
        drop(OpenOptions::new().read(true).write(true).open(path(&folder)).unwrap());
        drop(readers);
        fs::remove_dir_all(&folder).unwrap();
    }
}
