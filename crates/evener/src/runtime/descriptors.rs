//! Limit on this process's descriptors, and their division. Clients get at most three quarters. The
//! rest is for probes, peers, the admin socket and the engine, however many clients connect.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Wanted limit, as in the systemd units (`LimitNOFILE`).
const WANTED: u64 = 16_384;
/// Maximum number of clients whose request is read, with one descriptor each, and of spliced
/// connections, with two each.
const READ_MAX: u64 = 4_096;
const CARRIED_MAX: u64 = 2_048;
/// Maximum number of clients of `redirect` services, and of clients that query DNS names over TCP.
const REDIRECTED_MAX: u64 = 16_384;
const NAMES_MAX: u64 = 4_096;
/// Maximum number of servers of balanced names that are probed or queried at a time. Their
/// descriptors belong to the last quarter.
const QUERIES_MAX: u64 = 2_048;

/// Maximum number of clients of each kind, and of queries to servers of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientLimits {
    /// Clients whose request is read.
    pub(crate) read: usize,
    /// Clients whose connection is spliced.
    pub(crate) carried: usize,
    /// Clients of services with method `redirect`.
    pub(crate) redirected: usize,
    /// Clients that query DNS names over TCP.
    pub(crate) names: usize,
    /// Servers of balanced names, which are probed and queried for their load.
    pub(crate) queries: usize,
}

impl ClientLimits {
    /// Raises this process's limit as far as possible, and divides it.
    pub(crate) fn make() -> ClientLimits {
        let limit = raise();
        let limits = ClientLimits::within(limit);
        if limit < WANTED {
            tracing::warn!(
                "the limit of open files is {limit}, which permits {} clients whose requests are read, {} proxied ones, {} of groups and {} of names by TCP: raise it to {WANTED} (`LimitNOFILE`, `ulimit -n`)",
                limits.read,
                limits.carried,
                limits.redirected,
                limits.names
            );
        }
        limits
    }

    /// Divides a limit: a quarter for clients whose request is read, a quarter for spliced
    /// connections, 3/16 for `redirect` and 1/16 for DNS over TCP.
    fn within(limit: u64) -> ClientLimits {
        let clients = limit / 2;
        let bounded = |count: u64, max: u64| usize::try_from(count.clamp(1, max)).unwrap_or(1);
        ClientLimits {
            read: bounded(clients / 2, READ_MAX),
            carried: bounded(clients / 2 / 2, CARRIED_MAX),
            redirected: bounded(limit / 16 * 3, REDIRECTED_MAX),
            names: bounded(limit / 16, NAMES_MAX),
            queries: bounded(limit / 8, QUERIES_MAX),
        }
    }
}

/// Raises the soft limit and returns it.
fn raise() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 0 };
    let wanted = soft.max(WANTED.min(hard));
    match setrlimit(Resource::RLIMIT_NOFILE, wanted, hard) {
        Ok(()) => wanted,
        Err(_) => soft,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_is_for_everything_else() {
        assert_eq!(
            ClientLimits::within(1_024),
            ClientLimits { read: 256, carried: 128, redirected: 192, names: 64, queries: 128 }
        );
        assert_eq!(
            ClientLimits::within(WANTED),
            ClientLimits { read: 4_096, carried: 2_048, redirected: 3_072, names: 1_024, queries: 2_048 }
        );
        let most =
            ClientLimits { read: 4_096, carried: 2_048, redirected: 16_384, names: 4_096, queries: 2_048 };
        assert_eq!(ClientLimits::within(u64::MAX), most);
        assert_eq!(
            ClientLimits::within(0),
            ClientLimits { read: 1, carried: 1, redirected: 1, names: 1, queries: 1 }
        );
        for limit in [1_024, 4_096, WANTED, 100_000] {
            let limits = ClientLimits::within(limit);
            assert!(
                (limits.read + 2 * limits.carried + limits.redirected + limits.names) as u64 <= limit / 4 * 3
            );
        }
    }
}
