//! Connections that are accepted here, with a cookie and no memory, and given to a server once the
//! client has said what it wants: the first segment with data goes on unchanged, and the server
//! makes a socket of it (LCCP, section 3.1; here without a word to the server).

use super::choose::Selected;
use super::flow::Flow;
use super::follow::{PacketSide, follow};
use super::{Decision, DecisionContext, Memory, NewConnection, Reason, Verdict, carry};
use crate::net::checksum;
use crate::net::packet::{Checksum, Packet};
use crate::net::wire::{TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN, TCP_URG, protocol};
use crate::path::arrival::Arrival;
use crate::path::content::{ContentParse, NO_ROUTE, RouteMatch, later_request, read};
use crate::path::cookie::{Cookie, DOUBTED, EchoedNumbers, FIRST, FourTuple, REPLAYED, SynOptions, mark_of};
use crate::path::parse::{Parsed, Segment, TcpHeader, parse};
use crate::path::rewrite;
use crate::path::select::select;
use crate::path::sessions::{self, State};
use crate::path::tables::{ALL_FULL, Handoff, NO_SERVER, RehandoffMode, ServerEntry, Tables, VipKey};

/// A client's packet, whose server answers it without this host.
const UNANSWERED: PacketSide = PacketSide::Client { sees_answers: false };

/// A TCP packet for a service whose connections are handed over.
pub(super) fn decide(
    known: &DecisionContext<'_>,
    packet: &mut Packet<'_>,
    segment: &Segment,
    flow: &Flow<'_>,
    handoff: &Handoff,
) -> Decision {
    // Some readers take urgent data out of the stream, and others don't (RFC 6093, section 3.4): of
    // one request that makes two.
    if segment.flags & TCP_URG != 0 {
        return Decision::drop(Reason::BadFlags);
    }
    let found = known.memory.sessions.find(flow.key, flow.hash, flow.now);
    if flow.arrival != Arrival::Direct {
        return accept_forwarded(known, packet, segment, flow, found);
    }
    if flow.opens() {
        if let Some(found) = found {
            // It may be forged, in a connection that lives: that one goes on as before, until
            // another cookie comes back.
            known.memory.sessions.change(found, found.value.with_mark(found.value.mark() | DOUBTED));
        }
        return answer_syn(known, packet, segment, handoff, found.map(|found| found.value.mark()));
    }
    let alive = found.filter(|found| known.tables.servers.contains_key(&found.value.server()));
    // A first segment that comes again is still the connection's, whose server has it: where no SYN
    // came meanwhile, or it has that one's cookie.
    let is_at_work = alive.is_some_and(|alive| !alive.value.state().is_ending());
    let names = mark_of(segment.acknowledgment.wrapping_sub(1));
    let proof = match alive.map(|alive| alive.value.mark()) {
        Some(mark) if mark & DOUBTED == 0 || mark & !DOUBTED == names => HandshakeProof::Missing,
        _ => prove(known, packet, segment, flow, is_at_work),
    };
    match proof {
        HandshakeProof::First(mark) => return begin(known, packet, segment, flow, found, mark),
        HandshakeProof::Probe(terms) => return acknowledge(packet, segment, terms),
        // A side that has begun to end a connection sends no more on it: this is for another.
        HandshakeProof::Unchecked if !is_at_work => {
            return unmatched_segment(known, packet, segment, flow, Reason::CookieUnchecked);
        }
        HandshakeProof::Unchecked | HandshakeProof::Missing => {}
    }
    match alive {
        // For the server that the connection will have: whoever moves it decides this again.
        Some(alive) if known.tables.servers.get(&alive.value.server()).is_some_and(ServerEntry::is_down) => {
            Decision::held(packet, Reason::RehandoffBuffered, Reason::RehandoffBuffered)
        }
        Some(alive) => {
            // The segment that was asked about is sent once more as the first segment, when the
            // connection moves or by the client.
            let is_elsewhere = handoff.later != RehandoffMode::Stay
                && !answers(known, packet, segment, flow, alive.value.server())
                && answered(known, packet, segment, REPLAYED).is_none();
            match handoff.later {
                RehandoffMode::Close if is_elsewhere => return close(known, packet, segment, flow, alive),
                RehandoffMode::Rehandoff if is_elsewhere => {
                    return set_aside(known, packet, flow, alive, handoff.held);
                }
                _ => {}
            }
            go_on(known, packet, segment, flow, alive)
        }
        None => unmatched_segment(known, packet, segment, flow, Reason::CookieBad),
    }
}

