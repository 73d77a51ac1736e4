//! Promises of an every-host farm: servers that get new connections, and hosts that answer ARP.
//! Hosts have limited time to keep a promise, so each state is tracked from its start.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::check::{Broken, Promise};
use crate::farms::{self, SERVERS, SERVERS_MAX, SILENCE_MS, VIPS};
use crate::router;
use crate::world::World;

/// Time after which no host forwards new connections to a silent, failed or drained host, in
/// milliseconds. Consists of two silence timeouts, since the last report may have been delayed, and
/// a margin for applying tables.
const NOTICE_MS: u64 = 2 * SILENCE_MS + 4_000;
/// Time without a change of hosts after which each address has an owner that clients know, in
/// milliseconds. A host joins after one silence timeout, gets its address back after another one,
/// and announces it.
pub(crate) const TAKE_OVER_MS: u64 = 3 * SILENCE_MS + 2_000;
/// Maximum delay of a datagram in milliseconds.
const ON_ITS_WAY_MS: u64 = 2_000;
/// Time in which a returned host receives the others' reports without loss, in milliseconds: two
/// reports of each.
const HEARS_MS: u64 = 1_000;
/// Maximum duration of a lease in milliseconds.
const LEASE_MS: u64 = SILENCE_MS;

/// Running nodes, and the nodes that receive each other's reports. Addresses and rings follow
/// changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Presence {
    /// For each node: time of the daemon's last start or end, whether it runs, its carrier, its
    /// list of servers, whether it waits for its engine, the offset of its clock, and the end of
    /// its input pause.
    nodes: [(u64, bool, bool, u8, bool, u64, u64); SERVERS],
    sides: u8,
    deaf: u16,
    loses: bool,
}

impl Presence {
    fn of(world: &World) -> Presence {
        let (sides, deaf) = world.parted();
        let of = |number: usize| {
            let Some(node) = world.nodes.get(number) else { return Default::default() };
            let waits = node.shown.wanted != node.shown.generation;
            let (lives, list) = (node.takes_part(), node.list());
            (node.since_ms, lives, node.has_carrier, list, waits, node.ahead_ms, node.busy_until_ms)
        };
        Presence { nodes: std::array::from_fn(of), sides, deaf, loses: world.loss > 0 }
    }
}

/// Inputs of the selection for new connections: presence, working servers, drained servers, and
/// hosts with another file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fitness {
    presence: Presence,
    works: [bool; SERVERS_MAX],
    nodes: [(bool, bool); SERVERS],
}

impl Fitness {
    fn of(world: &World) -> Fitness {
        let of = |number: usize| {
            world.nodes.get(number).map(|node| (node.operator.is_empty(), node.is_reloading()))
        };
        let nodes = std::array::from_fn(|number| of(number).unwrap_or_default());
        Fitness { presence: world.hosts.presence, works: world.works, nodes }
    }
}

/// Cause why a host should get no new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Unfit {
    Silent,
    Failed,
    Drained,
    Disagrees,
}

/// States that are tracked over time.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    presence: Presence,
    fitness: Fitness,
    /// Time of the last change of `presence`.
    calm_since_ms: u64,
    /// Start of the phase in which only single hosts fail and return, so connections are kept.
    keeps_since_ms: Option<u64>,
    /// Time since when the first host should forward nothing new to the second.
    unfit_since: BTreeMap<(usize, usize, Unfit), u64>,
    /// Time since when the first host has no reason to exclude the second.
    fit_since: BTreeMap<(usize, usize), u64>,
    /// Pairs of hosts that have had the same file while the first one ran, so it has accepted the
    /// second one's reports.
    agreed: BTreeSet<(usize, usize)>,
    /// Time when a node last used a list of servers. Reports with that list may still arrive.
    listed: BTreeMap<(usize, u8), u64>,
    /// Time since when nodes can't renew their leases.
    away_since: BTreeMap<usize, u64>,
    /// Time of each node's last return.
    back_ms: BTreeMap<usize, u64>,
    /// Address owners at a node's return whose reports the node has not received since.
    unheard: BTreeSet<(usize, usize, IpAddr)>,
}

