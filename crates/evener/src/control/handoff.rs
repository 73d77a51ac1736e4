//! The control loop's part in handoff: keys of cookies, and queries of the tasks that read punted
//! connections.

use std::cell::RefCell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use evener_core::director::transfer::SegmentBuffer;
use evener_core::farm::Service;
use evener_core::farm::choose::{ChoiceReason, ConnectionRequest, RequestContent};
use evener_core::net::Protocol;
use evener_core::net::packet::{HEADROOM, Packet};
use evener_core::net::wire::{ETHERNET_LEN, Mac};
use evener_core::node::secret::Secret;
use evener_core::path::decide::{Decision, Reason, Verdict, stay};
use evener_core::path::parse::{Parsed, parse};
use evener_core::path::sessions::{SessionKey, State, Value};
use evener_core::path::tables::{NO_SERVER, Pick, Vip, VipKey};
use evener_dataplane::link::{EtherType, LinkSocket};
use evener_dataplane::server::SENT_ON;
use tokio::sync::mpsc;

use super::RESTART;
use super::executor::Executor;
use crate::config::Config;
use crate::handoff::{
    ChosenTarget, ControlQuery, ControlReply, FourTuple, HeldSegment, LOOPBACK, MatchedRoute, framed,
};
use crate::runtime::secret;

/// Limits for connections whose server the dispatcher has selected. DISPATCHED_MAX is the number of
/// connections that are tracked until their end. LOOKED_AT_MAX is the number of tracked connections
/// that are checked at a time.
const DISPATCHED_MAX: usize = 65_536;
const LOOKED_AT_MAX: usize = 8_192;
/// Maximum number of attempts to change a session that packets change concurrently.
const ATTEMPTS: usize = 8;

#[derive(Default)]
pub(super) struct HandoffControl {
    /// Secret from which the keys of cookies are derived. Servers accept these cookies.
    secret: Option<Secret>,
    /// Sockets for output, by interface.
    exits: BTreeMap<u32, LinkSocket>,
    /// Segments of connections that wait for a server. The sweep marks orphans there: see
    /// `Executor::keeps_back`.
    pub(super) segment_buffer: RefCell<SegmentBuffer<HeldSegment>>,
    /// Queue of held segments, for buffered segments that start a rehandoff when they are decided
    /// again.
    pub(super) again: Option<mpsc::Sender<HeldSegment>>,
    /// Connections that the dispatcher has assigned and counts until it learns of their end.
    dispatched: VecDeque<FourTuple>,
}

impl Executor {
    /// Enables handoff, with cookies that servers with this secret accept.
    pub(super) fn enable_handoff(&mut self, secret: Option<Secret>) {
        self.handing.secret = secret;
        self.renew_cookies();
    }

    /// Checks that a new file leaves handoff as it is.
    ///
    /// # Errors
    /// A sentence on the setting that needs a restart.
    pub(super) fn check_handoff_unchanged(&self, config: &Config) -> Result<(), String> {
        let restart = RESTART;
        let path = config.farm.secret_file.as_deref().unwrap_or(Path::new(""));
        match (&self.handing.secret, config.hands_over()) {
            (None, false) => Ok(()),
            (Some(secret), true) if secret::read(path).map_err(|error| error.to_string())? == *secret => {
                Ok(())
            }
            (Some(_), true) => Err(format!("{} has another secret now: {restart}", path.display())),
            _ => Err(format!("method \"handoff\" comes and goes only with a start: {restart}")),
        }
    }

    /// Sets the cookie keys by the time of day. Called periodically, because the engine's clock
    /// does not follow when the system's clock is set.
    pub(super) fn renew_cookies(&self) {
        if let Some(secret) = &self.handing.secret {
            let keys = secret::cookie_keys(secret, self.config.farm.cookie_epoch_ms, self.engine.plane.now());
            self.engine.plane.memory().cookies.set(&keys);
        }
    }

