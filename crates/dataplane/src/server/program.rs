//! Loader of `bpf/server/server.bpf.c` and its maps.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use evener_core::path::cookie::Schedule;
use evener_core::path::seed::Seed;
use evener_core::path::tables::VipKey;
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenMapMut};

use super::attach::{ACCEPT, Hook, LOOK};
use super::{BTF, Offer, ProgramError, Reason, Tables};
use crate::load::{LoadError, load};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/server.bpf.o"));
const ABI_VERSION: u32 = crate::numbers::server::SERVER_ABI_VERSION as u32;
/// Programs that are loaded together: the first group at once, each other group when one of its
/// programs is first attached. Each group takes the verifier some hundredths of a second, and few
/// hosts need all groups.
const GROUPS: [&[&str]; 4] =
    [&["describe_server", "outgoing"], &["decap_xdp"], &["decap_tc"], &[ACCEPT, LOOK]];
/// Maps that outlive the agent, by their pins.
const PINNED: [&str; 13] = [
    "server_about",
    "clearing",
    "marks",
    "mark_key",
    "own_addresses",
    "directors",
    "own_services",
    "follows",
    "made",
    EXPECTED,
    "turns",
    "cookie_keys",
    REASONS,
];
pub(super) const REASONS: &str = "server_reasons";
/// Map of expected connections.
pub(super) const EXPECTED: &str = "expected";
/// Length of `struct own_service`: address, port, protocol, padding.
pub(super) const SERVICE_KEY_LEN: usize = 20;
/// Length of `struct offer`: maximum MSS, ports of the listeners for handed-off and for punted
/// connections, and flags for tracking exchanges and for requiring marks.
pub(super) const OFFER_LEN: usize = 12;

pub(super) struct Program {
    /// Loaded objects, by index in [`GROUPS`].
    objects: [OnceCell<Object>; GROUPS.len()],
    maps: BTreeMap<&'static str, MapHandle>,
}

fn refused(what: impl Into<String>, error: &libbpf_rs::Error) -> ProgramError {
    let what = what.into();
    // The verifier also returns EPERM, for reasons other than privileges.
    match error.kind() {
        ErrorKind::PermissionDenied if !nix::unistd::geteuid().is_root() => {
            ProgramError::Privilege { what, answer: format!("{error:#}") }
        }
        _ if !Path::new(BTF).exists() => ProgramError::NoBtf,
        _ => ProgramError::Kernel { what, answer: format!("{error:#}") },
    }
}

fn unknown(what: String) -> ProgramError {
    ProgramError::Kernel { what, answer: "it is not in the BPF object".into() }
}

/// True if all maps are pinned in `dir` with this version.
pub(super) fn is_adoptable(dir: &Path) -> bool {
    let version = || -> Option<u32> {
        let about = MapHandle::from_pinned_path(dir.join("server_about")).ok()?;
        let value = about.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok()??;
        Some(u32::from_ne_bytes(value.try_into().ok()?))
    };
    PINNED.iter().all(|map| dir.join(map).exists()) && version() == Some(ABI_VERSION)
}

/// Returns the counters of the programs whose maps are pinned in `dir`.
pub(super) fn pinned_counters(dir: &Path) -> Option<BTreeMap<Reason, u64>> {
    counted(&MapHandle::from_pinned_path(dir.join(REASONS)).ok()?).ok()
}

/// Reads the map of counters.
pub(super) fn counted(map: &MapHandle) -> Result<BTreeMap<Reason, u64>, ProgramError> {
    let mut counters = BTreeMap::new();
    for &reason in Reason::ALL {
        let values = map.lookup_percpu(&(reason as u32).to_ne_bytes(), MapFlags::ANY);
        let values = values.map_err(|error| refused("reading the counters", &error))?.unwrap_or_default();
        let words = values.into_iter().filter_map(|value| value.try_into().ok().map(u64::from_ne_bytes));
        counters.insert(reason, words.sum());
    }
    Ok(counters)
}

