//! Applies the desired state of this host, and removes parts that are no longer desired.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use evener_core::node::secret::Secret;
use evener_core::path::cookie::EPOCH_MS;
use evener_dataplane::server::{self, Connections, Hook, ProgramError, ServerPrograms};
use evener_dataplane::{EngineError, now_ticks};
use futures_util::TryStreamExt;
use rtnetlink::Handle;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{
    AddressAttribute, AddressFlags, AddressMessage, AddressScope, CacheInfo,
};
use rtnetlink::packet_route::link::{LinkAttribute, LinkInfo};

use super::desired::{DesiredState, HostFacts, PlacedAddress};
use super::state::{StateFile, SysctlChange};
use crate::io::network::{Network, interface_name};
use crate::runtime::secret;

const SETTINGS: &str = "/proc/sys/net";
/// Infinite lifetime of an address (RFC 4862, section 5.5.3).
const FOREVER: u32 = u32::MAX;

/// Error of setting up or restoring the host.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaceError {
    /// An address can't be added or removed.
    #[error("{verb} {address} {interface} failed: {source}{hint}")]
    Address {
        verb: &'static str,
        address: IpAddr,
        interface: String,
        source: Box<rtnetlink::Error>,
        hint: &'static str,
    },
    /// A kernel setting can't be changed.
    #[error("failed to set {path} to {value}: {source}")]
    Setting { path: String, value: u32, source: io::Error },
    /// The record of the changes can't be written. Without the record, no change is made.
    #[error("failed to record the changes of this host, which are undone by this record: {0}")]
    State(io::Error),
    #[error(transparent)]
    Server(#[from] ProgramError),
    /// A netlink socket can't be opened.
    #[error("failed to open a netlink socket for adding addresses: {0}")]
    Socket(io::Error),
}

impl PlaceError {
    /// True if privileges are missing.
    pub(super) fn is_denied(&self) -> bool {
        match self {
            PlaceError::Address { source, .. } => match &**source {
                rtnetlink::Error::NetlinkError(error) => error.raw_code() == -nix::libc::EPERM,
                _ => false,
            },
            PlaceError::Setting { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
            PlaceError::Server(error) => matches!(
                error,
                ProgramError::Privilege { .. } | ProgramError::Pins(EngineError::Privilege { .. })
            ),
            PlaceError::State(_) | PlaceError::Socket(_) => false,
        }
    }
}

/// The host's parts that the agent changes.
pub(super) struct HostState {
    handle: Handle,
    pub(super) state: StateFile,
    pub(super) server: Option<ServerPrograms>,
    /// Secret for the verification of cookies of handed-off connections.
    pub(super) secret: Option<Secret>,
    /// Length of a cookie epoch, in milliseconds.
    pub(super) cookie_epoch_ms: u64,
}

impl HostState {
    /// Adopts the setup of an earlier agent.
    pub(super) fn open(state: StateFile) -> Result<HostState, PlaceError> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(PlaceError::Socket)?;
        tokio::spawn(connection);
        Ok(HostState { handle, state, server: None, secret: None, cookie_epoch_ms: EPOCH_MS })
    }

    /// Applies the desired state. A part that fails is skipped.
    ///
    /// # Errors
    /// The first failure.
    pub(super) async fn apply(
        &mut self,
        desired: &DesiredState,
        network: &Network,
    ) -> Result<(), PlaceError> {
        // Programs are removed before addresses, so that packets that are no longer decapsulated
        // find no address. Settings come before new addresses, so that the host never answers for
        // an address that must be silent.
        let mut done = if desired.programs.is_none() { self.leave_programs() } else { Ok(()) };
        done = done.and(self.remove_addresses(desired, network).await);
        done = done.and(self.change_settings(desired));
        done = done.and(self.add_addresses(desired, network).await);
        done.and(self.run_programs(desired))
    }

    /// Removes the whole setup, or nothing with `keep`.
    pub(super) async fn leave(mut self, keep: bool, network: &Network) -> Result<(), PlaceError> {
        if keep {
            return match self.server {
                Some(server) => Ok(server.leave(true)?),
                None => Ok(()),
            };
        }
        self.apply(&DesiredState::default(), network).await?;
        self.state.remove().map_err(PlaceError::State)
    }

    /// Returns the programs' view of connections. `None` unless the programs run.
    pub(super) fn connections(&self) -> Option<Connections> {
        // The doctor reports missing kernel features.
        self.server.as_ref()?.connections().ok()
    }

