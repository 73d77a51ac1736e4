//! How servers of a pool are looked after, as its operator wants it.

use alloc::string::String;
use alloc::vec::Vec;

/// How servers are probed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HealthCheck {
    /// The kind of probe.
    pub kind: HealthKind,
    /// Time between two probes of one server, in milliseconds.
    pub interval_ms: u64,
    /// The same after a result that speaks against the state of the server, in milliseconds; at
    /// most the interval.
    pub fast_interval_ms: u64,
    /// A probe unanswered for this long has failed, in milliseconds.
    pub timeout_ms: u64,
    /// Successes in a row that make a server up.
    pub rise: u32,
    /// Failures in a row that make a server down.
    pub fall: u32,
    /// The interval varies by up to this share of itself, in percent.
    pub jitter_percent: u32,
    /// Port probed; `None` is the service's own.
    pub port: Option<u16>,
}

impl Default for HealthCheck {
    /// The check of a file that says nothing of it, by TCP.
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

/// The kinds of probes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HealthKind {
    /// A TCP connection opens.
    Tcp,
    /// A GET is answered as asked.
    Http {
        /// Request target, beginning with `/`.
        path: String,
        /// Host header; `None` sends the service address.
        host: Option<String>,
        /// Accepted status codes, inclusive ranges.
        status: Vec<(u16, u16)>,
        /// Text that the body must contain.
        body: Option<String>,
        /// TLS below it; `None` asks in the clear.
        tls: Option<ProbeTls>,
    },
    /// The server answers ARP.
    Arp,
    /// Servers are always taken to be up.
    None,
}

/// TLS of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProbeTls {
    /// The server's name in SNI and in its certificate; `None`: its address.
    pub name: Option<String>,
    /// A file with the authorities that may have signed the certificate; `None`: the system's.
    pub ca: Option<String>,
    /// Whether the certificate is verified at all.
    pub verify: bool,
}

/// How servers are asked for their load, each at its own address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reporting {
    /// How they say it.
    pub kind: ReportKind,
    /// The TCP port that answers.
    pub port: u16,
    /// Time between two questions to one server, in milliseconds.
    pub interval_ms: u64,
    /// An answer that is later than this is none, in milliseconds; less than the interval.
    pub timeout_ms: u64,
}

/// How servers say their load.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ReportKind {
    /// A line as HAProxy's agent-check has it; see [`super::report::agent_check`].
    AgentCheck,
    /// JSON, for this request target.
    Http(String),
    /// Apache's own page with `?auto`, for this request target; see [`super::report::mod_status`].
    ModStatus(String),
}

impl ReportKind {
    /// Whether it tells how loaded a server is, and not only how much of its weight it wants.
    pub fn reports_load(&self) -> bool {
        matches!(self, ReportKind::Http(_) | ReportKind::ModStatus(_))
    }
}
