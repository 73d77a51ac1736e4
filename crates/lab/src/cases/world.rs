//! Farm of a case.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use evener_core::farm::Timeouts;
use evener_core::net::wire::{Mac, TCP_ACK, TCP_SYN};
use evener_core::net::{Encapsulation, Protocol};
use evener_core::path::content::{
    HashKey, HostPattern, PathPattern, PatternError, RouteIndex, RoutePattern as ContentRoute,
};
use evener_core::path::cookie::{Cookie, FourTuple, Keys, SynOptions as Agreed};
use evener_core::path::mark::ForwardCount;
use evener_core::path::mark::{PASSED, PASSED_TWICE};
use evener_core::path::parse::{Parsed, TcpHeader, parse};
use evener_core::path::sessions::ticks;
use evener_core::path::tables::{
    Affinity, Forwarding, HASH_SLOTS, Handoff, IdleTicks, NO_SERVER, Pick, RehandoffMode, ReplyOrigin, Ring,
    ServerEntry, Tables, Vip, VipKey,
};
use evener_core::pool::policy::{self, PacketPolicy, Weighted, maglev, second_candidates};

use super::routes::Route;
use super::words::{Fields, Words, Wrong};
use super::{FIRST_EPOCH, SEED, keys};

/// Interfaces, hosts, servers and services of the lines read so far.
#[derive(Clone)]
pub(super) struct World {
    pub(super) interfaces: BTreeMap<u32, Mac>,
    pub(super) sessions_max: usize,
    /// Hosts besides interfaces and servers, by name.
    hosts: BTreeMap<String, Mac>,
    /// MACs of the every-host farm's other hosts.
    peers: BTreeSet<Mac>,
    servers: Vec<Server>,
    services: Vec<Service>,
    timeouts: Timeouts,
    pub(super) routes: Vec<Route>,
    /// Keys of SYN cookies.
    keys: Keys,
    /// SYN cookie of the last SYN's answer.
    pub(super) cookie: Option<Cookie>,
}

/// Number of server slots, more than a file has servers.
const SLOTS: u16 = 64;

#[derive(Clone)]
struct Server {
    name: String,
    mac: Mac,
    interface: u32,
    weight: u16,
    max: u32,
    up: bool,
    local: bool,
    gone: bool,
    way: Forwarding,
}

#[derive(Clone)]
struct Service {
    name: String,
    addresses: Vec<SocketAddr>,
    protocol: Protocol,
    policy: &'static PacketPolicy,
    announce: bool,
    /// Indexes in [`World::servers`].
    servers: Vec<usize>,
    /// Index of this host in an every-host service.
    own: Option<usize>,
    stateless: bool,
    affinity_ms: Option<u64>,
    /// Servers of the previous hash table.
    previous: Vec<usize>,
    handoff: Option<Terms>,
    routes: Vec<ServiceRoute>,
}

/// Settings of a handoff service.
#[derive(Clone, Copy)]
struct Terms {
    mss: u16,
    /// Index of the server slot for punted connections.
    punt: Option<usize>,
    later: RehandoffMode,
}

/// Route of a service and its servers.
#[derive(Clone)]
struct ServiceRoute {
    host: Option<HostPattern>,
    path: Option<PathPattern>,
    methods: Vec<String>,
    servers: Vec<usize>,
}

impl Default for World {
    fn default() -> Self {
        World {
            interfaces: BTreeMap::new(),
            sessions_max: 1024,
            hosts: BTreeMap::from([
                ("broadcast".to_owned(), Mac::BROADCAST),
                ("passed".to_owned(), PASSED),
                ("passed-twice".to_owned(), PASSED_TWICE),
            ]),
            peers: BTreeSet::new(),
            servers: Vec::new(),
            services: Vec::new(),
            timeouts: Timeouts::default(),
            routes: Vec::new(),
            keys: keys(FIRST_EPOCH),
            cookie: None,
        }
    }
}

