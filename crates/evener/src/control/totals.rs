//! Counters of removed servers, by service, so that a service's totals never decrease. A file
//! beside the daemon's lock stores the totals, so they survive the daemon as sessions do.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evener_core::farm::plan::{Plan, ServerName, identity};
use evener_dataplane::ServerCounters;

use crate::runtime::files;

/// Totals by service, and the service of each server.
#[derive(Debug, Default)]
pub(super) struct ServiceTotals {
    /// `None` in a test without a folder.
    path: Option<PathBuf>,
    gone: Arc<BTreeMap<String, ServerCounters>>,
    /// Services of the servers in force, by identity.
    /// An adopted data plane may have servers that are not in the file. Only this map has their
    /// services.
    services: BTreeMap<u64, String>,
}

impl ServiceTotals {
    /// Reads the totals that an earlier daemon stored in this folder, if its data plane is adopted.
    pub(super) fn open(directory: &Path, adopted: bool) -> ServiceTotals {
        let path = path(directory);
        let mut totals = ServiceTotals { path: Some(path.clone()), ..ServiceTotals::default() };
        if !adopted {
            // The totals belong to a data plane that is gone.
            let _ = fs::remove_file(path);
            return totals;
        }
        for line in fs::read_to_string(path).unwrap_or_default().lines() {
            totals.read_line(line);
        }
        totals
    }

    /// Parses a line: `gone PACKETS BYTES CONNECTIONS SERVICE` or `server IDENTITY SERVICE`.
    fn read_line(&mut self, line: &str) -> Option<()> {
        let (kind, rest) = line.split_once(' ')?;
        match kind {
            "gone" => {
                let mut words = rest.splitn(4, ' ');
                let mut number = || words.next()?.parse().ok();
                let counted = ServerCounters { packets: number()?, bytes: number()?, connections: number()? };
                Arc::make_mut(&mut self.gone).insert(words.next()?.to_owned(), counted);
            }
            "server" => {
                let (identity, service) = rest.split_once(' ')?;
                self.services.insert(identity.parse().ok()?, service.to_owned());
            }
            _ => {}
        }
        Some(())
    }

    /// Adds the counters of a removed server.
    pub(super) fn add(&mut self, identity: u64, counted: ServerCounters) {
        if let Some(service) = self.services.get(&identity) {
            let gone = Arc::make_mut(&mut self.gone).entry(service.clone()).or_default();
            *gone = *gone + counted;
        }
    }

    /// Returns the counters of removed servers, by service.
    pub(super) fn gone(&self) -> Arc<BTreeMap<String, ServerCounters>> {
        Arc::clone(&self.gone)
    }

    /// Records the services of a plan's servers, and writes the file if anything has changed.
    pub(super) fn note_plan(&mut self, plan: &Plan, has_gone: bool) {
        let identified =
            |ServerName { service, server }: &ServerName| (identity(service, server), service.clone());
        let services: BTreeMap<u64, String> = plan.servers.values().map(identified).collect();
        if services == self.services && !has_gone {
            return;
        }
        self.services = services;
        if let Err(error) = self.write() {
            tracing::warn!(%error, "failed to save the counters of removed servers; they are lost at a restart");
        }
    }

    fn write(&self) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let gone = self.gone.iter().map(|(service, counted)| {
            let ServerCounters { packets, bytes, connections } = counted;
            format!("gone {packets} {bytes} {connections} {service}\n")
        });
        let servers =
            self.services.iter().map(|(identity, service)| format!("server {identity} {service}\n"));
        files::replace(path, gone.chain(servers).collect::<String>().as_bytes())
    }
}

/// Returns the path of the file.
pub(super) fn path(directory: &Path) -> PathBuf {
    directory.join("totals")
}
