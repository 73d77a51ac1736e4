//! Word from the kernel that the network has changed.

use std::time::Duration;

use futures_util::StreamExt;
use rtnetlink::MulticastGroup;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::NetworkError;

/// The least time between two words: neighbours come and go in crowds, and each word has the whole
/// network read anew.
const PAUSE: Duration = Duration::from_millis(100);

/// Tells that interfaces, addresses, routes or neighbours have changed, not what; changes that
/// nobody has taken notice of yet count as one, and so do those within a tenth of a second. It ends
/// with the receiver.
///
/// # Errors
/// When the kernel can't be listened to.
pub async fn watch() -> Result<mpsc::Receiver<()>, NetworkError> {
    let groups = [
        MulticastGroup::Link,
        MulticastGroup::Ipv4Ifaddr,
        MulticastGroup::Ipv4Route,
        MulticastGroup::Ipv6Ifaddr,
        MulticastGroup::Ipv6Route,
        MulticastGroup::Neigh,
    ];
    // The handle goes unused, but the connection ends with it.
    let (connection, handle, messages) = rtnetlink::new_multicast_connection(&groups)?;
    tokio::spawn(connection);
    let (changed, receiver) = mpsc::channel(1);
    // However many wait, they are taken as one.
    let mut messages = messages.ready_chunks(1024);
    tokio::spawn(async move {
        let _handle = handle;
        loop {
            tokio::select! {
                () = changed.closed() => return,
                message = messages.next() => if message.is_none() { return },
            }
            // Full: somebody will read the network soon, with this change in it.
            let _ = changed.try_send(());
            sleep(PAUSE).await;
        }
    });
    Ok(receiver)
}
