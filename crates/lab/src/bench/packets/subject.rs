//! The program whose packets are measured, and what must have become of them.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use evener_core::net::wire::{TCP_ACK, TCP_SYN};
use evener_core::path::decide::Reason;
use evener_core::path::tables::Tables;
use evener_dataplane::xdp::DetachedProgram;
use libbpf_rs::{ObjectBuilder, OpenObject};

use super::frames::{self, CLIENT, SERVERS};
use super::katran::{self, Source};
use super::programs::{Flows, Programs, XDP_PASS, XDP_REDIRECT, XDP_TX};

const MEASURED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bench.bpf.o"));
const SHOWN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/shown.bpf.o"));

/// The program whose packets are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// Nobody's: the cost of measuring, which every figure includes.
    Wrapper,
    /// The director's, to a server on its LAN.
    L2,
    /// The same where every host decides: the packet may have been passed on by another.
    Rewriter,
    /// The director's, to a server with an address and a port of its own.
    NatIn,
    /// Such a server's, through the director.
    NatOut,
    /// The director's, to a server behind a tunnel.
    Tunnel,
    /// A kernel balancer's of the usual design, IPIP with an LRU map of flows
    /// (`crates/lab/bpf/bench.bpf.c`).
    Yardstick,
    /// Katran's, IPIP, built from source that is not part of this project.
    Katran,
}

impl Subject {
    const fn program(self) -> &'static str {
        match self {
            Subject::Wrapper => "empty",
            Subject::L2 | Subject::Rewriter => "l2",
            Subject::NatIn => "nat_in",
            Subject::NatOut => "nat_out",
            Subject::Tunnel => "tunnel",
            Subject::Yardstick => "yardstick",
            Subject::Katran => "katran",
        }
    }

    /// Of a packet that goes on.
    const fn verdict(self) -> u32 {
        match self {
            Subject::Wrapper => XDP_PASS,
            Subject::NatOut => XDP_REDIRECT,
            _ => XDP_TX,
        }
    }

    /// Where the wrapper writes a client's address and port.
    const fn client_at(self) -> (usize, usize) {
        match self {
            Subject::NatOut => (30, 36),
            _ => (26, 34),
        }
    }
}

/// How packets are dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// They are for no service.
    Pass,
    /// Sessions are opened, or gone through once more.
    Open,
    /// Each begins a session.
    Begin,
    /// Each is of a session that there is.
    Go,
}

/// Counts of a subject's programs; `None` for those that they don't have.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    forwarded: Option<u64>,
    passed: Option<u64>,
    /// New sessions.
    started: Option<u64>,
    /// Packets whose session was not found, or found no room.
    unexpected: Option<u64>,
}

/// A data plane without a network, for measuring what one packet costs.
pub(super) struct Bench {
    /// The wrappers' maps are its.
    bare: DetachedProgram,
    programs: Programs,
    katran: Option<Programs>,
    vip: Ipv4Addr,
    /// Where answers come from that go through the director.
    endpoint: Option<SocketAddrV4>,
    stateless: bool,
}

/// Flows of [`Bench::new_sessions`] are numbered from here on, out of the way of the others.
const NEW_FLOWS: u32 = 1 << 27;
/// Those whose frames are looked at.
const LOOKED_AT: u32 = 1 << 26;
/// How many of them.
const LOOKS: u32 = 64;

/// Katran's maps are as large as they are made, and slower the larger: so it gets what serves here.
const KATRAN_FLOWS_MAX: usize = 2 << 20;

impl Bench {
    /// Loads a table for `sessions_max` sessions. `tables` must have a TCP service on `vip`, port
    /// 80, and interface 1; its servers must be reached as the subjects are that shall be measured,
    /// and for [`Subject::NatOut`] there must be one alone, and a route and a neighbour for every
    /// 10.x.x.x.
    pub(super) fn new(
        sessions_max: usize,
        tables: &Arc<Tables>,
        vip: Ipv4Addr,
        katran: Option<&Source>,
    ) -> Result<Self> {
        let bare = DetachedProgram::new(sessions_max, tables)?;
        let programs = programs(&bare, vip).context("The measuring programs can't be loaded")?;
        let katran = katran.map(|source| katran::load(source, KATRAN_FLOWS_MAX, vip)).transpose()?;
        let endpoint = tables.endpoints.keys().find_map(|key| match SocketAddr::new(key.address, key.port) {
            SocketAddr::V4(endpoint) => Some(endpoint),
            SocketAddr::V6(_) => None,
        });
        let stateless = tables.vips.values().any(|vip| vip.stateless);
        Ok(Bench { bare, programs, katran, vip, endpoint, stateless })
    }

