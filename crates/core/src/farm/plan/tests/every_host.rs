//! Plans of an every-host farm. This host is `a`. The other hosts are on its link or behind a
//! router.

use super::*;
use crate::path::mark::ForwardCount;

fn address(name: &str) -> IpAddr {
    [192, 0, 2, *name.as_bytes().last().unwrap()].into()
}

fn mac(name: &str) -> Mac {
    Mac([2, 0, 0, 0, 0, *name.as_bytes().last().unwrap()])
}

fn web(method: Method) -> farm::Service {
    let mut web = farm::Service {
        placement: Placement::EveryHost,
        policy: "hash",
        discover: None,
        announce: farm::Announce::Director,
        method,
        ..service("web", 80)
    };
    web.addresses.push("192.0.2.101:80".parse().unwrap());
    web
}

fn host(name: &str, on_link: bool) -> MemberState {
    let place = LinkAddress { mac: mac(name), ifindex: ETH };
    let own = address("a");
    change(up(name), |m| {
        m.member.address = Some(address(name));
        m.member.hop = Some(ServerRoute { place, own, tunnel: own, mtu: 1_500, on_link });
        m.member.local = name == "a";
    })
}

fn link(names: &str) -> Vec<MemberState> {
    names.chars().map(|name| host(&name.to_string(), true)).collect()
}

/// Computes the plans of successive states of the farm. All plans use the same `Slots`.
fn plans(service: &farm::Service, states: &[Vec<MemberState>]) -> Vec<Plan> {
    let mut slots = Slots::default();
    let mut plans: Vec<Plan> = Vec::new();
    for members in states {
        let state = ServiceState { service, members: members.clone() };
        plans.push(plan(&[state], INTERFACES, &mut slots, plans.last()).unwrap());
    }
    plans
}

/// Returns a letter for the slot's server: `.` for no server, a capital letter for the second entry
/// of a host.
fn name_of(plan: &Plan, slot: u16) -> char {
    let Some(server) = plan.tables.servers.get(&slot) else { return '.' };
    let letters = "abcdef".chars().map(|name| name.to_string());
    let mut of = letters.filter_map(|name| {
        let plain = (server.identity == identity("web", &name)).then(|| name.clone());
        plain.or_else(|| (server.identity == last_identity("web", &name)).then(|| name.to_uppercase()))
    });
    of.next().and_then(|name| name.chars().next()).unwrap_or('?')
}

fn names(plan: &Plan, table: &[u16]) -> BTreeSet<char> {
    table.iter().map(|slot| name_of(plan, *slot)).collect()
}

fn letters(text: &str) -> BTreeSet<char> {
    text.chars().collect()
}

#[test]
fn on_link_hosts_are_reached_directly_and_others_by_tunnel() {
    let members = vec![host("a", true), host("b", true), host("c", false)];
    let plan = plan_service(&web(Method::L2), members.clone());
    let way = |name: char| {
        plan.tables.servers.iter().find(|(slot, _)| name_of(&plan, **slot) == name).unwrap().1.forwarding
    };
    let tunnel = |encapsulation, to: &str, mark| Forwarding::Tunnel {
        encapsulation,
        from: address("a"),
        to: address(to),
        mtu: 1_500,
        mark,
    };
    assert_eq!(way('b'), Forwarding::Link);
    assert_eq!(way('c'), tunnel(Encapsulation::Ipip, "c", None));
    assert_eq!(way('B'), tunnel(Encapsulation::Gue, "b", Some(ForwardCount::Twice)));
    assert_eq!(way('C'), tunnel(Encapsulation::Gue, "c", Some(ForwardCount::Twice)));
    assert_eq!(plan.tables.servers.len(), 5, "nobody is sent to this host");
    assert_eq!(plan.tables.peers, [mac("b")].into(), "behind a router the MAC is the router's");
    let marked = farm::Service { encapsulation: Encapsulation::Gue, ..web(Method::L2) };
    let plan = plan_service(&marked, members.clone());
    let marked = tunnel(Encapsulation::Gue, "c", Some(ForwardCount::Once));
    assert!(
        plan.tables.servers.values().any(|server| server.forwarding == marked),
        "GUE has room for a mark"
    );
    let plan = plan_service(&web(Method::Tunnel), members);
    let plain = plan.tables.servers.values().filter(|server| server.forwarding == Forwarding::Link);
    assert_eq!(plain.map(|server| server.local).collect::<Vec<_>>(), [true]);
    assert!(plan.tables.peers.is_empty(), "nobody passes anything on by a MAC alone");
}

