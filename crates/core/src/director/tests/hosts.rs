//! Hosts of one every-host farm. The test plays the network between them.

use super::every_host::{HOSTS, INTERVAL_MS, every_host, host_at};
use super::*;
use crate::net::wire::arp_request;
use crate::pool::ServerState;

/// Time between two steps of the simulation, in milliseconds.
const STEP_MS: u64 = 50;

/// A host of the farm, with its engine, its server and its lease.
struct Node {
    director: Director,
    fills: Fills,
    in_force: Arc<Tables>,
    sessions: u64,
    /// True if the host's server answers probes.
    works: bool,
    /// True if other hosts can't be reached.
    is_cut_off: bool,
    lease_until_ms: u64,
}

/// All hosts of the farm, on one link.
struct Link {
    nodes: Vec<Node>,
    now_ms: u64,
    /// Orders that the simulation does not carry out, with the index of their host.
    orders: Vec<(usize, Output)>,
}

impl Node {
    fn new(director: Director) -> Node {
        Node {
            director,
            fills: Fills::default(),
            in_force: Arc::default(),
            sessions: 0,
            works: true,
            is_cut_off: false,
            lease_until_ms: 0,
        }
    }

    fn moment(&self, ms: u64) -> Moment {
        Moment { ms, lease_holds: ms < self.lease_until_ms, ..Moment::default() }
    }

    /// Returns the session count of this host's server.
    fn counted(&self) -> BTreeMap<u16, u64> {
        let plan = self.director.plan();
        let own = plan.tables.servers.iter().find(|(_, server)| server.local);
        own.map(|(slot, _)| (*slot, self.sessions)).into_iter().collect()
    }
}

impl Link {
    fn new(farms: [Farm; 3]) -> Link {
        let at = Moment { ms: 1_000, ..Moment::default() };
        let nodes = (0..).zip(farms).map(|(place, farm)| Node::new(host_at(place, farm, None, at)));
        Link { nodes: nodes.collect(), now_ms: 1_000, orders: Vec::new() }
    }

    /// Returns three hosts that have received each other's reports.
    fn together() -> Link {
        Link::running(every_host())
    }

    fn running(farm: Farm) -> Link {
        let mut link = Link::new([farm.clone(), farm.clone(), farm]);
        link.pass(5_000);
        link.orders.clear();
        link
    }

    fn pass(&mut self, ms: u64) {
        let until_ms = self.now_ms + ms;
        while self.now_ms < until_ms {
            self.now_ms += STEP_MS;
            for place in 0..self.nodes.len() {
                let active = self.nodes[place].counted();
                self.learn(place, Input::Time { active });
            }
        }
    }

    fn learn(&mut self, place: usize, input: Input) {
        let mut inputs = VecDeque::from([(place, input)]);
        while let Some((place, input)) = inputs.pop_front() {
            let node = &mut self.nodes[place];
            let now = node.moment(self.now_ms);
            node.director.handle(now, input);
            while let Some(order) = node.director.poll_output() {
                match order {
                    Output::Apply(change) => {
                        let planned = change.plan(&mut node.fills);
                        if let Some(tables) = planned.tables().unwrap() {
                            node.in_force = Arc::clone(tables);
                        }
                        let answer = planned.answer(Arc::clone(&node.in_force), None);
                        node.director.handle(now, Input::Applied(Box::new(answer)));
                    }
                    Output::Probe(probe) => {
                        let result = node.works.then_some(1).ok_or(Failure::Refused);
                        inputs.push_back((place, Input::Probed { server: probe.server, result }));
                    }
                    Output::Send { to, datagram } if !node.is_cut_off => {
                        let from = SocketAddr::new(IpAddr::from([192, 0, 2, HOSTS[place].1]), 7);
                        let to =
                            HOSTS.iter().position(|(_, number)| to == IpAddr::from([192, 0, 2, *number]));
                        inputs.push_back((to.unwrap(), Input::Datagram { from, bytes: datagram }));
                    }
                    Output::Lease { ms } => {
                        node.lease_until_ms = self.now_ms + ms;
                        self.orders.push((place, Output::Lease { ms }));
                    }
                    order => self.orders.push((place, order)),
                }
            }
            inputs.retain(|(to, input)| {
                !self.nodes[*to].is_cut_off || !matches!(input, Input::Datagram { .. })
            });
        }
    }

    /// Returns the state of a server with its reason, as seen by this host.
    fn state(&self, place: usize, server: &str) -> (ServerState, Option<String>) {
        let seen = self.nodes[place].director.snapshot().server(&name(server)).unwrap();
        (seen.state, seen.reason.clone())
    }

