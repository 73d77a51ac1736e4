//! Routes and neighbours of the host, queried over rtnetlink(7) per destination. Results are cached
//! briefly, so a change takes effect within a second.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evener_core::net::wire::Mac;
use evener_core::path::reply_hops::{FibResult, Routes};
use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::link::{LinkAttribute, LinkLayerType, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use socket2::{Domain, Protocol, Socket, Type};

/// Lifetime of a cached result in milliseconds.
const LIFETIME_MS: u64 = 1_000;
/// Lifetime of a cached result in milliseconds while the host's own stack resolves the neighbour.
const PENDING_MS: u64 = 10;
/// Timeout of a query. The kernel answers at once or not at all.
const PATIENCE: Duration = Duration::from_millis(100);

/// Routing table of the network namespace in which the socket was opened.
///
/// Lookups use the destination alone, like packets that the host itself sends. Routing rules with
/// sources or interfaces have no effect.
pub(crate) struct HostRoutes {
    kernel: Mutex<Netlink>,
    /// Cache. The hash of a destination selects its entry, so memory is bounded. The hash is keyed:
    /// clients can't choose colliding destinations.
    places: Box<[Mutex<Option<CachedHop>>]>,
    hash: RandomState,
}

#[derive(Clone, Copy)]
struct CachedHop {
    dst: IpAddr,
    hop: FibResult,
    until_ms: u64,
}

impl std::fmt::Debug for HostRoutes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostRoutes").field("places", &self.places.len()).finish_non_exhaustive()
    }
}

impl HostRoutes {
    /// Opens the routing table with a cache of `places` destinations.
    pub(crate) fn open(places: usize) -> io::Result<HostRoutes> {
        let places = (0..places.max(1)).map(|_| Mutex::default()).collect();
        Ok(HostRoutes { kernel: Mutex::new(Netlink::open()?), places, hash: RandomState::new() })
    }
}

impl Routes for HostRoutes {
    fn hop(&self, _ingress: u32, _src: IpAddr, dst: IpAddr) -> FibResult {
        let now_ms = crate::now_ns() / 1_000_000;
        let place = self.hash.hash_one(dst) as usize % self.places.len();
        let Some(place) = self.places.get(place) else { return FibResult::None };
        let remembered = *lock(place);
        if let Some(known) = remembered.filter(|known| known.dst == dst && now_ms < known.until_ms) {
            return known.hop;
        }
        let FibLookup { hop, doubtful } = lock(&self.kernel).lookup(dst, now_ms);
        let lifetime_ms = if hop == FibResult::HostStack { PENDING_MS } else { LIFETIME_MS };
        *lock(place) = Some(CachedHop { dst, hop, until_ms: now_ms + lifetime_ms });
        // A packet that the host's own stack sends makes the stack probe the neighbour.
        if doubtful { FibResult::HostStack } else { hop }
    }

    fn mtu(&self, ifindex: u32) -> Option<u16> {
        let link = lock(&self.kernel).link(ifindex, crate::now_ns() / 1_000_000)?;
        Some(link.mtu.min(u16::MAX.into()) as u16)
    }
}

/// Locks, also after a panic: each value is consistent at any moment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Result of a route lookup.
struct FibLookup {
    hop: FibResult,
    /// True if the kernel has had no confirmation of the neighbour for a while.
    doubtful: bool,
}

impl From<FibResult> for FibLookup {
    fn from(hop: FibResult) -> Self {
        FibLookup { hop, doubtful: false }
    }
}

#[derive(Clone, Copy)]
struct EgressInterface {
    /// `None` if the interface is not Ethernet.
    mac: Option<Mac>,
    mtu: u32,
    until_ms: u64,
}

struct Netlink {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
    links: BTreeMap<u32, EgressInterface>,
}

