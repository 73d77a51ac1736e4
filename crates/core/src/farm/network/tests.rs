use alloc::vec;

use super::*;

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn interface(name: &str, mac: u8, addresses: &[(&str, u8)]) -> Interface {
    Interface {
        name: name.into(),
        mac: Mac([2, 0, 0, 0, 0, mac]),
        addresses: addresses.iter().map(|(address, prefix_len)| (ip(address), *prefix_len)).collect(),
        up: true,
        carrier: true,
        mtu: 1500,
        loopback: name == "lo",
        ethernet: name.starts_with("eth"),
    }
}

pub(crate) fn route(destination: &str, prefix_len: u8, ifindex: u32, on_link: bool) -> KernelRoute {
    let gateway = None;
    KernelRoute {
        destination: (ip(destination), prefix_len),
        priority: 0,
        ifindex: Some(ifindex),
        on_link,
        gateway,
    }
}

pub(crate) fn via(destination: &str, prefix_len: u8, ifindex: u32, gateway: &str) -> KernelRoute {
    KernelRoute { gateway: Some(ip(gateway)), ..route(destination, prefix_len, ifindex, false) }
}

/// Returns the network of a director on two networks and a tunnel. The director also has the
/// service address.
pub(crate) fn director() -> Network {
    Network {
        interfaces: BTreeMap::from([
            (1, interface("lo", 0, &[("127.0.0.1", 8), ("192.0.2.100", 32)])),
            (
                2,
                interface(
                    "eth0",
                    2,
                    &[("192.0.2.2", 24), ("192.0.2.100", 32), ("fe80::2", 64), ("2001:db8::2", 64)],
                ),
            ),
            (3, interface("eth1", 3, &[("fe80::3", 64), ("198.51.100.2", 24)])),
            (4, interface("wg0", 0, &[("10.9.0.1", 24)])),
            (5, interface("eth2", 5, &[("fe80::5", 64)])),
        ]),
        gateways: vec![Router { address: ip("192.0.2.1"), mac: None }],
        routes: vec![
            via("0.0.0.0", 0, 2, "192.0.2.1"),
            route("192.0.2.0", 24, 2, true),
            via("192.0.2.200", 32, 3, "198.51.100.1"),
            route("203.0.113.64", 26, 1, false),
            route("198.51.100.0", 24, 3, true),
            KernelRoute { priority: 5, ..route("198.51.100.0", 24, 2, true) },
            route("10.9.0.0", 24, 4, true),
            route("fe80::", 64, 2, true),
            route("fe80::", 64, 3, true),
            route("2001:db8::", 64, 2, true),
            via("2001:db8:9::", 48, 3, "fe80::1"),
        ],
        neighbours: BTreeMap::from([
            ((2, ip("192.0.2.1")), Mac([2, 0, 0, 0, 1, 1])),
            ((2, ip("192.0.2.11")), Mac([2, 0, 0, 0, 1, 11])),
            ((3, ip("fe80::1")), Mac([2, 0, 0, 0, 6, 1])),
        ]),
    }
}

#[test]
fn longest_on_link_prefix_wins() {
    let network = director();
    assert_eq!(network.route_to(ip("192.0.2.11")), Some(2));
    assert_eq!(network.route_to(ip("198.51.100.11")), Some(3), "the lower priority");
    assert_eq!(network.route_to(ip("192.0.2.200")), None, "behind a gateway");
    assert_eq!(network.route_to(ip("203.0.113.1")), None, "by the default route");
    assert_eq!(network.route_to(ip("2001:db8::11")), Some(2));
    assert_eq!(network.route_to(ip("2001:db8:9::11")), None, "behind a gateway");
    assert_eq!(Network::default().route_to(ip("192.0.2.11")), None);
}

