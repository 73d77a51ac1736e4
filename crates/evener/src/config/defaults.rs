//! Defaults of texts, and limits of the whole file; those of numbers and times stand with their
//! keys, in [`super::keys`].

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::ops::RangeInclusive;

use evener_core::path::tables::SERVICE_SERVERS_MAX;

use super::keys::tables::engine;

/// IPv6 sessions take twice the memory, and are the fewer on most farms.
pub(super) fn sessions6_max(sessions_max: usize) -> usize {
    (sessions_max / 4).max(*engine::SESSIONS6_MAX.limits().start() as usize)
}
/// Loopback: whoever reaches the admin address sees the farm.
pub(super) const ADMIN_LISTEN: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9180));

/// Reports that a member may miss before it is asked.
pub(super) const GROUP_QUERY: u64 = 3;

pub(super) const HEALTH_PATH: &str = "/";
pub(super) const HEALTH_STATUS: (u16, u16) = (200, 399);

/// Loopback: what a server tells of itself is for those whom its operator names.
pub(super) const LOAD_LISTEN: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, LOAD_PORT));
pub(super) const REPORT_PATH: &str = "/v1/load";
/// As Apache's manual has it.
pub(super) const MOD_STATUS_PATH: &str = "/server-status?auto";
pub(super) const MOD_STATUS_PORT: u16 = 80;
/// Where agents answer.
pub(crate) use evener_core::pool::LOAD_PORT;

/// A second, or half the interval where that is shorter, so that naming a short interval is enough.
pub(super) fn health_timeout_ms(interval_ms: u64) -> u64 {
    (interval_ms / 2).min(1_000)
}

/// Reports that a host may miss before it counts as down, and the fewest that a file may ask for.
pub(super) const SILENCE: u64 = 6;
pub(super) const SILENCE_LEAST: u64 = 4;

/// Addresses with port and protocol, over all services.
pub(crate) const VIPS: usize = 64;
/// Servers that one service can list.
pub(crate) const SERVERS: usize = SERVICE_SERVERS_MAX;
/// Routes of one service, and of all together: the data plane has room for twice as many, since a
/// reload has the old ones and the new ones for a moment.
pub(crate) const ROUTES: usize = 10_000;
pub(crate) const FARM_ROUTES: usize = 30_000;
pub(super) const STATUS: RangeInclusive<u16> = 100..=599;
/// Longest name of a service or server, in characters.
pub(super) const NAME_CHARS: usize = 64;
/// Largest file that is read, in bytes: some hundreds of thousands of names.
pub(super) const FILE_BYTES: usize = 64 << 20;
/// Problems that are shown; a file with more is most likely not a configuration at all.
pub(super) const PROBLEMS: usize = 100;
/// Problems of one file that are kept to be counted and sorted; each takes some hundred bytes.
pub(super) const NOTED_PROBLEMS: usize = 10_000;

/// Where a server of a name is probed that says no port.
pub(super) const DNS_PROBED_PORT: u16 = 80;