/// Loads the object with these programs. `adopt` may replace maps by existing ones.
fn loaded(
    wanted: &[&str],
    adopt: impl Fn(&str, &mut OpenMapMut<'_>) -> libbpf_rs::Result<()>,
) -> Result<Object, ProgramError> {
    let open = || {
        let mut open = ObjectBuilder::default()
            .name("evener_server")
            .and_then(|builder| builder.open_memory(OBJECT))
            .map_err(|error| refused("opening the BPF object", &error))?;
        for mut program in open.progs_mut() {
            let is_wanted = wanted.iter().any(|name| program.name() == OsStr::new(name));
            program.set_autoload(is_wanted);
        }
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            adopt(&name, &mut map).map_err(|error| refused(format!("adopting map {name}"), &error))?;
        }
        Ok(open)
    };
    load(open, |error| match error {
        LoadError::Refused(refusal) => ProgramError::Refused(refusal),
        LoadError::Failed(error) => {
            refused(format!("loading the BPF programs {}", wanted.join(" and ")), &error)
        }
    })
}

/// Loads the program for `hook` and discards it.
pub(super) fn try_load(hook: Hook) -> Result<(), ProgramError> {
    loaded(&[hook.program()], |_, _| Ok(())).map(drop)
}

impl Program {
    /// Creates the maps and pins them in `dir`. With `adopt` pinned maps are reused.
    pub(super) fn load(dir: &Path, adopt: bool) -> Result<Self, ProgramError> {
        let object = loaded(GROUPS[0], |name, map| match adopt && PINNED.contains(&name) {
            true => map.reuse_pinned_map(dir.join(name)),
            false => Ok(()),
        })?;
        let mut maps = BTreeMap::new();
        for name in PINNED {
            let found = object.maps().find(|map| map.name() == OsStr::new(name));
            let map = found.ok_or_else(|| unknown(format!("map {name}")))?;
            let map =
                MapHandle::try_from(&map).map_err(|error| refused(format!("opening map {name}"), &error))?;
            maps.insert(name, map);
        }
        let mut program = Program { objects: Default::default(), maps };
        // The cell is still empty.
        let _ = program.objects[0].set(object);
        program.pin(dir)?;
        // Written last, because maps without a version are not adopted.
        program.write("server_about", &0u32.to_ne_bytes(), &ABI_VERSION.to_ne_bytes())?;
        Ok(program)
    }

    /// Pins unpinned maps in `dir`. While a host has no interfaces, its links look like those of a
    /// removed namespace, so another agent may have cleared the folder.
    pub(super) fn pin(&mut self, dir: &Path) -> Result<(), ProgramError> {
        std::fs::create_dir_all(dir).map_err(ProgramError::io(format!("making {}", dir.display())))?;
        for (name, map) in self.maps.iter_mut().filter(|(name, _)| !dir.join(name).exists()) {
            map.pin(dir.join(name)).map_err(|error| refused(format!("pinning map {name}"), &error))?;
        }
        Ok(())
    }

