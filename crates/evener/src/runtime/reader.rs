//! Files that may never be read to their end (a FIFO to which nobody writes, a dead file system)
//! are read on a thread of their own.

use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::oneshot;

/// A file that isn't read after so long is refused.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Runs `read` on a thread, for which nobody waits any longer after `timeout`; it ends when `read`
/// does. The runtime's own threads are none for this: it would wait for them when it ends.
///
/// # Errors
/// In words that name `what`.
pub(crate) async fn within<T: Send + 'static>(
    timeout: Duration,
    what: &str,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (sender, receiver) = oneshot::channel();
    // the task that waited may have gone
    let read_and_send = move || drop(sender.send(read()));
    let spawned = std::thread::Builder::new().name("reader".to_owned()).spawn(read_and_send);
    spawned.map_err(|error| format!("there is no thread that reads {what}: {error}"))?;
    match tokio::time::timeout(timeout, receiver).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(_)) => Err(format!("the thread that read {what} has ended before it was through")),
        Err(_) => Err(late(what, timeout)),
    }
}

/// The same as [`within`] for a thread that may wait.
///
/// # Errors
/// In words that name `what`.
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
