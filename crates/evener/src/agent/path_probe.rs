//! Sends directors of the farm trains of packets, by which they measure the path from here.

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

/// The longest datagram: directors look which sizes arrive.
const MESSAGE_MAX: usize = 65_535;
/// The kernel wakes a thread later than this by so much: the rest is waited for without sleeping.
const SLEEP_LATE: Duration = Duration::from_micros(200);

/// The key of probes, where the file has names whose paths are probed by trains.
///
/// # Errors
/// When there is no secret.
pub(crate) fn key(config: &Config) -> Result<Option<Key>, SecretFileError> {
    let file = config.farm.secret_file.as_ref().filter(|_| config.dns.probes_paths());
    Ok(file.map(|file| secret::read(file)).transpose()?.map(|secret| path_probe::key(&secret)))
}

/// The farm's keys by which directors are believed that ask this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerKeys {
    /// For probes of paths.
    pub(crate) probes: Key,
    /// For findings of the doctor.
    pub(crate) findings: Key,
}

impl ServerKeys {
    /// As a farm's secret gives them.
    pub(crate) fn of(secret: &Secret) -> ServerKeys {
        ServerKeys { probes: path_probe::key(secret), findings: Key(secret.derive("evener findings 1")) }
    }

    /// Of the file, if its secret can be read.
    ///
    /// # Errors
    /// When it can't, and names need it.
    pub(super) fn read(config: &Config) -> Result<Option<ServerKeys>, SecretFileError> {
        let Some(file) = &config.farm.secret_file else { return Ok(None) };
        match secret::read(file) {
            Ok(secret) => Ok(Some(ServerKeys::of(&secret))),
            Err(error) if config.dns.probes_paths() => Err(error),
            Err(error) => {
                tracing::info!(%error, "directors can't ask for findings");
                Ok(None)
            }
        }
    }
}

/// Answers directors for as long as it lives.
pub(super) async fn serve(listen: AgentListen, key: Key, directors: BTreeSet<IpAddr>) {
    let mut again = RetryDelay::default();
    let socket = loop {
        match bind(listen, Type::DGRAM).and_then(|socket| UdpSocket::from_std(socket.into())) {
            Ok(socket) => break socket,
            Err(error) => {
                if again.wait().await {
                    tracing::warn!(address = %listen, %error, "directors can't probe the path from here by UDP; it is tried again");
                }
            }
        }
    };
    let mut own = [0; KEY_LEN];
    if let Err(error) = random(&mut own) {
        tracing::error!(%error, "no random numbers: directors can't probe the path from here");
        return;
    }
    let mut responder = ProbeResponder::new(key, Key(own));
    let mut bytes = vec![0; MESSAGE_MAX];
    loop {
        // An error is of one datagram: of a port that is closed, say.
        let Ok((len, from)) = socket.recv_from(&mut bytes).await else { continue };
        let now_ms = monotonic_ns() / 1_000_000;
        let is_director = |address: IpAddr| directors.contains(&address);
        let message = bytes.get(..len).unwrap_or_default();
        match responder.receive(now_ms, from, message, is_director) {
            Ok(ProbeResponse::Answer(answer)) => {
                if let Err(error) = socket.send_to(&answer.seal(&key), from).await {
                    tracing::debug!(%from, %error, "a probe can't be answered");
                }
            }
            Ok(ProbeResponse::Train(train)) => start(&socket, from, train),
            Err(refused) => tracing::debug!(%from, ?refused, "no probe"),
        }
    }
}

/// Sends a train on a thread of its own: others aren't kept waiting, and nothing else makes it
/// late.
fn start(socket: &UdpSocket, to: SocketAddr, train: Train) {
    use std::os::fd::AsFd;
    let sender = match socket.as_fd().try_clone_to_owned() {
        Ok(socket) => std::net::UdpSocket::from(socket),
        Err(error) => return tracing::debug!(%error, "no train"),
    };
    tokio::task::spawn_blocking(move || send(&sender, to, train));
}

/// Each packet is a call of its own: none is part of another (GSO). A packet that the socket has no
/// room for is lost, as on any full link.
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
            tracing::debug!(%error, index, "a packet of a train is lost");
        }
    }
}