impl Hosts {
    /// True if communication between hosts has been undisturbed for long.
    pub(crate) fn is_calm(&self, now_ms: u64) -> bool {
        now_ms - self.calm_since_ms > TAKE_OVER_MS && !self.presence.loses && self.presence.deaf == 0
    }

    /// True if a connection that began at `began_ms` must still be at its server.
    pub(crate) fn keeps(&self, began_ms: u64, now_ms: u64) -> bool {
        self.calm_since_ms <= began_ms
            || self.is_calm(now_ms) && self.keeps_since_ms.is_some_and(|since| began_ms >= since)
    }

    /// Starts the phase in which hosts fail and return one at a time.
    pub(crate) fn begin_to_keep(&mut self, now_ms: u64) {
        self.keeps_since_ms = Some(now_ms);
    }

    /// Records that a node has received another node's report.
    pub(crate) fn heard(&mut self, to: usize, from: usize) {
        self.unheard.retain(|(a, b, _)| (*a, *b) != (to, from));
    }

    /// Records a replay to a node. The sender of the replayed report may seem alive for a while.
    pub(crate) fn relay(&mut self, to: usize, now_ms: u64) {
        let silent = self.unfit_since.iter_mut().filter(|((a, _, why), _)| *a == to && *why == Unfit::Silent);
        silent.for_each(|(_, since)| *since = now_ms);
    }

    /// Records that a node starts with a lease, with or without carrier.
    pub(crate) fn begin_lease(&mut self, node: usize) {
        self.away_since.remove(&node);
    }

    /// Records that a node starts without state: it has accepted no reports.
    pub(crate) fn forget(&mut self, node: usize) {
        self.agreed.retain(|(a, _)| *a != node);
    }
}

/// Checks the promises that hold at every moment.
pub(crate) fn all(world: &mut World) -> Result<(), Broken> {
    let presence = Presence::of(world);
    if presence != world.hosts.presence {
        (world.hosts.presence, world.hosts.calm_since_ms) = (presence, world.now_ms);
    }
    leases(world)?;
    let fitness = Fitness::of(world);
    if fitness != world.hosts.fitness {
        note_unfit(world);
        world.hosts.fitness = fitness;
    }
    only_fit_are_chosen(world)?;
    if world.now_ms - world.hosts.calm_since_ms > TAKE_OVER_MS {
        let groups = groups(world);
        for group in &groups {
            is_owned(world, group)?;
            all_fit_are_chosen(world, group)?;
        }
        is_known_to_clients(world, &groups)?;
    }
    Ok(())
}

/// Checks leases: a host that was away longer than a lease answers no ARP until it has received
/// reports of the owners. A host that has left answers none.
fn leases(world: &mut World) -> Result<(), Broken> {
    let now_ms = world.now_ms;
    for a in 0..world.nodes.len() {
        let node = &world.nodes[a];
        let answers = VIPS.map(|vip| node.answers(vip, now_ms));
        if node.leaves_at().is_some() && answers.contains(&true) {
            return Err(Promise::Outlived.broken(format!("by node {a}, which has left")));
        }
        if !node.takes_part() || !node.has_carrier {
            world.hosts.away_since.entry(a).or_insert(now_ms);
            continue;
        }
        let Some(since_ms) = world.hosts.away_since.remove(&a) else { continue };
        world.hosts.unheard.retain(|(back, ..)| *back != a);
        world.hosts.back_ms.insert(a, now_ms);
        if now_ms - since_ms <= LEASE_MS {
            continue;
        }
        let others = (0..world.nodes.len()).filter(|b| *b != a && world.reach(a, *b));
        let all = others.flat_map(|b| VIPS.map(|vip| (a, b, vip)));
        let owned: Vec<_> = all.filter(|(_, b, vip)| world.nodes[*b].answers(*vip, now_ms)).collect();
        world.hosts.unheard.extend(owned);
    }
    let still = |(a, b, vip): &(usize, usize, IpAddr)| {
        let is_early = world.hosts.back_ms.get(a).is_some_and(|at| now_ms - at < HEARS_MS);
        is_early
            && world.loss == 0
            && world.reach(*a, *b)
            && world.nodes[*b].takes_part()
            && world.nodes[*b].answers(*vip, now_ms)
    };
    let unheard: BTreeSet<_> = world.hosts.unheard.iter().copied().filter(still).collect();
    let twice = unheard.iter().find(|(a, _, vip)| world.nodes[*a].answers(*vip, now_ms));
    if let Some((a, b, vip)) = twice {
        return Err(Promise::Twice.broken(format!(
            "node {a} is back since {} ms and answers for {vip}, unheard of node {b}, which has it",
            now_ms - world.hosts.back_ms[a]
        )));
    }
    world.hosts.unheard = unheard;
    Ok(())
}

