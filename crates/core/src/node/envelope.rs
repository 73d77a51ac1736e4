//! Envelope of datagrams between nodes: a prefix, a body and a tag. Prefix and tag have the same
//! format in all kinds and versions, so a node can see that a node of another version is alive.

use alloc::vec::Vec;

use siphasher::sip::SipHasher24;
use zerocopy::byteorder::network_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::association::{Numbers, NumbersBytes};
use super::secret::{Key, TAG_LEN, split_tag};

/// The first bytes of every datagram.
pub const MAGIC: [u8; 4] = *b"EVNR";
/// Length of the prefix before the body, in bytes.
pub(super) const PREFIX_LEN: usize = size_of::<Prefix>();

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Prefix {
    magic: [u8; 4],
    version: u8,
    kind: u8,
    length: U16,
    sender: U64,
    receiver: U64,
    numbers: NumbersBytes,
}

/// A datagram with a valid tag, or a datagram to send. Its body is not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Envelope<'b> {
    /// Version of the body.
    pub(super) version: u8,
    /// Kind of the datagram: between hosts or between directors.
    pub(super) kind: u8,
    /// Digest of the sender's name.
    pub(super) sender: u64,
    /// Digest of the receiver's name.
    pub(super) receiver: u64,
    /// Numbers of the datagram.
    pub(super) numbers: Numbers,
    /// Last numbers that the sender has received from the receiver.
    pub(super) echo: Numbers,
    pub(super) body: &'b [u8],
}

/// Reason why bytes are not a valid datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("not a datagram of an Evener node")]
    Malformed,
    /// Correct format, but a wrong tag: the sender has another secret.
    #[error("the authentication tag is wrong: the sender has another secret")]
    Forged {
        /// Digest of the claimed sender's name, not authenticated.
        claimed: u64,
    },
}

/// Returns the digest of a node's name, which is the same on every node.
pub(crate) fn digest(name: &str) -> u64 {
    SipHasher24::new_with_keys(0x6576_656e_6572, 0x686f_7374).hash(name.as_bytes())
}

impl<'b> Envelope<'b> {
    /// Encodes the datagram with its tag.
    pub(super) fn write(&self, key: &Key) -> Vec<u8> {
        let length = PREFIX_LEN + self.body.len() + TAG_LEN;
        let prefix = Prefix {
            magic: MAGIC,
            version: self.version,
            kind: self.kind,
            length: U16::new(length as u16),
            sender: self.sender.into(),
            receiver: self.receiver.into(),
            numbers: NumbersBytes::of(self.numbers, self.echo),
        };
        let mut bytes = Vec::with_capacity(length);
        bytes.extend_from_slice(prefix.as_bytes());
        bytes.extend_from_slice(self.body);
        key.seal(&[], bytes)
    }

    /// Decodes a received datagram. The tag is checked before all other fields, in constant time.
    ///
    /// # Errors
    /// The bytes are not a datagram, or were written with another key.
    pub(super) fn read(bytes: &'b [u8], key: &Key) -> Result<Envelope<'b>, ReadError> {
        let (signed, tag) = split_tag(bytes).ok_or(ReadError::Malformed)?;
        let (prefix, body) = Prefix::ref_from_prefix(signed).map_err(|_| ReadError::Malformed)?;
        if prefix.magic != MAGIC || usize::from(prefix.length.get()) != bytes.len() {
            return Err(ReadError::Malformed);
        }
        if !key.has_sealed(&[], signed, tag) {
            return Err(ReadError::Forged { claimed: prefix.sender.get() });
        }
        Ok(Envelope {
            version: prefix.version,
            kind: prefix.kind,
            sender: prefix.sender.get(),
            receiver: prefix.receiver.get(),
            numbers: prefix.numbers.numbers(),
            echo: prefix.numbers.echo(),
            body,
        })
    }
}
