//! The network by rtnetlink(7): four questions, each with many answers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use evener_core::membership::Router;
use evener_core::wire::Mac;
use futures_util::{Stream, TryStreamExt};
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage};
use rtnetlink::packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType};

use super::{Interface, Network, NetworkError, Route};

impl Network {
    /// Asks the kernel; the answer is of the calling thread's network namespace.
    ///
    /// # Errors
    /// When it doesn't answer.
    pub async fn read() -> Result<Network, NetworkError> {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        // It ends with the last handle.
        tokio::spawn(connection);
        let mut interfaces: BTreeMap<u32, Interface> =
            all("interfaces", handle.link().get().execute()).await?.into_iter().map(interface).collect();
        for (ifindex, address) in
            all("addresses", handle.address().get().execute()).await?.iter().filter_map(address)
        {
            if let Some(interface) = interfaces.get_mut(&ifindex) {
                interface.addresses.push(address);
            }
        }
        let question = RouteMessageBuilder::<Ipv4Addr>::new().build();
        let routes = all("routes", handle.route().get(question).execute()).await?;
        let neighbours = handle.neighbours().get().set_address_family(AddressFamily::Inet);
        let neighbours = all("neighbours", neighbours.execute()).await?;
        let neighbours: BTreeMap<Ipv4Addr, Mac> = neighbours.iter().filter_map(neighbour).collect();
        let gateways: BTreeSet<Ipv4Addr> = routes.iter().flat_map(gateways).collect();
        let router = |address: Ipv4Addr| Router { address, mac: neighbours.get(&address).copied() };
        Ok(Network {
            interfaces,
            gateways: gateways.into_iter().map(router).collect(),
            routes: routes.iter().filter_map(route).collect(),
        })
    }
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

fn address(message: &AddressMessage) -> Option<(u32, (Ipv4Addr, u8))> {
    // IFA_ADDRESS is the other end on point-to-point links; IFA_LOCAL is always this one.
    let own = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(IpAddr::V4(own)) => Some(*own),
        _ => None,
    });
    Some((message.header.index, (own?, message.header.prefix_len)))
}

fn route(message: &RouteMessage) -> Option<Route> {
    let main = u32::from(RouteHeader::RT_TABLE_MAIN);
    let mut table = u32::from(message.header.table);
    let mut destination = Ipv4Addr::UNSPECIFIED;
    let (mut priority, mut ifindex, mut on_link) = (0, None, message.header.kind == RouteType::Unicast);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Destination(RouteAddress::Inet(address)) => destination = *address,
            RouteAttribute::Priority(number) => priority = *number,
            RouteAttribute::Oif(index) => ifindex = Some(*index),
            RouteAttribute::Gateway(_) | RouteAttribute::Via(_) | RouteAttribute::MultiPath(_) => {
                on_link = false
            }
            _ => {}
        }
    }
    let destination = (destination, message.header.destination_prefix_length);
    (table == main).then_some(Route { destination, priority, ifindex, on_link })
}

/// The gateways of one route: one, or one for each of its next hops.
fn gateways(message: &RouteMessage) -> Vec<Ipv4Addr> {
    let gateway = |attribute: &RouteAttribute| match attribute {
        RouteAttribute::Gateway(RouteAddress::Inet(address)) => Some(*address),
        _ => None,
    };
    let hops = message.attributes.iter().flat_map(|attribute| match attribute {
        RouteAttribute::MultiPath(hops) => hops.as_slice(),
        _ => &[],
    });
    let of_hops = hops.flat_map(|hop| &hop.attributes);
    message.attributes.iter().chain(of_hops).filter_map(gateway).collect()
}

fn neighbour(message: &NeighbourMessage) -> Option<(Ipv4Addr, Mac)> {
    let (mut address, mut found) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(inet)) => address = Some(*inet),
            NeighbourAttribute::LinkLayerAddress(bytes) => found = mac(bytes),
            _ => {}
        }
    }
    address.zip(found)
}

fn mac(bytes: &[u8]) -> Option<Mac> {
    bytes.try_into().ok().map(Mac)
}