/// To the server that the connection has.
fn go_on(
    known: &DecisionContext<'_>,
    packet: &mut Packet<'_>,
    segment: &Segment,
    flow: &Flow<'_>,
    found: sessions::FoundSession<'_>,
) -> Decision {
    let (server, session) = (found.value.server(), Some(follow(known.memory, flow, UNANSWERED, found)));
    let choice = Selected { server, new_session: false, also_counted: None, session };
    carry(known, packet, segment, flow, &choice)
}

/// Whether a server answers a request in a segment of its connection. A segment that doesn't begin
/// like a request is part of one, or nobody's to read; of one that can't be read here nothing is
/// known.
fn answers(
    known: &DecisionContext<'_>,
    packet: &Packet<'_>,
    segment: &Segment,
    flow: &Flow<'_>,
    server: u16,
) -> bool {
    let answers_all = known.tables.pools.get(&server) == Some(&u64::MAX);
    let is_plain = segment.flags & TCP_RST == 0 && segment.at.fragment.is_none();
    if answers_all || !is_plain {
        return true;
    }
    let Some(wants) = later_request(TcpHeader::payload(packet.frame(), &segment.at)) else { return true };
    let found = match (read(wants), known.tables.routes.get(&flow.vip.service)) {
        (ContentParse::Request(key), Some(routes)) => routes.find(&key),
        _ => RouteMatch::Punt,
    };
    match found {
        RouteMatch::Ring { ring, .. } => known.tables.answers(server, ring),
        RouteMatch::Punt => false,
    }
}

/// Gives a later request to who moves its connection, and keeps back what follows.
fn set_aside(
    known: &DecisionContext<'_>,
    packet: &Packet<'_>,
    flow: &Flow<'_>,
    found: sessions::FoundSession<'_>,
    held: u16,
) -> Decision {
    let decision = Decision::held(packet, Reason::Rehandoff, Reason::Rehandoff);
    if decision.verdict != Verdict::Hold {
        return decision;
    }
    // Only one of several CPUs does so.
    let value = flow.value(held, State::Established).with_mark(found.value.mark());
    let is_ours = held == NO_SERVER || known.memory.sessions.change(found, value);
    match is_ours {
        true => Decision { server: found.value.server(), ..decision },
        false => Decision::drop(Reason::Rehandoff),
    }
}

/// Ends the connection of a client's segment that was held because of [`Reason::Rehandoff`], where
/// it can't be moved: as one of a service with [`RehandoffMode::Close`]. The packet becomes the
/// client's reset.
pub fn end(tables: &Tables, memory: &Memory<'_>, packet: &mut Packet<'_>, now: u32) -> Decision {
    look_again(tables, memory, packet, now, |known, packet, segment, flow, found| match found {
        Some(found) => close(known, packet, segment, flow, found),
        None => reset(packet, segment),
    })
}

/// Has a client's segment that was held because of [`Reason::Rehandoff`] go on to the server that
/// its connection has.
pub fn stay(tables: &Tables, memory: &Memory<'_>, packet: &mut Packet<'_>, now: u32) -> Decision {
    look_again(tables, memory, packet, now, |known, packet, segment, flow, found| match found {
        Some(found) => go_on(known, packet, segment, flow, found),
        None => unmatched_segment(known, packet, segment, flow, Reason::CookieBad),
    })
}

/// A client's segment that was held once more. The farm may have changed meanwhile.
fn look_again(
    tables: &Tables,
    memory: &Memory<'_>,
    packet: &mut Packet<'_>,
    now: u32,
    then: impl FnOnce(
        &DecisionContext<'_>,
        &mut Packet<'_>,
        &Segment,
        &Flow<'_>,
        Option<sessions::FoundSession<'_>>,
    ) -> Decision,
) -> Decision {
    let own = tables.interfaces.get(&packet.ingress).copied();
    let Parsed::Segment(segment) = parse(packet.frame(), own) else {
        return Decision::drop(Reason::Rehandoff);
    };
    let key = VipKey { address: segment.at.dst, port: segment.dst_port, protocol: segment.protocol };
    let Some(vip) = tables.vips.get(&key).filter(|vip| vip.handoff.is_some()) else {
        return Decision::drop(Reason::Rehandoff);
    };
    let known = DecisionContext::of(tables, memory, packet, now);
    let flow = Flow::new(&known, &segment, vip);
    let found = memory.sessions.find(flow.key, flow.hash, now);
    then(&known, packet, &segment, &flow, found)
}

