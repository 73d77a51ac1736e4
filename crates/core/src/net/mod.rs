//! Packet formats: headers, checksums and neighbour resolution. Nothing here depends on services.
//!
//! [`wire`] header layouts · [`packet`] a frame in a buffer with headroom · [`checksum`] sums and
//! their updates · [`ip`] and [`tcp`] parsers shared by directors and servers · [`neighbour`] ARP
//! and neighbour discovery · [`prefix`] networks · [`http`] requests and own responses

pub mod checksum;
pub mod http;
pub mod ip;
pub mod neighbour;
pub mod packet;
pub mod prefix;
pub mod tcp;
pub mod wire;

mod protocol;
pub use protocol::{Encapsulation, Protocol};
