//! Reading a file, and what it names, on a thread of its own: a FIFO, a dead file system or a zone
//! of a million records must not hold up the loop, which finds failures and answers operators
//! meanwhile.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evener_core::dns::Zone;
use tokio::sync::{mpsc, oneshot};

use super::group_files::GroupFiles;
use super::start::StartError;
use crate::config::{self, Config, LoadedConfig, ZoneError, zones};
use crate::runtime::cookie_secret::{self, CookieSecret, CookieSecretError};
use crate::runtime::reader;

/// Threads that read, at most: one that reads a FIFO to which nobody writes never ends.
const READERS_MAX: usize = 4;

/// A file and what it names.
#[derive(Debug)]
pub(super) struct LoadedFiles {
    pub(super) file: LoadedConfig,
    pub(super) named: NamedFiles,
}

/// The files that a file names, as they were read with it.
#[derive(Clone, Debug, Default)]
pub(super) struct NamedFiles {
    pub(super) dns: DnsFiles,
    pub(super) groups: GroupFiles,
}

/// The files that names are answered by.
#[derive(Clone, Debug, Default)]
pub(super) struct DnsFiles {
    pub(super) zones: Vec<Arc<Zone>>,
    /// By which cookies are made and believed; none: by this daemon's own.
    pub(super) cookie_secrets: Vec<CookieSecret>,
}

/// Why one of them can't be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum DnsFileError {
    /// A zone.
    #[error(transparent)]
    Zone(#[from] ZoneError),
    /// The secrets of cookies.
    #[error(transparent)]
    CookieSecret(#[from] CookieSecretError),
}

/// The client that waits for the result of a reload.
pub(super) type ReloadReply = oneshot::Sender<Result<String, String>>;

/// A file that was read, or why it wasn't, in words.
pub(super) struct FileRead {
    /// Greater for those that were begun later.
    number: u64,
    /// Whether run-time changes are dropped by it.
    pub(super) forget: bool,
    pub(super) answer: Option<ReloadReply>,
    pub(super) files: Result<LoadedFiles, String>,
}

/// The reading that goes on.
pub(super) struct FileReader {
    results: mpsc::Sender<FileRead>,
    pub(super) done: mpsc::Receiver<FileRead>,
    /// Held by each thread for as long as it reads.
    readers: Arc<()>,
    started: u64,
    /// The last that was put in force.
    followed: u64,
}

impl FileReader {
    pub(super) fn new() -> FileReader {
        let (results, done) = mpsc::channel(READERS_MAX);
        FileReader { results, done, readers: Arc::new(()), started: 0, followed: 0 }
    }

    /// Begins to read a file, for somebody who waits or for nobody.
    pub(super) fn begin(&mut self, path: &Path, forget: bool, answer: Option<ReloadReply>) {
        self.started += 1;
        let (number, results, path) = (self.started, self.results.clone(), path.to_owned());
        let reader = (Arc::strong_count(&self.readers) <= READERS_MAX).then(|| Arc::clone(&self.readers));
        tokio::spawn(async move {
            let files = match reader {
                Some(reader) => read_within(reader::TIMEOUT, path, reader).await,
                None => {
                    Err(format!("{READERS_MAX} reloads before this one still wait for {}", path.display()))
                }
            };
            // the loop ends first only when the daemon does
            let _ = results.send(FileRead { number, forget, answer, files }).await;
        });
    }

    /// Whether a file is to be followed still, and not one that was read sooner though it was asked
    /// for later.
    pub(super) fn is_latest(&mut self, read: &FileRead) -> bool {
        let is_latest = read.number > self.followed;
        if is_latest && read.files.is_ok() {
            self.followed = read.number;
        }
        is_latest
    }
}

/// Reads a file, on a thread that holds `reader` for as long as it does.
async fn read_within(timeout: Duration, path: PathBuf, reader: Arc<()>) -> Result<LoadedFiles, String> {
    let name = path.display().to_string();
    reader::within(timeout, &name, move || {
        let _reader = reader;
        read(&path)
    })
    .await?
}

fn read(path: &Path) -> Result<LoadedFiles, String> {
    let file = config::load_again(path)?;
    if !file.config.has_services() {
        return Err(StartError::NoService(path.to_owned()).to_string());
    }
    let dns = read_dns_files(&file.config).map_err(|error| error.to_string())?;
    let groups = GroupFiles::read(&file.config).map_err(|error| error.to_string())?;
    Ok(LoadedFiles { file, named: NamedFiles { dns, groups } })
}

/// The files that `[dns]` names.
///
/// # Errors
/// The error in one.
pub(super) fn read_dns_files(config: &Config) -> Result<DnsFiles, DnsFileError> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Serial numbers wrap (RFC 1982).
    let zones = zones(&config.dns, since.as_secs() as u32)?.into_iter().map(Arc::new).collect();
    let cookie_secrets = match &config.dns.cookie_secret_file {
        Some(path) => cookie_secret::read(path)?,
        None => Vec::new(),
    };
    Ok(DnsFiles { zones, cookie_secrets })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    const FILE: &str = "[[service]]\naddress = \"192.0.2.100:80\"\ndiscover = \"arp\"\n";

    fn fifo(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("evener-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        path
    }

    /// Has the threads end that read a FIFO.
    fn end(path: &Path) {
        drop(std::fs::File::options().write(true).open(path).unwrap());
        std::fs::remove_file(path).unwrap();
    }

    #[tokio::test]
    async fn a_file_that_takes_too_long_is_refused_by_its_name() {
        let path = fifo("reading-long");
        let read = read_within(Duration::from_millis(20), path.clone(), Arc::new(())).await;
        let error = read.unwrap_err();
        assert!(
            error.contains(&path.display().to_string()) && error.contains("could not be read"),
            "{error}"
        );
        end(&path);
    }

    #[tokio::test]
    async fn reloads_that_never_end_are_bounded_and_older_ones_are_not_followed() {
        let path = fifo("reading-many");
        let mut reading = FileReader::new();
        for _ in 0..=READERS_MAX {
            reading.begin(&path, false, None);
        }
        let mut refused = reading.done.recv().await.unwrap();
        assert_eq!(refused.number, READERS_MAX as u64 + 1);
        assert!(refused.files.as_ref().unwrap_err().contains("still wait"));
        // as if that one had been read
        refused.files = Ok(LoadedFiles {
            file: LoadedConfig {
                config: crate::config::parse(FILE, "x").unwrap(),
                tables: toml::Table::new(),
                sources: Arc::default(),
            },
            named: NamedFiles::default(),
        });
        assert!(reading.is_latest(&refused));
        end(&path);
        for _ in 0..READERS_MAX {
            let older = reading.done.recv().await.unwrap();
            assert!(!reading.is_latest(&older));
        }
    }
}
