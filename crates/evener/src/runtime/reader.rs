//! Reads files on threads of their own, since a read may never end: a FIFO may have no writer, and
//! a file system may hang.

use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::oneshot;

/// Timeout of a read. A file that is not read in time is refused.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Runs `read` on a separate thread, and waits at most `timeout` for it. A late thread continues
/// until `read` returns. The runtime's own threads are not used, because the runtime waits for them
/// when it ends.
///
/// # Errors
/// Texts that name `what`.
pub(crate) async fn within<T: Send + 'static>(
    timeout: Duration,
    what: &str,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (sender, receiver) = oneshot::channel();
    // The waiting task may be gone.
    let read_and_send = move || drop(sender.send(read()));
    let spawned = std::thread::Builder::new().name("reader".to_owned()).spawn(read_and_send);
    spawned.map_err(|error| format!("there is no thread that reads {what}: {error}"))?;
    match tokio::time::timeout(timeout, receiver).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(_)) => Err(format!("the thread that read {what} has ended before it was through")),
        Err(_) => Err(late(what, timeout)),
    }
}

/// Like [`within`], but blocks the calling thread.
///
/// # Errors
/// Texts that name `what`.
pub(crate) fn blocking_within<T: Send + 'static>(
    timeout: Duration,
    what: &str,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let read_and_send = move || drop(sender.send(read()));
    let spawned = std::thread::Builder::new().name("reader".to_owned()).spawn(read_and_send);
    spawned.map_err(|error| format!("there is no thread that reads {what}: {error}"))?;
    receiver.recv_timeout(timeout).map_err(|_| late(what, timeout))
}

fn late(what: &str, timeout: Duration) -> String {
    format!("{what}, or a file that it names, could not be read within {} s", timeout.as_secs())
}
