//! UDP services of every method, with datagrams of several packets: a real DNS server, and
//! fragments in every order.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use evener_lab::clients::fragments::Order;
use evener_lab::clients::udp_echo::{Client, Echo};
use evener_lab::harness::wait::LONG;
use evener_lab::network::family::Family;
use evener_lab::network::host::Host;
use evener_lab::servers::dnsmasq;

use crate::stage::{Plan, Way};

by_every_way! {
    dns_answers_and_questions_of_any_length,
    fragments_in_any_order_come_to_one_server,
}

fn dns_answers_and_questions_of_any_length(engine: &str, way: Way) -> Result<()> {
    for family in Family::BOTH {
        let plan = Plan::new(engine, way, family);
        let farm = way.builder().servers(2).build()?;
        let _servers: Vec<_> = farm.servers().iter().map(dnsmasq::Server::start).collect::<Result<_>>()?;
        let file = plan.file_with_udp(&farm, dnsmasq::PORT);
        let stage = plan.start_with(farm, &file, 4)?;
        let service = SocketAddr::new(stage.service.ip(), dnsmasq::PORT);
        // All clients stay open at the same time. Otherwise a client could reuse another one's
        // port, and with it its session.
        let clients: Vec<_> = (0..6)
            .map(|_| dnsmasq::Client::open(stage.client(), service, Duration::from_secs(1)))
            .collect::<Result<_>>()?;
        let mut count = BTreeMap::new();
        for client in clients {
            *count.entry(client.who().with_context(|| format!("{family}"))?).or_insert(0) += 1;
            client.big(0).with_context(|| format!("{family}, a long answer"))?;
            client.big(3000).with_context(|| format!("{family}, a long question"))?;
        }
        assert_eq!(count, BTreeMap::from([("web1".to_owned(), 3), ("web2".to_owned(), 3)]), "{family}");
    }
    Ok(())
}

fn fragments_in_any_order_come_to_one_server(engine: &str, way: Way) -> Result<()> {
    const PORT: u16 = 5353;
    for family in Family::BOTH {
        let plan = Plan::new(engine, way, family);
        let farm = way.builder().servers(2).build()?;
        let file = plan.file_with_udp(&farm, PORT);
        let stage = plan.start_with(farm, &file, 4)?;
        let service = SocketAddr::new(stage.service.ip(), PORT);
        for order in Order::ALL {
            let echo = |host: &Host| {
                // With NAT, a server is addressed by its own address.
                let address = if way.is_nat() { host.address_in(family) } else { service.ip() };
                Echo::start_cut(&stage.farm, host, SocketAddr::new(address, PORT), order)
            };
            let _echoes: Vec<Echo> = stage.farm.servers().iter().map(echo).collect::<Result<_>>()?;
            for len in [10, 2000, 5000] {
                let client = Client::open(stage.client(), service, LONG)?;
                let text = "x".repeat(len);
                let about = || format!("{family}, {order:?}, {len} bytes");
                let server = client
                    .request_truncated(&stage.farm, stage.client(), &text, order)
                    .with_context(about)?;
                for _ in 0..3 {
                    let again = client
                        .request_truncated(&stage.farm, stage.client(), &text, order)
                        .with_context(about)?;
                    assert_eq!(again, server, "{family}, {order:?}, {len} bytes");
                }
            }
        }
    }
    Ok(())
}
