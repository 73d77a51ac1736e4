//! The signals of a server's load: the same for every placement, and from any source.

use core::fmt;

use super::report::Report;

/// The signals of one server at a moment. Signals that are not measured, or not reported, are
/// unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// Its sessions that count as active on this host.
    pub active: Option<u64>,
    /// Requests that it was given and hasn't answered.
    pub in_flight: Option<u64>,
    /// Sessions that it serves, by its own report.
    pub reported: Option<u64>,
    /// How long the last good probe took, in microseconds.
    pub latency_us: Option<u64>,
    /// Its report of its load, if it was asked and its answer isn't too old.
    pub report: Report,
    /// How old its report is, in milliseconds.
    pub age_ms: Option<u64>,
}

/// One of them. [`Consumer`](super::policy::Consumer) says who can know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// [`Signals::active`].
    Active,
    /// [`Signals::in_flight`].
    InFlight,
    /// [`Signals::reported`], with its age.
    Reported,
    /// [`Signals::latency_us`].
    Latency,
    /// [`Signals::report`].
    Load,
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Signal::Active => "how many sessions a server has",
            Signal::InFlight => "how many requests a server hasn't answered",
            Signal::Reported => "how many sessions hosts say that they serve",
            Signal::Latency => "how long probes take",
            Signal::Load => "what servers say of their load",
        })
    }
}

/// A server among those that new sessions are shared out to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Whether it is this host itself.
    pub own: bool,
    /// Its weight relative to others; 0 takes nothing.
    pub weight: u16,
    /// The signals of its load.
    pub signals: Signals,
}