/// Ends a connection whose client wants what its server has not. The client asks again by another
/// connection, as it must wherever one that was kept open ends (RFC 9112, section 9.3.1). The
/// server finds out by itself.
fn close(
    known: &DecisionContext<'_>,
    packet: &mut Packet<'_>,
    segment: &Segment,
    flow: &Flow<'_>,
    found: sessions::FoundSession<'_>,
) -> Decision {
    let value = flow.value(found.value.server(), State::Closing).with_mark(found.value.mark());
    known.memory.sessions.change(found, value);
    Decision { also_counted: Some(Reason::RouteMismatch), ..reset(packet, segment) }
}

/// A segment that another host has passed on: who greeted the client has decided, and it is served
/// here. A first one is noted, so that this host knows the connection as its own: for its load, and
/// where its packets come straight to it.
fn accept_forwarded(
    known: &DecisionContext<'_>,
    packet: &mut Packet<'_>,
    segment: &Segment,
    flow: &Flow<'_>,
    found: Option<sessions::FoundSession<'_>>,
) -> Decision {
    let own = flow.vip.own;
    let sessions = &known.memory.sessions;
    let mut choice = Selected { server: own, new_session: false, also_counted: None, session: None };
    let noted = found.filter(|found| found.value.server() == own);
    // A closing segment may be of an old connection of the same port: no SYN would tell.
    let is_open = noted.is_some_and(|noted| !noted.value.state().is_ending());
    let first = match is_open || TcpHeader::payload(packet.frame(), &segment.at).is_empty() {
        true => None,
        false => answered(known, packet, segment, REPLAYED),
    };
    if let Some(mark) = first {
        let value = flow.value(own, State::Established).with_mark(mark);
        choice.new_session = true;
        choice.also_counted = match found {
            Some(found) => (!sessions.change(found, value)).then_some(Reason::NoSession),
            None => sessions.insert(flow.key, flow.hash, value, flow.now).err().map(|_| Reason::TableFull),
        };
    } else if let Some(noted) = noted {
        choice.session = Some(follow(known.memory, flow, UNANSWERED, noted));
    }
    carry(known, packet, segment, flow, &choice)
}

/// Answers a SYN. Nothing is remembered but what the client will send back.
fn answer_syn(
    known: &DecisionContext<'_>,
    packet: &mut Packet<'_>,
    segment: &Segment,
    handoff: &Handoff,
    before: Option<u16>,
) -> Decision {
    let header = TcpHeader::read(packet.frame(), &segment.at);
    let Some(header) = header.filter(|_| is_plain(segment)) else {
        return Decision::drop(Reason::BadLength);
    };
    let terms = SynOptions::offered(segment.at.dst.is_ipv6(), &header.options);
    let keys = known.memory.cookies.at(known.now);
    let make = |terms| keys.make(&FourTuple::of(segment), header.sequence, terms);
    // A connection is told from the one before between the same ends by its cookie's mark.
    let is_alike = |made: Cookie| before.is_some_and(|mark| mark & !DOUBTED == mark_of(made.number));
    let made = make(terms);
    let Some(cookie) = (if made.is_some_and(is_alike) { make(terms.shorter()) } else { made }) else {
        return Decision::drop(Reason::NoServer);
    };
    let ingress = packet.ingress;
    rewrite::write_syn_ack(packet, &segment.at, &header, &rewrite::SynAck { cookie, mss: handoff.mss });
    Decision::of(Verdict::Forward { ifindex: ingress }, Reason::CookieSent)
}

/// Whether the packet is whole, and nothing stands between the headers: what can be answered in its
/// place.
fn is_plain(segment: &Segment) -> bool {
    let at = &segment.at;
    let ip_len = if at.dst.is_ipv6() { 40 } else { 20 };
    at.fragment.is_none() && at.l4 == at.l3 + ip_len
}

/// Whether a segment proves its client's handshake.
enum HandshakeProof {
    /// It doesn't.
    Missing,
    /// It is the first after the cookie with this mark.
    First(u16),
    /// It asks, in the first's place, whether the connection lives that was agreed on so.
    Probe(SynOptions),
    /// Nobody looks: too many like it were guesses.
    Unchecked,
}

