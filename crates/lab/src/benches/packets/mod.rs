//! Measures the cost of one packet in the XDP engine, compared with Katran or, without its source,
//! with a balancer of the usual design. All run on the same frames, in the same wrapper, in turn.

mod frames;
mod katran;
mod programs;
mod subject;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use evener_core::net::wire::Mac;
use evener_core::net::{Encapsulation, Protocol};
use evener_core::path::sessions::ticks;
use evener_core::path::tables::{
    Affinity, Forwarding, HASH_SLOTS, IdleTicks, NO_SERVER, Pick, ReplyOrigin, Ring, ServerEntry, Tables,
    Vip, VipKey,
};
use evener_core::pool::policy::{self, Weighted};
use serde::Serialize;

use self::frames::{OWN, SERVER_PORT, SERVERS, TUNNELS_FROM, address_of, mac_of};
use self::katran::Source;
use self::subject::{Bench, Subject};
use crate::harness::cleanup;
use crate::harness::cpu;
use crate::harness::table::Table;
use crate::network::netns::{Netns, ip_batch};

const VIP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 100);
const SESSIONS_MAX: usize = 16 << 20;
const FLOWS: [u32; 4] = [1, 1 << 10, 1 << 16, 1 << 20];
const NEW: u32 = 1 << 16;
/// Maximum number of rounds of new sessions that fit beside a million existing ones.
const NEW_ROUNDS_MAX: usize = 14;
const PACKETS: u32 = 2_000_000;

/// Costs by number of flows.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    /// Balancer that the director is compared with.
    beside: String,
    rounds: usize,
    rows: Vec<Row>,
}

/// Nanoseconds per packet, including the wrapper.
#[derive(Debug, Serialize)]
struct Row {
    flows: u32,
    wrapper: Spread,
    pass: Cost,
    methods: Vec<Method>,
}

/// Cost of one direction of a method.
#[derive(Debug, Serialize)]
struct Method {
    name: &'static str,
    established: Cost,
    /// `None` for replies, which start no session.
    new_session: Option<Cost>,
}

/// Cost for the director and for the compared balancer.
#[derive(Debug, Serialize)]
struct Cost {
    director: Spread,
    beside: Spread,
}

impl Cost {
    /// Ratio of the medians.
    fn ratio(&self) -> f64 {
        self.director.median as f64 / self.beside.median.max(1) as f64
    }
}

/// Nanoseconds of several rounds. Other load on the machine only increases them.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Spread {
    minimum: u64,
    quartile: u64,
    median: u64,
}

impl Spread {
    fn of(mut figures: Vec<u64>) -> Spread {
        figures.sort_unstable();
        let at = |part: usize| figures.get(figures.len() / part).copied().unwrap_or_default();
        Spread { minimum: figures.first().copied().unwrap_or_default(), quartile: at(4), median: at(2) }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Spread { minimum, quartile, median } = self;
        write!(f, "{median} ({quartile}, {minimum})")
    }
}

/// Methods, and subjects to measure for each.
const METHODS: [(Kind, &[(&str, Subject)]); 7] = [
    (Kind::Link, &[("l2", Subject::L2)]),
    (Kind::Affinity, &[("l2, affinity", Subject::L2)]),
    (Kind::TwoChoices, &[("l2, two choices", Subject::L2)]),
    (Kind::EveryHost, &[("every-host", Subject::Rewriter)]),
    (Kind::Stateless, &[("every-host, stateless", Subject::Rewriter)]),
    (Kind::Tunnel, &[("tunnel", Subject::Tunnel)]),
    (Kind::Nat, &[("nat in", Subject::NatIn), ("nat out", Subject::NatOut)]),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Link,
    /// Layer two, with affinity of clients: each new session is that of an unknown client.
    Affinity,
    /// Layer two, with selection of the less loaded of two servers.
    TwoChoices,
    /// Every-host: a host that forwards all packets on its link, with sessions.
    EveryHost,
    /// Every-host without sessions: selection by hash.
    Stateless,
    Tunnel,
    Nat,
}

