//! UDP services and fragmented datagrams, which the paper's stateless hosts could not forward
//! (section 3).

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use evener_lab::clients::fragments::Order;
use evener_lab::clients::udp_echo::{Client, Echo};
use evener_lab::evener::{Plan, Team};
use evener_lab::farm::Farm;
use evener_lab::harness::wait::LONG;
use evener_lab::servers::dnsmasq;

use crate::{IN_TURN, STATELESS};

const PORT: u16 = 5353;

on_both_engines! {
    fragments_in_any_order_come_to_one_host,
    fragments_in_any_order_come_to_one_host_where_nothing_is_noted,
    dns_answers_and_questions_of_any_length,
}

fn team(engine: &str, keys: &str, port: u16) -> Result<Team> {
    let plan = Plan { udp: Some(port), ..Plan::new(engine, keys, 3) };
    Team::start(Farm::builder().every_host(3).build()?, plan)
}

fn fragments_in_any_order_come_to_one_host(engine: &str) -> Result<()> {
    fragments(engine, IN_TURN)
}

fn fragments_in_any_order_come_to_one_host_where_nothing_is_noted(engine: &str) -> Result<()> {
    fragments(engine, STATELESS)
}

fn fragments(engine: &str, keys: &str) -> Result<()> {
    let team = team(engine, keys, PORT)?;
    let (farm, client) = (&team.farm, team.farm.client(0));
    let service = SocketAddr::new(farm.own_vip(team.plan.family, 0), PORT);
    for order in Order::ALL {
        let _echoes: Vec<Echo> = farm
            .servers()
            .iter()
            .map(|host| Echo::start_cut(farm, host, service, order))
            .collect::<Result<_>>()?;
        for len in [10, 2000, 5000] {
            let about = || format!("{order:?}, {len} bytes");
            for _ in 0..4 {
                let visit = Client::open(client, service, LONG)?;
                let server =
                    visit.request_truncated(farm, client, &"x".repeat(len), order).with_context(about)?;
                for _ in 0..2 {
                    let again =
                        visit.request_truncated(farm, client, &"y".repeat(len), order).with_context(about)?;
                    assert_eq!(again, server, "{order:?}, {len} bytes");
                }
            }
        }
    }
    Ok(())
}

fn dns_answers_and_questions_of_any_length(engine: &str) -> Result<()> {
    let team = team(engine, IN_TURN, dnsmasq::PORT)?;
    let farm = &team.farm;
    let _servers: Vec<_> = farm.servers().iter().map(dnsmasq::Server::start).collect::<Result<_>>()?;
    for host in 0..3 {
        let service = SocketAddr::new(farm.own_vip(team.plan.family, host), dnsmasq::PORT);
        let mut servers = Vec::new();
        for _ in 0..3 {
            let client = dnsmasq::Client::open(farm.client(0), service, Duration::from_secs(2))?;
            servers.push(client.who()?);
            client.big(0).context("a long answer")?;
            client.big(3000).context("a long question")?;
        }
        servers.sort();
        assert_eq!(servers, ["web1", "web2", "web3"]);
    }
    Ok(())
}
