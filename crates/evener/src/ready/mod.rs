//! Readiness of this host as a director, for keepalived, a BGP speaker or a balancer in front. Each
//! second the daemon writes its state to a record. The record survives the daemon, as the data
//! plane does. The readiness follows from the record and the host's current state, without a query
//! to the daemon.

pub mod command;
mod seen;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

pub(crate) use seen::Seen;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use evener_core::director::ServiceReadiness;
use serde::{Deserialize, Serialize};

use crate::config::AnnounceConfig;
use crate::runtime::files;
use crate::runtime::spelling::meant;

const FORMAT: u32 = 1;
/// Age from which a record's daemon counts as dead or hanging, in milliseconds.
const SILENCE_MS: u64 = 5_000;
/// Maximum size of a record, in bytes.
const RECORD_BYTES: u64 = 4 << 20;

/// Readiness as known by the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) format: u32,
    /// Time of the record, by the monotonic clock in milliseconds.
    pub(crate) at_ms: u64,
    /// Time for which the record is valid if the data plane forwards without its daemon, in
    /// milliseconds.
    pub(crate) orphan_ms: u64,
    /// True if the kernel forwards packets, even without the daemon.
    pub(crate) is_in_kernel: bool,
    /// True if the operator has drained the director itself.
    pub(crate) is_drained: bool,
    pub(crate) interfaces: Vec<NeededInterface>,
    /// Host routes of the services that need them. `None` in a record of a version without them.
    #[serde(default)]
    pub(crate) announce: Option<AnnounceConfig>,
    pub(crate) services: Vec<ServiceRecord>,
}

/// An interface of the director.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct NeededInterface {
    pub(crate) ifindex: u32,
    pub(crate) name: String,
    /// True if the file names the interface. No other interface can replace it then.
    pub(crate) is_named: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ServiceRecord {
    name: String,
    addresses: Vec<SocketAddr>,
    #[serde(default)]
    needs_route: bool,
    needs_daemon: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    obstacle: Option<String>,
}

impl From<ServiceReadiness> for ServiceRecord {
    fn from(readiness: ServiceReadiness) -> ServiceRecord {
        let ServiceReadiness { service, addresses, needs_route, needs_daemon, obstacle } = readiness;
        ServiceRecord { name: service, addresses, needs_route, needs_daemon, obstacle }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadinessView {
    /// True if all requested services are ready.
    pub ready: bool,
    /// Reason in one line. Empty if ready.
    pub reason: String,
    pub services: Vec<ServiceReadinessView>,
}

/// Readiness of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceReadinessView {
    pub service: String,
    pub addresses: Vec<SocketAddr>,
    pub ready: bool,
    /// Reason. Empty if ready.
    pub reason: String,
}

/// Settings of host routes, and the states of the addresses that need them.
pub(crate) type RoutedAddresses = Option<(AnnounceConfig, BTreeMap<IpAddr, RoutedState>)>;

/// State of an address that needs a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RoutedState {
    Ready,
    /// The operator has drained the director. It still serves what comes. With the reason in words.
    Drained(String),
    /// The daemon is dead or hangs, and the kernel engine forwards without it.
    Orphaned,
    /// With the reason in words.
    NotReady(String),
}

/// Returns the path of a daemon's record.
pub(crate) fn path(directory: &Path) -> PathBuf {
    directory.join("ready.json")
}

impl Record {
    /// Creates an empty record with this time.
    pub(crate) fn at(at_ms: u64) -> Record {
        Record {
            format: FORMAT,
            at_ms,
            orphan_ms: 0,
            is_in_kernel: false,
            is_drained: false,
            announce: None,
            interfaces: Vec::new(),
            services: Vec::new(),
        }
    }

