//! Clients that connect to a `nat` server directly, not through the service.

use std::net::SocketAddr;

use anyhow::Result;
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::harness::wait;
use evener_lab::network::family::Family;
use evener_lab::servers::nginx;

use crate::file;
use crate::stage::{Plan, Way};

on_both_engines! {
    a_closing_session_leaves_its_port_to_others,
    a_closing_session_leaves_its_port_to_others_over_ipv6,
}

fn a_closing_session_leaves_its_port_to_others(engine: &str) -> Result<()> {
    from_the_port_of_a_closing_session(engine, Family::V4)
}

fn a_closing_session_leaves_its_port_to_others_over_ipv6(engine: &str) -> Result<()> {
    from_the_port_of_a_closing_session(engine, Family::V6)
}

fn from_the_port_of_a_closing_session(engine: &str, family: Family) -> Result<()> {
    let farm = Way::Nat.builder().servers(1).build()?;
    farm.director().netns().sysctl(&[("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")])?;
    // No session expires during the test.
    let keys = "timeouts = { closing = \"2m\" }\n";
    let stage = Plan::new(engine, Way::Nat, family).start(farm, keys, file::ALWAYS_UP, &[1])?;
    let server = SocketAddr::new(stage.farm.server(0).address_in(family), nginx::OTHER_PORT);
    for port in 40_000..40_003 {
        let mut visit = HttpConnection::open_from(stage.client(), port, stage.service)?;
        assert_eq!(visit.who()?, "web1");
        let client = visit.client().to_string();
        drop(visit);
        let state = || -> Result<Option<String>> {
            let sessions = stage.evener.sessions()?;
            Ok(sessions.into_iter().find(|session| session.client == client).map(|session| session.state))
        };
        wait::until("both sides have closed", || Ok(state()?.as_deref() == Some("closing")))?;
        assert_eq!(HttpConnection::open_from(stage.client(), port, server)?.who()?, "web1");
        assert_eq!(state()?, None, "the server has given these ends to another connection");
    }
    Ok(())
}
