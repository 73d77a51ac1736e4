//! Decides one packet. This is the specification that every engine follows.
//!
//! `Decide` holds one packet and everything that its decision depends on. The steps are its
//! methods, with the names of the functions in `bpf/director`:
//!
//! 1. `Decide::fast_path` decides most packets: whole packets of sessions in steady state. All
//!    others take `Decide::slow_path`, which parses the packet.
//! 2. A client's packet takes `Decide::decide_segment`: `Decide::choose` finds the server of
//!    its session or selects a server, and `Decide::send_to_server` delivers the packet. Services
//!    with `handoff` use `Decide::hand_off` instead of `choose`.
//! 3. A server's packet takes `Decide::decide_reply`, which sends it to the client.
//! 4. Later fragments (`Decide::later_fragment`) and ICMP errors (`Decide::icmp_error`) follow the
//!    packets that they belong to.

mod choose;
mod deliver;
mod error;
mod fast_path;
mod flow;
mod follow;
mod fragment;
mod handoff;
mod reply;

pub use crate::path::reason::Reason;
pub use choose::{Opens, Selected};
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
use crate::path::reply_hops::Routes;
use crate::path::rewrite;
use crate::path::seed::Seed;
use crate::path::select::Counts;
use crate::path::sessions::Sessions;
use crate::path::tables::{NO_SERVER, Tables, Vip};
use crate::path::unmatched::Unmatched;
use core::net::IpAddr;

/// Verdict on a frame, for an engine to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The engine sends the frame, as rewritten, out of this interface.
    Forward { ifindex: u32 },
    /// The host's own stack receives the frame, as rewritten.
    Pass,
    /// The host's own stack sends the rewritten packet: resolves the neighbour or fragments the
    /// packet.
    HostStack {
        /// Interface that leads to a link-local destination; `None` for other destinations.
        link: Option<u32>,
    },
    /// The frame is dropped.
    Drop,
    /// The engine holds the frame unchanged. With [`Reason::FragmentHeld`] the frame is decided
    /// again and again, for at most [`crate::path::fragments::PATIENCE_MS`]. With
    /// [`Reason::Rehandoff`] and [`Reason::RehandoffBuffered`] the task that moves the connection
    /// receives the frame.
    Hold,
}

/// Maximum length of a frame that can be held, in bytes. It fits an Ethernet frame of MTU 1500 with
/// tags.
pub const HELD_FRAME_MAX: usize = 2_048;

/// Input of decisions besides the tables: state that outlives a packet, and the host's routes.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    pub sessions: Sessions<'a>,
    /// Ring cursors and active sessions.
    pub counts: Counts<'a>,
    /// Ports of the director's own addresses.
    pub ports: Ports<'a>,
    /// Records of first fragments.
    pub fragments: &'a dyn Fragments,
    /// Next hops of replies.
    pub routes: &'a dyn Routes,
    /// Key of the flow hash.
    pub seed: Seed,
    /// Key of the hash that selects from hash tables. All hosts that must select the same server
    /// have the same key.
    pub ring_seed: Seed,
    /// Lease for answering ARP for service addresses.
    pub lease: Lease<'a>,
    /// Keys of SYN cookies.
    pub cookies: SharedKeys<'a>,
    /// Key of the marks in GUE headers, in an every-host farm.
    pub marker: SharedMarker<'a>,
    /// Recently seen segments without a session.
    pub unmatched: Unmatched<'a>,
    /// Counts of wrong cookies.
    pub guesses: Guesses<'a>,
}

/// Verdict on a packet, with the reasons and the server that are counted for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    pub verdict: Verdict,
    pub reason: Reason,
    /// Server selected for the packet, and how.
    pub selected: Selected,
}

impl Decision {
    const fn of(verdict: Verdict, reason: Reason) -> Self {
        Decision { verdict, reason, selected: Selected::NONE }
    }
    const fn pass(reason: Reason) -> Self {
        Decision::of(Verdict::Pass, reason)
    }
    const fn drop(reason: Reason) -> Self {
        Decision::of(Verdict::Drop, reason)
    }

    /// Returns the server that the packet is counted for: the server that receives the packet, or
    /// whose connection moves. [`NO_SERVER`] for other packets.
    pub const fn server(&self) -> u16 {
        match (self.verdict, self.reason) {
            (_, Reason::Forwarded | Reason::Local) | (Verdict::Hold, _) => self.selected.server,
            _ => NO_SERVER,
        }
    }

    /// True if the packet opens a session on its server.
    pub fn is_new_session(&self) -> bool {
        self.server() != NO_SERVER && self.selected.opens != Opens::Nothing
    }

    /// Returns the reasons to count: the reason of the verdict, and that of the selection if it has
    /// one.
    pub fn reasons(&self) -> impl Iterator<Item = Reason> {
        [Some(self.reason), self.selected.also_counted].into_iter().flatten()
    }
}

/// A packet and everything that its verdict depends on.
struct Decide<'a, 'p> {
    tables: &'a Tables,
    memory: &'a Memory<'a>,
    packet: &'a mut Packet<'p>,
    /// Source MAC of the frame as received, for [`Arrival::of`].
    source: Mac,
    /// Tick of the decision.
    now: u32,
}

