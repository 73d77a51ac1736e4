//! Accepts connections with a SYN cookie and without memory, and hands each connection to a server
//! once its request is known. The first segment with data is forwarded unchanged, and the server
//! creates a socket from the segment (LCCP, section 3.1, but without a message to the server).

use super::choose::{Opens, Selected};
use super::flow::Flow;
use super::follow::PacketSide;
use super::{Decide, Decision, Memory, Reason, Verdict};
use crate::net::checksum;
use crate::net::packet::{Checksum, Packet};
use crate::net::wire::{TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN, TCP_URG, protocol};
use crate::path::arrival::Arrival;
use crate::path::content::{ContentParse, NO_ROUTE, RouteMatch, later_request, read};
use crate::path::cookie::{Cookie, EchoedNumbers, FIRST, FourTuple, REPLAYED, SYN_SEEN, SynOptions, mark_of};
use crate::path::parse::{Parsed, Segment, TcpHeader};
use crate::path::rewrite;
use crate::path::select::select;
use crate::path::sessions::{FoundSession, State};
use crate::path::tables::{ALL_FULL, Handoff, NO_SERVER, RehandoffMode, ServerEntry, Tables};

/// Side for a client's packet of a service with handoff, whose replies don't pass this host.
const UNANSWERED: PacketSide = PacketSide::Client { sees_answers: false };

/// Ends the connection of a held segment ([`Reason::Rehandoff`]) that can't be moved, as
/// [`RehandoffMode::Close`] does. The packet becomes a reset for the client.
pub fn end(tables: &Tables, memory: &Memory<'_>, packet: &mut Packet<'_>, now: u32) -> Decision {
    look_again(tables, memory, packet, now, |decide, flow, found| match found {
        Some(session) => decide.close_session(flow, session),
        None => decide.reset(flow.segment),
    })
}

/// Forwards a held segment ([`Reason::Rehandoff`]) to its connection's present server.
pub fn stay(tables: &Tables, memory: &Memory<'_>, packet: &mut Packet<'_>, now: u32) -> Decision {
    look_again(tables, memory, packet, now, |decide, flow, found| match found {
        Some(session) => decide.keep_server(flow, session),
        None => decide.unmatched_segment(flow, Reason::CookieBad),
    })
}

/// Decides a held segment again, since the tables may have changed while it was held.
fn look_again(
    tables: &Tables,
    memory: &Memory<'_>,
    packet: &mut Packet<'_>,
    now: u32,
    then: impl FnOnce(&mut Decide<'_, '_>, &Flow<'_>, Option<FoundSession<'_>>) -> Decision,
) -> Decision {
    let mut decide = Decide::new(tables, memory, packet, now);
    let Parsed::Segment(segment) = decide.parse() else {
        return Decision::drop(Reason::Rehandoff);
    };
    let Some(vip) = tables.vips.get(&segment.vip_key()).filter(|vip| vip.handoff.is_some()) else {
        return Decision::drop(Reason::Rehandoff);
    };
    let flow = decide.client_flow(&segment, vip);
    let found = memory.sessions.find(flow.key, flow.hash, now);
    then(&mut decide, &flow, found)
}

/// Result of the check of a client's handshake.
enum HandshakeProof {
    /// The segment proves nothing.
    Missing,
    /// The segment is the first after a cookie, whose bits for the session's mark these are.
    First(u16),
    /// The segment is a keep-alive probe of a client that has sent no data. These are the options
    /// of the connection.
    Probe(SynOptions),
    /// The segment was not checked, since the VIP's budget of wrong cookies is used up.
    Unchecked,
}

