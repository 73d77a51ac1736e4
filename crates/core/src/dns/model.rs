//! A balanced name as its operator describes it.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::address_pool::NameSettings;
use super::paths::PathProbing;
use super::period::Period;
use super::servers::ServerList;
use crate::pool::policy::{Policy, Weighing};

/// A name whose addresses depend on how servers are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalancedName {
    /// How it is answered.
    pub settings: Arc<NameSettings>,
    /// By which addresses are given: a row of the table, or [`crate::pool::policy::rank::PAPER`].
    pub policy: &'static Policy,
    /// How long loads count as they were.
    pub period: Period,
    /// The most that a server gains by its report, in percent of its fair share.
    pub report_gain_percent: u64,
    /// The file from which ranks are read that somebody else makes.
    pub rank_from: Option<String>,
    /// How paths to its servers are probed, if they are.
    pub probe: Option<PathProbing>,
    /// The origin of its addresses.
    pub from: AddressesFrom,
}

/// The origin of a name's addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressesFrom {
    /// Of services of the farm: those of their servers, or their own.
    Services {
        /// The services' names.
        names: Vec<String>,
        /// Their own addresses are given, as long as one of their servers lives.
        own: bool,
    },
    /// Of servers that are listed for the name alone.
    Servers(ServerList),
}

impl BalancedName {
    /// By what shares are made or servers ranked, if the policy goes by load.
    pub fn weighing(&self) -> Option<&'static Weighing> {
        self.policy.names?.weighing
    }

    /// The servers that it has of its own.
    pub fn list(&self) -> Option<&ServerList> {
        match &self.from {
            AddressesFrom::Servers(list) => Some(list),
            AddressesFrom::Services { .. } => None,
        }
    }
}
