//! One host of an every-host farm: how long it waits after a start before it answers ARP, and how
//! it adopts the other hosts after a restart.

use super::*;
use crate::director::hosts::generation;
use crate::farm::network::{Interface, KernelRoute, Network};
use crate::farm::{PeerOptions, Placement};
use crate::node::peers::wire::{Body, Datagram};

pub(super) const HOSTS: [(&str, u8); 3] = [("a", 11), ("b", 12), ("c", 13)];
pub(super) const INTERVAL_MS: u64 = 500;

/// Returns the first of three hosts of an every-host farm on one link.
fn host(running: Option<Tables>, now: Moment) -> Director {
    host_at(0, every_host(), running, now)
}

/// Returns an every-host farm of three hosts.
pub(super) fn every_host() -> Farm {
    let mut farm = farm(&HOSTS);
    farm.peers = PeerOptions { port: 7, interval_ms: INTERVAL_MS, silence_ms: 3_000 };
    farm.services[0] = Service {
        placement: Placement::EveryHost,
        policy: "hash",
        keep_last: false,
        ..farm.services[0].clone()
    };
    farm
}

/// Returns the host with this index in the farm's list. All hosts are on one link.
pub(super) fn host_at(place: usize, farm: Farm, running: Option<Tables>, now: Moment) -> Director {
    let (own, number) = HOSTS[place];
    let mac = |number: u8| Mac([2, 0, 0, 0, 1, number]);
    let link = Interface {
        name: "eth0".into(),
        mac: mac(number),
        addresses: vec![(IpAddr::from([192, 0, 2, number]), 24)],
        up: true,
        carrier: true,
        mtu: 1_500,
        loopback: false,
        ethernet: true,
    };
    let on_link = KernelRoute {
        destination: (ip("192.0.2.0"), 24),
        priority: 0,
        ifindex: Some(2),
        on_link: true,
        gateway: None,
    };
    let network = Network {
        interfaces: BTreeMap::from([(2, link)]),
        gateways: Vec::new(),
        routes: vec![on_link],
        neighbours: HOSTS
            .iter()
            .filter(|(name, _)| *name != own)
            .map(|(_, number)| ((2, IpAddr::from([192, 0, 2, *number])), mac(*number)))
            .collect(),
    };
    let identity = Identity { name: own.into(), address: IpAddr::from([192, 0, 2, number]) };
    let host = Some((identity, Key([7; 32]), now.ms));
    let links = BTreeMap::from([(2, mac(number))]);
    Director::new(Start { network, links, host, running, ..start(farm) }, now)
}

/// Passes a time input to the director. Returns the durations of all `Lease` outputs, and the
/// tables that were applied last.
fn time(director: &mut Director, now: Moment, fills: &mut Fills) -> (Vec<u64>, Option<Arc<Tables>>) {
    let (mut leases, mut in_force) = (Vec::new(), None);
    director.handle(now, Input::Time { active: BTreeMap::new() });
    while let Some(order) = director.poll_output() {
        match order {
            Output::Lease { ms } => leases.push(ms),
            Output::Apply(change) => {
                let planned = change.plan(fills);
                let tables =
                    planned.tables().unwrap().map_or_else(|| Arc::clone(&director.in_force), Arc::clone);
                in_force = Some(Arc::clone(&tables));
                director.handle(now, Input::Applied(Box::new(planned.answer(tables, None))));
            }
            _ => {}
        }
    }
    (leases, in_force)
}

/// Changes cause extra reports, which must not shorten the wait of two report intervals.
#[test]
fn host_with_lapsed_lease_waits_two_report_intervals() {
    let at = |ms| Moment { ms, lease_holds: false, ..Moment::default() };
    let (mut director, mut fills) = (host(None, at(1_000)), Fills::default());
    let mut given = Vec::new();
    for ms in (1_000..4_000).step_by(50) {
        let state = if ms % 100 == 0 { OperatorState::Drain } else { OperatorState::Ready };
        director.handle(at(ms), Input::SetOperatorState { server: name("a"), state });
        let (leases, _) = time(&mut director, at(ms), &mut fills);
        given.extend(leases.into_iter().map(|_| ms));
    }
    assert!(given[0] >= 1_000 + 2 * INTERVAL_MS && given[0] <= 1_000 + 3 * INTERVAL_MS, "{given:?}");
}