    /// Returns the servers that get new sessions from this host, by name.
    fn ring(&self, place: usize) -> Vec<&str> {
        let plan = self.nodes[place].director.plan();
        let members = plan.services.values().flat_map(|service| &service.ring_members);
        members.filter_map(|one| plan.servers.get(&one.slot).map(|name| name.server.as_str())).collect()
    }

    /// Returns the names of the servers in this host's ring.
    fn turns(&self, place: usize) -> BTreeSet<&str> {
        let node = &self.nodes[place];
        let turns = node.in_force.rings.values().flat_map(|ring| ring.order.iter());
        turns.map(|slot| node.director.plan().servers[slot].server.as_str()).collect()
    }

    /// Returns the indexes of the hosts that answer ARP for the service's address.
    fn owners(&self) -> Vec<usize> {
        let owns = |place: &usize| self.nodes[*place].director.answered_for().count() > 0;
        (0..self.nodes.len()).filter(owns).collect()
    }

    /// Number of announcements of the service's address since `orders` was cleared.
    fn announcements(&self) -> usize {
        let vip = ip("192.0.2.99");
        let announced =
            |order: &Output| matches!(order, Output::Announce(addresses) if addresses.contains(&vip));
        self.orders.iter().filter(|(_, order)| announced(order)).count()
    }

    fn events(&self, place: usize) -> Vec<String> {
        let events = self.orders.iter().filter_map(|(by, order)| match order {
            Output::Event(event) if *by == place => Some(event.to_string()),
            _ => None,
        });
        events.collect()
    }

    /// Returns the load of host `server`, as known to the host with index `place`.
    fn load(&self, place: usize, server: &str) -> Option<u32> {
        let known = self.nodes[place].director.known_hosts();
        known.iter().find(|host| host.name == server).map(|host| host.load)
    }
}

fn down(reason: &str) -> (ServerState, Option<String>) {
    (ServerState::Down, Some(reason.into()))
}

#[test]
fn hosts_that_have_found_each_other_all_take_sessions() {
    let link = Link::together();
    for place in 0..3 {
        assert_eq!(link.ring(place), ["a", "b", "c"]);
        for (server, _) in HOSTS {
            assert_eq!(link.state(place, server), (ServerState::Up, None));
        }
    }
    assert_eq!(link.owners().len(), 1, "one of them answers for the address");
}

#[test]
fn a_host_that_is_not_up_is_shown_with_the_reason() {
    let mut link = Link::new([every_host(), every_host(), every_host()]);
    link.nodes[2].is_cut_off = true;
    link.pass(5_000);
    assert_eq!(link.state(0, "c"), down("no report of it has arrived yet"));
    link.nodes[2].is_cut_off = false;
    link.pass(8_000);
    assert_eq!(link.state(0, "c"), (ServerState::Up, None));
    link.nodes[2].works = false;
    link.pass(5_000);
    assert_eq!(link.state(0, "c"), down("it reports that its own server fails"));
    assert_eq!(link.state(2, "c"), down("connection refused"), "it knows why itself");
    link.nodes[2].works = true;
    link.pass(5_000);
    link.nodes[2].is_cut_off = true;
    link.pass(4_000);
    assert_eq!(link.state(0, "c"), down("silent: no more reports of it arrive"));
    link.nodes[2].is_cut_off = false;
    link.pass(8_000);
    link.learn(2, Input::Leave);
    assert_eq!(link.state(0, "c"), down("it reports that it takes no part"));
    let mut other = every_host();
    other.services[0].servers[2].backup = true;
    let mut link = Link::new([every_host(), every_host(), other]);
    link.pass(5_000);
    assert_eq!(link.state(0, "c"), down("it runs another configuration, so its reports are ignored"));
}

#[test]
fn leaving_host_hands_its_addresses_over_before_a_silence() {
    let mut link = Link::together();
    let owner = link.owners()[0];
    link.learn(owner, Input::Leave);
    assert_eq!(link.owners(), [] as [usize; 0], "it falls silent at once");
    let left =
        link.orders.iter().any(|(place, order)| *place == owner && matches!(order, Output::Lease { ms: 0 }));
    assert!(left, "and so does its engine");
    link.pass(2_000);
    assert!(matches!(link.owners()[..], [heir] if heir != owner), "{:?}", link.owners());
    let others: Vec<usize> = (0..3).filter(|place| *place != owner).collect();
    for place in others {
        assert_eq!(link.ring(place).len(), 2, "and it gets no new sessions");
    }
}