    /// Writes the record.
    ///
    /// # Errors
    /// If the record can't be written.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        files::replace(path, &serde_json::to_vec(self)?)
    }

    fn read(path: &Path) -> Result<Record, InputError> {
        let bytes = files::bounded(path, RECORD_BYTES).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => InputError {
                is_missing: true,
                reason: "no daemon has run here yet, or it was stopped".to_owned(),
            },
            _ => format!("failed to read {}: {error}", path.display()).into(),
        })?;
        let record: Record = serde_json::from_slice(&bytes)
            .map_err(|error| format!("{} can't be understood: {error}", path.display()))?;
        match record.format {
            FORMAT => Ok(record),
            other => {
                Err(format!("{} has format {other}, and this program reads {FORMAT}", path.display()).into())
            }
        }
    }

    pub(crate) fn judge(&self, seen: &Seen, subject: Option<&str>) -> ReadinessView {
        let services: Vec<&ServiceRecord> = self.services.iter().filter(|one| one.is(subject)).collect();
        let of_host = self.obstacle(seen);
        let daemon = self.daemon_obstacle(seen);
        let judged = |one: &ServiceRecord| {
            let of_daemon = daemon.clone().filter(|_| one.needs_daemon);
            let obstacle = of_host.clone().or(of_daemon).or(one.obstacle.clone());
            ServiceReadinessView {
                service: one.name.clone(),
                addresses: one.addresses.clone(),
                ready: obstacle.is_none(),
                reason: obstacle.unwrap_or_default(),
            }
        };
        let services: Vec<ServiceReadinessView> = services.into_iter().map(judged).collect();
        let nothing = || match subject {
            Some(subject) => {
                let names = self.services.iter().map(|one| one.name.as_str());
                format!("no service is called {subject} or has that address; {}", meant(subject, names))
            }
            None => "the farm has no service".to_owned(),
        };
        let first = services.iter().find(|one| !one.ready);
        let reason = match (of_host, first) {
            (Some(obstacle), _) => obstacle,
            (None, Some(one)) => format!("{}: {}", one.service, one.reason),
            (None, None) if services.is_empty() => nothing(),
            (None, None) => String::new(),
        };
        ReadinessView { ready: reason.is_empty(), reason, services }
    }

    /// Returns the states of the addresses that need routes.
    pub(crate) fn routed(&self, seen: &Seen) -> BTreeMap<IpAddr, RoutedState> {
        let needing = self.services.iter().filter(|one| one.needs_route);
        let addresses: BTreeSet<IpAddr> =
            needing.clone().flat_map(|one| &one.addresses).map(|address| address.ip()).collect();
        let of_host = self.host_obstacle(seen);
        let is_silent = seen.now_ms.saturating_sub(self.at_ms) > SILENCE_MS;
        let state = |address: IpAddr| {
            let here = needing.clone().filter(|one| one.addresses.iter().any(|at| at.ip() == address));
            let obstacles = here.map(|one| one.obstacle.as_ref().map(|why| format!("{}: {why}", one.name)));
            // One service that works is enough: a failed one must not take the others with it.
            let of_services = obstacles.collect::<Option<Vec<String>>>().map(|all| all.join("; "));
            match (of_host.clone().or(of_services), self.drain_obstacle()) {
                (Some(reason), _) => RoutedState::NotReady(reason),
                (None, Some(reason)) => RoutedState::Drained(reason),
                (None, None) if is_silent => RoutedState::Orphaned,
                (None, None) => RoutedState::Ready,
            }
        };
        addresses.into_iter().map(|address| (address, state(address))).collect()
    }

    /// Returns why no service of this host is ready, if so.
    fn obstacle(&self, seen: &Seen) -> Option<String> {
        self.drain_obstacle().or_else(|| self.host_obstacle(seen))
    }

    fn drain_obstacle(&self) -> Option<String> {
        let reason = || "this director is drained: `evener undrain --director` ends that".to_owned();
        self.is_drained.then(reason)
    }

    /// Returns why this host can't serve, if so.
    fn host_obstacle(&self, seen: &Seen) -> Option<String> {
        let age_ms = seen.now_ms.saturating_sub(self.at_ms);
        if self.at_ms > seen.now_ms {
            return Some("the daemon's record is older than the last boot of the host".to_owned());
        }
        if self.is_in_kernel && age_ms > self.orphan_ms.max(SILENCE_MS) {
            let (age, orphan) = (age_ms / 1_000, self.orphan_ms / 1_000);
            return Some(format!(
                "the daemon has been silent for {age} s: its last state of servers is valid for {orphan} s ([farm] orphan)"
            ));
        }
        self.daemon_obstacle(seen).filter(|_| !self.is_in_kernel).or_else(|| self.link_obstacle(seen))
    }

    /// Returns an obstacle if the daemon is dead.
    fn daemon_obstacle(&self, seen: &Seen) -> Option<String> {
        let age_ms = seen.now_ms.saturating_sub(self.at_ms);
        (age_ms > SILENCE_MS).then(|| {
            format!(
                "the daemon has been silent for {} s, and no data plane answers or forwards",
                age_ms / 1_000
            )
        })
    }

    /// Returns why no packets can arrive, if so. All interfaces that the file names are needed. Of
    /// other interfaces, one suffices.
    fn link_obstacle(&self, seen: &Seen) -> Option<String> {
        let faults: Vec<(&NeededInterface, Option<String>)> =
            self.interfaces.iter().map(|one| (one, self.fault(one, seen))).collect();
        let all_fail = faults.iter().all(|(_, fault)| fault.is_some());
        let mut grave = faults.into_iter().filter(|(one, _)| all_fail || one.is_named);
        grave.find_map(|(_, fault)| fault)
    }

    fn fault(&self, interface: &NeededInterface, seen: &Seen) -> Option<String> {
        let NeededInterface { ifindex, name, .. } = interface;
        match seen.carriers.get(ifindex) {
            None => Some(format!("interface {name} is gone")),
            Some(false) => Some(format!("interface {name} is down")),
            Some(true) if self.is_in_kernel && !seen.attached.contains(ifindex) => {
                Some(format!("interface {name} has lost Evener's program"))
            }
            Some(true) => None,
        }
    }
}

