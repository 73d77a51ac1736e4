//! One packet, one verdict: the specification that every engine carries out.

use crate::farm::Protocol;
pub use crate::reason::Reason;

use crate::parse::{Parsed, Segment, odd_reason, parse};
use crate::rewrite;
use crate::select::{Counts, by_hash, select};
use crate::sessions::{FlowHash, Found, Seed, SessionKey, Sessions, State, Value};
use crate::tables::{NO_SERVER, Tables, Vip};
use crate::wire::{TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN};

/// What an engine must do with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send it out of this interface, as it now stands.
    Forward {
        /// Interface index.
        ifindex: u32,
    },
    /// The host's own stack has it.
    Pass,
    /// It goes nowhere.
    Drop,
}

/// What a packet meets besides the tables: memory that outlives it.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    /// The session table.
    pub sessions: Sessions<'a>,
    /// Ring cursors and active sessions.
    pub counts: Counts<'a>,
    /// Key of the flow hash.
    pub seed: Seed,
}

/// A verdict, and what there is to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What to do with the frame.
    pub verdict: Verdict,
    /// Why.
    pub reason: Reason,
    /// The server chosen, or [`NO_SERVER`].
    pub server: u16,
    /// Whether a server was chosen anew.
    pub new_session: bool,
    /// [`Reason::TableFull`] or [`Reason::NoSession`], counted beside `reason`.
    pub beside: Option<Reason>,
}

impl Decision {
    const fn pass(reason: Reason) -> Self {
        Decision { verdict: Verdict::Pass, reason, server: NO_SERVER, new_session: false, beside: None }
    }
    const fn drop(reason: Reason) -> Self {
        Decision { verdict: Verdict::Drop, reason, server: NO_SERVER, new_session: false, beside: None }
    }
}

/// Decides a frame that came in on interface `ingress` at tick `now`, and rewrites it accordingly.
pub fn decide(tables: &Tables, memory: &Memory<'_>, frame: &mut [u8], ingress: u32, now: u32) -> Decision {
    let own = tables.interfaces.get(&ingress).copied();
    match parse(frame, own) {
        Parsed::Pass(reason) => Decision::pass(reason),
        Parsed::Odd(reason, dst) => match odd_reason(tables, reason, dst) {
            Reason::NotService => Decision::pass(Reason::NotService),
            reason => Decision::drop(reason),
        },
        Parsed::ArpRequest { target, sender, .. } => match own {
            // A sender that claims the address itself is no question but a conflict (RFC 5227).
            Some(own) if tables.announces(target) && sender != target => {
                rewrite::arp_answer(frame, own);
                let verdict = Verdict::Forward { ifindex: ingress };
                Decision { verdict, ..Decision::pass(Reason::ArpAnswered) }
            }
            _ => Decision::pass(Reason::NotService),
        },
        Parsed::Segment(segment) => match tables.vips.get(&segment.vip) {
            Some(vip) => decide_segment(tables, memory, frame, &segment, vip, now),
            None => Decision::pass(Reason::NotService),
        },
    }
}

fn decide_segment(
    tables: &Tables,
    memory: &Memory<'_>,
    frame: &mut [u8],
    segment: &Segment,
    vip: &Vip,
    now: u32,
) -> Decision {
    if segment.flags & TCP_SYN != 0 && segment.flags & (TCP_FIN | TCP_RST) != 0 {
        return Decision::drop(Reason::BadFlags);
    }
    let choice = choose(tables, memory, &Flow::new(memory.seed, segment, vip, now));
    let Some(server) = tables.servers.get(&choice.server) else {
        return Decision::drop(Reason::NoServer);
    };
    let decision = Decision {
        verdict: Verdict::Pass,
        reason: Reason::Local,
        server: choice.server,
        new_session: choice.new_session,
        beside: choice.beside,
    };
    if server.local {
        return decision;
    }
    let Some(&src) = tables.interfaces.get(&server.ifindex) else {
        return Decision::drop(Reason::NoServer);
    };
    rewrite::l2(frame, src, server.mac);
    Decision { verdict: Verdict::Forward { ifindex: server.ifindex }, reason: Reason::Forwarded, ..decision }
}

