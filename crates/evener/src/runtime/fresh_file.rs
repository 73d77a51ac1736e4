//! File of secrets that is read for each use, so that secrets change without a reload. A separate
//! thread reads the file, since a file system may hang.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::reader;

/// Timeout of a read, and of the wait for an earlier read to end. A client waits for at most both
/// timeouts.
const TIMEOUT: Duration = Duration::from_secs(1);

type ReadFile<T, E> = fn(&Path) -> Result<T, E>;

/// A file that is read for each use.
#[derive(Debug)]
pub(crate) struct FreshFile<T, E> {
    path: PathBuf,
    read: ReadFile<T, E>,
    /// Held by the thread that reads the file: at most one thread hangs.
    place: Arc<Semaphore>,
    /// Contents at the last successful read.
    last: Mutex<Option<Arc<T>>>,
}

impl<T: Send + Sync + 'static, E: Send + 'static> FreshFile<T, E> {
    /// Creates a reader of the file at `path`. The file isn't read yet.
    pub(crate) fn new(path: PathBuf, read: ReadFile<T, E>) -> FreshFile<T, E> {
        FreshFile { path, read, place: Arc::new(Semaphore::new(1)), last: Mutex::default() }
    }

    /// Like [`FreshFile::new`], but also reads the file on this thread.
    ///
    /// # Errors
    /// Errors of the file's reader.
    pub(crate) fn open(path: PathBuf, read: ReadFile<T, E>) -> Result<FreshFile<T, E>, E> {
        let file = FreshFile::new(path, read);
        file.keep(Arc::new(read(&file.path)?));
        Ok(file)
    }

    /// Returns the file's contents. If the read times out, returns the contents of the last read,
    /// or `None` if there was none.
    ///
    /// # Errors
    /// Errors of the file's reader.
    pub(crate) async fn get(&self) -> Result<Option<Arc<T>>, E> {
        let Ok(Ok(permit)) = timeout(TIMEOUT, Arc::clone(&self.place).acquire_owned()).await else {
            return Ok(self.last());
        };
        let (read, path) = (self.read, self.path.clone());
        let on_thread = move || {
            let _permit = permit;
            read(&path)
        };
        match reader::within(TIMEOUT, &self.path.display().to_string(), on_thread).await {
            Ok(contents) => {
                let contents = Arc::new(contents?);
                self.keep(Arc::clone(&contents));
                Ok(Some(contents))
            }
            Err(late) => {
                tracing::warn!("{late}: the previous content stays in use");
                Ok(self.last())
            }
        }
    }

    fn keep(&self, contents: Arc<T>) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(contents);
    }

    fn last(&self) -> Option<Arc<T>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    /// Waits for a writer, as a dead file system waits for its server.
    fn text(path: &Path) -> Result<String, String> {
        fs::read_to_string(path).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn file_that_blocks_keeps_last_contents_and_one_thread() {
        let path = std::env::temp_dir().join(format!("evener-fresh-{}", std::process::id()));
        fs::write(&path, "first").unwrap();
        let file = FreshFile::open(path.clone(), text).unwrap();
        fs::write(&path, "second").unwrap();
        assert_eq!(*file.get().await.unwrap().unwrap(), "second");
        fs::remove_file(&path).unwrap();
        assert!(file.get().await.is_err());
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        for _ in 0..2 {
            assert_eq!(*file.get().await.unwrap().unwrap(), "second");
            assert_eq!(file.place.available_permits(), 0);
        }
        // the thread that hangs ends with its FIFO, and the next read sees the file
        drop(fs::File::options().write(true).open(&path).unwrap());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "third").unwrap();
        while *file.get().await.unwrap().unwrap() != "third" {}
        fs::remove_file(&path).unwrap();
    }
}
