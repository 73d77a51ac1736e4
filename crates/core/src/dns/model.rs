//! Settings of a balanced name.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::address_pool::NameSettings;
use super::path_probes::PathProbing;
use super::period::Period;
use super::servers::ServerList;
use crate::pool::policy::{Policy, Weighing};

/// A name whose addresses depend on the state of servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalancedName {
    pub settings: Arc<NameSettings>,
    /// Policy that selects addresses: a row of the table, or [`crate::pool::policy::rank::PAPER`].
    pub policy: &'static Policy,
    /// Period for which loads count as unchanged.
    pub period: Period,
    /// Limit of the clients that a server gains by its report, in percent of its fair share.
    pub report_gain_percent: u64,
    /// External file of ranks, if configured.
    pub rank_from: Option<String>,
    /// Settings of path probes to its servers, if enabled.
    pub probe: Option<PathProbing>,
    /// Origin of its addresses.
    pub from: AddressesFrom,
}

/// Origin of a name's addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressesFrom {
    /// Services of the farm: addresses of their servers, or their own.
    Services {
        names: Vec<String>,
        /// True if answers have the services' own addresses, while one of their servers works.
        own: bool,
    },
    /// Servers listed for the name alone.
    Servers(ServerList),
}

impl BalancedName {
    /// Load that determines shares or ranks, if the policy depends on load.
    pub fn weighing(&self) -> Option<&'static Weighing> {
        self.policy.names?.weighing
    }

    /// Returns the servers listed for the name.
    pub fn list(&self) -> Option<&ServerList> {
        match &self.from {
            AddressesFrom::Servers(list) => Some(list),
            AddressesFrom::Services { .. } => None,
        }
    }
}
