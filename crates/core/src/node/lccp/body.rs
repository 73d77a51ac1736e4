//! Bodies of messages: the Receptor and Command fields of the LCCP paper, and the data of each
//! command.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::handoff_information::{STATE_LEN, TcpState};
use super::socket::{SocketId, bare};
use super::transfer::Piece;

/// Maximum length of host, method and path together in a dispatch request, in bytes.
pub const CONTENT_MAX: usize = 1_024;

/// Component of a node that receives a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Receptor {
    /// Owns clients' connections, and hands them off or receives them.
    Distributor = 1,
    /// Selects the server of a connection.
    Dispatcher = 2,
    /// Forwards the packets of connections that were handed off.
    Forwarder = 3,
    /// Represents the node itself. Every node has this component.
    Agent = 4,
}

impl Receptor {
    pub const ALL: [Receptor; 4] =
        [Receptor::Distributor, Receptor::Dispatcher, Receptor::Forwarder, Receptor::Agent];

    pub(super) fn of_number(number: u32) -> Option<Receptor> {
        Receptor::ALL.into_iter().find(|receptor| *receptor as u32 == number)
    }
}

/// Set of components of a node. The agent is always included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Components(u32);

impl Components {
    /// Returns a set of these components and the agent.
    pub fn new(receptors: &[Receptor]) -> Components {
        let bits = receptors.iter().map(|receptor| Components::bit(*receptor));
        Components(bits.fold(Components::bit(Receptor::Agent), |all, bit| all | bit))
    }

    /// True if the component is in the set.
    pub fn contains(self, receptor: Receptor) -> bool {
        self.0 & Components::bit(receptor) != 0
    }

    const fn bit(receptor: Receptor) -> u32 {
        1 << receptor as u32
    }

    fn of_bits(bits: u32) -> Components {
        let known: Vec<Receptor> =
            Receptor::ALL.into_iter().filter(|receptor| bits & Components::bit(*receptor) != 0).collect();
        Components::new(&known)
    }
}

/// Reason why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum ErrorCode {
    /// The service is unknown, or has no server.
    NoServer = 1,
    /// There is no room for another connection.
    NoCapacity = 2,
    /// The host can't restore the connection from its state.
    NotRestored = 3,
    /// The connection is unknown.
    Unknown = 4,
    /// The connection is busy, and may be idle later.
    Busy = 5,
}

impl ErrorCode {
    pub const ALL: [ErrorCode; 5] = [
        ErrorCode::NoServer,
        ErrorCode::NoCapacity,
        ErrorCode::NotRestored,
        ErrorCode::Unknown,
        ErrorCode::Busy,
    ];

    fn of_number(number: u32) -> Option<ErrorCode> {
        ErrorCode::ALL.into_iter().find(|code| *code as u32 == number)
    }
}

/// A client's request. All fields are empty if the request is unknown. A TLS ClientHello has only a
/// host.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ClientRequest {
    host: Vec<u8>,
    method: Vec<u8>,
    path: Vec<u8>,
}

impl ClientRequest {
    /// Returns the request with these fields. `None` if host or method has more than 255 bytes, or
    /// all fields together have more than [`CONTENT_MAX`] bytes.
    pub fn new(host: &[u8], method: &[u8], path: &[u8]) -> Option<ClientRequest> {
        let fits = host.len().max(method.len()) <= usize::from(u8::MAX)
            && host.len().saturating_add(method.len()).saturating_add(path.len()) <= CONTENT_MAX;
        fits.then(|| ClientRequest { host: host.into(), method: method.into(), path: path.into() })
    }

    pub fn host(&self) -> &[u8] {
        &self.host
    }

    pub fn method(&self) -> &[u8] {
        &self.method
    }

    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Returns the lengths of host (8 bits), method (8 bits) and path (16 bits), as in the Data
    /// field.
    fn lengths(&self) -> u32 {
        (self.host.len() as u32) << 24 | (self.method.len() as u32) << 16 | self.path.len() as u32
    }

    fn read(lengths: u32, bytes: &[u8]) -> Option<ClientRequest> {
        let (host, rest) = bytes.split_at_checked((lengths >> 24) as usize)?;
        let (method, path) = rest.split_at_checked((lengths >> 16 & 0xff) as usize)?;
        ClientRequest::new(host, method, path)
    }
}

