//! Interfaces: their kind, their use by the engines, and the host's settings for them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use futures_util::TryStreamExt;
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType};
use rtnetlink::packet_route::link::{LinkXdp, XdpAttached};
use rtnetlink::packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourState};

use crate::io::sysctl::is_reverse_path_strict;
use crate::views::Finding;

/// Payload of an Ethernet frame.
const MTU: u32 = 1500;

/// Facts about an interface from the kernel, besides addresses.
#[derive(Clone, Debug, Default)]
struct InterfaceFacts {
    name: String,
    ethernet: bool,
    up: bool,
    carrier: bool,
    mtu: u32,
    /// Kind of a virtual interface. `None` for hardware.
    kind: Option<String>,
    veth: bool,
    loopback: bool,
    /// Bridge or bond that this interface belongs to.
    controller: Option<u32>,
    /// Lower interface in this namespace, for example of a VLAN.
    lower: Option<u32>,
    /// Mode of an attached XDP program.
    xdp: Option<&'static str>,
}

/// Interfaces of this network namespace, and neighbours that did not answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Links {
    links: BTreeMap<u32, InterfaceFacts>,
    unanswered: Vec<IpAddr>,
}

impl Links {
    /// Reads the interfaces and neighbours from the kernel.
    pub(super) async fn read() -> Result<Links, rtnetlink::Error> {
        let (connection, handle, _) = rtnetlink::new_connection()
            .map_err(|error| rtnetlink::Error::NamespaceError(error.to_string()))?;
        let connection = tokio::spawn(connection);
        let mut links = Links::default();
        let mut found = handle.link().get().execute();
        while let Some(message) = found.try_next().await? {
            links.links.insert(message.header.index, link(&message));
        }
        let mut found = handle.neighbours().get().execute();
        while let Some(message) = found.try_next().await? {
            if matches!(message.header.state, NeighbourState::Failed | NeighbourState::Incomplete) {
                links.unanswered.extend(message.attributes.iter().find_map(destination));
            }
        }
        connection.abort();
        Ok(links)
    }

    /// Returns the Ethernet interfaces that are up.
    pub(super) fn ethernet(&self) -> impl Iterator<Item = u32> {
        self.links.iter().filter(|(_, link)| link.up && link.ethernet).map(|(ifindex, _)| *ifindex)
    }

    /// Returns the interfaces that are up and may receive clients' packets, except the named ones:
    /// index, name, and whether it is Ethernet.
    pub(super) fn besides(&self, names: &BTreeSet<String>) -> Vec<(u32, &str, bool)> {
        let is_named = |ifindex: &u32| self.links.get(ifindex).is_some_and(|link| names.contains(&link.name));
        // Packets of a bridge's port, or below a VLAN, are seen on the interface above.
        let below: BTreeSet<u32> =
            self.links.iter().filter(|(i, _)| is_named(i)).filter_map(|(_, link)| link.lower).collect();
        let besides = self.links.iter().filter(|(ifindex, link)| {
            let seen_above = link.controller.as_ref().is_some_and(is_named) || below.contains(*ifindex);
            link.up && !link.loopback && !is_named(ifindex) && !seen_above
        });
        besides.map(|(ifindex, link)| (*ifindex, link.name.as_str(), link.ethernet)).collect()
    }

    /// True if the kernel's requests to this neighbour were not answered.
    pub(super) fn is_silent(&self, address: IpAddr) -> bool {
        self.unanswered.contains(&address)
    }

    pub(super) fn check_links(&self, which: impl IntoIterator<Item = u32>, findings: &mut Vec<Finding>) {
        let before = findings.len();
        let found = which.into_iter().filter_map(|ifindex| self.links.get(&ifindex));
        findings.extend(found.map(judge));
        if findings.len() == before {
            findings
                .push(Finding::fail("interfaces", "No Ethernet interface is up in this network namespace."));
        }
    }

    /// Returns the interfaces of `which` that have a strict reverse path filter.
    pub(super) fn strict_reverse_path(&self, which: impl IntoIterator<Item = u32>) -> Vec<&str> {
        which
            .into_iter()
            .filter_map(|ifindex| self.links.get(&ifindex))
            .map(|link| link.name.as_str())
            .filter(|name| is_reverse_path_strict(name))
            .collect()
    }
}

