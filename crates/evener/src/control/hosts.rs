//! This host in an every-host farm: its identity, and its datagrams to and from other hosts.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use evener_core::director::{Identity, generation};
use evener_core::node::peers::LABEL;
use evener_core::node::secret::{Key, Secret};
use evener_core::path::mark::Marker;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;

use super::RESTART;
use super::executor::Executor;
use crate::config::Config;
use crate::io::network::Network;
use crate::runtime::secret;

/// Datagram, with its claimed source.
pub(super) type ReceivedDatagram = (SocketAddr, Vec<u8>);

/// Buffer size, larger than any datagram between hosts or directors.
const DATAGRAM_BYTES: usize = 1_500;
/// Number of datagrams that wait for the control loop. Further datagrams are lost, as on any
/// network.
const QUEUE: usize = 1_024;
/// Socket for datagrams of other hosts.
pub(super) struct HostSocket {
    pub(super) identity: Identity,
    pub(super) secret: Secret,
    port: u16,
    socket: Arc<UdpSocket>,
}

impl HostSocket {
    /// Opens the socket. Datagrams arrive at the receiver.
    ///
    /// # Errors
    /// If the port is taken on the host's own address.
    pub(super) async fn open(
        port: u16,
        identity: Identity,
        secret: Secret,
    ) -> io::Result<(HostSocket, mpsc::Receiver<ReceivedDatagram>)> {
        let socket = Arc::new(UdpSocket::bind((identity.address, port)).await?);
        let receiver = receiver_of(&socket);
        Ok((HostSocket { identity, secret, port, socket }, receiver))
    }

    /// Returns the key of datagrams.
    pub(super) fn key(&self) -> Key {
        Key(self.secret.derive(LABEL))
    }

    /// Sends a datagram to a host. A datagram that can't be sent is lost, as any datagram may be.
    pub(super) fn send(&self, to: IpAddr, datagram: &[u8]) {
        if let Err(error) = self.socket.try_send_to(datagram, SocketAddr::new(to, self.port)) {
            tracing::debug!(%to, %error, "failed to send a report");
        }
    }
}

impl Executor {
    /// Sets the key and generation with which forwarded packets are marked, by the farm in force.
    pub(super) fn set_mark_key(&self) {
        if let Some(hosts) = &self.hosts {
            let generation = generation(self.director.farm()) as u32;
            let key = secret::mark_key(&hosts.secret);
            self.engine.plane.memory().marker.set(&Marker { key, generation });
        }
    }

    /// Checks that a new file leaves this host's identity as it is.
    ///
    /// # Errors
    /// A sentence on the setting that needs a restart.
    pub(super) fn check_identity_unchanged(&self, config: &Config, network: &Network) -> Result<(), String> {
        let found = Identity::find(&config.description(), network).map_err(|error| error.to_string())?;
        let restart = RESTART;
        match (&self.hosts, found) {
            (None, None) => Ok(()),
            (Some(hosts), Some(found)) if hosts.identity == found => {
                let path = config.farm.secret_file.as_deref().unwrap_or(Path::new(""));
                if secret::read(path).map_err(|error| error.to_string())? != hosts.secret {
                    return Err(format!("{} has another secret now: {restart}", path.display()));
                }
                let same = (&config.farm.secret_file, config.farm.peers.port)
                    == (&self.config.farm.secret_file, self.config.farm.peers.port);
                if same {
                    Ok(())
                } else {
                    Err(format!("[farm] secret_file and port are read at the start only: {restart}"))
                }
            }
            (Some(hosts), Some(found)) => {
                let Identity { name, address } = &hosts.identity;
                Err(format!(
                    "this host is {name} ({address}) and would be {} ({}): {restart}",
                    found.name, found.address
                ))
            }
            _ => Err(format!("placement \"every-host\" comes and goes only with a start: {restart}")),
        }
    }
}

/// Starts to receive datagrams. The socket is released with the receiver.
pub(super) fn receiver_of(socket: &Arc<UdpSocket>) -> mpsc::Receiver<ReceivedDatagram> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    tokio::spawn(listen(Arc::clone(socket), sender));
    receiver
}

async fn listen(socket: Arc<UdpSocket>, sender: mpsc::Sender<ReceivedDatagram>) {
    let mut buffer = [0; DATAGRAM_BYTES];
    loop {
        let received = tokio::select! {
            () = sender.closed() => return,
            received = socket.recv_from(&mut buffer) => received,
        };
        match received {
            Ok((len, from)) => {
                let datagram = buffer.get(..len).unwrap_or_default().to_vec();
                if let Err(mpsc::error::TrySendError::Closed(_)) = sender.try_send((from, datagram)) {
                    return;
                }
            }
            // The socket reports that an earlier datagram had no receiver.
            Err(error) => tracing::trace!(%error, "a host is not there"),
        }
    }
}
