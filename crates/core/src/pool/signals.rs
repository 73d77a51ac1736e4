//! Signals of a server's load, the same for every placement and source.

use core::fmt;

use super::report::Report;

/// Signals of one server at one time. Signals not measured or not reported are unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// Sessions that are active on this host.
    pub active: Option<u64>,
    /// Requests without a reply.
    pub in_flight: Option<u64>,
    /// Sessions that the server reports.
    pub reported: Option<u64>,
    /// Duration of the last successful probe, in microseconds.
    pub latency_us: Option<u64>,
    /// Last report of the server, empty if reports are not configured or the last one has expired.
    pub report: Report,
    /// Age of the report, in milliseconds; `None` if there is no report.
    pub age_ms: Option<u64>,
}

/// Kind of signal. [`Consumer`](super::policy::Consumer) decides which signals a consumer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Active,
    InFlight,
    /// [`Signals::reported`], with the age of the report.
    Reported,
    Latency,
    Load,
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Signal::Active => "how many sessions a server has",
            Signal::InFlight => "how many requests a server hasn't answered",
            Signal::Reported => "number of sessions that hosts report",
            Signal::Latency => "duration of probes",
            Signal::Load => "load that servers report",
        })
    }
}

/// A server among which new sessions are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// True for this host itself.
    pub own: bool,
    /// Weight relative to the other servers. A server with weight 0 gets no sessions.
    pub weight: u16,
    pub signals: Signals,
}
