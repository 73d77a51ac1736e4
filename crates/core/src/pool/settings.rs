//! Settings of the servers of a pool.

use alloc::string::String;
use alloc::vec::Vec;

use super::Period;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HealthCheck {
    pub kind: HealthKind,
    /// Time between two probes of one server, in milliseconds.
    pub interval_ms: u64,
    /// Interval after a result that contradicts the state of the server, in milliseconds. A value
    /// above `interval_ms` counts as `interval_ms`.
    pub fast_interval_ms: u64,
    /// Timeout of a probe, in milliseconds.
    pub timeout_ms: u64,
    /// Number of successes in a row that bring a server up.
    pub rise: u32,
    /// Number of failures in a row that take a server down.
    pub fall: u32,
    /// Random variation of the interval, in percent of the interval.
    pub jitter_percent: u32,
    /// Port to probe; `None` for the service's own port.
    pub port: Option<u16>,
}

impl Default for HealthCheck {
    /// Returns the check for a file that configures none: a TCP connection.
    fn default() -> HealthCheck {
        HealthCheck {
            kind: HealthKind::Tcp,
            interval_ms: 2_000,
            fast_interval_ms: u64::MAX,
            timeout_ms: 1_000,
            rise: 2,
            fall: 3,
            jitter_percent: 10,
            port: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HealthKind {
    /// A TCP connection opens.
    Tcp,
    /// A GET request gets an accepted reply.
    Http {
        /// Request target, beginning with `/`.
        path: String,
        /// Host header; `None` sends the service address.
        host: Option<String>,
        /// Accepted status codes, as inclusive ranges.
        status: Vec<(u16, u16)>,
        /// Text that the body must contain.
        body: Option<String>,
        /// TLS settings; `None` for plain text.
        tls: Option<ProbeTls>,
    },
    /// The server answers ARP.
    Arp,
    /// There are no probes, so the server is always up.
    None,
}

/// TLS settings of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProbeTls {
    /// Server name for SNI and certificate; `None` for the server's address.
    pub name: Option<String>,
    /// File with the trusted certificate authorities; `None` for those of the system.
    pub ca: Option<String>,
    /// True if the certificate is verified.
    pub verify: bool,
}

/// Settings of report queries, which go to each server's own address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reporting {
    pub kind: ReportKind,
    /// TCP port to query.
    pub port: u16,
    /// Interval between two queries to one server.
    pub interval: Period,
    /// Timeout of a query in milliseconds, less than each interval.
    pub timeout_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ReportKind {
    /// The report is a line of HAProxy's agent-check; see [`super::report::agent_check`].
    AgentCheck,
    /// The report is JSON, requested by HTTP with this request target.
    Http(String),
    /// The report is Apache's `?auto` page, requested by HTTP with this request target; see
    /// [`super::report::mod_status`].
    ModStatus(String),
}

impl ReportKind {
    /// True if reports contain load, and not only a requested weight.
    pub fn reports_load(&self) -> bool {
        matches!(self, ReportKind::Http(_) | ReportKind::ModStatus(_))
    }
}
