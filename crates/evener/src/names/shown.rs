//! What the control loop publishes of names, for whoever looks at them.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arc_swap::ArcSwap;
use evener_core::director::ServerState;
use evener_core::dns::Draw;
use evener_core::farm::report::Report;

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
    /// What the server says of its load.
    pub(crate) report: Report,
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
    /// Who is given first.
    pub(crate) draw: Draw,
    /// Where the first one is always given first: in this order.
    pub(crate) addresses: Vec<ShownAddress>,
}

impl ShownAddress {
    /// Whether answers have it while others live.
    pub(crate) fn is_given(&self) -> bool {
        self.state == ServerState::Up.name() && self.share > 0
    }
}

impl ShownName {
    /// Those that are given besides an address: the versions of IP are asked for one by one.
    fn beside(&self, shown: &ShownAddress) -> impl Iterator<Item = &ShownAddress> {
        let is_ipv4 = shown.address.is_ipv4();
        self.addresses.iter().filter(move |one| one.is_given() && one.address.is_ipv4() == is_ipv4)
    }

    /// 1 for whoever is given first, or most often; none of who isn't given.
    pub(crate) fn rank(&self, shown: &ShownAddress) -> Option<u64> {
        let better = match self.draw {
            Draw::First => {
                self.beside(shown).take_while(|one| !Arc::ptr_eq(&one.given, &shown.given)).count()
            }
            _ => self.beside(shown).filter(|one| one.share > shown.share).count(),
        };
        shown.is_given().then_some(better as u64 + 1)
    }

    /// What part of the answers gives it first.
    pub(crate) fn part(&self, shown: &ShownAddress) -> f64 {
        let sum: u64 = self.beside(shown).map(|one| u64::from(one.share)).sum();
        match (self.draw, self.rank(shown)) {
            (_, None) => 0.0,
            (Draw::First, Some(rank)) => f64::from(u8::from(rank == 1)),
            (_, Some(_)) => f64::from(shown.share) / sum.max(1) as f64,
        }
    }
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
