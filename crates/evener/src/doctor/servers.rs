//! Checks of the servers: the findings of their agents, and whether full-size packets reach the
//! servers.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use evener_core::director::tunnel_source;
use evener_core::farm::Service;
use tokio::task::JoinSet;

use crate::admin::message;
use crate::agent::{ServerKeys, findings};
use crate::config::{AgentListen, Config};
use crate::io::network::Network;
use crate::io::probe::size::{PathSize, SizePath, measure};
use crate::runtime::secret;
use crate::views::{Finding, Severity};

/// Maximum number of servers queried at a time.
const AT_ONCE: usize = 64;

/// A server to query.
struct ListedServer {
    name: String,
    address: IpAddr,
    path: Option<SizePath>,
}

/// Queries each server of the file once, concurrently.
pub(super) async fn check_servers(config: &Config, network: &Network) -> Vec<Finding> {
    let keys = config.farm.secret_file.as_ref().and_then(|file| secret::read(file).ok());
    let keys = keys.as_ref().map(ServerKeys::of);
    let port = match config.agent.listen {
        Some(AgentListen::Everywhere { port }) => Some(port),
        Some(AgentListen::At(address)) if !address.ip().is_loopback() => Some(address.port()),
        _ => None,
    };
    let mut waiting: Vec<ListedServer> = servers(config, network).into_values().collect();
    let mut findings = Vec::new();
    while !waiting.is_empty() {
        let mut tasks = JoinSet::new();
        for mut server in waiting.drain(..waiting.len().min(AT_ONCE)) {
            if let (Some(path), Some((port, keys))) = (&mut server.path, port.zip(keys)) {
                path.agent = Some((port, keys.probes));
            }
            tasks.spawn(check_server(server, port.zip(keys)));
        }
        findings.extend(tasks.join_all().await.into_iter().flatten());
    }
    findings.sort_by(|one, other| one.check.cmp(&other.check));
    if !findings.is_empty() && port.zip(keys).is_none() {
        let message = "Agents can't be asked for their findings: they answer directors with `listen = \":9183\"` in [agent] and \
                       `secret_file` in [farm].";
        findings.push(Finding::ok("servers", message));
    }
    findings
}

/// Returns the listed servers, once each, by address.
fn servers(config: &Config, network: &Network) -> BTreeMap<IpAddr, ListedServer> {
    let mut found = BTreeMap::new();
    for service in &config.services {
        for server in service.servers.iter().filter(|server| !network.is_local(server.address)) {
            let name = format!("{}/{}", service.name, server.name);
            let path = path(config, service, server.address, network);
            found.entry(server.address).or_insert(ListedServer { name, address: server.address, path });
        }
    }
    found
}

/// Returns the path of full-size packets to a server. `None` if it can't be measured.
fn path(config: &Config, service: &Service, server: IpAddr, network: &Network) -> Option<SizePath> {
    let IpAddr::V4(address) = server else { return None };
    let hop = network.next_hop(server)?;
    let own = network.source_for(hop.ifindex, server)?;
    let vip = service.addresses.iter().map(SocketAddr::ip).find(IpAddr::is_ipv4);
    let is_tunnel = service.method.encapsulates();
    let own = if is_tunnel { tunnel_source(&config.description(), network, own) } else { own };
    let (IpAddr::V4(from), Some(IpAddr::V4(vip))) = (own, vip) else { return None };
    let mtu = u16::try_from(hop.mtu).unwrap_or(u16::MAX);
    Some(SizePath {
        from,
        server: address,
        tunnel: is_tunnel.then_some((vip, service.encapsulation)),
        mtu: service.tunnel_mtu.filter(|_| is_tunnel).map_or(mtu, |own| own.min(mtu)),
        agent: None,
    })
}

async fn check_server(server: ListedServer, agent: Option<(u16, ServerKeys)>) -> Vec<Finding> {
    let ListedServer { name, address, path } = server;
    let mut found = Vec::new();
    if let Some((port, keys)) = agent {
        match findings::fetch(SocketAddr::new(address, port), keys.findings).await {
            Ok(findings) => {
                let wrong = findings.into_iter().filter(|finding| finding.state != Severity::Ok);
                found.extend(wrong.map(|finding| Finding {
                    check: format!("{name}: {}", message(&finding.check)),
                    ..finding
                }));
            }
            Err(why) => {
                let message = format!("Its agent at port {port} can't be asked: {why}.");
                found.push(Finding::ok(&name, message));
            }
        }
    }
    let size = path.map(|path| tokio::task::spawn_blocking(move || (path.mtu, measure(&path))));
    match size {
        Some(task) => match task.await {
            Ok((mtu, result)) => found.push(judge_size(&name, address, mtu, result)),
            Err(error) => {
                found.push(Finding::warn(&name, format!("Full-size packets: not measured: {error}.")))
            }
        },
        None => found.push(Finding::ok(&name, "Full-size packets: not measured.")),
    }
    found
}

fn judge_size(name: &str, address: IpAddr, mtu: u16, result: std::io::Result<PathSize>) -> Finding {
    match result {
        Ok(PathSize::Whole) => Finding::ok(name, format!("Packets of {mtu} bytes arrive at {address}.")),
        Ok(PathSize::Narrow(most)) => Finding::fail(
            name,
            format!(
                "The path MTU to {address} is {most} bytes, that of the first link {mtu}: large transfers hang if ICMP \"fragmentation needed\" is dropped. Permit it, or set `mtu = {most}` in the service with method \"tunnel\", or set the MTU of the interface."
            ),
        ),
        Ok(PathSize::Unknown) => Finding::ok(
            name,
            format!(
                "Full-size packets to {address}: not measured, since neither its agent nor ICMP echo answers."
            ),
        ),
        Err(error) => Finding::ok(name, format!("Full-size packets to {address}: not measured: {error}.")),
    }
}