impl World {
    /// Reads a line that describes the farm; `false` for other lines.
    pub(super) fn describe(&mut self, line: &str) -> Result<bool, Wrong> {
        let mut words = Words::of(line);
        match words.next("a statement")? {
            "interface" => {
                let number = words.parse("an interface number")?;
                self.interfaces.insert(number, words.parse("a MAC address")?);
            }
            "host" => {
                let name = words.next("a name")?.to_owned();
                self.hosts.insert(name, words.parse("a MAC address")?);
            }
            "peer" => {
                let mac = self.mac(words.next("a station")?)?;
                self.peers.insert(mac);
            }
            "server" => self.server(&mut words)?,
            "service" => return self.service(line).map(|()| true),
            "previous" => return self.previous(line).map(|()| true),
            "route" if words.peek().is_some_and(|word| !word.contains('/')) => {
                return self.service_route(line).map(|()| true);
            }
            "route" => self.routes.push(Route::of(&mut words, &self.interfaces)?),
            "timeouts" => self.set_timeouts(&mut words)?,
            "sessions-max" => self.sessions_max = words.parse("a number of sessions")?,
            _ => return Ok(false),
        }
        words.end()?;
        Ok(true)
    }

    fn server(&mut self, words: &mut Words<'_>) -> Result<(), Wrong> {
        let name = words.next("a server's name")?.to_owned();
        let mac = words.parse("a MAC address")?;
        words.expect("via")?;
        let interface = words.parse("an interface number")?;
        // Interface 0 means that the server is unreachable.
        if interface != 0 && !self.interfaces.contains_key(&interface) {
            return Err(format!("there is no interface {interface}"));
        }
        let way = Forwarding::Link;
        let mut server =
            Server { name, mac, interface, weight: 1, max: 0, up: true, local: false, gone: false, way };
        if words.take("weight") {
            server.weight = words.parse("a weight")?;
        }
        if words.take("max") {
            server.max = words.parse("a number of sessions")?;
        }
        server.up = !words.take("down");
        server.local = words.take("local");
        if words.take("nat") {
            server.way = nat(words)?;
        } else if words.take("tunnel") {
            server.way = tunnel(words)?;
        }
        self.servers.push(server);
        Ok(())
    }

    fn service(&mut self, line: &str) -> Result<(), Wrong> {
        // An address also contains colons, but without a space behind.
        let (head, members) =
            line.split_once(": ").or_else(|| line.strip_suffix(':').map(|head| (head, ""))).ok_or(
                "a service is `service NAME tcp|udp ADDRESS:PORT... POLICY [announce] [affinity MS] \
                 [own SERVER [stateless]] [handoff [mss N] [punt SERVER] [closes | moves]]: SERVER...`",
            )?;
        let mut words = Words::of(head);
        words.expect("service")?;
        let name = words.next("a service's name")?.to_owned();
        let protocol = match words.next("tcp or udp")? {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            other => return Err(format!("`{other}` is neither tcp nor udp")),
        };
        let mut addresses = Vec::new();
        while let Some(word) = words.take_if(|word| word.contains(':')) {
            addresses.push(word.parse().map_err(|_| format!("`{word}` is no ADDRESS:PORT"))?);
        }
        let policy = words.next("a policy")?;
        let policy = policy::for_packets(policy).ok_or_else(|| {
            format!(
                "`{policy}` is no policy; there are {}",
                policy::names_for_packets().collect::<Vec<_>>().join(", ")
            )
        })?;
        let announce = words.take("announce");
        let affinity_ms =
            words.take("affinity").then(|| words.parse("a number of milliseconds")).transpose()?;
        let own = words.take("own").then(|| self.place(words.next("a server's name")?)).transpose()?;
        let stateless = own.is_some() && words.take("stateless");
        let handoff = match protocol {
            Protocol::Tcp if words.take("handoff") => Some(self.terms(&mut words)?),
            _ => None,
        };
        words.end()?;
        let servers = self.places(members)?;
        let (previous, routes) = (Vec::new(), Vec::new());
        self.services.push(Service {
            name,
            addresses,
            protocol,
            policy,
            announce,
            servers,
            own,
            stateless,
            affinity_ms,
            previous,
            handoff,
            routes,
        });
        Ok(())
    }

    /// Reads `[mss N] [punt SERVER] [closes | moves]`.
    fn terms(&self, words: &mut Words<'_>) -> Result<Terms, Wrong> {
        let mss = if words.take("mss") { words.parse("a number of bytes")? } else { 1_460 };
        let punt = words.take("punt").then(|| self.place(words.next("a server's name")?)).transpose()?;
        let later = match () {
            () if words.take("closes") => RehandoffMode::Close,
            () if words.take("moves") => RehandoffMode::Rehandoff,
            () => RehandoffMode::Stay,
        };
        Ok(Terms { mss, punt, later })
    }

