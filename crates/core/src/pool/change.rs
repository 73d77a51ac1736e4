//! Changes of one server, which methods of the server's pool return.

use alloc::vec::Vec;

use super::health::Transition;
use super::report::BadReport;

/// Change of a server. Its cause is a probe or report, the operator, or time alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerChange {
    pub effect: Effect,
    /// Events to publish, in order.
    pub events: Vec<ServerEvent>,
}

/// Values that must be recomputed after a change of a server. Each variant includes the variants
/// before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    #[default]
    None,
    /// Scores and shares that depend on load.
    Load,
    /// Weights, and with them tables, rings and answers of names.
    Weight,
}

/// Event of one server, independent of its owner (service, group or name).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// Probes changed the server's state.
    Health(Transition),
    /// The server's report refuses new sessions (`true`), or accepts them again.
    Refuses(bool),
    /// Reports fail with this error, or are valid again (`None`).
    Reports(Option<BadReport>),
    /// The operator drains the server (`true`), or ends the drain.
    Drained(bool),
    /// The operator suspends probes and reports (`true`), or resumes them.
    Suspended(bool),
}