    /// Returns the file descriptor of a program, and loads the program if necessary.
    pub(super) fn fd(&self, name: &str) -> Result<BorrowedFd<'_>, ProgramError> {
        let mut groups = GROUPS.iter().zip(&self.objects);
        let (group, object) = groups
            .find(|(group, _)| group.contains(&name))
            .ok_or_else(|| unknown(format!("program {name}")))?;
        if object.get().is_none() {
            let ours = |name: &str, map: &mut OpenMapMut<'_>| match self.maps.get(name) {
                Some(ours) => map.reuse_fd(ours.as_fd()),
                None => Ok(()),
            };
            // The cell is still empty.
            let _ = object.set(loaded(group, ours)?);
        }
        let mut programs = object.get().into_iter().flat_map(Object::progs);
        let found = programs.find(|program| program.name() == OsStr::new(name));
        let found = found.ok_or_else(|| unknown(format!("program {name}")))?;
        // SAFETY: the descriptor belongs to an object of `self`, which the borrow doesn't outlive.
        Ok(unsafe { BorrowedFd::borrow_raw(found.as_fd().as_raw_fd()) })
    }

    /// Returns a handle of a map that may outlive `self`.
    pub(super) fn map(&self, name: &'static str) -> Result<MapHandle, ProgramError> {
        let map = &self.maps[name];
        MapHandle::try_from(map).map_err(|error| refused(format!("opening map {name}"), &error))
    }

    /// Writes `tables` to the maps; each entry changes atomically. New entries are written before
    /// removed entries are deleted.
    pub(super) fn write_tables(&self, tables: &Tables) -> Result<(), ProgramError> {
        let present = || 1u32.to_ne_bytes().to_vec();
        // The mark settings are written first: a packet whose mark is not read counts as a client's
        // and may be forwarded again.
        let first = 0u32.to_ne_bytes();
        let Seed(left, right) = tables.marks.unwrap_or_default();
        self.write("mark_key", &first, &[left, right].map(u64::to_ne_bytes).concat())?;
        self.write("marks", &first, &u32::from(tables.marks.is_some()).to_ne_bytes())?;
        let follows = tables.services.values().any(|offer| offer.turns);
        self.write("follows", &0u32.to_ne_bytes(), &u32::from(follows).to_ne_bytes())?;
        let addresses = |of: &BTreeSet<IpAddr>| of.iter().map(|a| (mapped(*a).to_vec(), present())).collect();
        self.make("own_addresses", &addresses(&tables.addresses))?;
        self.make("directors", &addresses(&tables.directors))?;
        let mut services = BTreeMap::new();
        for (vip, offer) in &tables.services {
            let portless = [mapped(vip.address).as_slice(), &[0; 4]].concat();
            services.insert(portless, offer_value(tables.portless(vip.address).unwrap_or_default()));
            services.insert(service_key(vip), offer_value(*offer));
        }
        self.make("own_services", &services)
    }

    /// Replaces the keys of accepted SYN cookies.
    pub(super) fn write_keys(&self, keys: &Schedule) -> Result<(), ProgramError> {
        self.write("cookie_keys", &0u32.to_ne_bytes(), &keys.words().map(u64::to_ne_bytes).concat())
    }

    fn make(&self, map: &'static str, wanted: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<(), ProgramError> {
        let there: Vec<Vec<u8>> = self.maps[map].keys().collect();
        for (key, value) in wanted {
            self.write(map, key, value)?;
        }
        for key in there.iter().filter(|key| !wanted.contains_key(*key)) {
            match self.maps[map].delete(key) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(refused(format!("writing map {map}"), &error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn write(&self, map: &'static str, key: &[u8], value: &[u8]) -> Result<(), ProgramError> {
        self.maps[map]
            .update(key, value, MapFlags::ANY)
            .map_err(|error| refused(format!("writing map {map}"), &error))
    }

    pub(super) fn counters(&self) -> Result<BTreeMap<Reason, u64>, ProgramError> {
        counted(&self.maps[REASONS])
    }
}

/// Returns an IPv6 or IPv4-mapped address, as the programs compare addresses.
pub(super) fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn service_key(vip: &VipKey) -> Vec<u8> {
    let rest = [vip.protocol.number(), 0];
    [mapped(vip.address).as_slice(), &vip.port.to_be_bytes(), &rest].concat()
}

fn offer_value(offer: Offer) -> Vec<u8> {
    let mss = offer.mss.map_or(0, u32::from).to_ne_bytes();
    let ports = [offer.listener, offer.punt_listener].map(|port| port.unwrap_or_default().to_be_bytes());
    let flags = [offer.turns, offer.is_marked].map(|flag| u16::from(flag).to_ne_bytes());
    [mss.as_slice(), &ports.concat(), &flags.concat()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use evener_core::net::Protocol;

    #[test]
    fn keys_are_as_in_the_header() {
        let vip = VipKey { address: [192, 0, 2, 1].into(), port: 0x1234, protocol: Protocol::Tcp };
        let key = service_key(&vip);
        assert_eq!(key.len(), SERVICE_KEY_LEN);
        assert_eq!(key[8..], [0, 0, 0xff, 0xff, 192, 0, 2, 1, 0x12, 0x34, 6, 0]);
        let value = offer_value(Offer {
            mss: Some(1400),
            listener: Some(0x1234),
            punt_listener: Some(0x5678),
            turns: true,
            is_marked: false,
        });
        assert_eq!(value.len(), OFFER_LEN);
        assert_eq!(value[..4], 1400u32.to_ne_bytes());
        assert_eq!(value[4..8], [0x12, 0x34, 0x56, 0x78]);
        assert_eq!(value[8..], [1u16.to_ne_bytes(), [0; 2]].concat());
    }
}
