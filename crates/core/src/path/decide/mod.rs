//! One packet, one verdict: the specification that every engine carries out.
//!
//! Most packets take the fast path ([`fast_path`]). [`slow_path`] tells the others apart. Clients'
//! packets go to servers ([`choose`] and [`deliver`]), those that servers answer through the
//! director go back to clients ([`answer`]); fragments and ICMP errors follow the packets that they
//! belong to ([`fragment`], [`error`]).

mod answer;
mod choose;
mod deliver;
mod error;
mod fast_path;
mod flow;
mod follow;
mod fragment;
mod handoff;
mod track;

pub use crate::path::reason::Reason;
pub use handoff::{end, stay};

use crate::net::packet::Packet;
use crate::net::wire::{ETHERNET_LEN, Mac, TCP_FIN, TCP_RST, TCP_SYN};
use crate::path::arrival::Arrival;
use crate::path::cookie::SharedKeys;
use crate::path::fragments::Fragments;
use crate::path::guesses::Guesses;
use crate::path::lease::Lease;
use crate::path::mark::SharedMarker;
use crate::path::parse::{Layers, Parsed, Segment, odd_reason, parse};
use crate::path::ports::{self, LinkLocalPeer, Ports};
use crate::path::rewrite;
use crate::path::routes::Routes;
use crate::path::seed::Seed;
use crate::path::select::Counts;
use crate::path::sessions::Sessions;
use crate::path::tables::{ALL_FULL, NO_SERVER, Tables, Vip, VipKey};
use crate::path::unmatched::Unmatched;
use choose::{Selected, choose};
use core::net::IpAddr;
use deliver::{DeliveryContext, deliver};
use flow::Flow;

/// The verdict on a frame, for an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send it out of this interface, as it now stands.
    Forward {
        /// Interface index.
        ifindex: u32,
    },
    /// The host's own stack has it, as it now stands.
    Pass,
    /// It goes nowhere.
    Drop,
    /// Keep it as it is. The reason says what for: [`Reason::FragmentHeld`] to be decided again
    /// soon, for [`crate::path::fragments::PATIENCE_MS`] at most; [`Reason::Rehandoff`] and
    /// [`Reason::RehandoffBuffered`] to be given to whoever moves connections.
    Hold,
}

/// The longest frame that can be held, in bytes: one of an Ethernet of 1500 bytes, with tags, and
/// room to spare.
pub const HELD_FRAME_MAX: usize = 2_048;

/// The state besides the tables: memory that outlives a packet, and the host's routes.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    /// The session tables.
    pub sessions: Sessions<'a>,
    /// Ring cursors and active sessions.
    pub counts: Counts<'a>,
    /// Ports of the director's own addresses.
    pub ports: Ports<'a>,
    /// First fragments.
    pub fragments: &'a dyn Fragments,
    /// Where answers go.
    pub routes: &'a dyn Routes,
    /// Key of the flow hash.
    pub seed: Seed,
    /// Key of the hash that picks from hash tables: of all hosts that must agree, the same.
    pub ring_seed: Seed,
    /// How long addresses may be answered for.
    pub lease: Lease<'a>,
    /// The keys of cookies.
    pub cookies: SharedKeys<'a>,
    /// The key of marks, where every host decides.
    pub marker: SharedMarker<'a>,
    /// Recently seen segments without a session.
    pub unmatched: Unmatched<'a>,
    /// How many wrong cookies were seen.
    pub guesses: Guesses<'a>,
}

/// A verdict, and what there is to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The verdict on the frame.
    pub verdict: Verdict,
    /// Why.
    pub reason: Reason,
    /// The server that the packet is for and counted to, or [`NO_SERVER`].
    pub server: u16,
    /// Whether a server was chosen anew.
    pub new_session: bool,
    /// [`Reason::TableFull`], [`Reason::NoSession`] or [`Reason::SecondChance`], counted beside
    /// `reason`.
    pub also_counted: Option<Reason>,
    /// Of a packet with which a client said what it wants: who was to have the connection. Nothing
    /// is counted by it.
    pub new_connection: Option<NewConnection>,
    /// With [`Reason::HostStack`], to a link-local address: the interface that leads to it.
    pub link: Option<u32>,
}

