//! Measures the path from a server.
//! The server's agent sends trains of UDP packets, or ICMP echoes are used, as by bprobe and
//! cprobe.
//!
//! Each packet is timed by the kernel's receive time. Each packet is sent by a separate call, so
//! that segmentation and coalescing (GSO, GRO) never merge packets.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::Duration;

use evener_core::dns::MeasuredPath;
use evener_core::node::path_probe::{
    AT_ONCE, NONCE_LEN, Nonce, PACED, PACKET_LEN, ProbeArrival, ProbeMessage, TrainKind, TrainPacket,
    available_bps, bottleneck_bps, is_burst, is_in_time, paced_gap_ns,
};
use evener_core::node::secret::Key;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout_at};

use crate::runtime::secret::random;

mod echoes;

pub(crate) use echoes::by_echoes;

/// Maximum duration of a probe.
const LIMIT: Duration = Duration::from_secs(2);
/// Time without an answer after which a request is repeated.
const AGAIN: Duration = Duration::from_millis(400);
/// Time without a packet after which a train has ended.
const QUIET: Duration = Duration::from_millis(300);

/// Measures by trains of UDP packets. Agents send trains only to probers with the farm's key.
///
/// # Errors
/// A text on why the measurement failed.
pub(crate) async fn by_trains(to: SocketAddr, key: &Key) -> Result<MeasuredPath, String> {
    let failed = |error: io::Error| format!("the agent at {to} can't be asked by UDP: {error}");
    let mut request: Nonce = [0; NONCE_LEN];
    random(&mut request).map_err(failed)?;
    let mut prober = Prober::open(to, *key, request).await.map_err(failed)?;
    let challenge = prober.challenge().await.map_err(failed)?;
    let challenge = challenge.ok_or_else(|| {
        format!("the agent at {to} doesn't answer by UDP: its file needs the same [[dns.name]] with `probe`, [farm] secret_file, and this host in [farm] directors; a firewall may be in the way")
    })?;
    let train = prober.train(challenge, TrainKind::AtOnce, 0).await.map_err(failed)?;
    let lost = || format!("of a train from {to} {} packets of {AT_ONCE} came", train.len());
    let bottleneck_bps = bottleneck_bps(&train).ok_or_else(lost)?;
    let gap_ns = paced_gap_ns(bottleneck_bps);
    if !is_in_time(TrainKind::Paced, gap_ns) {
        return Ok(MeasuredPath { bottleneck_bps, available_bps: None });
    }
    let train = prober.train(challenge, TrainKind::Paced, gap_ns).await.map_err(failed)?;
    if is_burst(&train, bottleneck_bps) {
        return Err(format!(
            "a token bucket on the path from {to} lets a train pass at once, whatever the path carries"
        ));
    }
    let available_bps = available_bps(&train, PACED, gap_ns, bottleneck_bps);
    Ok(MeasuredPath { bottleneck_bps, available_bps })
}

struct Prober {
    socket: UdpSocket,
    to: SocketAddr,
    key: Key,
    request: Nonce,
    end: Instant,
}

impl Prober {
    async fn open(to: SocketAddr, key: Key, request: Nonce) -> io::Result<Prober> {
        // The socket is not connected, since a host with several addresses may answer from another
        // one. The tag authenticates the answer.
        let any: IpAddr =
            if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0)).await?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
        Ok(Prober { socket, to, key, request, end: Instant::now() + LIMIT })
    }

    async fn send(&self, message: ProbeMessage) -> io::Result<()> {
        self.socket.send_to(&message.seal(&self.key), self.to).await.map(drop)
    }

    /// Returns the agent's challenge, if the agent answers.
    async fn challenge(&mut self) -> io::Result<Option<Nonce>> {
        while Instant::now() < self.end {
            self.send(ProbeMessage::Request(self.request)).await?;
            let until = self.end.min(Instant::now() + AGAIN);
            while let Some((bytes, _)) = self.receive(until).await? {
                match ProbeMessage::open(&self.key, &bytes) {
                    Some(ProbeMessage::Challenge { request, challenge }) if request == self.request => {
                        return Ok(Some(challenge));
                    }
                    _ => {}
                }
            }
        }
        Ok(None)
    }

    /// Returns the packets of a train that have arrived, in the order in which they were sent.
    async fn train(
        &mut self,
        challenge: Nonce,
        step: TrainKind,
        gap_ns: u32,
    ) -> io::Result<Vec<ProbeArrival>> {
        self.send(ProbeMessage::Go { request: self.request, challenge, step, gap_ns }).await?;
        let mut train: Vec<ProbeArrival> = Vec::new();
        while train.len() < usize::from(step.packets()) {
            let until = self.end.min(Instant::now() + if train.is_empty() { AGAIN } else { QUIET });
            let Some((bytes, arrived_ns)) = self.receive(until).await? else { break };
            let Some(packet) = TrainPacket::read(&bytes) else { continue };
            let is_new = !train.iter().any(|one| one.index == packet.index);
            if (packet.challenge, packet.step) == (challenge, step) && packet.index < step.packets() && is_new
            {
                train.push(ProbeArrival { index: packet.index, sent_ns: packet.sent_ns, arrived_ns });
            }
        }
        train.sort_by_key(|one| one.index);
        Ok(train)
    }

    /// Receives a datagram, with the kernel's receive time. Returns `None` at the deadline.
    async fn receive(&self, until: Instant) -> io::Result<Option<(Vec<u8>, u64)>> {
        let mut buffer = vec![0; PACKET_LEN + 1];
        let receive =
            self.socket.async_io(Interest::READABLE, || receive_with_time(&self.socket, &mut buffer));
        match timeout_at(until, receive).await {
            Ok(received) => {
                let (len, at_ns) = received?;
                buffer.truncate(len);
                Ok(Some((buffer, at_ns)))
            }
            Err(_) => Ok(None),
        }
    }
}

/// Receives into `buffer`. Returns the length, and the kernel's receive time in nanoseconds since
/// 1970.
fn receive_with_time(socket: &impl AsRawFd, buffer: &mut [u8]) -> io::Result<(usize, u64)> {
    let mut parts = [IoSliceMut::new(buffer)];
    let mut control = nix::cmsg_space!(nix::sys::time::TimeSpec);
    let flags = MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
    let time = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::ScmTimestampns(time) => Some(Duration::from(time).as_nanos()),
        _ => None,
    });
    let time = time.and_then(|ns| u64::try_from(ns).ok());
    Ok((message.bytes, time.ok_or_else(|| io::Error::other("the kernel gives no receive time of packets"))?))
}
