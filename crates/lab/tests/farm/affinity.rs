//! Clients that return to the servers of their former connections.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Result, ensure};
use etherparse::PacketBuilder;
use evener_core::net::wire::Mac;
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::evener::{AffinityEntry, Evener, Explanation};
use evener_lab::farm::Farm;
use evener_lab::harness::wait::{self, LONG};
use evener_lab::network::family::Family;
use evener_lab::network::host::Host;

use crate::stage::{Plan, Way};
use crate::{file, kept};

on_both_engines! {
    client_returns_to_its_server_while_that_takes_sessions,
    client_returns_after_restart_and_leaves_with_removed_server,
    forged_first_packets_bind_nobody,
    full_server_sends_its_clients_elsewhere,
    hash_by_address_needs_no_entries,
}

by_way!(nat, Nat: client_returns_by_each_method);
by_way!(tunnel, Ipip: client_returns_by_each_method);
by_way!(l2, L2: client_returns_by_each_method);

const KEYS: &str = "policy = \"round-robin\"\naffinity = \"10m\"\ntimeouts = { closing = \"100ms\" }\n";

/// Returns the servers of this number of connections that one client opens one after the other.
fn visits(client: &Host, farm: &Farm, count: usize) -> Result<BTreeSet<String>> {
    (0..count).map(|_| HttpConnection::open(client, farm.service())?.who_and_close()).collect()
}

fn the_server_of(client: &Host, farm: &Farm) -> Result<String> {
    let servers = visits(client, farm, 5)?;
    ensure!(servers.len() == 1, "{servers:?}");
    Ok(servers.into_iter().collect())
}

fn entries(evener: &Evener) -> Result<Vec<AffinityEntry>> {
    let mut entries: Vec<AffinityEntry> = evener.json(&["affinity"])?;
    entries.sort_by(|one, other| one.client.cmp(&other.client));
    Ok(entries)
}

fn client_returns_to_its_server_while_that_takes_sessions(engine: &str) -> Result<()> {
    let mut farm = Farm::builder().servers(3).clients(2).build()?;
    let text = file::engine(engine)
        + &file::service("web", farm.service(), KEYS)
        + "[service.health]\ninterval = \"300ms\"\ntimeout = \"250ms\"\nrise = 1\nfall = 3\n"
        + &file::servers(farm.servers());
    let evener = Evener::start(farm.director(), &text)?;
    evener.wait_for_servers(3, LONG)?;
    let first = the_server_of(farm.client(0), &farm)?;
    let second = the_server_of(farm.client(1), &farm)?;
    assert_ne!(first, second, "the second client gets the next server in turn");
    let known = entries(&evener)?;
    let network = |client: usize| format!("{}/32", farm.client(client).address());
    let of =
        |network: &str| known.iter().find(|entry| entry.client == network).map(|entry| entry.server.as_str());
    assert_eq!((of(&network(0)), of(&network(1)), known.len()), (Some(&*first), Some(&*second), 2));
    assert!(known.iter().all(|entry| entry.service == "web" && (500..=620).contains(&entry.expires_seconds)));
    let asked = farm.client(0).address().to_string();
    let one: Vec<AffinityEntry> = evener.json(&["affinity", "--client", &asked, "--service", "web"])?;
    assert_eq!(one.iter().map(|entry| entry.server.as_str()).collect::<Vec<_>>(), [&*first]);
    let flow = ["explain", &format!("{asked}:50000"), &farm.service().to_string()];
    let foretold: Explanation = evener.json(&flow)?;
    ensure!(foretold.server.as_deref() == Some(&*first), "{foretold:?}");
    ensure!(foretold.reasons.iter().any(|reason| reason.contains("affinity")), "{foretold:?}");
    assert_eq!(evener.services()?[0].affinity_entries, 2);

    // A drained server releases its clients, and they stay where they went.
    evener.command(&["drain", &format!("web/{first}")])?;
    let next = the_server_of(farm.client(0), &farm)?;
    assert_ne!(next, first);
    evener.command(&["undrain", &format!("web/{first}")])?;
    assert_eq!(the_server_of(farm.client(0), &farm)?, next);
    // So does a server that fails.
    let number: usize = next.trim_start_matches("web").parse::<usize>()? - 1;
    farm.stop_web(number)?;
    evener.wait_for_servers(2, LONG)?;
    let last = the_server_of(farm.client(0), &farm)?;
    assert_ne!(last, next);
    farm.start_web(number)?;
    evener.wait_for_servers(3, LONG)?;
    assert_eq!(the_server_of(farm.client(0), &farm)?, last);
    Ok(())
}

