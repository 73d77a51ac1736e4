//! Changes of one server, as its pool gives them to its owner.

use alloc::vec::Vec;

use super::health::Transition;
use super::report::BadReport;

/// The change of a server by a fact, by its operator, or by time alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerChange {
    /// The values that have to be computed anew.
    pub effect: Effect,
    /// The events to publish, in order.
    pub events: Vec<ServerEvent>,
}

/// The values that a change of a server makes stale. Each includes the ones before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// None.
    #[default]
    None,
    /// Scores and shares by load.
    Load,
    /// Weights, and with them tables, rings and answers.
    Weight,
}

/// An event of one server, whoever has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// Probes found the server in another state.
    Health(Transition),
    /// By its own report the server takes no new sessions (`true`), or takes them again.
    Refuses(bool),
    /// Reports fail with this error, or are valid again (`None`).
    Reports(Option<BadReport>),
    /// The operator drains the server, or no longer does.
    Drained(bool),
    /// The operator suspends probes and reports, or no longer does.
    Suspended(bool),
}
