//! Reads a file, and the files that it names, on a separate thread. The loop detects failures and
//! answers operators. So a FIFO, a hanging file system or a zone of a million records must not
//! block the loop.

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

/// Maximum number of threads that read. A thread that reads a FIFO without a writer never ends.
const READERS_MAX: usize = 4;

/// A file, and the files that it names.
#[derive(Debug)]
pub(super) struct LoadedFiles {
    pub(super) file: LoadedConfig,
    pub(super) named: NamedFiles,
}

/// Files that a file names, read together with it.
#[derive(Clone, Debug, Default)]
pub(super) struct NamedFiles {
    pub(super) dns: DnsFiles,
    pub(super) groups: GroupFiles,
}

/// Files from which DNS queries are answered.
#[derive(Clone, Debug, Default)]
pub(super) struct DnsFiles {
    pub(super) zones: Vec<Arc<Zone>>,
    /// Secrets that make and verify cookies. If empty, the daemon generates a secret.
    pub(super) cookie_secrets: Vec<CookieSecret>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum DnsFileError {
    #[error(transparent)]
    Zone(#[from] ZoneError),
    #[error(transparent)]
    CookieSecret(#[from] CookieSecretError),
}

/// Channel to the client that waits for the result of a reload.
pub(super) type ReloadReply = oneshot::Sender<Result<String, String>>;

/// A file that was read, or the error text.
pub(super) struct FileRead {
    /// Number of the read, in the order of the starts.
    number: u64,
    /// True if run-time changes are dropped.
    pub(super) forget: bool,
    pub(super) answer: Option<ReloadReply>,
    pub(super) files: Result<LoadedFiles, String>,
}

pub(super) struct FileReader {
    results: mpsc::Sender<FileRead>,
    pub(super) done: mpsc::Receiver<FileRead>,
    /// Held by each thread while it reads.
    readers: Arc<()>,
    started: u64,
    /// Number of the last read that was put in force.
    followed: u64,
}

impl FileReader {
    pub(super) fn new() -> FileReader {
        let (results, done) = mpsc::channel(READERS_MAX);
        FileReader { results, done, readers: Arc::new(()), started: 0, followed: 0 }
    }

    /// Starts to read a file, for a caller or for none.
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
            // the receiver is gone only when the daemon ends
            let _ = results.send(FileRead { number, forget, answer, files }).await;
        });
    }

    /// True if no later-started read was put in force before. Otherwise the file is outdated.
    pub(super) fn is_latest(&mut self, read: &FileRead) -> bool {
        let is_latest = read.number > self.followed;
        if is_latest && read.files.is_ok() {
            self.followed = read.number;
        }
        is_latest
    }
}

/// Reads a file, on a thread that holds `reader` until it is done.
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

/// Reads the files that `[dns]` names.
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

    /// Ends the threads that read a FIFO.
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
        // This reload continues as if its file had been read.
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
