//! DNS sockets and counters. [`evener_core::dns`] computes the answers.

mod counts;
mod datagrams;
mod server;
mod stream;

pub(crate) use counts::QueryCounts;
pub(crate) use server::{BoundSockets, DnsServers, NamesError, QueryContext};
