//! Messages in wire format, as in `docs/how-it-works/lccp.md`.
//!
//! In every version, messages begin with the same prefix and end with a tag of the same format. In
//! between are the header of the LCCP paper, with the fields and lengths of its section 3.2, and
//! the payload of the command.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::body::{BodyFields, CONTENT_MAX, MessageBody, Receptor, mapped};
use super::handoff_information::STATE_LEN;
use super::key::HourlyKeys;
use super::socket::SocketId;
use super::transfer::CHUNK_LEN;
use crate::node::association::{Numbers, NumbersBytes};
use crate::node::secret::{Key, TAG_LEN, split_tag};

/// The first bytes of every message.
pub const MAGIC: [u8; 4] = *b"LCCP";
/// Protocol version of the messages that this release writes. No other version is accepted.
pub const VERSION: u8 = 1;
/// Length of the shortest message, in bytes.
pub const LEN_MIN: usize = size_of::<LccpPrefix>() + size_of::<LccpHeader>() + TAG_LEN;
/// Length of the longest message, in bytes.
pub const LEN_MAX: usize = LEN_MIN + PAYLOAD_MAX;

const PAYLOAD_MAX: usize = if CONTENT_MAX > CHUNK_LEN as usize { CONTENT_MAX } else { CHUNK_LEN as usize };
// Messages are never fragmented: the longest one and an IPv6 header fit the minimum MTU of IPv6
// (RFC 8200, sections 3 and 5).
const _: () = assert!(LEN_MAX <= 1_280 - 40);
// Receptor, Command, Data, Socket ID and Handoff Information have the lengths of the LCCP paper.
const _: () = assert!(size_of::<Information>() == 90 && size_of::<LccpHeader>() == 3 * 4 + 12 + 90);

/// Bit of [`LccpPrefix::flags`], set if the client's connection uses IPv6.
const FLAG_IPV6: u8 = 1;

/// Fields before the header, which are the same in all versions.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct LccpPrefix {
    magic: [u8; 4],
    version: u8,
    flags: u8,
    length: U16,
    key: U32,
    numbers: NumbersBytes,
}

/// Header of the LCCP paper.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct LccpHeader {
    receptor: U32,
    command: U32,
    data: U32,
    client: [u8; 4],
    client_port: U16,
    server: [u8; 4],
    server_port: U16,
    information: Information,
}

/// Handoff Information of the LCCP paper. The fields for addresses are used for IPv6 connections
/// only, since the Socket ID has room for IPv4 addresses only.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Information {
    subject: [u8; STATE_LEN],
    client: [u8; 16],
    server: [u8; 16],
    reserved: [u8; 8],
}

/// Addresses of the sender and the receiver of a message. The tag covers both addresses, so a
/// message is invalid between other hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The IP header's source.
    pub source: IpAddr,
    /// The IP header's destination.
    pub destination: IpAddr,
}

/// A message with a valid tag, or a message to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LccpMessage {
    /// Sender's incarnation and sequence number of the message.
    pub numbers: Numbers,
    /// Incarnation of the receiver for which the message is meant, and sequence number of the
    /// message that this message answers. Each number is 0 if there is none.
    pub echo: Numbers,
    /// Component of the receiver that handles the message.
    pub receptor: Receptor,
    pub body: MessageBody,
}

/// Reason why bytes are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The bytes are too short, or magic or length is wrong, or the message is authentic but
    /// violates the rules of its version.
    #[error("not a message of the cluster control protocol")]
    Malformed,
    /// Authentic, but with a key that is not valid now.
    #[error("the sender's clock is {ahead_h} hours ahead: its key is of another time")]
    Key {
        /// Hours by which the key's hour is ahead of the current hour; negative if it is behind.
        ahead_h: i64,
    },
    /// Correct format, but a wrong tag: the sender has another secret, or meant another host.
    #[error(
        "the authentication tag is wrong: the sender has another secret, or the message is for another host"
    )]
    Forged,
    /// Authentic, but of another protocol version.
    #[error("the sender has protocol version {0}, this host has version {VERSION}")]
    Version(u8),
}

impl LccpMessage {
    /// Returns the message with its tag, as the payload of an IP packet.
    pub fn write(&self, addresses: Addresses, keys: &HourlyKeys) -> Vec<u8> {
        let (number, key) = keys.own();
        seal(self.unsealed(number), addresses, key)
    }

