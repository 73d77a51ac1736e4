//! How packets are forwarded to servers, by the service's method.

use core::net::{IpAddr, SocketAddr};

use crate::farm::membership::{Member, ServerRoute};
use crate::farm::{self, PacketForm};
use crate::net::Encapsulation;
use crate::path::mark::ForwardCount;
use crate::path::tables::Forwarding;

/// Returns the forwarding to a server; `None` if the service's method can't reach it.
pub(super) fn forwarding(service: &farm::Service, member: &Member) -> Option<Forwarding> {
    let packet_form = service.method.properties().packet_form;
    if member.local {
        // Packets for this host's own stack are not translated, so the stack can serve only on the
        // service's own address and port.
        let serves = packet_form != PacketForm::Translated || service.keeps_ports(&member.name);
        return serves.then_some(Forwarding::Link);
    }
    // A host on the link is reached by its MAC address, other hosts through a tunnel (Distributed
    // Packet Rewriting, section 3).
    if service.goes_by_link() && !member.hop?.on_link {
        return first(service, member);
    }
    match packet_form {
        PacketForm::Framed => Some(Forwarding::Link),
        PacketForm::Translated => {
            let (address, ServerRoute { own, mtu, .. }) = member.address.zip(member.hop)?;
            let to = endpoint(service, &member.name, address)?;
            let of_family = |vip: &SocketAddr| vip.is_ipv4() == to.is_ipv4();
            let translates = service.addresses.iter().all(of_family) && own.is_ipv4() == to.is_ipv4();
            translates.then_some(Forwarding::Nat { to, own, source_nat: service.source_nat, mtu })
        }
        PacketForm::Encapsulated => first(service, member),
    }
}

/// Returns the forwarding of a packet to another host that must not forward the packet again.
pub(super) fn last(member: &Member) -> Option<Forwarding> {
    tunnel(Encapsulation::Gue, None, member, Some(ForwardCount::Twice))
}

/// Returns the forwarding through the service's tunnel. Only GUE has room for a mark (see
/// [`crate::path::mark`]).
fn first(service: &farm::Service, member: &Member) -> Option<Forwarding> {
    let is_marked = service.is_on_every_host() && service.encapsulation == Encapsulation::Gue;
    tunnel(service.encapsulation, service.tunnel_mtu, member, is_marked.then_some(ForwardCount::Once))
}

fn tunnel(
    encapsulation: Encapsulation,
    mtu: Option<u16>,
    member: &Member,
    mark: Option<ForwardCount>,
) -> Option<Forwarding> {
    let (to, hop) = member.address.zip(member.hop)?;
    let (from, mtu) = (hop.tunnel, mtu.unwrap_or(hop.mtu));
    (from.is_ipv4() == to.is_ipv4()).then_some(Forwarding::Tunnel { encapsulation, from, to, mtu, mark })
}

/// Returns the address and port at which a server of method `nat` serves.
pub(super) fn endpoint(service: &farm::Service, server: &str, address: IpAddr) -> Option<SocketAddr> {
    Some(SocketAddr::new(address, service.server_port(server)?))
}