/// Returns the methods to measure. Katran only has tunnels, so every-host placement and nat are
/// left out with Katran.
fn methods_beside(
    katran: Option<&Source>,
) -> impl Iterator<Item = (Kind, &'static [(&'static str, Subject)])> {
    let both = katran.is_some();
    METHODS.into_iter().filter(move |(kind, _)| !both || matches!(kind, Kind::Link | Kind::Tunnel))
}

/// Measures each figure with `rounds` rounds, in turn, so that noise affects both sides alike. With
/// Katran's source the number of rounds is three times as large.
pub(super) fn run(rounds: usize, katran: Option<&Path>) -> Result<Outcome> {
    let katran = katran.map(Source::build).transpose()?;
    let katran = katran.as_ref();
    let rounds = if katran.is_some() { 3 * rounds } else { rounds };
    let beside = katran.map_or_else(
        || {
            "a yardstick, an IPIP balancer of the usual design with an LRU map of flows (not Katran)"
                .to_owned()
        },
        Source::name,
    );
    let surroundings = Surroundings::new()?;
    surroundings.netns.enter(|| {
        // Katran's flow maps are per CPU, and so are caches.
        cpu::stay_on_one(0)?;
        let rows = FLOWS.into_iter().map(|flows| {
            eprintln!("  packets of {flows} flows");
            row(flows, rounds, katran)
        });
        Ok(Outcome { beside, rounds, rows: rows.collect::<Result<_>>()? })
    })?
}

fn row(flows: u32, rounds: usize, katran: Option<&Source>) -> Result<Row> {
    let (mut wrapper, mut pass, mut methods) = (Spread::default(), None, Vec::new());
    let other = if katran.is_some() { Subject::Katran } else { Subject::Yardstick };
    for (kind, subjects) in methods_beside(katran) {
        let mut bench = Bench::new(SESSIONS_MAX, &Arc::new(tables(kind)), VIP, katran)?;
        if kind == Kind::Link {
            wrapper = spread(rounds, || bench.established(Subject::Wrapper, flows, PACKETS))?;
            // the tunnel's program, whose wrapper equals the other side's
            pass = Some(pair(rounds, [Subject::Tunnel, other], |subject| bench.pass(subject, PACKETS))?);
        }
        for (name, subject) in subjects {
            methods.push(method(&mut bench, name, [*subject, other], flows, rounds)?);
        }
    }
    let pass = pass.unwrap_or(Cost { director: Spread::default(), beside: Spread::default() });
    Ok(Row { flows, wrapper, pass, methods })
}

fn method(
    bench: &mut Bench,
    name: &'static str,
    subjects: [Subject; 2],
    flows: u32,
    rounds: usize,
) -> Result<Method> {
    for subject in subjects {
        bench.open(subject, flows)?;
        bench.look(subject, flows)?;
    }
    let established = pair(rounds, subjects, |subject| bench.established(subject, flows, PACKETS))?;
    let rounds = rounds.min(NEW_ROUNDS_MAX);
    // A daemon would resize the table meanwhile.
    bench.fit_for(flows + NEW * rounds as u32);
    let mut round = 0;
    let mut new_session = |subject| {
        round += 1;
        bench.new_sessions(subject, round, NEW)
    };
    let opens = subjects[0] != Subject::NatOut;
    let new_session = if opens { Some(pair(rounds, subjects, &mut new_session)?) } else { None };
    for subject in subjects {
        bench.look(subject, flows)?;
    }
    Ok(Method { name, established, new_session })
}

fn pair<E>(
    rounds: usize,
    subjects: [Subject; 2],
    mut measure: impl FnMut(Subject) -> Result<u64, E>,
) -> Result<Cost, E> {
    let [mut director, mut beside] = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        director.push(measure(subjects[0])?);
        beside.push(measure(subjects[1])?);
    }
    Ok(Cost { director: Spread::of(director), beside: Spread::of(beside) })
}

