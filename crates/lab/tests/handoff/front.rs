//! Several directors with handoff behind one front: an ECMP router, or a director by layer 2.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use evener_lab::clients::handmade_tcp::HandmadeTcp;
use evener_lab::evener::{Agent, Evener, Offer, program, route};
use evener_lab::farm::{Farm, WEB_PORT};
use evener_lab::harness::wait::{self, LONG};
use evener_lab::network::family::Family;
use evener_lab::network::host::Host;
use evener_lab::workloads::load::Load;

use crate::talk::{Talk, get};
use crate::unbroken;

on_both_engines! {
    a_router_shares_clients_among_directors,
    a_handshake_is_finished_by_another_director,
    what_a_dead_director_leaves,
    a_director_by_layer_two_in_front,
}

/// Directors without announcement that share file and secret, and servers with agents.
struct Fronted {
    directors: Vec<Evener>,
    _agents: Vec<Agent>,
    farm: Farm,
}

impl Fronted {
    /// Starts the farm's directors from index `first` on. Earlier directors are the front.
    fn start(engine: &str, farm: Farm, first: usize) -> Result<Fronted> {
        let secret = farm.server(0).file("farm.key");
        let program = program()?.to_string_lossy().into_owned();
        farm.server(0).run(&[&program, "keygen", &secret.to_string_lossy()])?;
        let routes = [route("path = \"/who\"", &["web2"]), route("path = \"/*\"", &["web1"])];
        let offer = Offer { keys: "announce = false\n".to_owned(), ..Offer::new(engine, 2, &routes) };
        let file = offer.file(&farm, &secret);
        let agents = Agent::start_all(farm.servers(), &file)?;
        let directors = farm.directors()[first..].iter().map(|host| Evener::start(host, &file));
        let directors = directors.collect::<Result<Vec<_>>>()?;
        directors.iter().try_for_each(|evener| evener.wait_for_servers(2, LONG).map(drop))?;
        Ok(Fronted { directors, _agents: agents, farm })
    }

    fn behind_a_router(engine: &str) -> Result<Fronted> {
        let farm = Farm::builder().bare().servers(2).directors(2).build()?;
        let policy = ["ipv4", "ipv6"].map(|family| format!("{family}/fib_multipath_hash_policy"));
        farm.router().netns().sysctl(&[(&policy[0], "1"), (&policy[1], "1")])?;
        let fronted = Fronted::start(engine, farm, 0)?;
        fronted.route_by(&[0, 1])?;
        Ok(fronted)
    }

    /// Makes the router distribute the service's flows over these directors.
    fn route_by(&self, directors: &[usize]) -> Result<()> {
        for family in Family::BOTH {
            let address = format!("{}/{}", self.farm.vip_in(family, 0), family.bits());
            let by = |number: &usize| {
                format!(" nexthop via {}", self.farm.directors()[*number].address_in(family))
            };
            let ways: String = directors.iter().map(by).collect();
            self.farm.router().ip(&[format!("route replace {address}{ways}")])?;
        }
        Ok(())
    }

    fn client(&self) -> &Host {
        self.farm.client(0)
    }

    fn service(&self, family: Family) -> SocketAddr {
        (self.farm.vip_in(family, 0), WEB_PORT).into()
    }

    /// Returns a director's count of a packet reason.
    fn counted(&self, director: usize, reason: &str) -> Result<u64> {
        Ok(self.directors[director].status()?.packets.get(reason).copied().unwrap_or_default())
    }

    /// Checks that many clients are all served by the server that the routes select.
    fn serves_all(&self, path: &str, server: &str) -> Result<()> {
        for family in Family::BOTH {
            let service = self.service(family);
            let load = Load {
                connections: 8,
                requests: Some(10),
                path: path.to_owned(),
                timeout: LONG,
                ..Load::to(service)
            };
            let report =
                unbroken(load.run_on(self.client())?).with_context(|| format!("{family}: {path}"))?;
            ensure!(report.servers.keys().eq([server]), "{family}: {path} by {:?}", report.servers);
        }
        Ok(())
    }
}