    /// Answers a query of a task that reads punted connections. The task may have ended.
    pub(super) fn answer_question(&mut self, question: ControlQuery) {
        match question {
            ControlQuery::Choose { ends, matched, advice, answer } => {
                let chosen =
                    self.by_routes(&ends, &matched, |this, content| this.choose(&ends, content, advice));
                let _ = answer.send(chosen);
            }
            ControlQuery::Decide { ends, matched, answer } => {
                let _ = answer
                    .send(self.by_routes(&ends, &matched, |this, content| this.decide_for(&ends, content)));
            }
            ControlQuery::Stays { ends, matched, server, answer } => {
                let stays = |this: &mut Self, _: RequestContent<'_>| {
                    this.director.plan().tables.answers(server, matched.ring)
                };
                let _ = answer.send(self.by_routes(&ends, &matched, stays));
            }
            ControlQuery::Pass { ends, held } => self.pass(&ends, held),
            ControlQuery::Forward { ends, server, answer } => drop(answer.send(self.forward(&ends, server))),
            ControlQuery::Close { ends } => self.close(&ends),
            ControlQuery::Give { ends, server, packets, answer } => {
                let given = self.give(&ends, server, &packets);
                let _ = answer.send(given);
            }
            ControlQuery::Keep { ends } => {
                if let Some(vip) = self.vip_of(&ends) {
                    let punt = vip.handoff.map_or(NO_SERVER, |handoff| handoff.punt);
                    self.finish_session(&ends, &vip, punt);
                }
            }
            ControlQuery::Return { ends, server } => {
                self.reassign(&ends, server);
                self.release(&ends);
            }
            ControlQuery::End { ends, held } => self.end(&ends, held),
        }
    }

    pub(super) fn vip_of(&self, ends: &FourTuple) -> Option<Vip> {
        let key = VipKey { address: ends.service.ip(), port: ends.service.port(), protocol: Protocol::Tcp };
        self.director.plan().tables.vips.get(&key).copied()
    }

    /// Selects the server for a request. The dispatcher's server is used if the request's route
    /// allows it. From this call on, the client's segments are buffered until the connection has a
    /// server.
    fn choose(
        &mut self,
        ends: &FourTuple,
        content: RequestContent<'_>,
        advice: Option<SocketAddr>,
    ) -> Option<ChosenTarget> {
        let vip = self.vip_of(ends)?;
        let named = advice.and_then(|advice| self.slot_of(&vip, advice));
        let (server, why) = self.chosen(ends, &vip, content, named)?;
        let own = self.address_of(server)?;
        let handoff = vip.handoff?;
        let proxy_port = self.service_of(&vip).and_then(|service| service.proxy_protocol_port);
        if !self.note_session(ends, &vip, handoff.held) {
            return None;
        }
        self.begin_buffering(ends, &vip);
        let advised = why == ChoiceReason::Named;
        if advised && self.handing.dispatched.len() < DISPATCHED_MAX {
            self.handing.dispatched.push_back(*ends);
        }
        Some(ChosenTarget {
            server,
            own: SocketAddr::new(own, proxy_port.unwrap_or(ends.service.port())),
            proxied: proxy_port.is_some(),
            mss: handoff.mss,
            // Only in an every-host farm does a host accept handed-off connections for its own
            // server.
            takes: !self.director.plan().tables.servers.get(&server)?.local || vip.own != NO_SERVER,
            advised,
        })
    }

    /// Selects a server for another node that holds the client's connection. For policies that
    /// count sessions, a session counts the connection until that node reports its end. A repeated
    /// query then gets the same server.
    fn decide_for(&mut self, ends: &FourTuple, content: RequestContent<'_>) -> Option<SocketAddr> {
        let vip = self.vip_of(ends)?;
        let (server, _) = self.chosen(ends, &vip, content, self.active_session(ends, &vip))?;
        let own = self.address_of(server)?;
        if matches!(vip.pick, Pick::Least | Pick::Two) {
            self.note_session(ends, &vip, server);
        }
        Some(SocketAddr::new(own, ends.service.port()))
    }

    /// Returns the slot of the server for a connection, and the reason of the choice.
    fn chosen(
        &self,
        ends: &FourTuple,
        vip: &Vip,
        content: RequestContent<'_>,
        named: Option<u16>,
    ) -> Option<(u16, ChoiceReason)> {
        let request = ConnectionRequest { client: Some(ends.client), content, named };
        let choice = self.director.plan().choose(&self.engine.plane.memory(), vip, &request).ok()?;
        Some((choice.server, choice.why))
    }

    /// Returns the server of a connection's session, if the session is active.
    fn active_session(&self, ends: &FourTuple, vip: &Vip) -> Option<u16> {
        let (memory, key) = (self.engine.plane.memory(), session_key(ends, vip));
        let found = memory.sessions.find(key, key.hash(memory.seed), self.engine.plane.now())?;
        found.value.state().is_active().then(|| found.value.server())
    }

    /// Returns the connections that the dispatcher has assigned and that have ended. Each
    /// connection is returned once.
    pub(super) fn dispatched_and_over(&mut self) -> Vec<FourTuple> {
        let mut over = Vec::new();
        for _ in 0..self.handing.dispatched.len().min(LOOKED_AT_MAX) {
            let Some(ends) = self.handing.dispatched.pop_front() else { break };
            match self.vip_of(&ends).and_then(|vip| self.active_session(&ends, &vip)) {
                Some(_) => self.handing.dispatched.push_back(ends),
                None => over.push(ends),
            }
        }
        over
    }

    /// Runs `then` if the request was matched against the routes in force. If the routes have
    /// changed, returns [`ControlReply::Changed`], and the caller matches the request again.
    fn by_routes<T: Default>(
        &mut self,
        ends: &FourTuple,
        matched: &MatchedRoute,
        then: impl FnOnce(&mut Self, RequestContent<'_>) -> T,
    ) -> ControlReply<T> {
        let routes = self.vip_of(ends).and_then(|vip| self.director.plan().tables.routes.get(&vip.service));
        match routes.map(|routes| matched.is_by(routes)) {
            Some(true) => ControlReply::Is(then(
                self,
                RequestContent::Routed { route: matched.route, ring: matched.ring },
            )),
            Some(false) => ControlReply::Changed,
            None => ControlReply::Is(T::default()),
        }
    }

    /// Returns the service of a VIP, from the file.
    fn service_of(&self, vip: &Vip) -> Option<&Service> {
        let planned = self.director.plan().services.get(&vip.service)?;
        self.director.farm().service(&planned.name)
    }

    /// Returns the address of a server, from the file.
    pub(super) fn address_of(&self, server: u16) -> Option<IpAddr> {
        let name = self.director.plan().servers.get(&server)?;
        let service = self.director.farm().service(&name.service)?;
        service.servers.iter().find(|listed| listed.name == name.server).map(|listed| listed.address)
    }

    /// Returns the slot of a service's server at this address. The server's port is the service's
    /// port.
    fn slot_of(&self, vip: &Vip, server: SocketAddr) -> Option<u16> {
        let service = self.service_of(vip)?;
        let mut slots = self.director.plan().servers.iter().filter(|(_, name)| name.service == service.name);
        slots.find(|(slot, _)| self.address_of(**slot) == Some(server.ip())).map(|(slot, _)| *slot)
    }

    /// Assigns a connection to the server that another node has selected.
    fn forward(&mut self, ends: &FourTuple, server: SocketAddr) -> Option<()> {
        let vip = self.vip_of(ends)?;
        let slot = self
            .slot_of(&vip, server)
            .filter(|slot| self.director.plan().tables.servers.contains_key(slot))?;
        self.finish_session(ends, &vip, slot).then_some(())
    }

    /// Marks a connection's session as closing. The session stays for the last packets.
    fn close(&self, ends: &FourTuple) {
        let Some(vip) = self.vip_of(ends) else { return };
        let (memory, now) = (self.engine.plane.memory(), self.engine.plane.now());
        let key = session_key(ends, &vip);
        (0..ATTEMPTS).any(|_| {
            let Some(found) = memory.sessions.find(key, key.hash(memory.seed), now) else { return true };
            let until = now.wrapping_add(vip.idle.closing);
            memory.sessions.change(found, found.value.moved_to(State::Closing, until))
        });
    }

    /// Assigns a connection to a server, and sends these packets of the client first.
    fn give(&mut self, ends: &FourTuple, server: u16, packets: &[Vec<u8>]) -> bool {
        let Some(vip) = self.vip_of(ends) else { return false };
        if !self.director.plan().tables.servers.contains_key(&server)
            || !self.note_session(ends, &vip, server)
        {
            return false;
        }
        self.engine.plane.count_choice(server);
        for packet in packets {
            self.send_on(packet);
        }
        self.release(ends);
        true
    }

    /// Records the server of a connection, and sends the buffered segments.
    pub(super) fn finish_session(&mut self, ends: &FourTuple, vip: &Vip, server: u16) -> bool {
        let noted = self.note_session(ends, vip, server);
        self.release(ends);
        noted
    }

    /// Records the server of a connection. A session that the client has ended meanwhile is not
    /// reopened.
    pub(super) fn note_session(&mut self, ends: &FourTuple, vip: &Vip, server: u16) -> bool {
        let key = session_key(ends, vip);
        let (memory, now) = (self.engine.plane.memory(), self.engine.plane.now());
        let hash = key.hash(memory.seed);
        let value = |state: State, mark| {
            Value::new(server, state, now.wrapping_add(state.idle(&vip.idle))).with_mark(mark)
        };
        (0..ATTEMPTS).any(|_| match memory.sessions.find(key, hash, now) {
            Some(found) if found.value.state().is_ending() => {
                let (state, until) = (found.value.state(), found.value.expires());
                memory.sessions.change(found, Value::new(server, state, until).with_mark(found.value.mark()))
            }
            Some(found) => memory.sessions.change(found, value(State::Established, found.value.mark())),
            None => memory.sessions.insert(key, hash, value(State::Established, 0), now).is_ok(),
        })
    }

    /// Sends a client's IP packet as the data plane would. A packet that can't be sent is lost, as
    /// any packet may be.
    fn send_on(&mut self, packet: &[u8]) {
        let Some((&ingress, &own)) = self.director.links().iter().next() else { return };
        let mut buffer = [&[0; HEADROOM][..], &framed(own, packet)].concat();
        let mut packet = Packet::new(&mut buffer, HEADROOM, ingress);
        let (memory, now) = (self.engine.plane.memory(), self.engine.plane.now());
        let decision = stay(&self.director.plan().tables, &memory, &mut packet, now);
        self.send_decided(&decision, &mut packet);
    }

    /// Sends a client's packet according to its decision.
    pub(super) fn send_decided(&mut self, decision: &Decision, packet: &mut Packet<'_>) {
        let loopback = self.director.network().interfaces.iter().find(|(_, found)| found.loopback);
        match (decision.verdict, decision.reason) {
            (Verdict::Forward { ifindex }, _) => self.send_by(ifindex, packet.frame()),
            // The packet goes to this host's own stack, which also accepts connections from the
            // loopback interface.
            (Verdict::Pass, Reason::Local) if let Some((&ifindex, _)) = loopback => {
                let packet = packet.frame().get(layer_three(packet.frame())..).unwrap_or_default();
                self.send_by(ifindex, &framed(LOOPBACK, packet));
            }
            _ => {
                let reason = decision.reason.name();
                tracing::debug!(reason, "failed to forward a packet of a connection that is being moved");
            }
        }
    }

    /// Sends a frame unchanged.
    pub(super) fn send_by(&mut self, ifindex: u32, frame: &[u8]) {
        let sent = match self.handing.exits.entry(ifindex) {
            Entry::Occupied(exit) => exit.get().send(frame),
            Entry::Vacant(place) => exit(ifindex).and_then(|exit| place.insert(exit).send(frame)),
        };
        if let Err(error) = sent {
            // The interface may have been replaced.
            self.handing.exits.remove(&ifindex);
            tracing::debug!(%error, "failed to forward a packet of a connection that was handed off");
        }
    }
}

/// Returns the offset of a frame's IP packet, after VLAN tags.
fn layer_three(frame: &[u8]) -> usize {
    match parse(frame, frame.first_chunk().copied().map(Mac)) {
        Parsed::Segment(segment) => segment.at.l3,
        _ => ETHERNET_LEN,
    }
}

/// Opens a socket for output through an interface.
fn exit(ifindex: u32) -> io::Result<LinkSocket> {
    let exit = LinkSocket::open(ifindex, EtherType::None)?;
    exit.mark(SENT_ON)?;
    Ok(exit)
}

pub(super) fn session_key(ends: &FourTuple, vip: &Vip) -> SessionKey {
    SessionKey { client: ends.client.ip(), port: ends.client.port(), vip: vip.id }
}