impl Decide<'_, '_> {
    /// Decides a TCP packet for a service with handoff.
    pub(super) fn hand_off(&mut self, flow: &Flow<'_>, handoff: &Handoff) -> Decision {
        let segment = flow.segment;
        // Some programs read urgent data as part of the stream and others don't (RFC 6093, section
        // 3.4), so they would see different requests.
        if segment.flags & TCP_URG != 0 {
            return Decision::drop(Reason::BadFlags);
        }
        let found = self.memory.sessions.find(flow.key, flow.hash, flow.now);
        if flow.arrival != Arrival::Direct {
            return self.accept_forwarded(flow, found);
        }
        if flow.opens() {
            if let Some(session) = found {
                // The SYN may be forged while the connection is alive. The connection stays until
                // another cookie is returned.
                let doubted = session.value.mark() | SYN_SEEN;
                self.memory.sessions.change(session, session.value.with_mark(doubted));
            }
            return self.answer_syn(segment, handoff, found.map(|session| session.value.mark()));
        }
        let alive = found.filter(|session| self.tables.servers.contains_key(&session.value.server()));
        // A segment belongs to the existing connection if no SYN came since its first segment, or
        // if the segment returns that connection's cookie.
        let at_work = alive.is_some_and(|session| !session.value.state().is_ending());
        let names = mark_of(segment.acknowledgment.wrapping_sub(1));
        let proof = match alive.map(|session| session.value.mark()) {
            Some(mark) if mark & SYN_SEEN == 0 || mark & !SYN_SEEN == names => HandshakeProof::Missing,
            _ => self.prove(flow, at_work),
        };
        match proof {
            HandshakeProof::First(mark) => return self.begin(flow, found, mark),
            HandshakeProof::Probe(terms) => return self.acknowledge(segment, terms),
            // A side that has begun to close sends no more data, so the segment belongs to another
            // connection.
            HandshakeProof::Unchecked if !at_work => {
                return self.unmatched_segment(flow, Reason::CookieUnchecked);
            }
            HandshakeProof::Unchecked | HandshakeProof::Missing => {}
        }
        let Some(session) = alive else {
            return self.unmatched_segment(flow, Reason::CookieBad);
        };
        // The connection is moving. The task that moves the connection decides the segment again
        // once the connection has a server.
        if self.tables.servers.get(&session.value.server()).is_some_and(ServerEntry::is_down) {
            return self.hold(Reason::RehandoffBuffered, Reason::RehandoffBuffered);
        }
        self.later_segment(flow, handoff, session)
    }

    /// Decides a segment of a connection that a server owns. If the segment requests something that
    /// only other servers have, the connection moves or ends.
    fn later_segment(&mut self, flow: &Flow<'_>, handoff: &Handoff, session: FoundSession<'_>) -> Decision {
        // The client or the move of a connection may retransmit the segment of the first request.
        // The server of that request is decided already.
        let is_elsewhere = handoff.later != RehandoffMode::Stay
            && !self.answers(flow, session.value.server())
            && self.answered_mark(flow.segment, REPLAYED).is_none();
        match handoff.later {
            RehandoffMode::Close if is_elsewhere => self.close_session(flow, session),
            RehandoffMode::Rehandoff if is_elsewhere => self.hold_request(flow, session, handoff.held),
            _ => self.keep_server(flow, session),
        }
    }

    /// Sends a segment to its connection's server.
    fn keep_server(&mut self, flow: &Flow<'_>, session: FoundSession<'_>) -> Decision {
        let value = self.follow(flow, UNANSWERED, session);
        let selected = Selected { session: Some(value), ..Selected::of(session.value.server()) };
        self.send_to_server(flow, selected)
    }

    /// True if the server answers the request in a segment of its connection. A segment without a
    /// request line continues a request or is unreadable. A request that can't be parsed here may
    /// belong to any server.
    fn answers(&self, flow: &Flow<'_>, server: u16) -> bool {
        let answers_all = self.tables.pools.get(&server) == Some(&u64::MAX);
        let at = &flow.segment.at;
        let is_read = flow.segment.flags & TCP_RST == 0 && at.fragment.is_none();
        if answers_all || !is_read {
            return true;
        }
        let Some(request) = later_request(TcpHeader::payload(self.packet.frame(), at)) else { return true };
        match self.find_ring(flow, request) {
            RouteMatch::Ring { ring, .. } => self.tables.answers(server, ring),
            RouteMatch::Punt => false,
        }
    }