    /// Reads the payload of an IP packet. Magic and length are checked first, then the tag in
    /// constant time, then all other fields.
    ///
    /// # Errors
    /// An authentic message is also [`ReadError::Malformed`] if its bytes differ from those that
    /// [`LccpMessage::write`] produces for the same content.
    pub fn read(bytes: &[u8], addresses: Addresses, keys: &HourlyKeys) -> Result<LccpMessage, ReadError> {
        let (signed, tag) = split_tag(bytes).ok_or(ReadError::Malformed)?;
        let (prefix, rest) = LccpPrefix::ref_from_prefix(signed).map_err(|_| ReadError::Malformed)?;
        if prefix.magic != MAGIC || usize::from(prefix.length.get()) != bytes.len() {
            return Err(ReadError::Malformed);
        }
        let (key, ahead_h) = keys.of(prefix.key.get());
        if !key.has_sealed(&pseudo_header(addresses), signed, tag) {
            return Err(ReadError::Forged);
        }
        if let Some(ahead_h) = ahead_h {
            return Err(ReadError::Key { ahead_h });
        }
        if prefix.version != VERSION {
            return Err(ReadError::Version(prefix.version));
        }
        let (header, payload) = LccpHeader::ref_from_prefix(rest).map_err(|_| ReadError::Malformed)?;
        let message = LccpMessage::of(prefix, header, payload).ok_or(ReadError::Malformed)?;
        // Each message has a single valid encoding, in which reserved fields are zero and unused
        // fields empty.
        if message.unsealed(prefix.key.get()) == signed { Ok(message) } else { Err(ReadError::Malformed) }
    }

    fn of(prefix: &LccpPrefix, header: &LccpHeader, payload: &[u8]) -> Option<LccpMessage> {
        let fields = BodyFields {
            command: header.command.get(),
            data: header.data.get(),
            socket: header.socket(prefix.flags & FLAG_IPV6 != 0),
            subject: header.information.subject,
            payload: payload.into(),
        };
        let (body, receptor) = (fields.body()?, Receptor::of_number(header.receptor.get())?);
        let first = matches!(body, MessageBody::Init { .. } | MessageBody::InitAck { .. });
        (!first || receptor == Receptor::Agent).then_some(LccpMessage {
            numbers: prefix.numbers.numbers(),
            echo: prefix.numbers.echo(),
            receptor,
            body,
        })
    }

    /// Returns the message without its tag. `key` is the number of the key for the tag.
    fn unsealed(&self, key: u32) -> Vec<u8> {
        let fields = self.body.fields();
        let ipv6 = fields.socket.is_some_and(|socket| socket.client().is_ipv6());
        let length = LEN_MIN + fields.payload.len();
        let prefix = LccpPrefix {
            magic: MAGIC,
            version: VERSION,
            flags: if ipv6 { FLAG_IPV6 } else { 0 },
            length: U16::new(length as u16),
            key: key.into(),
            numbers: NumbersBytes::of(self.numbers, self.echo),
        };
        let mut bytes = Vec::with_capacity(length);
        bytes.extend_from_slice(prefix.as_bytes());
        bytes.extend_from_slice(LccpHeader::of(self.receptor, &fields).as_bytes());
        bytes.extend_from_slice(&fields.payload);
        bytes
    }
}

/// Appends the tag to a message. The tag also covers the addresses.
pub fn seal(bytes: Vec<u8>, addresses: Addresses, key: &Key) -> Vec<u8> {
    key.seal(&pseudo_header(addresses), bytes)
}

/// Returns the data that the tag covers besides the message: source and destination address, like
/// the first two fields of the IPv6 pseudo-header (RFC 8200, section 8.1). IPv4 addresses are
/// mapped.
fn pseudo_header(addresses: Addresses) -> [u8; 32] {
    let both = [mapped(addresses.source).octets(), mapped(addresses.destination).octets()];
    zerocopy::transmute!(both)
}

impl LccpHeader {
    fn of(receptor: Receptor, fields: &BodyFields) -> LccpHeader {
        let mut header = LccpHeader {
            receptor: U32::new(receptor as u32),
            command: fields.command.into(),
            data: fields.data.into(),
            client: [0; 4],
            client_port: U16::ZERO,
            server: [0; 4],
            server_port: U16::ZERO,
            information: Information {
                subject: fields.subject,
                client: [0; 16],
                server: [0; 16],
                reserved: [0; 8],
            },
        };
        let Some(socket) = fields.socket else { return header };
        let (client, server) = (socket.client(), socket.server());
        encode_endpoint(client, &mut header.client, &mut header.information.client, &mut header.client_port);
        encode_endpoint(server, &mut header.server, &mut header.information.server, &mut header.server_port);
        header
    }

    /// Returns the Socket ID of the message; `None` if no connection can have these endpoints, such
    /// as the zeros of a message without a Socket ID.
    fn socket(&self, ipv6: bool) -> Option<SocketId> {
        let end = |short: [u8; 4], long: [u8; 16], port: U16| {
            let address = if ipv6 { Ipv6Addr::from(long).into() } else { Ipv4Addr::from(short).into() };
            SocketAddr::new(address, port.get())
        };
        let client = end(self.client, self.information.client, self.client_port);
        SocketId::new(client, end(self.server, self.information.server, self.server_port))
    }
}

fn encode_endpoint(end: SocketAddr, short: &mut [u8; 4], long: &mut [u8; 16], port: &mut U16) {
    match end.ip() {
        IpAddr::V4(address) => *short = address.octets(),
        IpAddr::V6(address) => *long = address.octets(),
    }
    *port = end.port().into();
}