/// Updates the times since when hosts should get no new connections from others.
fn note_unfit(world: &mut World) {
    let (now_ms, mut unfit) = (world.now_ms, BTreeMap::new());
    let nodes = world.nodes.len();
    // Until now the nodes used their previous lists.
    let before = world.hosts.fitness.presence.nodes.iter().enumerate();
    let listed: Vec<_> = before.map(|(number, node)| ((number, node.3), now_ms)).collect();
    world.hosts.listed.extend(listed);
    for (a, b) in (0..nodes).flat_map(|a| (0..nodes).map(move |b| (a, b))).filter(|(a, b)| a != b) {
        let (one, other) = (&world.nodes[a], &world.nodes[b]);
        if !one.takes_part() {
            world.hosts.fit_since.remove(&(a, b));
            continue;
        }
        let is_heard = world.reach(a, b) && other.takes_part();
        let alike = one.list() == other.list() && is_heard;
        let listed = world.hosts.listed.get(&(b, one.list()));
        let may_agree = listed.is_some_and(|at| now_ms - at < ON_ITS_WAY_MS);
        if may_agree || one.list() == other.list() || one.is_reloading() || other.is_reloading() {
            world.hosts.agreed.insert((a, b));
        }
        let heeded = alike && world.loss == 0;
        let whys = [
            (Unfit::Silent, !world.hears(a, b) || !other.takes_part()),
            (Unfit::Failed, heeded && !world.works[b]),
            (Unfit::Drained, heeded && !other.operator.is_empty()),
            (Unfit::Disagrees, !world.hosts.agreed.contains(&(a, b))),
        ];
        for (why, _) in whys.into_iter().filter(|(_, is_so)| *is_so) {
            let since = world.hosts.unfit_since.get(&(a, b, why)).copied();
            unfit.insert((a, b, why), since.unwrap_or(now_ms).max(one.since_ms));
        }
        if !alike || world.loss > 0 || !world.works[b] || !other.operator.is_empty() {
            world.hosts.fit_since.remove(&(a, b));
        } else {
            world.hosts.fit_since.entry((a, b)).or_insert(now_ms);
        }
    }
    world.hosts.unfit_since = unfit;
}

/// Checks that no host forwards new connections to a host that should get none, while a better host
/// exists.
fn only_fit_are_chosen(world: &World) -> Result<(), Broken> {
    for ((a, b, why), since) in &world.hosts.unfit_since {
        let node = &world.nodes[*a];
        let waits = node.shown.wanted != node.shown.generation || !node.is_settled();
        let notice_ms = if *why == Unfit::Disagrees { 0 } else { NOTICE_MS };
        if waits || world.now_ms - since < notice_ms {
            continue;
        }
        for (number, vip) in VIPS.into_iter().enumerate() {
            let ring = node.rings[number];
            let concerns = number == 0 || *why != Unfit::Drained;
            // If no server works any more, the first service keeps the last working one.
            let since = |c: usize| world.hosts.fit_since.get(&(*a, c));
            let is_fit = |c: usize| since(c).is_some_and(|at| world.now_ms - at > NOTICE_MS);
            let has_fit = (0..SERVERS)
                .any(|c| ring >> c & 1 == 1 && if c == *a { is_fit_itself(world, c) } else { is_fit(c) });
            let is_last = number == 0 && !has_fit;
            if concerns && !is_last {
                world.coverage.checked(Promise::Unfit);
            }
            if concerns && !is_last && ring >> b & 1 == 1 {
                return Err(Promise::Unfit.broken(format!(
                    "{} gives {vip} to {}: {why:?}",
                    farms::name(*a),
                    farms::name(*b)
                )));
            }
        }
    }
    Ok(())
}