fn client_returns_after_restart_and_leaves_with_removed_server(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(3).build()?;
    let text = file::listed(engine, &farm, KEYS);
    let mut evener = Evener::start(farm.director(), &text)?;
    evener.wait_for_servers(3, LONG)?;
    let server = the_server_of(farm.client(0), &farm)?;
    evener.daemon().kill9()?;
    evener.start_again()?;
    assert_eq!(the_server_of(farm.client(0), &farm)?, server, "after kill -9");
    evener.stop()?;
    evener.upgrade()?;
    assert_eq!(the_server_of(farm.client(0), &farm)?, server, "after an upgrade");
    evener.command(&["remove", &format!("web/{server}")])?;
    wait::until("the entry of the removed server is gone", || Ok(entries(&evener)?.is_empty()))?;
    let next = the_server_of(farm.client(0), &farm)?;
    assert_ne!(next, server);
    evener.command(&["undo"])?;
    evener.wait_for_servers(3, LONG)?;
    assert_eq!(the_server_of(farm.client(0), &farm)?, next, "the returned server's clients are new");
    // Without affinity the entries are forgotten.
    evener.reload(&file::listed(engine, &farm, &KEYS.replace("affinity = \"10m\"\n", "")))?;
    assert_eq!(visits(farm.client(0), &farm, 3)?.len(), 3);
    let (code, why) = evener.failure(&["affinity", "--service", "web"])?;
    ensure!(code == 1 && why.contains("has no affinity"), "{why}");
    wait::until("no entry is left", || Ok(evener.services()?[0].affinity_entries == 0))
}

fn forged_first_packets_bind_nobody(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let evener = Evener::start(farm.director(), &file::listed(engine, &farm, KEYS))?;
    evener.wait_for_servers(2, LONG)?;
    let (link, to) = (farm.router().raw(1)?, farm.director().mac().parse::<Mac>()?);
    let IpAddr::V4(service) = farm.service().ip() else { anyhow::bail!("the service has IPv4") };
    for number in 0..500_u16 {
        let client = [198, 18, (number >> 8) as u8, number as u8];
        let mut frame = Vec::new();
        PacketBuilder::ethernet2(link.mac().0, to.0)
            .ipv4(client, service.octets(), 64)
            .tcp(40_000 + number, farm.service().port(), number.into(), 64_000)
            .syn()
            .write(&mut frame, &[])?;
        link.send(&frame)?;
    }
    wait::until("the SYNs have sessions", || Ok(evener.status()?.sessions >= 400))?;
    assert_eq!(entries(&evener)?, []);
    the_server_of(farm.client(0), &farm)?;
    assert_eq!(entries(&evener)?.len(), 1);
    Ok(())
}

fn full_server_sends_its_clients_elsewhere(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let servers: String = farm.servers().iter().map(|host| file::server(host, 1)).collect();
    let servers = servers.replace("weight = 1\n", "weight = 1\nmax_connections = 2\n");
    let text =
        file::engine(engine) + &file::service("web", farm.service(), KEYS) + file::ALWAYS_UP + &servers;
    let evener = Evener::start(farm.director(), &text)?;
    evener.wait_for_servers(2, LONG)?;
    let held = kept(&farm, 3)?;
    let of: Vec<&str> = held.iter().map(|(server, _)| server.as_str()).collect();
    ensure!(of[0] == of[1] && of[2] != of[0], "{of:?}");
    let first = of[0].to_owned();
    held.into_iter().try_for_each(|(_, visit)| visit.reset())?;
    wait::until("their sessions are forgotten", || {
        Ok(evener.servers()?.iter().all(|server| server.sessions == 0))
    })?;
    assert_eq!(the_server_of(farm.client(0), &farm)?, first, "which has room again");
    Ok(())
}

fn hash_by_address_needs_no_entries(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(3).clients(2).build()?;
    let keys = KEYS.replace("round-robin", "hash");
    let evener = Evener::start(farm.director(), &file::listed(engine, &farm, &keys))?;
    evener.wait_for_servers(3, LONG)?;
    for client in farm.clients() {
        let flow = ["explain", &format!("{}:50000", client.address()), &farm.service().to_string()];
        let foretold: Explanation = evener.json(&flow)?;
        assert_eq!(foretold.server, Some(the_server_of(client, &farm)?), "{foretold:?}");
    }
    assert_eq!(entries(&evener)?, []);
    let (code, why) = evener.failure(&["affinity", "--service", "web"])?;
    ensure!(code == 1 && why.contains("needs no entries"), "{why}");
    Ok(())
}

fn client_returns_by_each_method(engine: &str, way: Way) -> Result<()> {
    for family in Family::BOTH {
        let farm = way.builder().servers(3).build()?;
        let stage = Plan::new(engine, way, family).start(farm, KEYS, file::ALWAYS_UP, &[1; 3])?;
        let servers =
            (0..6).map(|_| HttpConnection::open(stage.farm.client(0), stage.service)?.who_and_close());
        let servers: BTreeSet<String> = servers.collect::<Result<_>>()?;
        ensure!(servers.len() == 1, "{family:?}: {servers:?}");
        assert_eq!(entries(&stage.evener)?.len(), 1);
    }
    Ok(())
}