/// Decides a packet at tick `now`, and rewrites it accordingly.
pub fn decide(tables: &Tables, memory: &Memory<'_>, packet: &mut Packet<'_>, now: u32) -> Decision {
    let mut decide = Decide::new(tables, memory, packet, now);
    decide.fast_path().unwrap_or_else(|| decide.slow_path())
}

/// Decides a packet at tick `now` on the slow path, which any packet can take.
pub fn slow_path(tables: &Tables, memory: &Memory<'_>, packet: &mut Packet<'_>, now: u32) -> Decision {
    Decide::new(tables, memory, packet, now).slow_path()
}

impl<'a, 'p> Decide<'a, 'p> {
    fn new(tables: &'a Tables, memory: &'a Memory<'a>, packet: &'a mut Packet<'p>, now: u32) -> Self {
        let source = packet.frame().get(6..).and_then(|rest| rest.first_chunk()).copied().map(Mac);
        Decide { tables, memory, packet, source: source.unwrap_or_default(), now }
    }

    fn slow_path(&mut self) -> Decision {
        let tables = self.tables;
        match self.parse() {
            Parsed::Pass(reason) => Decision::pass(reason),
            Parsed::Odd(reason, dst) => match odd_reason(tables, reason, dst) {
                Reason::NotService => Decision::pass(Reason::NotService),
                reason => Decision::drop(reason),
            },
            Parsed::ArpRequest { l3, target, sender } => {
                let Some(own) = self.own_mac_for(target.into(), sender.into()) else {
                    return Decision::pass(Reason::NotService);
                };
                rewrite::arp_answer(self.packet, l3, own);
                self.frame_back(Reason::ArpAnswered)
            }
            Parsed::Solicitation { l3, target, sender } => {
                let Some(own) = self.own_mac_for(target.into(), sender.into()) else {
                    return Decision::pass(Reason::NotService);
                };
                match rewrite::neighbour_answer(self.packet, l3, target, sender, own) {
                    true => self.frame_back(Reason::NeighbourAnswered),
                    false => Decision::drop(Reason::NoHeadroom),
                }
            }
            Parsed::Echo(at) if tables.has_address(at.dst) => {
                rewrite::echo_answer(self.packet, &at);
                self.frame_back(Reason::EchoAnswered)
            }
            Parsed::Echo(_) => Decision::pass(Reason::NotService),
            Parsed::Segment(segment) => match tables.vips.get(&segment.vip_key()) {
                Some(vip) => self.decide_segment(&segment, vip),
                None => self.decide_reply(&segment),
            },
            Parsed::LaterFragment(at) => self.later_fragment(&at),
            Parsed::IcmpError(error) => self.icmp_error(&error),
        }
    }

    /// Decides a client's packet to a service.
    fn decide_segment(&mut self, segment: &Segment, vip: &Vip) -> Decision {
        if has_bad_flags(segment) {
            return Decision::drop(Reason::BadFlags);
        }
        let flow = self.client_flow(segment, vip);
        if let Some(handoff) = &vip.handoff {
            return self.hand_off(&flow, handoff);
        }
        let selected = self.choose(&flow);
        self.send_to_server(&flow, selected)
    }

    fn parse(&self) -> Parsed {
        parse(self.packet.frame(), self.tables.interfaces.get(&self.packet.ingress).copied())
    }

    /// Sends the frame back out of its ingress interface.
    fn frame_back(&self, reason: Reason) -> Decision {
        Decision::of(Verdict::Forward { ifindex: self.packet.ingress }, reason)
    }

    /// Holds the packet, or drops it with the reason `too_long`.
    fn hold(&self, reason: Reason, too_long: Reason) -> Decision {
        match self.packet.frame().len() {
            0..=HELD_FRAME_MAX => Decision::of(Verdict::Hold, reason),
            _ => Decision::drop(too_long),
        }
    }

    /// Returns the MAC for an ARP or neighbour discovery reply. `None` if this host doesn't answer
    /// for `target` now. A sender that claims the address itself causes a conflict (RFC 5227) and
    /// gets no reply.
    fn own_mac_for(&self, target: IpAddr, sender: IpAddr) -> Option<Mac> {
        let own = *self.tables.interfaces.get(&self.packet.ingress)?;
        let answers = self.tables.announces(target) && self.memory.lease.holds(self.now) && sender != target;
        answers.then_some(own)
    }

    /// Returns the interface and MAC of the packet's sender if `client` is a link-local address;
    /// `None` for other addresses.
    ///
    /// # Errors
    /// [`Reason::LinkLocal`] if no reply could reach the sender: replies to such clients have no
    /// VLAN tags.
    fn near(&self, client: IpAddr, at: &Layers) -> Result<Option<LinkLocalPeer>, Reason> {
        if !is_link_local(client) {
            return Ok(None);
        }
        if !ports::is_near(client) || at.l3 != ETHERNET_LEN {
            return Err(Reason::LinkLocal);
        }
        Ok(Some(LinkLocalPeer { link: self.packet.ingress, mac: self.source }))
    }

    fn arrival(&self, vip: &Vip) -> Arrival {
        Arrival::of(self.tables, vip, self.source)
    }
}

/// True if an address is valid on one link only.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// True if SYN comes with FIN or RST, which no stack sends.
fn has_bad_flags(segment: &Segment) -> bool {
    segment.flags & TCP_SYN != 0 && segment.flags & (TCP_FIN | TCP_RST) != 0
}