#[test]
fn restart_keeps_sending_hosts_and_skips_hosts_without_report() {
    let at = |ms| Moment { ms, lease_holds: true, ..Moment::default() };
    let (mut director, mut fills) = (host(None, at(1_000)), Fills::default());
    let mut running = Tables::default();
    for ms in (1_000..3_000).step_by(50) {
        if let (_, Some(tables)) = time(&mut director, at(ms), &mut fills) {
            running = (*tables).clone();
        }
        director.handle(at(ms), Input::Probed { server: name("a"), result: Ok(1) });
    }
    let sent_to_others = |tables: &Tables| {
        let slots = || tables.rings.values().flat_map(|ring| ring.hash.iter());
        slots().any(|slot| tables.servers.get(slot).is_some_and(|server| !server.local))
    };
    assert!(running.servers.len() > 1 && !sent_to_others(&running), "nobody else was heard");
    // The earlier daemon knew another host by a MAC address that no neighbour table has, since that
    // host sends from a second link.
    let sends_with = Mac([2, 0, 0, 0, 9, 12]);
    running.peers.insert(sends_with);
    let before = running.rings.values().next().unwrap();
    let own = running.servers.iter().find(|(_, server)| server.local).unwrap();
    assert!(before.hash.iter().all(|slot| slot == own.0));
    let mut director = host(Some(running.clone()), at(5_000));
    let (_, tables) = time(&mut director, at(5_000), &mut fills);
    let tables = tables.unwrap();
    assert!(!sent_to_others(&tables), "nor after a restart");
    // Another host that had new sessions before the restart may be alive. Until its first report
    // the director uses its MAC address from the running tables. Its weight shows that it had new
    // sessions, since some engines store no rings.
    running.rings.clear();
    let b = running.servers.values_mut().find(|server| !server.local).unwrap();
    assert_eq!(b.weight, 0);
    b.weight = 1;
    let mut director = host(Some(running), at(9_000));
    let (_, tables) = time(&mut director, at(9_000), &mut fills);
    let tables = tables.unwrap();
    assert!(sent_to_others(&tables) && tables.peers.contains(&sends_with), "{:?}", tables.peers);
}

/// Returns the generation of the farm file in this host's reports.
fn generation_reported(
    director: &mut Director,
    now: Moment,
    fills: &mut Fills,
    refusal: Option<&str>,
) -> Option<u64> {
    let mut reported = None;
    director.handle(now, Input::Time { active: BTreeMap::new() });
    while let Some(order) = director.poll_output() {
        match order {
            Output::Send { datagram, .. } => {
                let datagram = Datagram::read(&datagram, &Key([7; 32])).unwrap();
                if let Body::Report(report) = datagram.body {
                    reported = Some(report.generation);
                }
            }
            Output::Apply(change) => {
                let planned = change.plan(fills);
                let refusal = refusal.map(String::from);
                let tables = planned.tables().unwrap().filter(|_| refusal.is_none()).map(Arc::clone);
                let tables = tables.unwrap_or_else(|| Arc::clone(&director.in_force));
                director.handle(now, Input::Applied(Box::new(planned.answer(tables, refusal))));
            }
            _ => {}
        }
    }
    reported
}

/// Every host reports its own weight and limit, so its file may have others.
#[test]
fn generation_is_the_same_for_other_weights_and_limits() {
    let (farm, mut other) = (every_host(), every_host());
    other.services[0].servers[1].weight = 9;
    other.services[0].servers[2].max_connections = 5;
    assert_eq!(generation(&farm), generation(&other));
    other.services[0].servers[1].backup = true;
    assert_ne!(generation(&farm), generation(&other));
}

/// A host must report the generation that it runs. With that of the refused file, hosts with the
/// old file would reject its reports, and this host would accept reports of hosts with the refused
/// file.
#[test]
fn host_with_refused_reload_reports_old_generation() {
    let at = |ms| Moment { ms, lease_holds: true, ..Moment::default() };
    let (mut director, mut fills) = (host(None, at(1_000)), Fills::default());
    let before = generation_reported(&mut director, at(1_000), &mut fills, None);
    assert!(before.is_some());
    let mut farm = director.farm().clone();
    farm.services[0].servers[1].backup = true;
    let network = Box::new(director.network().clone());
    let director_links = director.links().clone();
    let reload = |farm: &Farm| Input::Reload {
        farm: Box::new(farm.clone()),
        network: network.clone(),
        links: director_links.clone(),
        groups: BTreeMap::new(),
    };
    director.handle(at(2_000), reload(&farm));
    let refused = generation_reported(&mut director, at(2_000), &mut fills, Some("no room"));
    let later = generation_reported(&mut director, at(3_000), &mut fills, None);
    assert_eq!((refused, later), (before, before));
    director.handle(at(4_000), reload(&farm));
    generation_reported(&mut director, at(4_000), &mut fills, None);
    assert_ne!(generation_reported(&mut director, at(5_000), &mut fills, None), before);
}
