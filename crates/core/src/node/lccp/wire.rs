//! Messages in wire format, as in `docs/how-it-works/lccp.md`.
//!
//! Every version has the same prefix and the same tag at the end. Between them are the paper's
//! header, with the paper's fields and lengths, and the data of the command.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::body::{BodyFields, CONTENT_MAX, MessageBody, Receptor, mapped};
use super::handoff::STATE_LEN;
use super::key::HourlyKeys;
use super::socket::SocketId;
use super::transfer::CHUNK_LEN;
use crate::node::association::{Numbers, NumbersBytes};
use crate::node::secret::{Key, TAG_LEN, split_tag};

/// The first bytes of every message.
pub const MAGIC: [u8; 4] = *b"LCCP";
/// The version written here.
pub const VERSION: u8 = 1;
/// Length of the shortest message, in bytes.
pub const LEN_MIN: usize = size_of::<LccpPrefix>() + size_of::<LccpHeader>() + TAG_LEN;
/// Length of the longest.
pub const LEN_MAX: usize = LEN_MIN + PAYLOAD_MAX;

const PAYLOAD_MAX: usize = if CONTENT_MAX > CHUNK_LEN as usize { CONTENT_MAX } else { CHUNK_LEN as usize };
// No message is ever a fragment: it fits the least MTU of IPv6 behind its header (RFC 8200,
// sections 3 and 5).
const _: () = assert!(LEN_MAX <= 1_280 - 40);
// The paper's Receptor, Command, Data, Socket ID and Handoff Information.
const _: () = assert!(size_of::<Information>() == 90 && size_of::<LccpHeader>() == 3 * 4 + 12 + 90);

/// In [`LccpPrefix::flags`]: the connection is one of IPv6.
const FLAG_IPV6: u8 = 1;

/// The fields that all versions share.
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

/// Header of the paper.
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

/// The paper's Handoff Information. IPv6 addresses have no room in the Socket ID.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Information {
    subject: [u8; STATE_LEN],
    client: [u8; 16],
    server: [u8; 16],
    reserved: [u8; 8],
}

/// Between which hosts a message goes. It is good between no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The IP header's source.
    pub source: IpAddr,
    /// The IP header's destination.
    pub destination: IpAddr,
}

/// A message with a valid tag, or one to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LccpMessage {
    /// Numbers of the message.
    pub numbers: Numbers,
    /// The receiver's incarnation that it was written to, and the number of the message that it
    /// answers; 0 if none.
    pub echo: Numbers,
    /// The component that it is for.
    pub receptor: Receptor,
    pub body: MessageBody,
}

/// Reason why bytes are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Wrong format, independent of the sender; or authentic, but against the rules of its version.
    #[error("not a message of the cluster control protocol")]
    Malformed,
    /// Authentic, but with a key that is not valid now.
    #[error("written with the key of another time, {ahead_h} hours ahead")]
    Key {
        /// Lead of the key's time, in hours.
        ahead_h: i64,
    },
    /// Correct format, but a wrong tag: another secret, or meant for another host.
    #[error("the tag is wrong: written with another secret, or between other hosts")]
    Forged,
    /// Authentic, and of another version.
    #[error("of version {0}, and this is version {VERSION}")]
    Version(u8),
}

impl LccpMessage {
    /// The bytes to send, behind the IP header.
    pub fn write(&self, addresses: Addresses, keys: &HourlyKeys) -> Vec<u8> {
        let (number, key) = keys.own();
        seal(self.unsealed(number), addresses, key)
    }

    /// Reads the payload of an IP packet. The tag is checked before all else, in constant time.
    ///
    /// # Errors
    /// [`ReadError::Malformed`] also for an authentic message that is not exactly as it would be
    /// written.
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
        // Each message has a single valid encoding: reserved fields are zero, and unused ones
        // empty.
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

    /// All but the tag.
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

/// Bytes with their tag, which is over the addresses too.
pub fn seal(bytes: Vec<u8>, addresses: Addresses, key: &Key) -> Vec<u8> {
    key.seal(&pseudo_header(addresses), bytes)
}

/// The data that the tag covers besides the message: the first two fields of that of RFC 8200,
/// section 8.1.
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

    /// The connection; `None` also where no connection has these ends.
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
