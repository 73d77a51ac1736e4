//! Every default and every limit of the configuration, in one place.
//!
//! `evener.example.toml` shows the defaults; a test holds the two together.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::ops::RangeInclusive;

use evener_core::path::tables::SERVICE_SERVERS_MAX;

use super::EngineKind;
use super::XdpMode;

pub(super) const ENGINE_KIND: EngineKind = EngineKind::Auto;
pub(super) const XDP_MODE: XdpMode = XdpMode::Auto;
pub(super) const SESSIONS_MAX: usize = 1_000_000;
/// IPv6 sessions take twice the memory, and are the fewer on most farms.
pub(super) fn sessions6_max(sessions_max: usize) -> usize {
    (sessions_max / 4).max(*SESSIONS.start() as usize)
}
/// Loopback: whoever reaches the admin address sees the farm.
pub(super) const ADMIN_LISTEN: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9180));

/// As the paper has it; a member is asked when it missed two more reports.
pub(super) const GROUP_REPORT_MS: u64 = 15_000;
pub(super) const GROUP_QUERY: u64 = 3;
/// Times between members' messages, in milliseconds.
pub(super) const GROUP_MS: RangeInclusive<u64> = 100..=86_400_000;
pub(super) const SLOW_START_MS: RangeInclusive<u64> = 0..=3_600_000;
pub(super) const DISCOVER_INTERVAL_MS: u64 = 5_000;
pub(super) const DISCOVER_ROUNDS: u32 = 3;
pub(super) const SERVERS_MAX: usize = 64;
pub(super) const KEEP_LAST: bool = true;
pub(super) const WEIGHT: u16 = 1;

pub(super) const HEALTH_INTERVAL_MS: u64 = 2_000;
pub(super) const HEALTH_RISE: u32 = 2;
pub(super) const HEALTH_FALL: u32 = 3;
pub(super) const HEALTH_JITTER_PERCENT: u32 = 10;
pub(super) const HEALTH_PATH: &str = "/";
pub(super) const HEALTH_STATUS: (u16, u16) = (200, 399);

pub(super) const MEASURE_MS: u64 = 1_000;
/// Loopback: what a server tells of itself is for those whom its operator names.
pub(super) const LOAD_LISTEN: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, LOAD_PORT));
/// The most that a server may gain by its report, in percent of its share: up to twice what two
/// candidates can give it at all.
pub(super) const GAIN_PERCENT: RangeInclusive<u64> = 100..=3_200;
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

pub(super) const COOKIE_EPOCH_MS: u64 = evener_core::path::cookie::EPOCH_MS;
pub(super) const ORPHAN_MS: u64 = 600_000;
pub(super) const PEER_PORT: u16 = 9181;
pub(super) const REPORT_INTERVAL_MS: u64 = 500;
/// Reports that a host may miss before it counts as down, and the fewest that a file may ask for.
pub(super) const SILENCE: u64 = 6;
pub(super) const SILENCE_LEAST: u64 = 4;

/// Addresses with port and protocol, over all services.
pub(super) const VIPS: usize = 64;
/// Servers that one service can list.
pub(super) const SERVERS: usize = SERVICE_SERVERS_MAX;
/// Routes of one service, and of all together: the data plane has room for twice as many, since a
/// reload has the old ones and the new ones for a moment.
pub(super) const ROUTES: usize = 10_000;
pub(super) const FARM_ROUTES: usize = 30_000;
pub(super) const SESSIONS: RangeInclusive<u64> = 1_024..=16_777_216;
pub(super) const THREADS: RangeInclusive<u64> = 1..=256;
pub(super) const COUNTS: RangeInclusive<u64> = 1..=100;
pub(super) const JITTER_PERCENT: RangeInclusive<u64> = 0..=50;
/// Active sessions of one server; 0: any number.
pub(super) const CONNECTIONS: RangeInclusive<u64> = 0..=u32::MAX as u64;
pub(super) const WEIGHTS: RangeInclusive<u64> = 0..=u16::MAX as u64;
/// No IPv6 link takes less (RFC 8200, section 5); no IP packet is longer.
pub(super) const TUNNEL_MTU: RangeInclusive<u64> = 1_280..=u16::MAX as u64;
pub(super) const PORTS: RangeInclusive<u64> = 1..=u16::MAX as u64;
pub(super) const STATUS: RangeInclusive<u16> = 100..=599;
/// Intervals of probes and of discovery, in milliseconds.
pub(super) const INTERVAL_MS: RangeInclusive<u64> = 50..=3_600_000;
/// Between two rankings of a name's servers; 0: with every change.
pub(super) const PERIOD_MS: RangeInclusive<u64> = 0..=86_400_000;
/// Intervals of hosts' reports, in milliseconds.
pub(super) const REPORT_MS: RangeInclusive<u64> = 100..=60_000;
/// A probe of a path takes up to two seconds, and one server is probed at a time.
pub(super) const PATH_PROBE_MS: RangeInclusive<u64> = 1_000..=86_400_000;
/// Epochs of cookies, in milliseconds: hosts' clocks may differ by one.
pub(super) const COOKIE_EPOCH: RangeInclusive<u64> = 1_000..=3_600_000;
/// How long a director without its daemon counts as ready, in milliseconds.
pub(super) const ORPHAN: RangeInclusive<u64> = 10_000..=7 * 86_400_000;
/// Idle times of sessions, in milliseconds.
pub(super) const IDLE_MS: RangeInclusive<u64> = 100..=86_400_000;
/// Longest name of a service or server, in characters.
pub(super) const NAME_CHARS: usize = 64;
/// Largest file that is read, in bytes: some hundreds of thousands of names.
pub(super) const FILE_BYTES: usize = 64 << 20;
/// Problems that are shown; a file with more is most likely not a configuration at all.
pub(super) const PROBLEMS: usize = 100;
/// Problems of one file that are kept to be counted and sorted; each takes some hundred bytes.
pub(super) const NOTED_PROBLEMS: usize = 10_000;

/// How long an answer of DNS may be kept, in seconds: resolvers ask again about as often as servers
/// change.
pub(super) const DNS_TTL_S: u32 = 5;
/// Answers a second to a network that hasn't shown where it is, and at once.
pub(super) const DNS_RATE: u32 = 200;
pub(super) const DNS_BURST: u32 = 1_000;
/// To all networks together.
pub(super) const DNS_TOTAL_RATE: u32 = 5_000;
/// Where a server of a name is probed that says no port.
pub(super) const DNS_PROBED_PORT: u16 = 80;
