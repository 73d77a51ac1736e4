//! Sockets for discovery and probes on the link: raw Ethernet frames of one interface, TCP ports
//! for a user-space TCP, and ICMP messages about packets that exceed a router's MTU.
//!
//! Discovery and probes send to servers that share the service address. The host's own stack would
//! keep or misroute such packets. CAP_NET_RAW is enough, with either engine.

use std::io::{self, IoSliceMut, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use nix::net::if_::if_indextoname;
use nix::sys::socket::{LinkAddr, MsgFlags, recvmsg};
use socket2::{Domain, Protocol, SockAddr, SockAddrStorage, SockFilter, Socket, Type};

/// Instruction of a classic BPF program (bpf(4)).
pub use libc::sock_filter as Instruction;

/// EtherType of the frames that a [`LinkSocket`] receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EtherType {
    /// All frames. The kernel copies a frame to the socket before traffic control processes the
    /// frame. A frame that the filter rejects costs little.
    All,
    /// Frames of one EtherType, as in [`evener_core::net::wire::ETHERTYPE_ARP`]. Not for IP on a
    /// host that receives handed-off connections: behind traffic control, the host's stack and such
    /// a socket share a frame. A shared frame loses the socket that a traffic control program has
    /// assigned to the frame.
    Only(u16),
    /// No frames: the socket only sends.
    None,
}

impl EtherType {
    /// Returns the `protocol` of packet(7), in network byte order.
    fn protocol(self) -> u16 {
        match self {
            EtherType::All => (libc::ETH_P_ALL as u16).to_be(),
            EtherType::Only(number) => number.to_be(),
            EtherType::None => 0,
        }
    }
}

/// Metadata of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketMeta {
    /// True if this host sent the frame. Only kernels before 4.20 deliver such frames.
    pub outgoing: bool,
    /// True if the frame was longer than the buffer.
    pub truncated: bool,
}

/// Non-blocking socket that sends and receives whole Ethernet frames on one interface.
///
/// The socket does not receive VLAN-tagged frames: the kernel removes the tag, so they would look
/// untagged. Frames from hosts with checksum offload may arrive with partial checksums.
#[derive(Debug)]
pub struct LinkSocket {
    socket: Socket,
}

impl LinkSocket {
    /// Opens a socket on the interface with index `ifindex`. With 0 the socket receives from every
    /// interface and can't send.
    ///
    /// # Errors
    /// Fails without CAP_NET_RAW, or if the interface does not exist or is down.
    pub fn open(ifindex: u32, ethertype: EtherType) -> io::Result<Self> {
        Self::open_filtered(ifindex, ethertype, &[accept()])
    }

    /// Opens a socket that receives only frames that `filter` accepts. The filter is active before
    /// the first frame.
    ///
    /// # Errors
    /// See [`LinkSocket::open`]; also fails if the kernel rejects the filter.
    pub fn open_filtered(ifindex: u32, ethertype: EtherType, filter: &[Instruction]) -> io::Result<Self> {
        let socket = packet_socket()?;
        let link = LinkSocket { socket };
        link.attach_filter(filter)?;
        // Older kernels lack this option; readers check `PacketMeta::outgoing` instead.
        let _ = set_option(link.as_fd(), libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1);
        link.socket.set_nonblocking(true)?;
        bind(&link.socket, ifindex, ethertype)?;
        Ok(link)
    }

    /// Replaces the filter: a classic BPF program that sees the frame from its Ethernet header on.
    ///
    /// # Errors
    /// Fails if the kernel rejects the program; the old filter stays.
    pub fn attach_filter(&self, filter: &[Instruction]) -> io::Result<()> {
        attach(&self.socket, untagged().iter().chain(filter))
    }

    /// Sets the mark of sent frames, for the programs and rules on the egress path (`SO_MARK` of
    /// socket(7)).
    ///
    /// # Errors
    /// Fails without CAP_NET_ADMIN.
    pub fn mark(&self, mark: u16) -> io::Result<()> {
        set_option(self.as_fd(), libc::SOL_SOCKET, libc::SO_MARK, mark.into())
    }

