//! Names: sockets by which queries come, and what is counted. What is answered is [`evener_core::dns`]'s.

mod counts;
mod datagrams;
mod server;
mod stream;

pub(crate) use counts::QueryCounts;
pub(crate) use server::{BoundSockets, DnsServers, NamesError, QueryContext};