    /// Opens `flows` (a power of two) sessions, and sends a packet of each.
    pub(super) fn open(&mut self, subject: Subject, flows: u32) -> Result<()> {
        // Only clients open sessions.
        let opener = if subject == Subject::NatOut { Subject::NatIn } else { subject };
        let all = Flows { flows, first: 0, turn: 0 };
        if !matches!(subject, Subject::Wrapper | Subject::Yardstick | Subject::Katran) {
            self.bare.forget();
            self.fit_for(flows);
        }
        for flags in [TCP_SYN, TCP_ACK] {
            self.run(opener, Doing::Open, &self.frame(80, flags), all, flows)?;
            if let (Subject::NatIn, TCP_SYN, Some(endpoint)) = (opener, flags, self.endpoint) {
                let answer = frames::answer(endpoint, TCP_SYN | TCP_ACK);
                self.run(Subject::NatOut, Doing::Open, &answer, all, flows)?;
            }
        }
        Ok(())
    }

    /// Has the table grow for so many sessions, as a daemon has.
    pub(super) fn fit_for(&self, sessions: u32) {
        self.bare.fit_for(sessions as usize);
    }

    /// Nanoseconds a packet of sessions that [`Bench::open`] opened.
    pub(super) fn established(&mut self, subject: Subject, flows: u32, packets: u32) -> Result<u64> {
        let frame = self.going(subject);
        self.run(subject, Doing::Go, &frame, Flows { flows, first: 0, turn: 0 }, packets)
    }

    /// Nanoseconds a SYN of a session that there wasn't; `round` keeps calls apart.
    pub(super) fn new_sessions(&mut self, subject: Subject, round: u32, packets: u32) -> Result<u64> {
        let flows = Flows { flows: packets, first: NEW_FLOWS + round * packets, turn: 0 };
        self.run(subject, Doing::Begin, &self.frame(80, TCP_SYN), flows, packets)
    }

    /// Nanoseconds a packet for no service.
    pub(super) fn pass(&mut self, subject: Subject, packets: u32) -> Result<u64> {
        let flows = Flows { flows: 1024, first: 0, turn: 0 };
        self.run(subject, Doing::Pass, &self.frame(81, TCP_ACK), flows, packets)
    }

    /// Looks whether frames are as they should be: of sessions that [`Bench::open`] opened, of new
    /// ones, and for no service.
    pub(super) fn look(&mut self, subject: Subject, flows: u32) -> Result<()> {
        let going = self.going(subject);
        let (known, new) =
            (Flows { flows, first: 0, turn: 0 }, Flows { flows: LOOKS, first: LOOKED_AT, turn: 0 });
        for turn in 0..LOOKS {
            let shown = self.show(subject, &going, Flows { turn, ..known })?;
            let again = self.show(subject, &going, Flows { turn, ..known })?;
            ensure!(shown == again, "{subject:?}: one session's packets go to two servers");
            if subject == Subject::NatOut {
                continue;
            }
            let first = self.show(subject, &self.frame(80, TCP_SYN), Flows { turn, ..new })?;
            let second = self.show(subject, &going, Flows { turn, ..new })?;
            let server = |frame: &[u8]| frame.get(..34).map(<[u8]>::to_vec);
            ensure!(
                server(&first) == server(&second),
                "{subject:?}: a new session's packets go to two servers"
            );
            let (other, flows) = (self.frame(81, TCP_ACK), Flows { turn, ..known });
            let passed = self.programs_of(subject)?.show(subject.program(), &other, flows)?;
            let same = passed.frame == flows.vary(&other, subject.client_at());
            ensure!(
                passed.verdict == XDP_PASS && same,
                "{subject:?}: a packet for no service wasn't passed as it was"
            );
        }
        Ok(())
    }

    /// The frame that one packet becomes, if that is right.
    fn show(&mut self, subject: Subject, frame: &[u8], flows: Flows) -> Result<Vec<u8>> {
        let ran = self.programs_of(subject)?.show(subject.program(), frame, flows)?;
        let Flows { first, turn, .. } = flows;
        ensure!(
            ran.verdict == subject.verdict(),
            "{subject:?}: verdict {} in turn {turn} from {first}",
            ran.verdict
        );
        let sent = flows.vary(frame, subject.client_at());
        frames::check(subject, &sent, &ran.frame)
            .with_context(|| format!("{subject:?}, turn {turn} from {first}"))?;
        Ok(ran.frame)
    }

    fn programs_of(&mut self, subject: Subject) -> Result<&mut Programs> {
        match subject {
            Subject::Katran => self.katran.as_mut().context("Katran isn't there"),
            _ => Ok(&mut self.programs),
        }
    }

