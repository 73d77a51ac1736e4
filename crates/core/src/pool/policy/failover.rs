//! Failover: all clients to one server, and to the next when that one is gone.

use super::{NamePolicy, Policy, Selection};

/// The first that lives: in the order of the file, or of ranks that are read.
pub static FAILOVER: Policy = Policy {
    name: "failover",
    about: "the first that lives, in the order of the file or of ranks; for servers that stand by",
    needs: &[],
    packets: None,
    redirect: None,
    names: Some(NamePolicy { draw: Selection::Failover, weighing: None }),
};