/// The server given a connection for its client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewConnection {
    /// The server or punt slot that has the connection from now on, or [`NO_SERVER`].
    pub server: u16,
    /// The number of the route that chose it; `None` where none did.
    pub route: Option<u16>,
}

impl NewConnection {
    const NO_SERVER_CHOSEN: NewConnection = NewConnection { server: NO_SERVER, route: None };
}

impl Decision {
    const fn of(verdict: Verdict, reason: Reason) -> Self {
        Decision {
            verdict,
            reason,
            server: NO_SERVER,
            new_session: false,
            also_counted: None,
            new_connection: None,
            link: None,
        }
    }
    const fn pass(reason: Reason) -> Self {
        Decision::of(Verdict::Pass, reason)
    }
    const fn drop(reason: Reason) -> Self {
        Decision::of(Verdict::Drop, reason)
    }
    /// Holds a packet, if it isn't too long for that.
    fn held(packet: &Packet<'_>, reason: Reason, too_long: Reason) -> Self {
        match packet.frame().len() {
            0..=HELD_FRAME_MAX => Decision::of(Verdict::Hold, reason),
            _ => Decision::drop(too_long),
        }
    }
}

/// Everything that a decision goes by.
#[derive(Clone, Copy)]
struct DecisionContext<'a> {
    tables: &'a Tables,
    memory: &'a Memory<'a>,
    /// The frame's source, which says how it came: [`Arrival::of`].
    source: Mac,
    /// The interface that it came by.
    ingress: u32,
    now: u32,
}

impl<'a> DecisionContext<'a> {
    /// The inputs of a packet's decision at tick `now`.
    fn of(tables: &'a Tables, memory: &'a Memory<'a>, packet: &Packet<'_>, now: u32) -> Self {
        let source = packet.frame().get(6..).and_then(|rest| rest.first_chunk()).copied().map(Mac);
        DecisionContext { tables, memory, source: source.unwrap_or_default(), ingress: packet.ingress, now }
    }

    /// Where the sender of this packet is, if it has a link-local address.
    ///
    /// # Errors
    /// [`Reason::LinkLocal`] if nothing that is sent to it would find it: frames go out as the
    /// interface has them, without tags.
    fn near(&self, at: &Layers) -> Result<Option<LinkLocalPeer>, Reason> {
        if !is_link_local(at.src) {
            return Ok(None);
        }
        if !ports::is_near(at.src) || at.l3 != ETHERNET_LEN {
            return Err(Reason::LinkLocal);
        }
        Ok(Some(LinkLocalPeer { link: self.ingress, mac: self.source }))
    }

    fn arrival(&self, vip: &Vip) -> Arrival {
        Arrival::of(self.tables, vip, self.source)
    }

    /// Whether this host answers for an address, now.
    fn answers_for(&self, address: IpAddr) -> bool {
        self.tables.announces(address) && self.memory.lease.holds(self.now)
    }
}

/// Decides a packet at tick `now`, and rewrites it accordingly: on the fast path where that will
/// do.
pub fn decide(tables: &Tables, memory: &Memory<'_>, packet: &mut Packet<'_>, now: u32) -> Decision {
    let known = DecisionContext::of(tables, memory, packet, now);
    fast_path::decide(&known, packet).unwrap_or_else(|| slow_path(tables, memory, packet, now))
}

