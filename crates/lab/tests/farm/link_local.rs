//! Clients with a link-local source address, which is valid only on one link (RFC 4291, section
//! 2.5.6).

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use anyhow::{Context, Result, ensure};
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::farm::Farm;
use evener_lab::harness::engines::on_engine;
use evener_lab::network::family::Family;
use evener_lab::network::host::Host;

use crate::file;
use crate::own_address::{GENERIC, NATIVE, receive_by_xdp};
use crate::stage::{Plan, Stage, Way};

on_both_engines! {
    source_nat_serves_link_local_clients_of_any_link,
    nat_serves_link_local_clients_of_the_servers_link,
}

/// Generates tests for XDP modes, which forward replies without the host's stack.
macro_rules! by_xdp {
    ($($module:ident, $engine:ident);+) => {
        $(mod $module {
            #[test]
            fn source_nat() -> anyhow::Result<()> {
                super::on_engine(super::$engine, super::source_nat_serves_link_local_clients_of_any_link)
            }

            #[test]
            fn nat() -> anyhow::Result<()> {
                super::on_engine(super::$engine, super::nat_serves_link_local_clients_of_the_servers_link)
            }
        })+
    };
}

by_xdp!(generic, GENERIC; native, NATIVE);

/// Returns a host's link-local address on an interface, to connect from.
fn link_local(host: &Host, interface: &str) -> Result<SocketAddrV6> {
    let list = host.run(&["ip", "-6", "-oneline", "address", "show", "dev", interface, "scope", "link"])?;
    let address = list.split_whitespace().skip_while(|word| *word != "inet6").nth(1);
    let address = address.and_then(|found| found.split('/').next()).with_context(|| list.clone())?;
    let index = host.enter(|| nix::net::if_::if_nametoindex(interface))??;
    Ok(SocketAddrV6::new(address.parse::<Ipv6Addr>()?, 0, 0, index))
}

/// Prepares the far ends of veth pairs as the engine needs. They stay ready while the result is
/// kept.
fn far_ends(farm: &Farm, engine: &str) -> Result<Vec<impl Send + use<>>> {
    if engine == NATIVE { receive_by_xdp(farm) } else { Ok(Vec::new()) }
}

fn five_visits(stage: &Stage, client: &Host, from: SocketAddrV6) -> Result<()> {
    for visit in 1..=5 {
        let served = HttpConnection::open_at(client, SocketAddr::V6(from), stage.service)
            .and_then(HttpConnection::who_and_close);
        served.with_context(|| format!("visit {visit} from {from}: {:?}", stage.evener.status()))?;
    }
    assert_eq!(stage.counted("no_route")?, 0);
    Ok(())
}

fn source_nat_serves_link_local_clients_of_any_link(engine: &str) -> Result<()> {
    let farm = Farm::builder().routed().servers(2).server_lans(2).build()?;
    let _far_ends = far_ends(&farm, engine)?;
    let stage = Plan::new(engine, Way::SourceNat, Family::V6).start(farm, "", file::ALWAYS_UP, &[1, 0])?;
    let router = stage.farm.router();
    let at_the_front = link_local(router, "eth1")?;
    five_visits(&stage, router, at_the_front)?;
    // The second server is on a separate link.
    let other = stage.farm.server(1);
    five_visits(&stage, other, link_local(other, "eth0")?)
}

fn nat_serves_link_local_clients_of_the_servers_link(engine: &str) -> Result<()> {
    let farm = Farm::builder().routed().servers(2).build()?;
    let _far_ends = far_ends(&farm, engine)?;
    let stage = Plan::new(engine, Way::Nat, Family::V6).start(farm, "", file::ALWAYS_UP, &[1, 0])?;
    let client = stage.farm.server(1);
    let from = link_local(client, "eth0")?;
    let director = stage.farm.director().interfaces().get(1).context("a director without servers")?.address6;
    // The client is a neighbour of the server, so replies pass through the director only with this
    // route.
    stage.farm.server(0).ip(&[format!(
        "route add {}/128 via {} dev eth0",
        IpAddr::V6(*from.ip()),
        director
    )])?;
    five_visits(&stage, client, from)?;
    let output =
        stage.evener.command(&["explain", &format!("[{}]:40000", from.ip()), &stage.service.to_string()])?;
    ensure!(output.contains("(link_local)"), "{output}");
    Ok(())
}