#[test]
fn claimed_address_is_announced_three_times() {
    let mut link = Link::together();
    let owner = link.owners()[0];
    link.nodes[owner].is_cut_off = true;
    link.orders.clear();
    link.pass(4_000);
    let heir = *link.owners().iter().find(|place| **place != owner).unwrap();
    link.orders.retain(|(place, _)| *place == heir);
    link.pass(10_000);
    link.orders.retain(|(place, _)| *place == heir);
    assert_eq!(link.announcements(), 3);
}

#[test]
fn a_lost_host_leaves_its_sessions_and_its_address_to_the_others() {
    let mut link = Link::together();
    let owner = link.owners()[0];
    link.nodes[owner].is_cut_off = true;
    link.pass(6_000);
    let others: Vec<usize> = (0..3).filter(|place| *place != owner).collect();
    for place in &others {
        assert_eq!(link.ring(*place).len(), 2);
        let heard = alloc::format!("host {} sends no more reports; it counts as down", HOSTS[owner].0);
        assert!(link.events(*place).contains(&heard), "{:?}", link.events(*place));
    }
    assert_eq!(others.iter().filter(|place| link.owners().contains(place)).count(), 1);
}

#[test]
fn a_drained_host_keeps_its_sessions_and_gets_no_new_ones_from_any_other() {
    let mut link = Link::together();
    link.learn(2, Input::SetOperatorState { server: name("c"), state: OperatorState::Drain });
    link.pass(1_000);
    for place in 0..3 {
        assert_eq!(link.ring(place), ["a", "b"]);
        assert_eq!(link.state(place, "c"), (ServerState::Draining, Some("drained by the operator".into())));
        let seen = link.nodes[place].director.snapshot();
        let draining: Vec<_> = seen.hosts.iter().map(|host| host.draining.join(" ")).collect();
        assert_eq!(draining, ["", "", "web"]);
        let up: Vec<_> = seen.hosts.iter().map(|host| host.up.join(" ")).collect();
        assert_eq!(up, ["web", "web", "web"]);
        let plan = link.nodes[place].director.plan();
        assert!(plan.servers.values().any(|server| *server == name("c")), "its sessions stay its own");
    }
    link.learn(2, Input::SetOperatorState { server: name("c"), state: OperatorState::Ready });
    link.pass(1_000);
    assert_eq!(link.ring(0), ["a", "b", "c"]);
}

#[test]
fn the_load_that_a_host_reports_follows_its_sessions_by_a_quarter_with_each_report() {
    let mut link = Link::together();
    assert_eq!(link.load(0, "c"), Some(0));
    let loads = |link: &mut Link, sessions| {
        link.nodes[2].sessions = sessions;
        let mut loads = vec![link.load(0, "c").unwrap()];
        for _ in 0..120 {
            link.pass(STEP_MS);
            loads.extend(link.load(0, "c"));
        }
        loads.dedup();
        loads
    };
    let rises = loads(&mut link, 100);
    assert!(rises.starts_with(&[0, 25, 44, 58, 69]), "{rises:?}");
    link.pass(20 * INTERVAL_MS);
    assert_eq!(link.load(0, "c"), Some(100));
    let falls = loads(&mut link, 0);
    assert!(falls.starts_with(&[100, 75, 57, 43]), "{falls:?}");
}

#[test]
fn a_host_that_is_loaded_above_the_others_passes_new_sessions_on() {
    let mut farm = every_host();
    farm.services[0].policy = "overflow";
    let mut link = Link::running(farm);
    let owner = link.owners()[0];
    assert_eq!(link.turns(owner), BTreeSet::from([HOSTS[owner].0]), "it keeps what comes to it");
    link.nodes[owner].sessions = 300;
    link.pass(20 * INTERVAL_MS);
    let others: BTreeSet<&str> =
        HOSTS.iter().map(|(name, _)| *name).filter(|name| *name != HOSTS[owner].0).collect();
    assert_eq!(link.turns(owner), others);
    link.nodes.iter_mut().for_each(|node| node.sessions = 300);
    link.pass(20 * INTERVAL_MS);
    assert_eq!(
        link.turns(owner),
        BTreeSet::from([HOSTS[owner].0]),
        "and keeps it again once others have as much to do"
    );
}