impl ServiceRecord {
    /// True if the service has this name or address. The port is optional.
    fn is(&self, subject: Option<&str>) -> bool {
        let Some(subject) = subject else { return true };
        let bare: Option<IpAddr> = subject.trim_matches(['[', ']']).parse().ok();
        let full: Option<SocketAddr> = subject.parse().ok();
        let has = |address: &SocketAddr| {
            bare.is_some_and(|bare| bare.to_canonical() == address.ip().to_canonical())
                || full == Some(*address)
        };
        self.name == subject || self.addresses.iter().any(has)
    }
}

/// A daemon's record and the host's state, or the reason why they can't be read.
#[derive(Clone, Debug)]
pub(crate) struct ReadinessInput(Result<(Record, Seen), InputError>);

/// Reason why the readiness is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InputError {
    /// True if there is no record, and not only for a moment: no daemon serves here.
    pub(crate) is_missing: bool,
    /// Reason in words.
    pub(crate) reason: String,
}

impl From<String> for InputError {
    fn from(reason: String) -> InputError {
        InputError { is_missing: false, reason }
    }
}

impl ReadinessInput {
    /// Reads the record of this folder, and the host's state.
    pub(crate) async fn at(directory: &Path) -> ReadinessInput {
        let looked = async {
            let record = Record::read(&path(directory))?;
            let seen = Seen::now(&record).await?;
            Ok((record, seen))
        };
        ReadinessInput(looked.await)
    }

    /// Returns the settings of host routes, and the states of the addresses that need them. Without
    /// a record there are none.
    pub(crate) fn routed(&self) -> Result<RoutedAddresses, InputError> {
        let (record, seen) = self.0.as_ref().map_err(Clone::clone)?;
        Ok(record.announce.map(|settings| (settings, record.routed(seen))))
    }

    /// True if the farm is known, and has no service of this name or address.
    pub(crate) fn lacks(&self, subject: &str) -> bool {
        let is_known = |record: &Record| record.services.iter().any(|one| one.is(Some(subject)));
        self.0.as_ref().is_ok_and(|(record, _)| !is_known(record))
    }

    /// Returns the readiness of all services, or of the one with this name or address.
    pub(crate) fn judge(&self, subject: Option<&str>) -> ReadinessView {
        match &self.0 {
            Ok((record, seen)) => record.judge(seen, subject),
            Err(error) => ReadinessView { ready: false, reason: error.reason.clone(), services: Vec::new() },
        }
    }
}
