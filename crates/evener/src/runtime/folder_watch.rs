//! Notifications of replaced and removed files of a folder (inotify(7)).

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub(crate) struct FolderWatch(AsyncFd<Watch>);

struct Watch(Inotify);

impl AsRawFd for Watch {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl FolderWatch {
    /// Watches a folder. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If the folder is gone, or the user has too many watches.
    pub(crate) fn begin(folder: &Path) -> io::Result<FolderWatch> {
        let watch = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        watch.add_watch(folder, AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_DELETE)?;
        Ok(FolderWatch(AsyncFd::with_interest(Watch(watch), Interest::READABLE)?))
    }

    /// Waits until the file of this name is replaced or removed. Cancel safe. Pending forever after
    /// an error.
    pub(crate) async fn changed(&self, name: &OsStr) {
        loop {
            let Ok(mut ready) = self.0.readable().await else { return std::future::pending().await };
            match self.0.get_ref().0.read_events() {
                Ok(events) if events.iter().any(|event| event.name.as_deref() == Some(name)) => return,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => ready.clear_ready(),
                Err(_) => return std::future::pending().await,
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::runtime::files;

    #[tokio::test]
    async fn replaced_and_removed_files_are_noticed() {
        let folder = std::env::temp_dir().join(format!("evener-watch-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let watch = FolderWatch::begin(&folder).unwrap();
        let (one, other) = (folder.join("one"), folder.join("other"));
        files::replace(&other, b"").unwrap();
        let name = OsStr::new("one");
        assert!(timeout(Duration::from_millis(20), watch.changed(name)).await.is_err());
        files::replace(&one, b"").unwrap();
        timeout(Duration::from_secs(10), watch.changed(name)).await.unwrap();
        fs::remove_file(&one).unwrap();
        timeout(Duration::from_secs(10), watch.changed(name)).await.unwrap();
        fs::remove_dir_all(folder).unwrap();
    }
}
