//! Kernel settings that a farm needs while it is served. The daemon changes these settings, records
//! the old values, and restores them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use evener_dataplane::EngineError;
use evener_dataplane::installed::{MissingPart, Part};

const PROC_SYS: &str = "/proc/sys";

/// True if this interface drops packets from sources that the kernel would reach through another
/// interface.
pub(crate) fn is_reverse_path_strict(interface: &str) -> bool {
    let of = |name: &str| {
        let setting = fs::read_to_string(format!("{PROC_SYS}/net/ipv4/conf/{name}/rp_filter")).ok()?;
        setting.trim().parse::<u8>().ok()
    };
    // The larger value of `all` and the interface counts (ip-sysctl, rp_filter): 1 is strict, 2 is
    // loose.
    of("all").max(of(interface)) == Some(1)
}

/// Name of a setting as in sysctl(8), with slashes.
type SysctlName = String;

/// Packets that the kernel must forward.
#[derive(Debug, Default)]
pub(crate) struct Forwarded<'a> {
    /// Interfaces between which packets are forwarded.
    pub(crate) interfaces: BTreeSet<&'a str>,
    /// Addresses whose families are forwarded.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// Interfaces that must also accept packets from this host's own IPv4 addresses.
    pub(crate) own: BTreeSet<&'a str>,
    /// Like `own`, for interfaces that forward: this host may be the router of servers that answer
    /// from its address.
    pub(crate) routed: BTreeSet<&'a str>,
}

/// Settings that this daemon has changed.
pub(crate) struct ChangedSysctls {
    root: PathBuf,
    /// File with the original values, for the successor of a killed daemon.
    note: PathBuf,
    were: BTreeMap<SysctlName, String>,
    /// Settings that the kernel refused. Each is logged once.
    refused: BTreeSet<SysctlName>,
}

impl ChangedSysctls {
    /// Reads the changes that an earlier daemon recorded in this folder.
    pub(crate) fn new(directory: &Path) -> Self {
        ChangedSysctls::at(Path::new(PROC_SYS), directory)
    }

    fn at(root: &Path, directory: &Path) -> Self {
        let note = directory.join("settings");
        let text = fs::read_to_string(&note).unwrap_or_default();
        let were = text.lines().filter_map(|line| line.split_once('='));
        let were = were.map(|(name, was)| (name.to_owned(), was.to_owned())).collect();
        ChangedSysctls { root: root.to_owned(), note, were, refused: BTreeSet::new() }
    }

    /// Makes the kernel forward these packets, and restores settings that are no longer needed.
    ///
    /// The kernel's route lookup requires forwarding on the interface that a packet arrives at. An
    /// IPv6 interface that forwards drops advertised routes, unless `accept_ra` is 2 (ip-sysctl).
    ///
    /// Returns the settings that this daemon had changed before and that were changed by someone
    /// else since.
    pub(crate) fn forward(
        &mut self,
        Forwarded { interfaces, addresses, own, routed }: &Forwarded<'_>,
    ) -> Vec<MissingPart> {
        let routed = routed.iter().filter(|interface| self.forwards(interface));
        let own: BTreeSet<&str> = own.iter().chain(routed).copied().collect();
        let mut wanted: Vec<(SysctlName, &str)> =
            own.iter().flat_map(|interface| self.accept_local(interface)).collect();
        for interface in interfaces {
            if addresses.iter().any(IpAddr::is_ipv4) {
                wanted.push((format!("net/ipv4/conf/{interface}/forwarding"), "1"));
            }
            if addresses.iter().any(IpAddr::is_ipv6) {
                let accept = format!("net/ipv6/conf/{interface}/accept_ra");
                if self.were.contains_key(&accept) || self.read(&accept).is_ok_and(|value| value == "1") {
                    wanted.push((accept, "2"));
                }
                wanted.push((format!("net/ipv6/conf/{interface}/forwarding"), "1"));
                // The stack forwards packets whose route lookup finds no neighbour yet, and needs a
                // further setting: one per interface since Linux 6.17, before that one for all
                // interfaces.
                let force = format!("net/ipv6/conf/{interface}/force_forwarding");
                match self.read(&force) {
                    Ok(_) => wanted.push((force, "1")),
                    Err(_) => wanted.push(("net/ipv6/conf/all/forwarding".to_owned(), "1")),
                }
            }
        }
        let mut missing = Vec::new();
        for (name, value) in &wanted {
            let found = self.read(name);
            let differs = found.as_ref().is_ok_and(|found| found != value);
            let was_set = differs && self.were.contains_key(name);
            let set = found.and_then(|found| if differs { self.set(name, found, value) } else { Ok(()) });
            if was_set {
                let restored = set.map_err(|error| {
                    EngineError::system(format!("setting {name} to {value}"), "CAP_NET_ADMIN", error)
                });
                missing.push(MissingPart { part: Part::Setting(name.clone()), restored });
                continue;
            }
            match set {
                Ok(()) => drop(self.refused.remove(name)),
                Err(error) if self.refused.insert(name.clone()) => tracing::warn!(
                    setting = name,
                    %error,
                    "failed to set it to {value}, which replies of servers need: set it by hand"
                ),
                Err(_) => {}
            }
        }
        let names: BTreeSet<SysctlName> = wanted.into_iter().map(|(name, _)| name).collect();
        self.put_back(|name| !names.contains(name));
        missing
    }