fn spread<E>(rounds: usize, mut measure: impl FnMut() -> Result<u64, E>) -> Result<Spread, E> {
    (0..rounds).map(|_| measure()).collect::<Result<Vec<_>, E>>().map(Spread::of)
}

/// Network namespace in which the kernel has a route to every client. Its loopback interface, which
/// receives test frames, forwards packets.
pub(super) struct Surroundings {
    pub(super) netns: Netns,
    prefix: String,
}

impl Surroundings {
    pub(super) fn new() -> Result<Surroundings> {
        let prefix = cleanup::next_prefix()?;
        let made = Surroundings { netns: Netns::new(format!("{prefix}bench")), prefix };
        ip_batch(&[], &[format!("netns add {}", made.netns.name())])?;
        let lines = [
            "link set lo up",
            "link add out address 02:00:00:00:00:02 index 2 type veth peer name other index 3",
            "link set out up",
            "link set other up",
            "neigh replace 169.254.0.9 lladdr 02:00:00:00:00:09 dev out nud permanent",
            "route add 10.0.0.0/8 via 169.254.0.9 dev out onlink",
        ];
        made.netns.ip(&lines.map(str::to_owned))?;
        made.netns.sysctl(&[("ipv4/conf/all/forwarding", "1")])?;
        Ok(made)
    }
}

impl Drop for Surroundings {
    fn drop(&mut self) {
        cleanup::reap(&self.prefix);
    }
}

/// Returns tables with one service, round-robin over eight servers, on the interface of test runs.
/// With nat there is one server, so that replies need no lookup of their service.
fn tables(kind: Kind) -> Tables {
    let mut tables = Tables::default();
    tables.interfaces.insert(1, OWN);
    tables.interfaces.insert(2, Mac([2, 0, 0, 0, 0, 2]));
    let servers = if kind == Kind::Nat { 1 } else { SERVERS };
    let count = u16::from(servers);
    for number in 1..=servers {
        let (slot, mac) = (u16::from(number), mac_of(number));
        let (own, address): (IpAddr, IpAddr) = (TUNNELS_FROM.into(), address_of(number).into());
        let way = match kind {
            Kind::Link | Kind::Affinity | Kind::TwoChoices | Kind::EveryHost | Kind::Stateless => {
                Forwarding::Link
            }
            Kind::Tunnel => Forwarding::Tunnel {
                encapsulation: Encapsulation::Ipip,
                from: own,
                to: address,
                mtu: 1500,
                mark: None,
            },
            Kind::Nat => {
                Forwarding::Nat { to: (address, SERVER_PORT).into(), own, source_nat: false, mtu: 1500 }
            }
        };
        if kind == Kind::Nat {
            let key = VipKey { address, port: SERVER_PORT, protocol: Protocol::Tcp };
            tables.endpoints.insert(key, vec![ReplyOrigin { vip: 1, server: slot }]);
        }
        let server = ServerEntry {
            identity: slot.into(),
            mac,
            ifindex: 1,
            weight: 1,
            up: true,
            local: false,
            forwarding: way,
        };
        tables.servers.insert(slot, server);
    }
    let own = match kind {
        Kind::EveryHost | Kind::Stateless => {
            tables.peers = tables.servers.values().map(|server| server.mac).collect();
            let host = ServerEntry { local: true, ..tables.servers[&1] };
            tables.servers.insert(count + 1, host);
            count + 1
        }
        Kind::Link | Kind::Affinity | Kind::TwoChoices | Kind::Tunnel | Kind::Nat => NO_SERVER,
    };
    let members: Vec<_> =
        (1..=count).map(|slot| Weighted { slot, weight: 1, seed: u64::from(slot) << 32 | 7 }).collect();
    let idle = IdleTicks {
        syn: ticks(900_000),
        tcp: ticks(900_000),
        half_closed: ticks(120_000),
        closing: ticks(10_000),
        udp: ticks(60_000),
        udp_new: ticks(30_000),
    };
    let stateless = kind == Kind::Stateless;
    let pick = match kind {
        Kind::Stateless => Pick::Hash,
        Kind::TwoChoices => Pick::Two,
        Kind::Link | Kind::Affinity | Kind::EveryHost | Kind::Tunnel | Kind::Nat => Pick::Cursor,
    };
    let affinity = (kind == Kind::Affinity).then(|| Affinity::new(1, 32, 600_000));
    let vip = Vip { id: 1, service: 0, announce: true, pick, idle, own, stateless, affinity, handoff: None };
    tables.vips.insert(VipKey { address: VIP.into(), port: 80, protocol: Protocol::Tcp }, vip);
    let hash = policy::maglev(&members, HASH_SLOTS);
    let second = if pick == Pick::Two { policy::second_candidates(&hash) } else { [].into() };
    tables.rings.insert(
        0,
        Arc::new(Ring { order: (1..=count).collect(), hash: hash.into(), previous: [].into(), second }),
    );
    tables
}

