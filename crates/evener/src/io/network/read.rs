//! Reads the network through rtnetlink(7), with a handful of dump requests.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use evener_core::farm::membership::Router;
use evener_core::net::wire::Mac;
use futures_util::{Stream, TryStreamExt};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType, RouteVia,
};
use rtnetlink::{Handle, RouteMessageBuilder};

use super::{Interface, KernelRoute, Network, NetworkError};

/// Reads the network of the calling thread's network namespace.
///
/// # Errors
/// If the kernel does not answer.
pub async fn read() -> Result<Network, NetworkError> {
    let handle = connect()?;
    let mut interfaces = interfaces_by(&handle).await?;
    for (ifindex, address) in
        all("addresses", handle.address().get().execute()).await?.iter().filter_map(address)
    {
        if let Some(interface) = interfaces.get_mut(&ifindex) {
            interface.addresses.push(address);
        }
    }
    let questions =
        [RouteMessageBuilder::<Ipv4Addr>::new().build(), RouteMessageBuilder::<Ipv6Addr>::new().build()];
    let mut routes = Vec::new();
    for question in questions {
        routes.extend(all("routes", handle.route().get(question).execute()).await?);
    }
    let neighbours = all("neighbours", handle.neighbours().get().execute()).await?;
    let neighbours: BTreeMap<(u32, IpAddr), Mac> = neighbours.iter().filter_map(neighbour).collect();
    let gateways: BTreeSet<(Option<u32>, IpAddr)> = routes.iter().flat_map(next_hops).collect();
    Ok(Network {
        interfaces,
        gateways: routers(&gateways, &neighbours),
        routes: routes.iter().filter_map(route).collect(),
        neighbours,
    })
}

/// Reads the interfaces alone, without their addresses. A host's routes may be many.
///
/// # Errors
/// If the kernel does not answer.
pub async fn interfaces() -> Result<BTreeMap<u32, Interface>, NetworkError> {
    interfaces_by(&connect()?).await
}

async fn interfaces_by(handle: &Handle) -> Result<BTreeMap<u32, Interface>, NetworkError> {
    Ok(all("interfaces", handle.link().get().execute()).await?.into_iter().map(interface).collect())
}

fn connect() -> Result<Handle, NetworkError> {
    let (connection, handle, _) = rtnetlink::new_connection()?;
    // The task ends with the last handle.
    tokio::spawn(connection);
    Ok(handle)
}

/// Returns every gateway once. A link-local address counts as a separate router on each link.
fn routers(
    gateways: &BTreeSet<(Option<u32>, IpAddr)>,
    neighbours: &BTreeMap<(u32, IpAddr), Mac>,
) -> Vec<Router> {
    let mut routers: Vec<Router> = gateways
        .iter()
        .map(|(ifindex, address)| {
            let mac = ifindex.and_then(|ifindex| neighbours.get(&(ifindex, *address)).copied());
            Router { address: *address, mac }
        })
        .collect();
    routers.sort_by_key(|router| (router.address, router.mac.is_none(), router.mac));
    routers.dedup_by(|next, first| {
        first.address == next.address && (next.mac.is_none() || first.mac == next.mac)
    });
    routers
}

async fn all<T>(
    what: &'static str,
    answers: impl Stream<Item = Result<T, rtnetlink::Error>>,
) -> Result<Vec<T>, NetworkError> {
    answers.try_collect().await.map_err(|source| NetworkError::Netlink { what, source })
}

fn interface(message: LinkMessage) -> (u32, Interface) {
    let flags = message.header.flags;
    let mut found = Interface {
        up: flags.contains(LinkFlags::Up),
        carrier: flags.contains(LinkFlags::LowerUp),
        loopback: flags.contains(LinkFlags::Loopback),
        ..Interface::default()
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => found.name = name,
            LinkAttribute::Mtu(mtu) => found.mtu = mtu,
            LinkAttribute::Address(address) => found.mac = mac(&address).unwrap_or_default(),
            _ => {}
        }
    }
    found.ethernet = message.header.link_layer_type == LinkLayerType::Ether && found.mac.is_unicast();
    (message.header.index, found)
}

