//! Whether this host, as a director, is ready for clients: what keepalived, a BGP speaker or a
//! balancer in front goes by. The daemon notes what it knows in a record each second, which
//! outlives it as the data plane does; whoever asks looks at the host besides, so that no answer is
//! needed from a daemon.

pub mod command;
mod seen;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

pub(crate) use seen::Seen;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use evener_core::director::ServiceReadiness;
use serde::{Deserialize, Serialize};

use crate::runtime::files;
use crate::runtime::spelling::meant;

/// The shape of records.
const FORMAT: u32 = 1;
/// A daemon whose record is older, in milliseconds, has died or hangs.
const SILENCE_MS: u64 = 5_000;
/// A larger file is no record.
const RECORD_BYTES: u64 = 4 << 20;

/// A daemon's knowledge of its readiness.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) format: u32,
    /// When it was written, by the monotonic clock in milliseconds.
    pub(crate) at_ms: u64,
    /// For how long it holds where the data plane forwards without its daemon, in milliseconds.
    pub(crate) orphan_ms: u64,
    /// Whether packets are forwarded by the kernel, with the daemon or without it.
    pub(crate) is_in_kernel: bool,
    /// Whether the operator has drained the director itself.
    pub(crate) is_drained: bool,
    pub(crate) interfaces: Vec<NeededInterface>,
    pub(crate) services: Vec<ServiceRecord>,
}

/// An interface that packets are taken from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct NeededInterface {
    pub(crate) ifindex: u32,
    pub(crate) name: String,
    /// Whether the file names it, so that no other one does instead.
    pub(crate) is_named: bool,
}

/// A service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ServiceRecord {
    name: String,
    addresses: Vec<SocketAddr>,
    needs_daemon: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    obstacle: Option<String>,
}

impl From<ServiceReadiness> for ServiceRecord {
    fn from(readiness: ServiceReadiness) -> ServiceRecord {
        let ServiceReadiness { service, addresses, needs_daemon, obstacle } = readiness;
        ServiceRecord { name: service, addresses, needs_daemon, obstacle }
    }
}

/// Whether services are ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadinessView {
    /// Whether all that were asked for are.
    pub ready: bool,
    /// Why not, in one line; empty if they are.
    pub reason: String,
    /// The services that were asked for.
    pub services: Vec<ServiceReadinessView>,
}

/// Whether a service is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceReadinessView {
    /// Its name.
    pub service: String,
    /// Its addresses.
    pub addresses: Vec<SocketAddr>,
    /// Whether it is.
    pub ready: bool,
    /// Why not; empty if it is.
    pub reason: String,
}

/// Where a daemon's record is.
pub(crate) fn path(directory: &Path) -> PathBuf {
    directory.join("ready.json")
}

impl Record {
    /// An empty record of a daemon of now.
    pub(crate) fn at(at_ms: u64) -> Record {
        Record {
            format: FORMAT,
            at_ms,
            orphan_ms: 0,
            is_in_kernel: false,
            is_drained: false,
            interfaces: Vec::new(),
            services: Vec::new(),
        }
    }

    /// Notes it for whoever asks.
    ///
    /// # Errors
    /// When it can't be written.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        files::replace(path, &serde_json::to_vec(self)?)
    }

    /// Reads one; a sentence where there is none.
    fn read(path: &Path) -> Result<Record, String> {
        let bytes = files::bounded(path, RECORD_BYTES).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => "no daemon has run here yet, or it was stopped".to_owned(),
            _ => format!("{} can't be read: {error}", path.display()),
        })?;
        let record: Record = serde_json::from_slice(&bytes)
            .map_err(|error| format!("{} can't be understood: {error}", path.display()))?;
        match record.format {
            FORMAT => Ok(record),
            other => Err(format!("{} has format {other}, and this program reads {FORMAT}", path.display())),
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

    /// Why no service of this host is ready, if that is so.
    fn obstacle(&self, seen: &Seen) -> Option<String> {
        let age_ms = seen.now_ms.saturating_sub(self.at_ms);
        if self.at_ms > seen.now_ms {
            return Some("the daemon's record is of before the host started".to_owned());
        }
        if self.is_drained {
            return Some("this director is drained: `evener undrain --director` ends that".to_owned());
        }
        if self.is_in_kernel && age_ms > self.orphan_ms.max(SILENCE_MS) {
            let (age, orphan) = (age_ms / 1_000, self.orphan_ms / 1_000);
            return Some(format!(
                "the daemon has said nothing for {age} s: what it knew of servers counts for {orphan} s ([farm] orphan)"
            ));
        }
        self.daemon_obstacle(seen).filter(|_| !self.is_in_kernel).or_else(|| self.link_obstacle(seen))
    }

    /// That the daemon is dead, if it is.
    fn daemon_obstacle(&self, seen: &Seen) -> Option<String> {
        let age_ms = seen.now_ms.saturating_sub(self.at_ms);
        (age_ms > SILENCE_MS).then(|| {
            format!(
                "the daemon has said nothing for {} s, and nobody else answers or forwards",
                age_ms / 1_000
            )
        })
    }

    /// Why no packets come in, if that is so. Of interfaces that the file names each is needed; of
    /// those that were found, one.
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
    /// Whether it is meant by a name, or an address with or without a port.
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

/// A daemon's record, and what was seen of its host; or a sentence, where there is none.
#[derive(Clone, Debug)]
pub(crate) struct Looked(Result<(Record, Seen), String>);

impl Looked {
    /// Looks at the daemon of this folder.
    pub(crate) async fn at(directory: &Path) -> Looked {
        let looked = async {
            let record = Record::read(&path(directory))?;
            let seen = Seen::now(&record).await?;
            Ok((record, seen))
        };
        Looked(looked.await)
    }

    /// Whether the farm is known, and has no service of this name or address.
    pub(crate) fn lacks(&self, subject: &str) -> bool {
        let is_known = |record: &Record| record.services.iter().any(|one| one.is(Some(subject)));
        self.0.as_ref().is_ok_and(|(record, _)| !is_known(record))
    }

    /// Whether services are ready; all of them unless one is named, or an address.
    pub(crate) fn judge(&self, subject: Option<&str>) -> ReadinessView {
        match &self.0 {
            Ok((record, seen)) => record.judge(seen, subject),
            Err(reason) => ReadinessView { ready: false, reason: reason.clone(), services: Vec::new() },
        }
    }
}
