//! Defaults of texts, and limits of the whole file. Defaults of numbers and times are in
//! [`super::keys`].

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::ops::RangeInclusive;

use evener_core::path::tables::SERVICE_SERVERS_MAX;

use super::keys::tables::engine;

/// Returns the default of `sessions6_max`. IPv6 sessions need twice the memory, and most farms have
/// fewer of them.
pub(super) fn sessions6_max(sessions_max: usize) -> usize {
    (sessions_max / 4).max(*engine::SESSIONS6_MAX.limits().start() as usize)
}
/// Default admin address. Loopback only, since clients of the admin address can read the farm's
/// state.
pub(super) const ADMIN_LISTEN: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9180));

/// Number of reports that a member may miss before the director queries it.
pub(super) const GROUP_QUERY: u64 = 3;

pub(super) const HEALTH_PATH: &str = "/";
pub(super) const HEALTH_STATUS: (u16, u16) = (200, 399);

/// Default address of load reports. Loopback only: the operator decides which hosts may read a
/// server's load.
pub(super) const LOAD_LISTEN: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, LOAD_PORT));
pub(super) const REPORT_PATH: &str = "/v1/load";
/// Default path of Apache's status page, as in Apache's manual.
pub(super) const MOD_STATUS_PATH: &str = "/server-status?auto";
pub(super) const MOD_STATUS_PORT: u16 = 80;
pub(crate) use evener_core::pool::LOAD_PORT;

/// Returns the default timeout of probes: a second, or half of a shorter interval.
pub(super) fn health_timeout_ms(interval_ms: u64) -> u64 {
    (interval_ms / 2).min(1_000)
}

/// Number of reports that a host may miss before it counts as down, and the minimum of the file's
/// setting.
pub(super) const SILENCE: u64 = 6;
pub(super) const SILENCE_LEAST: u64 = 4;

/// Maximum number of addresses with port and protocol, over all services.
pub(crate) const VIPS: usize = 64;
/// Maximum number of servers of a service.
pub(crate) const SERVERS: usize = SERVICE_SERVERS_MAX;
/// Maximum number of routes of a service, and of all services. The data plane has room for twice as
/// many, since old and new routes coexist during a reload.
pub(crate) const ROUTES: usize = 10_000;
pub(crate) const FARM_ROUTES: usize = 30_000;
pub(super) const STATUS: RangeInclusive<u16> = 100..=599;
/// Maximum length of a service's or server's name, in characters.
pub(super) const NAME_CHARS: usize = 64;
/// Maximum size of a file, in bytes. Some hundreds of thousands of names fit.
pub(super) const FILE_BYTES: usize = 64 << 20;
/// Maximum number of problems shown. A file with more is most likely no configuration.
pub(super) const PROBLEMS: usize = 100;
/// Maximum number of problems of one file that are collected. Each needs some hundred bytes.
pub(super) const NOTED_PROBLEMS: usize = 10_000;

/// Default port for probes of a name's server.
pub(super) const DNS_PROBED_PORT: u16 = 80;
