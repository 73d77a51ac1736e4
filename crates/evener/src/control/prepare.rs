//! The check of a farm against this host, before anything of it is in force.

use std::collections::BTreeMap;

use evener_core::farm::Farm;
use evener_core::net::wire::Mac;
use evener_core::path::sessions::{buckets_for, sessions_for};

use super::conflicts::ProbedAddresses;
use super::names::OpenedNames;
use super::reading::NamedFiles;
use super::trace_control::open_log;
use super::{Daemon, IDLE_ENGINE, RESTART};
use crate::config::{AdminConfig, Config, EngineConfig};
use crate::io::network::{self, Network, NetworkError};
use crate::redirect::GroupSockets;

impl Daemon {
    /// Looks whether anything speaks against a farm that would keep a daemon from starting with it.
    /// Addresses that it newly has are asked for then.
    pub(super) async fn prepare(
        &mut self,
        config: Config,
        named: NamedFiles,
    ) -> Result<(PreparedFarm, Option<ProbedAddresses>), String> {
        let network = network::read().await.map_err(|error| error.to_string())?;
        let idle = self.executor.is_idle();
        if idle && config.takes_packets() {
            return Err(format!(
                "services that send packets on need an engine, and there is none: {RESTART}"
            ));
        }
        let links = match idle {
            true => BTreeMap::new(),
            false => network
                .pick_interfaces(&config.engine.interfaces, &config.services)
                .map_err(|error| NetworkError::from(error).to_string())?,
        };
        self.executor.still_this_host(&config, &network)?;
        self.executor.hands_over_still(&config)?;
        open_log(&config)?;
        let farm = config.description();
        if !idle {
            self.listen_on_links(&farm, &network, &links)?;
        }
        let probed = ProbedAddresses::send(&self.executor, &farm, &links);
        if let Some(local_server) = &mut self.local_server {
            local_server.fulfil(&config, &network).await.map_err(|error| error.to_string())?;
        }
        let opened = self.executor.groups.open(&config, &named.groups).map_err(|error| error.to_string())?;
        let opened_names =
            self.executor.names.open(&config, named.dns.clone()).map_err(|error| error.to_string())?;
        Ok((PreparedFarm { config, farm, network, links, opened, opened_names, named }, probed))
    }

    /// Hears the neighbours of a file's farm, too.
    fn listen_on_links(
        &mut self,
        farm: &Farm,
        network: &Network,
        links: &BTreeMap<u32, Mac>,
    ) -> Result<(), String> {
        let mut links_before = self.executor.director.links().clone();
        links_before.extend(links);
        let ipv6 = farm.has_ipv6() || self.executor.director.farm().has_ipv6();
        self.executor.neighbours.listen(&links_before, ipv6).map_err(|(ifindex, error)| {
            let name = network.interfaces.get(&ifindex).map_or("?", |interface| &interface.name);
            format!("neighbours can't be heard on {name}: {error}")
        })
    }

    /// Has the rest of the daemon follow the farm in force, also after it began to follow one that
    /// was refused.
    pub(super) async fn settle(&mut self) {
        self.restore_server().await;
        self.executor.follow_network();
        self.show_local();
    }
}

/// A farm that nothing speaks against.
pub(super) struct PreparedFarm {
    pub(super) config: Config,
    pub(super) farm: Farm,
    pub(super) network: Network,
    pub(super) links: BTreeMap<u32, Mac>,
    /// Sockets of groups, on which nobody answers yet.
    pub(super) opened: Option<GroupSockets>,
    /// Zones, and sockets by which queries come.
    pub(super) opened_names: OpenedNames,
    pub(super) named: NamedFiles,
}

/// The help for keys that a running daemon, or a running data plane, can't follow.
pub(super) fn remedy(keys: &str) -> String {
    match keys.contains("sessions") {
        true => "stop the daemon without --keep (SIGQUIT does that always) and start it: a session table has the size it was \
                 made with, and ends with its sessions"
            .to_owned(),
        false => RESTART.to_owned(),
    }
}

/// The part of a file that a daemon reads when it starts, and never again.
#[derive(Debug)]
pub(super) struct StartupSettings {
    engine: EngineConfig,
    admin: AdminConfig,
}

impl StartupSettings {
    /// As a daemon has it that starts with this file, where the engine didn't find it otherwise:
    /// sessions stay in the tables that an earlier daemon made.
    pub(super) fn of(config: &Config, engine: &dyn evener_dataplane::Engine) -> StartupSettings {
        let mut fixed = StartupSettings { engine: config.engine.clone(), admin: config.admin.clone() };
        if engine.kind() == IDLE_ENGINE {
            return fixed;
        }
        let [four, six] = engine.buckets();
        for (max, buckets) in [(&mut fixed.engine.sessions_max, four), (&mut fixed.engine.sessions6_max, six)]
        {
            if buckets_for(*max) != buckets {
                *max = sessions_for(buckets);
            }
        }
        fixed
    }

    /// The keys of it that differ in another file.
    pub(super) fn differences(&self, config: &Config) -> Option<String> {
        let (old, new) = (&self.engine, &config.engine);
        let keys = [
            ("[engine] kind", old.kind != new.kind),
            ("[engine] xdp_mode", old.xdp_mode != new.xdp_mode),
            // Less bounds what is in use of the tables.
            ("[engine] sessions_max", old.sessions_max < new.sessions_max),
            ("[engine] sessions6_max", old.sessions6_max < new.sessions6_max),
            ("[engine] threads", old.threads != new.threads),
            ("[admin]", self.admin != config.admin),
        ];
        let differ: Vec<&str> = keys.iter().filter(|(_, differs)| *differs).map(|(key, _)| *key).collect();
        (!differ.is_empty()).then(|| differ.join(", "))
    }
}