fn address(message: &AddressMessage) -> Option<(u32, (IpAddr, u8))> {
    // On point-to-point links, IFA_ADDRESS is the other end. IFA_LOCAL, if present, is always the
    // own address.
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(own) => Some(*own),
        _ => None,
    });
    let own = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Address(own @ IpAddr::V6(_)) => Some(*own),
        _ => None,
    });
    Some((message.header.index, (local.or(own)?, message.header.prefix_len)))
}

fn route(message: &RouteMessage) -> Option<KernelRoute> {
    let main = u32::from(RouteHeader::RT_TABLE_MAIN);
    let mut table = u32::from(message.header.table);
    let unspecified = match message.header.address_family {
        AddressFamily::Inet => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        AddressFamily::Inet6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    let (mut destination, mut priority) = (unspecified, 0);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Destination(address) => destination = ip(address)?,
            RouteAttribute::Priority(number) => priority = *number,
            _ => {}
        }
    }
    let refuses = message.header.kind != RouteType::Unicast;
    let (ifindex, gateway) = hops(message).first().copied().unwrap_or_default();
    let destination = (destination, message.header.destination_prefix_length);
    let on_link = !refuses && gateway.is_none() && !is_multipath(message);
    let gateway = gateway.filter(|_| !refuses);
    (table == main).then_some(KernelRoute { destination, priority, ifindex, on_link, gateway })
}

fn is_multipath(message: &RouteMessage) -> bool {
    message.attributes.iter().any(|attribute| matches!(attribute, RouteAttribute::MultiPath(_)))
}

/// Returns the next hops of a route, by interface and gateway. A multipath route has several.
fn hops(message: &RouteMessage) -> Vec<(Option<u32>, Option<IpAddr>)> {
    let several = message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::MultiPath(hops) => Some(hops),
        _ => None,
    });
    match several {
        Some(hops) => hops.iter().map(|hop| (Some(hop.interface_index), gateway(&hop.attributes))).collect(),
        None => {
            let ifindex = message.attributes.iter().find_map(|attribute| match attribute {
                RouteAttribute::Oif(index) => Some(*index),
                _ => None,
            });
            vec![(ifindex, gateway(&message.attributes))]
        }
    }
}

/// Returns the gateways of a route, each with its interface.
fn next_hops(message: &RouteMessage) -> Vec<(Option<u32>, IpAddr)> {
    hops(message).into_iter().filter_map(|(ifindex, gateway)| Some((ifindex, gateway?))).collect()
}

/// Returns the gateway. Its family may differ from the route's (RFC 5549).
fn gateway(attributes: &[RouteAttribute]) -> Option<IpAddr> {
    attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(address) => ip(address),
        RouteAttribute::Via(RouteVia::Inet(address)) => Some(IpAddr::V4(*address)),
        RouteAttribute::Via(RouteVia::Inet6(address)) => Some(IpAddr::V6(*address)),
        _ => None,
    })
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    }
}

/// Returns a neighbour's address and MAC, if the kernel would send to it.
fn neighbour(message: &NeighbourMessage) -> Option<((u32, IpAddr), Mac)> {
    // A failed entry may still contain a MAC.
    if matches!(message.header.state, NeighbourState::Failed | NeighbourState::Incomplete) {
        return None;
    }
    let (mut address, mut found) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(inet)) => {
                address = Some(IpAddr::V4(*inet))
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(inet)) => {
                address = Some(IpAddr::V6(*inet))
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => found = mac(bytes),
            _ => {}
        }
    }
    Some(((message.header.ifindex, address?), found.filter(|mac| mac.is_unicast())?))
}

fn mac(bytes: &[u8]) -> Option<Mac> {
    bytes.try_into().ok().map(Mac)
}