    /// Sends a frame with Ethernet header and complete checksums.
    ///
    /// # Errors
    /// `WouldBlock` if the interface's queue is full. Also fails if the interface is down or the
    /// frame exceeds its MTU.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.socket.send(frame).map(drop)
    }

    /// Receives a frame into `buffer`. Returns the length in bytes, cut to the buffer, and the
    /// metadata.
    ///
    /// # Errors
    /// `WouldBlock` if no frame is waiting. Also fails if the interface went down.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<(usize, PacketMeta)> {
        let mut parts = [IoSliceMut::new(buffer)];
        let message = recvmsg::<LinkAddr>(self.socket.as_raw_fd(), &mut parts, None, MsgFlags::empty())?;
        let outgoing = message.address.is_some_and(|from| from.pkttype() == libc::PACKET_OUTGOING);
        let truncated = message.flags.contains(MsgFlags::MSG_TRUNC);
        Ok((message.bytes, PacketMeta { outgoing, truncated }))
    }
}

impl AsRawFd for LinkSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl AsFd for LinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns a filter for the TCP segments from `from` to `to`, without fragments.
pub fn tcp_filter(from: Ipv4Addr, to: SocketAddrV4) -> Vec<Instruction> {
    // Offsets within an Ethernet frame with an IPv4 header (RFC 791, section 3.1).
    const ETHERTYPE: u32 = 12;
    const HEADER_LEN: u32 = 14;
    const FRAGMENT: u32 = 20;
    const PROTOCOL: u32 = 23;
    const SOURCE: u32 = 26;
    const DESTINATION: u32 = 30;
    const PORT: u32 = 16;
    let load = |size: u32, mode: u32, at: u32| instruction(libc::BPF_LD | size | mode, 0, 0, at);
    // Jumps lead to the last instruction, which drops.
    let unless = |kind: u32, value: u32, left: u8| match kind {
        libc::BPF_JSET => instruction(libc::BPF_JMP | kind | libc::BPF_K, left, 0, value),
        _ => instruction(libc::BPF_JMP | kind | libc::BPF_K, 0, left, value),
    };
    vec![
        load(libc::BPF_H, libc::BPF_ABS, ETHERTYPE),
        unless(libc::BPF_JEQ, 0x0800, 12),
        load(libc::BPF_B, libc::BPF_ABS, PROTOCOL),
        unless(libc::BPF_JEQ, 6, 10),
        load(libc::BPF_W, libc::BPF_ABS, SOURCE),
        unless(libc::BPF_JEQ, from.to_bits(), 8),
        load(libc::BPF_W, libc::BPF_ABS, DESTINATION),
        unless(libc::BPF_JEQ, to.ip().to_bits(), 6),
        load(libc::BPF_H, libc::BPF_ABS, FRAGMENT),
        unless(libc::BPF_JSET, 0x1fff, 4),
        instruction(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, HEADER_LEN),
        load(libc::BPF_H, libc::BPF_IND, PORT),
        unless(libc::BPF_JEQ, u32::from(to.port()), 1),
        accept(),
        drop_all(),
    ]
}

/// Returns a filter for the TCP segments from `from` to `to` over IPv6, without extension headers
/// (RFC 8200, section 4.1).
pub fn tcp_filter_v6(from: Ipv6Addr, to: SocketAddrV6) -> Vec<Instruction> {
    // Offsets within an Ethernet frame with an IPv6 header (RFC 8200, section 3).
    const ETHERTYPE: u32 = 12;
    const NEXT_HEADER: u32 = 20;
    const SOURCE: u32 = 22;
    const DESTINATION: u32 = 38;
    const PORT: u32 = 56;
    let mut fields = vec![Field::Half(ETHERTYPE, 0x86dd), Field::Byte(NEXT_HEADER, 6)];
    fields.extend(Field::address_v6(SOURCE, from));
    fields.extend(Field::address_v6(DESTINATION, *to.ip()));
    fields.push(Field::Half(PORT, to.port()));
    filter(&fields)
}

/// Field that a filter compares: offset from the start of the visible packet, and required value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Byte(u32, u8),
    Half(u32, u16),
    Word(u32, u32),
}

impl Field {
    /// Fields that compare an IPv6 address at offset `at`.
    pub fn address_v6(at: u32, address: Ipv6Addr) -> [Field; 4] {
        let [a, b, c, d] = [96, 64, 32, 0].map(|shift| (address.to_bits() >> shift) as u32);
        [Field::Word(at, a), Field::Word(at + 4, b), Field::Word(at + 8, c), Field::Word(at + 12, d)]
    }
}

