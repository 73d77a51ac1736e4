//! Events of a run. They are formatted only on demand, because most runs pass.

use std::fmt;

use evener_core::director::Event;

use crate::farms::Kind;
use crate::step::Step;

/// Event with its time.
#[derive(Debug, PartialEq)]
pub struct Line {
    pub(crate) at_ms: u64,
    pub(crate) what: What,
}

#[derive(Debug, PartialEq)]
pub(crate) enum What {
    /// The run started with a farm of this kind.
    Begun(Kind),
    /// A step was taken.
    Done(Step),
    Healed,
    /// One node fails and returns: its number, and the kind of failure.
    Lost(usize, usize),
    /// A node's director reported an event.
    Event(usize, Event),
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>8.3} {}", self.at_ms as f64 / 1e3, self.what)
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Begun(kind) => write!(f, "a farm of {} servers: {kind:?}", kind.servers()),
            What::Done(step) => write!(f, "{step:?}"),
            What::Healed => f.write_str("all faults end"),
            What::Lost(node, how) => {
                let how = [
                    "its daemon is killed",
                    "it loses all",
                    "it leaves",
                    "its cable is out",
                    "it is cut off",
                ][how % 5];
                write!(f, "node {node} goes: {how}")
            }
            What::Event(node, event) => {
                let service = event.service().unwrap_or("-");
                let server = event.server().map_or("-", |name| &name.server);
                write!(f, "node {node}: {service} {server}: {event}")
            }
        }
    }
}