    fn run_programs(&mut self, desired: &DesiredState) -> Result<(), PlaceError> {
        let Some((tables, places)) = &desired.programs else { return Ok(()) };
        let server = match &mut self.server {
            Some(server) => server,
            none => none.insert(ServerPrograms::start(server::directory().map_err(ProgramError::from)?)?),
        };
        let before: Vec<_> = server.attached().collect();
        server.apply(tables, places)?;
        if let Some(secret) = &self.secret {
            server.set_cookie_keys(&secret::cookie_keys(secret, self.cookie_epoch_ms, now_ticks()))?;
        }
        for (ifindex, hook) in server.attached().filter(|place| !before.contains(place)) {
            tracing::info!(interface = interface_name(ifindex), hook = hook.name(), "attached a BPF program");
        }
        Ok(())
    }

    /// Sets the cookie keys by the time of day, in case the clock was set.
    pub(super) fn renew_cookies(&mut self) {
        let Some((secret, server)) = self.secret.as_ref().zip(self.server.as_mut()) else { return };
        let keys = secret::cookie_keys(secret, self.cookie_epoch_ms, now_ticks());
        if let Err(error) = server.set_cookie_keys(&keys) {
            tracing::error!(%error, "failed to set the clock of SYN cookies: handed-off connections may be refused");
        }
    }

    /// Ends the programs of this agent and of earlier ones.
    fn leave_programs(&mut self) -> Result<(), PlaceError> {
        if let Some(server) = self.server.take() {
            return Ok(server.leave(false)?);
        }
        // Without a BPF file system, no earlier agent has left programs.
        match server::existing_directory() {
            Some(pins) => Ok(server::clear(&pins)?),
            None => Ok(()),
        }
    }

    async fn add_addresses(&mut self, desired: &DesiredState, network: &Network) -> Result<(), PlaceError> {
        let mut done = Ok(());
        for placed in &desired.addresses {
            if !is_there(placed, network) {
                done = done.and(self.add_address(placed, network).await);
            }
        }
        done
    }

    async fn add_address(&mut self, placed: &PlacedAddress, network: &Network) -> Result<(), PlaceError> {
        let PlacedAddress { interface, address } = placed;
        let refused = |source, hint| PlaceError::Address {
            verb: "placing",
            address: *address,
            interface: format!("on {interface}"),
            source: Box::new(source),
            hint,
        };
        let Some(ifindex) = number_of(interface, network) else {
            let gone = rtnetlink::Error::NamespaceError("there is no such interface".to_owned());
            return Err(refused(gone, ""));
        };
        if self.state.done.addresses.insert(placed.clone()) {
            self.state.store().map_err(PlaceError::State)?;
        }
        let mut request = self.handle.address().add(ifindex, *address, prefix_len(*address));
        make_passive(request.message_mut());
        match request.execute().await {
            Ok(()) => tracing::info!(%address, interface, "added the address"),
            Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -nix::libc::EEXIST => {}
            Err(error) => {
                let hint =
                    if address.is_ipv6() { "; is IPv6 switched off there (disable_ipv6)?" } else { "" };
                return Err(refused(error, hint));
            }
        }
        Ok(())
    }

    async fn remove_addresses(
        &mut self,
        desired: &DesiredState,
        network: &Network,
    ) -> Result<(), PlaceError> {
        let gone: Vec<PlacedAddress> =
            self.state.done.addresses.difference(&desired.addresses).cloned().collect();
        let mut done = Ok(());
        for placed in gone {
            match self.remove_address(&placed, network).await {
                Ok(()) => {
                    self.state.done.addresses.remove(&placed);
                    self.state.store().map_err(PlaceError::State)?;
                }
                Err(error) => done = done.and(Err(error)),
            }
        }
        done
    }

    async fn remove_address(&mut self, placed: &PlacedAddress, network: &Network) -> Result<(), PlaceError> {
        let PlacedAddress { interface, address } = placed;
        // The address has gone with its interface.
        let Some(ifindex) = number_of(interface, network) else { return Ok(()) };
        let mut template = self.handle.address().add(ifindex, *address, prefix_len(*address));
        let message = template.message_mut().clone();
        match self.handle.address().del(message).execute().await {
            Ok(()) => tracing::info!(%address, interface, "removed the address"),
            Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -nix::libc::EADDRNOTAVAIL => {}
            Err(source) => {
                let interface = format!("from {interface}");
                return Err(PlaceError::Address {
                    verb: "taking away",
                    address: *address,
                    interface,
                    source: Box::new(source),
                    hint: "",
                });
            }
        }
        Ok(())
    }

    fn change_settings(&mut self, desired: &DesiredState) -> Result<(), PlaceError> {
        let mut done = Ok(());
        let gone: Vec<String> = self
            .state
            .done
            .settings
            .keys()
            .filter(|path| !desired.settings.contains_key(*path))
            .cloned()
            .collect();
        for path in gone {
            done = done.and(self.restore(&path));
        }
        for (path, setting) in &desired.settings {
            if let Some(is) = read_setting(path).filter(|is| !setting.right.contains(is)) {
                done = done.and(self.set(path, is, setting.value));
            }
        }
        done
    }

