//! A balanced name at one moment, for whoever looks at it. There may be hundreds of thousands: what
//! is only shown is made when somebody looks.

use alloc::borrow::{Cow, ToOwned};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::counts::AddressCounts;
use super::model::BalancedName;
use crate::pool::ServerState;
use crate::pool::policy::Selection;
use crate::pool::report::Report;
use crate::pool::signals::Signals;

/// An address that a name may be answered with. There may be hundreds of thousands: what is only
/// shown is made when somebody looks.
#[derive(Clone, Debug)]
pub struct AddressSnapshot {
    /// It.
    pub address: IpAddr,
    /// The server's name; `None`: the server is called by its address.
    pub server: Option<Arc<str>>,
    /// How its server is.
    pub state: ServerState,
    /// How often it is given, relative to the others of its name.
    pub share: u16,
    /// Its weight.
    pub weight: u16,
    /// How much of that it has by now, in tenths.
    pub tenths: u16,
    /// Its share of its weight, in thousandths; none of a dead server.
    pub permille: Option<u32>,
    /// The numbers of it that go on without another snapshot.
    pub counts: Arc<AddressCounts>,
    /// Why it isn't up.
    pub reason: Option<Box<str>>,
    /// The signals of its load.
    pub load: Option<Box<LoadSnapshot>>,
}

/// The load of a server that reports it, or that is given by it.
#[derive(Clone, Debug, Default)]
pub struct LoadSnapshot {
    /// The load that it reports.
    pub report: Report,
    /// How old that was, in milliseconds.
    pub age_ms: Option<u64>,
    /// How old that was which a probe found of its path, likewise, where that is in the report.
    pub probed_ms: Option<u64>,
    /// The load that its share was made of, where policies go by load.
    pub weighed: Signals,
}

/// A balanced name at one moment.
#[derive(Clone, Debug)]
pub struct NameSnapshot {
    /// As its operator describes it.
    pub name: Arc<BalancedName>,
    /// Where the first one is always given first: in this order.
    pub addresses: Box<[AddressSnapshot]>,
    /// When that was, in milliseconds of the monotonic clock.
    pub at_ms: u64,
}

impl AddressSnapshot {
    /// Its server's name.
    pub fn server(&self) -> Cow<'_, str> {
        match &self.server {
            Some(server) => Cow::Borrowed(server),
            None => Cow::Owned(self.address.to_string()),
        }
    }

    /// The server's report of its load.
    pub fn report(&self) -> Report {
        self.load.as_ref().map(|load| load.report).unwrap_or_default()
    }

    /// How old that is, in milliseconds when this was shown.
    pub fn age_ms(&self) -> Option<u64> {
        self.load.as_ref()?.age_ms
    }

    /// How old what a probe found of its path is, likewise, where that counts.
    pub fn probed_ms(&self) -> Option<u64> {
        self.load.as_ref()?.probed_ms
    }

    /// Whether answers have it while others live.
    pub fn is_given(&self) -> bool {
        self.state == ServerState::Up && self.share > 0
    }
}

impl NameSnapshot {
    /// Those that are given besides an address: the versions of IP are asked for one by one.
    fn other_addresses(&self, shown: &AddressSnapshot) -> impl Iterator<Item = &AddressSnapshot> {
        let is_ipv4 = shown.address.is_ipv4();
        self.addresses.iter().filter(move |one| one.is_given() && one.address.is_ipv4() == is_ipv4)
    }

    /// 1 for whoever is given first, or most often; none of who isn't given.
    pub fn rank(&self, shown: &AddressSnapshot) -> Option<u64> {
        let better = match self.name.settings.draw {
            Selection::Failover => {
                self.other_addresses(shown).take_while(|one| !Arc::ptr_eq(&one.counts, &shown.counts)).count()
            }
            _ => self.other_addresses(shown).filter(|one| one.share > shown.share).count(),
        };
        shown.is_given().then_some(better as u64 + 1)
    }

    /// Why an address has its share, in words.
    pub fn cause(&self, shown: &AddressSnapshot) -> String {
        let Some(permille) = shown.permille else {
            return shown.reason.as_deref().unwrap_or(shown.state.name()).to_owned();
        };
        let starts = (shown.tenths < 10).then(|| format!("slow start {} %", shown.tenths * 10));
        let load = match self.name.weighing() {
            Some(weighing) => {
                let description = shown.load.as_ref().and_then(|load| (weighing.describe)(&load.weighed));
                description.unwrap_or_else(|| "no report: median".to_owned())
            }
            None => format!("weight {}", shown.weight),
        };
        let words = starts.into_iter().chain([load]).collect::<Vec<_>>().join(", ");
        match self.name.weighing() {
            Some(_) => format!("{words}: {} % of its weight", permille / 10),
            None => words,
        }
    }

    /// The part of the answers that gives it first.
    pub fn part(&self, shown: &AddressSnapshot) -> f64 {
        let sum: u64 = self.other_addresses(shown).map(|one| u64::from(one.share)).sum();
        match (self.name.settings.draw, self.rank(shown)) {
            (_, None) => 0.0,
            (Selection::Failover, Some(rank)) => f64::from(u8::from(rank == 1)),
            (_, Some(_)) => f64::from(shown.share) / sum.max(1) as f64,
        }
    }
}