/// The same on the slow path, which any packet can go.
pub fn slow_path(tables: &Tables, memory: &Memory<'_>, packet: &mut Packet<'_>, now: u32) -> Decision {
    let own = tables.interfaces.get(&packet.ingress).copied();
    let known = DecisionContext::of(tables, memory, packet, now);
    let answered = |reason| Decision::of(Verdict::Forward { ifindex: packet.ingress }, reason);
    match parse(packet.frame(), own) {
        Parsed::Pass(reason) => Decision::pass(reason),
        Parsed::Odd(reason, dst) => match odd_reason(tables, reason, dst) {
            Reason::NotService => Decision::pass(Reason::NotService),
            reason => Decision::drop(reason),
        },
        Parsed::ArpRequest { l3, target, sender } => match own {
            // A sender that claims the address itself is no question but a conflict (RFC 5227).
            Some(own) if known.answers_for(target.into()) && sender != target => {
                let decision = answered(Reason::ArpAnswered);
                rewrite::arp_answer(packet, l3, own);
                decision
            }
            _ => Decision::pass(Reason::NotService),
        },
        Parsed::Solicitation { l3, target, sender } => match own {
            Some(own) if known.answers_for(target.into()) && sender != target => {
                let decision = answered(Reason::NeighbourAnswered);
                match rewrite::neighbour_answer(packet, l3, target, sender, own) {
                    true => decision,
                    false => Decision::drop(Reason::NoHeadroom),
                }
            }
            _ => Decision::pass(Reason::NotService),
        },
        Parsed::Echo(at) if tables.has_address(at.dst) => {
            let decision = answered(Reason::EchoAnswered);
            rewrite::echo_answer(packet, &at);
            decision
        }
        Parsed::Echo(_) => Decision::pass(Reason::NotService),
        Parsed::Segment(segment) => {
            let key = VipKey { address: segment.at.dst, port: segment.dst_port, protocol: segment.protocol };
            match tables.vips.get(&key) {
                Some(vip) => decide_segment(&known, packet, &segment, vip),
                None => answer::decide(&known, packet, &segment),
            }
        }
        Parsed::LaterFragment(at) => fragment::decide(&known, packet, &at),
        Parsed::IcmpError(error) => error::decide(&known, packet, &error),
    }
}

/// Whether an address says where its owner is on one link only.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// SYN together with FIN or RST: no stack sends that.
fn has_bad_flags(segment: &Segment) -> bool {
    segment.flags & TCP_SYN != 0 && segment.flags & (TCP_FIN | TCP_RST) != 0
}

/// A packet from a client.
fn decide_segment(
    known: &DecisionContext<'_>,
    packet: &mut Packet<'_>,
    segment: &Segment,
    vip: &Vip,
) -> Decision {
    if has_bad_flags(segment) {
        return Decision::drop(Reason::BadFlags);
    }
    let flow = Flow::new(known, segment, vip);
    if let Some(handoff) = &vip.handoff {
        return handoff::decide(known, packet, segment, &flow, handoff);
    }
    let choice = choose(known.tables, known.memory, &flow);
    carry(known, packet, segment, &flow, &choice)
}

/// Takes a client's packet to the server that was chosen.
fn carry(
    known: &DecisionContext<'_>,
    packet: &mut Packet<'_>,
    segment: &Segment,
    flow: &Flow<'_>,
    choice: &Selected,
) -> Decision {
    let Some(server) = known.tables.servers.get(&choice.server) else {
        return Decision::drop(if choice.server == ALL_FULL {
            Reason::ServersFull
        } else {
            Reason::NoServer
        });
    };
    let port = match deliver::hidden_port(known, &segment.at, flow, choice, server) {
        Ok(port) => port,
        Err(Reason::NoSession) if !flow.opens() => {
            return handoff::unmatched_segment(known, packet, segment, flow, Reason::NoSession);
        }
        Err(reason) => return Decision::drop(reason),
    };
    if let Err(reason) = track::note_track(known, &segment.at, choice.server, flow.vip.id, port, false) {
        return Decision::drop(reason);
    }
    let route = DeliveryContext { hash: flow.hash, port, arrival: flow.arrival };
    let (verdict, reason) = deliver(known, packet, &segment.at, server, &route);
    if !matches!(reason, Reason::Forwarded | Reason::Local) {
        return Decision { also_counted: choice.also_counted, ..Decision::of(verdict, reason) };
    }
    Decision {
        verdict,
        reason,
        server: choice.server,
        new_session: choice.new_session,
        also_counted: choice.also_counted,
        new_connection: None,
        link: None,
    }
}
