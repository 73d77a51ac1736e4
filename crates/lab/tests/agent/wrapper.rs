//! A minimal director: packets of its host to the service addresses go into tunnels to a server.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::Result;
use evener_dataplane::link::{EtherType, LinkSocket};
use evener_lab::farm::Farm;
use evener_lab::network::family::Family;
use nix::net::if_::if_nametoindex;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERNET_LEN: usize = 14;
const GUE_PORT: u16 = 6080;
const IPIP: u8 = 4;
const IPV6: u8 = 41;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Ipip,
    Gue,
}

/// Sockets that send tunnel packets. The kernel adds the outer headers.
#[derive(Debug)]
pub(crate) struct Tunnel {
    kind: Kind,
    /// Sockets for inner IPv4 and inner IPv6.
    sockets: [Socket; 2],
    to: SockAddr,
}

impl Tunnel {
    /// Opens a tunnel from an address of the farm's director to an address of its first server.
    pub(crate) fn open(farm: &Farm, kind: Kind, from: IpAddr, to: IpAddr) -> Result<Tunnel> {
        let open = |protocol: u8| -> Result<Socket> {
            let domain = if to.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
            let socket = match kind {
                Kind::Ipip => Socket::new(domain, Type::RAW, Some(Protocol::from(i32::from(protocol))))?,
                Kind::Gue => Socket::new(domain, Type::DGRAM, None)?,
            };
            socket.bind(&SocketAddr::new(from, 0).into())?;
            Ok(socket)
        };
        let sockets = farm.director().enter(|| -> Result<_> { Ok([open(IPIP)?, open(IPV6)?]) })??;
        let port = if kind == Kind::Gue { GUE_PORT } else { 0 };
        Ok(Tunnel { kind, sockets, to: SocketAddr::new(to, port).into() })
    }

    /// Sends an IP packet through the tunnel.
    pub(crate) fn send(&self, packet: &[u8]) -> Result<()> {
        let ipv6 = packet[0] >> 4 == 6;
        match self.kind {
            Kind::Ipip => self.send_as(ipv6, packet),
            Kind::Gue => {
                let header = [0, if ipv6 { IPV6 } else { IPIP }, 0, 0];
                self.send_as(ipv6, &[&header, packet].concat())
            }
        }
    }

    /// Sends arbitrary bytes as inner IPv4 or IPv6. With GUE, `bytes` include the GUE header.
    pub(crate) fn send_as(&self, ipv6: bool, bytes: &[u8]) -> Result<()> {
        self.sockets[usize::from(ipv6)].send_to(bytes, &self.to)?;
        Ok(())
    }

    /// Sets the traffic class of outer headers. The lower two bits are ECN (RFC 3168).
    pub(crate) fn mark(&self, traffic_class: u32) -> Result<()> {
        for socket in &self.sockets {
            match self.to.is_ipv4() {
                true => socket.set_tos_v4(traffic_class)?,
                false => socket.set_tclass_v6(traffic_class)?,
            }
        }
        Ok(())
    }
}

/// Encapsulates packets from a veth pair to which the director's host routes the service addresses.
#[derive(Debug)]
pub(crate) struct Wrapper {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Creates the veth pair of [`Wrapper`].
pub(crate) fn cable(farm: &Farm) -> Result<()> {
    let director = farm.director();
    let mut lines = vec!["link add in type veth peer name out".to_owned()];
    lines.extend(["in", "out"].map(|end| format!("link set {end} up")));
    for family in Family::BOTH {
        let (vip, own) = (farm.vip_in(family, 0), director.address_in(family));
        lines.push(format!("neigh add {vip} lladdr 02:00:00:00:00:aa dev in nud permanent"));
        lines.push(format!("route add {vip}/{} dev in src {own}", family.bits()));
    }
    director.ip(&lines)?;
    director.run(&["ethtool", "-K", "in", "tx", "off"]).map(drop)
}

impl Wrapper {
    pub(crate) fn start(farm: &Farm, tunnel: Tunnel) -> Result<Wrapper> {
        let open = || -> Result<_> {
            let out = if_nametoindex("out")?;
            let ends =
                [ETHERTYPE_IPV4, ETHERTYPE_IPV6].map(|kind| LinkSocket::open(out, EtherType::Only(kind)));
            let [ipv4, ipv6] = ends;
            Ok([ipv4?, ipv6?])
        };
        let ends = farm.director().enter(open)??;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut frame = vec![0; 65_536];
            while !stopped.load(Ordering::Relaxed) {
                let mut fds = ends.each_ref().map(|end| PollFd::new(end.as_fd(), PollFlags::POLLIN));
                let _ = poll(&mut fds, PollTimeout::from(50u8));
                for end in &ends {
                    while let Ok((len, about)) = end.recv(&mut frame) {
                        // Skips multicast. Packets above the MTU are lost, as on any path.
                        let unicast = frame[0] & 1 == 0;
                        if unicast && !about.outgoing && len > ETHERNET_LEN {
                            let _ = tunnel.send(&frame[ETHERNET_LEN..len]);
                        }
                    }
                }
            }
        });
        Ok(Wrapper { stop, thread: Some(thread) })
    }
}

impl Drop for Wrapper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
