//! What the control loop publishes of names, for whoever looks at them.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arc_swap::ArcSwap;

use super::Counts;

/// An address that a name may be answered with.
#[derive(Clone, Debug)]
pub(crate) struct ShownAddress {
    pub(crate) address: IpAddr,
    /// Whose it is.
    pub(crate) server: String,
    /// `up`, `down`, `draining` or `silent`.
    pub(crate) state: &'static str,
    /// How often it is given, relative to the others of its name.
    pub(crate) share: u16,
    /// How often it was given first.
    pub(crate) given: Arc<AtomicU64>,
    /// How long the server takes to send what it has to, by its report, in microseconds.
    pub(crate) delay_us: Option<u64>,
    /// How old the report is, in milliseconds when this was shown.
    pub(crate) age_ms: Option<u64>,
    /// Why its share is what it is.
    pub(crate) cause: String,
}

/// A balanced name at one moment.
#[derive(Clone, Debug)]
pub(crate) struct ShownName {
    pub(crate) name: String,
    pub(crate) policy: &'static str,
    pub(crate) ttl_s: u32,
    pub(crate) addresses: Vec<ShownAddress>,
}

/// All of them, and when that was, in milliseconds of the monotonic clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShownNames {
    pub(crate) names: Vec<ShownName>,
    pub(crate) at_ms: u64,
}

/// Where it is published.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    latest: ArcSwap<ShownNames>,
    pub(crate) counts: Arc<Counts>,
}

impl Shown {
    /// What was published last.
    pub(crate) fn latest(&self) -> Arc<ShownNames> {
        self.latest.load_full()
    }

    pub(crate) fn publish(&self, names: ShownNames) {
        self.latest.store(Arc::new(names));
    }
}
