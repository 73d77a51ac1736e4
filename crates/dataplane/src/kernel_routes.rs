//! The host's routes and neighbours, asked by rtnetlink(7) for one destination at a time and
//! remembered for a moment, so that a change takes effect within a second.

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

/// How long an answer is good for.
const LIFETIME_MS: u64 = 1_000;
/// How long it is good for while the host's own stack looks for a neighbour.
const PENDING_MS: u64 = 10;
/// The kernel answers at once, or not at all.
const PATIENCE: Duration = Duration::from_millis(100);

/// The routing table of the network namespace that it was opened in.
///
/// Packets ask by destination alone, as those do that the host sends itself: rules that look at
/// sources or interfaces don't count here.
pub(crate) struct HostRoutes {
    kernel: Mutex<Netlink>,
    /// Each destination has one place, which its hash names, so memory is bounded. The hash is
    /// keyed, or clients could choose to share a place.
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
    /// Remembers at most `places` destinations.
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
        // One packet by the host's own stack has it ask the neighbour whether it is still there.
        if doubtful { FibResult::HostStack } else { hop }
    }

    fn mtu(&self, ifindex: u32) -> Option<u16> {
        let link = lock(&self.kernel).link(ifindex, crate::now_ns() / 1_000_000)?;
        Some(link.mtu.min(u16::MAX.into()) as u16)
    }
}

/// These are whole at any moment, so a thread that failed leaves nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The result of a look at the tables.
struct FibLookup {
    hop: FibResult,
    /// The kernel hasn't heard of the neighbour for a while.
    doubtful: bool,
}

impl From<FibResult> for FibLookup {
    fn from(hop: FibResult) -> Self {
        FibLookup { hop, doubtful: false }
    }
}

/// An interface, as far as frames out of it go.
#[derive(Clone, Copy)]
struct EgressInterface {
    /// `None` where there are no frames.
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
            // The kernel gave no answer in time, or had no memory for one: there may be a route.
            Err(error) if is_unanswered(&error) => {
                tracing::debug!(%error, %dst, "the kernel doesn't say where packets go");
                return FibResult::HostStack.into();
            }
            _ => return FibResult::None.into(),
        };
        let RouteFound { ifindex, gateway, mtu } = match route.header.kind {
            RouteType::Unicast => way(&route),
            // The host itself, or a group: its own stack knows.
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

    /// A neighbour's MAC, and whether it is in doubt; `None` while there is none to send to.
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
            // The answer to a question that was given up on may come yet.
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

/// Which way does a packet to `dst` go?
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
    /// The route's own, or what was learned of the path.
    mtu: Option<u32>,
}

fn way(route: &RouteMessage) -> RouteFound {
    let mut way = RouteFound { ifindex: 0, gateway: None, mtu: None };
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(ifindex) => way.ifindex = *ifindex,
            RouteAttribute::Gateway(RouteAddress::Inet(gateway)) => way.gateway = Some((*gateway).into()),
            RouteAttribute::Gateway(RouteAddress::Inet6(gateway)) => way.gateway = Some((*gateway).into()),
            // An IPv4 route by an IPv6 gateway (RFC 5549).
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