#[test]
fn a_director_that_is_restarted_answers_on_for_its_address_as_long_as_the_lease_holds() {
    for lease_holds in [true, false] {
        let link = Link::together();
        let owner = link.owners()[0];
        let running = Some((*link.nodes[owner].in_force).clone());
        let now = Moment { ms: link.now_ms, lease_holds, ..Moment::default() };
        let mut director = host_at(owner, every_host(), running, now);
        assert_eq!(director.answered_for().count(), usize::from(lease_holds));
        let snapshot = director.snapshot();
        let up = snapshot.hosts.iter().filter(|host| host.host.alive).count();
        assert_eq!(up, 3, "and takes the others for alive until they would have been heard");
        let mut of_others =
            snapshot.hosts.iter().filter(|host| !host.host.own).flat_map(|host| host.host.servers.values());
        assert!(of_others.all(|server| server.is_up && server.weight.is_none()), "with the file's weights");
        director.handle(now, Input::Time { active: BTreeMap::new() });
        assert_eq!(director.answered_for().count(), usize::from(lease_holds));
    }
}

#[test]
fn hosts_take_up_a_new_address_of_their_service_once_all_have_its_file() {
    let mut link = Link::together();
    let mut farm = every_host();
    farm.services[0].addresses.push(SocketAddr::new(ip("192.0.2.98"), 80));
    for place in 0..3 {
        let director = &link.nodes[place].director;
        let (network, links) = (Box::new(director.network().clone()), director.links().clone());
        let farm = Box::new(farm.clone());
        link.learn(place, Input::Reload { farm, network, links, groups: BTreeMap::new() });
    }
    link.pass(5_000);
    let owned = link.nodes.iter().flat_map(|node| node.director.answered_for());
    let mut owned: Vec<IpAddr> = owned.collect();
    owned.sort();
    assert_eq!(owned, [ip("192.0.2.98"), ip("192.0.2.99")]);
    for place in 0..3 {
        assert_eq!(link.ring(place), ["a", "b", "c"]);
    }
    // An address that is no longer in the file is released at once.
    for place in 0..3 {
        let director = &link.nodes[place].director;
        let (network, links) = (Box::new(director.network().clone()), director.links().clone());
        let farm = Box::new(every_host());
        link.learn(place, Input::Reload { farm, network, links, groups: BTreeMap::new() });
    }
    let gone = "this host does not own 192.0.2.98 any more";
    assert_eq!((0..3).filter(|place| link.events(*place).iter().any(|event| event == gone)).count(), 1);
}

#[test]
fn a_host_that_is_drained_for_one_service_takes_sessions_of_the_others() {
    let mut farm = every_host();
    let addresses = vec![SocketAddr::new(ip("192.0.2.98"), 443)];
    farm.services.push(farm::Service { name: "api".into(), addresses, ..farm.services[0].clone() });
    let mut link = Link::running(farm);
    assert_eq!(link.ring(0), ["a", "b", "c", "a", "b", "c"]);
    link.learn(
        2,
        Input::SetOperatorState {
            server: ServerName { service: "api".into(), server: "c".into() },
            state: OperatorState::Drain,
        },
    );
    link.pass(1_000);
    for place in 0..3 {
        assert_eq!(link.ring(place), ["a", "b", "c", "a", "b"]);
        let seen = link.nodes[place].director.snapshot();
        let draining: Vec<_> = seen.hosts.iter().map(|host| host.draining.join(" ")).collect();
        assert_eq!(draining, ["", "", "api"]);
    }
}

/// Returns an ARP reply with this MAC for the service's address.
fn arp_reply(mac: Mac) -> Vec<u8> {
    let vip = "192.0.2.99".parse().unwrap();
    let mut frame = arp_request(mac, vip, vip).to_vec();
    frame[21] = 2;
    frame
}

#[test]
fn another_machine_that_answers_for_an_owned_address_is_logged_once() {
    let mut link = Link::together();
    let owner = link.owners()[0];
    let other = (owner + 1) % 3;
    let twice = "another host answers for 192.0.2.99, which this host owns";
    let logged =
        |link: &Link, place| link.events(place).iter().filter(|event| event.starts_with(twice)).count();
    let own = *link.nodes[owner].director.links().values().next().unwrap();
    link.learn(owner, Input::Frame { ifindex: 2, bytes: arp_reply(own) });
    assert_eq!(logged(&link, owner), 0, "that is this host itself");
    for _ in 0..2 {
        for place in [owner, other] {
            link.learn(place, Input::Frame { ifindex: 2, bytes: arp_reply(Mac([2, 0, 0, 0, 9, 9])) });
        }
    }
    assert_eq!((logged(&link, owner), logged(&link, other)), (1, 0));
}