/// Returns a filter that accepts packets with all of the given fields, at most about a hundred.
pub fn filter(fields: &[Field]) -> Vec<Instruction> {
    let mut program = Vec::with_capacity(2 * fields.len() + 2);
    for (number, field) in fields.iter().enumerate() {
        let (size, at, value) = match *field {
            Field::Byte(at, value) => (libc::BPF_B, at, value.into()),
            Field::Half(at, value) => (libc::BPF_H, at, value.into()),
            Field::Word(at, value) => (libc::BPF_W, at, value),
        };
        // Jump over the remaining fields and the accepting instruction to the last one, which
        // drops.
        let left = u8::try_from(2 * (fields.len() - number - 1) + 1).unwrap_or(u8::MAX);
        program.push(instruction(libc::BPF_LD | size | libc::BPF_ABS, 0, 0, at));
        program.push(instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, left, value));
    }
    program.extend([accept(), drop_all()]);
    program
}

/// Returns a filter for packets to an endpoint, for interfaces of any kind. The filter accepts IP
/// packets of this transport protocol without options or extension headers, and no later fragments.
pub fn sent_to(to: SocketAddr, protocol: u8) -> Vec<Instruction> {
    // Offsets relative to the network header, whatever the length of the link header, and offsets
    // of the kernel's metadata (bpf(4)).
    const NETWORK: u32 = libc::SKF_NET_OFF as u32;
    const ETHERTYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PROTOCOL) as u32;
    match to {
        SocketAddr::V4(to) => filter(&[
            Field::Half(ETHERTYPE, 0x0800),
            Field::Byte(NETWORK, 0x45),
            Field::Byte(NETWORK + 9, protocol),
            Field::Word(NETWORK + 16, to.ip().to_bits()),
            Field::Half(NETWORK + 22, to.port()),
        ]),
        SocketAddr::V6(to) => {
            let mut fields = vec![Field::Half(ETHERTYPE, 0x86dd), Field::Byte(NETWORK + 6, protocol)];
            fields.extend(Field::address_v6(NETWORK + 24, *to.ip()));
            fields.push(Field::Half(NETWORK + 42, to.port()));
            filter(&fields)
        }
    }
}

/// Returns a filter that accepts nothing, for a socket that only sends.
pub fn nothing() -> [Instruction; 1] {
    [drop_all()]
}

/// Non-blocking socket that receives routers' ICMP errors about packets of this host that were too
/// big.
#[derive(Debug)]
pub struct TooBigSocket {
    socket: Socket,
}

impl TooBigSocket {
    /// Opens a socket for "fragmentation needed" (RFC 792, RFC 1191). Messages include their IPv4
    /// header.
    ///
    /// # Errors
    /// Fails without CAP_NET_RAW.
    pub fn open_v4() -> io::Result<Self> {
        const HEADER: u32 = 0;
        const UNREACHABLE_FRAGMENTATION_NEEDED: u32 = 0x0304;
        let filter = [
            instruction(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, HEADER),
            instruction(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, 0, 0, 0),
            instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, UNREACHABLE_FRAGMENTATION_NEEDED),
            accept(),
            drop_all(),
        ];
        Self::open(Domain::IPV4, Protocol::ICMPV4, &filter)
    }

    /// Opens a socket for "packet too big" (RFC 4443, section 3.2). Messages do not include their
    /// IPv6 header.
    ///
    /// # Errors
    /// Fails without CAP_NET_RAW or without IPv6.
    pub fn open_v6() -> io::Result<Self> {
        const TOO_BIG: u16 = 0x0200;
        Self::open(Domain::IPV6, Protocol::ICMPV6, &filter(&[Field::Half(0, TOO_BIG)]))
    }

    fn open(domain: Domain, protocol: Protocol, filter: &[Instruction]) -> io::Result<Self> {
        let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
        // Messages that arrived before the filter are dropped by the reader.
        attach(&socket, filter)?;
        socket.set_nonblocking(true)?;
        Ok(TooBigSocket { socket })
    }

    /// Receives a message into `buffer` and returns its length, cut to the buffer.
    ///
    /// # Errors
    /// `WouldBlock` if no message is waiting.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&self.socket).read(buffer)
    }
}

impl AsRawFd for TooBigSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// TCP port reserved for a user-space TCP. Until the value is dropped, the host's own stack neither
/// answers nor resets segments to the port.
#[derive(Debug)]
pub struct ReservedPort {
    _listener: Socket,
    port: u16,
}

