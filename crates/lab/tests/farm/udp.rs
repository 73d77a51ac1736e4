//! UDP services: a session ends with an idle time.

use std::collections::BTreeMap;

use anyhow::Result;
use evener_lab::clients::udp_echo::{Client, Echo};
use evener_lab::evener::Evener;
use evener_lab::farm::Farm;
use evener_lab::harness::wait::{self, LONG};

use crate::file;

on_both_engines! { datagrams_of_a_session_go_to_one_server }

fn datagrams_of_a_session_go_to_one_server(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(3).build()?;
    let service = (farm.vip(0), 5353).into();
    let _echoes: Vec<Echo> =
        farm.servers().iter().map(|host| Echo::start(host, service)).collect::<Result<_>>()?;
    let keys = "protocol = \"udp\"\ntimeouts = { udp = \"2s\" }\n";
    let text = file::engine(engine)
        + &file::service("echo", service, keys)
        + file::ALWAYS_UP
        + &file::servers(farm.servers());
    let evener = Evener::start(farm.director(), &text)?;
    evener.wait_for_servers(3, LONG)?;

    let clients: Vec<Client> =
        (0..6).map(|_| Client::open(farm.client(0), service, LONG)).collect::<Result<_>>()?;
    let mut first = Vec::new();
    for client in &clients {
        first.push(client.request("one")?);
    }
    let mut count = BTreeMap::new();
    first.iter().for_each(|server| *count.entry(server.as_str()).or_insert(0) += 1);
    assert_eq!(count, BTreeMap::from([("web1", 2), ("web2", 2), ("web3", 2)]));
    let sessions = evener.sessions()?;
    assert!(sessions.len() == 6 && sessions.iter().all(|session| session.state == "udp"), "{sessions:?}");
    for (client, server) in clients.iter().zip(&first) {
        for text in ["two", "three", &"x".repeat(1400)] {
            assert_eq!(client.request(text)?, *server);
        }
    }
    wait::until("idle sessions are forgotten", || Ok(evener.sessions()?.is_empty()))?;
    // Round robin is back at the first session's server, so the other client gets this server.
    assert_eq!(clients[1].request("again")?, first[0]);
    Ok(())
}