#[test]
fn address_with_another_answer_is_not_claimed() {
    let mut link = Link::new([every_host(), every_host(), every_host()]);
    let stranger = Mac([2, 0, 0, 0, 9, 9]);
    let vip = ip("192.0.2.99");
    for _ in 0..100 {
        link.pass(STEP_MS);
        let is_asked = link.orders.iter().any(|(_, order)| matches!(order, Output::Solicit { .. }));
        if is_asked {
            (0..3).for_each(|place| {
                link.learn(place, Input::Frame { ifindex: 2, bytes: arp_reply(stranger) });
            });
        }
        link.orders.retain(|(_, order)| !matches!(order, Output::Solicit { .. }));
    }
    assert_eq!(link.owners(), [] as [usize; 0]);
    let mut shown = 0;
    for (place, node) in link.nodes.iter().enumerate() {
        for (number, host) in node.director.snapshot().hosts.iter().enumerate() {
            assert!(place == number || host.put_off.is_empty(), "each knows it of itself");
            shown += usize::from(host.put_off.contains(&vip));
        }
    }
    assert!(shown > 0, "one of them would own it");
    link.pass(10_000);
    assert_eq!(link.owners().len(), 1, "once nobody answers any more");
}

fn set_carrier(link: &mut Link, place: usize, carrier: bool) {
    let mut network = link.nodes[place].director.network().clone();
    network.interfaces.get_mut(&2).unwrap().carrier = carrier;
    link.nodes[place].is_cut_off = !carrier;
    link.learn(place, Input::Network(Box::new(network)));
}

#[test]
fn host_without_carrier_answers_for_no_address_until_it_has_listened() {
    let mut link = Link::together();
    let owner = link.owners()[0];
    set_carrier(&mut link, owner, false);
    link.pass(every_host().lease_ms() + STEP_MS);
    assert!(!link.owners().contains(&owner), "its lease has ended");
    link.pass(10_000);
    link.orders.clear();
    set_carrier(&mut link, owner, true);
    let leased = |link: &Link| {
        let is_lease =
            |(place, order): &(usize, Output)| *place == owner && matches!(order, Output::Lease { .. });
        link.orders.iter().any(is_lease)
    };
    link.pass(2 * INTERVAL_MS - STEP_MS);
    assert!(!leased(&link), "others may own it, and are heard first");
    link.pass(2 * INTERVAL_MS);
    assert!(leased(&link));
    link.pass(10_000);
    assert_eq!(link.owners().len(), 1);
    for place in 0..3 {
        assert_eq!(link.ring(place), ["a", "b", "c"]);
    }
}

#[test]
fn starting_host_sends_sessions_to_other_hosts() {
    let mut link = Link::together();
    link.nodes[2].is_cut_off = true;
    link.pass(5_000);
    let now = link.nodes[2].moment(link.now_ms);
    link.nodes[2] = Node::new(host_at(2, every_host(), None, now));
    link.pass(INTERVAL_MS);
    assert_eq!(link.ring(2), ["a", "b"], "as everywhere");
    assert_eq!(link.ring(0), ["a", "b"]);
    link.pass(5_000);
    for place in 0..3 {
        assert_eq!(link.ring(place), ["a", "b", "c"]);
    }
}

#[test]
fn the_load_of_another_host_is_shown_with_its_age() {
    let mut link = Link::together();
    link.nodes[2].sessions = 40;
    link.pass(40 * INTERVAL_MS);
    let shown = |link: &Link, place: usize, server| {
        let signals = link.nodes[place].director.snapshot().server(&name(server)).unwrap().signals;
        (signals.reported, signals.active, signals.age_ms)
    };
    let (reported, active, age_ms) = shown(&link, 0, "c");
    assert_eq!((reported, active), (Some(40), None), "only its host counts its sessions");
    assert!(age_ms.is_some_and(|age_ms| age_ms <= INTERVAL_MS), "{age_ms:?}");
    assert_eq!(shown(&link, 2, "c"), (Some(40), Some(40), Some(0)), "what it reports of itself is never old");
    link.nodes[2].is_cut_off = true;
    link.pass(2_000);
    assert!(shown(&link, 0, "c").2.is_some_and(|age_ms| age_ms > INTERVAL_MS));
}

#[test]
fn datagrams_and_claims_are_counted() {
    let link = Link::together();
    let owner = link.owners()[0];
    for (place, node) in link.nodes.iter().enumerate() {
        let counted = &node.director.snapshot().datagrams;
        assert_eq!(counted["claims"], u64::from(place == owner), "{counted:?}");
        assert!(counted.len() > 2);
    }
}
