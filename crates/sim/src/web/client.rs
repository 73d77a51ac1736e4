//! Clients of a farm with a group and names: the group redirects their requests, and their DNS
//! queries are answered.

use std::net::IpAddr;

use evener_core::dns::{DnsRequest, Name, Transport, rtype};
use evener_core::farm::group::DispatchRequest;

use super::model::NAMES;
use super::{Consumer, DIRECTOR, check, orders};
use crate::check::{Broken, Promise};
use crate::farms::{self, SERVERS};
use crate::world::World;

/// Length of the DNS header.
const HEADER_LEN: usize = 12;

/// Sends a client's request to the group, and a query for each name.
pub(crate) fn visit(world: &mut World, client: usize) -> Result<(), Broken> {
    come(world, client).map(drop)
}

/// Like [`visit`], but also returns the server of the redirect.
pub(super) fn come(world: &mut World, client: usize) -> Result<Option<usize>, Broken> {
    if world.nodes[DIRECTOR].director.is_none() {
        return Ok(None);
    }
    let server = match sent_to(world, client) {
        Some(None) => return Err(Promise::Failed.broken("a host that serves nobody by the group".to_owned())),
        server => server.flatten(),
    };
    if let Some(server) = server {
        check::given(world, Consumer::Group, server)?;
    }
    for number in 0..NAMES.len() {
        for server in answered_with(world, number) {
            check::given(world, Consumer::Name(number), server)?;
        }
    }
    check::nobody_is_left_out(world)?;
    Ok(server)
}

/// Returns the server of the group's redirect for a client: `None` without a redirect, `Some(None)`
/// for an unknown host.
fn sent_to(world: &World, client: usize) -> Option<Option<usize>> {
    let rules = world.web.rules.as_ref()?;
    Some(orders::number_of(&rules.dispatch.choose(&request(client))?.url))
}

fn request(client: usize) -> DispatchRequest<'static> {
    DispatchRequest { client: farms::client(client), method: "GET", host: b"shop.example.com", target: "/" }
}

/// Returns the servers that the group redirects clients to.
pub(super) fn members(world: &World) -> Option<Vec<usize>> {
    let rules = world.web.rules.as_ref()?;
    let (candidates, places) = (rules.dispatch.candidates(), rules.dispatch.may_have(&request(0)).1);
    Some(places.iter().filter_map(|place| orders::number_of(&candidates.get(*place)?.url)).collect())
}

/// Returns the servers in the answer to a query, in order.
pub(super) fn answered_with(world: &mut World, number: usize) -> Vec<usize> {
    let turn = world.below(1 << 20);
    let (Some(names), Ok(name)) = (&world.web.answers, Name::parse(NAMES[number])) else { return Vec::new() };
    let mut query = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    query.extend(name.as_wire());
    query.extend([rtype::A.to_be_bytes(), [0, 1]].concat());
    let asked = DnsRequest {
        bytes: &query,
        client: farms::client(1),
        transport: Transport::Udp,
        now_s: 0,
        now_ms: world.now_ms as u32,
        turn,
    };
    let mut answer = vec![0; 512];
    let Some(answered) = names.answer(&asked, None, &mut answer) else { return Vec::new() };
    answer.truncate(answered.len);
    addresses(&answer, query.len())
        .into_iter()
        .filter_map(|address| (0..SERVERS).find(|server| farms::server(*server).0 == address))
        .collect()
}

/// Returns the addresses in an answer whose records start at `begin` (RFC 1035, section 4.1).
fn addresses(answer: &[u8], begin: usize) -> Vec<IpAddr> {
    let count = answer.get(6..8).map_or(0, |count| u16::from_be_bytes([count[0], count[1]]));
    let mut at = begin.max(HEADER_LEN);
    let mut found = Vec::new();
    for _ in 0..count {
        // Record names are pointers to the name of the question.
        let Some([0xc0, _, 0, 1, 0, 1, _, _, _, _, 0, 4, a, b, c, d]) = answer.get(at..at + 16) else {
            break;
        };
        found.push(IpAddr::from([*a, *b, *c, *d]));
        at += 16;
    }
    found
}
