//! How many descriptors this process may have, and whose they are. Clients get no more than three
//! quarters of them: probes, neighbours, the admin socket and the engine have theirs, whatever
//! strangers do.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// As many as the units ask for (`LimitNOFILE`).
const WANTED: u64 = 16_384;
/// Clients that are read at a time, with a descriptor each; and those whose bytes are carried, with
/// two.
const READ_MAX: u64 = 4_096;
const CARRIED_MAX: u64 = 2_048;
/// Those that are told where to go, and those that ask for names by TCP.
const REDIRECTED_MAX: u64 = 16_384;
const NAMES_MAX: u64 = 4_096;
/// Servers of names that are asked at a time: of the quarter that is for everything else.
const QUERIES_MAX: u64 = 2_048;

/// Room for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientLimits {
    /// Those that are read.
    pub(crate) read: usize,
    /// Those whose bytes are carried.
    pub(crate) carried: usize,
    /// Those of services with method `redirect`.
    pub(crate) redirected: usize,
    /// Those that ask for names by TCP.
    pub(crate) names: usize,
    /// Servers of names, which are probed and asked for their load.
    pub(crate) queries: usize,
}

impl ClientLimits {
    /// Room by this process's limit, which is raised first as far as that goes.
    pub(crate) fn make() -> ClientLimits {
        let limit = raise();
        let limits = ClientLimits::within(limit);
        if limit < WANTED {
            tracing::warn!(
                "this process may have {limit} descriptors, so that {} clients are read at a time, {} carried, {} \
                 redirected and {} answered for names by TCP: raise its limit to {WANTED} (`LimitNOFILE`, `ulimit -n`)",
                limits.read,
                limits.carried,
                limits.redirected,
                limits.names
            );
        }
        limits
    }

    /// Half of the limit for those whose connections are handed over, by halves; a quarter for
    /// those that are told where to go, of which those that ask for names have a quarter.
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

/// The limit as it is from now on.
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