    /// Returns the ring whose servers answer a request, by the service's routes.
    fn find_ring(&self, flow: &Flow<'_>, request: &[u8]) -> RouteMatch {
        match (read(request), self.tables.routes.get(&flow.vip.service)) {
            (ContentParse::Request(key), Some(routes)) => routes.find(&key),
            _ => RouteMatch::Punt,
        }
    }

    /// Hands a later request to the task that moves its connection, and holds the segments behind
    /// it.
    fn hold_request(&self, flow: &Flow<'_>, session: FoundSession<'_>, held: u16) -> Decision {
        let decision = self.hold(Reason::Rehandoff, Reason::Rehandoff);
        if decision.verdict != Verdict::Hold {
            return decision;
        }
        // Only one of several CPUs may hand over the request.
        let value = flow.value(held, State::Established).with_mark(session.value.mark());
        match held == NO_SERVER || self.memory.sessions.change(session, value) {
            true => Decision { selected: Selected::of(session.value.server()), ..decision },
            false => Decision::drop(Reason::Rehandoff),
        }
    }

    /// Ends a connection whose client requests something that its server doesn't have. The client
    /// retries on a new connection, as after any end of a persistent connection (RFC 9112, section
    /// 9.3.1). The server notices the end of the connection by itself.
    fn close_session(&mut self, flow: &Flow<'_>, session: FoundSession<'_>) -> Decision {
        let server = session.value.server();
        let value = flow.value(server, State::Closing).with_mark(session.value.mark());
        self.memory.sessions.change(session, value);
        let selected = Selected { also_counted: Some(Reason::RouteMismatch), ..Selected::of(server) };
        Decision { selected, ..self.reset(flow.segment) }
    }

    /// Decides a segment that another host forwarded. That host accepted the connection, and has
    /// selected this host as the server. A first segment opens a session on this host. So the
    /// connection counts as load of this host, and its packets may come here directly.
    fn accept_forwarded(&mut self, flow: &Flow<'_>, found: Option<FoundSession<'_>>) -> Decision {
        let own = flow.vip.own;
        let mut selected = Selected::of(own);
        let known = found.filter(|session| session.value.server() == own);
        // A segment for a closing session may open a new connection of the same port. No SYN for it
        // reaches this host.
        let is_open = known.is_some_and(|session| !session.value.state().is_ending());
        let first = match is_open || TcpHeader::payload(self.packet.frame(), &flow.segment.at).is_empty() {
            true => None,
            false => self.answered_mark(flow.segment, REPLAYED),
        };
        if let Some(mark) = first {
            let value = flow.value(own, State::Established).with_mark(mark);
            selected.opens = Opens::Session;
            selected.also_counted = self.put_session(flow, found, value).err();
        } else if let Some(session) = known {
            selected.session = Some(self.follow(flow, UNANSWERED, session));
        }
        self.send_to_server(flow, selected)
    }

    /// Answers a SYN with a cookie. `before` is the mark of the flow's session, if it has one.
    fn answer_syn(&mut self, segment: &Segment, handoff: &Handoff, before: Option<u16>) -> Decision {
        let header = TcpHeader::read(self.packet.frame(), &segment.at);
        let Some(header) = header.filter(|_| is_plain(segment)) else {
            return Decision::drop(Reason::BadLength);
        };
        let terms = SynOptions::offered(segment.at.dst.is_ipv6(), &header.options);
        let keys = self.memory.cookies.at(self.now);
        let make = |terms| keys.make(&FourTuple::of(segment), header.sequence, terms);
        // The mark of the new cookie must differ from the mark of the previous connection with the
        // same endpoints.
        let is_alike = |made: Cookie| before.is_some_and(|mark| mark & !SYN_SEEN == mark_of(made.number));
        let made = make(terms);
        let Some(cookie) = (if made.is_some_and(is_alike) { make(terms.shorter()) } else { made }) else {
            return Decision::drop(Reason::NoServer);
        };
        let syn_ack = rewrite::SynAck { cookie, mss: handoff.mss };
        rewrite::write_syn_ack(self.packet, &segment.at, &header, &syn_ack);
        self.frame_back(Reason::CookieSent)
    }