    /// Reads `route SERVICE [host HOST] [path PATH] [method METHOD]...: SERVER...`.
    fn service_route(&mut self, line: &str) -> Result<(), Wrong> {
        let (head, members) = line
            .split_once(": ")
            .or_else(|| line.strip_suffix(':').map(|head| (head, "")))
            .ok_or("it is `route SERVICE [host HOST] [path PATH] [method METHOD]...: SERVER...`")?;
        let mut words = Words::of(head);
        words.expect("route")?;
        let name = words.next("a service's name")?;
        let pattern = |error: PatternError| error.to_string();
        let mut route =
            ServiceRoute { host: None, path: None, methods: Vec::new(), servers: self.places(members)? };
        if words.take("host") {
            route.host = Some(HostPattern::parse(words.next("a host")?).map_err(pattern)?);
        }
        if words.take("path") {
            route.path = Some(PathPattern::parse(words.next("a path")?).map_err(pattern)?);
        }
        while words.take("method") {
            route.methods.push(words.next("a method")?.to_owned());
        }
        words.end()?;
        let mut services = self.services.iter_mut().filter(|service| service.handoff.is_some());
        let service = services.find(|service| service.name == name);
        service.ok_or_else(|| format!("there is no service {name} with handoff"))?.routes.push(route);
        Ok(())
    }

    /// Reads `previous SERVICE: SERVER...`.
    fn previous(&mut self, line: &str) -> Result<(), Wrong> {
        let (head, members) = line.split_once(':').ok_or("it is `previous SERVICE: SERVER...`")?;
        let mut words = Words::of(head);
        words.expect("previous")?;
        let name = words.next("a service's name")?;
        words.end()?;
        let previous = self.places(members)?;
        let service = self.services.iter_mut().find(|service| service.name == name);
        service.ok_or_else(|| format!("there is no service {name}"))?.previous = previous;
        Ok(())
    }

    fn set_timeouts(&mut self, words: &mut Words<'_>) -> Result<(), Wrong> {
        let fields = Fields::of(words, &["syn", "tcp", "half-closed", "closing", "udp"])?;
        let Timeouts { syn_ms, tcp_ms, half_closed_ms, closing_ms, udp_ms } = self.timeouts;
        self.timeouts = Timeouts {
            syn_ms: fields.number("syn", syn_ms)?,
            tcp_ms: fields.number("tcp", tcp_ms)?,
            half_closed_ms: fields.number("half-closed", half_closed_ms)?,
            closing_ms: fields.number("closing", closing_ms)?,
            udp_ms: fields.number("udp", udp_ms)?,
        };
        Ok(())
    }

    /// Sets the keys of SYN cookies.
    pub(super) fn set_keys(&mut self, keys: Keys) {
        self.keys = keys;
    }

    /// If a frame received on an interface is a SYN, records the cookie of its answer.
    pub(super) fn note_syn(&mut self, ingress: u32, frame: &[u8]) {
        let Parsed::Segment(segment) = parse(frame, self.interfaces.get(&ingress).copied()) else { return };
        let Some(header) = TcpHeader::read(frame, &segment.at) else { return };
        if header.flags & (TCP_SYN | TCP_ACK) == TCP_SYN {
            let ends = FourTuple {
                client: SocketAddr::new(segment.at.src, segment.src_port),
                service: SocketAddr::new(segment.at.dst, segment.dst_port),
            };
            let scale = header.options.window_scale.filter(|_| header.options.sack);
            let agreed = Agreed::new(segment.at.dst.is_ipv6(), header.options.mss, scale);
            self.cookie = self.keys.make(&ends, header.sequence, agreed);
        }
    }

    /// Reads a change within a case.
    pub(super) fn change(&mut self, words: &mut Words<'_>) -> Result<(), Wrong> {
        let name = words.next("a server's name, or interface")?;
        if name == "interface" {
            return self.take_away(words);
        }
        let place = self.place(name)?;
        let server = &mut self.servers[place];
        match words.next("down, up, gone, mac or weight")? {
            "down" => server.up = false,
            "up" => server.up = true,
            "gone" => server.gone = true,
            "mac" => server.mac = words.parse("a MAC address")?,
            "weight" => server.weight = words.parse("a weight")?,
            other => {
                return Err(format!("`{other}` happens to no server; down, up, gone, mac and weight do"));
            }
        }
        words.end()
    }

    /// Removes an interface, and the servers behind it.
    fn take_away(&mut self, words: &mut Words<'_>) -> Result<(), Wrong> {
        let number = words.parse("an interface's number")?;
        words.expect("gone")?;
        if self.interfaces.remove(&number).is_none() {
            return Err(format!("there is no interface {number}"));
        }
        self.servers
            .iter_mut()
            .filter(|server| server.interface == number)
            .for_each(|server| server.gone = true);
        words.end()
    }

