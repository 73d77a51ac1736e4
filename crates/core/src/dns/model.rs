//! Settings of a balanced name.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::address_pool::NameSettings;
use super::path_probes::PathProbing;
use super::servers::ServerList;
use crate::pool::Period;
use crate::pool::policy::{Policy, Weighing};

/// A name whose addresses depend on the state of servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalancedName {
    pub settings: Arc<NameSettings>,
    /// Policy that selects addresses. It is in [`crate::pool::policy::POLICIES`], or
    /// [`crate::pool::policy::rank::PAPER`].
    pub policy: &'static Policy,
    /// Period for which shares stay valid after their computation.
    pub period: Period,
    /// Limit of the clients that a server gains by its report, in percent of its fair share.
    pub report_gain_percent: u64,
    /// Path of an external file of ranks, if configured.
    pub rank_from: Option<String>,
    /// Settings of path probes to the name's servers, if enabled.
    pub probe: Option<PathProbing>,
    /// Origin of the name's addresses.
    pub from: AddressesFrom,
}

/// Origin of a name's addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressesFrom {
    /// Services of the farm, with the addresses of their servers or their own addresses.
    Services {
        names: Vec<String>,
        /// True if answers contain a service's own addresses, while at least one of its servers
        /// works.
        own: bool,
    },
    /// Servers listed for the name alone.
    Servers(ServerList),
}

impl BalancedName {
    /// Load that determines addresses' shares or order; `None` if the policy doesn't depend on
    /// load.
    pub fn weighing(&self) -> Option<&'static Weighing> {
        self.policy.names?.weighing
    }

    /// Returns the name's own list of servers; `None` if its addresses come from services.
    pub fn list(&self) -> Option<&ServerList> {
        match &self.from {
            AddressesFrom::Servers(list) => Some(list),
            AddressesFrom::Services { .. } => None,
        }
    }
}
