//! Records of first fragments. Later fragments have no ports, so they follow the record of their
//! packet's first fragment.
//!
//! The memory is bounded: engines keep a fixed number of entries and evict the oldest. The director
//! reassembles nothing. It sends later fragments to the server of the first one, and the server
//! reassembles them.

use core::fmt;
use core::net::IpAddr;

use super::parse::Layers;

/// Lifetime of a first fragment's record in milliseconds. Later fragments usually arrive within a
/// round trip. Hosts give up reassembly after 30 s (Linux) to 60 s (RFC 8200, section 4.5).
pub const LIFETIME_MS: u64 = 5_000;
/// Longest wait of a later fragment for the first one, in milliseconds.
pub const PATIENCE_MS: u64 = 500;

/// Fields that all fragments of a packet share (RFC 791, section 3.2; RFC 8200, section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FragmentKey {
    pub src: IpAddr,
    pub dst: IpAddr,
    /// Identification of the packet, which has 16 bits in IPv4.
    pub id: u32,
    /// Transport protocol. 0 in IPv6, where the identification is unique and later fragments may
    /// begin with another header.
    pub protocol: u8,
}

impl FragmentKey {
    /// Returns the key of a fragment's packet, which has this identification.
    pub fn of(at: &Layers, id: u32) -> FragmentKey {
        let protocol = if at.dst.is_ipv6() { 0 } else { at.protocol };
        FragmentKey { src: at.src, dst: at.dst, id, protocol }
    }
}

/// Destination of a packet's fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Track {
    /// Tick at which the record expires.
    pub expires: u32,
    pub server: u16,
    pub vip: u16,
    /// Source-NAT port of the client; 0 if the server sees the client's address.
    pub port: u16,
    /// End of the first fragment, in units of eight bytes. No later fragment may begin before this
    /// end.
    pub first_end: u16,
    /// True if the packet is a reply of a server.
    pub answer: bool,
}

/// Table of first fragments.
pub trait Fragments: fmt::Debug {
    /// Returns the record of a packet. The record may have expired.
    fn find(&self, key: &FragmentKey) -> Option<Track>;
    /// Stores a record. Replaces an older record with this key.
    fn note(&self, key: &FragmentKey, track: Track);
}