impl ReservedPort {
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// Reserves a free TCP port on `address`, an address of this host.
///
/// The port has a listener that accepts only segments with a TTL or hop limit of 255 (RFC 5082).
/// The kernel drops other segments silently before all other checks. Without a listener the kernel
/// would answer with a reset. A filter that accepts nothing is added if the kernel allows that;
/// some kernels require CAP_NET_ADMIN.
///
/// # Errors
/// Fails if the host does not have the address, or if no port is free.
pub fn reserve_port(address: IpAddr) -> io::Result<ReservedPort> {
    let address = SocketAddr::new(address, 0);
    let listener = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    let (level, name) = match address {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MINTTL),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT),
    };
    set_option(listener.as_fd(), level, name, 255)?;
    match attach(&listener, &[drop_all()]) {
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(error),
        _ => {}
    }
    listener.bind(&address.into())?;
    listener.listen(1)?;
    let port = listener.local_addr()?.as_socket().map_or(0, |local| local.port());
    Ok(ReservedPort { _listener: listener, port })
}

fn attach<'a>(socket: &Socket, program: impl IntoIterator<Item = &'a Instruction>) -> io::Result<()> {
    let program: Vec<_> = program.into_iter().map(|i| SockFilter::new(i.code, i.jt, i.jf, i.k)).collect();
    socket.attach_filter(&program)
}

fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> Instruction {
    Instruction { code: code as u16, jt, jf, k }
}

fn accept() -> Instruction {
    instruction(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX)
}

fn drop_all() -> Instruction {
    instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0)
}

/// Filter prologue that drops frames whose VLAN tag the kernel has removed. The filter that follows
/// sees all other frames.
fn untagged() -> [Instruction; 3] {
    let tagged = (libc::SKF_AD_OFF + libc::SKF_AD_VLAN_TAG_PRESENT) as u32;
    [
        instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, tagged),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, 0, 0),
        drop_all(),
    ]
}

/// Returns the name of an interface for messages, or its index if the interface is gone.
pub(crate) fn name_of(ifindex: u32) -> String {
    if_indextoname(ifindex)
        .map_or_else(|_| format!("number {ifindex}"), |name| name.to_string_lossy().into_owned())
}

/// Opens a packet(7) socket. The socket receives nothing until [`bind`].
pub(crate) fn packet_socket() -> io::Result<Socket> {
    Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0)))
}

/// Binds a packet socket to an interface. The socket receives frames from then on.
pub(crate) fn bind(socket: &Socket, ifindex: u32, ethertype: EtherType) -> io::Result<()> {
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: `sockaddr_ll` is plain data, and fits a `sockaddr_storage` as all socket addresses
    // do.
    *unsafe { storage.view_as::<libc::sockaddr_ll>() } = link_address(ifindex, ethertype.protocol());
    // SAFETY: the storage holds a whole `sockaddr_ll`, written just above.
    let address = unsafe { SockAddr::new(storage, size_of::<libc::sockaddr_ll>() as libc::socklen_t) };
    socket.bind(&address)
}

/// Returns the socket address of an interface; `protocol` is in network byte order.
pub(crate) fn link_address(ifindex: u32, protocol: u16) -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol,
        sll_ifindex: ifindex as libc::c_int,
        sll_hatype: 0,
        sll_pkttype: 0,
        // packet(7) requires this address length even if the frame contains the address.
        sll_halen: 6,
        sll_addr: [0; 8],
    }
}

/// setsockopt(2) with an integer.
pub(crate) fn set_option(fd: BorrowedFd<'_>, level: i32, name: i32, value: libc::c_int) -> io::Result<()> {
    set_option_with(fd, level, name, &value)
}

/// setsockopt(2) with plain data.
pub(crate) fn set_option_with<T: Copy>(
    fd: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: &T,
) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the pointer and the length are those of a live value; the kernel only reads it.
    let done =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), len) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// getsockopt(2) of an integer.
pub(crate) fn option(fd: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    let into = std::ptr::from_mut(&mut value).cast();
    // SAFETY: the kernel writes at most `len` bytes to `value`, and the length to `len`.
    let done = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, into, &mut len) };
    if done == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::TcpStream;
    use std::time::Duration;

    #[test]
    fn reserved_port_is_silent_where_a_closed_one_refuses() {
        for address in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
            let Ok(reserved) = reserve_port(address) else {
                assert!(address.is_ipv6(), "a host may be without IPv6");
                continue;
            };
            let wait = Duration::from_millis(300);
            let to = SocketAddr::new(address, reserved.port());
            let silent = TcpStream::connect_timeout(&to, wait).unwrap_err();
            assert_eq!(silent.kind(), io::ErrorKind::TimedOut);
            drop(reserved);
            let refused = TcpStream::connect_timeout(&to, wait).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        }
    }
}
