//! Accepts connections and serves each of them in its own task.

use std::io;
use std::time::Duration;

use tokio::task::JoinSet;

/// Pause after a failed accept, for example when no descriptors are left.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts and serves clients forever. `next` must limit the number of clients itself. Dropping the
/// future aborts the tasks of all clients.
pub(crate) async fn accept<T, N, S>(next: impl FnMut() -> N, serve: impl Fn(T) -> S)
where
    N: Future<Output = io::Result<T>>,
    S: Future<Output = ()> + Send + 'static,
{
    let mut served = JoinSet::new();
    accept_each(next, |one| {
        served.spawn(serve(one));
        while served.try_join_next().is_some() {}
    })
    .await;
}

/// Like [`accept`], but `begin` only starts to serve a client. Dropping the future ends no client's
/// connection.
pub(crate) async fn accept_each<T, N>(mut next: impl FnMut() -> N, mut begin: impl FnMut(T))
where
    N: Future<Output = io::Result<T>>,
{
    loop {
        match next().await {
            Ok(one) => begin(one),
            Err(error) => {
                tracing::debug!(%error, "failed to accept a connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