    fn run(
        &mut self,
        subject: Subject,
        doing: Doing,
        frame: &[u8],
        flows: Flows,
        packets: u32,
    ) -> Result<u64> {
        let before = self.counts(subject)?;
        let ran = self.programs_of(subject)?.measure(subject.program(), frame, flows, packets)?;
        let after = self.counts(subject)?;
        let verdict = if doing == Doing::Pass { XDP_PASS } else { subject.verdict() };
        ensure!(
            ran.verdict == verdict,
            "{subject:?}, {doing:?}: the last of {packets} packets met verdict {}",
            ran.verdict
        );
        let wanted = self.wanted(subject, doing, u64::from(packets));
        for (what, before, after, wanted) in [
            ("were forwarded", before.forwarded, after.forwarded, wanted.forwarded),
            ("were passed", before.passed, after.passed, wanted.passed),
            ("began a session", before.started, after.started, wanted.started),
            ("found no session", before.unexpected, after.unexpected, wanted.unexpected),
        ] {
            let (Some(before), Some(after), Some(wanted)) = (before, after, wanted) else { continue };
            let more = after - before;
            ensure!(
                more == wanted,
                "{subject:?}, {doing:?}: of {packets} packets {more} {what}, not {wanted}"
            );
        }
        Ok(ran.each)
    }

    /// The counts that a run must have made.
    fn wanted(&self, subject: Subject, doing: Doing, packets: u64) -> Counts {
        let (forwarded, passed) = if doing == Doing::Pass { (0, packets) } else { (packets, 0) };
        let started = if doing == Doing::Begin { packets } else { 0 };
        let notes = !self.stateless || subject == Subject::Katran;
        let looked_at = notes && doing != Doing::Open;
        Counts {
            forwarded: Some(forwarded),
            passed: Some(passed),
            started: looked_at.then_some(started),
            unexpected: looked_at.then_some(0),
        }
    }

    fn counts(&self, subject: Subject) -> Result<Counts> {
        match (subject, &self.katran) {
            (Subject::Wrapper, _) => Ok(Counts::default()),
            (Subject::Yardstick, _) => {
                let [forwarded, _] = self.programs.count("yardstick_stats", 0)?;
                Ok(Counts { forwarded: Some(forwarded), ..Counts::default() })
            }
            (Subject::Katran, Some(katran)) => {
                let katran::Counted { forwarded, passed, begun: started, unexpected } =
                    katran::counted(katran)?;
                let [forwarded, passed, started, unexpected] =
                    [forwarded, passed, started, unexpected].map(Some);
                Ok(Counts { forwarded, passed, started, unexpected })
            }
            _ => {
                let counters = self.bare.counters()?;
                let sum =
                    |reasons: [Reason; 2]| Some(reasons.iter().map(|reason| counters.reasons[reason]).sum());
                Ok(Counts {
                    forwarded: sum([Reason::Forwarded, Reason::Answered]),
                    passed: counters.reasons.get(&Reason::NotService).copied(),
                    started: Some(counters.servers.values().map(|server| server.connections).sum()),
                    unexpected: sum([Reason::NoSession, Reason::TableFull]),
                })
            }
        }
    }

    /// Counts of the director's programs, and live sessions: they show that the run did the work
    /// that it stands for.
    #[cfg(test)]
    pub(super) fn outcome(&self) -> Result<(evener_dataplane::Counters, usize)> {
        Ok((self.bare.counters()?, self.bare.fill()))
    }

    /// A packet of a session at work.
    fn going(&self, subject: Subject) -> Vec<u8> {
        match (subject, self.endpoint) {
            (Subject::NatOut, Some(endpoint)) => frames::answer(endpoint, TCP_ACK),
            _ => self.frame(80, TCP_ACK),
        }
    }

    fn frame(&self, port: u16, flags: u8) -> Vec<u8> {
        frames::segment(CLIENT, SocketAddrV4::new(self.vip, port), flags)
    }
}

/// The measuring programs over the director's own maps.
fn programs(bare: &DetachedProgram, vip: Ipv4Addr) -> Result<Programs> {
    let open = |object| -> Result<OpenObject> {
        let mut open = ObjectBuilder::default().open_memory(object)?;
        bare.share(&mut open)?;
        Ok(open)
    };
    let programs = Programs::load(open(MEASURED)?, open(SHOWN)?)?;
    let slot =
        |slot: u32| (slot.to_ne_bytes().to_vec(), (slot % u32::from(SERVERS) + 1).to_ne_bytes().to_vec());
    programs.fill("yardstick_ring", (0..65_537).map(slot))?;
    let server = |number: u8| {
        let address = frames::address_of(number).octets();
        (u32::from(number).to_ne_bytes().to_vec(), [&address[..], &[0; 4]].concat())
    };
    programs.fill("yardstick_reals", (1..=SERVERS).map(server))?;
    // Address, port 80, TCP, no IPv6.
    let key = [&vip.octets()[..], &[0, 80, 6, 0]].concat();
    programs.fill("yardstick_vips", [(key, vec![0; 8])])?;
    Ok(programs)
}