    fn places(&self, names: &str) -> Result<Vec<usize>, Wrong> {
        names.split_whitespace().map(|name| self.place(name)).collect()
    }

    fn place(&self, name: &str) -> Result<usize, Wrong> {
        self.servers
            .iter()
            .position(|server| server.name == name)
            .ok_or_else(|| format!("there is no server {name}"))
    }

    /// Returns the MAC address of a name or literal. Interface 1 is called `if1`.
    pub(super) fn mac(&self, word: &str) -> Result<Mac, Wrong> {
        let interface =
            || word.strip_prefix("if")?.parse().ok().and_then(|number: u32| self.interfaces.get(&number));
        let server = || self.servers.iter().find(|server| server.name == word).map(|server| &server.mac);
        match self.hosts.get(word).or_else(server).or_else(interface) {
            Some(mac) => Ok(*mac),
            None => word.parse().map_err(|_| format!("`{word}` is no MAC address and nobody's name")),
        }
    }

    /// Maximum active sessions of each server slot; 0 for slots without a server.
    pub(super) fn limits(&self) -> Vec<(u16, u32)> {
        let of = self.servers.iter().map(|server| server.max).chain(std::iter::repeat(0));
        (1..SLOTS).zip(of).collect()
    }

    /// Returns the director's tables of this farm.
    pub(super) fn tables(&self) -> Tables {
        let (interfaces, peers) = (self.interfaces.clone(), self.peers.clone());
        let mut tables = Tables { interfaces, peers, ..Tables::default() };
        for (slot, server) in (1u16..).zip(&self.servers).filter(|(_, server)| !server.gone) {
            let &Server { mac, interface, weight, up, local, way, .. } = server;
            let entry = ServerEntry {
                identity: slot.into(),
                mac,
                ifindex: interface,
                weight,
                up,
                local,
                forwarding: way,
            };
            tables.servers.insert(slot, entry);
        }
        let Timeouts { syn_ms, tcp_ms, half_closed_ms, closing_ms, udp_ms } = self.timeouts;
        let idle = IdleTicks {
            syn: ticks(syn_ms),
            tcp: ticks(tcp_ms),
            half_closed: ticks(half_closed_ms),
            closing: ticks(closing_ms),
            udp: ticks(udp_ms),
            udp_new: ticks(udp_ms.min(syn_ms)),
        };
        let mut ids = 1u16..;
        for (number, service) in (0u16..).zip(&self.services) {
            let members = self.members(&service.servers);
            let previous = maglev(&self.members(&service.previous), HASH_SLOTS).into();
            let ring = Ring { previous, ..ring_of(service.policy, &members) };
            tables.rings.insert(number, Arc::new(ring));
            if service.handoff.is_some() {
                let routes = self.content_routes(service, number, &mut tables);
                tables.routes.insert(number, Arc::new(routes));
                self.note_pools(&mut tables, service, number);
            }
            for (address, id) in service.addresses.iter().zip(&mut ids) {
                let key = VipKey { address: address.ip(), port: address.port(), protocol: service.protocol };
                let vip = Vip {
                    id,
                    service: number,
                    announce: service.announce,
                    pick: service.policy.pick,
                    idle,
                    own: service.own.map_or(NO_SERVER, |place| place as u16 + 1),
                    stateless: service.stateless,
                    affinity: service
                        .affinity_ms
                        .map(|ms| Affinity::new(number, if address.is_ipv6() { 64 } else { 32 }, ms)),
                    handoff: service.handoff.map(|terms| Handoff {
                        mss: terms.mss,
                        punt: terms.punt.map_or(NO_SERVER, |place| place as u16 + 1),
                        held: NO_SERVER,
                        later: terms.later,
                    }),
                };
                tables.vips.insert(key, vip);
                self.note_endpoints(&mut tables, service, id);
            }
        }
        tables.endpoints.values_mut().for_each(|behind| behind.sort());
        tables
    }

