//! The access log: a thread that writes, and a queue that blocks no caller.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::AccessLogEntry;
use crate::config::LogTarget;
use crate::runtime::shown::json;

/// Capacity of the queue, in lines.
const QUEUE: usize = 8_192;
/// Maximum number of bytes per write, while more lines are queued.
const GATHER: usize = 64 * 1024;
/// File mode. Only owner and group can read the log, since it shows clients' requests.
const MODE: u32 = 0o640;
/// Maximum time to write the last lines when the daemon ends, and the pause between checks.
const LAST_WORDS: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(2);

/// Number of written and lost lines, since the daemon started.
#[derive(Debug, Default)]
pub(super) struct LogCounts {
    pub(super) written: AtomicU64,
    pub(super) lost: AtomicU64,
}

pub(crate) struct AccessLogFile {
    target: LogTarget,
    sink: Box<dyn Write + Send>,
}

impl AccessLogFile {
    /// Opens a log, to append to it.
    ///
    /// # Errors
    /// If the log can't be opened.
    pub(crate) fn open(target: &LogTarget) -> Result<AccessLogFile, String> {
        let sink: Box<dyn Write + Send> = match target {
            LogTarget::Stdout => Box::new(io::stdout()),
            LogTarget::File(path) => Box::new(open(path).map_err(|error| unopened(path, &error))?),
        };
        Ok(AccessLogFile { target: target.clone(), sink })
    }
}

/// Opens a log without blocking. Otherwise the open of a pipe would wait for a reader.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(MODE).custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_CLOEXEC);
    let file = options.open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no plain file")),
    }
}

fn unopened(path: &Path, error: &io::Error) -> String {
    let help = match error.kind() {
        io::ErrorKind::NotFound => "make its folder first",
        io::ErrorKind::PermissionDenied => "let evener's user write there",
        _ => "name another file as `access` in [log], or \"-\" for standard output",
    };
    format!("the access log {} can't be opened: {error}; {help}", path.display())
}

/// Queue to the thread that writes.
pub(super) struct AccessLogQueue {
    pub(super) target: LogTarget,
    queue: SyncSender<AccessLogEntry>,
    thread: JoinHandle<()>,
    counts: Arc<LogCounts>,
}

impl AccessLogQueue {
    /// Starts the thread that writes.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(super) fn start(log: AccessLogFile, counts: Arc<LogCounts>) -> io::Result<AccessLogQueue> {
        let AccessLogFile { target, sink } = log;
        let (queue, lines) = sync_channel(QUEUE);
        let count = Arc::clone(&counts);
        let thread = thread::Builder::new().name("access-log".to_owned());
        let thread = thread.spawn(move || write(sink, &lines, &count))?;
        Ok(AccessLogQueue { target, queue, thread, counts })
    }

    /// Queues a line. If the queue is full, the line is lost.
    pub(super) fn enqueue(&self, decision: AccessLogEntry) {
        if self.queue.try_send(decision).is_err() {
            self.counts.lost.fetch_add(1, Relaxed);
        }
    }

    /// Ends the log after the queued lines are written, but waits for a slow disk only a limited
    /// time.
    pub(super) fn finish(self) {
        drop(self.queue);
        let end = Instant::now() + LAST_WORDS;
        while !self.thread.is_finished() && Instant::now() < end {
            thread::sleep(PAUSE);
        }
    }
}