impl Outcome {
    pub(super) fn print(&self) {
        println!(
            "One packet in the kernel engine (BPF_PROG_TEST_RUN), in nanoseconds with the wrapper's own: median (quartile, minimum) of {}",
            self.rounds
        );
        println!("rounds; beside it, on the same frames and in turn, {}:", self.beside);
        let cost = |cost: &Cost| format!("{} / {} = {:.2}x", cost.director, cost.beside, cost.ratio());
        let mut table = Table::new(&["flows", "", "established", "new session"]);
        for row in &self.rows {
            table.row([row.flows.to_string(), "wrapper".to_owned(), row.wrapper.to_string(), String::new()]);
            table.row([String::new(), "pass".to_owned(), cost(&row.pass), String::new()]);
            for Method { name, established, new_session } in &row.methods {
                let new_session = new_session.as_ref().map(cost).unwrap_or_default();
                table.row([String::new(), (*name).to_owned(), cost(established), new_session]);
            }
        }
        println!("{table}");
    }
}

#[cfg(test)]
mod tests {
    use evener_core::path::decide::Reason;

    use super::*;
    use crate::harness::engines;

    #[test]
    fn every_bench_subject_forwards_packets() -> Result<()> {
        if !engines::has_root() {
            return Ok(());
        }
        let surroundings = Surroundings::new()?;
        surroundings.netns.enter(|| {
            let alone = [("", Subject::Wrapper), ("", Subject::Yardstick)];
            let methods = METHODS.into_iter().chain([(Kind::Link, &alone[..])]);
            methods.into_iter().try_for_each(|(kind, subjects)| {
                subjects.iter().try_for_each(|(_, subject)| meets(kind, *subject))
            })
        })?
    }

    fn meets(kind: Kind, subject: Subject) -> Result<()> {
        let mut bench = Bench::new(4096, &Arc::new(tables(kind)), VIP, None)?;
        bench.open(subject, 256)?;
        bench.established(subject, 256, 10_000)?;
        let (counters, sessions) = bench.outcome()?;
        let (forwarded, answered, opened) = match (kind, subject) {
            (_, Subject::Wrapper | Subject::Yardstick) => (0, 0, 0),
            // Each session gets one reply while it is opened.
            (_, Subject::NatIn) => (10_512, 256, 256),
            (_, Subject::NatOut) => (512, 10_256, 256),
            (Kind::Stateless, _) => (10_512, 0, 0),
            // Each client has an affinity entry beside its session.
            (Kind::Affinity, _) => (10_512, 0, 512),
            _ => (10_512, 0, 256),
        };
        assert_eq!(sessions, opened, "{kind:?} {subject:?}");
        let reasons = counters.reasons;
        let counted = (reasons[&Reason::Forwarded], reasons[&Reason::Answered]);
        assert_eq!(counted, (forwarded, answered), "{kind:?} {subject:?}");
        Ok(())
    }
}