    /// Returns the ring numbers of a service's routes, behind those of the services.
    fn route_rings<'a>(
        &self,
        service: &'a Service,
        number: u16,
    ) -> impl Iterator<Item = (u16, &'a ServiceRoute)> + use<'a> {
        let before = self.services.iter().take(number.into()).map(|service| service.routes.len());
        let first = self.services.len() + before.sum::<usize>();
        (first as u16..).zip(&service.routes)
    }

    /// Records the rings of each server, for services that check later requests on open
    /// connections.
    fn note_pools(&self, tables: &mut Tables, service: &Service, number: u16) {
        let Some(terms) = service.handoff.filter(|terms| terms.later != RehandoffMode::Stay) else { return };
        let of_routes = self.route_rings(service, number).map(|(ring, route)| (ring, &route.servers));
        for (ring, servers) in of_routes.chain([(number, &service.servers)]) {
            for place in servers {
                *tables.pools.entry(*place as u16 + 1).or_default() |= 1 << ring;
            }
        }
        tables.pools.extend(terms.punt.map(|place| (place as u16 + 1, u64::MAX)));
    }

    /// Returns the routes of service `number`. Each route has a ring behind those of the services.
    fn content_routes(&self, service: &Service, number: u16, tables: &mut Tables) -> RouteIndex {
        let routes = self.route_rings(service, number).map(|(ring, route)| {
            let members = self.members(&route.servers);
            tables.rings.insert(ring, Arc::new(ring_of(service.policy, &members)));
            ContentRoute {
                host: route.host.clone(),
                path: route.path.clone(),
                methods: route.methods.clone(),
                ring,
            }
        });
        let routes: Vec<ContentRoute> = routes.collect();
        RouteIndex::compile(&routes, number, HashKey::new(SEED))
    }

    /// Records the endpoints of a nat service's servers, from which their replies come.
    fn note_endpoints(&self, tables: &mut Tables, service: &Service, vip: u16) {
        for &place in &service.servers {
            let server = place as u16 + 1;
            if let Some(&ServerEntry { forwarding: Forwarding::Nat { to, .. }, .. }) =
                tables.servers.get(&server)
            {
                let key = VipKey { address: to.ip(), port: to.port(), protocol: service.protocol };
                tables.endpoints.entry(key).or_default().push(ReplyOrigin { vip, server });
            }
        }
    }

    /// Returns the servers that take new sessions, without servers that are down or gone.
    fn members(&self, servers: &[usize]) -> Vec<Weighted> {
        servers
            .iter()
            .filter_map(|&place| self.servers.get(place).map(|server| (place, server)))
            .filter(|(_, server)| server.up && !server.gone)
            .map(|(place, server)| {
                let slot = place as u16 + 1;
                Weighted { slot, weight: server.weight, seed: slot.into() }
            })
            .collect()
    }
}

/// Reads `ADDRESS:PORT own ADDRESS [source-nat] [mtu N]`.
fn nat(words: &mut Words<'_>) -> Result<Forwarding, Wrong> {
    let to = words.parse("ADDRESS:PORT")?;
    words.expect("own")?;
    let own = words.parse("an address")?;
    let source_nat = words.take("source-nat");
    let mtu = if words.take("mtu") { words.parse("a number of bytes")? } else { 1500 };
    Ok(Forwarding::Nat { to, own, source_nat, mtu })
}

/// Reads `ipip|gue from ADDRESS to ADDRESS [mtu N] [once|twice]`.
fn tunnel(words: &mut Words<'_>) -> Result<Forwarding, Wrong> {
    let encapsulation = match words.next("ipip or gue")? {
        "ipip" => Encapsulation::Ipip,
        "gue" => Encapsulation::Gue,
        other => return Err(format!("`{other}` is neither ipip nor gue")),
    };
    words.expect("from")?;
    let from = words.parse("an address")?;
    words.expect("to")?;
    let to = words.parse("an address")?;
    let mtu = if words.take("mtu") { words.parse("a number of bytes")? } else { 1500 };
    let mark = match (words.take("once"), words.take("twice")) {
        (true, _) => Some(ForwardCount::Once),
        (_, true) => Some(ForwardCount::Twice),
        _ => None,
    };
    if mark.is_some() && encapsulation != Encapsulation::Gue {
        return Err("only gue can say how often a packet was passed on".into());
    }
    Ok(Forwarding::Tunnel { encapsulation, from, to, mtu, mark })
}

/// Returns the ring of a policy for these servers.
fn ring_of(policy: &PacketPolicy, members: &[Weighted]) -> Ring {
    let hash = maglev(members, HASH_SLOTS);
    let second = if policy.pick == Pick::Two { second_candidates(&hash) } else { [].into() };
    Ring { order: (policy.order)(members), hash: hash.into(), previous: [].into(), second }
}
