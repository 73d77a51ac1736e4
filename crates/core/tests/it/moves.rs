//! Connections that move, and those that end because they can't be moved.

use std::net::{IpAddr, SocketAddr};

use super::world::{DIRECTOR, ROUTER, World};
use etherparse::PacketBuilder;
use evener_core::net::packet::Checksum;
use evener_core::path::decide::{Decision, HELD_FRAME_MAX, Reason, Verdict};
use evener_core::path::sessions::{SessionKey, State, Value};
use evener_core::path::tables::{Forwarding, Handoff, NO_SERVER, RehandoffMode};

const CLIENT: [u8; 4] = [203, 0, 113, 7];
const VIP: [u8; 4] = [192, 0, 2, 100];
const PORT: u16 = 40_000;
const NOW: u32 = 1_000;

/// A connection with server 1, of a service whose routes nobody knows: whatever is asked for may be
/// another's.
fn world(later: RehandoffMode) -> World {
    let World { mut tables, .. } = World::new(SocketAddr::new(VIP.into(), 80), Forwarding::Link);
    let handoff = Handoff { mss: 1460, punt: NO_SERVER, held: NO_SERVER, later };
    tables.vips.values_mut().filter(|vip| vip.id == 1).for_each(|vip| vip.handoff = Some(handoff));
    let world = World::of(tables);
    let memory = world.memory();
    let key = SessionKey { client: CLIENT.into(), port: PORT, vip: 1 };
    let value = Value::new(1, State::Established, NOW + 50);
    memory.sessions.insert(key, key.hash(memory.seed), value, NOW).unwrap();
    world
}

fn segment(text: &str) -> Vec<u8> {
    let tcp = PacketBuilder::ethernet2(ROUTER.0, DIRECTOR.0).ipv4(CLIENT, VIP, 64).tcp(PORT, 80, 70, 65_000);
    let mut frame = Vec::new();
    tcp.ack(900).psh().write(&mut frame, text.as_bytes()).unwrap();
    frame
}

/// The client's session: server, state, and when it ends.
fn session(world: &World) -> Option<(u16, State, u32)> {
    let session = world.memory().sessions.list(NOW).next()?;
    assert_eq!((session.key.client, session.key.port), (IpAddr::from(CLIENT), PORT));
    Some((session.value.server(), session.value.state(), session.value.expires()))
}

fn outcome(decision: &Decision) -> (Verdict, Reason, Option<Reason>) {
    (decision.verdict, decision.reason, decision.selected.also_counted)
}

#[test]
fn rehandoff_request_is_held_and_changes_no_state() {
    let (world, request) = (world(RehandoffMode::Rehandoff), segment("GET /a HTTP/1.1\r\n\r\n"));
    let before = session(&world);
    let (decision, after) = world.decide(&request, Checksum::Whole, NOW);
    assert_eq!(outcome(&decision), (Verdict::Hold, Reason::Rehandoff, None));
    assert_eq!((after, session(&world)), (request, before));

    let long = format!("GET /a HTTP/1.1\r\nCookie: {}\r\n\r\n", "c".repeat(HELD_FRAME_MAX));
    let (decision, _) = world.decide(&segment(&long), Checksum::Whole, NOW);
    assert_eq!(outcome(&decision), (Verdict::Drop, Reason::Rehandoff, None));
    assert_eq!(session(&world), before);

    let (decision, _) = world.decide(&segment("more of a request"), Checksum::Whole, NOW);
    assert_eq!(outcome(&decision), (Verdict::Forward { ifindex: 1 }, Reason::Forwarded, None));
}

#[test]
fn a_request_that_is_its_servers_after_all_goes_there() {
    let (world, request) = (world(RehandoffMode::Rehandoff), segment("GET /a HTTP/1.1\r\n\r\n"));
    let (expected, after) = world.decide(&segment("more of a request"), Checksum::Whole, NOW);
    let (decision, stays) = world.stay(&request, NOW);
    assert_eq!(decision, expected);
    assert_eq!((&stays[..12], &stays[14..]), (&after[..12], &request[14..]));
    assert_eq!(session(&world).map(|(server, state, _)| (server, state)), Some((1, State::Established)));
}

#[test]
fn a_connection_that_cant_move_ends_as_one_of_a_service_that_closes() {
    let request = segment("GET /a HTTP/1.1\r\n\r\n");
    let closing = world(RehandoffMode::Close);
    let expected = closing.decide(&request, Checksum::Whole, NOW);
    let reset = (Verdict::Forward { ifindex: 1 }, Reason::Reset, Some(Reason::RouteMismatch));
    assert_eq!(outcome(&expected.0), reset);

    let moving = world(RehandoffMode::Rehandoff);
    assert_eq!(moving.end(&request, NOW), expected);
    assert_eq!(session(&moving), session(&closing));
    assert_eq!(session(&moving), Some((1, State::Closing, NOW + 100)));
}

#[test]
fn ended_rehandoff_with_changed_session_is_reset_or_dropped() {
    let request = segment("GET /a HTTP/1.1\r\n\r\n");
    let mut world = world(RehandoffMode::Rehandoff);
    // The session is over.
    let (decision, _) = world.end(&request, NOW + 60);
    assert_eq!(outcome(&decision), (Verdict::Forward { ifindex: 1 }, Reason::Reset, None));
    // The service is gone.
    world.tables.vips.clear();
    assert_eq!(outcome(&world.end(&request, NOW).0), (Verdict::Drop, Reason::Rehandoff, None));
    assert_eq!(outcome(&world.end(&request[..30], NOW).0), (Verdict::Drop, Reason::Rehandoff, None));
}