    /// Returns the names of the changed settings.
    pub(crate) fn changed(&self) -> impl Iterator<Item = SysctlName> {
        self.were.keys().cloned()
    }

    fn forwards(&self, interface: &str) -> bool {
        self.read(&format!("net/ipv4/conf/{interface}/forwarding")).is_ok_and(|value| value == "1")
    }

    /// Returns the settings that make the stack accept packets from its own addresses. By default
    /// it accepts none (RFC 1812, section 5.3.8). A strict reverse path filter also requires the
    /// very interface of the route.
    fn accept_local(&self, interface: &str) -> Vec<(SysctlName, &'static str)> {
        let filter = |of: &str| format!("net/ipv4/conf/{of}/rp_filter");
        let value = |of: &str| self.read(&filter(of)).ok().and_then(|value| value.parse::<u8>().ok());
        let is_strict = value("all").max(value(interface)) == Some(1);
        let mut wanted = vec![(format!("net/ipv4/conf/{interface}/accept_local"), "1")];
        if is_strict || self.were.contains_key(&filter(interface)) {
            wanted.push((filter(interface), "2"));
        }
        wanted
    }

    pub(crate) fn restore(&mut self) {
        self.put_back(|_| true);
    }

    fn set(&mut self, name: &str, was: String, value: &str) -> io::Result<()> {
        // An interface that came back has the kernel's defaults again. The recorded value is the
        // original value, so the record is kept.
        self.were.entry(name.to_owned()).or_insert(was);
        self.write_note()?;
        fs::write(self.root.join(name), value)?;
        tracing::info!(setting = name, "set to {value} while services need this value");
        Ok(())
    }

