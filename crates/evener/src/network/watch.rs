//! Word from the kernel that the network has changed.

use futures_util::StreamExt;
use rtnetlink::MulticastGroup;
use tokio::sync::mpsc;

use super::NetworkError;

/// Tells that interfaces, addresses, routes or neighbours have changed, not what; changes that nobody has
/// taken notice of yet count as one. It ends with the receiver.
///
/// # Errors
/// When the kernel can't be listened to.
pub async fn watch() -> Result<mpsc::Receiver<()>, NetworkError> {
    let groups =
        [MulticastGroup::Link, MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv4Route, MulticastGroup::Neigh];
    // The handle goes unused, but the connection ends with it.
    let (connection, handle, mut messages) = rtnetlink::new_multicast_connection(&groups)?;
    tokio::spawn(connection);
    let (changed, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let _handle = handle;
        loop {
            tokio::select! {
                () = changed.closed() => return,
                message = messages.next() => if message.is_none() { return },
            }
            // Full: somebody will read the network soon, with this change in it.
            let _ = changed.try_send(());
        }
    });
    Ok(receiver)
}
