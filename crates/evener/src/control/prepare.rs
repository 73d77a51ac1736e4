//! Checks a farm against this host before it is put in force.

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
    /// Checks if a daemon could start with this farm on this host. Probes the addresses that only
    /// the new farm has.
    pub(super) async fn prepare(
        &mut self,
        config: Config,
        named: NamedFiles,
    ) -> Result<(PreparedFarm, Option<ProbedAddresses>), String> {
        let network = network::read().await.map_err(|error| error.to_string())?;
        let idle = self.executor.is_idle();
        if idle && config.takes_packets() {
            return Err(format!(
                "services that forward packets need an engine, and there is none: {RESTART}"
            ));
        }
        let links = match idle {
            true => BTreeMap::new(),
            false => network
                .pick_interfaces(&config.engine.interfaces, &config.services)
                .map_err(|error| NetworkError::from(error).to_string())?,
        };
        self.executor.check_identity_unchanged(&config, &network)?;
        self.executor.check_handoff_unchanged(&config)?;
        open_log(&config)?;
        let farm = config.description();
        if !idle {
            self.listen_on_links(&farm, &network, &links)?;
        }
        let probed = ProbedAddresses::send(&self.executor, &farm, &links);
        if let Some(local_server) = &mut self.local_server {
            local_server.apply(&config, &network).await.map_err(|error| error.to_string())?;
        }
        let opened = self.executor.groups.open(&config, &named.groups).map_err(|error| error.to_string())?;
        let opened_names =
            self.executor.names.open(&config, named.dns.clone()).map_err(|error| error.to_string())?;
        Ok((PreparedFarm { config, farm, network, links, opened, opened_names, named }, probed))
    }

    /// Also listens to neighbours on the interfaces of a new farm.
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
            format!("failed to listen for neighbours on {name}: {error}")
        })
    }

    /// Adapts the rest of the daemon to the farm in force, also after a refused farm was adopted in
    /// part.
    pub(super) async fn settle(&mut self) {
        self.restore_server().await;
        self.executor.follow_network();
        self.show_local();
    }
}

/// A farm that has passed all checks.
pub(super) struct PreparedFarm {
    pub(super) config: Config,
    pub(super) farm: Farm,
    pub(super) network: Network,
    pub(super) links: BTreeMap<u32, Mac>,
    /// Open sockets of groups, not served yet.
    pub(super) opened: Option<GroupSockets>,
    /// Zones and open sockets of names.
    pub(super) opened_names: OpenedNames,
    pub(super) named: NamedFiles,
}

/// Returns help on keys that a running daemon or data plane can't change.
pub(super) fn remedy(keys: &str) -> String {
    match keys.contains("sessions") {
        true => "stop the daemon without --keep (SIGQUIT does that always) and start it: a session table has the size it was \
                 made with, and ends with its sessions"
            .to_owned(),
        false => RESTART.to_owned(),
    }
}

/// Settings of a file that a daemon reads at its start only.
#[derive(Debug)]
pub(super) struct StartupSettings {
    engine: EngineConfig,
    admin: AdminConfig,
}

impl StartupSettings {
    /// Returns the settings that a daemon has after a start with this file. Sessions of an adopted
    /// engine stay in its tables, so the tables' sizes are the engine's.
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

    /// Returns the keys that differ in another file.
    pub(super) fn differences(&self, config: &Config) -> Option<String> {
        let (old, new) = (&self.engine, &config.engine);
        let keys = [
            ("[engine] kind", old.kind != new.kind),
            ("[engine] xdp_mode", old.xdp_mode != new.xdp_mode),
            // A smaller number needs no restart: it only limits the used part of the tables.
            ("[engine] sessions_max", old.sessions_max < new.sessions_max),
            ("[engine] sessions6_max", old.sessions6_max < new.sessions6_max),
            ("[engine] threads", old.threads != new.threads),
            ("[admin]", self.admin != config.admin),
        ];
        let differ: Vec<&str> = keys.iter().filter(|(_, differs)| *differs).map(|(key, _)| *key).collect();
        (!differ.is_empty()).then(|| differ.join(", "))
    }
}
