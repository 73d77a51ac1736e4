//! What the control loop publishes of names, for whoever looks at them.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arc_swap::ArcSwap;
use evener_core::dns::{Draw, Settings, Table};
use evener_core::pool::State;
use evener_core::pool::policy::Weighing;
use evener_core::pool::report::Report;
use evener_core::pool::signals::Signals;

use super::Counts;

/// An address that a name may be answered with. There may be hundreds of thousands: what is only shown is made when somebody looks.
#[derive(Clone, Debug)]
pub(crate) struct ShownAddress {
    pub(crate) address: IpAddr,
    /// Whose it is; `None`: the server is called by its address.
    pub(crate) server: Option<Arc<str>>,
    /// `up`, `down`, `draining` or `silent`.
    pub(crate) state: &'static str,
    /// How often it is given, relative to the others of its name.
    pub(crate) share: u16,
    /// Its weight, and how much of it it has by now, in tenths.
    pub(crate) weight: u16,
    pub(crate) tenths: u16,
    /// What of its weight its share is, in thousandths; none of who doesn't live.
    pub(crate) permille: Option<u32>,
    /// How often it was given first.
    pub(crate) given: Arc<AtomicU64>,
    /// Why it isn't up.
    pub(crate) reason: Option<Box<str>>,
    /// What is known of its load.
    pub(crate) load: Option<Box<Load>>,
}

/// What is known of the load of a server that tells it, or that is given by it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Load {
    /// What it says of its load, and how old that is, in milliseconds when this was shown.
    pub(crate) report: Report,
    pub(crate) age_ms: Option<u64>,
    /// How old what a probe found of its path is, likewise, where that is in the report.
    pub(crate) probed_ms: Option<u64>,
    /// What of its load its share was made of, where policies go by load.
    pub(crate) weighed: Signals,
}

/// A balanced name at one moment.
#[derive(Clone, Debug)]
pub(crate) struct ShownName {
    pub(crate) settings: Arc<Settings>,
    /// The policy's name, and how it weighs loads, if it does.
    pub(crate) policy: &'static str,
    pub(crate) weighing: Option<&'static Weighing>,
    /// Where the first one is always given first: in this order.
    pub(crate) addresses: Box<[ShownAddress]>,
    /// When that was, in milliseconds of the monotonic clock.
    pub(crate) at_ms: u64,
}

impl ShownAddress {
    /// What its server is called.
    pub(crate) fn server(&self) -> Cow<'_, str> {
        match &self.server {
            Some(server) => Cow::Borrowed(server),
            None => Cow::Owned(self.address.to_string()),
        }
    }

    /// What the server says of its load.
    pub(crate) fn report(&self) -> Report {
        self.load.as_ref().map(|load| load.report).unwrap_or_default()
    }

    /// How old that is, in milliseconds when this was shown.
    pub(crate) fn age_ms(&self) -> Option<u64> {
        self.load.as_ref()?.age_ms
    }

    /// How old what a probe found of its path is, likewise, where that counts.
    pub(crate) fn probed_ms(&self) -> Option<u64> {
        self.load.as_ref()?.probed_ms
    }

    /// Whether answers have it while others live.
    pub(crate) fn is_given(&self) -> bool {
        self.state == State::Up.name() && self.share > 0
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
        let better = match self.settings.draw {
            Draw::First => {
                self.beside(shown).take_while(|one| !Arc::ptr_eq(&one.given, &shown.given)).count()
            }
            _ => self.beside(shown).filter(|one| one.share > shown.share).count(),
        };
        shown.is_given().then_some(better as u64 + 1)
    }

    /// Why an address has its share, in words.
    pub(crate) fn cause(&self, shown: &ShownAddress) -> String {
        let Some(permille) = shown.permille else {
            return shown.reason.as_deref().unwrap_or(shown.state).to_owned();
        };
        let starts = (shown.tenths < 10).then(|| format!("slow start {} %", shown.tenths * 10));
        let load = match self.weighing {
            Some(weighing) => {
                let said = shown.load.as_ref().and_then(|load| (weighing.said)(&load.weighed));
                said.unwrap_or_else(|| "no report: median".to_owned())
            }
            None => format!("weight {}", shown.weight),
        };
        let words = starts.into_iter().chain([load]).collect::<Vec<_>>().join(", ");
        match self.weighing {
            Some(_) => format!("{words}: {} % of its weight", permille / 10),
            None => words,
        }
    }

    /// What part of the answers gives it first.
    pub(crate) fn part(&self, shown: &ShownAddress) -> f64 {
        let sum: u64 = self.beside(shown).map(|one| u64::from(one.share)).sum();
        match (self.settings.draw, self.rank(shown)) {
            (_, None) => 0.0,
            (Draw::First, Some(rank)) => f64::from(u8::from(rank == 1)),
            (_, Some(_)) => f64::from(shown.share) / sum.max(1) as f64,
        }
    }
}

/// Where they are published.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    latest: ArcSwap<Table<ShownName>>,
    pub(crate) counts: Arc<Counts>,
}

impl Shown {
    /// What was published last.
    pub(crate) fn latest(&self) -> Arc<Table<ShownName>> {
        self.latest.load_full()
    }

    pub(crate) fn publish(&self, names: Table<ShownName>) {
        self.latest.store(Arc::new(names));
    }
}