    fn put_back(&mut self, which: impl Fn(&SysctlName) -> bool) {
        let (back, stay): (BTreeMap<_, _>, _) =
            std::mem::take(&mut self.were).into_iter().partition(|(name, _)| which(name));
        self.were = stay;
        // The last change is undone first: forwarding before the settings that prepared it.
        for (name, was) in back.iter().rev() {
            // The interface may be gone, with its settings.
            match fs::write(self.root.join(name), was) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(setting = name, %error, "failed to restore the value {was}");
                }
                _ => {}
            }
        }
        if !back.is_empty()
            && let Err(error) = self.write_note()
        {
            tracing::warn!(%error, file = %self.note.display(), "failed to write the record of changed settings");
        }
    }

    fn read(&self, name: &str) -> io::Result<String> {
        Ok(fs::read_to_string(self.root.join(name))?.trim().to_owned())
    }

    fn write_note(&self) -> io::Result<()> {
        if self.were.is_empty() {
            return fs::remove_file(&self.note);
        }
        let lines = self.were.iter().map(|(name, was)| format!("{name}={was}\n"));
        let new = self.note.with_extension("new");
        if let Some(folder) = self.note.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&new, lines.collect::<String>())?;
        fs::rename(new, &self.note)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Removes the folder at the end of the test.
    struct Host(PathBuf);

    impl Host {
        fn new(name: &str) -> Host {
            let host = Host(std::env::temp_dir().join(format!("evener-{name}-{}", std::process::id())));
            for family in ["ipv4", "ipv6"] {
                fs::create_dir_all(host.0.join(format!("net/{family}/conf/eth0"))).unwrap();
                fs::write(host.0.join(format!("net/{family}/conf/eth0/forwarding")), "0\n").unwrap();
            }
            fs::write(host.0.join("net/ipv6/conf/eth0/accept_ra"), "1\n").unwrap();
            host
        }

        fn settings(&self) -> ChangedSysctls {
            ChangedSysctls::at(&self.0, &self.0)
        }

        fn is(&self, values: [&str; 3]) -> bool {
            let names = [
                "net/ipv4/conf/eth0/forwarding",
                "net/ipv6/conf/eth0/forwarding",
                "net/ipv6/conf/eth0/accept_ra",
            ];
            names.map(|name| fs::read_to_string(self.0.join(name)).unwrap().trim().to_owned()) == values
        }
    }

    impl Drop for Host {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn forwarded<'a>(interfaces: &[&'a str], addresses: &[&str]) -> Forwarded<'a> {
        Forwarded {
            interfaces: interfaces.iter().copied().collect(),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            ..Forwarded::default()
        }
    }

    #[test]
    fn a_router_of_servers_believes_answers_from_its_own_address() {
        let host = Host::new("settings-routed");
        let file = |name: &str| host.0.join(format!("net/ipv4/conf/{name}"));
        fs::create_dir_all(file("all")).unwrap();
        for (name, value) in [("all/rp_filter", "0"), ("eth0/rp_filter", "1"), ("eth0/accept_local", "0")] {
            fs::write(file(name), value).unwrap();
        }
        let believes = || {
            ["accept_local", "rp_filter"]
                .map(|name| fs::read_to_string(file(&format!("eth0/{name}"))).unwrap())
        };
        let routed = Forwarded { routed: ["eth0", "gone"].into(), ..Forwarded::default() };
        let mut settings = host.settings();
        settings.forward(&routed);
        assert_eq!(believes(), ["0", "1"], "it is no router");
        fs::write(file("eth0/forwarding"), "1\n").unwrap();
        settings.forward(&routed);
        assert_eq!(believes(), ["1", "2"]);
        settings.restore();
        assert_eq!(believes(), ["0", "1"]);
    }

    #[test]
    fn loose_rp_filter_passes_own_addresses() {
        let host = Host::new("settings-own");
        let file = |name: &str| host.0.join(format!("net/ipv4/conf/{name}"));
        fs::create_dir_all(file("all")).unwrap();
        fs::write(file("eth0/accept_local"), "0\n").unwrap();
        let is = |values: [&str; 2]| {
            let names = ["eth0/accept_local", "eth0/rp_filter"];
            names.map(|name| fs::read_to_string(file(name)).unwrap().trim().to_owned()) == values
        };
        let own = Forwarded { own: ["eth0"].into(), ..forwarded(&["eth0"], &["192.0.2.1"]) };
        for (all, found, during) in [("0", "0", "0"), ("0", "1", "2"), ("1", "0", "2"), ("2", "1", "1")] {
            fs::write(file("all/rp_filter"), all).unwrap();
            fs::write(file("eth0/rp_filter"), found).unwrap();
            host.settings().forward(&own);
            let mut next = host.settings();
            next.forward(&own);
            assert!(is(["1", during]), "all {all}, found {found}");
            next.forward(&forwarded(&["eth0"], &["192.0.2.1"]));
            assert!(is(["0", found]), "all {all}, found {found}");
            next.restore();
        }
    }

    #[test]
    fn unneeded_sysctl_is_restored() {
        let host = Host::new("settings-reload");
        let mut settings = host.settings();
        settings.forward(&forwarded(&["eth0", "gone"], &["192.0.2.1", "2001:db8::1"]));
        assert!(host.is(["1", "1", "2"]));
        settings.forward(&forwarded(&["eth0", "gone"], &["192.0.2.1"]));
        assert!(host.is(["1", "0", "1"]));
        settings.forward(&forwarded(&[], &["192.0.2.1"]));
        assert!(host.is(["0", "0", "1"]));
        assert!(!host.0.join("settings").exists());
    }

    #[test]
    fn sysctls_changed_by_killed_daemon_are_restored_by_next() {
        let host = Host::new("settings-killed");
        let all = forwarded(&["eth0"], &["192.0.2.1", "2001:db8::1"]);
        host.settings().forward(&all);
        let mut next = host.settings();
        next.forward(&all);
        assert!(host.is(["1", "1", "2"]));
        next.restore();
        assert!(host.is(["0", "0", "1"]));
    }

    #[test]
    fn correct_sysctl_is_left_unchanged() {
        let host = Host::new("settings-right");
        fs::write(host.0.join("net/ipv4/conf/eth0/forwarding"), "1\n").unwrap();
        let mut settings = host.settings();
        settings.forward(&forwarded(&["eth0"], &["192.0.2.1"]));
        settings.restore();
        assert!(host.is(["1", "0", "1"]));
    }
}
