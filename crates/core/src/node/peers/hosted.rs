//! Report of a host on its own server of a service.

/// State of a host's own server, which the host decides and reports. The file's weight of another
/// host's server counts only until the first report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostedServer {
    pub weight: u16,
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