#[test]
fn the_next_hop_is_the_address_itself_or_its_gateway() {
    let network = director();
    let hop = |address: &str| network.next_hop(ip(address));
    let on_link = |ifindex, mac| Some(NextHop { ifindex, mac, gateway: None, mtu: 1500 });
    let behind =
        |ifindex, mac, gateway: &str| Some(NextHop { ifindex, mac, gateway: Some(ip(gateway)), mtu: 1500 });
    assert_eq!(hop("192.0.2.11"), on_link(2, Some(Mac([2, 0, 0, 0, 1, 11]))));
    assert_eq!(hop("192.0.2.12"), on_link(2, None), "not resolved yet");
    assert_eq!(hop("198.51.100.11"), on_link(3, None));
    assert_eq!(hop("203.0.113.1"), behind(2, Some(Mac([2, 0, 0, 0, 1, 1])), "192.0.2.1"));
    assert_eq!(hop("192.0.2.200"), behind(3, None, "198.51.100.1"), "the longer prefix");
    assert_eq!(hop("203.0.113.65"), None, "the route refuses");
    assert_eq!(hop("2001:db8::11"), on_link(2, None));
    assert_eq!(hop("2001:db8:9::11"), behind(3, Some(Mac([2, 0, 0, 0, 6, 1])), "fe80::1"));
    assert_eq!(hop("2001:db9::1"), None, "no default route over IPv6");
    assert_eq!(hop("192.0.2.2"), None, "this host");
}

#[test]
fn prefixes_hold_addresses_of_their_own_family() {
    assert!(is_within(ip("203.0.113.1"), (ip("0.0.0.0"), 0)));
    assert!(!is_within(ip("2001:db8::1"), (ip("0.0.0.0"), 0)));
    assert!(is_within(ip("2001:db8::1"), (ip("::"), 0)));
    assert!(is_within(ip("192.0.2.127"), (ip("192.0.2.0"), 25)));
    assert!(!is_within(ip("192.0.2.128"), (ip("192.0.2.0"), 25)));
    assert!(is_within(ip("2001:db8::1"), (ip("2001:db8::1"), 128)));
    assert!(!is_within(ip("2001:db8::2"), (ip("2001:db8::1"), 255)));
}

#[test]
fn the_source_is_of_the_same_subnet_and_never_the_destination() {
    let network = director();
    assert_eq!(network.source_for(2, ip("192.0.2.11")), Some(ip("192.0.2.2")));
    assert_eq!(network.source_for(2, ip("192.0.2.100")), Some(ip("192.0.2.2")));
    assert_eq!(network.source_for(3, ip("192.0.2.100")), Some(ip("198.51.100.2")));
    assert_eq!(network.source_for(5, ip("192.0.2.100")), Some(ip("192.0.2.2")), "of another interface");
    assert_eq!(network.source_for(9, ip("192.0.2.100")), None);
    assert_eq!(network.source_for(2, ip("2001:db8::11")), Some(ip("2001:db8::2")));
    assert_eq!(network.source_for(3, ip("2001:db8:9::11")), Some(ip("2001:db8::2")), "no link-local one");
    assert_eq!(network.source_for(3, ip("fe80::1")), Some(ip("fe80::3")));
}

#[test]
fn local_network_has_selected_interfaces_and_all_addresses() {
    let network = director();
    assert!(network.is_local(ip("192.0.2.100")) && !network.is_local(ip("192.0.2.1")));
    let surroundings = network.surroundings([3, 9].into_iter());
    assert_eq!(surroundings.interfaces, BTreeMap::from([(3, Mac([2, 0, 0, 0, 0, 3]))]));
    assert!(surroundings.addresses.contains(&ip("192.0.2.2")));
    assert_eq!(surroundings.routers, network.gateways);
}

#[test]
fn a_service_address_is_no_source_where_there_is_another() {
    let mut network = director();
    let eth0 = &mut network.interfaces.get_mut(&2).unwrap().addresses;
    eth0.insert(0, (ip("2001:db8:7::100"), 128));
    network.routes.push(via("::", 0, 2, "fe80::1"));
    assert_eq!(network.source_towards(ip("2001:db8:1::11")), Some(ip("2001:db8::2")));
    network.interfaces.get_mut(&2).unwrap().addresses.insert(0, (ip("2001:db8:5::2"), 64));
    network.routes.pop();
    network.routes.push(via("::", 0, 2, "2001:db8::1"));
    assert_eq!(network.source_towards(ip("2001:db8:1::11")), Some(ip("2001:db8::2")), "the gateway's subnet");
}