    fn set(&mut self, path: &str, is: u32, value: u32) -> Result<(), PlaceError> {
        // The original value is kept, also after several changes.
        let was = self.state.done.settings.get(path).map_or(is, |changed| changed.was);
        self.state.done.settings.insert(path.to_owned(), SysctlChange { was, set: value });
        self.state.store().map_err(PlaceError::State)?;
        write_setting(path, value)?;
        tracing::info!(setting = dotted(path), was = is, now = value, "changed");
        Ok(())
    }

    fn restore(&mut self, path: &str) -> Result<(), PlaceError> {
        if let Some(SysctlChange { was, set }) = self.state.done.settings.get(path).copied() {
            match read_setting(path) {
                Some(is) if is == set => {
                    write_setting(path, was)?;
                    tracing::info!(setting = dotted(path), was = is, now = was, "restored");
                }
                Some(is) => tracing::warn!(
                    setting = dotted(path),
                    is,
                    "not restored: another program has changed the setting"
                ),
                // The interface of the setting is gone.
                None => {}
            }
        }
        self.state.done.settings.remove(path);
        self.state.store().map_err(PlaceError::State)
    }
}

/// True if the host holds the address as desired.
/// For an address that is desired on lo, any interface is accepted, so an address that the operator
/// has placed stays.
fn is_there(placed: &PlacedAddress, network: &Network) -> bool {
    let wanted_on_loopback =
        network.interfaces.values().any(|found| found.loopback && found.name == placed.interface);
    network.interfaces.values().any(|found| {
        found.addresses.iter().any(|(address, _)| *address == placed.address)
            && (found.name == placed.interface || wanted_on_loopback)
    })
}

fn number_of(interface: &str, network: &Network) -> Option<u32> {
    network.interfaces.iter().find(|(_, found)| found.name == interface).map(|(ifindex, _)| *ifindex)
}

fn prefix_len(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Keeps the address from being the source of this host's own connections and requests.
/// An IPv4 address gets `scope host`. With a wider scope, an interface without other addresses
/// would use the address as source of ARP requests, even with `arp_announce=2`. ARP requests would
/// then announce the service at this server.
/// An IPv6 address is deprecated (RFC 6724, section 5, rule 3). Duplicate detection is off, since
/// servers share the address.
fn make_passive(message: &mut AddressMessage) {
    if message.header.family == AddressFamily::Inet {
        message.header.scope = AddressScope::Host;
        return;
    }
    let flags = AddressFlags::Nodad | AddressFlags::Noprefixroute;
    let mut lifetime = CacheInfo::default();
    (lifetime.ifa_preferred, lifetime.ifa_valid) = (0, FOREVER);
    message.attributes.push(AddressAttribute::Flags(flags));
    message.attributes.push(AddressAttribute::CacheInfo(lifetime));
}

/// Reads a setting below `/proc/sys/net`. `None` if it does not exist.
pub(super) fn read_setting(path: &str) -> Option<u32> {
    fs::read_to_string(Path::new(SETTINGS).join(path)).ok()?.trim().parse().ok()
}

fn write_setting(path: &str, value: u32) -> Result<(), PlaceError> {
    fs::write(Path::new(SETTINGS).join(path), value.to_string()).map_err(|source| PlaceError::Setting {
        path: dotted(path),
        value,
        source,
    })
}

/// Returns a setting's name as in sysctl(8). Dots in interface names become slashes.
pub(super) fn dotted(path: &str) -> String {
    let swap = |c| match c {
        '/' => '.',
        '.' => '/',
        other => other,
    };
    format!("net.{}", path.chars().map(swap).collect::<String>())
}

/// Returns the facts that the desired state depends on, besides the network.
pub(super) async fn host(hook: Option<Hook>) -> HostFacts {
    HostFacts {
        hook,
        mark_key: None,
        deciding: BTreeSet::new(),
        software: software_interfaces().await.unwrap_or_default(),
        reverse_path_filter: read_setting("ipv4/conf/all/rp_filter").unwrap_or_default(),
    }
}

/// Returns the interfaces with a link kind. Hardware interfaces have none.
async fn software_interfaces() -> Option<BTreeSet<u32>> {
    let (connection, handle, _) = rtnetlink::new_connection().ok()?;
    let connection = tokio::spawn(connection);
    let mut links = handle.link().get().execute();
    let mut found = BTreeSet::new();
    while let Some(message) = links.try_next().await.ok()? {
        let kind = |info: &LinkInfo| matches!(info, LinkInfo::Kind(_));
        let is_software = message
            .attributes
            .iter()
            .any(|attribute| matches!(attribute, LinkAttribute::LinkInfo(infos) if infos.iter().any(kind)));
        if is_software {
            found.insert(message.header.index);
        }
    }
    connection.abort();
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_named_as_sysctl_does() {
        assert_eq!(dotted("ipv4/conf/eth0.5/rp_filter"), "net.ipv4.conf.eth0/5.rp_filter");
    }
}
