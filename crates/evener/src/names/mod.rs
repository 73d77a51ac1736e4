//! Names: sockets by which queries come, and counts. The answers are [`evener_core::dns`]'s.

mod counts;
mod datagrams;
mod server;
mod stream;

pub(crate) use counts::QueryCounts;
pub(crate) use server::{BoundSockets, DnsServers, NamesError, QueryContext};
