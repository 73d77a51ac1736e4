//! Takes connections and has them served, so many at a time.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// When none can be taken, for want of descriptors or such, it is tried again after this time.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves whoever comes, forever. While `places` of them are served, others wait. Dropping the future drops who is still served.
pub(crate) async fn accept<T, N, S>(places: usize, mut next: impl FnMut() -> N, serve: impl Fn(T) -> S)
where
    N: Future<Output = io::Result<T>>,
    S: Future<Output = ()> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(places));
    let mut served = JoinSet::new();
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match next().await {
            Ok(one) => {
                let serving = serve(one);
                served.spawn(async move {
                    serving.await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "a connection was not accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
        while served.try_join_next().is_some() {}
    }
}
