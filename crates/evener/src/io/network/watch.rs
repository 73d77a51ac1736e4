//! Notifications of the kernel about changes of the network.

use std::time::Duration;

use futures_util::StreamExt;
use rtnetlink::MulticastGroup;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::NetworkError;

/// Minimum time between two notifications. Neighbours change in bursts, and each notification makes
/// the daemon read the whole network.
const PAUSE: Duration = Duration::from_millis(100);

/// Notifies of changed interfaces, addresses, routes or neighbours, without details. Changes within
/// a tenth of a second, or before the receiver reads, count as one. Ends with the receiver.
///
/// # Errors
/// If the kernel can't be subscribed to.
pub async fn watch() -> Result<mpsc::Receiver<()>, NetworkError> {
    let groups = [
        MulticastGroup::Link,
        MulticastGroup::Ipv4Ifaddr,
        MulticastGroup::Ipv4Route,
        MulticastGroup::Ipv6Ifaddr,
        MulticastGroup::Ipv6Route,
        MulticastGroup::Neigh,
    ];
    // The handle is unused, but the connection ends with it.
    let (connection, handle, messages) = rtnetlink::new_multicast_connection(&groups)?;
    tokio::spawn(connection);
    let (changed, receiver) = mpsc::channel(1);
    // All waiting messages count as a single one.
    let mut messages = messages.ready_chunks(1024);
    tokio::spawn(async move {
        let _handle = handle;
        loop {
            tokio::select! {
                () = changed.closed() => return,
                message = messages.next() => if message.is_none() { return },
            }
            // A full queue means that a read of the network is due, which will include this change.
            let _ = changed.try_send(());
            sleep(PAUSE).await;
        }
    });
    Ok(receiver)
}
