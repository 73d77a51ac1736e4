//! The largest number of routes that the kernel's table holds, and one more.

use std::sync::Arc;

use evener_core::net::Protocol;
use evener_core::path::content::{HashKey, HostPattern, PathPattern, RouteIndex, RoutePattern};
use evener_core::path::cookie::Schedule;
use evener_core::path::decide::Reason;
use evener_core::path::seed::Seed;
use evener_core::path::tables::{ReplyOrigin, Tables, VipKey};
use evener_dataplane::EngineError;

use crate::handoff::{HANDOFF, KEYS, RINGS, Segment};
use crate::world::{self, Core, NOW, vip};
use crate::{HOOKS, Kernel, meet};

/// `ROUTE_ENTRIES` of `bpf/abi.h`. A route takes one entry, and its host takes another one.
const ENTRIES: usize = 131_072;
/// The limits of a configuration file: routes per service, and services with that many routes.
const ROUTES: usize = 10_000;
const SERVICES: [(bool, u8); 3] = [(false, HANDOFF[0]), (true, HANDOFF[0]), (false, HANDOFF[2])];

fn host(number: usize, round: usize) -> String {
    format!("{number}.{round}.example.com")
}

fn route(number: usize, round: usize, path: Option<&str>) -> RoutePattern {
    RoutePattern {
        host: HostPattern::parse(&host(number, round)).ok(),
        path: path.map(|path| PathPattern::parse(path).unwrap()),
        methods: vec![],
        // The third ring contains a slot without a server.
        ring: RINGS[(number + round) % 2],
    }
}

/// Returns routes that each have a different host.
fn routes(count: usize, round: usize) -> Vec<RoutePattern> {
    (0..count).map(|number| route(number, round, None)).collect()
}

fn with(mut tables: Tables, services: &[((bool, u8), Vec<RoutePattern>)]) -> Arc<Tables> {
    for ((v6, last), routes) in services {
        let address = vip(*v6, *last);
        let found = tables.vips.iter().find(|(key, _)| key.address == address);
        let service = found.map(|(_, vip)| vip.service).unwrap();
        let routes = RouteIndex::compile(routes, service, HashKey::new(Seed(1, 2)));
        tables.routes.insert(service, Arc::new(routes));
    }
    Arc::new(tables)
}

fn entries(tables: &Tables) -> usize {
    tables.routes.values().map(|routes| routes.entries.len()).sum()
}

/// Checks that requests for these hosts are forwarded as the core decides.
fn send_syn(c: &mut Kernel, tables: &Tables, (v6, service): (bool, u8), hosts: &[String]) {
    let mut core = Core::with(tables.clone(), &Schedule::fixed(&KEYS, NOW));
    c.clear(&core);
    for (port, host) in (2_000..).zip(hosts) {
        let frame = Segment::first(v6, 1, port, service).of_host(host).frame(&KEYS);
        let (decision, _) = meet(&mut core, c, &frame).unwrap().unwrap();
        assert_eq!(decision.reason, Reason::Forwarded, "{host}");
    }
    assert_eq!(core.reasons, c.counted().0);
}

#[test]
fn as_many_routes_as_a_file_may_have_are_found_and_replaced_alike() {
    for hook in HOOKS {
        let Some(mut c) = Kernel::start(hook) else { return };
        for round in 0..3 {
            let all = SERVICES.map(|service| (service, routes(ROUTES, round)));
            let tables = with(world::tables(), &all);
            // The table holds the previous and the new routes together for a moment.
            assert!(2 * entries(&tables) <= ENTRIES && entries(&tables) == 2 * 3 * ROUTES);
            c.engine.load_tables(&tables).unwrap();
            for service in SERVICES {
                let hosts = [0, 1, 4_999, ROUTES - 1, ROUTES].map(|number| host(number, round));
                send_syn(&mut c, &tables, service, &hosts);
                send_syn(&mut c, &tables, service, &[host(0, round + 1)]);
            }
        }
    }
}

/// Routes of two services. Two generations together fill the table; every route takes two entries.
fn full(round: usize) -> [((bool, u8), Vec<RoutePattern>); 2] {
    let count = ENTRIES / 2 / 2;
    [(SERVICES[0], routes(count - 1_000, round)), (SERVICES[2], routes(1_000, round))]
}

#[test]
fn routes_fill_the_table_and_one_more_is_refused() {
    let [first, second] = [0, 1].map(|round| with(world::tables(), &full(round)));
    let [few, mut many] = full(2);
    // A second route for a host, with a path: one more entry.
    many.1.push(route(0, 2, Some("/")));
    let above = with(world::tables(), &[few, many]);
    assert_eq!(
        [&first, &second, &above].map(|tables| entries(tables)),
        [ENTRIES / 2, ENTRIES / 2, ENTRIES / 2 + 1]
    );
    // An update fails after its routes were inserted.
    let mut refused = Tables::clone(&above);
    refused.routes = second.routes.clone();
    let behind = vec![ReplyOrigin { vip: 1, server: 1 }];
    refused.endpoints.extend((0..5_000u16).map(|port| {
        (VipKey { address: [10, 99, 0, 1].into(), port, protocol: Protocol::Tcp }, behind.clone())
    }));
    for hook in HOOKS {
        let Some(mut c) = Kernel::start(hook) else { return };
        c.engine.load_tables(&first).unwrap();
        let Err(EngineError::Capacity(message)) = c.engine.load_tables(&above) else {
            panic!("{} entries are too many", entries(&above));
        };
        assert!(message.contains("65537 entries") && message.contains("65536"), "{message}");
        for round in 0..2 {
            let refused = Arc::new(refused.clone());
            c.engine.load_tables(&refused).unwrap_err();
            for service in [SERVICES[0], SERVICES[2]] {
                send_syn(
                    &mut c,
                    &first,
                    service,
                    &[host(0, 0), host(999, 0), host(31_767, 0), host(0, 1), host(0, round)],
                );
            }
        }
        c.engine.load_tables(&second).unwrap();
        for service in [SERVICES[0], SERVICES[2]] {
            send_syn(&mut c, &second, service, &[host(0, 1), host(999, 1), host(31_767, 1), host(0, 0)]);
        }
    }
}