fn link(message: &rtnetlink::packet_route::link::LinkMessage) -> InterfaceFacts {
    let flags = message.header.flags;
    let mut link = InterfaceFacts {
        ethernet: message.header.link_layer_type == LinkLayerType::Ether,
        up: flags.contains(LinkFlags::Up),
        carrier: flags.contains(LinkFlags::LowerUp),
        loopback: flags.contains(LinkFlags::Loopback),
        ..InterfaceFacts::default()
    };
    // The index of an interface in another namespace has no meaning here.
    let here = !message.attributes.iter().any(|one| matches!(one, LinkAttribute::LinkNetNsId(_)));
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Controller(above) => link.controller = Some(*above).filter(|above| *above != 0),
            LinkAttribute::Link(lower) => link.lower = Some(*lower).filter(|lower| *lower != 0 && here),
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    if let LinkInfo::Kind(kind) = info {
                        link.veth = *kind == InfoKind::Veth;
                        link.kind = Some(kind.to_string());
                    }
                }
            }
            LinkAttribute::Xdp(xdp) => link.xdp = xdp.iter().find_map(attached),
            _ => {}
        }
    }
    link
}

fn attached(xdp: &LinkXdp) -> Option<&'static str> {
    match xdp {
        LinkXdp::Attached(XdpAttached::Driver) => Some("native"),
        LinkXdp::Attached(XdpAttached::SocketBuffer) => Some("generic"),
        LinkXdp::Attached(XdpAttached::Hardware) => Some("hardware"),
        LinkXdp::Attached(XdpAttached::Multiple) => Some("several modes"),
        _ => None,
    }
}

fn destination(attribute: &NeighbourAttribute) -> Option<IpAddr> {
    match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => Some((*address).into()),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => Some((*address).into()),
        _ => None,
    }
}

fn judge(link: &InterfaceFacts) -> Finding {
    let kind = link.kind.as_deref().unwrap_or("hardware");
    let mut message = format!("{kind}, MTU {}", link.mtu);
    match (link.xdp, link.veth) {
        (Some(mode), _) => message += &format!(", an XDP program is attached ({mode})"),
        (None, true) => {
            message +=
                ", where xdp attaches by TC, or is generic: native needs a program at the other end too"
        }
        (None, false) => {}
    }
    let name = &link.name;
    if !link.up {
        return Finding::fail(name, format!("{message}: it is down; `ip link set {name} up`."));
    }
    if !link.carrier {
        return Finding::warn(
            name,
            format!("{message}: it has no carrier; look at the cable or the other end."),
        );
    }
    if link.mtu < MTU {
        let help = "the router and the servers on this LAN must have the same";
        return Finding::warn(name, format!("{message}: less than {MTU}; {help}."));
    }
    Finding::ok(name, format!("{message}."))
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::*;

    #[test]
    fn lower_interface_seen_through_upper_is_not_repeated() {
        let link = |name: &str, controller, lower| InterfaceFacts {
            name: name.into(),
            ethernet: true,
            up: true,
            controller,
            lower,
            ..InterfaceFacts::default()
        };
        let mut links = Links::default();
        links.links.extend([
            (1, InterfaceFacts { loopback: true, ..link("lo", None, None) }),
            (2, link("eth0", None, None)),
            (3, link("eth1", Some(4), None)),
            (4, link("br0", None, None)),
            (5, link("eth2", None, None)),
            (6, link("eth2.7", None, Some(5))),
            (7, InterfaceFacts { up: false, ..link("eth3", None, None) }),
            (8, InterfaceFacts { ethernet: false, ..link("wg0", None, None) }),
        ]);
        let besides = |names: &[&str]| {
            let found = links.besides(&names.iter().map(|name| (*name).to_owned()).collect());
            found.into_iter().map(|(ifindex, ..)| ifindex).collect::<Vec<_>>()
        };
        assert_eq!(besides(&["br0", "eth2.7"]), [2, 8]);
        assert_eq!(besides(&["eth0"]), [3, 4, 5, 6, 8]);
    }

    #[test]
    fn interfaces_are_judged() {
        let good = InterfaceFacts {
            name: "eth0".into(),
            ethernet: true,
            up: true,
            carrier: true,
            mtu: 1500,
            ..InterfaceFacts::default()
        };
        assert_eq!(judge(&good), Finding::ok("eth0", "hardware, MTU 1500."));
        assert_eq!(judge(&InterfaceFacts { up: false, ..good.clone() }).state, Severity::Fail);
        assert_eq!(judge(&InterfaceFacts { carrier: false, ..good.clone() }).state, Severity::Warn);
        assert_eq!(judge(&InterfaceFacts { mtu: 1400, ..good.clone() }).state, Severity::Warn);
        let veth = judge(&InterfaceFacts { kind: Some("veth".into()), veth: true, ..good });
        assert!(veth.message.contains("generic"), "{veth:?}");
    }
}