    /// Checks whether a segment is the first after a cookie. The segment has no session, or may not
    /// belong to the connection of its session. A segment without data can't open a connection, so
    /// it doesn't count as an attacker's guess.
    fn prove(&self, flow: &Flow<'_>, at_work: bool) -> HandshakeProof {
        let segment = flow.segment;
        let Some(header) = self.header_of_answer(segment) else { return HandshakeProof::Missing };
        let (guesses, vip) = (self.memory.guesses, flow.vip.id);
        let payload_len = TcpHeader::payload(self.packet.frame(), &segment.at).len();
        let has_payload = payload_len > 0;
        // A keep-alive probe opens no connection, even with a guessed cookie.
        if payload_len == 1
            && let Some(terms) = self.probed(segment, &header)
        {
            return HandshakeProof::Probe(terms);
        }
        let is_guess = has_payload && header.options.timestamp.is_none();
        if is_guess && !guesses.may_try(vip, self.now, at_work) {
            if !at_work {
                guesses.count_unchecked(vip);
            }
            return HandshakeProof::Unchecked;
        }
        if let Some(mark) = self.cookie_mark(segment, &header, FIRST) {
            return HandshakeProof::First(mark);
        }
        if !has_payload && let Some(terms) = self.probed(segment, &header) {
            return HandshakeProof::Probe(terms);
        }
        if is_guess {
            guesses.failed(vip, self.now);
        }
        if has_payload && !at_work {
            guesses.count_bad(vip);
        }
        HandshakeProof::Missing
    }

    /// Returns the mark of a cookie if a segment is the first after the cookie. The echoed
    /// timestamp must be the cookie's or less than `late` after it.
    fn answered_mark(&self, segment: &Segment, late: u32) -> Option<u16> {
        self.cookie_mark(segment, &self.header_of_answer(segment)?, late)
    }

    /// Returns the header of a segment that may be the first after a cookie.
    fn header_of_answer(&self, segment: &Segment) -> Option<TcpHeader> {
        let may = segment.flags & (TCP_SYN | TCP_RST | TCP_ACK) == TCP_ACK && segment.at.fragment.is_none();
        TcpHeader::read(self.packet.frame(), &segment.at).filter(|_| may)
    }

    fn cookie_mark(&self, segment: &Segment, header: &TcpHeader, late: u32) -> Option<u16> {
        let keys = self.memory.cookies.at(self.now);
        keys.check(&FourTuple::of(segment), &EchoedNumbers::by(header), late)?;
        Some(mark_of(header.acknowledgment.wrapping_sub(1)))
    }

    /// Returns the agreed options if a segment is a keep-alive probe of a client that has sent no
    /// data. Its sequence number is one less than the first segment's (RFC 9293, section 3.8.4).
    fn probed(&self, segment: &Segment, header: &TcpHeader) -> Option<SynOptions> {
        let keys = self.memory.cookies.at(self.now);
        let numbers = EchoedNumbers::by(header);
        let first = EchoedNumbers { sequence: numbers.sequence.wrapping_add(1), ..numbers };
        keys.check(&FourTuple::of(segment), &first, FIRST).filter(|_| header.flags & TCP_FIN == 0)
    }

    /// Acknowledges a keep-alive probe (RFC 9293, section 3.10.7.4).
    fn acknowledge(&mut self, segment: &Segment, terms: SynOptions) -> Decision {
        let Some(header) = self.plain_header(segment) else {
            return Decision::drop(Reason::CookieBad);
        };
        rewrite::acknowledge(self.packet, &segment.at, &header, terms);
        self.frame_back(Reason::KeepaliveAcked)
    }

