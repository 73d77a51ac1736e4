//! The wire: headers, checksums, the questions for neighbours. Nothing here knows of services.
//!
//! [`wire`] headers as they are laid out · [`packet`] a frame in a buffer, with room in front ·
//! [`checksum`] sums and their updates · [`ip`] and [`tcp`] what directors and servers read alike ·
//! [`neighbour`] ARP and neighbour discovery · [`prefix`] networks · [`http`] requests and short
//! answers

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