/// Body of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageBody {
    /// Greeting, for the agent. A receiver that knows the sender's life answers with an `InitAck`.
    Init { components: Components },
    /// Answer to a greeting by a node that knows the sender's life. Other nodes answer with an
    /// `Init`.
    InitAck { components: Components },
    /// Request to select a server for this connection.
    DispatchRequest { socket: SocketId, content: ClientRequest },
    /// Server selected by the dispatcher.
    DispatchReply {
        socket: SocketId,
        /// Number of the route that matched; `u16::MAX` if none did.
        route: u16,
        server: SocketAddr,
    },
    /// A piece of a connection to accept.
    Handoff {
        socket: SocketId,
        /// State of the connection, and some bytes of its queues.
        piece: Piece,
    },
    /// Acknowledgment of a handoff's pieces.
    HandoffAck {
        socket: SocketId,
        /// Number of bytes of the queues that were received without a gap. If this is all bytes,
        /// the connection is accepted.
        missing: u32,
    },
    /// Request to forward this connection's packets to a server.
    Forward { socket: SocketId, server: SocketAddr },
    /// Acknowledgment of a [`MessageBody::Forward`].
    ForwardAck { socket: SocketId },
    /// The connection has ended.
    Close { socket: SocketId },
    /// Request to release this connection. The server releases it only if it is idle, with all data
    /// before the client's next segment exchanged.
    Release {
        socket: SocketId,
        /// Sequence number of the client's next segment.
        rcv_nxt: u32,
        /// Acknowledgment number of the client's next segment.
        snd_nxt: u32,
    },
    /// The connection was released.
    Released {
        socket: SocketId,
        /// State of the connection, with empty queues.
        state: TcpState,
    },
    Error {
        /// Connection of the failed request, if there is one.
        socket: Option<SocketId>,
        code: ErrorCode,
    },
}

/// Numbers of the commands in the Command field.
mod command {
    pub(super) const INIT: u32 = 1;
    pub(super) const INIT_ACK: u32 = 2;
    pub(super) const DISPATCH_REQUEST: u32 = 3;
    pub(super) const DISPATCH_REPLY: u32 = 4;
    pub(super) const HANDOFF: u32 = 5;
    pub(super) const HANDOFF_ACK: u32 = 6;
    pub(super) const FORWARD: u32 = 7;
    pub(super) const FORWARD_ACK: u32 = 8;
    pub(super) const CLOSE: u32 = 9;
    pub(super) const ERROR: u32 = 10;
    pub(super) const RELEASE: u32 = 11;
    pub(super) const RELEASED: u32 = 12;
}

/// The body of a message, as fields of the header and payload.
pub(super) struct BodyFields {
    pub(super) command: u32,
    pub(super) data: u32,
    pub(super) socket: Option<SocketId>,
    /// First field of the Handoff Information: the state of a connection, or a server's address.
    pub(super) subject: [u8; STATE_LEN],
    pub(super) payload: Vec<u8>,
}

/// Server address in the first field of the Handoff Information.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ServerBytes {
    address: [u8; 16],
    port: U16,
    reserved: [u8; 32],
}

impl MessageBody {
    /// Connection that the message concerns; `None` for messages about no connection.
    pub fn socket(&self) -> Option<SocketId> {
        match self {
            MessageBody::Init { .. } | MessageBody::InitAck { .. } => None,
            MessageBody::DispatchRequest { socket, .. }
            | MessageBody::DispatchReply { socket, .. }
            | MessageBody::Handoff { socket, .. }
            | MessageBody::HandoffAck { socket, .. }
            | MessageBody::Forward { socket, .. }
            | MessageBody::ForwardAck { socket }
            | MessageBody::Close { socket }
            | MessageBody::Release { socket, .. }
            | MessageBody::Released { socket, .. } => Some(*socket),
            MessageBody::Error { socket, .. } => *socket,
        }
    }

