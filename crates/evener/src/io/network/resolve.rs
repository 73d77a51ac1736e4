//! Has the kernel find out a neighbour's MAC.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use socket2::{Domain, Socket, Type};

/// The discard service (RFC 863): whoever listens there throws away what comes.
const DISCARD: u16 = 9;

/// Makes the kernel resolve the MAC of a neighbour on this interface, or confirm one that it knows;
/// waits for nothing. [`super::watch`] tells when the answer is in.
///
/// An empty datagram does it, as any traffic would. Asking the kernel in so many words would need
/// CAP_NET_ADMIN, which a director in application space can do without.
///
/// # Errors
/// When nothing can be sent there: the interface is down or gone, or no address of this host fits.
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
