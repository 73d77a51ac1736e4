//! A director with a real engine: each system call of a reload is refused in turn, and the reported
//! tables must be the active ones.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use evener_core::director::{Director, Input, Moment, Output, Start};
use evener_core::farm::network::{Interface, KernelRoute, Network};
use evener_core::farm::{Farm, Server, Service, example};
use evener_core::net::wire::Mac;
use evener_core::path::seed::Seed;
use evener_core::pool::HealthKind;
use evener_core::pool::policy::Fills;
use evener_dataplane::Engine;
use evener_dataplane::refusals::Refusals;
use evener_dataplane::xdp::{XdpEngine, pins};

use crate::frames::{Bench, two_servers};
use crate::hosts::{Host, VIP};
use crate::kernel::kernel_engine;
use crate::skipped;

/// Limit against endless loops, above the number of calls of any reload.
const CALLS_MAX: u64 = 500;

/// Returns a farm of servers with known MACs and without probes.
fn farm(servers: &[u8], ports: &[u16]) -> Farm {
    let server = |number: &u8| Server {
        mac: Some(Mac([2, 0, 0, 0, 0, *number])),
        ..example::server(&format!("web{number}"), IpAddr::from([192, 0, 2, *number]))
    };
    let health = example::check(HealthKind::None);
    let service = |port: &u16| Service {
        health: health.clone(),
        ..example::service(
            &format!("port{port}"),
            SocketAddr::new(VIP.into(), *port),
            servers.iter().map(server).collect(),
        )
    };
    Farm { services: ports.iter().map(service).collect(), ..Farm::default() }
}

fn network(bench: &Bench) -> Network {
    let (ifindex, mac) = bench.outside;
    let interface = Interface {
        name: "out0".into(),
        mac,
        addresses: vec![([192, 0, 2, 1].into(), 24)],
        up: true,
        carrier: true,
        mtu: 1500,
        loopback: false,
        ethernet: true,
    };
    let route = KernelRoute {
        destination: ([192, 0, 2, 0].into(), 24),
        priority: 0,
        ifindex: Some(ifindex),
        on_link: true,
        gateway: None,
    };
    Network { interfaces: [(ifindex, interface)].into(), routes: vec![route], ..Network::default() }
}

struct Daemon {
    director: Director,
    engine: XdpEngine,
    fills: Fills,
    now_ms: u64,
}

impl Daemon {
    /// Executes the director's orders in sequence, as the program does, and returns the engine's
    /// results.
    fn learn(&mut self, input: Input) -> Result<(), String> {
        self.now_ms += 1;
        let now = Moment { ms: self.now_ms, lease_holds: true, ..Moment::default() };
        self.director.handle(now, input);
        let mut done = Ok(());
        while let Some(order) = self.director.poll_output() {
            match order {
                Output::Apply(change) => {
                    let planned = change.plan(&mut self.fills);
                    let applied = planned.tables().unwrap().map(|tables| self.engine.apply(tables));
                    let error = applied.and_then(Result::err).map(|error| error.to_string());
                    done = error.clone().map_or(done, Err);
                    let answer = planned.answer(Arc::clone(self.engine.tables()), error);
                    self.director.handle(now, Input::Applied(Box::new(answer)));
                }
                Output::Forget { retired, .. } => {
                    for slot in retired {
                        // A slot stays allocated if its counters cannot be reset.
                        if self.engine.reset_server(slot).is_ok() {
                            self.director.handle(now, Input::Released { slot });
                        }
                    }
                }
                _ => {}
            }
        }
        done
    }

    fn reload(&mut self, farm: &Farm, bench: &Bench) -> Result<(), String> {
        let (network, links) = (Box::new(network(bench)), self.director.links().clone());
        self.learn(Input::Reload { farm: Box::new(farm.clone()), network, links, groups: BTreeMap::new() })
    }

    /// Checks that the reported tables match this farm and the kernel's maps.
    fn shows(&self, farm: &Farm, number: u64) {
        let shown = self.director.snapshot();
        assert_eq!(*shown.farm, *farm, "{number}");
        assert_eq!(
            (&*shown.plan.tables, &*shown.plan.tables),
            (&**self.engine.tables(), &self.engine.read_again()),
            "{number}"
        );
        let described = farm.services.iter().flat_map(|service| {
            service.servers.iter().map(|server| (service.name.clone(), server.name.clone()))
        });
        let seen = shown.servers().map(|server| (server.name.service.clone(), server.name.server.clone()));
        assert_eq!(seen.collect::<Vec<_>>(), described.collect::<Vec<_>>(), "{number}");
        assert!(
            shown.servers().all(|server| server.slot.is_some()),
            "{number}: each has its number in force"
        );
        assert_eq!((shown.wanted, shown.reloads.pending), (shown.generation, false), "{number}");
    }
}

#[test]
fn refused_reload_shows_tables_in_force() {
    if skipped() {
        return;
    }
    Host::new("director").enter(|| {
        let bench = Bench::set_up();
        let engine = kernel_engine(None, Some(pins::directory().unwrap()), two_servers(&bench));
        let (before, after) = (farm(&[11, 12], &[80]), farm(&[12, 13, 14], &[80, 443]));
        let start = Start {
            farm: before.clone(),
            network: network(&bench),
            links: BTreeMap::from([bench.outside]),
            operator: BTreeMap::new(),
            host: None,
            seed: Seed::default(),
            running: None,
            groups: BTreeMap::new(),
        };
        let director = Director::new(start, Moment { ms: 1, lease_holds: true, ..Moment::default() });
        let mut daemon = Daemon { director, engine, fills: Fills::default(), now_ms: 1 };
        daemon.learn(Input::Time { active: BTreeMap::new() }).unwrap();
        daemon.shows(&before, 0);
        let refusals = Refusals::of(&[libc::SYS_bpf]).unwrap();
        for number in 1..CALLS_MAX {
            let (done, refused) = {
                let reloads = daemon.director.snapshot().reloads.clone();
                refusals.refuse(number, libc::ENOMEM);
                let done = daemon.reload(&after, &bench);
                let came = refusals.relent();
                assert!(came || done.is_ok(), "{done:?}");
                let now = &daemon.director.snapshot().reloads;
                assert_eq!(
                    (now.done - reloads.done, now.refused - reloads.refused),
                    match &done {
                        Ok(()) => (1, 0),
                        Err(_) => (0, 1),
                    }
                );
                assert_eq!(now.error, done.clone().err());
                (done, came)
            };
            daemon.shows(if done.is_ok() { &after } else { &before }, number);
            daemon.reload(&after, &bench).unwrap();
            daemon.shows(&after, number);
            daemon.reload(&before, &bench).unwrap();
            daemon.shows(&before, number);
            if !refused {
                assert!(number > 3, "nothing was refused");
                Box::new(daemon.engine).leave(false).unwrap();
                return;
            }
        }
        panic!("a reload takes more than {CALLS_MAX} calls");
    });
}
