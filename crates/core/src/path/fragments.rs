//! The record of a fragmented packet's first fragment, which alone has the ports, for the later
//! ones.
//!
//! The memory is bounded: the engines keep a fixed number of entries and put the oldest out.
//! Nothing is ever put together again: later fragments follow the first one to its server and are
//! reassembled there.

use core::fmt;
use core::net::IpAddr;

use super::parse::Layers;

/// Lifetime of a first fragment's record, in milliseconds. The others follow within a round trip;
/// hosts give up on them after 30 s (Linux) to 60 s (RFC 8200, section 4.5).
pub const LIFETIME_MS: u64 = 5_000;
/// Longest wait of a later fragment for the first one, in milliseconds.
pub const PATIENCE_MS: u64 = 500;

/// The fields that the fragments of one packet have in common (RFC 791, section 3.2; RFC 8200,
/// section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FragmentKey {
    pub src: IpAddr,
    pub dst: IpAddr,
    /// Identification; 16 bits in IPv4.
    pub id: u32,
    /// Transport protocol; 0 in IPv6, where the identification alone tells and later fragments may
    /// begin with something else.
    pub protocol: u8,
}

impl FragmentKey {
    /// Returns the key of the packet with this identification.
    pub fn of(at: &Layers, id: u32) -> FragmentKey {
        let protocol = if at.dst.is_ipv6() { 0 } else { at.protocol };
        FragmentKey { src: at.src, dst: at.dst, id, protocol }
    }
}

/// Destination of a packet's fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Track {
    /// Until when this is true, in ticks.
    pub expires: u32,
    pub server: u16,
    pub vip: u16,
    /// The port that stands for the client, where it is hidden from the server; else 0.
    pub port: u16,
    /// End of the first fragment, in units of eight bytes. No later fragment may begin before it.
    pub first_end: u16,
    /// True if the packet is a reply of a server.
    pub answer: bool,
}

/// The memory of first fragments.
pub trait Fragments: fmt::Debug {
    /// The record. Entries that have expired may be given.
    fn find(&self, key: &FragmentKey) -> Option<Track>;
    /// Remembers, in the place of an older entry of this key.
    fn note(&self, key: &FragmentKey, track: Track);
}
