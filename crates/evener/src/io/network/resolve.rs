//! Makes the kernel resolve a neighbour's MAC.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use socket2::{Domain, Socket, Type};

/// The discard service (RFC 863), which ignores all datagrams.
const DISCARD: u16 = 9;

/// Makes the kernel resolve or confirm the MAC of a neighbour on this interface. Does not wait.
/// [`super::watch()`] reports the result.
///
/// An empty datagram triggers the resolution, as any traffic does. A netlink request would need
/// CAP_NET_ADMIN, which a director with the packet engine need not have.
///
/// # Errors
/// If no datagram can be sent: the interface is down or gone, or this host has no suitable address.
pub fn resolve(ifindex: u32, address: IpAddr) -> io::Result<()> {
    let (domain, own, to): (_, SocketAddr, SocketAddr) = match address {
        IpAddr::V4(address) => {
            (Domain::IPV4, (Ipv4Addr::UNSPECIFIED, 0).into(), SocketAddrV4::new(address, DISCARD).into())
        }
        IpAddr::V6(address) => {
            let scope = if address.is_unicast_link_local() { ifindex } else { 0 };
            let to = SocketAddrV6::new(address, DISCARD, 0, scope);
            (Domain::IPV6, (Ipv6Addr::UNSPECIFIED, 0).into(), to.into())
        }
    };
    let socket = Socket::new(domain, Type::DGRAM, None)?;
    socket.set_nonblocking(true)?;
    let oif = std::num::NonZeroU32::new(ifindex);
    match address {
        IpAddr::V4(_) => socket.bind_device_by_index_v4(oif)?,
        IpAddr::V6(_) => socket.bind_device_by_index_v6(oif)?,
    }
    socket.bind(&own.into())?;
    socket.send_to(&[], &to.into()).map(drop)
}
