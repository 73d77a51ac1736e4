//! Sends trains of packets to the farm's directors. A director measures the path by the train.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use evener_core::node::path_probe::{self, ProbeResponder, ProbeResponse, Train, TrainPacket};
use evener_core::node::secret::{KEY_LEN, Key, Secret};
use socket2::Type;
use tokio::net::UdpSocket;

use super::listening::bind;
use super::load::RetryDelay;
use super::load::host::monotonic_ns;
use crate::config::{AgentListen, Config};
use crate::runtime::secret::{self, SecretFileError, random};

/// Maximum length of a datagram. Directors test which sizes arrive.
const MESSAGE_MAX: usize = 65_535;
/// Maximum delay of a thread's wakeup. The last part of a wait is spent without sleeping.
const SLEEP_LATE: Duration = Duration::from_micros(200);

/// Returns the key of path probes, if the file has names with probes by trains.
///
/// # Errors
/// If there is no secret.
pub(crate) fn key(config: &Config) -> Result<Option<Key>, SecretFileError> {
    let file = config.farm.secret_file.as_ref().filter(|_| config.dns.probes_paths());
    Ok(file.map(|file| secret::read(file)).transpose()?.map(|secret| path_probe::key(&secret)))
}

/// Keys that authenticate directors to this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerKeys {
    /// Key of path probes.
    pub(crate) probes: Key,
    /// Key for requests of the doctor's findings.
    pub(crate) findings: Key,
}

impl ServerKeys {
    /// Derives the keys from a farm's secret.
    pub(crate) fn of(secret: &Secret) -> ServerKeys {
        ServerKeys { probes: path_probe::key(secret), findings: Key(secret.derive("evener findings 1")) }
    }

    /// Reads the file's secret and derives the keys.
    ///
    /// # Errors
    /// If the secret can't be read and path probes need it.
    pub(super) fn read(config: &Config) -> Result<Option<ServerKeys>, SecretFileError> {
        let Some(file) = &config.farm.secret_file else { return Ok(None) };
        match secret::read(file) {
            Ok(secret) => Ok(Some(ServerKeys::of(&secret))),
            Err(error) if config.dns.probes_paths() => Err(error),
            Err(error) => {
                tracing::info!(%error, "failed to listen for queries of measured paths");
                Ok(None)
            }
        }
    }
}

/// Answers directors until dropped.
pub(super) async fn serve(listen: AgentListen, key: Key, directors: BTreeSet<IpAddr>) {
    let mut again = RetryDelay::default();
    let socket = loop {
        match bind(listen, Type::DGRAM).and_then(|socket| UdpSocket::from_std(socket.into())) {
            Ok(socket) => break socket,
            Err(error) => {
                if again.wait().await {
                    tracing::warn!(address = %listen, %error, "failed to listen for path probes by UDP; retrying");
                }
            }
        }
    };
    let mut own = [0; KEY_LEN];
    if let Err(error) = random(&mut own) {
        tracing::error!(%error, "failed to get random numbers: directors can't probe the path to this server");
        return;
    }
    let mut responder = ProbeResponder::new(key, Key(own));
    let mut bytes = vec![0; MESSAGE_MAX];
    loop {
        // An error concerns one datagram, for example a closed port.
        let Ok((len, from)) = socket.recv_from(&mut bytes).await else { continue };
        let now_ms = monotonic_ns() / 1_000_000;
        let is_director = |address: IpAddr| directors.contains(&address);
        let message = bytes.get(..len).unwrap_or_default();
        match responder.receive(now_ms, from, message, is_director) {
            Ok(ProbeResponse::Answer(answer)) => {
                if let Err(error) = socket.send_to(&answer.seal(&key), from).await {
                    tracing::debug!(%from, %error, "failed to answer a path probe");
                }
            }
            Ok(ProbeResponse::Train(train)) => start(&socket, from, train),
            Err(refused) => {
                tracing::debug!(%from, ?refused, "refused a datagram that is not a valid path probe")
            }
        }
    }
}

/// Sends a train on a separate thread, so that trains don't delay each other.
fn start(socket: &UdpSocket, to: SocketAddr, train: Train) {
    use std::os::fd::AsFd;
    let sender = match socket.as_fd().try_clone_to_owned() {
        Ok(socket) => std::net::UdpSocket::from(socket),
        Err(error) => return tracing::debug!(%error, "failed to send a probe train"),
    };
    tokio::task::spawn_blocking(move || send(&sender, to, train));
}

/// Sends each packet with a separate call, so that packets are never merged (GSO). If the socket's
/// queue is full, the packet is lost, as on any full link.
fn send(socket: &std::net::UdpSocket, to: SocketAddr, train: Train) {
    let (began, gap) = (Instant::now(), Duration::from_nanos(train.gap_ns.into()));
    for index in 0..train.step.packets() {
        let due = began + gap * u32::from(index);
        if let Some(wait) = due.checked_duration_since(Instant::now() + SLEEP_LATE) {
            std::thread::sleep(wait);
        }
        while Instant::now() < due {
            std::hint::spin_loop();
        }
        let Train { challenge, step, .. } = train;
        let packet = TrainPacket { challenge, step, index, sent_ns: monotonic_ns() };
        if let Err(error) = socket.send_to(&packet.write(), to) {
            tracing::debug!(%error, index, "failed to send a packet of a probe train");
        }
    }
}