/// Writes queued lines, many at once if many are queued.
fn write(mut sink: Box<dyn Write + Send>, lines: &Receiver<AccessLogEntry>, counts: &LogCounts) {
    let (mut text, mut torn) = (String::new(), false);
    while let Ok(first) = lines.recv() {
        // A line that was cut off by a full disk is ended, so that the next line is complete.
        if torn {
            text.push('\n');
        }
        text.push_str(&json(&first));
        let mut count = 1;
        while text.len() < GATHER {
            match lines.try_recv() {
                Ok(next) => text.push_str(&json(&next)),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
            count += 1;
        }
        let done = sink.write_all(text.as_bytes()).and_then(|()| sink.flush());
        match &done {
            Ok(()) => counts.written.fetch_add(count, Relaxed),
            Err(_) => counts.lost.fetch_add(count, Relaxed),
        };
        if let (Err(error), false) = (&done, torn) {
            tracing::warn!(%error, "failed to write the access log; lines are lost");
        }
        torn = done.is_err();
        text.clear();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;
    use std::sync::mpsc;

    use super::*;

    fn decision(path: &str) -> AccessLogEntry {
        AccessLogEntry {
            time: "2026-01-02T03:04:05.678Z".into(),
            service: "web".into(),
            client: "198.51.100.7:40000".into(),
            kind: Some("http".into()),
            method: Some("GET".into()),
            host: None,
            sni: None,
            path: Some(path.into()),
            cut: false,
            route: None,
            server: Some("web1".into()),
            mechanism: "kernel".into(),
            status: None,
            decide_us: 1.25,
        }
    }

    /// Removes the folder at the end of the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let folder = std::env::temp_dir().join(format!("evener-access-{name}-{}", std::process::id()));
            fs::create_dir(&folder).unwrap();
            Folder(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn lines_are_added_to_a_file_for_its_user_and_group() {
        let folder = Folder::new("file");
        let path = folder.0.join("access.log");
        let target = LogTarget::File(path.clone());
        let counts = Arc::new(LogCounts::default());
        for name in ["/a", "/b\n\"x\": 1"] {
            let writing =
                AccessLogQueue::start(AccessLogFile::open(&target).unwrap(), Arc::clone(&counts)).unwrap();
            writing.enqueue(decision(name));
            writing.finish();
        }
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<AccessLogEntry> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines, [decision("/a"), decision("/b\n\"x\": 1")]);
        assert_eq!((counts.written.load(Relaxed), counts.lost.load(Relaxed)), (2, 0));
        // The user's umask may clear more bits.
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o137, 0);
    }

    #[test]
    fn unusable_log_target_is_refused_with_sentence() {
        let folder = Folder::new("sentence");
        let refused = |path: PathBuf| AccessLogFile::open(&LogTarget::File(path)).err().unwrap();
        assert!(refused(folder.0.join("none/access.log")).contains("make its folder first"));
        assert!(refused(folder.0.clone()).contains("name another file"));
        let pipe = folder.0.join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(refused(pipe).contains("can't be opened"));
    }

    /// Fails while `full` receives true.
    struct Disk {
        full: Receiver<bool>,
        written: SyncSender<String>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.full.recv().unwrap_or_default() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.written.send(String::from_utf8_lossy(bytes).into_owned()).unwrap();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn full_log_queue_counts_lost_lines() {
        let (sender, full) = mpsc::channel();
        let (to, written) = sync_channel(QUEUE);
        let counts = Arc::new(LogCounts::default());
        let log = AccessLogFile { target: LogTarget::Stdout, sink: Box::new(Disk { full, written: to }) };
        let writing = AccessLogQueue::start(log, Arc::clone(&counts)).unwrap();
        // The disk blocks on one line. The queue fills, and further lines are lost at once.
        (0..QUEUE * 2).for_each(|_| writing.enqueue(decision("/")));
        let lost = counts.lost.load(Relaxed);
        assert!(lost >= QUEUE as u64 / 2 && counts.written.load(Relaxed) == 0, "{lost}");
        // The disk is full, and then has room again: the torn line is not continued.
        sender.send(true).unwrap();
        sender.send(false).unwrap();
        assert!(written.recv().unwrap().starts_with("\n{"));
        drop(sender);
        writing.finish();
        // All lines are written once the thread has ended. `finish` may not have waited for that on
        // a busy machine.
        assert!(written.iter().all(|text| text.starts_with('{')));
        let all = counts.written.load(Relaxed) + counts.lost.load(Relaxed);
        assert_eq!(all, QUEUE as u64 * 2);
        assert!(counts.lost.load(Relaxed) > lost);
    }
}
