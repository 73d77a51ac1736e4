//! Probes of paths to servers of names that ask for them: core says whose turn it is, and what is known of each.

use std::net::IpAddr;
use std::sync::Arc;

use evener_core::dns::{MeasuredPath, PathChange, PathMode, PathProbing, Paths};
use evener_core::farm::Service;
use evener_core::node::secret::Key;
use evener_core::pool::report::Report;
use evener_core::pool::{ReportKind, Reporting};
use tokio::sync::mpsc;

use super::own::{Answer, Told, list_of};
use crate::config::{Config, From, LOAD_PORT, NameConfig};
use crate::io::path_probe;

/// The paths of a file's names.
#[derive(Debug, Default)]
pub(super) struct Probing {
    paths: Paths,
    /// By which agents believe whoever asks.
    key: Option<Key>,
    /// A name that asks for probes, in whose name results come.
    name: Option<Arc<NameConfig>>,
}

impl Probing {
    /// Probes the paths that a file's names ask for from now on.
    pub(super) fn follow(&mut self, config: &Config, key: Option<Key>, now_ms: u64) {
        let names = config.dns.names.iter().filter(|name| name.probe.is_some());
        self.name = names.clone().next().cloned();
        self.key = key;
        self.paths.follow(names.flat_map(|name| wanted(config, name)), now_ms);
    }

    /// Begins what is due.
    pub(super) fn poll(&mut self, now_ms: u64, results: &mpsc::Sender<Told>) {
        let Some(name) = &self.name else { return };
        let Some(order) = self.paths.poll(now_ms) else { return };
        let (name, key, results) = (Arc::clone(name), self.key, results.clone());
        tokio::spawn(async move {
            let found = match (order.mode, key) {
                (PathMode::Udp, Some(key)) => path_probe::by_trains(order.to, &key).await,
                (PathMode::Udp, None) => Err("there is no secret of the farm".to_owned()),
                (PathMode::Paper, _) => path_probe::by_echoes(order.to.ip()).await,
            };
            // The loop ends first only when the daemon does.
            let _ = results.send(Told { name, answer: Answer::Path(order.to.ip(), found) }).await;
        });
    }

    /// A probe is through.
    pub(super) fn probed(
        &mut self,
        address: IpAddr,
        found: Result<MeasuredPath, String>,
        now_ms: u64,
    ) -> PathChange {
        self.paths.probed(address, found, now_ms)
    }

    /// Adds what is known of a path to a server's report where that says nothing; how old it is, in milliseconds, if it was used.
    pub(super) fn complete(&self, report: &mut Report, address: IpAddr, now_ms: u64) -> Option<u64> {
        self.paths.complete(report, address, now_ms)
    }

    /// When there is something to do next, in milliseconds of the monotonic clock.
    pub(super) fn next_at(&self) -> u64 {
        self.paths.next_at()
    }
}

/// Servers of a name, with the ports of their agents: those of its own, and those that its services list.
fn wanted(config: &Config, name: &NameConfig) -> Vec<(IpAddr, u16, PathProbing)> {
    let Some(probing) = name.probe else { return Vec::new() };
    let own = list_of(name).into_iter().flat_map(|list| {
        let port = agent_port(list.settings.report.as_deref());
        list.servers.iter().map(move |server| (server.address.ip(), port))
    });
    let services: &[String] = match &name.from {
        From::Services { names, .. } => names,
        From::Servers(_) => &[],
    };
    let listed = services.iter().flat_map(|service| {
        let of_service = config.services.iter().filter(move |one| one.name == *service).flat_map(servers_of);
        let groups = config.groups.iter().filter(move |one| one.group.name == *service);
        let members = groups.flat_map(|one| &one.group.members).filter_map(|member| member.url.address());
        of_service.chain(members.map(|address| (address, LOAD_PORT)))
    });
    own.chain(listed).map(|(address, port)| (address, port, probing)).collect()
}

fn servers_of(service: &Service) -> Vec<(IpAddr, u16)> {
    let port = agent_port(service.report.as_ref());
    service.servers.iter().map(|server| (server.address, port)).collect()
}

/// Where an agent answers: where it is asked for its load, if by HTTP.
fn agent_port(report: Option<&Reporting>) -> u16 {
    report.filter(|report| matches!(report.kind, ReportKind::Http(_))).map_or(LOAD_PORT, |report| report.port)
}