impl Netlink {
    fn open() -> io::Result<Netlink> {
        let route = Protocol::from(libc::NETLINK_ROUTE);
        let socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, Some(route))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Netlink { socket, sequence: 0, buffer: vec![0; 1 << 16], links: BTreeMap::new() })
    }

    fn lookup(&mut self, dst: IpAddr, now_ms: u64) -> FibLookup {
        let route = match self.request(RouteNetlinkMessage::GetRoute(question(dst))) {
            Ok(RouteNetlinkMessage::NewRoute(route)) => route,
            // The kernel did not answer in time or had no memory, so a route may exist.
            Err(error) if is_unanswered(&error) => {
                tracing::debug!(%error, %dst, "failed to look up a route");
                return FibResult::HostStack.into();
            }
            _ => return FibResult::None.into(),
        };
        let RouteFound { ifindex, gateway, mtu } = match route.header.kind {
            RouteType::Unicast => way(&route),
            // The destination is the host itself or a multicast group: the host's own stack
            // decides.
            _ => return FibResult::HostStack.into(),
        };
        let link = self.link(ifindex, now_ms);
        let Some((src, link_mtu)) = link.and_then(|link| Some((link.mac?, link.mtu))) else {
            return FibResult::HostStack.into();
        };
        let Some((dst, doubtful)) = self.neighbour(ifindex, gateway.unwrap_or(dst)) else {
            return FibResult::HostStack.into();
        };
        let mtu = mtu.map_or(link_mtu, |mtu| mtu.min(link_mtu)).min(u16::MAX.into()) as u16;
        FibLookup { hop: FibResult::Neighbour { ifindex, src, dst, mtu }, doubtful }
    }

    fn link(&mut self, ifindex: u32, now_ms: u64) -> Option<EgressInterface> {
        if let Some(known) = self.links.get(&ifindex).filter(|known| now_ms < known.until_ms) {
            return Some(*known);
        }
        let mut message = LinkMessage::default();
        message.header.index = ifindex;
        let Ok(RouteNetlinkMessage::NewLink(answer)) = self.request(RouteNetlinkMessage::GetLink(message))
        else {
            self.links.remove(&ifindex);
            return None;
        };
        let ethernet = answer.header.link_layer_type == LinkLayerType::Ether;
        let mut link = EgressInterface { mac: None, mtu: 0, until_ms: now_ms + LIFETIME_MS };
        for attribute in answer.attributes {
            match attribute {
                LinkAttribute::Mtu(mtu) => link.mtu = mtu,
                LinkAttribute::Address(address) if ethernet => link.mac = mac(&address),
                _ => {}
            }
        }
        self.links.insert(ifindex, link);
        Some(link)
    }

    /// Returns a neighbour's MAC, and true if the neighbour is unconfirmed; `None` without a usable
    /// neighbour.
    fn neighbour(&mut self, ifindex: u32, address: IpAddr) -> Option<(Mac, bool)> {
        let mut message = NeighbourMessage::default();
        message.header.family = family(address);
        message.header.ifindex = ifindex;
        message.attributes.push(NeighbourAttribute::Destination(match address {
            IpAddr::V4(address) => NeighbourAddress::Inet(address),
            IpAddr::V6(address) => NeighbourAddress::Inet6(address),
        }));
        let answer = self.request(RouteNetlinkMessage::GetNeighbour(message)).ok()?;
        let RouteNetlinkMessage::NewNeighbour(answer) = answer else { return None };
        let doubtful = match answer.header.state {
            NeighbourState::Reachable
            | NeighbourState::Permanent
            | NeighbourState::Delay
            | NeighbourState::Probe => false,
            NeighbourState::Stale => true,
            _ => return None,
        };
        let address = answer.attributes.iter().find_map(|attribute| match attribute {
            NeighbourAttribute::LinkLayerAddress(address) => mac(address),
            _ => None,
        });
        Some((address?, doubtful))
    }

    fn request(&mut self, question: RouteNetlinkMessage) -> io::Result<RouteNetlinkMessage> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(question));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes)?;
        loop {
            let len = (&self.socket).read(&mut self.buffer)?;
            let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&self.buffer[..len])
                .map_err(io::Error::other)?;
            // The answer to an earlier query that timed out may still arrive.
            if answer.header.sequence_number != self.sequence {
                continue;
            }
            return match answer.payload {
                NetlinkPayload::InnerMessage(message) => Ok(message),
                NetlinkPayload::Error(error) => Err(error.to_io()),
                _ => Err(io::ErrorKind::InvalidData.into()),
            };
        }
    }
}

fn is_unanswered(error: &io::Error) -> bool {
    let errors = [libc::EAGAIN, libc::EINTR, libc::ENOBUFS, libc::ENOMEM, libc::EBUSY];
    error.raw_os_error().is_some_and(|number| errors.contains(&number))
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet }
}

fn mac(address: &[u8]) -> Option<Mac> {
    address.try_into().ok().map(Mac).filter(|mac| mac.is_unicast())
}

/// Builds the query for the route to `dst`.
fn question(dst: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family(dst);
    message.header.destination_prefix_length = if dst.is_ipv6() { 128 } else { 32 };
    message.attributes.push(RouteAttribute::Destination(match dst {
        IpAddr::V4(dst) => RouteAddress::Inet(dst),
        IpAddr::V6(dst) => RouteAddress::Inet6(dst),
    }));
    message
}

struct RouteFound {
    ifindex: u32,
    gateway: Option<IpAddr>,
    /// MTU of the route, or the learned path MTU.
    mtu: Option<u32>,
}

fn way(route: &RouteMessage) -> RouteFound {
    let mut way = RouteFound { ifindex: 0, gateway: None, mtu: None };
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(ifindex) => way.ifindex = *ifindex,
            RouteAttribute::Gateway(RouteAddress::Inet(gateway)) => way.gateway = Some((*gateway).into()),
            RouteAttribute::Gateway(RouteAddress::Inet6(gateway)) => way.gateway = Some((*gateway).into()),
            // IPv4 route with an IPv6 gateway (RFC 5549).
            RouteAttribute::Via(RouteVia::Inet(gateway)) => way.gateway = Some((*gateway).into()),
            RouteAttribute::Via(RouteVia::Inet6(gateway)) => way.gateway = Some((*gateway).into()),
            RouteAttribute::Metrics(metrics) => {
                way.mtu = metrics.iter().find_map(|metric| match metric {
                    RouteMetric::Mtu(mtu) if *mtu != 0 => Some(*mtu),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    way
}
