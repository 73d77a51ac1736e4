//! State of a balanced name at one time, for status output. A farm may have hundreds of thousands
//! of names, so derived values are computed on demand.

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

/// State of a name's address at one time.
#[derive(Clone, Debug)]
pub struct AddressSnapshot {
    pub address: IpAddr,
    /// Name of the server; `None` if the server is named by its address.
    pub server: Option<Arc<str>>,
    /// State of the server.
    pub state: ServerState,
    /// Share of answers relative to the other addresses of the name.
    pub share: u16,
    pub weight: u16,
    /// Part of the weight after slow start and report, in tenths.
    pub tenths: u16,
    /// Part of the weight that the server has because of load and slow start, in thousandths;
    /// `None` for a failed server.
    pub permille: Option<u32>,
    /// Live counters of the address.
    pub counts: Arc<AddressCounts>,
    /// Reason why the server isn't up.
    pub reason: Option<Box<str>>,
    /// Load of the server, if known.
    pub load: Option<Box<LoadSnapshot>>,
}

/// Load of a server that reports, or that is selected by load.
#[derive(Clone, Debug, Default)]
pub struct LoadSnapshot {
    pub report: Report,
    /// Age of the report at the time of the snapshot, in milliseconds.
    pub age_ms: Option<u64>,
    /// Age of the path probe's result in milliseconds, if `report` includes it.
    pub probed_ms: Option<u64>,
    /// Signals from which the server's share was computed, if the policy depends on load.
    pub weighed: Signals,
}

/// A balanced name at one time.
#[derive(Clone, Debug)]
pub struct NameSnapshot {
    /// Settings of the name.
    pub name: Arc<BalancedName>,
    /// Addresses, in the order of preference if the selection depends on order.
    pub addresses: Box<[AddressSnapshot]>,
    /// Time of the snapshot by the monotonic clock, in milliseconds.
    pub at_ms: u64,
}

impl AddressSnapshot {
    /// Name of the server, or the address if there is none.
    pub fn server(&self) -> Cow<'_, str> {
        match &self.server {
            Some(server) => Cow::Borrowed(server),
            None => Cow::Owned(self.address.to_string()),
        }
    }

    /// Last report of the server.
    pub fn report(&self) -> Report {
        self.load.as_ref().map(|load| load.report).unwrap_or_default()
    }

    /// Age of the report at the time of the snapshot, in milliseconds.
    pub fn age_ms(&self) -> Option<u64> {
        self.load.as_ref()?.age_ms
    }

    /// Age of the path probe's result in milliseconds, if the report includes it.
    pub fn probed_ms(&self) -> Option<u64> {
        self.load.as_ref()?.probed_ms
    }

    /// True if answers contain the address while other servers work.
    pub fn is_given(&self) -> bool {
        self.state == ServerState::Up && self.share > 0
    }
}

impl NameSnapshot {
    /// Returns the addresses of the same IP version that answers may contain. Each IP version has
    /// queries of its own.
    fn other_addresses(&self, shown: &AddressSnapshot) -> impl Iterator<Item = &AddressSnapshot> {
        let is_ipv4 = shown.address.is_ipv4();
        self.addresses.iter().filter(move |one| one.is_given() && one.address.is_ipv4() == is_ipv4)
    }

    /// Rank: 1 is the address that is answered first or most often. `None` if no answer contains
    /// the address.
    pub fn rank(&self, shown: &AddressSnapshot) -> Option<u64> {
        let better = match self.name.settings.draw {
            Selection::Failover => {
                self.other_addresses(shown).take_while(|one| !Arc::ptr_eq(&one.counts, &shown.counts)).count()
            }
            _ => self.other_addresses(shown).filter(|one| one.share > shown.share).count(),
        };
        shown.is_given().then_some(better as u64 + 1)
    }

    /// Reason in words why an address has its share.
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

    /// Expected part of the answers in which the address comes first, from 0 to 1.
    pub fn part(&self, shown: &AddressSnapshot) -> f64 {
        let sum: u64 = self.other_addresses(shown).map(|one| u64::from(one.share)).sum();
        match (self.name.settings.draw, self.rank(shown)) {
            (_, None) => 0.0,
            (Selection::Failover, Some(rank)) => f64::from(u8::from(rank == 1)),
            (_, Some(_)) => f64::from(shown.share) / sum.max(1) as f64,
        }
    }
}