/// A packet on its way to a server.
struct Flow<'a> {
    vip: &'a Vip,
    key: SessionKey,
    hash: FlowHash,
    udp: bool,
    flags: u8,
    now: u32,
}

impl<'a> Flow<'a> {
    fn new(seed: Seed, segment: &Segment, vip: &'a Vip, now: u32) -> Self {
        let key = SessionKey::new(segment.client.to_bits(), segment.client_port, vip.id);
        let udp = segment.vip.protocol == Protocol::Udp;
        Flow { vip, key, hash: FlowHash::of(key, seed), udp, flags: segment.flags, now }
    }

    /// Whether this packet may begin a session: any of UDP's, a SYN without ACK of TCP's.
    fn opens(&self) -> bool {
        self.udp || self.flags & (TCP_SYN | TCP_ACK) == TCP_SYN
    }

    fn value(&self, server: u16, state: State) -> Value {
        Value::new(server, state, self.now.wrapping_add(state.idle(&self.vip.idle)))
    }

    /// The server that the flow has without any memory of it.
    fn hash_choice(&self, tables: &Tables) -> u16 {
        tables.rings.get(&self.vip.service).map_or(NO_SERVER, |ring| by_hash(ring, self.hash))
    }
}

struct Choice {
    server: u16,
    new_session: bool,
    beside: Option<Reason>,
}

/// The server of a packet: its session's, a new one's, or the hash's (LSMAC, section 3.1).
fn choose(tables: &Tables, memory: &Memory<'_>, flow: &Flow<'_>) -> Choice {
    let found = memory.sessions.find(flow.key, flow.hash, flow.now);
    match found {
        Some(found) if !chooses_anew(tables, flow, found.value) => {
            follow(memory, flow, found);
            Choice { server: found.value.server(), new_session: false, beside: None }
        }
        _ if !flow.opens() => {
            Choice { server: flow.hash_choice(tables), new_session: false, beside: Some(Reason::NoSession) }
        }
        _ => open(tables, memory, flow, found),
    }
}

/// Whether a packet gets a new choice although its session is known: the server is gone; a client's
/// port is used again while the old connection closes; or a first try meets a server that has failed.
fn chooses_anew(tables: &Tables, flow: &Flow<'_>, value: Value) -> bool {
    let Some(server) = tables.servers.get(&value.server()) else {
        return true;
    };
    flow.opens()
        && match value.state() {
            State::Closing => true,
            State::New | State::Udp => !server.up,
            State::Free | State::Claimed | State::Established => false,
        }
}

/// Keeps a session alive and moves its state on.
fn follow(memory: &Memory<'_>, flow: &Flow<'_>, found: Found<'_>) {
    let was = found.value.state();
    let state = match was {
        State::New | State::Established if flow.flags & (TCP_FIN | TCP_RST) != 0 => State::Closing,
        State::New if flow.flags & TCP_SYN == 0 => State::Established,
        same => same,
    };
    let value = flow.value(found.value.server(), state);
    // A cache line written for every packet would travel between CPUs: every few seconds is enough, a 64th
    // of the idle time at the most.
    let gained = value.expires().wrapping_sub(found.value.expires()) as i32;
    let step = (state.idle(&flow.vip.idle) >> 6).min(1 << 12) as i32;
    if state != was || gained > step {
        memory.sessions.change(found, value);
    }
}

/// Begins a session, in the place of `found` if there was one.
fn open(tables: &Tables, memory: &Memory<'_>, flow: &Flow<'_>, found: Option<Found<'_>>) -> Choice {
    let server = select(tables, memory.counts, flow.vip, flow.hash);
    if server == NO_SERVER {
        return Choice { server, new_session: false, beside: None };
    }
    let value = flow.value(server, if flow.udp { State::Udp } else { State::New });
    let unnoted = match found {
        // Changed by another CPU meanwhile: that one's choice is the session's.
        Some(found) => (!memory.sessions.change(found, value)).then_some(Reason::NoSession),
        None => memory.sessions.insert(flow.key, flow.hash, value, flow.now).err().map(|_| Reason::TableFull),
    };
    match unnoted {
        None => Choice { server, new_session: true, beside: None },
        // The hash is what the flow's next packets will find as well.
        beside => Choice { server: flow.hash_choice(tables), new_session: true, beside },
    }
}
