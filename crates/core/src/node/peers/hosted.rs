//! Report of a host on its own server of a service.

/// Tenths of a weight that is in force as a whole.
const TENTHS: u16 = 10;

/// State of a host's own server, which the host decides and reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostedServer {
    /// True if the host's own probes succeed.
    pub is_up: bool,
    /// True if the operator drains the server.
    pub is_drained: bool,
    /// `None` before the host's first report: the file's weight counts.
    pub weight: Option<u16>,
    /// Tenths of the weight that are in force, from 1 to 10.
    pub tenths: u16,
    /// True if the server's report refuses new sessions.
    pub refuses: bool,
    /// True if the server has as many connections as it may have.
    pub is_full: bool,
    /// Load by which the service's policy compares servers, in the policy's unit. `None` if the
    /// policy compares none, or the load is unknown.
    pub load: Option<u64>,
}

impl HostedServer {
    /// A healthy server about which nothing else is known.
    pub const HEALTHY: HostedServer = HostedServer {
        is_up: true,
        is_drained: false,
        weight: None,
        tenths: TENTHS,
        refuses: false,
        is_full: false,
        load: None,
    };
}
