//! Takes connections and has them served.

use std::io;
use std::time::Duration;

use tokio::task::JoinSet;

/// When none can be taken, for want of descriptors or such, it is tried again after this time.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves whoever comes, forever, and at once: `next` sees to it that there are not too many.
/// Dropping the future drops who is still served.
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

/// The same, where `begin` begins to serve, and dropping the future ends nobody.
pub(crate) async fn accept_each<T, N>(mut next: impl FnMut() -> N, mut begin: impl FnMut(T))
where
    N: Future<Output = io::Result<T>>,
{
    loop {
        match next().await {
            Ok(one) => begin(one),
            Err(error) => {
                tracing::debug!(%error, "a connection was not accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