/// True if a host's own server has worked and was not drained for long.
fn is_fit_itself(world: &World, number: usize) -> bool {
    let since_ms = world.now_ms.saturating_sub(NOTICE_MS);
    let node = &world.nodes[number];
    let is_wanted = node.wanted_since_ms.is_some_and(|at| at < since_ms);
    world.works[number] && world.works_since_ms[number] < since_ms && is_wanted && node.since_ms < since_ms
}

/// Returns the groups of hosts that receive each other's reports, have the same file, and receive
/// no other host.
fn groups(world: &World) -> Vec<Vec<usize>> {
    let (nodes, there) =
        (world.nodes.len(), |node: usize| world.nodes[node].takes_part() && world.nodes[node].has_carrier);
    let heard =
        |a: usize| (0..nodes).filter(move |b| there(*b) && world.reach(a, *b)).collect::<Vec<usize>>();
    let is_whole = |a: &usize| {
        let group = heard(*a);
        let alike = |b: &usize| heard(*b) == group && world.nodes[*b].list() == world.nodes[*a].list();
        there(*a)
            && world.loss == 0
            && group.iter().all(alike)
            && group.iter().all(|b| !world.nodes[*b].waits())
    };
    let groups: BTreeSet<Vec<usize>> = (0..nodes).filter(is_whole).map(heard).collect();
    groups.into_iter().collect()
}

/// Checks that each address has an owner in a group of hosts.
fn is_owned(world: &World, group: &[usize]) -> Result<(), Broken> {
    world.coverage.checked(Promise::Ownerless);
    let is_owned = |vip: &IpAddr| group.iter().any(|node| world.nodes[*node].answers(*vip, world.now_ms));
    match VIPS.iter().find(|vip| !is_owned(vip)) {
        Some(vip) => Err(Promise::Ownerless.broken(format!("{vip} among nodes {group:?}"))),
        None => Ok(()),
    }
}

/// Checks that a host announces an address that it takes over: the router must know the owner.
fn is_known_to_clients(world: &World, groups: &[Vec<usize>]) -> Result<(), Broken> {
    let reached: Vec<usize> = (0..world.nodes.len())
        .filter(|node| router::reaches(world, *node) && world.nodes[*node].takes_part())
        .collect();
    if !groups.contains(&reached) {
        return Ok(());
    }
    for vip in VIPS {
        let known = world.router.known(vip);
        if let Some(known) = known.filter(|node| !world.nodes[*node].answers(vip, world.now_ms)) {
            return Err(Promise::Ownerless
                .broken(format!("clients send to node {known} for {vip}, which doesn't answer for it")));
        }
    }
    Ok(())
}

/// Checks that each working, wanted server gets new connections from all hosts of its group.
fn all_fit_are_chosen(world: &World, group: &[usize]) -> Result<(), Broken> {
    let since_ms = world.now_ms.saturating_sub(TAKE_OVER_MS);
    let is_fit = |b: usize| {
        world.works[b]
            && world.works_since_ms[b] < since_ms
            && world.nodes[b].wanted_since_ms.is_some_and(|at| at < since_ms)
    };
    for a in group {
        world.coverage.checked(Promise::Left);
        let ring = world.nodes[*a].rings[0];
        if let Some(b) = group.iter().find(|b| is_fit(**b) && ring >> **b & 1 == 0) {
            return Err(Promise::Left.broken(format!("{} by {}", farms::name(*b), farms::name(*a))));
        }
    }
    Ok(())
}