/// Looks whether a segment that belongs to no session, or maybe to another than the one that is
/// known, is the first after a cookie. Without data it would gain nothing by being taken for it, so
/// that is no guess.
fn prove(
    known: &DecisionContext<'_>,
    packet: &Packet<'_>,
    segment: &Segment,
    flow: &Flow<'_>,
    is_at_work: bool,
) -> HandshakeProof {
    let Some(header) = header_of_answer(packet, segment) else { return HandshakeProof::Missing };
    let (guesses, vip) = (known.memory.guesses, flow.vip.id);
    let payload_len = TcpHeader::payload(packet.frame(), &segment.at).len();
    let has_payload = payload_len > 0;
    // One that isn't begins no connection, whatever it has guessed.
    if payload_len == 1
        && let Some(terms) = probed(known, segment, &header)
    {
        return HandshakeProof::Probe(terms);
    }
    let is_guess = has_payload && header.options.timestamp.is_none();
    if is_guess && !guesses.may_try(vip, known.now, is_at_work) {
        if !is_at_work {
            guesses.count_unchecked(vip);
        }
        return HandshakeProof::Unchecked;
    }
    if let Some(mark) = mark_by(known, segment, &header, FIRST) {
        return HandshakeProof::First(mark);
    }
    if !has_payload && let Some(terms) = probed(known, segment, &header) {
        return HandshakeProof::Probe(terms);
    }
    if is_guess {
        guesses.failed(vip, known.now);
    }
    if has_payload && !is_at_work {
        guesses.count_bad(vip);
    }
    HandshakeProof::Missing
}

/// The mark of the cookie that a segment is the first after, or is said in the first's place so
/// much later; if it is.
fn answered(known: &DecisionContext<'_>, packet: &Packet<'_>, segment: &Segment, late: u32) -> Option<u16> {
    mark_by(known, segment, &header_of_answer(packet, segment)?, late)
}

/// The header of a segment that may follow a cookie.
fn header_of_answer(packet: &Packet<'_>, segment: &Segment) -> Option<TcpHeader> {
    let may = segment.flags & (TCP_SYN | TCP_RST | TCP_ACK) == TCP_ACK && segment.at.fragment.is_none();
    TcpHeader::read(packet.frame(), &segment.at).filter(|_| may)
}

fn mark_by(known: &DecisionContext<'_>, segment: &Segment, header: &TcpHeader, late: u32) -> Option<u16> {
    let keys = known.memory.cookies.at(known.now);
    keys.check(&FourTuple::of(segment), &EchoedNumbers::by(header), late)?;
    Some(mark_of(header.acknowledgment.wrapping_sub(1)))
}

/// The agreement of the handshake, if a segment is a keep-alive probe of a client that has said
/// nothing yet: its number is the one before the first's (RFC 9293, section 3.8.4).
fn probed(known: &DecisionContext<'_>, segment: &Segment, header: &TcpHeader) -> Option<SynOptions> {
    let keys = known.memory.cookies.at(known.now);
    let numbers = EchoedNumbers::by(header);
    let first = EchoedNumbers { sequence: numbers.sequence.wrapping_add(1), ..numbers };
    keys.check(&FourTuple::of(segment), &first, FIRST).filter(|_| header.flags & TCP_FIN == 0)
}

/// Tells a client that its connection lives (RFC 9293, section 3.10.7.4).
fn acknowledge(packet: &mut Packet<'_>, segment: &Segment, terms: SynOptions) -> Decision {
    let Some(header) = TcpHeader::read(packet.frame(), &segment.at).filter(|_| is_plain(segment)) else {
        return Decision::drop(Reason::CookieBad);
    };
    let ingress = packet.ingress;
    rewrite::acknowledge(packet, &segment.at, &header, terms);
    Decision::of(Verdict::Forward { ifindex: ingress }, Reason::KeepaliveAcked)
}

/// Whether a segment's checksum is right, or left to the hardware.
fn is_sound(packet: &Packet<'_>, segment: &Segment) -> bool {
    let at = &segment.at;
    let Some(transport) = packet.frame().get(at.l4..at.l3 + at.len) else { return false };
    let pseudo = checksum::pseudo_header(at.src, at.dst, protocol::TCP, transport.len());
    packet.checksum == Checksum::Partial || checksum::finish(checksum::add(pseudo, transport)) == 0
}