fn a_router_shares_clients_among_directors(engine: &str) -> Result<()> {
    let fronted = Fronted::behind_a_router(engine)?;
    // Requests that the data plane routes, and requests that the directors' daemons read.
    for (path, server) in [("/who", "web2"), ("/2k", "web1"), ("/./who", "web2"), ("/./2k", "web1")] {
        fronted.serves_all(path, server)?;
    }
    for director in [0, 1] {
        let greeted = fronted.counted(director, "cookie_sent")?;
        ensure!(greeted > 0, "director {director} has a part of them");
        let punted = || -> Result<_> { Ok(fronted.directors[director].status()?.punted) };
        wait::until("connections were handed over", || Ok(punted()?["handed_off"] > 0))?;
        ensure!(punted()?["spliced"] == 0, "{:?}", punted()?);
    }
    Ok(())
}

/// The router switches directors between SYN and request. Cookie keys belong to the farm, not to a
/// director.
fn a_handshake_is_finished_by_another_director(engine: &str) -> Result<()> {
    let fronted = Fronted::behind_a_router(engine)?;
    let hand = HandmadeTcp::on(&fronted.farm, fronted.client())?;
    for (port, family) in (0..).zip(Family::BOTH) {
        for (number, path) in (0..).zip(["/who", "/./who"]) {
            fronted.route_by(&[0])?;
            let mut call = hand.call(10 * port + number, fronted.service(family))?;
            fronted.route_by(&[1])?;
            call.acknowledge(0)?;
            call.send_data(0, get("x", path))?;
            call.listen(|call| call.received().ends_with(b"web2\n"))
                .with_context(|| format!("{family}: {path}"))?;
            call.reset(get("x", path).len())?;
        }
    }
    ensure!(fronted.counted(0, "forwarded")? == 0 && fronted.counted(1, "forwarded")? > 0);
    Ok(())
}

/// Other directors serve new clients. Open connections of the dead director are reset, and no
/// others.
fn what_a_dead_director_leaves(engine: &str) -> Result<()> {
    let fronted = Fronted::behind_a_router(engine)?;
    let mut talks = Vec::new();
    for (family, director) in Family::BOTH.into_iter().flat_map(|family| [(family, 0), (family, 1)]) {
        fronted.route_by(&[director])?;
        let mut talk = Talk::open(fronted.client(), fronted.service(family))?;
        assert_eq!(talk.request(&get("x", "/who"))?.server, "web2");
        talks.push((family, director, talk));
    }
    fronted.farm.directors()[1].unplug()?;
    fronted.route_by(&[0])?;
    fronted.serves_all("/who", "web2")?;
    for (family, director, mut talk) in talks {
        let reply = talk.request(&get("x", "/who"));
        match director {
            0 => assert_eq!(reply?.server, "web2", "{family}"),
            _ => assert!(reply.is_err(), "{family}: {reply:?}"),
        }
    }
    Ok(())
}

/// The front distributes clients by layer 2 and forwards the directors' replies.
fn a_director_by_layer_two_in_front(engine: &str) -> Result<()> {
    let farm = Farm::builder().bare().servers(2).directors(3).build()?;
    farm.forward_on_directors()?;
    let fronted = Fronted::start(engine, farm, 1)?;
    let addresses = Family::BOTH.map(|family| fronted.service(family).to_string());
    let servers = fronted.farm.directors()[1..].iter().map(|host| {
        format!("[[service.server]]\nname = \"{}\"\naddress = \"{}\"\n", host.name(), host.address())
    });
    let file = format!(
        "[engine]\nkind = \"{engine}\"\n[[service]]\nname = \"front\"\naddresses = {addresses:?}\nmethod = \"l2\"\n\
         announce = true\npolicy = \"round-robin\"\n[service.health]\nkind = \"tcp\"\ninterval = \"500ms\"\n\
         timeout = \"400ms\"\n{}",
        servers.collect::<String>()
    );
    let front = Evener::start(fronted.farm.director(), &file)?;
    front.wait_for_servers(2, LONG)?;
    for (path, server) in [("/who", "web2"), ("/2k", "web1"), ("/./who", "web2"), ("/./2k", "web1")] {
        fronted.serves_all(path, server)?;
    }
    for director in [0, 1] {
        ensure!(fronted.counted(director, "forwarded")? > 0, "director {director} has a part of them");
    }
    // A director without link gets no clients.
    fronted.farm.directors()[2].unplug()?;
    front.wait_for_servers(1, LONG)?;
    wait::until("new clients are served", || {
        Ok(Talk::open(fronted.client(), fronted.service(Family::V4))
            .and_then(|mut talk| talk.request(&get("x", "/who")))
            .is_ok_and(|reply| reply.server == "web2"))
    })?;
    fronted.serves_all("/who", "web2")
}
