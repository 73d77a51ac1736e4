//! Servers that respond and reset at once: a connection that has ended before it is looked up must
//! not be created a second time.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::Result;
use evener_lab::clients::handmade_tcp::{End, HandmadeTcp};
use evener_lab::evener::{Handoff, Offer};
use evener_lab::farm::Farm;
use evener_lab::harness::wait;
use evener_lab::network::family::Family;
use evener_lab::network::host::Host;

use crate::talk::get;

on_both_engines! {
    each_request_runs_once,
}

const PORT: u16 = 7_001;

/// Number of executed requests per client, on all servers.
#[derive(Clone, Debug, Default)]
struct Runs(Arc<Mutex<BTreeMap<SocketAddr, usize>>>);

impl Runs {
    /// Starts a server on each host. The server leaves most of a request unread, so that its stack
    /// resets the connection.
    fn on(hosts: &[Host]) -> Result<Runs> {
        let runs = Runs::default();
        for host in hosts {
            // Accepts both IP versions.
            let listener = host.enter(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT)))??;
            let runs = runs.clone();
            thread::spawn(move || {
                while let Ok((mut stream, client)) = listener.accept() {
                    if stream.read_exact(&mut [0]).is_ok() {
                        runs.note(client);
                        // A write error is ignored: the client may be gone.
                        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap_or_default();
                    }
                }
            });
        }
        Ok(runs)
    }

    fn note(&self, client: SocketAddr) {
        let client = SocketAddr::new(client.ip().to_canonical(), client.port());
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(client).or_default() += 1;
    }

    fn of(&self, client: SocketAddr) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&client).copied().unwrap_or_default()
    }
}

/// Each request runs once, whether the data plane or the daemon routes it, and even if it is
/// repeated as after a lost reset.
fn each_request_runs_once(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).bare().build()?;
    let runs = Runs::on(farm.servers())?;
    let health = "[service.health]\nkind = \"none\"\n".to_owned();
    let handoff = Handoff::start(farm, Offer { port: PORT, health, ..Offer::new(engine, 2, &[]) })?;
    let hand = HandmadeTcp::on(&handoff.farm, handoff.client())?;
    let punted = || Ok::<u64, anyhow::Error>(handoff.evener.status()?.punted.values().sum());
    let mut calls = Vec::new();
    for family in Family::BOTH {
        for path in ["/who", "/./who"] {
            for _ in 0..4 {
                let mut call = hand.call(u16::try_from(calls.len())?, handoff.service(family))?;
                let request = get("x", path);
                call.acknowledge(0)?;
                call.send_data(0, &request)?;
                call.listen(|call| call.end() == Some(End::Reset))?;
                for _ in 0..3 {
                    call.repeat(0, &request)?;
                }
                calls.push(call);
            }
        }
    }
    wait::until("it is known what became of those that were read", || Ok(punted()? >= 8))?;
    for call in &calls {
        let client = call.client();
        assert_eq!(runs.of(client), 1, "{client}");
    }
    // Requests after all others are served as well.
    for family in Family::BOTH {
        let mut last = hand.call(u16::try_from(calls.len())?, handoff.service(family))?;
        last.acknowledge(0)?;
        last.send_data(0, get("x", "/who"))?;
        last.listen(|call| call.end() == Some(End::Reset))?;
        calls.push(last);
    }
    let more: Vec<(IpAddr, u16, usize)> = calls
        .iter()
        .map(|call| (call.client().ip(), call.client().port(), runs.of(call.client())))
        .filter(|(.., runs)| *runs != 1)
        .collect();
    assert_eq!(more, [], "each ran once");
    Ok(())
}