    /// Hands a connection with a valid cookie to a server, if the segment contains a request.
    fn begin(&mut self, flow: &Flow<'_>, found: Option<FoundSession<'_>>, mark: u16) -> Decision {
        let segment = flow.segment;
        let request = TcpHeader::payload(self.packet.frame(), &segment.at);
        if request.is_empty() {
            // A FIN shows that the client sends no request, so waiting for one is useless.
            return match segment.flags & TCP_FIN {
                0 => Decision::drop(Reason::CookieAcked),
                _ => self.reset(segment),
            };
        }
        // The server's stack would drop a damaged segment, and the retransmission might have
        // another request.
        if !self.is_sound(segment) {
            return Decision::drop(Reason::BadChecksum);
        }
        let selected = self.choose_by_content(flow, request);
        let refused = Selected { opens: Opens::Request { route: None }, ..Selected::NONE };
        let dropped = |reason| Decision { selected: refused, ..Decision::drop(reason) };
        if selected.server == NO_SERVER {
            return dropped(Reason::NoServer);
        }
        if selected.server == ALL_FULL {
            return dropped(Reason::ServersFull);
        }
        let value = flow.value(selected.server, State::Established).with_mark(mark);
        match self.put_session(flow, found, value) {
            Ok(()) => self.send_to_server(flow, Selected { session: Some(value), ..selected }),
            // Without room for a session, the connection's next segment would find no server.
            Err(Reason::TableFull) => {
                let selected = Selected { also_counted: Some(Reason::TableFull), ..refused };
                Decision { selected, ..self.reset(segment) }
            }
            // Another CPU changed the session in the meantime. The client retransmits the segment.
            Err(reason) => dropped(reason),
        }
    }

    /// Selects the server for a client's request. Selects this host's own process if the data plane
    /// can't parse the request or no server serves it.
    fn choose_by_content(&self, flow: &Flow<'_>, request: &[u8]) -> Selected {
        let (server, route) = match self.find_ring(flow, request) {
            RouteMatch::Ring { route, ring } => {
                let hash = flow.vip.ring_hash(flow.key, self.memory.ring_seed);
                let server = select(self.tables, self.memory.counts, ring, flow.vip.pick, hash);
                (server, (route != NO_ROUTE).then_some(route))
            }
            RouteMatch::Punt => (NO_SERVER, None),
        };
        match flow.vip.handoff {
            Some(handoff) if server == NO_SERVER => Selected {
                opens: Opens::Request { route: None },
                also_counted: Some(Reason::Punted),
                ..Selected::of(handoff.punt)
            },
            _ => Selected { opens: Opens::Request { route }, ..Selected::of(server) },
        }
    }

    /// Handles a segment of an unknown connection. At first the segment is dropped, since it may
    /// have overtaken the connection's first segment, and the client retransmits both. If the
    /// client still retransmits the segment later, the answer is a reset.
    pub(super) fn unmatched_segment(&mut self, flow: &Flow<'_>, reason: Reason) -> Decision {
        let segment = flow.segment;
        match segment.flags & TCP_RST == 0
            && is_plain(segment)
            && self.memory.unmatched.is_retransmission(flow.hash, segment.acknowledgment, self.now)
        {
            true => self.reset(segment),
            false => Decision::drop(reason),
        }
    }

    /// Answers a segment of no connection with a reset (RFC 9293, section 3.5.2).
    fn reset(&mut self, segment: &Segment) -> Decision {
        let Some(header) = self.plain_header(segment) else {
            return Decision::drop(Reason::CookieBad);
        };
        rewrite::reset(self.packet, &segment.at, &header);
        self.frame_back(Reason::Reset)
    }

    fn plain_header(&self, segment: &Segment) -> Option<TcpHeader> {
        TcpHeader::read(self.packet.frame(), &segment.at).filter(|_| is_plain(segment))
    }

    /// True if a segment's checksum is right or left to the hardware.
    fn is_sound(&self, segment: &Segment) -> bool {
        let at = &segment.at;
        let Some(transport) = self.packet.frame().get(at.l4..at.l3 + at.len) else { return false };
        let pseudo = checksum::pseudo_header(at.src, at.dst, protocol::TCP, transport.len());
        self.packet.checksum == Checksum::Partial || checksum::finish(checksum::add(pseudo, transport)) == 0
    }
}

/// True if a packet is whole and has no options or extension headers, so that an answer can be
/// written over the packet.
fn is_plain(segment: &Segment) -> bool {
    let at = &segment.at;
    let ip_len = if at.dst.is_ipv6() { 40 } else { 20 };
    at.fragment.is_none() && at.l4 == at.l3 + ip_len
}