/// Gives a connection whose cookie came back to a server, if the client says what it wants.
fn begin(
    known: &DecisionContext<'_>,
    packet: &mut Packet<'_>,
    segment: &Segment,
    flow: &Flow<'_>,
    found: Option<sessions::FoundSession<'_>>,
    mark: u16,
) -> Decision {
    let wants = TcpHeader::payload(packet.frame(), &segment.at);
    if wants.is_empty() {
        // A client that closes without having sent anything is not waited for.
        return match segment.flags & TCP_FIN {
            0 => Decision::drop(Reason::CookieAcked),
            _ => reset(packet, segment),
        };
    }
    // The server's stack would drop it, and what comes in its place might be for another one.
    if !is_sound(packet, segment) {
        return Decision::drop(Reason::BadChecksum);
    }
    let (connection, also_counted) = choose(known, flow, wants);
    let server = connection.server;
    let without_server =
        |decision| Decision { new_connection: Some(NewConnection::NO_SERVER_CHOSEN), ..decision };
    if server == NO_SERVER {
        return without_server(Decision::drop(Reason::NoServer));
    }
    if server == ALL_FULL {
        return without_server(Decision::drop(Reason::ServersFull));
    }
    let value = flow.value(server, State::Established).with_mark(mark);
    let sessions = &known.memory.sessions;
    match found {
        // Changed by another CPU meanwhile: the client's segment comes again.
        Some(found) if !sessions.change(found, value) => {
            return without_server(Decision::drop(Reason::NoSession));
        }
        Some(_) => {}
        // The next segment would find nobody.
        None if sessions.insert(flow.key, flow.hash, value, flow.now).is_err() => {
            return without_server(Decision {
                also_counted: Some(Reason::TableFull),
                ..reset(packet, segment)
            });
        }
        None => {}
    }
    let choice = Selected { server, new_session: true, also_counted, session: Some(value) };
    Decision { new_connection: Some(connection), ..carry(known, packet, segment, flow, &choice) }
}

/// The server for what a client wants, or this host's own process where that isn't plain, or nobody
/// serves it.
fn choose(known: &DecisionContext<'_>, flow: &Flow<'_>, wants: &[u8]) -> (NewConnection, Option<Reason>) {
    let DecisionContext { tables, memory, .. } = known;
    let routes = tables.routes.get(&flow.vip.service);
    let chosen = match (read(wants), routes) {
        (ContentParse::Request(key), Some(routes)) => match routes.find(&key) {
            RouteMatch::Ring { route, ring } => {
                let hash = flow.key.ring_hash(memory.ring_seed);
                let server = select(tables, memory.counts, ring, flow.vip.pick, hash);
                NewConnection { server, route: (route != NO_ROUTE).then_some(route) }
            }
            RouteMatch::Punt => NewConnection::NO_SERVER_CHOSEN,
        },
        _ => NewConnection::NO_SERVER_CHOSEN,
    };
    match flow.vip.handoff {
        Some(handoff) if chosen.server == NO_SERVER => {
            (NewConnection { server: handoff.punt, route: None }, Some(Reason::Punted))
        }
        _ => (chosen, None),
    }
}

/// A segment of a connection that isn't known: it may have overtaken the first, which then comes
/// again as it does. Only then is its sender told.
pub(super) fn unmatched_segment(
    known: &DecisionContext<'_>,
    packet: &mut Packet<'_>,
    segment: &Segment,
    flow: &Flow<'_>,
    reason: Reason,
) -> Decision {
    match segment.flags & TCP_RST == 0
        && is_plain(segment)
        && known.memory.unmatched.is_retransmission(flow.hash, segment.acknowledgment, known.now)
    {
        true => reset(packet, segment),
        false => Decision::drop(reason),
    }
}

/// Tells the sender that there is no such connection (RFC 9293, section 3.5.2).
fn reset(packet: &mut Packet<'_>, segment: &Segment) -> Decision {
    let Some(header) = TcpHeader::read(packet.frame(), &segment.at).filter(|_| is_plain(segment)) else {
        return Decision::drop(Reason::CookieBad);
    };
    let ingress = packet.ingress;
    rewrite::reset(packet, &segment.at, &header);
    Decision::of(Verdict::Forward { ifindex: ingress }, Reason::Reset)
}
