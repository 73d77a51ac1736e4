//! The events of a run. They become text only when somebody reads them, which of most runs nobody
//! does.

use std::fmt;

use evener_core::director::Event;

use crate::farms::Kind;
use crate::step::Step;

/// Something that happened.
#[derive(Debug, PartialEq)]
pub struct Line {
    pub(crate) at_ms: u64,
    pub(crate) what: What,
}

#[derive(Debug, PartialEq)]
pub(crate) enum What {
    /// It began, with a farm of this kind.
    Begun(Kind),
    /// Something was done to the farm.
    Done(Step),
    /// All faults ended.
    Healed,
    /// One node goes and comes back: which, and how.
    Lost(usize, usize),
    /// A node's director had something to tell.
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
