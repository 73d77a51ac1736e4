//! ICMP: the service's address answers echo requests, and errors about a server's packets reach
//! that server with the server's own address.

use std::net::SocketAddr;

use anyhow::Result;
use evener_lab::cases;
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::clients::icmp::{self, Error, Listener};
use evener_lab::harness::wait;
use evener_lab::network::family::Family;
use evener_lab::servers::nginx;

use crate::stage::{Plan, Stage, Way};

by_every_way! { errors_reach_the_server_that_they_are_about }

/// The director answers before a method is applied.
mod echo {
    use super::{Result, Way};

    on_both_engines! { the_service_echoes }

    fn the_service_echoes(engine: &str) -> Result<()> {
        super::the_service_echoes(engine, Way::L2)
    }
}

fn the_service_echoes(engine: &str, way: Way) -> Result<()> {
    for family in Family::BOTH {
        let stage = Plan::new(engine, way, family).stage(1)?;
        for len in [0, 1, 56, 1400] {
            icmp::echo(stage.client(), stage.service.ip(), len)?;
        }
        assert!(stage.counted("echo_answered")? >= 4, "{family}");
    }
    Ok(())
}

/// Addresses of a router on the Internet.
const SOMEWHERE: [&str; 2] = ["198.18.0.1", "2001:db8:dead::1"];

/// Sends an ICMP error about a packet of the service to a client, as a router would.
fn write_error(stage: &Stage, kind: &str, family: Family, client: SocketAddr) -> Result<()> {
    let raw = stage.farm.router().raw(1)?;
    let from = if family == Family::V4 { SOMEWHERE[0] } else { SOMEWHERE[1] };
    let (vip, ip) = (stage.service.ip(), if family == Family::V4 { "ip" } else { "ip6" });
    let words = format!(
        "eth {} > {} {ip} {from} > {vip} icmp {kind} {ip} {vip} > {} tcp 80 > {} A payload 100",
        raw.mac(),
        stage.farm.director().mac(),
        client.ip(),
        client.port(),
    );
    raw.send(&cases::frame(&words)?)
}

fn errors_reach_the_server_that_they_are_about(engine: &str, way: Way) -> Result<()> {
    for family in Family::BOTH {
        let stage = Plan::new(engine, way, family).stage(2)?;
        let listeners: Vec<Listener> =
            stage.farm.servers().iter().map(|host| Listener::open(host, family)).collect::<Result<_>>()?;
        let (time_exceeded, unreachable) =
            if family == Family::V4 { ((11, 0), (3, 1)) } else { ((3, 0), (1, 3)) };
        for (words, (kind, code)) in [("time-exceeded", time_exceeded), ("unreach", unreachable)] {
            for _ in 0..2 {
                let mut visit = HttpConnection::open(stage.client(), stage.service)?;
                let owner = visit.who()?;
                write_error(&stage, words, family, visit.client())?;
                let mut client_errors = Vec::new();
                wait::until("a server is told", || {
                    for (listener, host) in listeners.iter().zip(stage.farm.servers()) {
                        let errors =
                            listener.errors()?.into_iter().map(|error| (host.name().to_owned(), error));
                        client_errors
                            .extend(errors.filter(|(_, error)| (error.kind, error.code) == (kind, code)));
                    }
                    Ok(!client_errors.is_empty())
                })?;
                let [(server, Error { from, to, .. })] = &client_errors[..] else {
                    panic!("{family}: {client_errors:?}")
                };
                let (from, to) = (*from, *to);
                assert_eq!(*server, owner, "{family} {words}");
                if way.is_nat() {
                    let own = stage.farm.servers().iter().find(|host| host.name() == owner).unwrap();
                    assert_eq!(from, SocketAddr::new(own.address_in(family), nginx::OTHER_PORT), "{family}");
                } else {
                    assert_eq!(from, stage.service, "{family}");
                }
                assert_eq!(to == visit.client(), way != Way::SourceNat, "{family}: {to}");
                // An error alone never ends an established connection.
                assert_eq!(visit.who()?, owner, "{family} {words}");
            }
        }
    }
    Ok(())
}