    pub(super) fn fields(&self) -> BodyFields {
        let fields = BodyFields {
            command: 0,
            data: 0,
            socket: self.socket(),
            subject: [0; STATE_LEN],
            payload: Vec::new(),
        };
        match self {
            MessageBody::Init { components } => {
                BodyFields { command: command::INIT, data: components.0, ..fields }
            }
            MessageBody::InitAck { components } => {
                BodyFields { command: command::INIT_ACK, data: components.0, ..fields }
            }
            MessageBody::DispatchRequest { content, .. } => {
                let payload = [&content.host[..], &content.method, &content.path].concat();
                BodyFields { command: command::DISPATCH_REQUEST, data: content.lengths(), payload, ..fields }
            }
            MessageBody::DispatchReply { route, server, .. } => {
                let (data, subject) = (u32::from(*route), server_bytes(*server));
                BodyFields { command: command::DISPATCH_REPLY, data, subject, ..fields }
            }
            MessageBody::Handoff { piece, .. } => {
                let (subject, payload) = (piece.state().bytes(), piece.bytes().into());
                BodyFields { command: command::HANDOFF, data: piece.offset(), subject, payload, ..fields }
            }
            MessageBody::HandoffAck { missing, .. } => {
                BodyFields { command: command::HANDOFF_ACK, data: *missing, ..fields }
            }
            MessageBody::Forward { server, .. } => {
                BodyFields { command: command::FORWARD, subject: server_bytes(*server), ..fields }
            }
            MessageBody::ForwardAck { .. } => BodyFields { command: command::FORWARD_ACK, ..fields },
            MessageBody::Close { .. } => BodyFields { command: command::CLOSE, ..fields },
            MessageBody::Release { rcv_nxt, snd_nxt, .. } => {
                let (rcv_nxt, snd_nxt) = (*rcv_nxt, *snd_nxt);
                let state = TcpState { rcv_nxt, snd_una: snd_nxt, snd_nxt, ..TcpState::default() };
                BodyFields { command: command::RELEASE, subject: state.bytes(), ..fields }
            }
            MessageBody::Released { state, .. } => {
                BodyFields { command: command::RELEASED, subject: state.bytes(), ..fields }
            }
            MessageBody::Error { code, .. } => {
                BodyFields { command: command::ERROR, data: *code as u32, ..fields }
            }
        }
    }
}

impl BodyFields {
    /// Decodes the fields. [`super::wire`] checks that unused fields are empty.
    pub(super) fn body(&self) -> Option<MessageBody> {
        let components = Components::of_bits(self.data);
        Some(match self.command {
            command::INIT => MessageBody::Init { components },
            command::INIT_ACK => MessageBody::InitAck { components },
            command::DISPATCH_REQUEST => MessageBody::DispatchRequest {
                socket: self.socket?,
                content: ClientRequest::read(self.data, &self.payload)?,
            },
            command::DISPATCH_REPLY => MessageBody::DispatchReply {
                socket: self.socket?,
                route: self.data as u16,
                server: server(self.subject)?,
            },
            command::HANDOFF => MessageBody::Handoff {
                socket: self.socket?,
                piece: Piece::new(TcpState::of_bytes(self.subject), self.data, &self.payload)?,
            },
            command::HANDOFF_ACK => MessageBody::HandoffAck { socket: self.socket?, missing: self.data },
            command::FORWARD => MessageBody::Forward { socket: self.socket?, server: server(self.subject)? },
            command::FORWARD_ACK => MessageBody::ForwardAck { socket: self.socket? },
            command::CLOSE => MessageBody::Close { socket: self.socket? },
            command::RELEASE => {
                let TcpState { rcv_nxt, snd_nxt, .. } = TcpState::of_bytes(self.subject);
                MessageBody::Release { socket: self.socket?, rcv_nxt, snd_nxt }
            }
            command::RELEASED => {
                let state = TcpState::of_bytes(self.subject);
                let rests = state.is_sound() && state.queued_len() == 0;
                MessageBody::Released { socket: self.socket.filter(|_| rests)?, state }
            }
            command::ERROR => {
                MessageBody::Error { socket: self.socket, code: ErrorCode::of_number(self.data)? }
            }
            _ => return None,
        })
    }
}

/// Returns the address as IPv6. IPv4 addresses are mapped (RFC 4291, section 2.5.5.2).
pub(super) fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

fn server_bytes(server: SocketAddr) -> [u8; STATE_LEN] {
    let address = mapped(server.ip()).octets();
    let bytes = ServerBytes { address, port: server.port().into(), reserved: [0; 32] };
    zerocopy::transmute!(bytes)
}

fn server(bytes: [u8; STATE_LEN]) -> Option<SocketAddr> {
    let bytes: ServerBytes = zerocopy::transmute!(bytes);
    bare(SocketAddr::new(Ipv6Addr::from(bytes.address).into(), bytes.port.get()))
}
