//! A plain service for tests and simulations. A test changes only the fields that it needs.
//!
//! The values here are not the defaults of the farm file, which crate `evener` defines.

use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use super::{Announce, Method, Placement, RouteList, Server, Service, Timeouts};
use crate::net::{Encapsulation, Protocol};
use crate::path::tables::RehandoffMode;
use crate::pool::policy::score::GAIN_PERCENT;
use crate::pool::{HealthCheck, HealthKind};

/// Returns an L2 web service with round-robin over listed servers and TCP probes.
pub fn service(name: &str, address: SocketAddr, servers: Vec<Server>) -> Service {
    Service {
        name: name.to_string(),
        addresses: vec![address],
        protocol: Protocol::Tcp,
        method: Method::L2,
        source_nat: false,
        encapsulation: Encapsulation::Ipip,
        tunnel_mtu: None,
        clamp_mss: true,
        later_requests: RehandoffMode::default(),
        proxy_protocol_port: None,
        placement: Placement::Director,
        stateless: false,
        affinity: None,
        policy: "round-robin",
        discover: None,
        discover_interval_ms: 5_000,
        discover_rounds: 3,
        announce: Announce::Director,
        allow: vec![],
        servers_max: 64,
        servers,
        routes: RouteList::default(),
        passive_checks: false,
        health: HealthCheck::default(),
        report: None,
        report_gain_percent: GAIN_PERCENT,
        timeouts: Timeouts::default(),
        keep_last: true,
        panic_percent: 0,
        slow_start_ms: 0,
    }
}

/// Returns a server of weight 1 on its service's port, without a configured MAC address.
pub fn server(name: &str, address: IpAddr) -> Server {
    Server {
        name: name.to_string(),
        address,
        port: None,
        mac: None,
        weight: 1,
        backup: false,
        max_connections: 0,
        health_address: None,
        publish: vec![],
    }
}

/// Returns a check with a probe every second and thresholds of one, for tests that count probes.
pub fn check(kind: HealthKind) -> HealthCheck {
    let times = HealthCheck { interval_ms: 1_000, timeout_ms: 500, ..HealthCheck::default() };
    HealthCheck { kind, rise: 1, fall: 1, jitter_percent: 0, ..times }
}