#[test]
fn only_owned_addresses_are_announced_and_own_slot_exists() {
    let service = web(Method::L2);
    let state = ServiceState { service: &service, members: link("ab") };
    let owned: BTreeSet<IpAddr> = ["192.0.2.101".parse().unwrap()].into();
    let hosts = Hosts { owned: owned.clone(), macs: [Mac([2, 0, 0, 9, 9, 9])].into(), ..Hosts::default() };
    let plan =
        super::super::plan(&[state], INTERFACES, &hosts, &mut Slots::default(), &mut Fills::default(), None)
            .unwrap();
    for (key, vip) in &plan.tables.vips {
        assert_eq!(vip.announce, owned.contains(&key.address), "{key:?}");
        assert!(plan.tables.servers[&vip.own].local);
    }
    assert_eq!(plan.tables.peers.len(), 2, "what a host says of itself counts too");
}

/// Returns the second chances of two kinds of entries. For entries that name another host, these
/// are pairs of that host and the second chance. For entries that name this host, they are the
/// second chances alone.
fn chances(plan: &Plan) -> (BTreeSet<(char, char)>, BTreeSet<char>) {
    let ring = &plan.tables.rings[&0];
    let named = |slot: usize| {
        (name_of(plan, ring.hash[slot]), ring.previous.get(slot).map_or('.', |s| name_of(plan, *s)))
    };
    let (own, others): (Vec<_>, Vec<_>) = (0..HASH_SLOTS).map(named).partition(|(host, _)| *host == 'a');
    (others.into_iter().collect(), own.into_iter().map(|(_, chance)| chance).collect())
}

#[test]
fn second_chance_goes_to_current_or_previous_ring_entry() {
    let mut draining = link("abc");
    draining[2].admin_draining = true;
    let mut silent = link("abc");
    silent[2].health.state = health::HealthState::Down;
    (silent[2].member.hop, silent[2].member.mac) = (None, None);
    let states = [link("abc"), draining.clone(), draining, silent.clone(), link("abc"), link("ab")];
    let plans = plans(&web(Method::L2), &states);
    let others =
        |names: &str| names.chars().map(|name| (name, name.to_ascii_uppercase())).collect::<BTreeSet<_>>();
    let expected = [
        ("bc", ".", "nothing was before"),
        ("b", ".BC", "c drains; a little moves between those that stay"),
        ("b", ".BC", "nothing changed"),
        ("b", ".B", "a host that is gone can't be sent to"),
        ("bc", ".B", "where this host stays, the memory does"),
        ("b", ".B", "one that is in the file no more is gone, too"),
    ];
    for (plan, (of_others, own, why)) in plans.iter().zip(expected) {
        assert_eq!(chances(plan), (others(of_others), letters(own)), "{why}");
    }
    let ring = |at: usize| &plans[at].tables.rings[&0];
    assert!(Arc::ptr_eq(ring(1), ring(2)), "nothing changed");
    for slot in (0..HASH_SLOTS).filter(|slot| name_of(&plans[1], ring(1).hash[*slot]) == 'a') {
        let before = name_of(&plans[0], ring(0).hash[slot]);
        let chance = name_of(&plans[1], ring(1).previous[slot]).to_ascii_lowercase();
        assert_eq!(chance, if before == 'a' { '.' } else { before }, "slot {slot}");
    }
}

#[test]
fn restart_continues_with_running_slots() {
    let service = web(Method::L2);
    let plans = plans(&service, &[link("abc"), link("ab")]);
    let running = plans[1].tables.clone();
    let mut slots = Slots::default();
    slots.adopt(&running);
    let adopted = Plan { tables: Arc::clone(&running), ..Plan::default() };
    let state = ServiceState { service: &service, members: link("ab") };
    let again = plan(&[state], INTERFACES, &mut slots, Some(&adopted)).unwrap();
    assert_eq!(Delta::between(&running, &again.tables), Delta::default());
}

#[test]
fn a_policy_by_load_shares_out_its_own_way_and_the_hash_is_everybody_s() {
    let mut service = web(Method::L2);
    service.policy = "overflow";
    let with_shares = |shares: [u16; 3]| {
        let members = link("abc").into_iter().zip(shares);
        members.map(|(member, share)| change(member, |m| m.share = Some(share))).collect::<Vec<_>>()
    };
    let plans = plans(&service, &[with_shares([1, 0, 0]), with_shares([0, 3, 1]), with_shares([0, 0, 0])]);
    let ring = |at: usize| -> &Ring { &plans[at].tables.rings[&0] };
    assert_eq!(names(&plans[0], &ring(0).order), letters("a"));
    assert_eq!(ring(1).order.len(), 4);
    assert_eq!(names(&plans[1], &ring(1).order), letters("bc"));
    assert_eq!(names(&plans[2], &ring(2).order), letters("abc"), "nobody at all would help nobody");
    assert_eq!(ring(0).hash, ring(2).hash);
    assert_eq!(ring(0).previous, ring(2).previous, "the hash never changed");
}
