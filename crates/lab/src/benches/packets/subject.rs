//! Subject of a measurement: the program that handles the packets, and checks of its results.

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

/// Program whose packets are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// No program: the cost of the wrapper, which all figures include.
    Wrapper,
    /// Director, with a server on its link.
    L2,
    /// Director in every-host placement; another host may have forwarded the packet.
    Rewriter,
    /// Director with nat, from client to server.
    NatIn,
    /// Director with nat, from server to client.
    NatOut,
    /// Director, with a server behind a tunnel.
    Tunnel,
    /// Kernel balancer of the usual design, IPIP with an LRU map of flows
    /// (`crates/lab/bpf/bench.bpf.c`).
    Yardstick,
    /// Katran, IPIP, built from source that is not part of this project.
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

    /// Verdict on a forwarded packet.
    const fn verdict(self) -> u32 {
        match self {
            Subject::Wrapper => XDP_PASS,
            Subject::NatOut => XDP_REDIRECT,
            _ => XDP_TX,
        }
    }

    /// Offsets at which the wrapper writes a client's address and port.
    const fn client_at(self) -> (usize, usize) {
        match self {
            Subject::NatOut => (30, 36),
            _ => (26, 34),
        }
    }
}

/// Effect of a run's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// The packets belong to no service.
    Pass,
    /// The packets open sessions, or belong to sessions being opened.
    Open,
    /// Each packet starts a session.
    Begin,
    /// Each packet belongs to an existing session.
    Go,
}

/// Counters of a subject's programs; `None` for missing counters.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    forwarded: Option<u64>,
    passed: Option<u64>,
    started: Option<u64>,
    /// Packets whose session was missing or found no room.
    unexpected: Option<u64>,
}

/// Data plane without a network, for measuring the cost of packets.
pub(super) struct Bench {
    /// Owner of the maps that the wrapped programs share.
    bare: DetachedProgram,
    programs: Programs,
    katran: Option<Programs>,
    vip: Ipv4Addr,
    /// Endpoint that sends replies through the director.
    endpoint: Option<SocketAddrV4>,
    stateless: bool,
}

/// First flow number of [`Bench::new_sessions`], apart from all other flows.
const NEW_FLOWS: u32 = 1 << 27;
/// First flow number of new sessions in checks.
const LOOKED_AT: u32 = 1 << 26;
/// Number of checked frames per kind.
const LOOKS: u32 = 64;

/// Katran's maps have a fixed size and are slower the larger they are, so the size is just
/// sufficient.
const KATRAN_FLOWS_MAX: usize = 2 << 20;

impl Bench {
    /// Loads a table for `sessions_max` sessions. `tables` must have a TCP service on `vip`, port
    /// 80, and interface 1. Its servers must use the method of the measured subjects.
    /// [`Subject::NatOut`] requires a single server, and a route and a neighbour for every
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

    /// Opens `flows` sessions, a power of two, and sends a packet of each.
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

    /// Resizes the table for this number of sessions, as a daemon would.
    pub(super) fn fit_for(&self, sessions: u32) {
        self.bare.fit_for(sessions as usize);
    }

    /// Returns nanoseconds per packet of sessions from [`Bench::open`].
    pub(super) fn established(&mut self, subject: Subject, flows: u32, packets: u32) -> Result<u64> {
        let frame = self.going(subject);
        self.run(subject, Doing::Go, &frame, Flows { flows, first: 0, turn: 0 }, packets)
    }

    /// Returns nanoseconds per SYN that starts a session. A different `round` in each call selects
    /// new flows.
    pub(super) fn new_sessions(&mut self, subject: Subject, round: u32, packets: u32) -> Result<u64> {
        let flows = Flows { flows: packets, first: NEW_FLOWS + round * packets, turn: 0 };
        self.run(subject, Doing::Begin, &self.frame(80, TCP_SYN), flows, packets)
    }

    /// Returns nanoseconds per packet for no service.
    pub(super) fn pass(&mut self, subject: Subject, packets: u32) -> Result<u64> {
        let flows = Flows { flows: 1024, first: 0, turn: 0 };
        self.run(subject, Doing::Pass, &self.frame(81, TCP_ACK), flows, packets)
    }

    /// Checks the resulting frames: of sessions from [`Bench::open`], of new sessions, and for no
    /// service.
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

    /// Returns the resulting frame after checking it.
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

    /// Returns the counters that a run must have increased.
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

    /// Returns counters of the director's programs, and the number of live sessions, to check that
    /// the run did its work.
    #[cfg(test)]
    pub(super) fn outcome(&self) -> Result<(evener_dataplane::Counters, usize)> {
        Ok((self.bare.counters()?, self.bare.fill()))
    }

    /// Returns a packet of an established session.
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

/// Loads the wrapped programs with the director's maps.
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
